from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.core.alignment import is_aligned
from aot.select.times.sample import SIZES, sampled_problems
from tests.unit.twins import ALL_LAYOUTS, BF16, problem_of


def test_the_first_by_hand():
    # Halton's first points in the bases 2, 3 and 5: 1/2 1/3 1/5, 1/4 2/3 2/5, 3/4 1/9 3/5 of the octaves.
    assert SIZES == ((1, 8192, 1), (512, 32768, 64), (512, 16384, 64))
    assert sampled_problems(BF16, 0) == []
    assert sampled_problems(BF16, 3) == sorted(
        [
            problem_of(91, 2048, 1024),  # 2**6.5; 512 * 64**(1/3); 512 * 32**(1/5)
            problem_of(10, 8192, 2048),  # 2**3.25
            problem_of(861, 832, 4096),  # 2**9.75; 512 * 64**(1/9) = 812.7
        ]
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 300), st.sampled_from(ALL_LAYOUTS))
def test_they_are_distinct_aligned_and_within_sizes(count, operation):
    found = sampled_problems(operation, count)
    assert found == sampled_problems(operation, count)
    assert len(set(found)) == len(found) <= count
    assert found == sorted(found)
    for problem in found:
        assert problem.operation == operation
        assert problem.n % 8 == 0
        assert problem.k % 8 == 0
        for value, (low, high, step) in zip((problem.m, problem.n, problem.k), SIZES, strict=True):
            assert low <= value <= high
            assert value % step == 0
    assert {(x.m, x.n, x.k) for x in sampled_problems(BF16, count)} == {(x.m, x.n, x.k) for x in found}


def test_linears_problems_are_aligned_whatever_m():
    assert all(is_aligned(x) for x in sampled_problems(BF16, 600))


def test_more_problems_keep_the_fewer_ones():
    few, many = (set(sampled_problems(BF16, count)) for count in (100, 600))
    assert few < many
    assert len(many) == 600


@pytest.mark.parametrize(("axis", "name"), [(0, "m"), (1, "n"), (2, "k")])
def test_they_spread_evenly_over_the_octaves(axis, name):
    low, high, step = SIZES[axis]
    octaves = (high // low).bit_length() - 1
    first = max(8 * step // low, 1).bit_length() - 1  # below it rounding moves many over an octave's edge
    values = [getattr(x, name) / low for x in sampled_problems(BF16, 600)]
    counts = [sum(2**a <= value < 2**b for value in values) for a, b in pairwise(range(first, octaves))]
    assert len(counts) >= 4
    assert counts == pytest.approx([600 / octaves] * len(counts), rel=0.15)
