import math
from dataclasses import replace

import numpy as np
import pytest

from aot.core.errors import StoreError
from aot.core.measurement import LibraryTime, Measurement, Outcome, Record, Status
from aot.select.times.levels import MIN_PAIRS, SHARED_BY_KERNELS, SHARED_WITH_LIBRARY, level, levels_apart
from tests.unit.twins import CONDITIONS, kernel_of, problem_of

A, B = kernel_of(64, family="sm90_partial_tile"), kernel_of(128, family="sm90_partial_tile")
PROBLEMS = [problem_of(m, 64, 64) for m in range(1, 41)]


def measured(kernel, problem, us):
    return Measurement(kernel.key, problem, us, 0.9 * us, 1.2 * us, 7, 1e-3)


def run(kernel, problems, factor, noise=()):
    """Make a run on a machine that takes `factor` times as long; `noise` disturbs its first times."""
    factors = [*noise, *[1.0] * (len(problems) - len(noise))]
    items = (measured(kernel, x, 10.0 * x.m * factor * y) for x, y in zip(problems, factors, strict=True))
    return Record("h200", (CONDITIONS,), tuple(items))


def times(record):
    return {(x.problem.m, x.kernel): x.median_us for x in record.measurements}


def test_a_slower_machines_times_come_to_the_level_of_the_first():
    slow = run(A, PROBLEMS, 1.25)
    slow = replace(slow, measurements=slow.measurements + run(B, PROBLEMS, 2.5).measurements)
    found, levels = level([("first", run(A, PROBLEMS[:30], 1.0)), ("slow", slow)])
    assert times(found) == pytest.approx(
        {(x.m, A.key): 10.0 * x.m for x in PROBLEMS} | {(x.m, B.key): 20.0 * x.m for x in PROBLEMS}
    )
    assert [(x.name, x.num_pairs) for x in levels] == [("first", 0), ("slow", 30)]
    assert [x.factor for x in levels] == pytest.approx([1.0, 0.8])
    item = next(x for x in found.measurements if x.kernel == B.key and x.problem.m == 7)
    assert (item.low_us, item.high_us, item.num_rounds) == (pytest.approx(126.0), pytest.approx(168.0), 7)


def test_a_minority_that_was_disturbed_does_not_move_the_level():
    noisy = run(A, PROBLEMS, 1.25, noise=[3.0] * 8 + [0.1] * 8)
    _, (_, noise) = level([("first", run(A, PROBLEMS, 1.0)), ("noisy", noisy)])
    assert noise.factor == pytest.approx(0.8)
    assert noise.low <= noise.factor <= noise.high


def test_what_several_have_timed_gets_the_geometric_mean():
    rng = np.random.default_rng(0)
    noise = np.exp(rng.normal(0.0, 0.02, len(PROBLEMS)))
    first, other = run(A, PROBLEMS, 1.0), run(A, PROBLEMS, 2.0, noise=noise.tolist())
    found, (_, factor) = level([("first", first), ("other", other)])
    left = {x: (2.0 * y * factor.factor) ** (1 - SHARED_BY_KERNELS) for x, y in zip(PROBLEMS, noise, strict=True)}
    expected = {(x.m, A.key): 10.0 * x.m * math.sqrt(y) for x, y in left.items()}
    assert times(found) == pytest.approx(expected)
    assert {x.num_rounds for x in found.measurements} == {14}


def test_a_run_that_shares_nothing_with_the_first_is_put_beside_one_that_does():
    runs = [("first", run(A, PROBLEMS[:20], 1.0)), ("far", run(A, PROBLEMS[20:], 4.0)), ("near", run(A, PROBLEMS, 2.0))]
    found, levels = level(runs)
    assert times(found) == pytest.approx({(x.m, A.key): 10.0 * x.m for x in PROBLEMS})
    assert [(x.name, x.num_pairs) for x in levels] == [("first", 0), ("near", 20), ("far", 20)]


def test_a_library_is_a_common_pair_and_is_levelled():
    def torch(factor):
        found = (LibraryTime("torch 2", x, *(factor * us * x.m for us in (5.0, 4.0, 6.0)), 7) for x in PROBLEMS)
        return tuple(found)

    first = replace(run(A, PROBLEMS[:20], 1.0), library_times=torch(1.0))
    second = replace(run(B, PROBLEMS, 4.0), library_times=torch(2.0))
    found, levels = level([("first", first), ("second", second)])
    assert (levels[1].factor, levels[1].num_pairs) == (pytest.approx(0.5), len(PROBLEMS))
    assert times(found)[40, B.key] == pytest.approx(800.0)
    assert [x.median_us for x in found.library_times] == pytest.approx([5.0 * x.m for x in PROBLEMS])


