"""Where the kernel whose clusters share k keeps a warp's part of D on its way to memory."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace

import pytest

from aot.core.operation import Operation
from aot.families._sm90_split_epilogue import EpilogueSplitGemmSm90
from aot.families._sm90_split_tile import Tile

pytestmark = pytest.mark.slow

TILES = (Tile(128, 96, 2, 2, 4), Tile(256, 80, 4, 2, 4), Tile(64, 64, 1, 1, 4))
CORNER = (256, 320)


def kernel(tile, operation, *, swap_ab):
    return EpilogueSplitGemmSm90(None, tile, swap_ab, 132, (True, True), operation)


def offsets(shape, place, count):
    """Give the elements' offsets in a vector's part of shared memory: modes are packed, the first is contiguous."""
    start = sum(x * prod(shape[:i]) for i, x in enumerate(place) if x is not None)
    return range(start, start + count)


def held(gemm, warp, lane, first, v, e):
    """Give the element of the product that a lane holds. Source: PTX ISA, wgmma, registers of the accumulator."""
    step, group = v // gemm.tile.share, first + v % gemm.tile.share
    row = warp // 4 * 64 + warp % 4 * 16 + lane // 4 + e // 2 * 8 + step * 64 * gemm.tile.num_warpgroups
    return CORNER[0] + row, CORNER[1] + group * 8 + lane % 4 * 2 + e % 2


def of_results(gemm, warp, lane, first, v):
    """Give (m, n) of each of a lane's results of a vector."""
    places = [held(gemm, warp, lane, first, v, e) for e in range(4)]
    if gemm.operation.gate is None:
        return [x[::-1] if gemm.swap_ab else x for x in places]
    if gemm.swap_ab:  # a lane of a gate's row keeps the upper row, the other the lower
        kept = places[:2] if lane // 4 % 2 == 0 else places[2:]
        return [(column, row // 2) for row, column in kept]
    return [(row, column // 2) for row, column in places[::2]]


def written(gemm, warp, first):
    """Map vector and offset to (m, n), as lanes write their results."""
    found = {}
    for lane in range(32):
        for v in range(gemm.tile.num_vectors):
            places = of_results(gemm, warp, lane, first, v)
            for i in range(len(places) // gemm.run):
                for e, offset in enumerate(offsets(*gemm.locate_run(lane, v, i), gemm.run)):
                    assert found.setdefault((v, offset), places[gemm.run * i + e]) == places[gemm.run * i + e]
    return found


def stored(gemm, warp, first):
    """Map vector and offset to (m, n), as chunks are stored, and read of a residual."""
    found = {}
    for index in range(gemm.num_chunks):
        inner, v = gemm.split_number(index)
        _, m, n = gemm.find_chunk(inner, v, first, (gemm.row(warp, CORNER), CORNER[1]))
        assert n % gemm.chunk_size == 0
        for e, offset in enumerate(offsets(*gemm.locate_chunk(v, inner), gemm.chunk_size)):
            assert found.setdefault((v, offset), (m, n + e)) == (m, n + e)
    return found


@pytest.mark.parametrize("operation", [Operation.BF16_KK_RESIDUAL, Operation.BF16_KK_SWIGLU])
@pytest.mark.parametrize("swap_ab", [False, True])
@pytest.mark.parametrize("tile", TILES)
def test_what_lanes_write_is_what_chunks_store(tile, operation, swap_ab):
    gemm = kernel(tile, operation, swap_ab=swap_ab)
    for warp in (0, 3, tile.num_multiplying // 32 - 1):
        for first in range(0, tile.num_groups, tile.share):
            found = written(gemm, warp, first)
            assert found == stored(gemm, warp, first)
            assert len(found) == len(set(found.values())) == 128 // gemm.num_halves * tile.num_vectors


@pytest.mark.parametrize("width", [8, 16])
def test_a_warp_writes_d_only_where_its_own_sums_were(width):
    """Other warps may still read theirs: a warp's vector has 32 lanes of 16 bytes, whatever D's elements are."""
    gemm = EpilogueSplitGemmSm90(
        SimpleNamespace(width=width), TILES[0], False, 132, (True, True), Operation.BF16_KK_RESIDUAL
    )
    assert gemm.num_elements * width // 8 == 32 * 16
