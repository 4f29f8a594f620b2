"""Everything about a product but its sizes: the catalogue of operations that kernels are made for.

D (m, n) = epilogue(A (m, k) @ B (n, k)^T), accumulated in float32 and rounded once. B is held (n, k), as
torch.nn.Linear holds a weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from aot.core.constraints import Word
from aot.core.element import ElementType

if TYPE_CHECKING:
    from typing import Self  # Python 3.10 has none of its own


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
        """Return the number by which the runtime knows the layout: bit 1 is A's, bit 0 is B's; 0 means k-major."""
        return (not self.a_k_major) * 2 + (not self.b_k_major)


class Scale(Enum):
    """What an operand's elements are multiplied by; no operation of the catalogue has scale factors yet."""

    NONE = "none"


@dataclass(frozen=True)
class Operand:
    """A or B: its element type, the mode that is contiguous, and its scale factors."""

    element: ElementType
    is_k_major: bool
    scale: Scale = Scale.NONE


class Step(Enum):
    """One step of an epilogue, in float32, between the accumulator and the rounding of D."""

    BIAS = "bias"
    """Adds a vector of n elements of D's type, one to each column of D."""


class Epilogue(Word):
    """The steps between the accumulator and D, in order; the value is the epilogue's part of a tag."""

    NONE = "none"
    BIAS = "bias"

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return the steps in order."""
        return {Epilogue.NONE: (), Epilogue.BIAS: (Step.BIAS,)}[self]


class Grouping(Enum):
    """How many products one launch computes; every operation of the catalogue computes one."""

    DENSE = "dense"


class Operation(Word):
    """One section of the dispatch table, by its stable tag, such as `bf16_kk` or `bf16_kk_bias`.

    This is a catalogue, not a cross product: what is listed is built, measured, shipped and tested. A line has the tag,
    the element type of A, B and D, the layout and the epilogue; the accumulator is float32.
    """

    element: ElementType
    layout: Layout
    epilogue: Epilogue

    BF16_KK = "bf16_kk", ElementType.BFLOAT16, Layout.KK
    BF16_KN = "bf16_kn", ElementType.BFLOAT16, Layout.KN
    BF16_MK = "bf16_mk", ElementType.BFLOAT16, Layout.MK
    BF16_MN = "bf16_mn", ElementType.BFLOAT16, Layout.MN
    FP16_KK = "fp16_kk", ElementType.FLOAT16, Layout.KK
    FP16_KN = "fp16_kn", ElementType.FLOAT16, Layout.KN
    FP16_MK = "fp16_mk", ElementType.FLOAT16, Layout.MK
    FP16_MN = "fp16_mn", ElementType.FLOAT16, Layout.MN
    BF16_KK_BIAS = "bf16_kk_bias", ElementType.BFLOAT16, Layout.KK, Epilogue.BIAS
    FP16_KK_BIAS = "fp16_kk_bias", ElementType.FLOAT16, Layout.KK, Epilogue.BIAS

    def __new__(cls, tag: str, element: ElementType, layout: Layout, epilogue: Epilogue = Epilogue.NONE) -> Self:
        """Make a line of the catalogue."""
        self = str.__new__(cls, tag)
        self._value_ = tag
        self.element, self.layout, self.epilogue = element, layout, epilogue
        return self

    @staticmethod
    def of(element: ElementType, layout: Layout = Layout.KK, epilogue: Epilogue = Epilogue.NONE) -> Operation:
        """Return the operation of an element type, a layout and an epilogue.

        Raises:
            ValueError: the catalogue has none.
        """
        for operation in Operation:
            if (operation.element, operation.layout, operation.epilogue) == (element, layout, epilogue):
                return operation
        known = ", ".join(Operation)
        raise ValueError(f"no operation of {element.value}, {layout.value} and {epilogue}; there are: {known}")

    @property
    def tag(self) -> str:
        """Return the prefix of its kernels' names and the name of its section."""
        return str(self.value)

    @property
    def position(self) -> int:
        """Return the place in the catalogue, which orders the sections of a table."""
        return list(Operation).index(self)

    @property
    def call(self) -> str:
        """Return the tag by which a caller of the library asks for it, such as `bf16_bias`: strides give the layout."""
        return "_".join([self.element.tag, *(step.value for step in self.epilogue.steps)])

    @property
    def a(self) -> Operand:
        """Return the left operand."""
        return Operand(self.element, self.layout.a_k_major)

    @property
    def b(self) -> Operand:
        """Return the right operand."""
        return Operand(self.element, self.layout.b_k_major)

    @property
    def d(self) -> ElementType:
        """Return the element type of D and of what the epilogue adds to it."""
        return self.element

    @property
    def accumulator(self) -> ElementType:
        """Return the element type of the accumulator."""
        return ElementType.FLOAT32

    @property
    def grouping(self) -> Grouping:
        """Return how many products a launch computes."""
        return Grouping.DENSE

    @property
    def has_bias(self) -> bool:
        """Say whether the epilogue adds a bias."""
        return Step.BIAS in self.epilogue.steps

    @property
    def can_exchange(self) -> bool:
        """Say whether the problem with A and B exchanged, which computes D's transpose, is of the catalogue too.

        An exchange would turn a bias of columns into one of rows.
        """
        return not self.has_bias

    @property
    def layouts(self) -> tuple[Operation, ...]:
        """Return the operations that differ in the layout alone, this one included."""
        return tuple(x for x in Operation if x.call == self.call)

    @property
    def equivalents(self) -> tuple[Operation, ...]:
        """Return the operations whose times may be imputed to this one after levelling, the nearest first.

        bf16 and fp16 are of one size and run at one rate; a bias reads n elements more than the same product without.
        """
        alike = [x for x in (ElementType.BFLOAT16, ElementType.FLOAT16) if x is not self.element]
        found = (Operation.of(element, self.layout) for element in (self.element, *alike))
        return tuple(operation for operation in found if operation is not self)

    @property
    def plain(self) -> Operation:
        """Return the operation without its epilogue."""
        return Operation.of(self.element, self.layout)

    @property
    def twins(self) -> tuple[Operation, ...]:
        """Return the operations that differ in the element type alone, in one of the same size and rate.

        They share their kernels: what is the fastest for one is for the other, but for noise.
        """
        kin = {x.element for x in self.equivalents}
        alike = (x for x in Operation if x is not self and x.element in kin)
        return tuple(x for x in alike if (x.layout, x.epilogue) == (self.layout, self.epilogue))

    def num_bytes(self, m: int, n: int, k: int) -> int:
        """Count the fewest bytes that device memory must move: operands are read once, D is written once."""
        bias = self.d.size_of(n) if self.has_bias else 0
        return self.a.element.size_of(m * k) + self.b.element.size_of(n * k) + self.d.size_of(m * n) + bias


ELEMENTS = tuple(dict.fromkeys(operation.element for operation in Operation))
"""The element types that there are operations of."""
