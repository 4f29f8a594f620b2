"""A Hopper GEMM of FP8 operands with a factor for each block of 128 of k. Imports CUTLASS and quack.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any, NamedTuple, Optional

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Float32, Int32, const_expr, cute
from quack.cute_dsl_utils import mlir_namedtuple
from quack.rounding import RoundingMode
from quack.tile_scheduler import TileSchedulerOptions

from aot.core.candidate import KernelKey
from aot.core.formats import SCALE_BLOCK
from aot.families import Entry, signature
from aot.families._arguments import epilogue_arguments
from aot.families._block_sums import ATOM_COLUMNS, ATOM_ROWS, BlockSums, Factors, num_blocks
from aot.families._partial_tile_kernel import GemmPartialTileSm90
from aot.families._quack import MAX_SWIZZLE


class GemmBlockScaleSm90(BlockSums, GemmPartialTileSm90):
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
        state = self.add_stages(pipeline, state, multiply_stage, k_tiles, factors, total, sums)
        if const_expr(self.pingpong):
            self.pingpong_barrier_arrive(1 - group, stage="mma")
        sums.store(total.load())
        return state

    def make_first_factors(self, parameters: Any, multiply_stage: Any) -> Any:
        """Make the registers of the factors of a tile's first stage."""
        layout = self._factors_of_tile(parameters, multiply_stage.args[0], (Int32(0), Int32(0))).rows.layout
        return cute.make_rmem_tensor((num_blocks(self.cta_tile_shape_mnk[1]), cute.size(layout)), Float32)

    @cute.jit
    def read_first_factors(self, first_factors: Any, parameters: Any, multiply_stage: Any, work: Any) -> None:
        """Read the factors of a tile's first stage, if there is one."""
        if work.is_valid_tile:
            factors = self._factors_of_tile(parameters, multiply_stage.args[0], work.tile_idx)
            first_factors.store(self.read_factors(factors, Int32(0)).load())

    @cute.jit
    def end_tile(
        self,
        pipeline: Any,
        state: Any,
        multiply_stage: Any,
        sums: Any,
        k_tiles: Int32,
        parameters: Any,
        tile: Any,
        first_factors: Any,
    ) -> Any:
        """Multiply the stages of a tile behind its first, which is begun, and add all, times their factors."""
        of_stage, of_tile = sums
        of_tile.fill(0.0)
        factors = self._factors_of_tile(parameters, multiply_stage.args[0], tile)
        return self.add_stages(pipeline, state, multiply_stage, k_tiles, factors, of_tile, of_stage, first_factors)

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
    def read_factors(self, factors: Factors, block: Int32) -> Any:
        """Read the products of a thread's factors for a block of k: (blocks of B, rows of A)."""
        rows = factors.rows
        scales = cute.make_rmem_tensor((len(factors.blocks), cute.size(rows)), Float32)
        for b in cutlass.range_constexpr(len(factors.blocks)):
            of_b = factors.of_b[factors.blocks[b], block]
            for i in cutlass.range_constexpr(cute.size(rows)):
                scales[b, i] = factors.of_a[rows[i], block] * of_b
        return scales


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
