"""Verify kernels on edge cases: right results, every element written, nothing else touched, same bits twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.core.comparison import Comparison, worst
from aot.core.errors import VerificationError
from aot.core.numerics import POISON_BYTE, bits_type, pack, poison, poison_byte
from aot.core.operands import AtomMatrix, Matrix, Tensor
from aot.kinds.trials import trial_of
from aot.measure.elements import download_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from aot.core.numerics import Bits
    from aot.kinds.kind import Tuned
    from aot.kinds.trial import AnyArgument, Case, Placed
    from aot.measure.gpu import Gpu, Handle, Kernels

    Draw: TypeAlias = Callable[[Case, np.random.Generator], dict[AnyArgument, Bits]]
    Written: TypeAlias = dict[AnyArgument, Bits]

GUARD_ELEMENTS = 2048
"""Elements of poison before and after each operand: 4 KiB, more than the 352 columns of the widest tile."""


def _view(region: Bits, matrix: Matrix) -> Bits:
    """Return the elements of a stack of matrices, (group, row, column), which a region starts with."""
    strides = (matrix.group_stride, matrix.row_stride, matrix.column_stride)
    shape = (matrix.num_groups, matrix.num_rows, matrix.num_columns)
    return np.lib.stride_tricks.as_strided(region, shape, tuple(region.itemsize * x for x in strides))


class _Operand:
    """An operand on the device between guards, with poison in its padding, and what all of that holds on the host."""

    def __init__(self, gpu: Gpu, placed: Placed, num_guards: int) -> None:
        self._gpu, self.placed = gpu, placed
        self.dtype = placed.element
        # The first element stays aligned to 256 bytes, as GUARD_ELEMENTS is; `offset` then spoils it on purpose.
        start = num_guards + placed.offset
        size = start + placed.matrix.num_elements + num_guards
        size += -size % self.dtype.num_sharing
        self.region: Bits = np.full(size, poison(self.dtype), bits_type(self.dtype))
        """Elements; those that share bytes on the device have one to themselves here."""
        self._elements = self.region[start:]
        self._num_bytes = self.dtype.size_of(size)
        self.region_address = gpu.alloc(self._num_bytes)
        self.tensor = Tensor(self.region_address + self.dtype.size_of(start), placed.matrix)

    @property
    def bits(self) -> Bits:
        """The elements, (group, row, column), as they are in `region`."""
        matrix = self.placed.matrix
        if isinstance(matrix, AtomMatrix):
            return np.asarray(self._elements[matrix.all_positions])
        return _view(self._elements, matrix)

    def put(self, bits: Bits) -> None:
        """Set the elements, and what fills them up, and put everything on the device."""
        matrix = self.placed.matrix
        if isinstance(matrix, AtomMatrix):
            self._elements[matrix.all_positions] = bits
            self._elements[matrix.filled] = 0
        else:
            self.bits[:] = bits
        self._gpu.upload(self.region_address, self._stored())

    def _stored(self) -> Bits:
        """Return `region` as it lies on the device."""
        return pack(self.region) if self.dtype.num_sharing > 1 else self.region

    def poison(self) -> None:
        """Fill everything with what shows that it was not written."""
        self._gpu.fill(self.region_address, poison_byte(self.dtype), self._num_bytes)

    def read(self) -> tuple[Bits, int]:
        """Return the elements that a kernel wrote, and how many around them are no longer poison."""
        self.region[:] = download_elements(self._gpu, self.region_address, self.dtype, self.region.size)
        result, unwritten = self.bits.copy(), poison(self.dtype)
        filled = self._elements[self.placed.matrix.filled]
        num_poisoned = int((self.region == unwritten).sum()) - int((result == unwritten).sum())
        if filled.any():
            text = f"{int((filled != 0).sum())} of {filled.size} bytes behind the factors of rows are not 0"
            raise VerificationError(f"{text}, by which products multiply the zeros behind k")
        return result, self.region.size - result.size - filled.size - num_poisoned

    def is_changed(self) -> bool:
        """Say whether anything differs from what was put there."""
        stored = self._stored()
        found = np.empty_like(stored)
        self._gpu.download(self.region_address, found)
        return not np.array_equal(found, stored)

    def free(self) -> None:
        """Free the device memory."""
        self._gpu.free(self.region_address)


class EdgeCase:
    """A case on the device: operands between guards, padding poisoned, and the float64 reference on the host.

    Padding and guards hold NaN, or of integers what operands do not hold, so that a kernel that reads past an operand's
    extent gives a wrong result.

    Args:
        gpu: the device.
        kernels: what is run.
        case: the case.
        rng: draws the operands.
        num_guards: elements before and after each operand.
        draw: draws the operands that are read, each (group, row, column); by default as the case's kind does.
    """

    def __init__(
        self,
        gpu: Gpu,
        kernels: Kernels,
        case: Case,
        rng: np.random.Generator,
        num_guards: int,
        draw: Draw | None = None,
    ) -> None:
        self.problem = case.problem
        trial = trial_of(case.problem.operation)
        bits = (draw or trial.draw)(case, rng)
        self._held = {x: _Operand(gpu, placed, num_guards) for x, placed in trial.operands(case).items()}
        for argument, held in self._held.items():
            if not held.placed.is_written:
                held.put(bits[argument])
                bits[argument] = held.bits
        self.compare: Callable[[Written], Comparison] = trial.check(case, bits)
        """Holds what a kernel wrote, (group, row, column), against the reference: the first fault, or the worst."""
        call = trial.call(case, {x: held.tensor for x, held in self._held.items()})
        self.bound: Handle = kernels.bind(call)
        self.promised: Handle = kernels.bind(call, b_is_constant=True)

    def poison(self) -> None:
        """Fill what the kernel is to write, its padding and its guards with what shows that it was not written."""
        for held in self._held.values():
            if held.placed.is_written:
                held.poison()

    def read(self) -> Written:
        """Return what a kernel wrote, (group, row, column).

        Raises:
            VerificationError: it wrote anything else.
        """
        found: Written = {}
        for argument, held in self._held.items():
            if held.placed.is_written:
                found[argument], num_touched = held.read()
                if num_touched:
                    where = f"outside {argument.value} on {self.problem.name}"
                    raise VerificationError(f"wrote {num_touched} elements {where}")
            elif held.is_changed():
                raise VerificationError(f"wrote {argument.value}, which it is to read, on {self.problem.name}")
        return found

    def free(self) -> None:
        """Free the device memory."""
        for held in self._held.values():
            held.free()


def _refuse_difference(first: Written, second: Written, case: Case) -> None:
    for argument, bits in first.items():
        if not np.array_equal(bits, second[argument]):
            num = int((bits != second[argument]).sum())
            raise VerificationError(f"two runs differ in {num} of {bits.size} elements of {argument.value} on {case}")


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
        self._cases: dict[Case, EdgeCase] = {}
        self._workspace = 0
        self._workspace_bytes = 0

    def _case(self, case: Case) -> EdgeCase:
        if case not in self._cases:
            self._cases[case] = EdgeCase(self._gpu, self._kernels, case, self._rng, self._num_guards)
        return self._cases[case]

    def _reserve(self, num_bytes: int) -> None:
        if num_bytes > self._workspace_bytes:
            if self._workspace:
                self._gpu.free(self._workspace)
            self._workspace, self._workspace_bytes = self._gpu.alloc(num_bytes), num_bytes

    def _run(self, index: int, case: EdgeCase, bound: Handle) -> Written:
        num_bytes = self._kernels.workspace_bytes(index, bound)
        self._reserve(num_bytes)
        case.poison()
        if num_bytes:
            # The library sets what must be zero; a kernel that relies on more reads NaN.
            self._gpu.fill(self._workspace, POISON_BYTE, num_bytes)
        self._kernels.launch(index, bound, self._workspace, num_bytes, self._gpu.stream)
        self._gpu.synchronize()
        return case.read()

    def _checked(self, index: int, edge: EdgeCase, case: Case, bound: Handle) -> tuple[Written, Comparison]:
        result = self._run(index, edge, bound)
        outcome = edge.compare(result)
        if outcome.fault:
            raise VerificationError(f"wrong result on {case}: {outcome.fault}")
        return result, outcome

    def run_once(self, case: Case, index: int = 0, *, promises: bool = False) -> float:
        """Run a kernel once on a case that is made for it, and return the relative error; see `run_each`."""
        return self.run_each(case, index, (promises,)).relative_error

    def run_each(
        self, case: Case, index: int, promises: Iterable[bool], *, is_reproducible: bool = False
    ) -> Comparison:
        """Run a kernel on a case that is made for it, and return the largest errors.

        Args:
            case: the case.
            index: of the kernel in the library.
            promises: for each run, at least one, whether to promise that B is constant.
            is_reproducible: whether all runs must give the same bits.

        Raises:
            VerificationError: a result is wrong or incomplete, runs differ that must not, or memory beside what is to
                be written was written.
            DeviceError: the library refused the case, or a launch failed.
        """
        edge = EdgeCase(self._gpu, self._kernels, case, self._rng, self._num_guards)
        try:
            first, outcomes = None, []
            for promised in promises:
                bound = edge.promised if promised else edge.bound
                result, outcome = self._checked(index, edge, case, bound)
                outcomes.append(outcome)
                first = result if first is None else first
                if is_reproducible:
                    _refuse_difference(first, result, case)
            return worst(outcomes)
        finally:
            if not self._gpu.is_lost():
                edge.free()

    def verify(self, kernel: Tuned, index: int) -> float:
        """Run a kernel twice on each of its edge cases and give the largest relative error.

        The second time with the promise that B is constant: a kernel of products may load B earlier then.

        Args:
            kernel: what the kernel is.
            index: its index in the library.

        Raises:
            VerificationError: a result is wrong, incomplete or not reproducible, or memory beside it was written.
            DeviceError: a launch failed.
        """
        largest = 0.0
        for case in trial_of(kernel.key.operation).edge_cases(kernel):
            edge = self._case(case)
            result, outcome = self._checked(index, edge, case, edge.bound)
            again = self._run(index, edge, edge.promised)
            if kernel.is_reproducible:
                _refuse_difference(result, again, case)
            largest = max(largest, outcome.relative_error)
            if case.is_own:
                self._cases.pop(case).free()
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
