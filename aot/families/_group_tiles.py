"""Which group a CTA's tile of rows is of, found by a warp at once. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

import cutlass
from cutlass import Constexpr, Int32, cute, range_constexpr

LANES = 32
STEPS = (1, 2, 4, 8, 16)
"""Of a sum over the lanes in front."""


def most_tiles(num_rows: Any, num_groups: Any, height: int) -> Any:
    """Count the tiles of so many rows that groups of any sizes may have: no group's tile is empty."""
    return cutlass.min(num_rows, (num_rows + num_groups * (height - 1)) // height)


@cute.jit
def find_tile(starts: Any, num_groups: Int32, tile: Int32, height: Constexpr[int]) -> Any:
    """Return the group of a tile, its first row, and its rows, of which there are none behind the last tile.

    Tiles are numbered through all groups, each of which has as many as its rows need. Each lane of a warp counts those
    of its own share of the groups, so that offsets are read at once. To be called by whole warps.
    """
    lane = cute.arch.lane_idx()
    each = cute.ceil_div(num_groups, LANES)
    begin = cutlass.min(lane * each, num_groups)
    stop = cutlass.min(begin + each, num_groups)
    own, start = Int32(0), starts[begin]
    for g in cutlass.range(begin, stop, 1, unroll=1):
        end = starts[g + 1]
        own += cute.ceil_div(cutlass.max(end - start, 0), height)
        start = end
    until = own
    for step in range_constexpr(len(STEPS)):
        below = cute.arch.shuffle_sync_up(until, STEPS[step])
        until += cutlass.select_(lane >= STEPS[step], below, Int32(0))
    before, group, first, count = until - own, Int32(-1), Int32(0), Int32(0)
    if tile >= before and tile < until:
        start = starts[begin]
        for g in cutlass.range(begin, stop, 1, unroll=1):
            end = starts[g + 1]
            tiles = cute.ceil_div(cutlass.max(end - start, 0), height)
            if tile >= before and tile < before + tiles:
                group, first = Int32(g), start + (tile - before) * height
                count = cutlass.min(end - first, height)
            before += tiles
            start = end
    found = cute.arch.vote_ballot_sync(group >= 0)
    source = cutlass.max(cute.arch.popc((found & -found) - 1) & (LANES - 1), 0)
    group, first, count = (cute.arch.shuffle_sync(x, source) for x in (group, first, count))
    return cutlass.max(group, 0), first, count
