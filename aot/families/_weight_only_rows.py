"""How `weight_only` reads a weight that lies in rows, with its factors in atoms, as block-scaled products have it.

An atom has the factors of 128 rows: of rows r, r + 32, r + 64 and r + 96 next to each other, in 16 bytes for 64
elements along k, or 128 of MXFP4 (`aot.core.factor_atoms`). So a tile of 16 rows of the weight are four such groups of
four: TMA brings their codes as a box of 64 bytes by 4 rows by 4 runs of 32 rows, and their factors as 64 bytes of each
atom, all of which are used. Eight tiles are an atom's rows.

In a block of 128 along k a lane `t` of four takes 32 neighbouring elements of a row, 16 bytes. A word of them is eight
codes; a register of `mma` takes two of them that are four apart, or two, and x is put into the same order. Imports
CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from aot.core.factor_atoms import ATOM_BYTES, LANES
from aot.core.weight_format import ATOM_ROWS, BLOCK_K, TILE_ROWS
from aot.core.weight_packing import CODE_BYTES
from aot.families._weight_only_decode import words_at
from aot.families._weight_only_tile import X_BYTES, X_PIECE, Tile

SIDE = 4
"""Rows of a tile next to each other, and runs of 32 rows that it has some of."""
TILES_OF_ATOM = ATOM_ROWS // TILE_ROWS
RUN_BYTES = BLOCK_K // 2
"""Of a row's codes in a block."""
HALF_PIECES = 8
"""Pieces of x of two lanes in a block, whose places differ from those of the others: see `x_place`."""


def tile_row(row: Any) -> tuple[Any, Any]:
    """Return which of four neighbours, and which run of 32 rows, a row of `mma`'s 16 is of its tile.

    Rows g and g + 8, which a lane has, are of runs next to each other, whose factors it then reads at once.
    """
    return row % SIDE, row % 8 // SIDE * 2 + row // 8


def row_of_weight(tile: Any, row: Any) -> Any:
    """Return the row of the weight that a row of a tile is."""
    neighbour, run = tile_row(row)
    return tile // TILES_OF_ATOM * ATOM_ROWS + run * LANES + tile % TILES_OF_ATOM * SIDE + neighbour


def x_place(piece: Any, row: Any) -> Any:
    """Return the place of a piece of x in its row of a stage.

    The four lanes of a row read pieces that lie four apart, and eight lanes those of two rows at once: places are
    exchanged so that these fall into different banks, and so that neighbouring pieces do when they are written.
    """
    return piece ^ (piece // HALF_PIECES % 2 * 2) ^ (row & 1)


def view_weight(packed: Any, n: Int32, k: Int32, tile: Tile, stack: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """Return what loads a tile's codes of a block, and its factors, each with the view that it loads from; on the host.

    The bytes begin at `packed`. Codes are seen as (bytes of a row, 32 rows, runs of 32), factors as (bytes of an atom,
    atoms along k, 128 rows). Of a stack, that is how many weights there are and the bytes from one to the next, the
    weights are the last mode: see `weight_of_stack`.
    """
    count, step = ((), ()) if stack is None else ((stack[0],), (stack[1],))
    runs_of_k = cute.ceil_div(k, tile.layout.run_k)
    row_bytes = runs_of_k * tile.layout.run_bytes
    stride = cute.assume(Int64(row_bytes), divby=CODE_BYTES)
    rows = cute.make_layout(
        (row_bytes, LANES, cute.ceil_div(n, LANES), *count), stride=(1, stride, LANES * stride, *step)
    )
    codes = cute.make_tensor(packed, rows)
    first = Int64(cute.ceil_div(n, tile.layout.tile_rows) * tile.layout.tile_rows) * Int64(row_bytes)
    layout = cute.make_layout(
        (ATOM_BYTES, runs_of_k, cute.ceil_div(n, ATOM_ROWS), *count),
        stride=(1, ATOM_BYTES, tile.layout.rows_of_atoms * stride, *step),
    )
    atoms = cute.make_tensor(packed + cute.assume(first, divby=CODE_BYTES), layout)
    return tuple(
        cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), view, cute.make_layout(box), box)
        for view, box in zip((codes, atoms), boxes(tile), strict=True)
    )


def weight_of_stack(loads: tuple[Any, Any], place: Int32) -> tuple[Any, Any]:
    """Return what `view_weight` returns of one weight, of what it returned of a stack; to be called while tracing."""
    (of_codes, codes), (of_factors, factors) = loads
    return (of_codes, codes[None, None, None, place]), (of_factors, factors[None, None, None, place])


