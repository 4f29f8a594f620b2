"""quack's Hopper GEMM over groups of rows, of FP8 operands with a factor for each block of 128 of k. Imports CUTLASS.

quack tells the method that multiplies a tile neither which tile it is nor what the epilogue has: the first is seen when
a warp reads its work, the second when it looks for its shared memory.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, const_expr, cute
from quack.cute_dsl_utils import mlir_namedtuple
from quack.epilogue.ops import TileStore
from quack.rounding import RoundingMode
from quack.tile_scheduler import WorkTileInfo

from aot.core.formats import SCALE_BLOCK
from aot.families._block_sums import ATOM_COLUMNS, ATOM_ROWS, BlockSums, Factors, num_blocks
from aot.families._group_rows import RowScheduler
from aot.families._grouped_kernel import GemmGroupedSm90, GroupColumns, behind_proxy_fence

REPLACED = {
    "mma": ["self", "ab_pipeline", "ab_read_state", "mma_fn", "acc", "acc_slow", "k_tile_cnt", "warp_group_idx"]
}
"""The method of `GemmSm90` that is replaced here, with its parameters."""


class SeenTile(WorkTileInfo):
    """A tile that tells the GEMM which one it is, when a warp of the kernel asks."""

    def __init__(self, tile_idx: Any, is_valid_tile: Any, gemm: Any) -> None:
        """Make it of quack's tile's parts."""
        super().__init__(tile_idx, is_valid_tile)
        self.gemm = gemm

    @property
    def tile_idx(self) -> Any:
        """Return the tile's coordinates, and tell the GEMM."""
        self.gemm.tile = self._tile_idx
        return self._tile_idx

    def __new_from_mlir_values__(self, values: list[Any]) -> "SeenTile":
        """Make it of other values of the same kinds, as CuTe DSL asks for."""
        tile, is_valid = self._tile_idx, self._is_valid_tile
        size = len(cutlass.extract_mlir_values(tile))
        made = cutlass.new_from_mlir_values(tile, values[:size]), cutlass.new_from_mlir_values(is_valid, values[size:])
        return SeenTile(*made, self.gemm)


