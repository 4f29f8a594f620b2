"""`aot tune --on ssh://...` against an sshd of this machine, with a simulated device behind it.

What it says of a Thor: tests/simulated/test_thor.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aot.core.errors import RemoteError
from aot.measure.background import status
from aot.measure.store import open_store
from aot.select.times.record import read_record
from aot.tune import remote
from tests.interrupts.moments import LIMIT_S
from tests.simulated.conftest import tune
from tests.simulated.test_tuning import num_commits

ROOT = Path(__file__).parents[2]
RUN = """
import sys
from aot.cli.interrupt import watch
with watch():
    from tests.simulated.conftest import tune
    from tests.simulated.machines import MACHINES
    done = tune(MACHINES[sys.argv[1]], *sys.argv[2:])
    print(done.output)
    sys.exit(done.exit_code)
"""

LINGER_US = 500
"""Of a launch, where a test must come while the run goes on: on a busy machine an ssh takes its time."""


def bundle_of(machine):
    return Path("build") / "tuning" / machine.target.name


def wait_for(out, count, seconds=120.0):
    end = time.monotonic() + seconds
    while num_commits(out) < count:
        assert time.monotonic() < end, f"{num_commits(out)} commits in {seconds} s"
        time.sleep(0.05)


def start(machine, words):
    """Start the command in a process of its own, as from a terminal."""
    command = [sys.executable, "-c", RUN, machine.target.name, *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.walk
def test_one_command_survives_a_dropped_link_and_its_own_end(device, sshd, words, tmp_path, monkeypatch):
    out = tmp_path / "there" / "results.sqlite"
    device.describe(linger_us=LINGER_US)
    first = start(device.machine, words)
    wait_for(out, 3)
    first.kill()
    first.communicate()

    def pull_the_cable():
        time.sleep(1.0)
        sshd.drop()
        time.sleep(2.5)
        sshd.start()

    def follow(*arguments):
        cable = threading.Thread(target=pull_the_cable)
        cable.start()
        try:
            return follow_it(*arguments)
        finally:
            cable.join()

    follow_it = remote.follow
    monkeypatch.setattr(remote, "follow", follow)
    done = tune(device.machine, *words)
    assert done.exit_code == 0, done.output
    assert "a run of this bundle goes on there" in done.output
    assert f"no connection to {sshd.url[6:].partition(':')[0]}: " in done.output
    assert "a run goes on there meanwhile; trying again in 1 s" in done.output
    with open_store(bundle_of(device.machine) / "results.sqlite") as store:
        assert store.quarantined() == {}
        assert len(store._db.execute("SELECT * FROM runs").fetchall()) == 1
    record = read_record(tmp_path / "record.jsonl.gz")
    assert {item.kernel.candidate.name for item in record.measurements} == set(device.machine.candidates)
    assert all(item.ok for item in record.measurements)
    for item in record.measurements:
        assert item.median_us == pytest.approx(device.times[item.kernel.name, item.problem], rel=0.02)


@pytest.mark.walk
def test_interrupt_ends_the_run_there_and_what_is_done_can_be_brought_home(device, sshd, words, tmp_path):
    out = tmp_path / "there" / "results.sqlite"
    device.describe(linger_us=LINGER_US)
    process = start(device.machine, words)
    wait_for(out, 3)  # of 49
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert time.monotonic() - begin < LIMIT_S
    assert not (tmp_path / "record.jsonl.gz").exists()
    while status(out, 0).running:  # it was told, though the command did not wait
        assert time.monotonic() - begin < 100
        time.sleep(0.1)
    assert status(out, 0).exit_code == 130
    assert 3 <= num_commits(out) < 49
    done = tune(device.machine, *words, "--budget-seconds", "0")
    assert num_commits(bundle_of(device.machine) / "results.sqlite") == num_commits(out), done.output
    assert num_commits(out) < 49


@pytest.mark.walk
def test_a_device_out_of_reach_is_an_error(device, sshd, words):
    sshd.drop()
    done = tune(device.machine, *words)
    assert done.exit_code == RemoteError.exit_code
    assert "Connection refused" in done.output
    sshd.start()