def test_the_latest_word_counts_of_what_failed():
    failed = Measurement(A.key, PROBLEMS[0], 0.0, 0.0, 0.0, 0, 0.0, Status(Outcome.FAILED, "wrong result"))
    bad = run(A, PROBLEMS, 1.0)
    bad = replace(bad, measurements=(failed, *bad.measurements[1:]))
    for records, is_ok in (
        ([("good", run(A, PROBLEMS, 1.0)), ("bad", bad)], False),
        (
            [("bad", bad), ("good", run(A, PROBLEMS, 1.0))],
            True,
        ),
    ):
        found, _ = level(records)
        assert next(x for x in found.measurements if x.problem == PROBLEMS[0]).ok == is_ok


def test_too_few_common_pairs_are_refused():
    few = run(A, PROBLEMS[: MIN_PAIRS - 1], 1.0)
    with pytest.raises(StoreError) as caught:
        level([("all", run(A, PROBLEMS, 1.0)), ("few.sqlite", few)])
    assert str(caught.value) == (
        "few.sqlite has 19 pairs of problem and kernel in common with the others, and at least 20 are needed to put it "
        "to their level; measure some of the same, or import it without --level"
    )


def test_other_conditions_are_refused():
    other = replace(run(A, PROBLEMS, 1.0), conditions=(replace(CONDITIONS, protocol="p2"),))
    with pytest.raises(StoreError, match="records to merge need one target"):
        level([("a", run(A, PROBLEMS, 1.0)), ("b", other)])


def test_an_intense_problem_follows_the_library_in_part_where_no_kernel_tells_more():
    intense = [problem_of(4096, n, 4096) for n in range(1024, 1024 + 8 * MIN_PAIRS, 8)]

    def torch(factors):
        return tuple(LibraryTime("torch 2", x, 50 * y, 50 * y, 50 * y, 7) for x, y in factors.items())

    hot, cool = dict.fromkeys((*PROBLEMS, *intense), 1.0), dict.fromkeys((*PROBLEMS, *intense), 0.5)
    cool |= dict.fromkeys(intense[:5], 0.4)
    first = replace(run(A, PROBLEMS, 1.0), library_times=torch(hot))
    second = replace(
        run(B, PROBLEMS, 1.0),
        measurements=tuple(measured(B, x, 10.0 * y) for x, y in cool.items()),
        library_times=torch(cool),
    )
    found, levels = level([("first", first), ("second", second)])
    assert (levels[1].factor, levels[1].num_pairs) == (pytest.approx(2.0), len(PROBLEMS))
    assert levels[1].num_problems == len(intense)
    in_part = 10.0 * 0.8 * 1.25**SHARED_WITH_LIBRARY
    for x in found.measurements:
        if x.kernel == B.key:
            assert x.median_us == pytest.approx(in_part if x.problem in intense[:5] else 10.0)
    libraries = {x.problem: x.median_us for x in found.library_times}
    assert libraries == pytest.approx(
        {x: 50.0 * math.sqrt(0.8) if x in intense[:5] else 50.0 for x in (*PROBLEMS, *intense)}
    )


def test_a_problem_follows_the_kernels_that_both_have_timed_on_it():
    def torch():
        return tuple(LibraryTime("torch 2", x, 5.0, 5.0, 5.0, 7) for x in PROBLEMS)

    common = [*run(A, PROBLEMS, 0.7).measurements]  # a kernel that became faster, on one problem by less than elsewhere
    common[3] = measured(A, PROBLEMS[3], 0.77 * 10.0 * PROBLEMS[3].m)
    first = replace(run(A, PROBLEMS, 1.0), library_times=torch())
    second = Record("h200", (CONDITIONS,), (*common, *run(B, PROBLEMS, 1.0).measurements), library_times=torch())
    found, (_, told) = level([("first", first), ("second", second)])
    assert (told.factor, told.num_problems) == (pytest.approx(1.0), len(PROBLEMS))
    own = {m: us / (10.0 * m) for (m, kernel), us in times(found).items() if kernel == B.key}
    assert own == pytest.approx({x.m: 1.1**-SHARED_BY_KERNELS if x == PROBLEMS[3] else 1.0 for x in PROBLEMS})


def test_kernels_that_became_faster_do_not_move_the_level_where_a_library_was_timed():
    def torch(factor):
        return tuple(LibraryTime("torch 2", x, *[factor * 5.0 * x.m] * 3, 7) for x in PROBLEMS)

    first = replace(run(A, PROBLEMS, 1.0), library_times=torch(1.0))
    faster = replace(run(A, PROBLEMS, 0.8), library_times=torch(1.0))
    _, (_, found) = level([("first", first), ("faster", faster)])
    assert found.factor == pytest.approx(1.0)


def test_runs_are_told_apart_whose_times_differ_by_a_common_factor():
    first, same, slow = run(A, PROBLEMS, 1.0), run(A, PROBLEMS, 1.005), run(A, PROBLEMS, 1.25)
    few = run(A, PROBLEMS[: MIN_PAIRS - 1], 3.0)
    found = levels_apart([("first", first), ("same", same), ("few", few), ("slow", slow)])
    assert [x.name for x in found] == ["slow"]
    assert found[0].factor == pytest.approx(0.8, rel=0.01)
