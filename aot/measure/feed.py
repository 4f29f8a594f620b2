"""Portions of a tuning that are handed to a run while it goes on: a file beside its results, a line of JSON each.

So one process measures what a fleet gives it bit by bit, with its kernels loaded and its device watched all the while.
The run waits for a line, does what it asks for, and writes the line's number to another file. It ends by itself after
the line `end`, and when nobody hands it anything for IDLE_S.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from aot.core.constraints import Count, Index, Text
from aot.core.errors import StoreError
from aot.core.strict_json import DecodeError, decode, parse_json
from aot.measure.background import FEED, PORTION, beside, last_done

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

IDLE_S = 120.0
"""How long a run waits for its next portion before it gives the device back."""
LOOK_S = 0.02
"""Between two looks at the file."""


@dataclass(frozen=True)
class Portion:
    """What to do next: kernels and problems are numbers in the bundle's files."""

    number: Count
    """Counts the portions that this run is given, from 1."""
    kernels: tuple[Index, ...] = ()
    """Kernels to verify on the edge shapes."""
    problems: tuple[Index, ...] = ()
    """Problems to measure."""
    anew: tuple[Index, ...] = ()
    """Those of the problems that this run has measured before, whose times are not believed."""
    sound: tuple[Index, ...] = ()
    """Kernels that other runs have verified, on devices of this kind."""
    failed: tuple[tuple[Index, Text], ...] = ()
    """Kernels that other runs have quarantined, with the reason."""
    is_end: bool = False


def line_of(portion: Portion) -> str:
    """Write a portion as a line of the feed."""
    return json.dumps(asdict(portion), sort_keys=True) + "\n"


def note_done(out: Path, portion: Portion) -> None:
    """Say that a portion is done and in the store."""
    partial = beside(out, f"{PORTION}.partial")
    partial.write_text(f"{portion.number}\n", encoding="ascii")
    partial.replace(beside(out, PORTION))


def _complete_lines(out: Path) -> list[str]:
    try:
        return beside(out, FEED).read_text(encoding="ascii").split("\n")[:-1]
    except FileNotFoundError:
        return []


def portions(
    out: Path,
    wait: Callable[[], None],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    idle_s: float = IDLE_S,
) -> Iterator[Portion]:
    """Give the portions that are not done yet, waiting for more, until the end.

    Args:
        out: the results.
        wait: called again and again while there is nothing to do; it may end the waiting by an exception.
        now: tells the time in seconds.
        sleep: waits for some seconds.
        idle_s: how long to wait for the next.

    Raises:
        StoreError: a line is none that `hand_over` writes.
    """
    number, since = last_done(out), now()
    while True:
        lines = _complete_lines(out)
        fresh = [found for found in map(_portion, lines) if found.number > number]
        if not fresh and now() - since > idle_s:
            return
        for portion in fresh:
            if portion.is_end:
                return
            if portion.number > number:  # a line whose sender did not know that it had arrived is there twice
                yield portion
                number, since = portion.number, now()
        if not fresh:
            sleep(LOOK_S)
            wait()


def _portion(line: str) -> Portion:
    try:
        return decode(Portion, parse_json(line))
    except DecodeError as error:
        raise StoreError(f"cannot read a portion that was handed over: {error}; start the worker again") from error
