from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Section
from aot.core.target import load_target
from aot.select.score.tiles import BiggerTile, bigger_tiles, tile_notes, verdict_on
from aot.select.selection import SELECTION_VERSION, Selection
from tests.unit.accepted import named
from tests.unit.twins import BF16, CONDITIONS, problem_of

H200, THOR = load_target("h200"), load_target("thor")
SMALL = named("sm90_quack_64x16_c1x1_pingpong_swap")
TALL = named("sm90_quack_128x16_c1x1_pingpong_swap")
WIDE = named("sm90_quack_64x32_c1x1_pingpong_swap")
BIG = named("sm90_quack_128x160_c2x1_pingpong")
FALLBACK = named("simt_64x64_c1x1_direct")


def keys(*candidates):
    return tuple(KernelKey(BF16, candidate) for candidate in candidates)


def tiles_of(candidate, target=H200):
    return [(x.tile, x.rejection) for x in bigger_tiles(KernelKey(BF16, candidate), target)]


def test_a_small_tile_may_grow_each_way():
    assert tiles_of(SMALL) == [("128x16", ""), ("64x32", ""), ("128x32", "")]
    assert [x.candidate for x in bigger_tiles(*keys(SMALL), H200)][:2] == [TALL, WIDE]


def test_where_twice_is_not_legal_the_next_step_is_shown_too():
    assert tiles_of(BIG) == [
        ("256x160", "pingpong takes tile_m 64, 128, 192, got 256"),
        ("128x176", ""),
        ("128x320", "pingpong takes tile_n in steps of 16 up to 208 at tile_m 128, got 320"),
        ("256x320", "pingpong takes tile_m 64, 128, 192, got 256"),
    ]


def test_what_does_not_fit_is_told_in_bytes():
    tall = named("sm100_persistent_128x128_c1x1_clc")
    assert ("128x256", "") in tiles_of(tall, THOR)
    staged = named("sm100_tgv_64x8_c1x1_st12_direct_swap")
    assert dict(tiles_of(staged, THOR))["64x16"] == (
        "sm100_tgv_64x16_c1x1_st12_direct_swap needs 246,784 bytes of shared memory with 12 stages of 20,480; sm_110a "
        "gives 232,448 a block; 11 stages fit"
    )


def test_the_fallback_has_no_bigger_tile():
    assert tiles_of(FALLBACK) == []


PROBLEM = problem_of(16, 4096, 4096)
ROW = Row(1, 1, 10.0, "measured", 2, 11.0)
TIMED = {BF16: {PROBLEM: {SMALL: 10.0, TALL: 10.5}}}


def test_a_verdict_prefers_the_measurement_of_the_same_bucket():
    def verdict(candidate, row, timed, rejection=""):
        return verdict_on(BiggerTile(candidate, rejection), *keys(SMALL), PROBLEM, row, timed, H200)

    assert verdict(TALL, ROW, TIMED) == "legal: 10.5 us measured (+5.0%)"
    assert verdict(TALL, ROW, TIMED, "why") == "not legal: why"
    for row, timed in ((None, TIMED), (ROW, {}), (Row(1, 1, 10.0, "predicted", 2, 11.0), TIMED)):
        assert verdict(TALL, row, timed).endswith("% by the cost model, not timed here")
    assert verdict(WIDE, ROW, TIMED).endswith("% by the cost model, not timed here")


def test_notes_sum_up_the_buckets_of_each_kernel():
    other = problem_of(32, 4096, 4096)
    rows = (ROW, Row(1, 1, 20.0, "measured", 2, 21.0), Row(2, 2, 30.0, "measured", 1, 31.0))
    grid = Grid((1,), (1,), (Column((1,), (2,)),))
    section = Section(BF16, (Ladder(4096, 4096, (16, 32, 64), rows),), grid, 0)
    kernels = keys(FALLBACK, SMALL, BIG, WIDE)
    table = DispatchTable((section,))
    selection = Selection(
        SELECTION_VERSION, "h200", "measured", "x", (CONDITIONS,), (), (), (), kernels=kernels, table=table
    )
    timed = {BF16: {PROBLEM: {TALL: 10.5}, other: {TALL: 24.0, WIDE: 19.0}}}
    notes = tile_notes(selection, H200, timed)
    assert sorted(notes) == sorted(key.name for key in kernels[1:])
    first = notes[kernels[1].name]
    assert first[:2] == (
        "128x16 legal: +5.0% to +20.0% measured in 2 of 2 tuned buckets that have this kernel",
        "64x32 legal: -5.0% measured in 1 of 2 tuned buckets that have this kernel",
    )
    assert first[2].startswith("128x32 legal: ")
    assert first[2].endswith("% predicted by the cost model in 2 of 2 tuned buckets that have this kernel")
    assert notes[kernels[2].name][0] == "256x160 not legal: pingpong takes tile_m 64, 128, 192, got 256"
    assert notes[kernels[3].name][0] == "128x32 legal: no tuned bucket has this kernel to compare it in"
