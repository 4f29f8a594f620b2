"""The cases of which a GPU's results are recorded, and how one is run: on a GPU and in the interpreter alike.

Operands are drawn from a seed that depends on kernel and case alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from aot.core.element import ElementType
from aot.core.grouping import Grouping
from aot.core.knobs import SplitK
from aot.core.numerics import POISON_BYTE, decode, encode, is_bad, is_integer
from aot.core.operands import PLAIN, element_of
from aot.core.signature import Argument
from aot.core.tile_order import NUM_ORDERS, order_name
from aot.kinds.gemm.edge_operands import edge_operands
from aot.kinds.gemm.edge_shapes import OF_ONE_TILE, SIZES, TAIL_TILES, EdgeShape, arrangements_of, shape_of
from aot.kinds.gemm.group_inputs import POSITIONS
from aot.kinds.gemm.inputs import SCALED
from aot.kinds.rows.call import RowCase, row_operands, takes_case
from aot.kinds.rows.signature import RowArgument
from aot.measure.verify import EdgeCase
from tests.device.fixture_file import Content

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.core.comparison import Comparison
    from aot.core.numerics import Bits
    from aot.core.operands import Matrix
    from aot.kinds.gemm.tuned import TunedKernel
    from aot.measure.gpu import Gpu, Kernels
    from tests.device.fixture_file import ListedRows

LARGEST_WHOLE = 3
"""Largest whole number of exact operands: of 9 * 520 products the sum has the 13 bits that Hopper's FP8 sums keep."""
FEW_GROUPS = 3
"""Groups of a small case."""
MAX_ELEMENTS = 60_000
"""Elements of D of one case, about, so that interpreting it takes seconds."""
SMALL_TILE = 64 * 64
"""Elements of a tile, of which a product of more tiles than the device has SMs is computed."""
PERSISTENT = ("sm90_quack", "sm90_partial_tile", "sm90_prefetch_b", "sm90_stream_k", "sm90_block_scale")
"""Families whose CTAs take several tiles one after the other."""


@dataclass(frozen=True)
class ProductCase:
    """A case of a product."""

    shape: EdgeShape
    content: Content
    order: int
    """In which tiles are taken (aot.core.tile_order)."""
    is_promised: bool
    """Whether it is promised that B is constant."""

    def __str__(self) -> str:
        """Return the text of messages, which the operands are drawn from too."""
        order = f", tiles in order {order_name(self.order)}" if self.order else ""
        promise = ", B is constant" if self.is_promised else ""
        return f"{self.shape}, {self.content} operands{order}{promise}"


def _few(shape: EdgeShape) -> EdgeShape:
    """Return a case with fewer groups or products, whose D is short."""
    grouping = shape.problem.operation.grouping
    if grouping is Grouping.DENSE:
        return shape
    return replace(shape, problem=replace(shape.problem, num_groups=FEW_GROUPS if grouping.has_offsets else 2))


def _past_tiles(kernel: TunedKernel) -> tuple[int, int, int]:
    """Return extents that go past a cluster of tiles both ways, or along the columns alone where these are many."""
    candidate = kernel.key.candidate
    rows, columns = (
        candidate.gemm.tile_m * candidate.gemm.cluster_m + 24,
        candidate.gemm.tile_n * candidate.gemm.cluster_n + 40,
    )
    if rows * columns > MAX_ELEMENTS:
        rows = candidate.gemm.tile_m - 24
    m, n = (columns, rows) if candidate.gemm.swap_ab else (rows, columns)
    return m, n, 520 if candidate.family in OF_ONE_TILE else 200


def _many_tiles(kernel: TunedKernel) -> tuple[int, int, int] | None:
    """Return extents of more tiles than the device has SMs; None where those are large or the kernel has one each."""
    candidate = kernel.key.candidate
    is_small = candidate.gemm.tile_m * candidate.gemm.tile_n <= SMALL_TILE
    if (
        candidate.family not in PERSISTENT
        or not is_small
        or candidate.gemm.split_k_mode not in (SplitK.NONE, SplitK.TAIL)
    ):
        return None
    if kernel.key.operation.grouping is not Grouping.DENSE:
        return None
    rows, columns = TAIL_TILES[0][0] * candidate.gemm.tile_m - 8, TAIL_TILES[0][1] * candidate.gemm.tile_n - 8
    m, n = (columns, rows) if candidate.gemm.swap_ab else (rows, columns)
    return m, n, 200


def product_cases(kernel: TunedKernel) -> list[ProductCase]:
    """List the cases of a kernel: first those of random operands, whose D is small."""
    operation, seed = kernel.key.operation, crc32(kernel.key.name.encode())
    # What was recorded is of halves in order; which case it is, the text that seeds its operands tells.
    arrangements = [x for x in arrangements_of(operation) if not x.is_linear_first]
    if kernel.is_fallback:
        extents = [((1, 56, 72), Content.RANDOM), ((7, 72, 40), Content.RANDOM), ((70, 67, 35), Content.EXACT)]
    else:
        extents = [((1, 104, 328), Content.RANDOM), ((7, 72, 200), Content.RANDOM)]
        rows = 20 if operation.grouping.has_offsets else 65
        extents += [((rows, 136, 99), Content.EXACT), ((1, 264, 136), Content.EXACT)]
        extents += [(x, Content.EXACT) for x in (_past_tiles(kernel), _many_tiles(kernel)) if x]
    found = []
    for number, (extent, content) in enumerate(extents, seed):
        arrangement = PLAIN if content is Content.RANDOM else arrangements[number % len(arrangements)]
        shape = _few(shape_of(kernel, extent, arrangement, SIZES[number % len(SIZES)]))
        order = number % NUM_ORDERS if kernel.orders_tiles else 0
        found.append(ProductCase(shape, content, order, bool(number % 2)))
    return found


