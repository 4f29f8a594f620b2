import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aot.core.errors import DeviceError, StoreError
from aot.measure import supervisor
from aot.measure.background import EXIT_INTERRUPTED, hold_lock
from aot.measure.store import open_store
from aot.measure.supervisor import supervise
from tests.unit.twin_worker import KERNELS, PROBLEMS

pytestmark = pytest.mark.slow

DEADLINE_S = 100.0
"""More than a process needs to start, or to end, on a machine that is busy with others."""
NAMES = [kernel.name for kernel in KERNELS]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}


@pytest.fixture(autouse=True)
def path_for_workers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])


def command_of(out, faults):
    return [sys.executable, "-m", "tests.unit.twin_worker", str(out), json.dumps(faults)]


def run(out, faults, silence_s=20.0):
    return supervise(lambda _left: command_of(out, faults), out, silence_s=silence_s)


def rows(out, problem):
    with open_store(out) as store:
        return {item.kernel.name: item for item in store.latest(problem).values()}


def test_all_is_measured(tmp_path, capfd):
    out = tmp_path / "r.sqlite"
    assert run(out, {}) == 0
    assert [len(rows(out, problem)) for problem in PROBLEMS] == [4, 4]
    assert "a kernel printed this" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("hang", "measuring bf16_kk m1000 n16 k16: hung: no progress for 6 s"),
        ("crash", "measuring bf16_kk m1000 n16 k16: crashed: the process died of signal 11"),
        ("lost", "measuring bf16_kk m1000 n16 k16: launch refused"),
    ],
)
def test_deadly_kernel_is_quarantined_and_the_rest_measured(tmp_path, fault, reason):
    out = tmp_path / "r.sqlite"
    assert run(out, {NAMES[2]: [fault, 1000]}, silence_s=6.0) == 0
    for problem in PROBLEMS:
        found = rows(out, problem)
        assert [found[name].ok for name in NAMES] == [True, True, False, True]
        assert str(found[NAMES[2]].status) == f"quarantined: {reason}"
    with open_store(out) as store:
        assert store.in_flight() is None


def test_kernel_that_hangs_while_verifying_is_quarantined(tmp_path):
    out = tmp_path / "r.sqlite"
    assert run(out, {NAMES[0]: ["hang", 0]}, silence_s=6.0) == 0
    assert str(rows(out, PROBLEMS[0])[NAMES[0]].status) == "quarantined: verifying: hung: no progress for 6 s"


def test_a_worker_that_is_slow_to_begin_does_not_hang(tmp_path):
    slow = [sys.executable, "-c", "import time; time.sleep(3.0); print('here', flush=True)"]
    assert supervise(lambda _left: slow, tmp_path / "r.sqlite", silence_s=2.0) == 0


def test_worker_that_dies_with_no_kernel_running_is_an_error(tmp_path):
    out = tmp_path / "r.sqlite"
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"]
    with pytest.raises(DeviceError, match="the worker crashed: the process died of signal 11, with no kernel running"):
        supervise(lambda _left: command, out)


def test_worker_killed_from_outside_is_started_again_and_no_kernel_blamed(tmp_path):
    out = tmp_path / "r.sqlite"
    kill, work = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], command_of(out, {})
    commands = iter([kill, kill, work])
    assert supervise(lambda _left: next(commands), out) == 0
    with open_store(out) as store:
        assert store.quarantined() == {}
    with pytest.raises(DeviceError, match="the worker was killed 3 times; is memory short"):
        supervise(lambda _left: kill, out)


def test_two_runs_do_not_measure_into_one_store(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "END_S", 0.0)
    out = tmp_path / "r.sqlite"
    with hold_lock(out, 0.0), pytest.raises(StoreError, match=f"process {os.getpid()} is measuring into .*r.sqlite"):
        run(out, {})
    assert run(out, {}) == 0


def test_error_code_of_the_worker_is_passed_on(tmp_path):
    assert supervise(lambda _left: [sys.executable, "-c", "exit(7)"], tmp_path / "r") == 7


def test_budget_is_counted_down(tmp_path):
    seen = []

    def command(left):
        seen.append(left)
        return [sys.executable, "-c", f"import time; time.sleep(0.2); exit({75 if len(seen) == 1 else 0})"]

    assert supervise(command, tmp_path / "r", 100.0) == 0
    # It stops three seconds before the end, for what is in flight then.
    assert 95.0 < seen[0] <= 97.0
    assert seen[1] < seen[0] - 0.2


