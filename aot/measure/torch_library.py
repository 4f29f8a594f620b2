"""torch's own matrix product, timed as a kernel is: what a user has without the wheel. torch is optional."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot.core.constraints import one_line
from aot.core.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.core.operands import GemmCall, Matrix


class _Memory:
    """Device memory in the form that torch wraps without a copy. Source: Numba, CUDA Array Interface, version 3."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "strides": tuple(2 * stride for stride in strides),
            "typestr": "<i2",  # the interface has no bf16
            "version": 3,
        }


@dataclass(frozen=True)
class _Bound:
    """The tensors of one call: A (m, k), the transpose of B (k, n), D (m, n), and the bias (n) where there is one."""

    a: Any
    b_transposed: Any
    d: Any
    bias: Any


class TorchLibrary:
    """torch.mm, or torch.addmm for an operation with a bias; satisfies `aot.measure.gpu.Kernels`, with one kernel.

    Args:
        torch: the module.
        stream: handle of the stream that everything runs on, which becomes torch's current stream.

    Raises:
        DeviceError: torch does not take the device.
    """

    def __init__(self, torch: Any, stream: int) -> None:
        self._torch = torch
        self.names: tuple[str, ...] = (f"torch {torch.__version__}",)
        self._try(lambda: torch.cuda.set_stream(torch.cuda.ExternalStream(stream)))

    def _try(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except RuntimeError as error:  # torch has no other type for what CUDA refuses
            raise DeviceError(f"{self.names[0]}: {one_line(str(error))}") from error

    def _tensor(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: str) -> Any:
        torch = self._torch
        return torch.as_tensor(_Memory(address, shape, strides), device="cuda").view(getattr(torch, kind))

    def bind(self, call: GemmCall, *, b_is_constant: bool = False) -> _Bound:
        """Wrap a call's operands, which are not copied; torch takes no promise."""
        del b_is_constant
        kind = call.problem.operation.element.value

        def wrap(address: int, matrix: Matrix) -> Any:
            shape, strides = (matrix.num_rows, matrix.num_columns), (matrix.row_stride, matrix.column_stride)
            return self._try(lambda: self._tensor(address, shape, strides, kind))

        bias = None
        if call.problem.operation.has_bias:
            bias = self._try(lambda: self._tensor(call.bias, (call.problem.n,), (1,), kind))
        a, b, d = (wrap(*x) for x in ((call.a, call.a_matrix), (call.b, call.b_matrix), (call.d, call.d_matrix)))
        return _Bound(a, b.t(), d, bias)

    def workspace_bytes(self, kernel: int, bound: _Bound) -> int:
        """Return 0: torch has a workspace of its own."""
        del kernel, bound
        return 0

    def max_active_clusters(self, kernel: int, bound: _Bound, workspace: int, workspace_bytes: int) -> int | None:
        """Return None: torch chooses what fits."""
        del kernel, bound, workspace, workspace_bytes
        return None

    def launch(self, kernel: int, bound: _Bound, workspace: int, workspace_bytes: int, stream: int) -> None:
        """Put a product on the stream.

        Raises:
            DeviceError: torch refused it.
        """
        del kernel, workspace, workspace_bytes, stream
        if bound.bias is None:
            self._try(lambda: self._torch.mm(bound.a, bound.b_transposed, out=bound.d))
        else:
            self._try(lambda: self._torch.addmm(bound.bias, bound.a, bound.b_transposed, out=bound.d))


def load_torch(stream: int, say: Callable[[str], None]) -> TorchLibrary | None:
    """Load torch into the primary context, which it shares; None, and a line that says why, where that cannot be.

    Args:
        stream: handle of the stream that everything runs on.
        say: told the line.
    """
    try:
        torch = importlib.import_module("torch")
        if torch.cuda.is_available():
            return TorchLibrary(torch, stream)
        why = f"torch {torch.__version__} finds no GPU"
    except (ImportError, OSError, DeviceError) as error:
        why = one_line(str(error))
    say(f"torch's times are not recorded beside the kernels: {why} ({sys.executable})")
    return None
