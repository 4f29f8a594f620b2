from dataclasses import replace

import pytest

from aot.core.element import ElementType
from aot.core.errors import TargetError
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.space.cost import estimate
from aot.space.enumeration import legal
from research.studies.hand_rule import CLOSE, MIDDLE, ROWS, SMALL, WIDE, Tile, compare, compare_weights, matches, rule
from research.studies.prior import times_us
from tests.unit.accepted import named
from tests.unit.twins import problem_of

THOR = load_target("thor")
FP16 = Operation.of(ElementType.FLOAT16)


@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [
        (1, 4096, SMALL),
        (80, 4096, SMALL),
        (81, 4096, MIDDLE),
        (255, 4096, MIDDLE),
        (256, 2047, MIDDLE),
        (256, 2048, WIDE),
        (511, 1024, MIDDLE),
        (512, 1024, WIDE),
        (8192, 64, WIDE),
    ],
)
def test_the_rule_on_20_sms(m, n, tile):
    assert rule(m, n, 20) == tile


def test_the_rule_goes_by_the_number_of_sms():
    assert [rule(m, 4096, 6) for m in (64, 65)] == [SMALL, MIDDLE]
    assert [rule(m, 4096, 32) for m in (128, 129, 256)] == [SMALL, MIDDLE, WIDE]
    assert [rule(m, 4096, 33) for m in (132, 133, 4096)] == [SMALL, MIDDLE, MIDDLE]


def test_the_tiles_are_named_as_candidates_are():
    assert [tile.name for tile in (SMALL, MIDDLE, WIDE)] == ["64x128_c1x2", "128x128_c1x1", "256x256_c2x1_2cta"]


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        ("sm100_persistent_64x128_c1x2_static", SMALL),
        ("sm100_persistent_64x128_c1x2_clc_direct", SMALL),
        ("sm100_quack_64x128_c1x2_clc", SMALL),
        ("sm100_persistent_128x128_c1x1_static", MIDDLE),
        ("sm100_quack_256x256_c2x1_static_2cta", WIDE),
        ("sm100_persistent_64x128_c1x2_static_swap", None),
        ("sm100_quack_64x128_c1x2_static_serial2", None),
        ("sm100_persistent_64x128_c1x1_static", None),
        ("sm100_persistent_64x128_c2x1_static", None),
        ("sm100_persistent_128x128_c2x1_static", None),
        ("sm100_persistent_256x128_c2x1_static_2cta", None),
    ],
)
def test_what_stands_for_the_rules_tile(name, tile):
    candidate = named(name)
    assert [x for x in (SMALL, MIDDLE, WIDE) if matches(candidate, x)] == ([tile] if tile else [])


def test_two_ctas_are_part_of_the_match():
    pair = named("sm100_persistent_128x128_c2x1_static_2cta")
    tile = Tile(128, 128, 2, 1, use_2cta=True)
    assert matches(pair, tile)
    assert not matches(pair, replace(tile, use_2cta=False))


@pytest.mark.slow
def test_a_comparison_is_of_the_models_own_times():
    problems = [problem_of(m, 4096, 4096, FP16) for m in (192, 4096)]
    candidates = legal(FP16, THOR)
    first, second = compare(candidates, problems, THOR)
    times = times_us(candidates, problems, THOR)[0]
    of_rule = [j for j, candidate in enumerate(candidates) if matches(candidate, MIDDLE)]
    assert first.tile == MIDDLE
    assert first.model_us == times.min()
    assert first.choice == candidates[times.argmin()]
    assert first.rule_us == min(times[j] for j in of_rule)
    assert first.rank == 1 + sum(time < first.rule_us for time in times)
    assert first.loss == first.rule_us / first.model_us > 1
    assert not first.agrees
    assert first.num_candidates == sum(time < float("inf") for time in times) < len(candidates)
    assert first.num_close == sum(time <= CLOSE * times.min() for time in times)
    assert (second.tile, second.rank, second.loss, second.agrees) == (WIDE, 1, 1.0, True)


def test_a_tile_that_is_not_in_the_space_has_no_time():
    others = [named("sm100_persistent_64x128_c1x1_static")]
    problem = problem_of(16, 4096, 4096, FP16)
    (found,) = compare(others, [problem], THOR)
    assert (found.rule_us, found.rank, found.loss, found.agrees) == (None, None, None, False)
    assert found.model_us == estimate(others, [problem], THOR).total_us.item()


def test_only_a_candidate_that_takes_the_problem_stands_for_the_rule():
    direct, other = (named(f"sm100_persistent_{x}") for x in ("64x128_c1x2_static_direct", "128x64_c1x1_clc"))
    (whole, part) = compare([direct, other], [problem_of(m, 4096, 4096, FP16) for m in (64, 63)], THOR)
    assert whole.rule_us is not None
    assert part.rule_us is None
    assert (whole.num_candidates, part.num_candidates) == (2, 1)


@pytest.mark.slow
def test_weights_are_compared_row_by_row():
    found = compare_weights([(1024, 1024), (2048, 1024)], THOR)
    assert [(x.problem.m, x.problem.n) for x in found] == [(m, n) for m in ROWS for n in (1024, 2048)]
    assert {x.problem.operation for x in found} == {FP16}
    assert [x.tile for x in found if x.problem.m == 256] == [MIDDLE, WIDE]


def test_the_rule_is_not_for_an_h200():
    with pytest.raises(TargetError) as caught:
        compare([], [], load_target("h200"))
    assert str(caught.value) == "the hand rule is for sm_110a, and h200 is sm_90a; give --target thor"
