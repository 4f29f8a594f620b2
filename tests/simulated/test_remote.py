"""`aot tune --on ssh://...` against an sshd of this machine; the device behind it is the simulated Thor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aot.compile.workplace import ARTIFACTS
from aot.core.errors import DeviceError, RemoteError
from aot.measure.background import beside
from aot.measure.store import open_store
from aot.select.record import read_record
from aot.tune import remote
from tests.interrupts.moments import LIMIT_S
from tests.simulated.conftest import CANDIDATES, tune
from tests.simulated.sshd import Sshd
from tests.simulated.test_tuning import num_commits

ROOT = Path(__file__).parents[2]
RUN = """
import sys
from aot.cli.interrupt import watch
with watch():
    from tests.simulated.conftest import tune
    done = tune(*sys.argv[1:])
    print(done.output)
    sys.exit(done.exit_code)
"""

LINGER_US = 1000
"""Of a launch, where a test must come while the run goes on: on a busy machine an ssh takes its time."""


@pytest.fixture
def sshd(device, tmp_path, monkeypatch):
    server = Sshd(tmp_path / "ssh", device.environment["PATH"])
    monkeypatch.setenv("PATH", f"{server.bin}:{os.environ['PATH']}")
    yield server
    server.drop()


BUNDLE = Path("build") / "tuning" / "thor"


@pytest.fixture
def words(sshd, tuning, tmp_path, monkeypatch):
    """Give the words of the command, to be run in tmp_path; the folder on the device is tmp_path / "there"."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "artifacts").symlink_to(ROOT / ARTIFACTS)
    found = ["--on", f"{sshd.url}{tmp_path}/there", "--shapes", tuning.shapes]
    return [*map(str, found), "--record", str(tmp_path / "thor.jsonl.gz")]


def wait_for(out, count, seconds=120.0):
    end = time.monotonic() + seconds
    while num_commits(out) < count:
        assert time.monotonic() < end, f"{num_commits(out)} commits in {seconds} s"
        time.sleep(0.05)


def start(words):
    """Start the command in a process of its own, as from a terminal."""
    command = [sys.executable, "-c", RUN, *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_one_command_survives_a_dropped_link_and_its_own_end(device, sshd, words, tmp_path, monkeypatch):
    out = tmp_path / "there" / "results.sqlite"
    device.describe(linger_us=LINGER_US)
    first = start(words)
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
    done = tune(*words)
    assert done.exit_code == 0, done.output
    assert "a run of this bundle goes on there" in done.output
    assert f"no connection to {sshd.url[6:].partition(':')[0]}: " in done.output
    assert "a run goes on there meanwhile; trying again in 1 s" in done.output
    with open_store(BUNDLE / "results.sqlite") as store:
        assert store.quarantined() == {}
        assert len(store._db.execute("SELECT * FROM runs").fetchall()) == 1
    record = read_record(tmp_path / "thor.jsonl.gz")
    assert {item.kernel.candidate.name for item in record.measurements} == set(CANDIDATES)
    assert all(item.ok for item in record.measurements)
    for item in record.measurements:
        assert item.median_us == pytest.approx(device.times[item.kernel.name, item.problem], rel=0.02)
    # Nothing but Python was there: numpy came along.
    assert (tmp_path / "there" / "site" / "numpy").is_dir()


def test_interrupt_ends_the_run_there_and_what_is_done_can_be_brought_home(device, sshd, words, tmp_path):
    out = tmp_path / "there" / "results.sqlite"
    device.describe(linger_us=LINGER_US)
    process = start(words)
    wait_for(out, 3)  # of 49
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert time.monotonic() - begin < LIMIT_S
    assert not (tmp_path / "thor.jsonl.gz").exists()
    while not beside(out, "exit").exists():  # it was told, though the command did not wait
        assert time.monotonic() - begin < 60
        time.sleep(0.1)
    assert beside(out, "exit").read_text() == "130\n"
    assert 3 <= num_commits(out) < 49
    done = tune(*words, "--budget-seconds", "0")
    assert num_commits(BUNDLE / "results.sqlite") == num_commits(out), done.output
    assert num_commits(out) < 49


def test_the_device_is_checked_before_anything_is_compiled(device, sshd, words, tmp_path):
    device.set_clocks(gpu=(315, 1575))
    device._lines[2] = "sms 6"
    device._lines[1] = "capability 10 0"
    device.describe()
    done = tune(*words)
    assert done.exit_code == DeviceError.exit_code
    assert "aarch64, Python 3.11" in done.output
    assert "NVIDIA Thor: compute capability 10.0, 6 SMs, CUDA 13.0" in done.output
    assert "R38 (release), REVISION: 2.0" in done.output
    assert "power mode MAXN" in done.output
    assert "31b0000.emc 4266 MHz (4266 to 4266), gpu-gpc-0 1575 MHz (315 to 1575)" in done.output
    expected = "has compute capability (10, 0); target thor is (11, 0) on aarch64; give the device's own --target"
    assert expected in done.output
    assert not BUNDLE.exists()


def test_what_to_mind_is_said(device, sshd, words):
    device.set_clocks(gpu=(315, 1575))
    device._lines[2] = "sms 6"
    device.describe()
    done = tune(*words, "--kernels", "none-such")
    assert "clocks are not locked (gpu-gpc-0 315 to 1575 MHz); lock them with: sudo jetson_clocks" in done.output
    assert "has 6 SMs here, the target has 20: a MIG slice or a power mode? The record is keyed by 6 SMs" in done.output


def test_a_device_out_of_reach_is_an_error(sshd, words):
    sshd.drop()
    done = tune(*words)
    assert done.exit_code == RemoteError.exit_code
    assert "Connection refused" in done.output
    sshd.start()
