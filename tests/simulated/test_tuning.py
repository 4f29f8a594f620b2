"""The bundle's runner on a simulated device: processes, stores, faults.

None of this is of a processor or a Jetson, so that it runs on this machine's; with `make walk` on an emulated Thor too.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from aot.cli.main import main
from aot.core.errors import DeviceError, StoreError
from aot.measure import protocol as measure
from aot.measure.inputs import SOURCE_ELEMENTS
from aot.measure.protocol import FLUSH_PROTOCOL, PROTOCOL, num_sets, plan_for, set_bytes
from aot.measure.store import open_store
from aot.select import pipeline
from aot.select.selection import read_selection
from aot.select.times import model
from aot.select.times.record import from_store, read_record
from tests.compiling import EVERY
from tests.simulated.device import Faults, make_device
from tests.simulated.machines import H200
from tests.unit.invoked import coarse_grid

ROOT = Path(__file__).parents[2]
NUM_KILLS = 20 if EVERY else 6
"""Each starts two Pythons; `make walk` kills at more points, and an emulated one, which takes seconds, too."""
LINGER_US = 500
"""Of a launch, so that no run that is to be killed ends before."""
L2_BYTES = 1 << 16
"""Of the simulated device (tests/simulated/device.py)."""


def tune(device, tuning, out, *words, **options):
    return device.run(tuning.directory / "run.py", "--out", out, *words, **options)


def aot(*words):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output


def rows(out, problem):
    with open_store(out) as store:
        assert store.is_finished(problem)
        return {item.kernel.candidate.name: item for item in store.latest(problem).values()}


def check_times(device, found, problem, rel=0.02):
    for row in found.values():
        assert row.median_us == pytest.approx(device.times[row.kernel.name, problem], rel=rel)


def test_faults_are_quarantined_with_their_reason_and_no_selection_has_them(device, tuning, tmp_path, monkeypatch):
    coarse_grid(monkeypatch)
    monkeypatch.setattr(pipeline, "committed_selection", lambda _: None)  # it takes seconds to read
    monkeypatch.setattr(model, "NUM_TREES", 5)
    out, kernels = tmp_path / "results.sqlite", device.machine
    what = {kernels.launch: ("launch", 0), kernels.sticky: ("sticky", 96), kernels.wrong: ("wrong", 200)}
    what |= {kernels.hang: ("hang", 96), kernels.clusters: ("clusters", 0)}
    device.describe(Faults({tuning.name_of(name): fault for name, fault in what.items()}))
    done = tune(device, tuning, out, "--silence-seconds", kernels.silence_s)
    first, second = (f"measuring bf16_kk m96 n{n} k{k}" for n, k in ((136, 72), (264, 40)))
    launch = "verifying: the launch of {} gave status 7: launching kernel {} failed on device 0: too many resources"
    illegal = "cuStreamSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"
    reasons = {
        kernels.launch: launch.replace("{}", tuning.name_of(kernels.launch)),
        kernels.sticky: f"{first}: {illegal}",
        kernels.wrong: "measuring bf16_kk m200 n136 k72: wrong result on sampled rows: relative error",
        kernels.hang: f"{first}: hung: no progress for {kernels.silence_s} s",
    }
    with open_store(out) as store:
        quarantined = {store._kernels()[i][0].candidate.name: reason for i, reason in store.quarantined().items()}
    assert set(quarantined) == set(reasons), done.stderr
    for name, reason in reasons.items():
        assert quarantined[name].startswith(reason), quarantined[name]
    assert second not in " ".join(quarantined.values())
    name = tuning.name_of(kernels.clusters)
    no_room = f"no room for a cluster: 0 active clusters of {name} on this device"
    for problem in tuning.set.problems:
        found = rows(out, problem)
        assert set(found) == set(kernels.candidates)
        check_times(device, {name: found[name] for name in kernels.sound}, problem)
        assert all(found[name].num_rounds == 7 for name in kernels.sound)
        assert str(found[kernels.clusters].status) == no_room
        timed = {name for name, row in found.items() if row.ok}
        assert timed <= {*kernels.sound, kernels.sticky, kernels.wrong, kernels.hang}
    check_selection(kernels, out, tmp_path, quarantined)


def check_selection(machine, out, tmp_path, quarantined):
    """Select by a store's record, and look for the quarantined kernels among those that a wheel is built of."""
    target = machine.target.name
    path, selection = tmp_path / "simulated.jsonl.gz", tmp_path / "simulated.json"
    aot("import", out, "--record", path)
    record = read_record(path)
    assert {x.kernel.candidate.name for x in record.measurements if x.ok} == set(machine.sound)
    (conditions,) = set(record.conditions)
    check_conditions(machine, conditions)
    words = ("--record", path, "--operations", "bf16_kk", "--no-curve", "-o", selection)
    aot("select", "--target", target, *words)
    shipped = {key.candidate.name for key in read_selection(selection).kernels}
    assert shipped & set(machine.sound)
    assert shipped & {*quarantined, machine.clusters} == set()


