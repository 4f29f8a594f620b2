"""A tuning by a fleet of simulated devices, some of which fail, beside the same tuning by one device."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from aot.cli.main import main
from aot.core.errors import FleetError
from aot.core.problem import Problem
from aot.fleet import measuring
from aot.fleet.announcement import kind_of_device
from aot.fleet.connection import own_scheduler, security_of
from aot.fleet.fleet import open_fleet
from aot.fleet.seats import MeasureTask
from aot.fleet.worker import Offer, device_post, serve
from aot.kinds.gemm.kind import GEMM
from aot.measure.background import beside
from aot.measure.feed import Portion
from aot.measure.store_transfer import carry, runs_of
from aot.measure.tuning_set import write_tuning_set
from aot.select import pipeline
from aot.select.selection import read_selection
from aot.select.times import model
from aot.select.times.known import measured_times
from aot.select.times.record import from_store
from aot.tune.link import Host, Link
from aot.tune.remote import Device as RemoteDevice
from aot.tune.remote import digest, pack, shipped
from tests.simulated.device import Faults, make_device
from tests.simulated.fleet_worker import post_of
from tests.simulated.machines import H200
from tests.unit.invoked import coarse_grid

pytest.importorskip("distributed", reason="NOT TESTED BY A FLEET: install aot-kernels[fleet]")
pytestmark = pytest.mark.parametrize("machine", [H200], indirect=True, ids=["h200"])

ROOT = Path(__file__).parents[2]
QUICK = ("--no-unaligned", "--no-curve")
WORDS = ["--strategy", "exhaustive", "--no-reference"]
SOUND, KILLED = ([f"{name}{i}" for i in range(count)] for name, count in (("sound", 5), ("killed", 3)))
SLOW, LIAR = "slow", "liar"
NUM_WORKERS = len(SOUND) + len(KILLED) + 2
ROWS = (8, 24, 40, 64, 96, 136, 200, 264)
LINGER_US = 1_000_000
"""Of a launch on the devices whose workers are killed, so that none of them ends its portion of many before."""
START_S = 120.0
SSH_POLL_S = 0.5


@pytest.fixture
def bundle(tuning, tmp_path):
    """Give the tuning's bundle with more problems, so that each worker has some."""
    sizes = sorted({(x.n, x.k) for x in tuning.set.problems})
    operation = tuning.set.problems[0].operation
    problems = tuple(Problem(operation, m, n, k) for m in ROWS for n, k in sizes)
    folder = tmp_path / "bundle"
    shutil.copytree(tuning.directory, folder, ignore=shutil.ignore_patterns("results*"))
    more = replace(tuning.set, problems=problems, chosen={}, predicted_us={})
    write_tuning_set(folder, more)
    return replace(tuning, directory=folder, set=more)


