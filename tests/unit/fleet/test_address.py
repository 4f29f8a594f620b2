"""An address that leads nowhere is refused before anything waits for it."""

import asyncio

import pytest

from aot.core.errors import FleetError
from aot.fleet import connection, worker
from aot.fleet.address import check_address
from aot.fleet.announcement import of_compiler
from aot.fleet.fleet import open_fleet
from aot.fleet.worker import Offer, Post, work

GOOD = ("tcp://desk:8786", "tls://10.0.0.1:1", "desk:65535", "tcp://[::1]:8786", "tcp://a-b.c_d:80")
BAD = (
    "",
    "bad",
    "desk",
    "tcp://desk",
    "tcp://desk:",
    "tcp://desk:0",
    "tcp://desk:65536",
    "tcp://desk:99999999",
    "http://d:1",
)
BAD = (
    *BAD,
    "ssh://u@h:22",
    "tcp://:8786",
    "tcp://desk:8786/x",
    "tcp://desk:8786\n",
    "tcp://de sk:1",
    "tcp://{{x}}:1",
    "é:1",
)


@pytest.mark.parametrize("address", GOOD)
def test_an_address_is_taken(address):
    assert check_address(address) == address


@pytest.mark.parametrize("address", BAD)
def test_what_is_none_is_refused_with_what_one_is(address):
    with pytest.raises(FleetError, match=r"is no address of a scheduler; expected tcp://host:port or tls://host:port"):
        check_address(address)


def test_clients_and_workers_ask_before_they_start_anything(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "distributed", None)
    offer = Offer(tmp_path, 1, (), ())
    with pytest.raises(FleetError, match="'bad' is no address"), open_fleet("bad", None, offer, print):
        pass
    with pytest.raises(FleetError, match=r"'tcp://127\.0\.0\.1:99999' is no address"):
        work(offer, "tcp://127.0.0.1:99999", None, print)


def test_a_worker_that_waits_for_its_scheduler_says_so(monkeypatch):
    class Slow:
        def __await__(self):
            return asyncio.sleep(0.2).__await__()

        async def finished(self):
            return None

    monkeypatch.setattr(worker, "make_worker", lambda *_: Slow())
    monkeypatch.setattr(worker, "PATIENCE_S", 0.01)
    said = []
    posts = [Post("desk-compilers", of_compiler(), 1, None)]
    asyncio.run(worker.serve(posts, "tcp://desk:8786", None, said.append))
    assert said == [
        "no scheduler answers at tcp://desk:8786 yet; waiting for one, as `dask scheduler` starts it",
        "joined tcp://desk:8786 as desk-compilers",
    ]