SUPERVISOR = """
import sys
from tests.unit.measure.test_supervisor import command_of
from aot.measure.supervisor import supervise
from pathlib import Path
out = Path(sys.argv[1])
sys.exit(supervise(lambda _left: command_of(out, {name: ["slow", 0] for name in sys.argv[2:]}), out))
"""


def start(out):
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(out), *NAMES], env=ENVIRONMENT)
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if out.is_file():
            with open_store(out) as store:
                if store.measurements():
                    return process
        time.sleep(0.02)
    raise AssertionError("no measurement")


def test_killed_run_carries_on(tmp_path):
    out = tmp_path / "r.sqlite"
    process = start(out)
    process.kill()
    process.wait()
    with hold_lock(out, DEADLINE_S), open_store(out) as store:  # the worker died with it
        before = store.measurements()
    assert 1 <= len(before) < 2 * 4 + 2 * 4
    assert run(out, {}) == 0
    with open_store(out) as store:
        after = store.measurements()
        assert all(store.is_finished(problem) for problem in PROBLEMS)
        assert store.quarantined() == {}
    assert after[: len(before)] == before
    screened = [(item.kernel, item.problem) for _, item in after if item.num_rounds == 1]
    assert len(screened) == len(set(screened)) == 8


def test_interrupt_ends_in_good_order(tmp_path):
    out = tmp_path / "r.sqlite"
    process = start(out)
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == EXIT_INTERRUPTED
    with open_store(out) as store:
        assert store.measurements()
        assert store.quarantined() == {}
    assert not (tmp_path / "r.sqlite-wal").exists()
    assert run(out, {}) == 0
    assert [len(rows(out, problem)) for problem in PROBLEMS] == [4, 4]


DEAF = """
import signal, sys, time
from aot.measure.background import EXIT_INTERRUPTED, hold_lock
from aot.measure.supervisor import supervise
from pathlib import Path
worker = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
sys.exit(supervise(lambda _left: [sys.executable, "-c", worker], Path(sys.argv[1])))
"""


def test_interrupt_does_not_wait_for_a_worker_that_does_not_listen(tmp_path):
    out = tmp_path / "r.sqlite"
    process = subprocess.Popen([sys.executable, "-c", DEAF, str(out)], env=ENVIRONMENT, stderr=subprocess.PIPE)
    assert process.stderr.readline() == b"deaf\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == EXIT_INTERRUPTED  # not the worker's 600
    process.stderr.close()
    with hold_lock(out, DEADLINE_S):  # the worker is gone, too
        pass


def test_the_estimate_begins_anew_with_another_worker(capsys, monkeypatch):
    now = iter([0.0, 10.0, 4010.0, 4020.0, 4040.0])
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: next(now))
    progress = supervisor.Progress()
    for done in (1, 800, 1, 21):
        progress.show(done, 1000, "x")
    assert capsys.readouterr().err.splitlines() == [
        "[  0%] 1/1000, estimating: x",
        "[ 80%] 800/1000, 1001 s left: x",
        "[  0%] 1/1000, estimating: x",
        "[  2%] 21/1000, 979 s left: x",
    ]


def test_progress_has_an_eta(capsys, monkeypatch):
    now = iter([0.0, 100.0, 200.0, 300.0])
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: next(now))
    progress = supervisor.Progress()
    for done in (10, 20, 40):
        progress.show(done, 100, "x")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["[ 10%] 10/100, estimating: x", "[ 20%] 20/100, 800 s left: x", "[ 40%] 40/100, 400 s left: x"]


def test_the_estimate_begins_anew_where_a_run_is_resumed(capsys, monkeypatch):
    now = iter([0.0, 10.0, 20.0, 40.0])
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: next(now))
    progress = supervisor.Progress()
    progress.show(1, 1000, "verified x")
    progress.show(900, 1000, supervisor.RESUMING)
    progress.show(905, 1000, "x")
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == ["[ 90%] 900/1000, estimating: resuming", "[ 90%] 905/1000, 380 s left: x"]


def test_the_end_is_shown_at_once_and_once(capsys, monkeypatch):
    now = iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: next(now))
    progress = supervisor.Progress()
    for done in (1, 9, 10, 10, 10):
        progress.show(done, 10, "x")
    assert capsys.readouterr().err.splitlines() == ["[100%] 10/10, 0 s left: x"]
