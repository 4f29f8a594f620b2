import json
import os
import signal
import subprocess
import sys
import time

import pytest

from aot.core.errors import StoreError
from aot.measure import background
from aot.measure.background import State, fetch, hold_lock, holder, serve, start, status, stop
from aot.measure.store import open_store

pytestmark = pytest.mark.slow

SERVE = """
import sys, time
from pathlib import Path
from aot.measure.background import serve
def measure(lock):
    print("measuring", flush=True)
    end = time.monotonic() + 120
    while time.monotonic() < end and not Path(sys.argv[1] + ".enough").exists():
        time.sleep(0.02)
    return 0
sys.exit(serve(Path(sys.argv[1]), measure))
"""


DEADLINE_S = 100
"""More than a process needs to start on a machine that is busy with others."""


def command(out):
    """Give a run that goes on until it is told that it is enough."""
    return [sys.executable, "-c", SERVE, str(out)]


def started(out):
    """Give the process that measures, once it does: it has the lock before it says who it is, and what it does."""
    end = time.monotonic() + DEADLINE_S
    while status(out, 0).log != "measuring\n":
        assert time.monotonic() < end
        time.sleep(0.02)
    return holder(out)


def wait(out):
    end = time.monotonic() + DEADLINE_S
    while status(out, 0).running:
        assert time.monotonic() < end
        time.sleep(0.02)
    return status(out, 0)


def test_run_outlives_its_starter_and_leaves_its_code(tmp_path):
    out = tmp_path / "deep" / "r.sqlite"
    assert status(out, 0) == State(False, None, 0, "")
    assert start(out, command(out)).running
    out.with_name("r.sqlite.enough").touch()
    assert wait(out) == State(False, 0, 10, "measuring\n")
    assert status(out, 4).log == "uring\n"
    assert status(out, 99).log == "measuring\n"


def test_start_leaves_a_run_that_goes_on(tmp_path):
    out = tmp_path / "r.sqlite"
    start(out, command(out))
    first = started(out)
    assert start(out, ["false"]).running
    assert holder(out) == first
    stop(out)
    assert wait(out).exit_code == 130


def test_run_that_is_killed_has_no_code(tmp_path):
    out = tmp_path / "r.sqlite"
    start(out, command(out))
    os.kill(started(out), signal.SIGKILL)
    assert wait(out) == State(False, None, 10, "measuring\n")


def test_run_that_does_not_start_says_why(tmp_path):
    with pytest.raises(StoreError, match=r"the run did not start \(exit code 3\): no numpy"):
        start(tmp_path / "r", [sys.executable, "-c", "import sys; print('no numpy'); sys.exit(3)"])


def test_one_that_asks_does_not_take_another_for_a_run(tmp_path, monkeypatch):
    out, found, flock = tmp_path / "r.sqlite", [], background.fcntl.flock

    def ask_meanwhile(descriptor, kind):
        flock(descriptor, kind)
        if not found:
            found.append("asked")
            found.append(holder(out))

    with hold_lock(out, 0.0):
        pass
    monkeypatch.setattr(background.fcntl, "flock", ask_meanwhile)
    assert holder(out) is None
    assert found == ["asked", None]


def test_lock_is_held_by_a_child_that_inherits_it(tmp_path):
    out = tmp_path / "r.sqlite"
    with hold_lock(out, 0.0) as lock:
        child = subprocess.Popen(["sleep", "30"], pass_fds=(lock,))
    assert holder(out) == os.getpid()
    with pytest.raises(StoreError, match=f"process {os.getpid()} is measuring into"), hold_lock(out, 0.2):
        pass
    child.kill()
    child.wait()
    with hold_lock(out, 0.0):
        assert holder(out) == os.getpid()
    assert holder(out) is None


@pytest.fixture
def _signals():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_signals")
def test_whoever_asks_finds_a_run_or_its_code(tmp_path, monkeypatch):
    """A moment after the lock is given up the code is there, as it is before the next run has the lock."""
    out, found, close = tmp_path / "r", [], os.close

    def measure(lock):
        found.append(status(out, 0))
        monkeypatch.setattr(background.os, "close", close_and_ask)
        return 8

    def close_and_ask(descriptor):
        monkeypatch.setattr(background.os, "close", close)
        close(descriptor)
        found.append(status(out, 0))

    def ask_and_start(*words, popen=subprocess.Popen, **options):
        found.append(status(out, 0))
        return popen(*words, **options)

    assert serve(out, measure) == 8
    monkeypatch.setattr(background.subprocess, "Popen", ask_and_start)
    found.append(start(out, command(out)))
    assert [(x.running, x.exit_code) for x in found] == [(True, None), (False, 8), (False, 8), (True, None)]
    os.kill(started(out), signal.SIGKILL)
    assert wait(out).exit_code is None  # and not the first one's


@pytest.mark.usefixtures("_signals")
def test_a_run_whose_child_has_the_lock_goes_on(tmp_path):
    out, children = tmp_path / "r", []

    def measure(lock):
        children.append(subprocess.Popen(["sleep", "300"], pass_fds=(lock,)))
        raise KeyboardInterrupt

    assert serve(out, measure) == 130
    assert status(out, 0) == State(True, None, 0, "")
    with pytest.raises(StoreError, match=f"process {os.getpid()} is measuring into"), hold_lock(out, 0.0):
        pass
    children[0].kill()
    children[0].wait()
    assert status(out, 0) == State(False, 130, 0, "")


def test_a_run_that_ends_at_once_has_started(tmp_path):
    """Between two looks a run may have the lock and end."""
    out = tmp_path / "r"
    program = "from pathlib import Path; from aot.measure.background import serve; serve(Path({!r}), lambda _: {})"
    for wanted in (0, 7):
        state = start(out, [sys.executable, "-c", program.format(str(out), wanted)])
        assert state.running or state.exit_code == wanted
        assert wait(out).exit_code == wanted


def test_fetch_gives_size_digest_and_a_store(tmp_path, capfdbinary):
    with open_store(tmp_path / "r"):
        fetch(tmp_path / "r")
    head, _, content = capfdbinary.readouterr().out.partition(b"\n")
    assert json.loads(head)["bytes"] == len(content)
    (tmp_path / "copy").write_bytes(content)
    with open_store(tmp_path / "copy") as store:
        assert store.measurements() == []
    with pytest.raises(StoreError, match="absent: No such file or directory; run `aot tune`"):
        fetch(tmp_path / "absent")


def test_answers_are_lines_of_json(tmp_path, capsys):
    background.answer("status", tmp_path / "r", 0, [])
    background.answer("stop", tmp_path / "r", 0, [])
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"running": False, "exit_code": None, "offset": 0, "log": "", "portion": 0}
    ] * 2
