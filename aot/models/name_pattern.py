"""Regular expressions over names of modules, matched in bounded time, since a stranger's configuration states them."""

from __future__ import annotations

import time
from typing import Any

from aot.core.constraints import one_line
from aot.core.errors import ShapeFileError

MOST_SECONDS = 1.0
"""That one pattern may take over all names of a model. Source: `re:.*mlp\\.gate$` takes 50 ms over 100,000 names."""
SHOWN = 60
"""Characters of a pattern that an error shows."""


class PartOfName:
    """The name of a module, of one that it is in, or the last parts of it."""

    def __init__(self, text: str) -> None:
        """Hold it."""
        self._text = f".{text}."

    def match(self, name: str) -> bool:
        """Say whether a name has it."""
        return self._text in f".{name}."


class NamePattern:
    """A regular expression of a configuration, which the package `regex` matches as `re` does, and gives up in time."""

    def __init__(self, text: str) -> None:
        """Read it.

        Raises:
            ValueError: it is none.
        """
        import regex

        self._text, self._left = text, MOST_SECONDS
        try:
            self._pattern: Any = regex.compile(text)
        except (regex.error, OverflowError, RecursionError) as error:
            raise ValueError(str(error)) from error

    def match(self, name: str) -> bool:
        """Say whether a name begins with it.

        Raises:
            ShapeFileError: its matches have taken too long.
        """
        began = time.monotonic()
        try:
            return self._pattern.match(name, timeout=max(self._left, 0.001)) is not None
        except TimeoutError as error:
            shown = ascii(one_line(self._text, SHOWN))
            raise ShapeFileError(
                f"quantization_config: the pattern {shown} takes more than {MOST_SECONDS:g} s to be matched; "
                "expected one such as 're:.*mlp\\.gate$'; write names, or a pattern without repeats within repeats"
            ) from error
        finally:
            self._left -= time.monotonic() - began
