"""Regular expressions over names of modules, matched in bounded time, since a stranger's configuration states them."""

from __future__ import annotations

import math
import re
import time
import warnings
from typing import Any

from aot.core.constraints import one_line
from aot.core.errors import ShapeFileError

MOST_SECONDS = 10.0
"""That all patterns of a configuration may take. Source: one takes 8 us for a name, and models have thousands."""
MOST_REPEATS = 10_000
"""What the counts of a pattern's repeats may multiply to, which `regex` writes out where one stands in another."""
SHOWN = 60
"""Characters of a pattern that an error shows."""

_COUNTS = re.compile(r"\{(\d*),?(\d*)\}")
_NOT_OF_RE = re.compile(r"\{[a-z]|\[\[:")
"""What `regex` reads in another way than `re`: fuzzy matches, and classes of POSIX."""


class TimeLeft:
    """What the patterns of a configuration may still take."""

    def __init__(self) -> None:
        """Begin with all of it."""
        self.seconds = MOST_SECONDS


class PartOfName:
    """The name of a module, of one that it is in, or the last parts of it."""

    def __init__(self, text: str) -> None:
        """Hold it."""
        self._text = f".{text}."

    def match(self, name: str) -> bool:
        """Say whether a name has it."""
        return self._text in f".{name}."


class NamePattern:
    """A regular expression of `re`, which the package `regex` matches, since that gives up in time."""

    def __init__(self, text: str, left: TimeLeft) -> None:
        """Read it.

        Args:
            text: the expression.
            left: shared by the patterns of a configuration.

        Raises:
            ValueError: it is none of `re`, or repeats parts more often than any published one.
        """
        import regex

        self._text, self._left = text, left
        counts = [max(int(x or 0) for x in found.groups()) for found in _COUNTS.finditer(text)]
        if math.prod(max(x, 1) for x in counts) > MOST_REPEATS or _NOT_OF_RE.search(text):
            raise ValueError(text)
        try:
            with warnings.catch_warnings(action="ignore"):
                re.compile(text)
                self._pattern: Any = regex.compile(text)
        except (re.error, regex.error, OverflowError, RecursionError) as error:
            raise ValueError(text) from error

    def match(self, name: str) -> bool:
        """Say whether a name begins with it.

        Raises:
            ShapeFileError: the configuration's patterns have taken too long.
        """
        began = time.monotonic()
        try:
            return self._pattern.match(name, timeout=max(self._left.seconds, 0.001)) is not None
        except TimeoutError as error:
            shown = ascii(one_line(self._text, SHOWN))
            raise ShapeFileError(
                f"quantization_config: patterns take more than {MOST_SECONDS:g} s to be matched, the last of them "
                f"{shown}; expected such as 're:.*mlp\\.gate$'; write names, or patterns without repeats within repeats"
            ) from error
        finally:
            self._left.seconds -= time.monotonic() - began
