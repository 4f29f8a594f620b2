"""A Hopper GEMM of FP8 operands with a factor for each block of 128 of k. Imports CUTLASS and quack.

A stage holds 128 of k, so that it is one block of A's factors and of B's. Its product is multiplied into registers of
its own, and added to the tile's sums in float32, times the factors. These are read from global memory, those of the
next stage while this one is multiplied.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any, NamedTuple, Optional

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Boolean, Float32, Int32, const_expr, cute
from cutlass.cute.nvgpu import warpgroup
from quack.cute_dsl_utils import mlir_namedtuple
from quack.rounding import RoundingMode
from quack.tile_scheduler import TileSchedulerOptions

from aot.core.candidate import KernelKey
from aot.core.formats import SCALE_BLOCK
from aot.families import Entry, signature
from aot.families._arguments import epilogue_arguments
from aot.families._partial_tile_kernel import GemmPartialTileSm90
from aot.families._quack import MAX_SWIZZLE

ATOM_ROWS, ATOM_COLUMNS = 2, 2
"""Rows and columns of which a thread holds sums, of each 64 rows and 8 columns of a tile; the columns come first.
Source: PTX ISA, wgmma, registers of D."""

COLUMNS_OF_AN_ATOM = 8
"""Columns of a tile after which the pattern of a thread's sums repeats; they lie in one block of B's factors."""


class Factors(NamedTuple):
    """What the sums of a tile are multiplied by, and which of it a thread reads."""

    of_a: Any
    """(rows, blocks of k): the factors of A."""
    of_b: Any
    """(blocks of rows, blocks of k): the factors of B."""
    rows: Any
    """Registers: A's rows of a thread's sums."""
    blocks: Any
    """B's blocks that the tile's columns lie in: one, or two."""
    boundary: Any
    """Int32: columns of the tile that lie in the first of two blocks."""


class GemmBlockScaleSm90(GemmPartialTileSm90):
    """`GemmPartialTileSm90` whose stages are multiplied by factors of A and of B; it splits no k and swaps nothing."""

    _extra_param_fields = (("scale_a", Any, None), ("scale_b", Any, None))

    @mlir_namedtuple
    class EpilogueArguments(NamedTuple):
        """The factors: A's (m, k / 128), B's (n / 128, k / 128), of any strides."""

        scale_a: Optional[cute.Tensor] = None  # noqa: UP045 - quack reads it at run time
        scale_b: Optional[cute.Tensor] = None  # noqa: UP045 - the same

    def epi_to_underlying_arguments(self, args: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """Return the kernel's parameters."""
        del loc, ip
        self.rounding_mode = RoundingMode.RN
        parameters = self._epi_ops_to_params_dict(args)
        return self.EpilogueParams(**parameters, scale_a=args.scale_a, scale_b=args.scale_b)

    def multiply(self, *args: Any, **kwargs: Any) -> None:
        """Multiply and store the CTA's tiles, after a wait of each thread's own, since it reads factors itself."""
        cute.arch.griddepcontrol_wait()
        super().multiply(*args, **kwargs)

    @cute.jit
    def multiply_tile(
        self,
        epilogue: Any,
        pipeline: Any,
        state: Any,
        multiply_stage: Any,
        sums: Any,
        scheduler: Any,
        work: Any,
        group: Int32,
    ) -> Any:
        """Multiply the stages of a tile, in turn with the other group."""
        factors = self._factors_of_tile(epilogue[0], multiply_stage.args[0], work.tile_idx)
        _, k_tiles = self.range_of_k_tiles(epilogue[2], scheduler, work)
        if const_expr(self.pingpong):
            self.pingpong_barrier_sync(group, stage="mma")
        total = cute.make_rmem_tensor(sums.layout, Float32)
        total.fill(0.0)
        scales = self._read(factors, Int32(0))
        is_full = Boolean(True)
        if k_tiles > 0:
            is_full = pipeline.consumer_try_wait(state)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            pipeline.consumer_wait(state, is_full)
            multiply_stage(A_idx=state.index, B_idx=state.index, zero_init=Boolean(True))
            following = self._read(factors, cutlass.min(k_tile + 1, k_tiles - 1))
            warpgroup.wait_group(0)
            pipeline.consumer_release(state)
            self._add(total, sums, scales, factors.boundary)
            scales.store(following.load())
            state.advance()
            is_full = Boolean(True)
            if k_tile + 1 < k_tiles:
                is_full = pipeline.consumer_try_wait(state)
        if const_expr(self.pingpong):
            self.pingpong_barrier_arrive(1 - group, stage="mma")
        sums.store(total.load())
        return state

    @cute.jit
    def _factors_of_tile(self, parameters: Any, tiled_mma: cute.TiledMma, tile: Any) -> Factors:
        """Find the factors of a tile; those of rows that the operands do not have are the last ones' that they have."""
        tile_m, tile_n = const_expr(self.cta_tile_shape_mnk[0]), const_expr(self.cta_tile_shape_mnk[1])
        thread = cute.arch.thread_idx()[0]
        if const_expr(self.pingpong):
            thread %= self.num_threads_per_warp_group
        part = tiled_mma.get_slice(thread).partition_C(cute.make_identity_tensor((tile_m, tile_n)))
        rows = cute.make_rmem_tensor((ATOM_ROWS, cute.size(part, mode=[1])), Int32)
        last_row, last_block = cute.size(parameters.scale_a, mode=[0]) - 1, cute.size(parameters.scale_b, mode=[0]) - 1
        for i in cutlass.range_constexpr(cute.size(part, mode=[1])):
            for r in cutlass.range_constexpr(ATOM_ROWS):
                rows[r, i] = cutlass.min(tile[0] * tile_m + part[ATOM_COLUMNS * r, i, 0][0], last_row)
        first = tile[1] * tile_n
        blocks = [cutlass.min(first // SCALE_BLOCK + i, last_block) for i in range(num_blocks(tile_n))]
        boundary = SCALE_BLOCK - first % SCALE_BLOCK
        return Factors(parameters.scale_a, parameters.scale_b, rows, blocks, boundary)

    @cute.jit
    def _read(self, factors: Factors, block: Int32) -> Any:
        """Read the products of a thread's factors for a block of k: (blocks of B, rows of A)."""
        rows = factors.rows
        scales = cute.make_rmem_tensor((len(factors.blocks), cute.size(rows)), Float32)
        for b in cutlass.range_constexpr(len(factors.blocks)):
            of_b = factors.of_b[factors.blocks[b], block]
            for i in cutlass.range_constexpr(cute.size(rows)):
                scales[b, i] = factors.of_a[rows[i], block] * of_b
        return scales

    @cute.jit
    def _add(self, total: Any, sums: Any, scales: Any, boundary: Int32) -> None:
        """Add a stage's sums, (of an atom, column by column; atoms of rows; 1), times their factors."""
        size = const_expr(ATOM_ROWS * ATOM_COLUMNS)
        for i in cutlass.range_constexpr(cute.size(sums, mode=[1])):
            for atom in cutlass.range_constexpr(cute.size(sums, mode=[0]) // size):
                for r in cutlass.range_constexpr(ATOM_ROWS):
                    scale = scales[0, r + ATOM_ROWS * i]
                    if const_expr(cute.size(scales, mode=[0]) > 1):
                        second = scales[1, r + ATOM_ROWS * i]
                        scale = second if atom * COLUMNS_OF_AN_ATOM >= boundary else scale
                    for c in cutlass.range_constexpr(ATOM_COLUMNS):
                        e = const_expr(c + ATOM_COLUMNS * r + size * atom)
                        total[e, i, 0] = total[e, i, 0] + sums[e, i, 0] * scale


def num_blocks(tile_n: int) -> int:
    """Return how many blocks of B's factors a tile of at most SCALE_BLOCK columns may lie in."""
    return 1 if SCALE_BLOCK % tile_n == 0 else 2


def block_scale_entry(gemm: Any, key: KernelKey, max_active_clusters: int) -> Entry:
    """Make the entry of one configured GEMM.

    Args:
        gemm: an instance of `GemmBlockScaleSm90`.
        key: the candidate that it was configured from, and its operation.
        max_active_clusters: grid of the persistent scheduler, in clusters.
    """

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_a: cute.Tensor,
        scale_b: cute.Tensor,
        _bias: None,
        _residual: None,
        _scale_d: None,
        _workspace: None,
        _prefetch_b: None,
        _tile_order: None,
        stream: cuda.CUstream,
    ) -> None:
        scheduler = TileSchedulerOptions(
            max_active_clusters=Int32(max_active_clusters), max_swizzle_size=Int32(MAX_SWIZZLE)
        )
        gemm(a, b, d, None, gemm.EpilogueArguments(scale_a, scale_b), scheduler, None, stream)

    return Entry(entry, epilogue_arguments(signature(key), key.operation))
