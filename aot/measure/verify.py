"""Verify kernels on edge shapes: right results, every element written, nothing else touched, same bits twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.core.comparison import Check, Comparison, worst
from aot.core.errors import VerificationError
from aot.core.numerics import POISON_BYTE, bits_type, decode, poison, poison_byte
from aot.core.operands import GemmCall, Matrix, Tensor, element_of
from aot.core.reference import needed, reference
from aot.core.signature import Argument
from aot.measure.edge_groups import Part, compare_parts, parts_of
from aot.measure.edge_operands import edge_operands
from aot.measure.edge_shapes import EdgeShape, edge_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from aot.core.numerics import Bits
    from aot.measure.gpu import Gpu, Handle, Kernels
    from aot.measure.tuning_set import TunedKernel

    Draw: TypeAlias = Callable[[EdgeShape, Mapping[Argument, Matrix], np.random.Generator], dict[Argument, Bits]]

GUARD_ELEMENTS = 2048
"""Elements of poison before and after each operand: 4 KiB, more than the 256 columns of the widest tile."""


def _view(region: Bits, matrix: Matrix) -> Bits:
    """Return the elements of a stack of matrices, (group, row, column), which a region starts with."""
    strides = (matrix.group_stride, matrix.row_stride, matrix.column_stride)
    shape = (matrix.num_groups, matrix.num_rows, matrix.num_columns)
    return np.lib.stride_tricks.as_strided(region, shape, tuple(region.itemsize * x for x in strides))


class EdgeCase:
    """A case on the device: operands between guards, padding poisoned, and the float64 reference on the host.

    Padding and guards hold NaN, or of integers what operands do not hold, so that a kernel that reads past an operand's
    extent gives a wrong result.

    Args:
        gpu: the device.
        kernels: what is run.
        shape: the case.
        rng: draws the operands.
        num_guards: elements before and after each operand.
        draw: draws the operands but D, each (group, row, column).
    """

    def __init__(
        self,
        gpu: Gpu,
        kernels: Kernels,
        shape: EdgeShape,
        rng: np.random.Generator,
        num_guards: int,
        draw: Draw = edge_operands,
    ) -> None:
        self._gpu, self.problem = gpu, shape.problem
        operation, arrangement = shape.problem.operation, shape.arrangement
        matrices = shape.matrices()
        bits, tensors = draw(shape, matrices, rng), {}
        self._owned: dict[Argument, int] = {}
        for argument, matrix in matrices.items():
            dtype = element_of(operation, argument)
            # The first element stays aligned to 256 bytes, as GUARD_ELEMENTS is; `offset` then spoils it on purpose.
            start = num_guards + shape.offset_of(argument)
            region = np.full(start + matrix.num_elements + num_guards, poison(dtype), bits_type(dtype))
            if argument is Argument.D:
                self._region, self._d = region, _view(region[start:], matrix)
            else:
                _view(region[start:], matrix)[:] = bits[argument]
                bits[argument] = _view(region[start:], matrix)
            address = self._owned[argument] = gpu.alloc(region.nbytes)
            gpu.upload(address, region)
            tensors[argument] = Tensor(address + dtype.size_of(start), matrix)
        rows, columns = (np.arange(x, dtype=np.int64) for x in (shape.problem.m, shape.problem.n))
        indices = needed(shape.problem, rows, columns, arrangement)
        self._parts = parts_of(shape, bits) if operation.grouping.has_offsets else []
        for group in range(0 if operation.grouping.has_offsets else matrices[Argument.D].num_groups):
            of_group = {x: y[min(group, len(y) - 1)][np.ix_(*indices[x])] for x, y in bits.items()}
            values = {x: decode(element_of(operation, x), y) for x, y in of_group.items()}
            self._parts.append(Part(group, slice(None), Check(operation, reference(operation, values))))
        call = GemmCall(shape.problem, tensors, arrangement.is_interleaved and operation.gate is not None)
        self.bound: Handle = kernels.bind(call)
        self.promised: Handle = kernels.bind(call, b_is_constant=True)

    def poison(self) -> None:
        """Fill D, its padding and its guards with what shows that it was not written."""
        self._gpu.fill(self._owned[Argument.D], poison_byte(self.problem.operation.d), self._region.nbytes)

    def read(self) -> tuple[Bits, int]:
        """Return D's bits (group, m, n), and the number of elements around it that are no longer poison."""
        self._gpu.download(self._owned[Argument.D], self._region)
        result, unwritten = self._d.copy(), poison(self.problem.operation.d)
        num_poisoned = int((self._region == unwritten).sum()) - int((result == unwritten).sum())
        return result, self._region.size - result.size - num_poisoned

    def compare(self, result: Bits) -> Comparison:
        """Compare D's bits (group, m, n) with the reference; return the first product that is wrong, or the worst."""
        return compare_parts(self.problem, self._parts, result)

    def free(self) -> None:
        """Free the device memory."""
        for address in self._owned.values():
            self._gpu.free(address)


