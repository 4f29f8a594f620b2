"""What lasts is told of on standard error: what, how far and how long; what does not last is not."""

from __future__ import annotations

import io
import re
import sys
import threading

import pytest

from aot.core import progress
from aot.core.progress import waiting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def wait_for(stream, text):
    """Wait until a text has been said; at most ten seconds."""
    for _ in range(1000):
        if text in stream.getvalue():
            return
        threading.Event().wait(0.01)
    pytest.fail(f"{text!r} was not said: {stream.getvalue()!r}")


def test_nothing_is_said_of_what_is_soon_done(monkeypatch):
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    with waiting("read the record") as at:
        at("1 of 2")
    assert said.getvalue() == ""


def test_a_terminal_is_told_before_a_log(monkeypatch):
    monkeypatch.setattr(progress, "DELAY_S", 0.01)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with waiting("read the record"):
        wait_for(terminal, "... read the record, 0 s")
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    with waiting("read the record"):
        threading.Event().wait(0.2)
    assert log.getvalue() == ""


def test_a_log_gets_a_line_now_and_then(monkeypatch):
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    with waiting("read the record", delay_s=0.01, interval_s=0.01) as at:
        wait_for(said, "... read the record, 0 s\n")
        at("1 of 2")
        wait_for(said, "... read the record: 1 of 2, 0 s\n")
    assert re.fullmatch(r"(\.\.\. read the record(: 1 of 2)?, \d+ s\n)+", said.getvalue())


def test_a_terminal_has_one_line_which_is_cleared(monkeypatch):
    monkeypatch.setattr(sys, "stderr", said := Terminal())
    with waiting("read the record", delay_s=0.01, interval_s=0.01):
        wait_for(said, "\r\x1b[K... read the record, 0 s")
    assert "\n" not in said.getvalue()
    assert said.getvalue().endswith("\r\x1b[K")


def test_an_error_ends_it_and_goes_on(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with pytest.raises(ValueError, match=r"^no$"), waiting("read the record", delay_s=0.0, interval_s=0.01):
        raise ValueError("no")
    assert [x.name for x in threading.enumerate() if x.name == "aot-progress"] == []


def test_a_standard_error_that_is_closed_is_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", closed := io.StringIO())
    with waiting("read the record", delay_s=0.0, interval_s=0.01):
        closed.close()
        threading.Event().wait(0.05)
