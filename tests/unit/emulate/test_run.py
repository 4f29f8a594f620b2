"""Many kernels in worker processes: each result is kept, and a run that is repeated finds it."""

import os
import signal
import time

import pytest

from aot.core.errors import ResourceError
from aot.core.operation import Operation
from aot.emulate import run
from aot.emulate.execute import ExecutionOptions
from aot.emulate.run import execute_kernels, kept_results
from aot.emulate.schedule import Mode, Schedule
from aot.select.selector import fallback_key
from tests.emulated import emulated_set, target_of
from tests.unit.twins import BF16

pytestmark = pytest.mark.slow
OPTIONS = ExecutionOptions((Schedule(Mode.EAGER, 5),), (3, 5, 8))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    target = target_of("thor")
    keys = [fallback_key(x, target) for x in (BF16, Operation.FP16_KK)]
    return emulated_set(keys, "thor", tmp_path_factory.mktemp("run"))


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_results_are_kept_for_the_same_kernels_and_options(kernels, results):
    assert kept_results(kernels, OPTIONS) == {}
    done = {x.name: x for x in execute_kernels(kernels.names, kernels, OPTIONS, 2)}
    assert set(done) == set(kernels.names)
    assert all(x.is_right for x in done.values())
    assert kept_results(kernels, OPTIONS) == done
    assert kept_results(kernels, ExecutionOptions((Schedule(Mode.EAGER, 6),), (3, 5, 8))) == {}
    first = next(results.rglob("*.json"))
    first.write_text("{")
    assert len(kept_results(kernels, OPTIONS)) == 1


def test_another_source_makes_another_result(kernels, monkeypatch):
    list(execute_kernels(kernels.names[:1], kernels, OPTIONS, 1))
    assert len(kept_results(kernels, OPTIONS)) == 1
    monkeypatch.setattr(run, "_sources_sha256", lambda: "0" * 64)
    assert kept_results(kernels, OPTIONS) == {}


def test_what_is_done_before_the_caller_stops_is_kept(kernels):
    for result in execute_kernels(kernels.names, kernels, OPTIONS, 1):
        assert result.name == kernels.names[0]
        break
    assert set(kept_results(kernels, OPTIONS)) == {kernels.names[0]}


def _killed(_name):
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def test_a_process_that_is_killed_is_the_machines_fault(kernels, monkeypatch):
    monkeypatch.setattr(run, "_execute", _killed)
    with pytest.raises(ResourceError, match=f"{kernels.names[0]} stopped: its process ended with exit code -9"):
        list(execute_kernels(kernels.names[:1], kernels, OPTIONS, 1))