def _refuse_difference(first: Bits, second: Bits, shape: EdgeShape) -> None:
    if not np.array_equal(first, second):
        num = int((first != second).sum())
        raise VerificationError(f"two runs differ in {num} of {first.size} elements on {shape}")


class Verifier:
    """Runs kernels on their edge cases, which kernels of the same extents share.

    Args:
        gpu: the device.
        kernels: what is run.
        rng: draws the operands.
        tick: called after each case.
        num_guards: elements before and after each operand, a multiple of 256; 0 where a memory checker watches, which
            would take a guard for a part of the operand.
    """

    def __init__(
        self,
        gpu: Gpu,
        kernels: Kernels,
        rng: np.random.Generator,
        tick: Callable[[], None] = lambda: None,
        num_guards: int = GUARD_ELEMENTS,
    ) -> None:
        self._num_guards = num_guards
        self._gpu = gpu
        self._kernels = kernels
        self._rng = rng
        self._tick = tick
        self._cases: dict[EdgeShape, EdgeCase] = {}
        self._workspace = 0
        self._workspace_bytes = 0

    def _case(self, shape: EdgeShape) -> EdgeCase:
        if shape not in self._cases:
            self._cases[shape] = EdgeCase(self._gpu, self._kernels, shape, self._rng, self._num_guards)
        return self._cases[shape]

    def _reserve(self, num_bytes: int) -> None:
        if num_bytes > self._workspace_bytes:
            if self._workspace:
                self._gpu.free(self._workspace)
            self._workspace, self._workspace_bytes = self._gpu.alloc(num_bytes), num_bytes

    def _run(self, index: int, case: EdgeCase, bound: Handle) -> Bits:
        num_bytes = self._kernels.workspace_bytes(index, bound)
        self._reserve(num_bytes)
        case.poison()
        if num_bytes:
            # The library sets what must be zero; a kernel that relies on more reads NaN.
            self._gpu.fill(self._workspace, POISON_BYTE, num_bytes)
        self._kernels.launch(index, bound, self._workspace, num_bytes, self._gpu.stream)
        self._gpu.synchronize()
        result, num_touched = case.read()
        if num_touched:
            raise VerificationError(f"wrote {num_touched} elements outside D on {case.problem.name}")
        return result

    def _checked(self, index: int, case: EdgeCase, shape: EdgeShape, bound: Handle) -> tuple[Bits, Comparison]:
        result = self._run(index, case, bound)
        outcome = case.compare(result)
        if outcome.fault:
            raise VerificationError(f"wrong result on {shape}: {outcome.fault}")
        return result, outcome

    def run_once(self, shape: EdgeShape, index: int = 0, *, promises: bool = False) -> float:
        """Run a kernel once on a case that is made for it, and return the relative error; see `run_each`."""
        return self.run_each(shape, index, (promises,)).relative_error

    def run_each(
        self, shape: EdgeShape, index: int, promises: Iterable[bool], *, is_reproducible: bool = False
    ) -> Comparison:
        """Run a kernel on a case that is made for it, and return the largest errors.

        Args:
            shape: the case.
            index: of the kernel in the library.
            promises: for each run, at least one, whether to promise that B is constant.
            is_reproducible: whether all runs must give the same bits.

        Raises:
            VerificationError: a result is wrong or incomplete, runs differ that must not, or memory around D was
                written.
            DeviceError: the library refused the case, or a launch failed.
        """
        case = EdgeCase(self._gpu, self._kernels, shape, self._rng, self._num_guards)
        try:
            first, outcomes = None, []
            for promised in promises:
                bound = case.promised if promised else case.bound
                result, outcome = self._checked(index, case, shape, bound)
                outcomes.append(outcome)
                first = result if first is None else first
                if is_reproducible:
                    _refuse_difference(first, result, shape)
            return worst(outcomes)
        finally:
            if not self._gpu.is_lost():
                case.free()

    def verify(self, kernel: TunedKernel, index: int) -> float:
        """Run a kernel twice on each of its edge cases and give the largest relative error.

        The second time with the promise that B is constant: a kernel may load B earlier then.

        Args:
            kernel: what the kernel is.
            index: its index in the library.

        Raises:
            VerificationError: a result is wrong, incomplete or not reproducible, or memory around D was written.
            DeviceError: a launch failed.
        """
        largest = 0.0
        for shape in edge_shapes(kernel):
            case = self._case(shape)
            result, outcome = self._checked(index, case, shape, case.bound)
            again = self._run(index, case, case.promised)
            if kernel.is_reproducible:
                _refuse_difference(result, again, shape)
            largest = max(largest, outcome.relative_error)
            if shape.is_own:
                self._cases.pop(shape).free()
            self._tick()
        return largest

    def close(self) -> None:
        """Free the cases and the workspace."""
        for case in self._cases.values():
            case.free()
        self._cases.clear()
        if self._workspace:
            self._gpu.free(self._workspace)
            self._workspace = self._workspace_bytes = 0
