"""Tasks on real workers of a scheduler in this process, one of which says nothing, and one of which fails."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from aot.compile.compiler import ArtifactStore, Compiled
from aot.compile.transport import packed, unpack
from aot.core.candidate import KernelKey
from aot.core.errors import FleetError
from aot.fleet import engine as engines
from aot.fleet import measuring
from aot.fleet.announcement import Role, of_compiler
from aot.fleet.connection import distributed, own_scheduler, reporter, seat_of_this_worker, security_of
from aot.fleet.engine import Done, Lacking, Refused
from aot.fleet.fleet import open_fleet
from aot.fleet.ledger import Limits
from aot.fleet.seats import TOPIC, CompilerSeat
from aot.fleet.worker import Offer, Post, serve
from tests.compiling import STORE, compile_kernels
from tests.objects import BF16
from tests.simulated.machines import H200
from tests.unit.accepted import named

pytest.importorskip("distributed", reason="NOT TESTED BY A CLUSTER: install aot-kernels[fleet]")
pytestmark = pytest.mark.slow

TARGET = H200.target


class Last:
    """A result that whoever sends it does not survive."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Seat:
    """Squares numbers, and is silent, fails, leaves, dies of the result, or says that it works, as it is told."""

    def __init__(self, manner):
        self.manner, self.done, self.end = manner, [], threading.Event()

    def square(self, number, report):
        if self.manner == "silent":
            self.end.wait(60.0)
        if self.manner == "fails":
            raise ValueError("no luck")
        if self.manner == "dies":
            return Last()
        if self.manner == "leaves":
            self.leave()
        for _ in range(3):
            report("works")
            time.sleep(0.05)
        self.done.append(number)
        return number**2

    def leave(self):
        """End the worker in good order, and find out by a failure, as a run of a device that is closed does."""
        worker = distributed().get_worker()
        worker.loop.add_callback(worker.close)
        assert self.end.wait(60.0)
        raise ValueError("the run ended")

    def close(self):
        self.end.set()


def serve_apart(address, name, manner):
    """Be a worker in a process of its own."""
    asyncio.run(serve([Post(name, of_compiler(), 1, Seat(manner))], address, security_of(None), print))


def square(number, attempt):
    """Run on a worker."""
    return seat_of_this_worker().square(number, reporter(TOPIC, attempt))


@dataclass
class Squares:
    """The job; a result of 49 is refused once."""

    role: Role = Role.COMPILES
    limits: Limits = field(default_factory=lambda: Limits(silence_s=4.0, max_losses=4))
    refused: list = field(default_factory=list)
    lacking: set = field(default_factory=set)

    def unlike(self, worker):
        return "is strange" if worker.name == "strange" else ""

    def choose(self, workers):
        return workers

    def call(self, task, worker, attempt):
        return square, (task, attempt)

    def judge(self, task, worker, result):
        if worker.name in self.lacking:
            return Lacking()
        if result == 49 and not self.refused:
            self.refused.append(worker.name)
            return Refused("said 49", is_barred=True, again=(3,))
        return Done(result)

    def supply(self, client, worker):
        raise KeyError(worker.address)

    def lost(self, task, reason):
        return reason


@contextmanager
def cluster(apart=None, **seats):
    """Serve a worker for each seat by name, and one apart by name and manner; gives a fleet and what it said."""
    posts = [Post(name, of_compiler(), 1, seat) for name, seat in seats.items()]
    said = []
    with own_scheduler(security_of(None)) as address:
        loop = asyncio.new_event_loop()
        task = loop.create_task(serve(posts, address, security_of(None), said.append))

        def run():
            with pytest.raises(asyncio.CancelledError):
                loop.run_until_complete(task)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        process = multiprocessing.get_context("spawn").Process(target=serve_apart, args=(address, *(apart or ())))
        if apart:
            process.start()
        try:
            with open_fleet(address, None, Offer(), said.append) as fleet:
                while len(fleet.devices.client.scheduler_info()["workers"]) < len(posts) + bool(apart):
                    time.sleep(0.05)
                yield fleet, said
        finally:
            for seat in seats.values():
                seat.close()
            loop.call_soon_threadsafe(task.cancel)
            thread.join(10.0)
            if apart:
                process.kill()
                process.join()


