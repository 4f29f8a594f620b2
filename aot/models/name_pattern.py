"""Regular expressions over names of modules, matched in bounded time, since a stranger's configuration states them.

A name has few places. A pattern is read as steps from a set of places, a bit each in an int, to the set of those where
the step may end, so that nothing is tried again for each way to get to a place. Steps are counted, and a pattern that
takes far more of them than any published one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from aot.core.constraints import one_line
from aot.core.errors import ShapeFileError

MOST_WORK = 2_000_000
"""Steps of one pattern over all names: a second. Source: `re:.*mlp\\.gate$` takes three for each name, and a model of
100 layers has some 100,000."""
MAX_DEPTH = 40
"""Most groups within each other."""
SHOWN = 60

_Step = Callable[["Subject", int], int]
_PIECE = re.compile(
    r"(?P<group>\((?:\?(?::|=|!|<=|<!|P<\w+>))?(?!\?))|(?P<end>[)|])"
    r"|(?P<repeat>(?:[*+?]|\{(?:\d+,?\d*|,\d*)\})\??(?!\+))"
    r"|(?P<place>[\^$]|\\[AbBZ])|(?P<one>\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\\[^a-zA-Z0-9]|\\[dDsSwWnt]|[^\\*+?()|])",
    re.DOTALL,
)
_FLAGS = re.compile(r"\(\?([ai]+)\)")
_BOUNDS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Subject:
    """A name, and where the parts of patterns begin in it."""

    def __init__(self, name: str) -> None:
        """Read no pattern yet."""
        self.every, self.left = (2 << len(name)) - 1, 0
        self.between_dots = f".{name}."
        self._name, self._begins = name, dict[re.Pattern[str], int]()

    def begins(self, part: re.Pattern[str]) -> int:
        """Return the places at which a part that takes no characters is found."""
        found = self._begins.get(part)
        if found is None:
            found = self._begins[part] = sum(1 << x.start() for x in part.finditer(self._name))
        return found

    def work(self) -> None:
        """Count a step."""
        self.left -= 1
        if self.left < 0:
            raise _TooLongError


class _TooLongError(Exception):
    """A pattern has taken all the steps that it may."""


class PartOfName:
    """The name of a module, of one that it is in, or the last parts of it."""

    def __init__(self, text: str) -> None:
        """Hold it."""
        self._text = f".{text}."

    def match(self, subject: Subject) -> bool:
        """Say whether a name has it."""
        return self._text in subject.between_dots


class NamePattern:
    """A regular expression of a configuration."""

    def __init__(self, text: str) -> None:
        """Read it.

        Raises:
            ShapeFileError: it has what this reads not: references to groups, conditions, atomic groups, or flags but i.
            re.error: it is none.
        """
        re.compile(text)
        self._text, self._left = text, MOST_WORK
        flags = _FLAGS.match(text)
        self._flags, self._at = (re.IGNORECASE if flags and "i" in flags[1] else 0), flags.end() if flags else 0
        self._step = self._branches(0)

    def match(self, subject: Subject) -> bool:
        """Say whether a name begins with it.

        Raises:
            ShapeFileError: its matches have taken too long.
        """
        subject.left = self._left
        try:
            return self._step(subject, 1) != 0
        except _TooLongError as error:
            raise self._error("takes too long to be matched") from error
        finally:
            self._left = subject.left

    def _error(self, what: str) -> ShapeFileError:
        shown = ascii(one_line(self._text, SHOWN))
        return ShapeFileError(
            f"quantization_config: the pattern {shown} {what}; expected one such as 're:.*mlp\\.gate$'; write names, "
            "or a pattern without repeats within repeats and references to groups"
        )

    def _branches(self, depth: int) -> _Step:
        """Read alternatives, up to the end of their group."""
        if depth > MAX_DEPTH:
            raise self._error(f"has more than {MAX_DEPTH} groups within each other")
        branches = [self._sequence(depth)]
        while self._text[self._at : self._at + 1] == "|":
            self._at += 1
            branches.append(self._sequence(depth))
        return branches[0] if len(branches) == 1 else partial(_any, branches)

    def _sequence(self, depth: int) -> _Step:
        """Read what follows each other; characters with a place each are one part."""
        steps, part, width = list[_Step](), "", 0

        def joined() -> list[_Step]:
            return [*steps, partial(_part, self._part(part), width)] if part else steps

        while self._at < len(self._text):
            found = _PIECE.match(self._text, self._at)
            if found is None:
                raise self._error(f"has what is not read, at character {self._at + 1}")
            if found["end"]:
                break
            self._at = found.end()
            step = self._group(found["group"], depth) if found["group"] else None
            least, most = self._bounds()
            if step is None and (least, most) == (1, 1):
                part, width = part + found[0], width + (found["one"] is not None)
                continue
            step = step or partial(_part, self._part(found[0]), int(found["one"] is not None))
            steps, part, width = joined(), "", 0
            is_run = found["one"] is not None and (least, most) == (0, None)
            if is_run:
                step = partial(_run, self._part(found[0]))
            elif (least, most) != (1, 1):
                step = partial(_repeated, step, least, most)
            steps.append(step)
        return partial(_all, joined())

    def _part(self, text: str) -> re.Pattern[str]:
        return re.compile(f"(?={text})", self._flags)

    def _bounds(self) -> tuple[int, int | None]:
        """Read how often what was read may stand."""
        found = _PIECE.match(self._text, self._at)
        if found is None or found["repeat"] is None:
            return 1, 1
        self._at = found.end()
        repeat = found["repeat"][:1] if found["repeat"][0] in _BOUNDS else found["repeat"].rstrip("?")
        if repeat in _BOUNDS:
            return _BOUNDS[repeat]
        least, comma, most = repeat[1:-1].partition(",")
        return int(least or 0), int(most) if most else None if comma else int(least)

    def _group(self, begin: str, depth: int) -> _Step:
        """Read a group, behind its beginning."""
        step = self._branches(depth + 1)
        self._at += 1
        if begin in ("(?=", "(?!"):
            return partial(_ahead, step, begin == "(?=")
        return partial(_behind, step, begin == "(?<=") if begin.startswith("(?<") else step


def _part(part: re.Pattern[str], width: int, subject: Subject, places: int) -> int:
    subject.work()
    return (places & subject.begins(part)) << width


def _run(one: re.Pattern[str], subject: Subject, places: int) -> int:
    """Return where a run of characters of one kind may end: a carry runs to the end of each."""
    subject.work()
    kind = subject.begins(one)
    starts = places & kind
    return places | starts | ((starts + kind) ^ kind)


def _all(steps: list[_Step], subject: Subject, places: int) -> int:
    for step in steps:
        if not places:
            break
        places = step(subject, places)
    return places


def _any(steps: list[_Step], subject: Subject, places: int) -> int:
    found = 0
    for step in steps:
        found |= step(subject, places)
    return found


def _repeated(step: _Step, least: int, most: int | None, subject: Subject, places: int) -> int:
    """Return where a step may end that is taken `least` to `most` times.

    Of more times than the name has places, one takes no characters, and might be taken again.
    """
    num_places = subject.every.bit_length()
    for _ in range(min(least, num_places)):
        subject.work()
        places = step(subject, places)
    found = new = places
    for _ in range(num_places if most is None else min(most - least, num_places)):
        if not new:
            break
        subject.work()
        new = step(subject, new) & ~found
        found |= new
    return found


def _ahead(step: _Step, is_wanted: bool, subject: Subject, places: int) -> int:
    found = 0
    while places:
        subject.work()
        place = places & -places
        places ^= place
        found |= place if (step(subject, place) != 0) == is_wanted else 0
    return found


def _behind(step: _Step, is_wanted: bool, subject: Subject, places: int) -> int:
    subject.work()
    found = step(subject, subject.every)
    return places & (found if is_wanted else ~found)
