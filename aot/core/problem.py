"""What is to be computed: one GEMM problem, its operation, and the names by which both are written.

D (m, n) = A (m, k) @ B (n, k)^T, accumulated in float32 and rounded once to the operands' type. B is held (n, k), as
torch.nn.Linear holds a weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from aot.core.constraints import Extent, Grammar


class Dtype(Enum):
    """Element type of A, B and D. The value is the name used by torch, in manifests and on the command line."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def tag(self) -> str:
        """Give the short name used in kernel names, such as `bf16`."""
        return {"bfloat16": "bf16", "float16": "fp16"}[self.value]

    @property
    def num_bytes(self) -> int:
        """Give the bytes of one element."""
        return 2

    @property
    def code(self) -> int:
        """Give the number by which the C API knows the type (`aot_gemm_dtype_t` in aot_gemm.h)."""
        return list(Dtype).index(self)


class Layout(Enum):
    """Which mode of A and of B is contiguous in memory; D is always row-major.

    The first letter is A's (`k`: row-major (m, k); `m`: its transpose), the second is B's (`k`: row-major (n, k), a
    torch weight; `n`: its transpose, the row-major (k, n) right operand of torch.matmul). A column-major D is the same
    problem with A and B exchanged, so no letter is needed for it.
    """

    KK = "kk"
    KN = "kn"
    MK = "mk"
    MN = "mn"

    @property
    def a_k_major(self) -> bool:
        """Say whether A is contiguous along k."""
        return self.value[0] == "k"

    @property
    def b_k_major(self) -> bool:
        """Say whether B is contiguous along k."""
        return self.value[1] == "k"

    @property
    def code(self) -> int:
        """Give the number by which the runtime knows the layout: bit 1 is A's, bit 0 is B's; 0 means k-major."""
        return (not self.a_k_major) * 2 + (not self.b_k_major)


def _one_of(kind: type[Enum]) -> Grammar:
    names = [str(member.value) for member in kind]
    return Grammar("|".join(names), f"one of {', '.join(names)}")


@dataclass(frozen=True, order=True)
class Operation:
    """Everything about a problem but its sizes: one section of the dispatch table."""

    dtype_name: Annotated[str, _one_of(Dtype)]
    layout_name: Annotated[str, _one_of(Layout)]

    def __post_init__(self) -> None:
        """Refuse an unknown name here (ValueError), not where it is first needed."""
        _ = self.dtype, self.layout

    @staticmethod
    def of(dtype: Dtype, layout: Layout = Layout.KK) -> Operation:
        """Make the operation of an element type and a layout."""
        return Operation(dtype.value, layout.value)

    @property
    def dtype(self) -> Dtype:
        """Give the element type."""
        return Dtype(self.dtype_name)

    @property
    def layout(self) -> Layout:
        """Give the layout of A and B."""
        return Layout(self.layout_name)

    @property
    def tag(self) -> str:
        """Give the prefix of its kernels' names, such as `bf16_kk`."""
        return f"{self.dtype.tag}_{self.layout.value}"


@dataclass(frozen=True, order=True)
class Problem:
    """One GEMM: an operation and its sizes in elements."""

    operation: Operation
    m: Extent
    n: Extent
    k: Extent

    @property
    def flops(self) -> int:
        """Count the floating-point operations, a multiply and an add each."""
        return 2 * self.m * self.n * self.k

    @property
    def num_bytes(self) -> int:
        """Count the fewest bytes that device memory must move: A and B read once, D written once."""
        return (self.m * self.k + self.n * self.k + self.m * self.n) * self.operation.dtype.num_bytes

    @property
    def name(self) -> str:
        """Give the name used in tables and messages, such as `bf16_kk m1 n4096 k4096`."""
        return f"{self.operation.tag} m{self.m} n{self.n} k{self.k}"
