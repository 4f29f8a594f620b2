"""Find the line of every entry of a TOML document, which tomllib does not tell.

For messages only: the text must have been read by tomllib before.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aot.core.strict_json import Place

_TOKEN = re.compile(
    r'(?P<text>"""(?:\\.|[^\\])*?"{3,5}|' + r"'''.*?'{3,5}|" + r'"(?:\\.|[^"\\])*"|' + r"'[^']*')"
    r"|(?P<comment>#[^\n]*)|(?P<mark>[\[\]{}=,])|(?P<word>[^\s\[\]{}=,#\"']+)",
    re.DOTALL,
)


class _Walk:
    def __init__(self, text: str) -> None:
        ends = [match.start() for match in re.finditer("\n", text)]
        found = [match for match in _TOKEN.finditer(text) if match.lastgroup != "comment"]
        self._tokens = [(match.group(), bisect_right(ends, match.start()) + 1) for match in found]
        self._at = 0
        self._num_tables: dict[Place, int] = {}
        self.lines: dict[Place, int] = {}

    @property
    def _next(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    @property
    def _line(self) -> int:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else 0

    def document(self) -> None:
        table: Place = ()
        while self._next:
            if self._next == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Place:
        line = self._line
        brackets = 0
        while self._next == "[":
            self._at += 1
            brackets += 1
        *parents, last = self._key("]")
        self._at += brackets
        place: Place = ()
        for part in parents:
            place += (part,)
            if place in self._num_tables:
                place += (self._num_tables[place] - 1,)
        place += (last,)
        self.lines.setdefault(place, line)
        if brackets == 2:
            index = self._num_tables.get(place, 0)
            self._num_tables[place] = index + 1
            place += (index,)
            self.lines[place] = line
        return place

    def _key(self, end: str) -> list[str]:
        text = ""
        while self._next not in (end, ""):
            text += self._next
            self._at += 1
        return [part.strip("\"'") for part in text.split(".")]

    def _pair(self, table: Place) -> None:
        line = self._line
        place = (*table, *self._key("="))
        self._at += 1
        self.lines[place] = line
        self._value(place)

    def _value(self, place: Place) -> None:
        opening, line = self._next, self._line
        self._at += 1
        if opening == "[":
            index = 0
            while self._next not in ("]", ""):
                self.lines[*place, index] = self._line
                self._value((*place, index))
                index += 1
                self._at += self._next == ","
            self._at += 1
        elif opening == "{":
            while self._next not in ("}", ""):
                self._pair(place)
                self._at += self._next == ","
            self._at += 1
        else:
            while self._line == line and self._next not in (",", "]", "}", ""):  # a date and its time
                self._at += 1


def entry_lines(text: str) -> dict[Place, int]:
    """Return the line, from 1, of each key, table, and item of a list."""
    walk = _Walk(text)
    walk.document()
    return walk.lines
