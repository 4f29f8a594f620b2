"""What of the kernels of `sm90_weight_only` brings a packed weight to shared memory, as it was packed. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, Uint8, const_expr, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils.hopper_helpers import make_trivial_tiled_mma
from quack import copy_utils

from aot.core.weight_format import BLOCK_K, TILE_ROWS
from aot.families._sm90_packed_tile import GROUPS_ALIGN_BYTES, LINE_BYTES, PackedTile
from aot.families._sm90_split_kernel import SplitGemmSm90
from aot.families._sm90_split_loads import Copy, Sharers
from aot.families._sm90_split_tile import ALIGN_BYTES, MMA_M, NUM_LOAD_WARPS

LOADING_REGISTERS = 40
"""Of a thread that loads, where multiplying ones take some of its registers: 128 of these, and 256 of 232, are no more
than the 65,536 of an SM. Source: PTX ISA, setmaxnreg: multiples of 8."""


@dataclass(frozen=True)
class PackedLoadsSm90(SplitGemmSm90):
    """What the kernels load, and how."""

    tile: PackedTile

    @property
    def block_k(self) -> int:
        """Elements of k in a stage."""
        return BLOCK_K

    @property
    def lines(self) -> int:
        """Return the lines of codes of 16 rows and 128 along k."""
        return self.tile.layout.code_bytes // LINE_BYTES

    def make_mma(self, columns: int) -> Any:
        """Make what multiplies a tile of so many columns, of A in registers."""
        return make_trivial_tiled_mma(
            *self.multiplied,
            OperandMajorMode.K,
            OperandMajorMode.K,
            Float32,
            atom_layout_mnk=(self.tile.num_warpgroups, 1, 1),
            tiler_mn=(MMA_M, columns),
            a_source=warpgroup.OperandSource.RMEM,
        )

    def view_weight(self, packed: cute.Tensor, n: Any, k: Any) -> Any:
        """View packed codes as (bytes of a line, lines, tiles of 16 rows, blocks of k); on the host."""
        tiles, blocks = cute.ceil_div(n, TILE_ROWS), cute.ceil_div(k, BLOCK_K)
        block_bytes = self.tile.layout.block_bytes
        row_bytes = cute.assume(Int64(blocks) * block_bytes, divby=16)
        layout = cute.make_layout(
            (LINE_BYTES, self.lines, tiles, blocks), stride=(1, LINE_BYTES, row_bytes, block_bytes)
        )
        return cute.make_tensor(packed.iterator, layout)

    def prepare_side(self, side: int, operand: Any) -> tuple[Any, Any, Any]:
        """Return the layouts of an operand's stages, what loads them, and the operand's extent; on the host."""
        if side == 1:
            return super().prepare_side(side, operand)
        tile, stages = self.tile, self.tile.num_stages
        rows, code_bytes = tile.row_tiles, tile.layout.code_bytes
        shape, strides = (LINE_BYTES, self.lines, rows, 1), (1, LINE_BYTES, code_bytes, tile.code_bytes)
        outer = cute.make_layout((*shape, stages), stride=(*strides, tile.code_bytes))
        layouts, loads = [cute.make_composed_layout(cute.make_swizzle(2, 4, 3), 0, outer)], []
        box = cute.make_composed_layout(cute.make_swizzle(2, 4, 3), 0, cute.make_layout(shape, stride=strides))
        loads.append(cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), operand, box, shape))
        if tile.block_group_bytes:
            size = tile.block_group_bytes
            _, _, tiles, blocks = operand.shape
            _, _, row_bytes, block_bytes = operand.stride
            view = cute.make_tensor(
                operand.iterator + code_bytes,
                cute.make_layout((size, tiles, blocks), stride=(1, row_bytes, block_bytes)),
            )
            layouts.append(cute.make_layout((size, rows, 1, stages), stride=(1, size, size, tile.group_bytes)))
            box = cute.make_layout((size, rows, 1), stride=(1, size, size))
            loads.append(cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), view, box, (size, rows, 1)))
        return tuple(layouts), tuple((x[0], x[1]) for x in loads), cute.size(operand, mode=[2]) * TILE_ROWS

    def _shared_memory(self) -> Any:
        """Describe a CTA's shared memory: the stages, what the cluster sends, and the barriers."""
        tile, stages = self.tile, self.tile.num_stages

        def aligned(element: Any, count: int, align: int = ALIGN_BYTES) -> Any:
            return cute.struct.Align[cute.struct.MemRange[element, count], align]

        groups = {"groups": aligned(Uint8, tile.group_bytes * stages, GROUPS_ALIGN_BYTES)} if tile.group_bytes else {}
        fields = {
            "rows": aligned(Uint8, tile.code_bytes * stages),
            "columns": aligned(self.element, tile.columns * BLOCK_K * stages),
            **groups,
            **self.fields_beside_stages(),
            "barriers": cute.struct.MemRange[cutlass.Int64, tile.num_barriers],
        }
        return cute.struct(type("SharedMemory", (), {"__annotations__": fields}))

    def descriptors(self, loads: Any) -> list[Any]:
        """List the TMA atoms of all loads."""
        return [*(atom for atom, _ in loads[0]), loads[1][0]]

    def stages_in(self, storage: Any, layouts: Any) -> list[Any]:
        """View the stages of codes and of groups, and those of x."""
        of_rows, of_columns = layouts
        rows = [storage.rows.get_tensor(of_rows[0].outer, swizzle=of_rows[0].inner)]
        if self.tile.group_bytes:
            rows.append(storage.groups.get_tensor(of_rows[1]))
        return [rows, storage.columns.get_tensor(of_columns.outer, swizzle=of_columns.inner)]

    def num_rows(self, load_rows: Any) -> Any:
        """Return the rows of the weight, whole tiles of 16."""
        return cute.size(load_rows[0][1], mode=[2]) * TILE_ROWS

    def count_k_blocks(self, loads: Any) -> Any:
        """Count the blocks of k."""
        return cute.ceil_div(loads[1][1].shape[1], BLOCK_K)

    def copy_rows(self, load: Any, stages: Any, place: tuple[Any, Any], sharers: Sharers) -> Copy:
        """Make what loads a block of k of a tile's rows of the weight, which no other CTA shares."""
        del sharers
        tile = self.tile
        shapes = (LINE_BYTES, self.lines, tile.row_tiles, 1), (tile.block_group_bytes, tile.row_tiles, 1)
        copies = []
        for (atom, view), stage, shape in zip(load, stages, shapes, strict=False):
            at = (*(0,) * (len(shape) - 2), place[1], None)
            source = cute.local_tile(view, shape, at)
            copy, _, _ = copy_utils.tma_get_copy_fn(atom, 0, cute.make_layout(1), source, stage)
            copies.append(copy)

        def load_all(k_block: Any, stage: Any, tma_bar_ptr: Any) -> None:
            for copy in copies:
                copy(k_block, stage, tma_bar_ptr=tma_bar_ptr)

        return Copy(load_all, tile.code_bytes + tile.row_tiles * tile.block_group_bytes)

    @cute.jit
    def load_operands(
        self, copies: Any, storage: Any, warp: Int32, rank: Int32, num_k_blocks: Int32, starts: Any
    ) -> None:
        """Load the CTA's blocks of k, in the first two loading warps."""
        if const_expr(self.tile.moves_registers):
            cute.arch.setmaxregister_decrease(LOADING_REGISTERS)
        if warp < self.tile.num_multiplying // 32 + NUM_LOAD_WARPS:
            SplitGemmSm90.load_operands(self, copies, storage, warp, rank, num_k_blocks, starts)
