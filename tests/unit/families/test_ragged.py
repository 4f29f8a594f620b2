"""Tiles in steps of 8 columns: how they are stored, what is legal, and what they take."""

from dataclasses import replace

import pytest

from aot.core.candidate import Accepted, Reason, changed
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.families import families
from aot.families._ragged import is_ragged, piece_columns, piece_starts
from aot.families._sm90_tiles import has_ragged_tile, shapes
from aot.space.legality import check
from tests.unit.accepted import named, reason, resources
from tests.unit.twins import BF16

TILE = named("sm90_prefetch_b_128x168_c1x1_pingpong")


@pytest.mark.parametrize(
    ("tile_n", "warpgroup_columns", "ragged"),
    [(8, 1, True), (16, 1, False), (24, 1, True), (168, 1, True), (176, 1, False), (144, 2, True), (160, 2, False)],
)
def test_what_is_ragged(tile_n, warpgroup_columns, ragged):
    assert is_ragged(tile_n, warpgroup_columns) == ragged


@pytest.mark.parametrize(
    ("tile_n", "columns", "starts"),
    [
        (8, 8, (0,)),
        (24, 16, (0, 8)),
        (40, 32, (0, 8)),
        (56, 32, (0, 24)),
        (144, 32, (0, 32, 64, 96, 112)),
        (168, 32, (0, 32, 64, 96, 128, 136)),
        (184, 32, (0, 32, 64, 96, 128, 152)),
    ],
)
def test_pieces_of_a_tile(tile_n, columns, starts):
    assert (piece_columns(tile_n), piece_starts(tile_n)) == (columns, starts)


@pytest.mark.parametrize("tile_n", range(8, 257, 8))
def test_pieces_cover_a_tile_and_end_where_it_ends(tile_n):
    columns = piece_columns(tile_n)
    stored = [x for start in piece_starts(tile_n) for x in range(start, start + columns)]
    assert set(stored) == set(range(tile_n))
    assert all(start % 8 == 0 for start in piece_starts(tile_n))


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages", "threads"),
    [
        ("partial_tile_128x168_c1x1_pingpong_swap", 230400, 5, 384),
        ("prefetch_b_128x168_c2x1_cooperative_swap", 230400, 5, 384),
        ("prefetch_b_64x184_c4x1_pingpong_swap", 230400, 7, 384),
        ("prefetch_b_128x88_c2x1_pingpong", 229376, 8, 384),
        ("prefetch_b_192x88_c1x1_cooperative", 228352, 5, 512),
        ("prefetch_b_192x144_c1x1_cooperative", 231424, 5, 384),
        ("prefetch_b_192x144_c1x1_cooperative3", 227328, 4, 512),
        ("prefetch_b_192x200_c1x1_cooperative3", 225280, 4, 512),
        ("prefetch_b_256x152_c2x1_cooperative_swap", 225280, 4, 384),
        ("prefetch_b_256x200_c1x1_cooperative", 224256, 3, 384),
        ("prefetch_b_320x112_c1x1_cooperative_swap", 229376, 4, 384),
        ("prefetch_b_64x8_c1x1_cooperative_swap", 231424, 25, 256),
        ("prefetch_b_64x24_c1x1_cooperative_swap", 231424, 20, 256),
        ("prefetch_b_64x40_c1x1_pingpong", 230400, 17, 384),
        ("prefetch_b_192x112_c1x1_cooperative_serial2", 231424, 5, 512),
    ],
)
def test_resources_are_those_of_the_compiled_kernels(name, smem_bytes, stages, threads):
    # Source: shared memory, stages and threads of the kernels compiled by quack 0.6.5 and nvidia-cutlass-dsl 4.8.1,
    # 2026-11-22; none had spills.
    assert resources(f"sm90_{name}", "h200") == (smem_bytes, stages, threads, 0)


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages"),
    [
        ("partial_tile_128x168_c1x1_pingpong_swap", 227328, 5),
        ("prefetch_b_64x184_c4x1_pingpong_swap", 228352, 6),
        ("prefetch_b_128x88_c2x1_pingpong", 230400, 8),
        ("prefetch_b_192x144_c1x2_cooperative", 228352, 5),
        ("prefetch_b_320x112_c1x1_cooperative_swap", 230400, 4),
        ("prefetch_b_64x8_c1x1_pingpong", 230400, 24),
        ("prefetch_b_64x40_c1x1_pingpong", 230400, 16),
        ("prefetch_b_128x8_c1x4_cooperative", 229376, 13),
        ("prefetch_b_192x112_c1x1_cooperative", 226304, 5),
        ("prefetch_b_192x200_c1x1_cooperative3", 226304, 4),
    ],
)
def test_resources_with_a_bias_are_those_of_the_compiled_kernels(name, smem_bytes, stages):
    # Source: as above; quack leaves a kilobyte for the alignment of what follows the bias.
    assert resources(f"sm90_{name}", "h200", Operation.BF16_KK_BIAS)[:2] == (smem_bytes, stages)


@pytest.mark.parametrize(
    ("change", "why", "message"),
    [
        (
            {"tile_n": 216},
            Reason.TILE,
            "pingpong takes tile_n in steps of 8 up to 208 at tile_m 128, got 216",
        ),
        (
            {"tile_m": 192, "tile_n": 136, "schedule": "cooperative"},
            Reason.TILE,
            "cooperative 192x136: tile_n must be a multiple of 16",
        ),
        (
            {"tile_m": 192, "tile_n": 8, "schedule": "cooperative"},
            Reason.TILE,
            "cooperative 192x8: tile_n is at least 16 at tile_m 192",
        ),
        (
            {"tile_m": 320, "tile_n": 16, "schedule": "cooperative"},
            Reason.TILE,
            "cooperative 320x16: tile_n is at least 32 at tile_m 320",
        ),
        (
            {"tile_m": 192, "tile_n": 208, "schedule": "cooperative3"},
            Reason.REGISTERS,
            "192x208 needs 104 accumulator registers a thread; 100 fit",
        ),
        (
            {"schedule": "cooperative3"},
            Reason.TILE,
            "cooperative3 takes tile_m 192 and tile_n in steps of 8 above 128, in our own kernels, got 128x168",
        ),
        (
            {"split_k": 2, "split_k_mode": "serial"},
            Reason.COMBINATION,
            "the epilogue of a 128x168 tile stores some columns twice, serial split-K sums; take no split",
        ),
        (
            {"schedule": "other"},
            Reason.TILE,
            "a schedule is one of pingpong, cooperative, cooperative3, got 'other'",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(change, why, message):
    assert reason(changed(TILE, **change), "h200") == (why, message)


def test_quacks_own_kernel_keeps_its_steps():
    assert {schedule for schedule, _, _ in shapes(16)} == {"pingpong", "cooperative"}
    assert {tile_n % 16 for _, _, tile_n in shapes(16)} == {0}
    wrong = replace(TILE, family="sm90_quack")
    message = "pingpong takes tile_n in steps of 16 up to 208 at tile_m 128, got 168"
    assert reason(wrong, "h200") == (Reason.TILE, message)


@pytest.mark.slow
def test_every_ragged_tile_is_legal_without_a_split_only():
    device = load_target("h200")
    for candidate in families()["sm90_prefetch_b"].candidates(BF16, device):
        if has_ragged_tile(candidate) and isinstance(check(candidate, BF16, device), Accepted):
            assert candidate.gemm.split_k == 1, candidate.name
