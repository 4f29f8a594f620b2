"""torch's own calls, timed as a kernel is: what a user has without the wheel. torch is optional."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot.core.constraints import one_line
from aot.core.element import ElementType
from aot.core.epilogue import Step
from aot.core.errors import DeviceError
from aot.core.grouping import Grouping
from aot.core.operands import element_of
from aot.core.signature import Argument
from aot.kinds.gemm.baselines import Product, baseline_of
from aot.kinds.trials import trial_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aot.core.operands import GemmCall, Tensor
    from aot.core.operation import Operation
    from aot.core.problem import Problem
    from aot.core.work import AnyOperation
    from aot.kinds.gemm.baselines import Baseline
    from aot.kinds.trial import Baseline as AnyBaseline

_TYPESTR = {1: "|u1", 2: "<i2", 4: "<i4"}
"""The interface's types by bytes, which torch then reads as what they are: it has no bf16, nor FP8."""


class _Memory:
    """Device memory in the form that torch wraps without a copy. Source: Numba, CUDA Array Interface, version 3."""

    def __init__(self, tensor: Tensor, num_bytes: int) -> None:
        matrix = tensor.matrix
        shape: tuple[int, ...] = (matrix.num_rows, matrix.num_columns)
        strides: tuple[int, ...] = (matrix.row_stride, matrix.column_stride)
        if matrix.num_groups > 1:
            shape, strides = (matrix.num_groups, *shape), (matrix.group_stride, *strides)
        self.__cuda_array_interface__ = {
            "data": (tensor.address, False),
            "shape": shape,
            "strides": tuple(num_bytes * x for x in strides),
            "typestr": _TYPESTR[num_bytes],
            "version": 3,
        }


@dataclass(frozen=True)
class _Bound:
    """The tensors of one call: B transposed is (k, rows), the bias (rows), and `sums` (m, rows), D or another."""

    operation: Operation
    baseline: Baseline
    a: Any
    b_transposed: Any
    d: Any
    sums: Any
    others: dict[Argument, Any]


def _torch_name(dtype: ElementType) -> str:
    return ElementType.FLOAT32.value if dtype is ElementType.TFLOAT32 else dtype.value


