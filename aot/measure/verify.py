"""Verify kernels on edge shapes: right results, every element written, nothing else touched, same bits twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.candidate import SplitK
from aot.core.errors import VerificationError
from aot.core.numerics import POISON, compare, decode, encode, reference
from aot.core.operands import GemmCall, Matrix, matrices
from aot.core.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from aot.core.numerics import Bits
    from aot.measure.gpu import Gpu, Handle, Kernels
    from aot.measure.tuning_set import TunedKernel

GUARD_ELEMENTS = 2048
"""Elements of poison before and after each operand: 4 KiB, more than the 256 columns of the widest tile."""

ALIGNED_STEP = 8
"""Elements in dispatch.ALIGNMENT_BYTES: contiguous extents of aligned shapes are multiples of it."""

ALIGNED_SHAPES = (
    (1, 8, 8, 0),
    (2, 136, 64, 8),
    (7, 24, 520, 0),
    (17, 520, 40, 16),
    (63, 520, 136, 0),
    (64, 16, 136, 8),
    (65, 264, 72, 8),
    (129, 72, 16, 0),
    (255, 264, 64, 0),
    (300, 520, 520, 8),
    (650, 1032, 328, 0),
)
"""(m, n, k, padding): below, at and past the tiles' edges, the last past two 256 x 512 cluster tiles each way."""

TAIL_TILES = ((15, 10), (18, 12))
"""Tiles along the kernel's rows and columns for kernels that split those which fill no whole wave: on 132 SMs, with
clusters of 1 or 2, one or half a whole wave or more and a tail that is split over one wave, and over two."""

TAIL_K = 200
"""k of those shapes: with 64 elements a stage, too few stages for all splits, and the last one not full."""

FALLBACK_SHAPES = (
    (1, 1, 1, 0),
    (7, 3, 5, 0),
    (16, 8, 16, 0),
    (17, 31, 70, 1),
    (33, 70, 69, 0),
    (64, 64, 64, 3),
    (65, 1, 33, 0),
    (70, 67, 13, 5),
)
"""(m, n, k, padding) of odd extents and strides, run in every layout at addresses that are not aligned."""


@dataclass(frozen=True)
class EdgeShape:
    """One case: a problem, the padding of its leading strides, and an offset of its addresses, in elements."""

    problem: Problem
    padding: int
    offset: int
    is_own: bool = False
    """Whether it is one kernel's alone: its operands are freed after it, since a wave of tiles has many elements."""


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _tail_shapes(kernel: TunedKernel) -> list[EdgeShape]:
    """List the cases of whole waves and a tail, the last tile of each axis not full; none for most kernels."""
    candidate = kernel.key.candidate
    if candidate.split_k_mode != SplitK.TAIL:
        return []
    shapes = []
    for tiles_m, tiles_n in TAIL_TILES:
        rows, columns = tiles_m * candidate.tile_m - ALIGNED_STEP, tiles_n * candidate.tile_n - ALIGNED_STEP
        m, n = (columns, rows) if candidate.swap_ab else (rows, columns)
        shapes.append(EdgeShape(Problem(kernel.key.operation, m, n, TAIL_K), 0, 0, is_own=True))
    return shapes


def edge_shapes(kernel: TunedKernel) -> list[EdgeShape]:
    """List the cases of a kernel, extents rounded up to what it needs."""
    operation = kernel.key.operation
    if kernel.is_fallback:
        return [
            EdgeShape(Problem(layout, m, n, k), padding, 1)
            for layout in operation.layouts
            for m, n, k, padding in FALLBACK_SHAPES
        ]
    m_step = 1 if operation.a.is_k_major else ALIGNED_STEP
    aligned = [
        EdgeShape(
            Problem(
                operation,
                _round_up(m, int(np.lcm(m_step, kernel.m_multiple))),
                _round_up(n, int(np.lcm(ALIGNED_STEP, kernel.n_multiple))),
                k,
            ),
            padding,
            0,
        )
        for m, n, k, padding in ALIGNED_SHAPES
    ]
    return aligned + _tail_shapes(kernel)


def _positions(matrix: Matrix) -> NDArray[np.int64]:
    """Return where each element of a matrix lies, counted from its first."""
    rows = np.arange(matrix.num_rows, dtype=np.int64)[:, None] * matrix.row_stride
    return rows + np.arange(matrix.num_columns, dtype=np.int64) * matrix.column_stride


