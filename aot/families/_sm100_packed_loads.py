"""What of `sm100_weight_only` brings a packed weight to shared memory, as it was packed. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, Int64, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import cpasync
from cutlass.experimental import primitives as prims

from aot.core.factor_atoms import ATOM_BYTES
from aot.core.weight_format import BLOCK_K
from aot.core.weight_packing import CODE_BYTES
from aot.families._sm100_packed_tile import NUM_DECODING, ROW_CODE_BYTES, ROWS, PackedTile


def bulk_copy(target: Any, source: Any, barrier: Any, num_bytes: Any) -> None:
    """Ask for bytes that lie together, as one thread; to be called while tracing."""
    prims.cp_async_bulk_shared_cluster_global(
        target.to_llvm_ptr(), source.to_llvm_ptr(), barrier.to_llvm_ptr(), Int32(num_bytes)
    )


@dataclass(frozen=True)
class FragmentLoads:
    """Loads a weight that is packed by blocks of 16 rows: of each stage eight blocks, with their factors."""

    tile: PackedTile

    def view(self, weights: tuple[Any, ...], n: Int32, k: Int32) -> Any:
        """Return what the kernel is given of where weights begin; on the host."""
        del n, k
        return weights[0] if len(weights) == 1 else weights

    def source(self, weight: Any, stages: Any) -> Any:
        """Return what `load` takes.

        Args:
            weight: what `view` returned, the tile among rows of tiles, the tiles of 16 rows that the weight has, and k.
            stages: where they begin in shared memory.
        """
        packed, row_tile, count, k = weight
        weights = packed if isinstance(packed, tuple) else (packed,)
        first = row_tile * (NUM_DECODING // len(weights))
        return weights, first, count, cute.ceil_div(k, BLOCK_K), stages

    @cute.jit
    def load(self, source: Any, block: Int32, stage: Int32, barrier: Any) -> None:
        """Ask for a stage, of each weight as many tiles of 16 rows. Those that are too many are the last again."""
        weights, first, count, num_blocks, stages = source
        size, of_each = self.tile.layout.block_bytes, const_expr(NUM_DECODING // len(weights))
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.tile.packed_bytes)
            for i in range_constexpr(NUM_DECODING):
                row = cutlass.min(first + i % of_each, count - 1)
                place = weights[i // of_each] + (Int64(row) * num_blocks + block) * size
                bulk_copy(stages + (stage * self.tile.packed_bytes + i * size), place, barrier, size)


@dataclass(frozen=True)
class RowLoads:
    """Loads a weight that lies in rows: of each stage a box of codes, and behind it an atom of factors or two.

    A tile has the 128 rows of an atom. What a last stage lacks of a second atom stands beside codes of zero.
    """

    tile: PackedTile

    def view(self, weights: tuple[Any, ...], n: Int32, k: Int32) -> Any:
        """Return what loads codes, the view that it loads from, and where the atoms begin; on the host."""
        (packed,), layout = weights, self.tile.layout
        row_bytes = cute.ceil_div(k, layout.run_k) * layout.run_bytes
        stride = cute.assume(Int64(row_bytes), divby=CODE_BYTES)
        rows = cute.make_tensor(packed, cute.make_layout((row_bytes, n), stride=(1, stride)))
        box = ROW_CODE_BYTES, ROWS
        atom, view = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), rows, cute.make_layout(box), box)
        first = Int64(cute.ceil_div(n, layout.tile_rows) * layout.tile_rows) * Int64(row_bytes)
        return atom, view, packed + cute.assume(first, divby=CODE_BYTES)

    def source(self, weight: Any, stages: Any) -> Any:
        """Return what `load` takes, as that of `FragmentLoads`."""
        (atom, view, atoms), row_tile, _, k = weight
        layout = cute.make_layout(
            (ROW_CODE_BYTES, ROWS, self.tile.num_packed), stride=(1, ROW_CODE_BYTES, self.tile.packed_bytes)
        )
        staged = cute.make_tensor(stages, layout)
        of_rows = cute.local_tile(view, (ROW_CODE_BYTES, ROWS), (None, row_tile))
        to, of = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(staged, 0, 2), cute.group_modes(of_rows, 0, 2)
        )
        runs = cute.ceil_div(k, self.tile.layout.run_k)
        return atom, to, of, atoms + Int64(row_tile) * (runs * ATOM_BYTES), runs, stages

    @cute.jit
    def load(self, source: Any, block: Int32, stage: Int32, barrier: Any) -> None:
        """Ask for a stage."""
        atom, to, of, atoms, runs, stages = source
        of_block = BLOCK_K // self.tile.layout.run_k
        num_bytes = cutlass.min(runs - block * of_block, of_block) * ATOM_BYTES
        codes = ROWS * ROW_CODE_BYTES
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, codes + num_bytes)
            target = stages + (stage * self.tile.packed_bytes + codes)
            bulk_copy(target, atoms + Int64(block) * (of_block * ATOM_BYTES), barrier, num_bytes)
        cute.copy(atom, of[None, block], to[None, stage], tma_bar_ptr=barrier)