class TorchLibrary:
    """torch's calls for an operation (`aot.kinds.gemm.baselines`): a library of one kernel, `aot.measure.gpu.Library`.

    Args:
        torch: the module.
        stream: handle of the stream that everything runs on, which becomes torch's current stream.

    Raises:
        DeviceError: torch does not take the device.
    """

    def __init__(self, torch: Any, stream: int) -> None:
        self._torch = torch
        self.names: tuple[str, ...] = (f"torch {torch.__version__}",)
        self._sums: Any = None
        self._try(lambda: torch.cuda.set_stream(torch.cuda.ExternalStream(stream)))

    def baseline(self, operation: AnyOperation) -> AnyBaseline | None:
        """Return what torch has for an operation; None where it has nothing."""
        return trial_of(operation).baseline(operation)

    def _try(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except (RuntimeError, AttributeError, TypeError) as error:
            # torch has no other types for what CUDA refuses, and for what this version of it lacks
            raise DeviceError(f"{self.names[0]}: {one_line(str(error))}") from error

    def _tensor(self, tensor: Tensor, dtype: ElementType) -> Any:
        torch, memory = self._torch, _Memory(tensor, dtype.num_bytes)
        return torch.as_tensor(memory, device="cuda").view(getattr(torch, _torch_name(dtype)))

    def _sums_for(self, operation: Operation, baseline: Baseline, d: Any, shape: tuple[int, int]) -> Any:
        """Return where the product goes: D, or memory of torch's own, which the sets of one problem share."""
        dtype = ElementType.INT32 if baseline.product is Product.INT_MM else operation.d
        if operation.gate is None and dtype is operation.d:
            return d
        kind = getattr(self._torch, _torch_name(dtype))
        if self._sums is None or (tuple(self._sums.shape), self._sums.dtype) != (shape, kind):
            self._sums = None  # freed before its like is allocated
            self._sums = self._torch.empty(shape, dtype=kind, device="cuda")
        return self._sums

    def _wide_weight(self, problem: Problem) -> Any:
        """Make a weight of 16 bits in the place of a packed one, of memory of its own for each set of operands."""
        torch, dtype = self._torch, _torch_name(problem.operation.a.element)
        shape = problem.operation.num_rows_of_b(problem.n), problem.k
        return torch.empty(shape, dtype=getattr(torch, dtype), device="cuda").normal_()

    def bind(self, call: GemmCall, *, b_is_constant: bool = False) -> _Bound:
        """Wrap a call's operands, which are not copied; torch takes no promise.

        Raises:
            DeviceError: torch has nothing for the operation, or does not take the operands.
        """
        del b_is_constant
        operation = call.problem.operation
        baseline = baseline_of(operation)
        if baseline is None:
            raise DeviceError(f"{self.names[0]} has no call for {operation.tag}")
        tensors = self._try(lambda: {x: self._tensor(y, element_of(operation, x)) for x, y in call.tensors.items()})
        a, b, d = (tensors.pop(x) for x in (Argument.A, Argument.B, Argument.D))
        if operation.b.weight is not None:
            b = self._try(lambda: self._wide_weight(call.problem))
        shape = (call.problem.m, operation.num_rows_of_b(call.problem.n))
        sums = self._try(lambda: self._sums_for(operation, baseline, d, shape))
        # A vector is one row, or of factors that are all one, its first element.
        others = {x: y[0] if x is Argument.BIAS else y for x, y in tensors.items()}
        others |= {x: others[x][0] for x in (Argument.SCALE_A, Argument.SCALE_B, Argument.SCALE_D) if x in others}
        if operation.grouping is Grouping.BATCHED:
            a, b, d = (x.reshape(call.problem.num_groups, *x.shape[-2:]) for x in (a, b, d))
            sums = d
        return _Bound(operation, baseline, a, b.transpose(-2, -1), d, sums, others)

    def workspace_bytes(self, kernel: int, bound: _Bound) -> int:
        """Return 0: torch has a workspace of its own."""
        del kernel, bound
        return 0

    def max_active_clusters(self, kernel: int, bound: _Bound, workspace: int, workspace_bytes: int) -> int | None:
        """Return None: torch chooses what fits."""
        del kernel, bound, workspace, workspace_bytes
        return None

    @contextmanager
    def _allowing_tf32(self, operation: Operation) -> Iterator[None]:
        """Let torch.mm use TF32 where the operation is of it, and not where it is of float32."""
        if operation.d is not ElementType.FLOAT32 or operation.types.is_scaled:
            yield
            return
        matmul = self._torch.backends.cuda.matmul
        before = matmul.allow_tf32
        matmul.allow_tf32 = operation.a.element is ElementType.TFLOAT32
        try:
            yield
        finally:
            matmul.allow_tf32 = before

    def _multiply(self, bound: _Bound) -> None:
        torch, operation, others = self._torch, bound.operation, bound.others
        bias = others.get(Argument.BIAS)
        if bound.baseline.product is Product.INT_MM:
            torch.ops.aten._int_mm.out(bound.a, bound.b_transposed, out=bound.sums)  # noqa: SLF001
        elif bound.baseline.product is Product.SCALED_MM:
            scales = (others[Argument.SCALE_A], others[Argument.SCALE_B])
            torch._scaled_mm(  # noqa: SLF001
                bound.a,
                bound.b_transposed,
                *scales,
                bias=bias,
                scale_result=others.get(Argument.SCALE_D),
                out_dtype=getattr(torch, _torch_name(operation.d)),
                use_fast_accum=operation.types.is_fast,
                out=bound.sums,
            )
        elif bound.baseline.product is Product.BMM:
            torch.bmm(bound.a, bound.b_transposed, out=bound.sums)
        elif bias is None:
            torch.mm(bound.a, bound.b_transposed, out=bound.sums)
        else:
            torch.addmm(bias, bound.a, bound.b_transposed, out=bound.sums)

    def _finish(self, bound: _Bound) -> None:
        """Do the steps behind the product, each a call, as eager mode does; the result lies in D."""
        aten, operation, d = self._torch.ops.aten, bound.operation, bound.d
        step = operation.activation or operation.gate
        source = bound.sums if operation.gate is None else bound.sums[:, : d.shape[1]]
        if step is Step.RELU:
            aten.relu.out(source, out=d)
        elif step in (Step.GELU, Step.GELU_TANH, Step.GEGLU):
            aten.gelu.out(source, approximate="none" if step is Step.GELU else "tanh", out=d)
        elif step is not None:
            aten.silu.out(source, out=d)
        if operation.gate is not None:
            d.mul_(bound.sums[:, d.shape[1] :])
        if Argument.RESIDUAL in bound.others:
            d.add_(bound.others[Argument.RESIDUAL])

    def launch(self, kernel: int, bound: _Bound, workspace: int, workspace_bytes: int, stream: int) -> None:
        """Put an operation on the stream.

        Raises:
            DeviceError: torch refused it.
        """
        del kernel, workspace, workspace_bytes, stream

        def run() -> None:
            with self._allowing_tf32(bound.operation):
                self._multiply(bound)
            self._finish(bound)

        self._try(run)


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
