import json
import os
import signal
import subprocess
import sys
import time

import pytest

from aot.core.errors import StoreError
from aot.measure import background
from aot.measure.background import State, beside, fetch, hold_lock, holder, serve, start, status, stop
from aot.measure.store import open_store

SERVE = """
import sys, time
from pathlib import Path
from aot.measure.background import hold_lock, serve
def measure():
    with hold_lock(Path(sys.argv[1]), 10.0):
        try:
            print("measuring", flush=True)
            end = time.monotonic() + 120
            while time.monotonic() < end and not Path(sys.argv[1] + ".enough").exists():
                time.sleep(0.02)
        except KeyboardInterrupt:
            return 130
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


def test_serve_leaves_errors_code(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    try:
        assert serve(tmp_path / "r", lambda: 8) == 8
    finally:
        signal.signal(signal.SIGINT, before)
    assert beside(tmp_path / "r", "exit").read_text() == "8\n"


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