def check_conditions(machine, conditions):
    target = machine.target
    assert (conditions.device, conditions.arch, conditions.num_sms) == (machine.gpu, target.arch, target.num_sms)
    assert (conditions.power_mode, conditions.sm_clock_mhz) == (machine.power_mode, machine.sm_clock_mhz)
    assert conditions.memory_clock_mhz == machine.memory_clock_mhz
    assert conditions.protocol == FLUSH_PROTOCOL


def test_a_gpu_with_memory_of_its_own_takes_off_the_separators_and_measures_in_parts(tmp_path, machine, driver, tuning):
    discrete = make_device(tmp_path / "device", driver, machine, tuning, integrated=False)
    parts = [tmp_path / f"part{i}.sqlite" for i in (1, 2)]
    for i, part in enumerate(parts, 1):
        done = tune(discrete, tuning, part, "--kernels", machine.few, "--shard", f"{i}/2", "--budget-seconds", "500")
        assert "3 of 3 problems are measured\n" in done.stderr
        assert "torch's times are not recorded beside the kernels: No module named 'torch'" in done.stderr
        with closing(sqlite3.connect(part)) as store:
            assert store.execute("SELECT us FROM separator_times").fetchall() == [(pytest.approx(2.0, rel=0.02),)]
    aot("import", *parts, "--record", tmp_path / "record.jsonl.gz")
    record = read_record(tmp_path / "record.jsonl.gz")
    assert {x.protocol for x in record.conditions} == {PROTOCOL}
    assert {x.problem for x in record.measurements} == set(tuning.set.problems)
    for item in record.measurements:
        assert item.median_us == pytest.approx(discrete.times[item.kernel.name, item.problem], rel=0.02)


