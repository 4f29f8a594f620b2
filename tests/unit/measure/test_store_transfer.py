"""Measurements that are carried from one store to another: whole problems, once, with what was found of kernels."""

import sqlite3
from contextlib import closing

import pytest

from aot.core.errors import StoreError
from aot.core.measurement import LibraryTime, Measurement
from aot.measure.store import copy_store, open_store
from aot.measure.store_transfer import carry, runs_of, void_runs
from tests.unit.twins import CONDITIONS, kernel_of, problem_of

KERNELS = (kernel_of(64), kernel_of(128))
PROBLEMS = tuple(problem_of(m, 64, 64) for m in (1, 2, 3))
SEEDS = (2**62 - 1, 7)


def measure(path, seed, problems, *, us=10.0, finished=True):
    """Let a run measure problems with both kernels, and find the second wanting."""
    with open_store(path) as store:
        run = store.add_run("h200", seed, CONDITIONS)
        numbers = [store.kernel_id(kernel) for kernel in KERNELS]
        store.add_verified(run, numbers[0], 1e-3)
        store.quarantine(run, numbers[1], "hung")
        store.add_separator_time(run, 2.0)
        for problem in problems:
            store.add_reference_time(run, numbers[0], PROBLEMS[0], us + len(problems))
            for kernel, number in zip(KERNELS, numbers, strict=True):
                store.add_measurement(run, number, Measurement(kernel.key, problem, us, us - 1, us + 1, 7, 1e-3))
            store.add_library_time(run, LibraryTime("cublas", problem, us, us, us, 7))
            store.add_search(run, problem, "model", 2, 0, "all were measured", 0.1)
            if finished:
                store.finish(run, problem)
        store.add_clocks(run, 1980, None)


def content(path):
    tables = ("runs", "measurements", "verified", "quarantine", "finished", "searches", "library_times")
    with closing(sqlite3.connect(path)) as db:
        return {x: db.execute(f"SELECT * FROM {x}").fetchall() for x in (*tables, "clocks", "separator_times")}


def times(path):
    with open_store(path) as store:
        return {(x.kernel.name, x.problem.m): x.median_us for _, x in store.measurements()}


def test_a_problem_is_taken_once_whoever_brings_it(tmp_path):
    home, first, second = (tmp_path / name for name in ("home", "first", "second"))
    measure(first, SEEDS[0], PROBLEMS[:2])
    measure(second, SEEDS[1], PROBLEMS[1:], us=20.0)
    assert [carry(path, home) for path in (first, second)] == [2, 1]
    expected = {(kernel.name, m): us for kernel in KERNELS for m, us in ((1, 10.0), (2, 10.0), (3, 20.0))}
    assert times(home) == expected
    before = content(home)
    assert [carry(path, home) for path in (first, second)] == [0, 0]
    assert content(home) == before
    assert [len(before[x]) for x in ("runs", "verified", "quarantine", "finished", "clocks")] == [2, 2, 2, 3, 2]
    with open_store(home) as store:
        assert store.library_times()[PROBLEMS[2]].median_us == 20.0
        assert store.searches(PROBLEMS[1])[0].strategy == "model"
        assert set(store.quarantined().values()) == {"hung"}
        assert store.conditions()[0].sm_clock_mhz == 1980


def test_what_is_not_finished_or_not_asked_for_stays_behind(tmp_path):
    home, there = tmp_path / "home", tmp_path / "there"
    measure(there, SEEDS[0], PROBLEMS[:1], finished=False)
    assert carry(there, home) == 0
    measure(there, SEEDS[1], PROBLEMS[1:])
    assert carry(there, home, [PROBLEMS[2]]) == 1
    assert {m for _, m in times(home)} == {3}


def test_a_store_that_is_being_written_gives_some_of_its_problems(tmp_path):
    there, whole, copy = (tmp_path / name for name in ("there", "whole", "copy"))
    with open_store(there):  # another connection, so that its log is there
        measure(there, SEEDS[0], PROBLEMS)
        copy_store(there, whole)
    assert carry(whole, copy, PROBLEMS[:1]) == 1
    assert {m for _, m in times(copy)} == {1}
    found = runs_of(copy)
    assert (found.targets, found.seeds) == (("h200",), SEEDS[:1])
    assert [x.key for x in found.conditions] == [CONDITIONS.key]
    assert found.reference_us == (13.0,) * 3


def test_what_a_run_measured_can_be_voided_and_measured_again(tmp_path):
    home, slow, good = (tmp_path / name for name in ("home", "slow", "good"))
    measure(slow, SEEDS[0], PROBLEMS[:2], us=15.0)
    measure(good, SEEDS[1], PROBLEMS)
    assert carry(slow, home) == 2
    assert void_runs(home, SEEDS[:1], "its device is slow") == 4
    assert void_runs(home, SEEDS[:1], "its device is slow") == 0
    assert times(home) == {}
    assert carry(good, home) == 3
    assert set(times(home).values()) == {10.0}


def test_a_damaged_store_is_refused_and_nothing_is_taken(tmp_path):
    home, there = tmp_path / "home", tmp_path / "there"
    measure(there, SEEDS[0], PROBLEMS)
    with closing(sqlite3.connect(there)) as db, db:
        db.execute("UPDATE measurements SET run = 99")
    with pytest.raises(StoreError, match="names a row of runs that is not there"):
        carry(there, home)
    assert not home.exists()
