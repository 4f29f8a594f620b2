import json
import os
import time
from dataclasses import replace

import pytest

from aot.core.errors import DeviceError, RemoteError
from aot.core.process import Terminated
from aot.core.target import load_target
from aot.measure.background import State
from aot.measure.preflight import Machine
from aot.tune import link as links
from aot.tune.bundle import RUNNER, make_runner
from aot.tune.link import Host, Link, LinkError, persist
from aot.tune.remote import Device, check_machine, digest, follow

THOR = load_target("thor")
MACHINE = Machine("aarch64", "3.12.3", "2.39", False, "R38 (release)", "7.0", "MAXN", [], 14, 0.1, "NVIDIA Thor",
                  (11, 0), 20, True, "CUDA 13.0", "")  # fmt: skip


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("ssh://me@thor", Host("me@thor", None, "aot-tuning/thor")),
        ("ssh://thor:2222", Host("thor", 2222, "aot-tuning/thor")),
        ("ssh://me@10.0.0.7:22/data/tune/", Host("me@10.0.0.7", 22, "/data/tune")),
    ],
)
def test_addresses(url, host):
    assert Host.parse(url, "thor") == host


@pytest.mark.parametrize(
    "url", ["thor", "http://thor", "ssh://", "ssh://me:word@thor", "ssh://thor:x", "ssh://-oX@thor"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(RemoteError, match=r"expected ssh://user@host|a login cannot begin with -|there is no"):
        Host.parse(url, "thor")


def fake_ssh(tmp_path, monkeypatch, text):
    path = tmp_path / "bin" / "ssh"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return Link(Host("me@thor", 7, "there"))


def test_words_are_quoted_for_the_shell_there(tmp_path, monkeypatch):
    link = fake_ssh(tmp_path, monkeypatch, 'cat; for x in "$@"; do echo "<$x>"; done')
    lines = link.python("-c", "a b; 'c'", content=b"in\n").decode().splitlines()
    assert lines[0] == "in"
    assert lines[-4:] == ["<-p>", "<7>", "<me@thor>", """<python3 -c 'a b; '"'"'c'"'"''>"""]


def test_a_broken_link_is_told_from_a_failed_program(tmp_path, monkeypatch):
    link = fake_ssh(tmp_path, monkeypatch, "echo gone >&2; exit $CODE")
    monkeypatch.setenv("CODE", "255")
    with pytest.raises(LinkError, match="no connection to me@thor: gone"):
        link.python("x")
    monkeypatch.setenv("CODE", "8")
    with pytest.raises(RemoteError, match="on me@thor, python3 failed with exit code 8; it said: gone") as caught:
        link.python("x")
    assert not isinstance(caught.value, LinkError)


def test_no_client_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RemoteError, match="install the OpenSSH client"):
        Link(Host("thor", None, "x")).python("x")


def test_results_that_arrive_short_are_not_kept(tmp_path):
    class Short(Device):
        def _run(self, *words):
            return json.dumps({"bytes": 9, "sha256": "0"}).encode() + b"\nhalf"

    with pytest.raises(LinkError, match="4 of 9 bytes"):
        Short(Link(Host("thor", None, "x"))).fetch(tmp_path / "r.sqlite")
    assert not (tmp_path / "r.sqlite").exists()


def test_persist_waits_longer_each_time():
    outcomes, slept, said = iter([LinkError("a"), LinkError("b"), LinkError("c"), 7]), [], []

    def action():
        outcome = next(outcomes)
        if isinstance(outcome, LinkError):
            raise outcome
        return outcome

    assert persist(action, said.append, slept.append) == 7
    assert slept == [1.0, 2.0, 4.0]
    assert said[0] == "a; a run goes on there meanwhile; trying again in 1 s"


def test_persist_gives_up_at_last(monkeypatch):
    monkeypatch.setattr(links, "GIVE_UP_S", 3.0)

    def action():
        raise LinkError("gone")

    with pytest.raises(LinkError, match="gone; the run goes on there: the same command finds it again"):
        persist(action, lambda _: None, lambda _: None)


class Twin:
    """A device whose answers are given."""

    def __init__(self, answers):
        self.answers, self.offsets, self.stopped = iter(answers), [], 0

    def status(self, offset):
        self.offsets.append(offset)
        answer = next(self.answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def stop(self):
        self.stopped += 1
        return self.hears


def test_follow_shows_each_piece_once_over_a_lost_link():
    twin = Twin([State(True, None, 3, "one"), LinkError("x"), State(False, 0, 6, "two"), State(False, 0, 6, "")])
    shown = []
    assert follow(twin, lambda _: None, shown.append, lambda _: None) == State(False, 0, 6, "")
    assert twin.offsets == [0, 3, 3, 6]
    assert "".join(shown) == "onetwo"


@pytest.mark.parametrize(
    ("interrupt", "hears", "stopped", "text"),
    [
        (
            KeyboardInterrupt,
            True,
            1,
            (
                "the run there was asked to end in good order; the same command carries on with it, and with "
                "--budget-seconds 0 brings home what it has"
            ),
        ),
        (
            KeyboardInterrupt,
            False,
            1,
            "the run there could not be told in time; if it goes on, the same command finds it again",
        ),
        (Terminated, True, 0, "the run goes on there; the same command finds it again"),
    ],
)
def test_an_interrupt_asks_the_run_there_to_end_and_a_closed_terminal_leaves_it(interrupt, hears, stopped, text):
    said = []
    twin = Twin([interrupt()])
    twin.hears = hears
    with pytest.raises(interrupt):
        follow(twin, said.append, lambda _: None, lambda _: None)
    assert (twin.stopped, said) == (stopped, [text])


@pytest.mark.slow
def test_a_device_that_is_slow_to_hear_is_not_waited_for(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_text(
        f"#!/bin/sh\nwhile [ ! -e {tmp_path}/may_hear ]; do sleep 0.05; done\ntouch {tmp_path}/heard\n"
    )
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert Device(Link(Host("thor", None, "x"))).stop() is False
    (tmp_path / "may_hear").touch()
    start = time.monotonic()
    while not (tmp_path / "heard").exists():
        assert time.monotonic() - start < 100
        time.sleep(0.05)
    (tmp_path / "ssh").write_text("#!/bin/sh\n")
    monkeypatch.setattr(links, "LEAVE_S", 100.0)
    assert Device(Link(Host("thor", None, "x"))).stop() is True


@pytest.mark.parametrize(
    "answer", [b"Welcome!\n{}", b"", b"[]", b"null", b"3", b"[" * 5000, b'{"running": 1}', b"\xff"]
)
def test_an_answer_that_is_none_is_an_error_with_what_it_was(monkeypatch, answer):
    monkeypatch.setattr(Link, "python", lambda *_, **__: answer)
    device = Device(Link(Host("me@thor", None, "x")))
    for ask in (device.check, lambda: device.start([]), lambda: device.status(0)):
        with pytest.raises(RemoteError, match=r"me@thor answered b.*, which is not what run.py prints"):
            ask()


def test_machine_is_compared_with_the_target():
    said = []
    check_machine(MACHINE, THOR, said.append)
    assert said[0] == "aarch64, Python 3.12.3, glibc 2.39"
    assert not any("warning" in line for line in said)
    for wrong in (replace(MACHINE, machine="x86_64"), replace(MACHINE, compute_capability=(8, 7))):
        with pytest.raises(DeviceError, match="target thor is"):
            check_machine(wrong, THOR, said.append)
    with pytest.raises(DeviceError, match="the device has no usable GPU: no driver"):
        check_machine(replace(MACHINE, gpu_error="no driver"), THOR, said.append)


def test_digest_is_of_what_is_shipped(tmp_path):
    make_runner(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(RUNNER)
    before = digest(tmp_path)
    (tmp_path / "results.sqlite").write_bytes(b"x")
    (tmp_path / "aot" / "__pycache__").mkdir()
    (tmp_path / "aot" / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert digest(tmp_path) == before
    (tmp_path / "kernels.so").write_bytes(b"x")
    assert digest(tmp_path) != before
