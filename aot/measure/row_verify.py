"""Verify row kernels on edge sizes: right results, every element written, nothing else touched, same bits twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from aot.core.element import ElementType
from aot.core.errors import VerificationError
from aot.core.numerics import bits_type, decode, encode, poison
from aot.kinds.rows.comparison import Written, compare_rows
from aot.kinds.rows.operation import RowFunction, RowOperation, RowScale
from aot.kinds.rows.reference import RowParameters, Rows, row_reference
from aot.kinds.rows.signature import RowArgument
from aot.measure.row_library import INTERLEAVED, ROUND_NORM, SCALE_GIVEN, tensor_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.comparison import Comparison
    from aot.core.numerics import Bits
    from aot.kinds.rows.candidate import RowLimits
    from aot.measure.gpu import Gpu
    from aot.measure.row_library import RowsProblemStruct

GUARD_ELEMENTS = 1024
"""Elements of poison before and after each operand, which keep its alignment of 16 bytes."""
MAX_COLS = 20000
"""Columns of the widest case: more than registers of a CTA hold."""
HEADS = 3
"""Of a token, in cases of a rotary embedding."""


class RowKernels(Protocol):
    """What verifying needs of a library."""

    def problem(self, operation: RowOperation) -> RowsProblemStruct:
        """Return an empty problem of an operation."""

    def launch(self, kernel: int, problem: RowsProblemStruct, stream: int) -> None:
        """Enqueue a kernel, by its index."""


@dataclass(frozen=True)
class RowCase:
    """One case: sizes, what there is beside X, and how far rows lie apart beyond their columns."""

    rows: int
    """Of a rotary embedding, tokens."""
    cols: int
    is_full: bool
    """Whether there are all operands that may be there, a given scale among them, and pairs side by side."""
    padding: int = 0


def row_cases(limits: RowLimits) -> Iterator[RowCase]:
    """List the cases of a kernel: few and many rows, narrow, odd and wide ones, as far as it takes them."""
    step = limits.cols_multiple
    widths = {
        step,
        3 * step,
        16 * step,
        min(limits.max_cols, 1000 // step * step),
        min(limits.max_cols, MAX_COLS // 8 * 8),
    }
    for cols in sorted(widths):
        for rows in (1, 37):
            for is_full in (False, True):
                yield RowCase(rows, cols, is_full, 8 * (rows > 1))


def takes_case(operation: RowOperation, limits: RowLimits, case: RowCase) -> bool:
    """Say whether an operation has a case: half of a quarter of a head must be whole vectors."""
    return operation.function is not RowFunction.ROTARY or case.cols % (4 * limits.cols_multiple) == 0


class _Operand:
    """A matrix on the device between guards, and what it held before."""

    def __init__(self, gpu: Gpu, element: ElementType, shape: tuple[int, int], padding: int, num_guards: int) -> None:
        self._gpu, self.element, self.shape, self.stride = gpu, element, shape, shape[1] + padding
        self._num_guards = num_guards
        self._before = np.full(num_guards * 2 + shape[0] * self.stride, poison(element), bits_type(element))
        self._region = gpu.alloc(self._before.nbytes)
        self.address = self._region + element.size_of(num_guards)
        gpu.upload(self._region, self._before)

    def _view(self, region: Bits) -> Bits:
        rows, cols = self.shape
        start = self._num_guards
        return region[start : start + rows * self.stride].reshape(rows, self.stride)[:, :cols]

    def fill(self, bits: Bits) -> None:
        """Put values between the guards."""
        self._view(self._before)[:] = bits
        self._gpu.upload(self._region, self._before)

    def read(self, name: str) -> Bits:
        """Return what is there now; what lies around it must be as it was.

        Raises:
            VerificationError: it is not.
        """
        region = np.empty_like(self._before)
        self._gpu.download(self._region, region)
        found = self._view(region).copy()
        self._view(region)[:] = self._view(self._before)
        touched = int((region != self._before).sum())
        if touched:
            raise VerificationError(f"wrote {touched} elements outside {name}")
        return found

    def free(self) -> None:
        self._gpu.free(self._region)


class _Run:
    """A case on the device: its operands, the problem, and the reference."""

    def __init__(
        self,
        gpu: Gpu,
        problem: RowsProblemStruct,
        operation: RowOperation,
        case: RowCase,
        rng: np.random.Generator,
        num_guards: int,
    ) -> None:
        self._gpu, self._rng, self.operation, self.case = gpu, rng, operation, case
        self.problem, self._num_guards = problem, num_guards
        self._held: dict[RowArgument, _Operand] = {}
        self._values: dict[RowArgument, Bits] = {}
        self.problem.rows, self.problem.cols = case.rows, case.cols
        self.problem.eps = 1e-5
        self.problem.weight_offset = float(case.is_full and operation.function is RowFunction.RMS_NORM)
        is_paired = operation.is_pair or operation.function is RowFunction.ROTARY
        self.problem.flags = INTERLEAVED if case.is_full and is_paired else 0
        if operation.function is RowFunction.RMS_NORM and case.is_full and case.rows > 1:
            self.problem.flags |= ROUND_NORM
        if operation.function is RowFunction.ROTARY:
            self._add_heads()
        else:
            self._add_rows()

    @property
    def gives_scale(self) -> bool:
        """Say whether scales are given."""
        return self.case.is_full and self.operation.scale is RowScale.ROW

    def _add(self, argument: RowArgument, element: ElementType, rows: int, cols: int, *, drawn: bool) -> _Operand:
        """Put an operand on the device: drawn, or to be written."""
        padding = self.case.padding if argument not in (RowArgument.WEIGHT, RowArgument.BIAS, RowArgument.SCALE) else 0
        held = self._held[argument] = _Operand(self._gpu, element, (rows, cols), padding, self._num_guards)
        if drawn:
            values = self._rng.standard_normal((rows, cols), np.float32)
            if element is ElementType.FLOAT32:  # scales
                values = (np.abs(values) + 0.1).astype(np.float32)
            self._values[argument] = encode(element, values)
            held.fill(self._values[argument])
        setattr(self.problem, argument.value, tensor_of(held.address, held.stride, 1))
        return held

    def _add_rows(self) -> None:
        operation, case = self.operation, self.case
        self._add(RowArgument.X, operation.x, case.rows, operation.num_columns_of_x(case.cols), drawn=True)
        self._add(RowArgument.Y, operation.y, case.rows, case.cols, drawn=False)
        if operation.is_norm and case.is_full:
            self._add(RowArgument.RESIDUAL, operation.x, case.rows, case.cols, drawn=True)
            self._add(RowArgument.RESIDUAL_OUT, operation.x, case.rows, case.cols, drawn=False)
            self._add(RowArgument.WEIGHT, operation.x, 1, case.cols, drawn=True)
            if operation.has_bias:
                self._add(RowArgument.BIAS, operation.x, 1, case.cols, drawn=True)
        if operation.is_quantized:
            shape = operation.shape_of_scales(case.rows, case.cols)
            self._add(RowArgument.SCALE, ElementType.FLOAT32, *shape, drawn=self.gives_scale)
            self.problem.flags |= SCALE_GIVEN if self.gives_scale else 0

    def _add_heads(self) -> None:
        """Put heads of tokens on the device; `padding` lies behind each head."""
        operation, case = self.operation, self.case
        self.problem.heads, self.problem.positions = HEADS, case.rows
        step = case.cols // 2 if case.is_full or case.cols % 4 else case.cols // 4
        self.problem.rotary_dim = 2 * step
        for argument in (RowArgument.X, RowArgument.Y):
            held = self._add(argument, operation.x, case.rows * HEADS, case.cols, drawn=argument is RowArgument.X)
            setattr(self.problem, argument.value, tensor_of(held.address, HEADS * held.stride, held.stride, 1))
        for argument in (RowArgument.COS, RowArgument.SIN):
            self._add(argument, operation.x, case.rows, step, drawn=True)

    def poison(self) -> None:
        """Put poison where the kernel is to write."""
        for argument, held in self._held.items():
            if argument not in self._values:
                held.fill(np.full(held.shape, poison(held.element), bits_type(held.element)))

    def read(self) -> dict[RowArgument, Bits]:
        """Return what the kernel wrote; what it read must be as it was.

        Raises:
            VerificationError: something else was written.
        """
        found = {argument: held.read(argument.value) for argument, held in self._held.items()}
        for argument, values in self._values.items():
            if not np.array_equal(found[argument], values):
                raise VerificationError(f"wrote {argument.value}, which it is to read")
        return found

    def compare(self, found: dict[RowArgument, Bits]) -> Comparison:
        """Hold what was written against the reference."""
        values: Rows = {x: decode(self._held[x].element, bits) for x, bits in self._values.items()}
        if self.operation.function is RowFunction.ROTARY:
            per_head = {x: np.repeat(values[x], HEADS, 0) for x in (RowArgument.COS, RowArgument.SIN)}
            values = {RowArgument.X: values[RowArgument.X], **per_head}
        parameters = RowParameters(
            float(np.float32(self.problem.eps)),
            self.problem.weight_offset,
            bool(self.problem.flags & INTERLEAVED),
            bool(self.problem.flags & ROUND_NORM),
        )
        scales = found.get(RowArgument.SCALE)
        written = Written(
            found[RowArgument.Y],
            None if scales is None else scales.view(np.float32),
            found.get(RowArgument.RESIDUAL_OUT),
        )
        expected = row_reference(self.operation, values, parameters)
        return compare_rows(self.operation, written, expected, scales_are_given=self.gives_scale)

    def free(self) -> None:
        for held in self._held.values():
            held.free()


class RowVerifier:
    """Runs row kernels on edge cases.

    Args:
        gpu: the device.
        kernels: the library.
        rng: draws the operands.
        num_guards: elements before and after each operand, a multiple of 256; 0 where a memory checker watches, which
            would take a guard for a part of the operand.
    """

    def __init__(
        self, gpu: Gpu, kernels: RowKernels, rng: np.random.Generator, num_guards: int = GUARD_ELEMENTS
    ) -> None:
        self._gpu, self._kernels, self._rng, self._num_guards = gpu, kernels, rng, num_guards

    def _launch(self, index: int, run: _Run) -> dict[RowArgument, Bits]:
        run.poison()
        self._kernels.launch(index, run.problem, self._gpu.stream)
        self._gpu.synchronize()
        return run.read()

    def verify_case(self, operation: RowOperation, index: int, case: RowCase, num_runs: int = 2) -> Comparison:
        """Run a kernel on a case, and return how far its first result is from the reference.

        Args:
            operation: what it computes.
            index: its index in the library.
            case: what it takes, by `takes_case`.
            num_runs: how often it is run; all runs must give the same bits.

        Raises:
            VerificationError: a result is wrong, incomplete or not reproducible, or memory around it was written.
            DeviceError: a launch failed.
        """
        run = _Run(self._gpu, self._kernels.problem(operation), operation, case, self._rng, self._num_guards)
        try:
            found = self._launch(index, run)
            outcome = run.compare(found)
            if outcome.fault:
                raise VerificationError(f"wrong result on {case}: {outcome.fault}")
            for _ in range(1, num_runs):
                again = self._launch(index, run)
                if any(not np.array_equal(found[x], again[x]) for x in found):
                    raise VerificationError(f"two runs differ on {case}")
            return outcome
        finally:
            if not self._gpu.is_lost():
                run.free()

    def verify(self, operation: RowOperation, limits: RowLimits, index: int) -> int:
        """Run a kernel twice on each of its edge cases; give the number of cases.

        Args:
            operation: what it computes.
            limits: what it asks of a problem.
            index: its index in the library.

        Raises:
            VerificationError: a result is wrong, incomplete or not reproducible, or memory around it was written.
            DeviceError: a launch failed.
        """
        cases = [case for case in row_cases(limits) if takes_case(operation, limits, case)]
        for case in cases:
            self.verify_case(operation, index, case)
        return len(cases)
