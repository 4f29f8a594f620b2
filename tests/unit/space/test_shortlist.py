import pytest

from aot.core.target import load_target
from aot.space.cost import estimate
from aot.space.enumeration import Patterns, legal
from aot.space.shortlist import shortlist, within
from tests.unit.accepted import named
from tests.unit.twins import BF16, problem_of

H200 = load_target("h200")
SMALL, BIG = problem_of(1, 4096, 4096), problem_of(8192, 8192, 8192)
PATTERNS = ("*_64x16_*_pingpong", "*_64x16_*_pingpong_swap", "*_128x192_*_cooperative")


@pytest.fixture(scope="module")
def candidates():
    return legal(BF16, H200, Patterns(tuple(f"sm90_quack{pattern}" for pattern in PATTERNS)))


def order(candidates, problem):
    times = dict(zip(candidates, estimate(candidates, [problem], H200).total_us[0], strict=True))
    return sorted(candidates, key=lambda candidate: (times[candidate], candidate.name)), times


@pytest.mark.slow
def test_the_best_of_each_problem_comes_first_with_its_kin(candidates):
    assert len(candidates) == 15
    wide, narrow = 10, 5
    chosen = shortlist(candidates, [SMALL, BIG], H200, 24)
    assert {x.gemm.tile_n for x in chosen[:wide]} == {16}
    assert {x.gemm.tile_n for x in chosen[wide:]} == {192}
    assert len(chosen[wide:]) == narrow
    assert order(candidates, SMALL)[0][0] in chosen[:wide]


@pytest.mark.parametrize("limit", [1, 5, 15, 100])
@pytest.mark.slow
def test_no_more_than_the_limit_and_each_once(candidates, limit):
    chosen = shortlist(candidates, [SMALL, BIG], H200, limit)
    assert len(chosen) == len(set(chosen)) == min(limit, 15)
    assert chosen == shortlist(candidates, [SMALL, BIG], H200, 24)[:limit]
    assert set(chosen) == set(shortlist(candidates[::-1], [SMALL, BIG], H200, limit)) or limit < 15


def test_within_keeps_what_is_near_the_best_in_the_given_order(candidates):
    _, times = order(candidates, BIG)
    assert within(candidates, BIG, H200, 1.0) == [x for x in candidates if times[x] == min(times.values())]
    assert within(candidates, BIG, H200, 1e9) == candidates
    assert within(candidates, BIG, H200, 2.0) == [x for x in candidates if times[x] <= 2 * min(times.values())]
    assert named("sm90_quack_64x16_c1x1_pingpong") not in within(candidates, BIG, H200, 2.0)
