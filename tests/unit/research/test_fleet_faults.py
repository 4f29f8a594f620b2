"""What the bench of a fleet's faults makes of two runs, by times and words of the test's own."""

from __future__ import annotations

import signal
import socket

import pytest

from research.bench import fleet_faults
from research.bench.fleet import agreement


def place(problem, kernel):
    return ("gemm", problem, kernel, 0)


FIRST = {place("p", "a"): 10.0, place("p", "b"): 11.0, place("q", "a"): 20.0, place("q", "b"): 30.0}


def test_workers_are_lost_at_fractions_of_the_undisturbed_run():
    found = fleet_faults.losses_of(1, 2, 100.0)
    assert [(x.worker, x.signal, x.at_s) for x in found] == [
        (0, signal.SIGKILL, 25.0),
        (1, signal.SIGSTOP, 40.0),
        (2, signal.SIGSTOP, 40.0),
    ]


def test_a_killed_worker_of_which_nothing_was_said_is_listed():
    losses, host = fleet_faults.losses_of(1, 1, 10.0), socket.gethostname()
    said = [f"worker {host}-gpu-5 is gone; what it had goes to another", f"worker {host}-gpu-4 is slow"]
    assert fleet_faults.untold(losses, ("4", "5"), said) == [f"worker {host}-gpu-4 "]
    said += [f"worker {host}-gpu-4 is gone; what it had goes to another"]
    assert fleet_faults.untold(losses, ("4", "5"), said) == []  # the other is stopped, and others begin what it has


def test_choices_are_compared_by_the_first_runs_times():
    times = {place("p", "a"): 12.0, place("p", "b"): 11.5, place("q", "a"): 21.0, place("q", "b"): 30.0}
    found = fleet_faults.choices(times, FIRST)
    assert (found["num_problems"], found["same"]) == (2, 0.5)
    assert found["worst_loss"] == pytest.approx(0.1)
    assert found["mean_loss"] == pytest.approx(0.05)


def test_times_agree_by_the_median_of_their_ratios_and_by_what_most_are_within():
    times = {x: us * 1.02 for x, us in FIRST.items()} | {place("r", "a"): 1.0}
    times[place("q", "b")] = 15.0
    count, median, spread = agreement(times, FIRST)
    assert count == 4
    assert median == pytest.approx(1.02)
    assert spread == pytest.approx(2.0)


def test_a_stopped_worker_is_ended_too(monkeypatch):
    monkeypatch.setattr(fleet_faults.subprocess, "Popen", lambda words, **how: real(["sleep", "60"], **how))
    with fleet_faults.workers("tcp://nobody", (["--gpu", "0"], ["--gpu", "1"])) as processes:
        begins = fleet_faults.threading.Event()
        begins.set()
        fleet_faults.lose(processes, fleet_faults.losses_of(1, 1, 0.0), begins)
        assert processes[0].wait(10.0) == -signal.SIGKILL
    assert processes[1].returncode == -signal.SIGKILL


real = fleet_faults.subprocess.Popen