def prefetch_descriptors(weights: Any) -> None:
    """Bring the descriptors of all loads near, which else the first of them wait for; to be called while tracing."""
    for loads in weights:
        for atom, _ in loads:
            cpasync.prefetch_descriptor(atom)


def boxes(tile: Tile) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the boxes of codes and of factors that a tile has of a block of k."""
    return (RUN_BYTES, SIDE, SIDE), (SIDE * SIDE * 4, BLOCK_K // tile.layout.run_k, 1)


def _copy(load: Any, box: tuple[int, ...], at: tuple[Any, ...], target: Any, barrier: Any) -> None:
    """Have TMA bring a box to shared memory; to be called while tracing, by a whole warp."""
    atom, view = load
    source = cute.local_tile(view, box, at)
    staged = cute.make_tensor(target, cute.make_layout(box))
    to, of = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(staged, 0, 3), cute.group_modes(source, 0, 3)
    )
    cute.copy(atom, of, to, tma_bar_ptr=barrier)


def load_block(weights: Any, tile: Tile, place: tuple[Any, Any], target: Any, barrier: Any) -> None:
    """Bring a block of k of all tiles of rows of a CTA; to be called while tracing.

    Args:
        weights: what `view_weight` returned of each weight that has as many of the tiles, one behind the other.
        tile: the CTA's work.
        place: of the first tile among all tiles, and of the block along k.
        target: where in a stage the first tile's codes go, and its factors behind them.
        barrier: at which the bytes arrive.
    """
    of_codes, of_factors = boxes(tile)
    (first, block), of_each = place, tile.tiles // len(weights)
    for i in range(tile.tiles):
        loads, row_tile = weights[i // of_each], first + i % of_each
        atom, inside = row_tile // TILES_OF_ATOM, row_tile % TILES_OF_ATOM
        start = target + i * tile.copy_bytes
        _copy(loads[0], of_codes, (block, inside, atom), start, barrier)
        _copy(loads[1], of_factors, (inside, block, atom), start + tile.layout.code_bytes, barrier)


@dataclass(frozen=True)
class RowReader:
    """Reads a block of k of a stage; to be called while tracing."""

    tile: Tile
    decoder: Any

    def x_of_rows(self, start: Any, row: Int32) -> list[list[Any]]:
        """Read a lane's x of a block, of a row that begins at `start`: of each step two words."""
        t = cute.arch.lane_idx() % 4
        turn = (t // 2 * 2 ^ (row & 1)) * (X_PIECE * X_BYTES)
        begin, found = start + t * (BLOCK_K // 4 * X_BYTES), []
        for piece in range(BLOCK_K // 4 // X_PIECE):
            words = words_at(begin + (Int32(piece * X_PIECE * X_BYTES) ^ turn))
            chosen = self.decoder.words_apart
            apart = [Int32(cute.arch.prmt(words[i], words[j], half)) for i, j in chosen for half in (0x5410, 0x7632)]
            found += [apart[:2], apart[2:]]
        return found

    def codes(self, block: Any) -> list[Any]:
        """Read the codes of a lane's two rows in a block: of each four words."""
        lane = cute.arch.lane_idx()
        neighbour, run = tile_row(lane // 4)
        start = block + ((run * SIDE + neighbour) * RUN_BYTES + lane % 4 * CODE_BYTES)
        return [words_at(start), words_at(start + SIDE * RUN_BYTES)]

    def factors(self, block: Any) -> Any:
        """Read the factors of a lane's two rows in a block: pairs for each of its two 16 elements, or all 32."""
        lane = cute.arch.lane_idx()
        neighbour, run = tile_row(lane // 4)
        start = block + (self.tile.layout.code_bytes + neighbour * (SIDE * 4) + run * 4)
        if self.tile.form.is_mxfp4:
            words, t = words_at(start, 2), lane % 4
            return [self.decoder.powers(cute.arch.prmt(words[0], words[1], t + ((t + 4) << 4)), 0)]
        words = words_at(start + lane % 4 // 2 * (SIDE * SIDE * 4), 2)
        chosen = 0x5410 + lane % 2 * (0x7632 - 0x5410)
        return self.decoder.block_factors([cute.arch.prmt(words[0], words[1], chosen)])