class GemmGroupedBlockSm90(BlockSums, GemmGroupedSm90):
    """`GemmGroupedSm90` whose stages are multiplied by factors of A and of B."""

    _epi_ops = (GroupColumns("column_bias"), TileStore("product", gated=True))
    _extra_param_fields = tuple((name, Any, None) for name in ("scale_a", "scale_b", "starts", "index"))

    @mlir_namedtuple
    class EpilogueArguments(NamedTuple):
        """Factors of A (rows, k / 128) and of B (groups, n / 128, k / 128), of any strides; the groups; bias, D."""

        scale_a: Any = None
        scale_b: Any = None
        starts: Any = None
        index: Any = None
        column_bias: Any = None
        product: Any = None
        places: Any = None
        scale_b_places: Any = None

    @property
    def has_gate(self) -> bool:  # type: ignore[override]
        """Say whether the columns of a thread's sums are the gate's and the linear half's in turn."""
        return self.operation.gate is not None

    def arguments(self, *, starts: Any, index: Any, **operands: Any) -> Any:  # type: ignore[override]
        """Name an operation's operands as the kernel does; each None where there is none."""
        scale_a, scale_b, bias, product = (operands[x] for x in ("scale_a", "scale_b", "bias", "product"))
        return self.EpilogueArguments(scale_a, scale_b, starts, index, bias, product, operands["places"])

    def epi_to_underlying_arguments(self, args: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """Return the kernel's parameters."""
        del loc, ip
        self.places, self.scale_b_places = args.places, args.scale_b_places
        self.rounding_mode = RoundingMode.RN
        parameters = self._epi_ops_to_params_dict(args)
        parameters |= {name: getattr(args, name) for name, _, _ in self._extra_param_fields}
        return self.EpilogueParams(**parameters)

    def epi_get_smem_tensors(self, params: Any, storage: Any) -> Any:
        """Return quack's views of the epilogue's shared memory, and keep its parameters."""
        self.parameters = params
        return super().epi_get_smem_tensors(params, storage)

    def get_scheduler_class(self, varlen_m: bool = False) -> Any:
        """Return the order of the tiles, which tells each tile that a warp reads."""
        del varlen_m
        gemm = self

        class SeenScheduler(RowScheduler):
            def initial_work_tile_info(self, **options: Any) -> Any:
                return _seen(super().initial_work_tile_info(**options), gemm)

            def get_current_work(self, **options: Any) -> Any:
                return _seen(super().get_current_work(**options), gemm)

        return SeenScheduler

    @cute.jit
    def mma(
        self,
        ab_pipeline: Any,
        ab_read_state: Any,
        mma_fn: Any,
        acc: Any,
        acc_slow: Any,
        k_tile_cnt: Int32,
        warp_group_idx: Int32,
    ) -> Any:
        """Multiply the stages of a tile, each times its factors."""
        factors = self._factors_of_tile(mma_fn.args[0])
        multiply = behind_proxy_fence(mma_fn) if const_expr(self.gather_A) else mma_fn
        acc_slow.fill(0.0)
        ab_read_state = self.add_stages(ab_pipeline, ab_read_state, multiply, k_tile_cnt, factors, acc_slow, acc)
        if const_expr(self.pingpong):
            self.pingpong_barrier_arrive(1 - warp_group_idx, stage="mma")
        acc.store(acc_slow.load())
        return ab_read_state

    @cute.jit
    def _factors_of_tile(self, tiled_mma: cute.TiledMma) -> Factors:
        """Find the factors of a tile; of blocks that B does not have the last one that it has."""
        parameters, tile = self.parameters, self.tile
        tile_m, tile_n = const_expr(self.cta_tile_shape_mnk[0]), const_expr(self.cta_tile_shape_mnk[1])
        thread = cute.arch.thread_idx()[0]
        if const_expr(self.pingpong):
            thread %= self.num_threads_per_warp_group
        part = tiled_mma.get_slice(thread).partition_C(cute.make_identity_tensor((tile_m, tile_n)))
        rows = cute.make_rmem_tensor((ATOM_ROWS, cute.size(part, mode=[1])), Int32)
        start, end = parameters.starts[tile[3]], parameters.starts[tile[3] + 1]
        for i in cutlass.range_constexpr(cute.size(part, mode=[1])):
            for r in cutlass.range_constexpr(ATOM_ROWS):
                row = start + tile[0] * tile_m + part[ATOM_COLUMNS * r, i, 0][0]
                found = Int32(-1)
                if row < end:
                    found = row
                    if const_expr(parameters.index is not None):
                        found = parameters.index[row]
                rows[r, i] = cutlass.select_(found < cute.size(parameters.scale_a, mode=[0]), found, Int32(-1))
        of_b = parameters.scale_b[tile[3], None, None]
        last = cute.size(of_b, mode=[0]) - 1
        first = tile[1] * tile_n
        if const_expr(self.operation.gate is not None):
            half = cute.size(of_b, mode=[0]) // 2
            blocks = [cutlass.min(first // 2 // SCALE_BLOCK + h * half, last) for h in range(2)]
        else:
            blocks = [cutlass.min(first // SCALE_BLOCK + i, last) for i in range(num_blocks(tile_n))]
        return Factors(parameters.scale_a, of_b, rows, blocks, SCALE_BLOCK - first % SCALE_BLOCK)

    @cute.jit
    def read_factors(self, factors: Factors, block: Int32) -> Any:
        """Read the products of a thread's factors for a block of k: (blocks of B, rows of A)."""
        rows = factors.rows
        scales = cute.make_rmem_tensor((len(factors.blocks), cute.size(rows)), Float32)
        for b in cutlass.range_constexpr(len(factors.blocks)):
            of_b = factors.of_b[factors.blocks[b], block]
            for i in cutlass.range_constexpr(cute.size(rows)):
                read = factors.of_a[cutlass.max(rows[i], 0), block] * of_b
                scales[b, i] = cutlass.select_(rows[i] >= 0, read, Float32(0.0))
        return scales


def _seen(tile: Any, gemm: Any) -> SeenTile:
    """Return quack's tile as one that tells the GEMM which it is."""
    return SeenTile(tile._tile_idx, tile._is_valid_tile, gemm)  # noqa: SLF001 - its public form is what is replaced
