"""What a value in a file may be: ranges of numbers and grammars of texts.

Dataclasses state them as annotations, such as `Annotated[int, Range(1, 8)]`, and `aot.core.strict_json` checks them
when a file is read. A field of a number or a text without one cannot be decoded at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Range:
    """The finite numbers from `low` to `high`, both included, or above `low` with `is_above`."""

    low: float
    high: float
    is_above: bool = False

    def holds(self, value: float) -> bool:
        """Say whether a number is in the range; NaN is in none."""
        return (self.low < value if self.is_above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        """Return the range as messages have it."""
        low, high = (str(x) if isinstance(x, int) else f"{x:g}" for x in (self.low, self.high))
        return f"above {low}, at most {high}" if self.is_above else f"from {low} to {high}"


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@dataclass(frozen=True)
class Grammar:
    """Texts of at most `max_length` characters that a regular expression matches as a whole.

    Texts have printable characters only, whatever the expression says: no control characters, line breaks or halves of
    surrogate pairs.
    """

    pattern: str
    meaning: str
    """What such a text is, for messages: `the name of a target, such as h200`."""
    max_length: int = 100

    def holds(self, value: str) -> bool:
        """Say whether a text is one of these."""
        if len(value) > self.max_length or not value.isprintable():
            return False
        return _compiled(self.pattern).fullmatch(value) is not None

    def __str__(self) -> str:
        """Return the meaning."""
        return self.meaning


@dataclass(frozen=True)
class Form:
    """How a value is written that is not written as its type is: as a `kind`, of which `read` makes it.

    Where the kind is `Any`, `read` takes plain values as they are.

    `read` raises `aot.core.strict_json.DecodeError` where the value is none.
    """

    kind: Any
    read: Callable[[Any], Any]


class Word(str, Enum):  # noqa: UP042 - bundles run on Python 3.10
    """An enumeration whose members are their texts, in JSON and in f-strings."""

    __str__ = str.__str__

    def __format__(self, spec: str) -> str:
        """Format the text, as an f-string does."""
        return format(self.value, spec)


MAX_EXTENT = 2**31 - 1
"""Largest m, n or k: kernels take extents as 32-bit integers."""
MAX_COUNT = 2**63 - 1
"""Largest integer of TOML, SQLite and the C API."""
MAX_TEXT = 4000
"""Characters of the longest text for people."""
MAX_LABEL = 200
"""Characters of the longest name of a record, a source or an option."""

Extent = Annotated[int, Range(1, MAX_EXTENT)]
Index = Annotated[int, Range(0, MAX_EXTENT)]
Count = Annotated[int, Range(0, MAX_COUNT)]
Positive = Annotated[int, Range(1, MAX_COUNT)]
Version = Annotated[int, Range(0, MAX_EXTENT)]

Microseconds = Annotated[float, Range(0, 1e12)]
"""A time, or 0 where there is none."""
Seconds = Annotated[float, Range(0, 1e12)]
Rate = Annotated[float, Range(0, 1e24, is_above=True)]
"""A positive rate, time or factor."""
Share = Annotated[float, Range(0, 1)]
Excess = Annotated[float, Range(-1, 1e12)]
"""How far something is above something else, as a share of that: a regret."""
Error = Annotated[float, Range(0, 1e300)]
"""A relative error of a result, however wrong."""

Text = Annotated[str, Grammar(r".*", "one line of printable text of at most 4000 characters", MAX_TEXT)]
Label = Annotated[str, Grammar(r".+", "one line of 1 to 200 printable characters", MAX_LABEL)]
TargetName = Annotated[str, Grammar(r"[a-z][a-z0-9_]*", "the name of a target, such as h200", 40)]
Arch = Annotated[str, Grammar(r"sm_[1-9][0-9]{1,2}[af]?", "an architecture, such as sm_90a")]
FamilyName = Annotated[str, Grammar(r"[a-z][a-z0-9_]*", "the name of a kernel family, such as sm90_quack", 40)]
Schedule = Annotated[str, Grammar(r"[a-z0-9_]*", "a schedule, such as pingpong", 40)]
Identifier = Annotated[str, Grammar(r"[A-Za-z_][A-Za-z0-9_]*", "a C identifier", 400)]
KernelName = Annotated[str, Grammar(r"[a-z][a-z0-9_]*", "the name of a kernel", 200)]
Sha256 = Annotated[str, Grammar(r"[0-9a-f]{64}", "a SHA-256 of 64 hexadecimal digits")]
Date = Annotated[str, Grammar(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "a date, such as 2026-11-20")]
Protocol = Annotated[str, Grammar(r"[a-z0-9][a-z0-9_.-]*", "a timing protocol, such as graph-cold-l2-pdl-v1")]
Distribution = Annotated[str, Grammar(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", "the name of a distribution")]
Release = Annotated[str, Grammar(r"[0-9][A-Za-z0-9.+!_-]*", "a version, such as 4.8.1")]


def one_line(text: str, max_length: int = MAX_TEXT) -> str:
    """Make a text one that `Text` holds: one line, what is not printable replaced, and cut where it is too long."""
    line = "".join(x if x.isprintable() else "?" for x in " ".join(text.split()))
    return line if len(line) <= max_length else f"{line[: max_length - 3]}..."
