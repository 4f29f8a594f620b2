"""Where kernels were timed, and that nothing else is given to a kernel whose CTAs end with their tile."""

import numpy as np
import pytest

from aot.core.target import load_target
from aot.families import families
from aot.select.ranges import FEW_WAVES, ONE_TILE, UNTRIED, KernelRanges, TimedExtent, num_waves
from aot.select.timed import Timed
from tests.unit.accepted import named
from tests.unit.twins import BF16, problem_of

H200 = load_target("h200")
ONE = named("sm90_one_tile_128x128_c1x1_direct", "h200")
OTHER = named("sm90_one_tile_128x64_c1x1_direct", "h200")
PERSISTENT = named("sm90_quack_128x128_c1x1_pingpong", "h200")
SWAPPED = named("sm90_quack_64x16_c1x1_pingpong_swap", "h200")


def ranges_of(*rows):
    """Return the ranges of kernels that were timed on (m, n, k)."""
    times = {}
    for candidate, *sizes in rows:
        for size in sizes:
            times.setdefault(problem_of(*size), {})[candidate] = 1.0
    return KernelRanges.of([{BF16: times}], H200)


def test_families_of_one_tile_exist():
    assert set(families()) >= ONE_TILE


def test_waves_are_tiles_over_sms_with_what_a_cluster_rounds_up():
    pair = named("sm90_partial_tile_128x128_c2x1_pingpong", "h200")
    problems = [problem_of(128 * 132, 128, 64), problem_of(129, 128, 64), problem_of(300, 100, 64)]
    assert num_waves(ONE, problems, H200).tolist() == [1.0, 2 / 132, 3 / 132]
    assert num_waves(pair, problems, H200).tolist() == [1.0, 2 / 132, 4 / 132]
    assert num_waves(SWAPPED, [problem_of(16, 640, 64)], H200).tolist() == [10 / 132]
    split = named("sm90_quack_64x64_c1x1_pingpong_serial4", "h200")
    assert num_waves(split, [problem_of(64, 64, 4096)], H200).tolist() == [4 / 132]


def test_an_extent_keeps_what_no_other_problem_exceeds():
    extent = TimedExtent.of(np.array([1.0, 4.0, 2.0, 8.0, 4.0]), np.array([4096.0, 1024.0, 512.0, 256.0, 64.0]))
    assert extent.waves.tolist() == [1.0, 4.0, 8.0]
    assert extent.k.tolist() == [4096.0, 1024.0, 256.0]
    asked = [(1, 4096), (0.5, 64), (1.1, 1024), (1.1, 1025), (4, 1024), (4.1, 512), (8, 256), (8.1, 8), (1, 4097)]
    waves, k = np.array(asked, dtype=float).T
    assert extent.has(waves, k).tolist() == [True, True, True, False, True, False, True, False, False]


def test_a_kernel_of_one_tile_gets_no_more_than_it_was_timed_at():
    """The product that was slow on an H200: a kernel was timed at as many waves, and at a k of about half."""
    tall = named("sm90_one_tile_128x248_c1x1_direct", "h200")
    ranges = ranges_of((tall, (5948, 13504, 16192), (256, 248, 28672)))
    asked = [
        problem_of(12000, 7168, 28672),
        problem_of(5948, 13504, 16192),
        problem_of(2000, 7168, 16000),
        problem_of(12000, 13504, 64),
    ]
    assert ranges.is_inside(tall, asked).tolist() == [False, True, True, False]


def test_in_few_waves_such_a_kernel_may_have_a_longer_k():
    side = 128 * 11
    assert num_waves(ONE, [problem_of(side, 128 * 24, 64)], H200).tolist() == [FEW_WAVES]
    ranges = ranges_of((ONE, (side, 128 * 36, 512)), (OTHER, (128, 64, 512)))
    inside = ranges.is_inside(ONE, [problem_of(side, 128 * 24, 8192), problem_of(side, 128 * 25, 8192)])
    assert inside.tolist() == [True, False]
    # One that was timed at fewer waves than that gets no more of them.
    one_cta = [problem_of(128, 64, 8192), problem_of(256, 64, 64)]
    assert ranges.is_inside(OTHER, one_cta).tolist() == [True, False]


def test_where_tiles_lie_in_one_row_k_may_be_longer_but_waves_no_more():
    ranges = ranges_of((ONE, (128, 128 * 660, 512)))
    asked = [
        problem_of(128, 128 * 660, 32768),
        problem_of(128 * 660, 100, 32768),
        problem_of(129, 128 * 300, 32768),
        problem_of(128, 128 * 661, 64),
    ]
    assert ranges.is_inside(ONE, asked).tolist() == [True, True, False, False]


def test_a_kernel_of_another_family_is_trusted_wherever_it_was_timed_at_all():
    ranges = ranges_of((PERSISTENT, (128, 128, 64)))
    asked = [problem_of(128, 128, 64), problem_of(16384, 16384, 16384)]
    assert ranges.is_inside(PERSISTENT, asked).tolist() == [True, True]
    assert ranges.is_inside(SWAPPED, asked).tolist() == [False, False]


def test_what_was_never_timed_is_outside_and_one_tile_comes_last():
    ranges = ranges_of((PERSISTENT, (128, 128, 64)))
    problems = [problem_of(128, 128, 64), problem_of(16384, 16384, 16384)]
    found = ranges.penalty([PERSISTENT, SWAPPED, ONE], problems)
    assert found.tolist() == [[0.0, UNTRIED, 2 * UNTRIED]] * 2


def test_ranges_of_two_records_are_joined():
    first, second = ({BF16: {problem_of(*x): {ONE: 1.0}}} for x in ((256, 128 * 330, 64), (256, 128 * 132, 512)))
    ranges = KernelRanges.of([first, second], H200)
    asked = [problem_of(256, 128 * 330, 64), problem_of(256, 128 * 150, 512), problem_of(256, 128 * 132, 512)]
    assert ranges.is_inside(ONE, asked).tolist() == [True, False, True]


@pytest.mark.parametrize("ranges", [None, ranges_of((ONE, (128, 128, 64)))])
def test_times_ask_the_ranges_that_they_have(ranges):
    timed = Timed({}, {}, "measured", None, ranges=ranges)
    found = timed.untried([ONE], [problem_of(128, 128, 64), problem_of(16384, 16384, 16384)])
    assert found.tolist() == [[0.0], [0.0 if ranges is None else 2 * UNTRIED]]