def test_what_a_worker_cannot_do_another_does():
    seats = {"good": Seat(""), "other": Seat(""), "silent": Seat("silent"), "fails": Seat("fails"), "strange": Seat("")}
    with cluster(**seats) as (fleet, said):
        job = Squares()
        found = list(fleet.devices.engine.run(range(3, 9), job))
    assert dict(found) == {x: x * x for x in range(3, 9)}
    done = seats["good"].done + seats["other"].done
    assert set(done) == set(range(3, 9))
    assert seats["strange"].done == []
    (barred,) = job.refused
    text = "\n".join(said)
    assert "worker silent says nothing; what it had goes to another" in text
    assert "worker fails failed: ValueError: no luck; what it had goes to another" in text
    assert "worker strange is not used: it is strange" in text
    assert f"worker {barred} said 49; what it had goes to another" in text
    assert f"worker {barred} is not used: it said 49" in text


def test_a_worker_is_gone_however_it_goes():
    """One ends and its task says so first, and one is killed when its task is done and the result is not yet here."""
    limits = Limits(silence_s=100.0, max_losses=4)
    with cluster(("killed", "dies"), good=Seat(""), leaving=Seat("leaves")) as (fleet, said):
        assert dict(fleet.devices.engine.run(range(3, 7), Squares(limits=limits, refused=[""]))) == {
            x: x * x for x in range(3, 7)
        }
    gone = [f"worker {name} is gone; what it had goes to another" for name in ("killed", "leaving")]
    assert sorted(x for x in said if not x.startswith("joined")) == gone


def test_a_worker_that_what_it_lacks_does_not_reach_is_one_that_fails():
    with cluster(good=Seat(""), lacks=Seat("")) as (fleet, said):
        job = Squares(limits=Limits(silence_s=100.0), lacking={"lacks"})
        assert dict(fleet.devices.engine.run([2, 3], job)) == {2: 4, 3: 9}
    _, text = said
    assert text.startswith("worker lacks cannot be given what it lacks: KeyError: 'tcp://")


def test_a_task_that_all_fail_at_is_given_up_and_no_worker_is_an_error(monkeypatch):
    monkeypatch.setattr(engines, "WAIT_S", 0.5)
    with cluster(one=Seat("fails"), two=Seat("fails")) as (fleet, _):
        ((task, reason),) = fleet.devices.engine.run([5], Squares(limits=Limits(100.0, max_losses=2)))
        assert task == 5
        assert reason.endswith("failed: ValueError: no luck")
    with (
        cluster(strange=Seat("")) as (fleet, _),
        pytest.raises(FleetError, match=r"no worker fits for .* of 0 that did"),
    ):
        list(fleet.devices.engine.run([5], Squares()))


def test_devices_are_looked_for_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr(measuring, "FIRST_WAIT_S", 0.0)
    message = "no worker fits: expected a device of h200; see `aot worker --help`"
    with cluster(compilers=Seat("")) as (fleet, _), pytest.raises(FleetError, match=message):
        fleet.devices.check(TARGET)


def test_kernels_arrive_in_the_store_by_their_hashes(tmp_path):
    keys = [KernelKey(BF16, named(name)) for name in H200.sound]
    compile_kernels(keys, TARGET)
    for key in keys:  # what a worker has compiled before is found again
        assert (
            unpack(packed(ArtifactStore(STORE).directory(key, TARGET)), key, TARGET, tmp_path / "w/artifacts", tmp_path)
            == ""
        )
    store = ArtifactStore(tmp_path / "store")
    with cluster(compilers=CompilerSeat(tmp_path / "w")) as (fleet, _):
        own = object()
        assert fleet.compilers_or(own) is fleet.compilers
        found = list(fleet.compilers.compile(keys, TARGET, store.root, tmp_path))
    assert dict(found) == dict.fromkeys(keys, Compiled())
    for key in keys:
        assert packed(store.directory(key, TARGET)) == packed(ArtifactStore(STORE).directory(key, TARGET))
