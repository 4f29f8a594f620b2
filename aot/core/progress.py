"""Say on standard error what lasts, how far it is and how long it has taken: on a terminal after two seconds."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DELAY_S = 2.0
"""On a terminal, nothing is said of what takes less."""
TERMINAL_S, LOG_S = 1.0, 15.0
"""Seconds between two words of progress: on a terminal, where each takes the last one's place, and in a log, where the
first comes after as many."""
_CLEAR = "\r\x1b[K"
"""Source: ECMA-48, EL: erase the line."""


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # standard error may have been closed
        sys.stderr.write(text)
        sys.stderr.flush()


def quietly(_how_far: str) -> None:
    """Say nothing of how far something is."""


@contextmanager
def waiting(
    what: str, *, delay_s: float | None = None, interval_s: float | None = None
) -> Iterator[Callable[[str], None]]:
    """Say what is being done while a `with` block lasts; gives what is to be called with how far it is.

    Args:
        what: what is done, such as `read the record`.
        delay_s: seconds before anything is said; by default as standard error is a terminal or not.
        interval_s: seconds between two words; likewise.
    """
    ended, start = threading.Event(), time.monotonic()
    is_terminal = bool(sys.stderr and sys.stderr.isatty())
    interval = interval_s or (TERMINAL_S if is_terminal else LOG_S)
    delay = (DELAY_S if is_terminal else LOG_S) if delay_s is None else delay_s
    place = [""]

    def tell() -> None:
        if ended.wait(delay):
            return
        while True:
            line = f"... {what}{place[0]}, {time.monotonic() - start:.0f} s"
            _say(f"{_CLEAR}{line}" if is_terminal else f"{line}\n")
            if ended.wait(interval):
                break
        if is_terminal:
            _say(_CLEAR)

    def at(how_far: str) -> None:
        place[0] = f": {how_far}"

    teller = threading.Thread(target=tell, daemon=True, name="aot-progress")
    teller.start()
    try:
        yield at
    finally:
        ended.set()
        teller.join()