def _as_exact(dtype: ElementType, argument: Argument, bits: Bits) -> Bits:
    """Make small whole numbers of random elements, all times one power of two; of factors, powers of two.

    Factors become their roots first: sums of blocks that are scaled by far apart factors have more bits than float32.
    What is poison stays, and integers, whose sums are exact, do too.
    """
    if is_integer(dtype) or argument is Argument.SCALE_D:
        return bits
    is_poison = is_bad(dtype, bits)
    values = np.where(is_poison, 1.0, decode(dtype, bits))
    if argument in SCALED:
        exact = np.exp2(np.rint(np.log2(values) / 2))
    else:
        step = np.exp2(np.rint(np.log2(np.median(np.abs(values)))))
        exact = step * np.copysign(np.clip(np.ceil(np.abs(values) / step), 1, LARGEST_WHOLE), values)
    return np.where(is_poison, bits, encode(dtype, exact.astype(np.float32)))


def exact_operands(
    shape: EdgeShape, matrices: Mapping[Argument, Matrix], rng: np.random.Generator
) -> dict[Argument, Bits]:
    """Draw operands all of whose sums are exact; see `edge_operands`."""
    operation, drawn = shape.problem.operation, edge_operands(shape, matrices, rng)
    return {
        argument: bits if argument in POSITIONS else _as_exact(element_of(operation, argument), argument, bits)
        for argument, bits in drawn.items()
    }


def _rng(name: str, case: ProductCase | RowCase) -> np.random.Generator:
    return np.random.default_rng(crc32(f"{name} {case}".encode()))


class RunProduct:
    """A case of a kernel on a device: launched once."""

    def __init__(
        self, gpu: Gpu, kernels: Kernels, kernel: TunedKernel, index: int, case: ProductCase, num_guards: int
    ) -> None:
        drawn = exact_operands if case.content is Content.EXACT else edge_operands

        def draw(shape: EdgeShape, rng: np.random.Generator) -> dict[Argument, Bits]:
            return drawn(shape, shape.matrices(), rng)

        name = kernel.key.name
        self.edge = EdgeCase(gpu, kernels, case.shape, _rng(name, case), num_guards, draw)
        try:
            self.written = {"d": self._launched(gpu, kernels, index + case.order * len(kernels.names), case)}
        finally:
            if not gpu.is_lost():
                self.edge.free()

    def _launched(self, gpu: Gpu, kernels: Kernels, index: int, case: ProductCase) -> Bits:
        edge = self.edge
        bound = edge.promised if case.is_promised else edge.bound
        num_bytes = kernels.workspace_bytes(index, bound)
        workspace = gpu.alloc(num_bytes) if num_bytes else 0
        try:
            edge.poison()
            if num_bytes:
                gpu.fill(workspace, POISON_BYTE, num_bytes)
            kernels.launch(index, bound, workspace, num_bytes, gpu.stream)
            gpu.synchronize()
            return edge.read()[Argument.D]
        finally:
            if num_bytes and not gpu.is_lost():
                gpu.free(workspace)

    def compare(self, written: Mapping[str, Bits]) -> Comparison:
        """Hold what was written, here or elsewhere, against the reference."""
        return self.edge.compare({Argument.D: written["d"]})


def row_cases(kernel: ListedRows) -> list[RowCase]:
    """List the cases of a kernel of an operation on rows: narrow ones, and one of more columns than threads."""
    limits = kernel.limits
    step = limits.cols_multiple * (4 if kernel.operation.is_rotary else 1)

    def cols(wanted: int) -> int:
        return max(min(wanted, limits.max_cols) // step, 1) * step

    operation = kernel.operation
    found = [RowCase(operation, 3, cols(136), is_full=True, padding=8)]
    found += [RowCase(operation, 3, cols(72), is_full=False, padding=8)]
    found.append(RowCase(operation, 1, cols(520), is_full=False))
    return [x for x in found if takes_case(limits, x)]


class RunRows:
    """A case of a kernel of an operation on rows, launched once."""

    def __init__(
        self, gpu: Gpu, kernels: Kernels, kernel: ListedRows, index: int, case: RowCase, num_guards: int
    ) -> None:
        self.edge = EdgeCase(gpu, kernels, case, _rng(kernel.key.name, case), num_guards)
        try:
            self.edge.poison()
            kernels.launch(index, self.edge.bound, 0, 0, gpu.stream)
            gpu.synchronize()
            found = self.edge.read()
        finally:
            if not gpu.is_lost():
                self.edge.free()
        self.written = {x.value: bits.reshape(-1, bits.shape[-1]) for x, bits in found.items()}
        self.elements = {x.value: placed.element for x, placed in row_operands(case).items() if placed.is_written}

    def compare(self, written: Mapping[str, Bits]) -> Comparison:
        """Hold what was written, here or elsewhere, against the reference."""
        return self.edge.compare({RowArgument(name): bits[None] for name, bits in written.items()})
