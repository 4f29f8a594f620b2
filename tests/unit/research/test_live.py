"""Searches that were run on a device, compared by the times of the first."""

import json
from dataclasses import asdict

import pytest

from aot.core.errors import StoreError
from aot.core.measurement import OK, Measurement, Outcome, Status
from aot.measure.store import open_store
from research.studies.live import LIVE_VERSION, LiveSearch, compare_live, write_live
from tests.unit.twins import CONDITIONS, kernel_of, problem_of

A, B, C = (kernel_of(tile) for tile in (64, 128, 192))
SMALL, LARGE = problem_of(1, 64, 64), problem_of(512, 64, 64)


def results(path, rows, *, searches=(), unfinished=()):
    """Write a results file of (problem, kernel, us), 0 for a failure, and of searches (problem, name, skipped, s)."""
    with open_store(path) as store:
        run = store.add_run("h200", 1, CONDITIONS)
        for problem, kernel, us in rows:
            status = OK if us else Status(Outcome.FAILED, "measuring")
            item = Measurement(kernel.key, problem, us, us, us, 1, 1e-3, status)
            store.add_measurement(run, store.kernel_id(kernel), item)
        for problem, strategy, skipped, seconds in searches:
            store.add_search(run, problem, strategy, 0, skipped, "why", seconds)
        for problem in {problem for problem, _, _ in rows} - set(unfinished):
            store.finish(run, problem)
    return path


def whole(path):
    """Write an exhaustive run: A is the best on the small problem, B on the large one."""
    rows = [(SMALL, A, 10.0), (SMALL, B, 12.0), (SMALL, C, 20.0), (LARGE, A, 300.0), (LARGE, B, 200.0), (LARGE, C, 0.0)]
    return results(path, rows, searches=[(SMALL, "exhaustive", 0, 6.0), (LARGE, "exhaustive", 0, 14.0)])


def test_runs_are_judged_by_the_references_times(tmp_path):
    # By its own times it took B for the best of the small problem, where the reference has 12 us over 10.
    rows = [(SMALL, A, 11.0), (SMALL, B, 9.0), (LARGE, B, 250.0)]
    searches = [(SMALL, "model", 1, 2.0), (LARGE, "model", 2, 3.0)]
    paths = [whole(tmp_path / "all.sqlite"), results(tmp_path / "model.sqlite", rows, searches=searches)]
    reference, model = compare_live(paths)
    assert reference == LiveSearch("all.sqlite", "exhaustive", 2, 5, 0, 1.0, 20.0, 1.0, 0.0, 0.0, LARGE.name)
    assert model == LiveSearch("model.sqlite", "model", 2, 3, 3, 0.6, 5.0, 0.25, 0.1, 0.2, SMALL.name)


def test_only_what_both_finished_counts(tmp_path):
    rows = [(SMALL, A, 10.0), (LARGE, A, 300.0), (problem_of(7, 64, 64), A, 1.0)]
    other = results(tmp_path / "other", rows, unfinished=[LARGE])
    _, found = compare_live([whole(tmp_path / "all"), other])
    assert (found.num_problems, found.measurements, found.fraction) == (1, 1, 0.3333)
    assert (found.worst_regret, found.worst_problem) == (0.0, SMALL.name)


def test_a_kernel_that_failed_when_measured_again_has_no_time(tmp_path):
    path = results(tmp_path / "r", [(SMALL, B, 1.0), (SMALL, B, 0.0), (SMALL, C, 5.0)])
    _, found = compare_live([whole(tmp_path / "all"), path])
    assert (found.measurements, found.worst_regret) == (1, 1.0)


def test_a_kernel_that_the_reference_lacks_is_passed_over(tmp_path):
    rows = [(SMALL, kernel_of(256), 1.0), (SMALL, C, 5.0), (LARGE, C, 5.0)]
    _, found = compare_live([whole(tmp_path / "all"), results(tmp_path / "r", rows)])
    assert (found.num_problems, found.worst_regret) == (1, 1.0)


def test_runs_of_before_searches_were_noted_have_no_time_to_compare(tmp_path):
    path = results(tmp_path / "r", [(SMALL, A, 10.0)])
    (found,) = compare_live([path])
    assert (found.strategy, found.seconds, found.time_fraction, found.skipped) == ("unknown", 0.0, 0.0, 0)


def test_runs_that_share_nothing_are_an_error(tmp_path):
    other = results(tmp_path / "r", [(LARGE, C, 5.0)])
    with pytest.raises(StoreError) as caught:
        compare_live([whole(tmp_path / "all"), other])
    assert str(caught.value) == f"{other} and the reference have no finished problem in common; run both to the end"


def test_a_comparison_is_written_whole(tmp_path):
    rows = compare_live([whole(tmp_path / "all")])
    write_live(tmp_path / "x" / "live.json", rows)
    content = json.loads((tmp_path / "x" / "live.json").read_text())
    assert content == {"version": LIVE_VERSION, "searches": [asdict(rows[0])]}
