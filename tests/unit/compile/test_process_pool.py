"""A pool says which task a dead process had, and ends at once."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from aot.compile.process_pool import Died, Pool

pytestmark = pytest.mark.slow

SLOW = 60.0


def start(path, text):
    Path(path).write_text(text)


def nothing():
    pass


def do(task):
    if task == "ends":
        sys.exit(3)
    if task == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if task == "sleeps":
        time.sleep(SLOW)
    if task == "mask":
        return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, set())
    return f"{task}, done"


def test_every_task_has_its_result(tmp_path):
    pool = Pool(2, start, (tmp_path / "started", "yes"), do)
    tasks = [str(i) for i in range(9)]
    assert sorted(pool.run(tasks)) == [(x, f"{x}, done") for x in tasks]
    assert (tmp_path / "started").read_text() == "yes"
    assert list(pool.run([])) == []


def test_a_death_is_its_tasks_result_and_the_others_are_done():
    pool = Pool(2, nothing, (), do)
    found = dict(pool.run(["a", "ends", "b", "crashes", "c"]))
    assert found == {
        "a": "a, done",
        "ends": Died(3),
        "b": "b, done",
        "crashes": Died(-signal.SIGSEGV),
        "c": "c, done",
    }


def test_a_process_never_sees_the_terminals_interrupt():
    assert list(Pool(1, nothing, (), do).run(["mask"])) == [("mask", True)]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_nor_does_the_first_of_a_program():
    """Its start also starts multiprocessing's resource tracker, which lets interrupts through again."""
    program = (
        "from aot.compile.process_pool import Pool; from tests.unit.compile.test_process_pool import do, nothing\n"
        "if __name__ == '__main__': print(list(Pool(1, nothing, (), do).run(['mask'])))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[('mask', True)]\n"


def test_who_stops_early_waits_for_nobody():
    begin = time.monotonic()
    with closing(Pool(2, nothing, (), do).run(["sleeps", "a", "sleeps"])) as results:
        assert next(results) == ("a", "a, done")
        middle = time.monotonic()
    assert time.monotonic() - middle < SLOW / 2
    assert middle - begin < SLOW / 2


def raise_interrupt(*_):
    raise KeyboardInterrupt


def test_an_interrupt_while_processes_start_ends_them(monkeypatch):
    monkeypatch.setattr("aot.compile.process_pool.wait", raise_interrupt)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(Pool(2, nothing, (), do).run(["sleeps", "sleeps"]))
    assert time.monotonic() - begin < SLOW / 2