@contextmanager
def workers_here(posts, address):
    """Serve workers from a thread of this process."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(serve(posts, address, security_of(None), print))

    def run():
        asyncio.set_event_loop(loop)
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        for post in posts:
            post.seat.close()
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10.0)


@contextmanager
def workers_apart(folders, address):
    """Serve workers from a process of its own, which is killed once each has something to do."""
    command = [sys.executable, "-m", "tests.simulated.fleet_worker", address, *map(str, folders)]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    feeds = [beside(folder / "run" / "results.sqlite", "feed") for folder in folders]

    def kill():
        end = time.monotonic() + START_S
        while not all(feed.exists() for feed in feeds) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        yield feeds
    finally:
        process.kill()
        process.wait()
        killer.join()


def selection_of(results, folder):
    """Import results, and select by the record."""
    folder.mkdir()
    record, selection = folder / "record.jsonl.gz", folder / "selection.json"
    for words in (
        ["import", results, "--record", record],
        ["select", "--target", "h200", "--record", record, "--operations", "bf16_kk", *QUICK, "-o", selection],
    ):
        done = CliRunner().invoke(main, [str(word) for word in words])
        assert done.exit_code == 0, done.output
    return read_selection(selection)


def count(path, table):
    with closing(sqlite3.connect(path)) as db:
        return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_workers_of_which_half_fail_make_the_record_of_one_device(bundle, driver, machine, tmp_path, monkeypatch):
    coarse_grid(monkeypatch)
    monkeypatch.setattr(pipeline, "committed_selection", lambda _: None)  # it takes seconds to read
    monkeypatch.setattr(model, "NUM_TREES", 5)
    devices = {
        name: make_device(tmp_path / name, driver, machine, bundle) for name in (*SOUND, *KILLED, SLOW, LIAR, "alone")
    }
    for name, device in devices.items():
        faults = Faults(slow=[(0.0, 1e12, 1.6)] if name == SLOW else [])
        device.describe(faults, noise=0.0, linger_us=LINGER_US if name in KILLED else 0)
    # However busy the machine is, nobody does the portion of the liar before it comes to its end.
    patient = partial(measuring.MeasureJob, limits=replace(measuring.LIMITS, silence_s=1000.0, slow_s=1000.0))
    monkeypatch.setattr(measuring, "MeasureJob", patient)
    alone, results, said = tmp_path / "alone.sqlite", tmp_path / "results.sqlite", []
    devices["alone"].run(bundle.directory / "run.py", "--out", alone, *WORDS)

    posts = [post_of(tmp_path / name) for name in (*SOUND, SLOW, LIAR)]
    devices[LIAR]._lines[2] = "sms 114"  # what it measures on is another device than it said
    devices[LIAR].describe(noise=0.0)
    with (
        own_scheduler(security_of(None)) as address,
        workers_apart([tmp_path / name for name in KILLED], address) as feeds,
        workers_here(posts, address),
        open_fleet(address, None, Offer(), said.append) as fleet,
    ):
        wait_for_workers(fleet, NUM_WORKERS)
        assert fleet.devices.measure(bundle.directory, WORDS, results, None) == 0, said
        assert all(feed.exists() for feed in feeds)
        # Done once more, nothing is: whatever arrives, or is asked for, twice.
        before = count(results, "measurements")
        assert fleet.devices.measure(bundle.directory, WORDS, results, None) == 0
        assert count(results, "measurements") == before

    text = "\n".join(said)
    assert f"{NUM_WORKERS} workers measure" in text
    for name in KILLED:
        assert f"worker {name} is gone; what it had goes to another" in text
    kinds = "NVIDIA H200, {} SMs, power mode 700 W"
    assert f"worker {LIAR} announced {kinds.format(132)} and measured on {kinds.format(114)}" in text
    assert f"worker {SLOW} is slow: the reference kernel takes" in text
    check_same(alone, results, tmp_path, bundle)


def wait_for_workers(fleet, number):
    end = time.monotonic() + START_S
    while len(fleet.devices.client.scheduler_info()["workers"]) < number:
        assert time.monotonic() < end, "not all workers came"
        time.sleep(0.1)


def check_same(alone, results, tmp_path, bundle):
    """Compare what one device measured with what the fleet did: records and selections."""
    one, many = from_store(alone), from_store(results)
    places = {item.place: item for item in one.measurements}
    assert [item.place for item in many.measurements] == [item.place for item in one.measurements]
    assert len(places) == len(bundle.set.problems) * len(bundle.names)
    for item in many.measurements:
        assert (item.ok, item.num_rounds) == (places[item.place].ok, places[item.place].num_rounds)
    assert {item.key for item in many.conditions} == {item.key for item in one.conditions}
    # Devices without noise give times to the last bit.
    assert measured_times(GEMM.part(many)) == measured_times(GEMM.part(one))
    chosen, chosen_alone = (selection_of(path, tmp_path / f"of-{path.stem}") for path in (results, alone))
    assert chosen.kernels == chosen_alone.kernels
    assert chosen.table == chosen_alone.table


@pytest.mark.walk
def test_a_device_by_ssh_is_a_seat_like_any_other(device, sshd, tuning, tmp_path):
    """What `aot worker --on` does, without a scheduler: the bundle, three portions and the end of the run."""
    link = Link(Host.parse(f"{sshd.url}{tmp_path}/there", "fleet"))
    post = device_post("far", RemoteDevice(link), tmp_path / "worker", SSH_POLL_S)
    assert post.announcement.place.endswith(f":{tmp_path}/there")
    assert kind_of_device(post.announcement.machine) == (device.machine.gpu, 132, None, "700 W")
    seat, number, home, said = post.seat, digest(tuning.directory), tmp_path / "home.sqlite", []
    task = MeasureTask(number, tuple(WORDS), Portion(0, kernels=(0, 1)), "1")

    def report(text):
        said.append(text)
        return True

    assert seat.measure(task, report).lacks_bundle
    with pytest.raises(FleetError, match=r"a bundle arrived as \w{12}, expected 0000; send it again"):
        seat.receive("0000", pack(tuning.directory, shipped(tuning.directory)))
    seat.receive(number, pack(tuning.directory, shipped(tuning.directory)))
    part = tmp_path / "part"
    measure = Portion(0, problems=(1,), sound=(0, 1))
    for portion, count in ((Portion(0, kernels=(0, 1)), 0), (measure, 1), (measure, 0)):
        part.write_bytes(seat.measure(replace(task, portion=portion), report).store)
        assert carry(part, home) == count
    seat.release()
    with closing(sqlite3.connect(tmp_path / "there" / "results.sqlite")) as db:  # who asks again gets it measured again
        assert {reason for (reason,) in db.execute("SELECT reason FROM voided")} == {"it is to be measured again"}
    assert len(runs_of(home).seeds) == 1  # one run did both
    assert {x.problem for x in from_store(home).measurements} == {tuning.set.problems[1]}
    assert set(said) <= {"measures"}  # a quick portion is done at the first look