def test_memory_that_is_short_leaves_out_what_does_not_fit(device, tuning, tmp_path):
    out = tmp_path / "results.sqlite"
    plan = plan_for(L2_BYTES, integrated=True)
    sizes = {x: num_sets(x, L2_BYTES, plan) * set_bytes(x) for x in tuning.set.problems}
    largest = max(sizes, key=sizes.get)
    by_work = sorted(sizes, key=lambda x: (x.m * x.n * x.k, x))
    pool = 2 * min(SOURCE_ELEMENTS, sizes[largest])
    needed = plan.flush_bytes + pool + sizes[by_work[len(by_work) // 2]] + sizes[largest]
    device.describe(Faults(memory_bytes=needed - 1))
    done = tune(device, tuning, out, "--kernels", device.machine.sound[0])
    reason = f"cuMemAlloc of {sizes[largest]} bytes failed with CUDA_ERROR_OUT_OF_MEMORY: out of memory"
    assert f"warning: {largest.name} is not measured: {reason}" in done.stderr
    assert {str(x.status) for x in rows(out, largest).values()} == {f"memory too small: {reason}"}
    for problem in set(sizes) - {largest}:
        assert rows(out, problem)[device.machine.sound[0]].ok
    with open_store(out) as store:
        assert store.quarantined() == {}


def test_a_throttled_while_is_measured_again(device, tuning, tmp_path):
    out = tmp_path / "results.sqlite"
    device.describe(Faults(slow=[(0.4e6, 0.7e6, 1.5)]))
    done = tune(device, tuning, out, "--kernels", device.machine.few)
    with open_store(out) as store:
        voided = store.voided()
    assert voided, done.stderr
    assert all(reason.startswith("the reference kernel takes ") for _, reason in voided)
    assert "is measured again: the reference kernel takes" in done.stderr
    for problem in tuning.set.problems:
        check_times(device, rows(out, problem), problem)
    num_kernels = sum(device.machine.few in name for name in device.machine.candidates)
    assert len(from_store(out).measurements) == num_kernels * len(tuning.set.problems)


def test_a_clock_that_was_changed_is_told(device, tuning, tmp_path):
    out = tmp_path / "results.sqlite"
    device.describe(Faults(slow=[(0.4e6, 1e12, 1.5)]))
    done = tune(device, tuning, out, "--kernels", device.machine.few, "--settle-seconds", "1")
    assert "the device keeps another speed than before: the reference kernel takes" in done.stderr
    found = [(row, problem) for problem in tuning.set.problems for row in rows(out, problem).values()]
    ratios = [row.median_us / device.times[row.kernel.name, problem] for row, problem in found]
    assert all(x == pytest.approx(1.0, rel=0.02) or x == pytest.approx(1.5, rel=0.02) for x in ratios)
    assert {round(x, 1) for x in ratios} == {1.0, 1.5}


@pytest.mark.parametrize("machine", [H200], indirect=True, ids=["h200"])
def test_another_gpu_is_refused_before_anything_is_done(device, driver, tmp_path):
    device._lines[1] = "capability 8 7"
    device.describe()
    environment = {"AOT_SIMULATED_DEVICE": str(device.file), "LD_LIBRARY_PATH": str(driver.parent)}
    command = [sys.executable, "-m", "aot", "tune", "--target", "h200"]
    environment = os.environ | environment | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == DeviceError.exit_code
    assert "has compute capability (8, 7); target h200 is (9, 0) on x86_64; give the device's own" in done.stderr
    assert not (tmp_path / "build" / "tuning").exists()


def test_a_mig_slice_is_a_record_of_its_own(device, tuning, tmp_path):
    out, path = tmp_path / "results.sqlite", tmp_path / "record.jsonl.gz"
    machine, whole = device.machine, list(device._lines)
    name = f"{machine.gpu} MIG 1g.24gb"
    device._lines[0], device._lines[2] = f"name {name}", "sms 6"
    device.describe()
    found = json.loads(device.run(tuning.directory / "run.py", "--check").stdout)
    assert (found["gpu"], found["mig"], found["num_sms"]) == (name, "1g.24gb", 6)
    tune(device, tuning, out, "--kernels", machine.sound[0], "--problems", "m8 n136")
    aot("import", out, "--record", path)
    (conditions,) = read_record(path).conditions
    assert (conditions.mig, conditions.num_sms, conditions.power_mode) == ("1g.24gb", 6, machine.power_mode)
    device._lines = whole
    device.describe()
    done = tune(device, tuning, out, "--kernels", machine.sound[0], check=False)
    assert done.returncode == StoreError.exit_code
    there = (machine.target.name, name, machine.target.arch, 6, "1g.24gb", machine.power_mode)
    assert f"the store was measured as {str(there)[:-1]}, " in done.stderr


def everything(out):
    """Give all rows of the tables that only ever grow."""
    with closing(sqlite3.connect(f"file:{out}?mode=ro", uri=True)) as db:
        tables = ("runs", "kernels", "measurements", "verified", "quarantine", "finished")
        return {name: db.execute(f"SELECT * FROM {name} ORDER BY rowid").fetchall() for name in tables}


def num_commits(out):
    """Count what was committed, the times of the reference kernel too; 0 while there is nothing."""
    try:
        with closing(sqlite3.connect(f"file:{out}?mode=ro", uri=True)) as db:
            return sum(db.execute(f"SELECT count(*) FROM {x}").fetchone()[0] for x in ("verified", "measurements"))
    except sqlite3.Error:
        return 0


def kill_at_random(device, tuning, out, rng):
    """Start a run and kill it -9 at a random point; says whether it was killed before it ended."""
    process = device.start(tuning.directory / "run.py", "--out", out)
    # Half of the points lie anywhere in the start, the others some commits later.
    goal = num_commits(out) + rng.choice((0, 0, 1, 2, 4, 6))
    end = time.monotonic() + rng.uniform(0.0, device.machine.start_s)
    while process.poll() is None and (time.monotonic() < end or num_commits(out) < goal):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def test_a_run_killed_at_random_points_loses_nothing(device, tuning, tmp_path):
    out, rng = tmp_path / "results.sqlite", random.Random(20)
    before, points = {}, []
    device.describe(linger_us=LINGER_US)
    while len(points) < NUM_KILLS:
        assert kill_at_random(device, tuning, out, rng), f"it ended after {len(points)} kills"
        points.append(num_commits(out))
        if points[-1]:
            now = everything(out)
            for name, old in before.items():
                assert now[name][: len(old)] == old, f"{name} changed"
            before = now
    assert len(set(points)) >= NUM_KILLS // 2, points
    device.describe()
    tune(device, tuning, out)
    after = everything(out)
    assert all(after[name][: len(old)] == old for name, old in before.items())
    assert after["quarantine"] == []
    assert len(after["finished"]) == len(tuning.set.problems)
    record = from_store(out)
    pairs = [(item.kernel.candidate.name, item.problem) for item in record.measurements]
    assert sorted(pairs) == sorted(
        (name, problem) for name in device.machine.candidates for problem in tuning.set.problems
    )
    for item in record.measurements:
        assert (item.ok, item.num_rounds) == (True, 7)
        assert item.median_us == pytest.approx(device.times[item.kernel.name, item.problem], rel=0.02)
    # Each pair was screened once and got its rounds once: nothing that was finished was measured again.
    screened = [row for row in after["measurements"] if row[7] == 1]
    assert len(screened) == len({row[2:4] for row in screened}) == len(pairs)
    assert measure.TimingPlan().final_rounds == 7
