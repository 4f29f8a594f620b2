"""quack's Hopper GEMM for tiles in steps of 8 columns. Imports CUTLASS and quack. `_ragged.py` says what is ragged.

Tiles that are not ragged are compiled as quack does.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cutlass import cute
from cutlass.cute.nvgpu import warp
from quack import copy_utils
from quack.sm90_utils import partition_for_epilogue

from aot.families._quack_internals import PieceSm90
from aot.families._ragged import STEP, is_ragged, piece_columns, piece_starts
from aot.families._sm90_tiles import MAX_INSTRUCTION_N, TALL_TILE_M

BIAS = "mRowVecBroadcast"
"""quack's name of the vector that is added to every row."""


def _tile_for_quack(tile: tuple[int, int], *, pingpong: bool, three_by_rows: bool) -> tuple[int, int]:
    """Return a tile that quack's constructor takes, and for which it arranges the warpgroups as this one needs.

    Up to 128 columns, quack gives a cooperative tile of 192 rows to three warpgroups by rows, above to two by columns.
    Otherwise columns are rounded down: from 208 accumulators a thread on, quack gives multiplying warps more registers.
    Of large tiles, two warpgroups share the columns of wide ones and the rows of tall ones.
    """
    rows, columns = tile
    if columns > MAX_INSTRUCTION_N:
        return 192, MAX_INSTRUCTION_N
    if rows == TALL_TILE_M:
        rows = 256
    if not pingpong and rows == 192:
        return rows, 128 if three_by_rows or columns <= 128 else 256
    step = 32 if not pingpong and rows == 320 else 16
    return rows, max(columns // step * step, step)


class RaggedSm90(PieceSm90):
    """quack's GEMM, whose tile may have any multiple of 8 columns, up to quack's limits, or be a large one."""

    epi_tile_shape: Any
    """Pieces of a tile, along its rows and its columns."""

    def __init__(
        self,
        accumulator: Any,
        dtype: Any,
        tile: tuple[int, int],
        cluster: Any,
        *,
        three_by_rows: bool = False,
        **kwargs: Any,
    ) -> None:
        """Configure as quack does, but for the tile's columns.

        Args:
            accumulator: as in quack's `GemmSm90`.
            dtype: of A and B.
            tile: rows and columns.
            cluster: CTAs along m, n and k.
            three_by_rows: whether three warpgroups share the rows of a tile of 192, also above 128 columns.
            kwargs: as in quack's `GemmSm90`.
        """
        pingpong = kwargs.get("pingpong", False)
        quacks = _tile_for_quack(tile, pingpong=pingpong, three_by_rows=three_by_rows)
        super().__init__(accumulator, dtype, quacks, cluster, **kwargs)
        self.cta_tile_shape_mnk = (*tile, 0)
        self.ragged = is_ragged(tile[1], self.atom_layout_mnk[1])
        self.starts = piece_starts(tile[1])
        if self.ragged:
            self.piece_columns = piece_columns(tile[1])

    def epilog_smem_store_and_partition(
        self, tiled_mma: Any, d_layout: Any, dtype: Any, stages: Any, thread: Any
    ) -> tuple[Any, Any, Any]:
        """Describe the stores of a piece into a stage of D: two matrices at once where a tile has 8 columns.

        quack stores four at once even where its partition of the tile is of two.
        """
        if self.cta_tile_shape_mnk[1] != STEP:
            quacks: tuple[Any, Any, Any] = super().epilog_smem_store_and_partition(
                tiled_mma, d_layout, dtype, stages, thread
            )
            return quacks
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(d_layout.is_m_major_c(), num_matrices=2), dtype)
        to_stages = cute.make_tiled_copy_S(atom, self.epilog_smem_copy_atom(tiled_mma))
        part = to_stages.get_slice(thread)
        shape = part.partition_S(cute.make_identity_tensor(stages.shape[:2])).shape
        return to_stages, cute.make_rmem_tensor(shape, self.acc_dtype), part.partition_D(stages)

    def epi_retile_acc(self, acc: Any, values: Any, to_stages: Any) -> Any:
        """View the accumulators as the pieces that are stored; those of a ragged tile one by one, in a tuple."""
        if not self.ragged:
            return super().epi_retile_acc(acc, values, to_stages)
        layout, num_pieces, starts = acc.layout, self.epi_tile_shape, self.starts
        if self.piece_columns == STEP:
            whole = cute.make_layout(
                (layout.shape[0], 1, 1, (layout.shape[1], 1)), stride=(layout.stride[0], 0, 0, (layout.stride[1], 0))
            )
            return (to_stages.retile(cute.make_tensor(acc.iterator, whole)),)
        # A warpgroup's accumulators are groups of 8 columns, which lie side by side or alternate with another's.
        step = STEP * self.atom_layout_mnk[1]
        piece = cute.make_layout(((2, 2, self.piece_columns // step), *layout.shape[1:]), stride=layout.stride)
        parts = [cute.make_tensor(acc.iterator + x // step * layout.stride[0][2], piece) for x in starts]
        self.epi_tile_shape = (num_pieces[0], 1)
        pieces = tuple(super(RaggedSm90, self).epi_retile_acc(x, values, to_stages) for x in parts)
        self.epi_tile_shape = num_pieces
        return pieces

    def epi_load_acc_subtile(self, acc: Any, values: Any, coordinate: Any, no_release: bool = False) -> None:
        """Copy a piece of the accumulators to the registers that are stored.

        Those of a ragged tile are copied one by one: vectors that straddle those of the piece before would keep the
        accumulators in local memory.
        """
        if not self.ragged:
            super().epi_load_acc_subtile(acc, values, coordinate, no_release)
            return
        piece = acc[coordinate[1]][None, None, None, (coordinate[0], 0)]
        for i in range(cute.size(values)):
            values[i] = piece[i]

    def epilog_gmem_copy_and_partition(
        self, atom: Any, d: Any, tile: Any, piece: Any, stages: Any, coordinate: Any
    ) -> tuple[Any, Any, Any]:
        """Return the function that copies a piece from its stage to D, and two values that our kernels do not read."""
        if not self.ragged:
            quacks: tuple[Any, Any, Any] = super().epilog_gmem_copy_and_partition(
                atom, d, tile, piece, stages, coordinate
            )
            return quacks
        copies = []
        for start in self.starts:
            origin = (coordinate[0] * tile[0], coordinate[1] * tile[1] + start)
            target = cute.local_tile(cute.domain_offset(origin, d), (tile[0], self.piece_columns), (0, 0))
            pieces = cute.zipped_divide(target, piece)
            layout = cute.make_layout(1)
            copies.append(copy_utils.tma_get_copy_fn(atom, 0, layout, src_tensor=stages, dst_tensor=pieces)[0])

        def copy(src_idx: Any, dst_idx: Any, **kwargs: Any) -> None:
            copies[dst_idx[1]](src_idx=src_idx, dst_idx=(dst_idx[0], 0), **kwargs)

        return copy, None, None

    def epi_begin(self, parameters: Any, shared: Any, piece: Any, t2r: Any, to_stages: Any, *others: Any) -> Any:
        """Load the epilogue's vectors, and view a ragged tile's bias as its pieces."""
        loaded = super().epi_begin(parameters, shared, piece, t2r, to_stages, *others)
        if self.ragged and BIAS in loaded:
            thread = others[3]
            layout = cute.make_layout((self.cta_tile_shape_mnk[0], self.piece_columns), stride=(0, 1))
            pieces = [cute.make_tensor(shared[BIAS].iterator + start, layout) for start in self.starts]
            views = [partition_for_epilogue(x, piece, to_stages, thread, reference_src=True) for x in pieces]
            loaded[BIAS] = [views, loaded[BIAS][1]]
        return loaded

    def epi_begin_loop(self, parameters: Any, loaded: Any, coordinate: Any) -> Any:
        """Load what a piece needs of the epilogue's vectors."""
        if self.ragged and BIAS in loaded:
            views, values = loaded[BIAS]
            loaded, coordinate = {**loaded, BIAS: [views[coordinate[1]], values]}, (coordinate[0], 0)
        return super().epi_begin_loop(parameters, loaded, coordinate)