class EdgeCase:
    """A case on the device: operands between guards, padding poisoned, and the float64 reference on the host.

    Padding and guards hold NaN, so that a kernel that reads past an operand's extent gives NaN.
    """

    def __init__(self, gpu: Gpu, kernels: Kernels, shape: EdgeShape, rng: np.random.Generator) -> None:
        self._gpu = gpu
        self.problem = shape.problem
        dtype = shape.problem.operation.element
        operation = shape.problem.operation
        a, b, d = matrices(shape.problem, shape.padding)
        bias = [Matrix(1, shape.problem.n, shape.problem.n, 1)] if operation.has_bias else []
        values, addresses = [], []
        self._owned: list[int] = []
        for matrix in (a, b, *bias, d):
            # The first element stays aligned to 256 bytes, as GUARD_ELEMENTS is; `offset` then spoils it on purpose.
            num_elements = GUARD_ELEMENTS + shape.offset + matrix.num_elements + GUARD_ELEMENTS
            region = np.full(num_elements, POISON, np.uint16)
            places = _positions(matrix) + GUARD_ELEMENTS + shape.offset
            if matrix is not d:
                bits = encode(dtype, rng.standard_normal(places.shape, dtype=np.float32))
                region[places] = bits
                values.append(decode(dtype, bits))
            address = gpu.alloc(region.nbytes)
            gpu.upload(address, region)
            self._owned.append(address)
            addresses.append(address + dtype.size_of(GUARD_ELEMENTS + shape.offset))
        self._region = region
        start = region[GUARD_ELEMENTS + shape.offset :]
        strides = (dtype.size_of(d.row_stride), dtype.size_of(d.column_stride))
        self._d: Bits = np.lib.stride_tricks.as_strided(start, (d.num_rows, d.num_columns), strides)
        self.expected = reference(*values)
        call = GemmCall(shape.problem, addresses[0], addresses[1], addresses[-1], a, b, d, *addresses[2:-1])
        self.bound: Handle = kernels.bind(call)
        self.promised: Handle = kernels.bind(call, b_is_constant=True)

    def poison(self) -> None:
        """Fill D, its padding and its guards with NaN."""
        self._gpu.fill(self._owned[-1], POISON & 0xFF, self._region.nbytes)

    def read(self) -> tuple[Bits, int]:
        """Return D's bits (m, n), and the number of elements around it that are no longer poison."""
        self._gpu.download(self._owned[-1], self._region)
        result = self._d.copy()
        num_poisoned = int((self._region == POISON).sum()) - int((result == POISON).sum())
        return result, self._region.size - result.size - num_poisoned

    def free(self) -> None:
        """Free the device memory."""
        for address in self._owned:
            self._gpu.free(address)


class Verifier:
    """Runs kernels on their edge cases, which kernels of the same extents share."""

    def __init__(
        self, gpu: Gpu, kernels: Kernels, rng: np.random.Generator, tick: Callable[[], None] = lambda: None
    ) -> None:
        self._gpu = gpu
        self._kernels = kernels
        self._rng = rng
        self._tick = tick
        self._cases: dict[EdgeShape, EdgeCase] = {}
        self._workspace = 0
        self._workspace_bytes = 0

    def _case(self, shape: EdgeShape) -> EdgeCase:
        if shape not in self._cases:
            self._cases[shape] = EdgeCase(self._gpu, self._kernels, shape, self._rng)
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
            self._gpu.fill(self._workspace, POISON & 0xFF, num_bytes)
        self._kernels.launch(index, bound, self._workspace, num_bytes, self._gpu.stream)
        self._gpu.synchronize()
        result, num_touched = case.read()
        if num_touched:
            raise VerificationError(f"wrote {num_touched} elements outside D on {case.problem.name}")
        return result

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
            where = f"{case.problem.name}, strides padded by {shape.padding}"
            result = self._run(index, case, case.bound)
            outcome = compare(case.problem.operation.element, result, case.expected)
            if outcome.fault:
                raise VerificationError(f"wrong result on {where}: {outcome.fault}")
            again = self._run(index, case, case.promised)
            if kernel.is_reproducible and not np.array_equal(result, again):
                num = int((result != again).sum())
                raise VerificationError(f"two runs differ in {num} of {result.size} elements on {where}")
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
