"""Single ladders of the manifest's tables, which are packed: aot/package/packed_table.py of the toolchain.

The manifest was compared with its hash, so that nothing is checked here.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_VALUES = {digit: value for value, digit in enumerate(chr(x) for x in range(0x21, 0x7F) if chr(x) not in '"\\')}
_NUM_LAST = 64
"""Twins of the toolchain's number_text.py, as `numbers`, `_unsigned` and `_time_of` are."""
MEASURED, PREDICTED = "measured", "predicted"
_PROVENANCES = (MEASURED, PREDICTED)


class Row(NamedTuple):
    """A row of a ladder."""

    kernel: int
    general: int
    """The kernel for problems that are no multiples of what `kernel` takes."""
    provenance: str
    time_us: float
    runner_up: int
    runner_up_us: float
    library_us: float | None
    """What torch takes; None where that was not timed."""


def numbers(text: str) -> list[int]:
    """Read the numbers of a text."""
    found, high = [], 0
    for digit in text:
        value = _VALUES[digit]
        if value < _NUM_LAST:
            found.append(high * _NUM_LAST + value)
            high = 0
        else:
            high = high * (len(_VALUES) - _NUM_LAST) + value - _NUM_LAST
    return found


def _unsigned(number: int) -> int:
    return -(number + 1) // 2 if number % 2 else number // 2


def _time_of(number: int) -> float:
    tens = max(0, (number - 100) // 900)
    return (number - 900 * tens) * 10**tens / 1000


class Ladder(NamedTuple):
    """A ladder of a section, or of one before it whose ladder it is, by the section's own kernels."""

    lists: dict[str, list[str]]
    place: int
    """In the lists."""
    kernels: list[int]
    is_own: bool

    def column(self, name: str) -> list[int]:
        """Return what a list has for each row."""
        return numbers(self.lists[name][self.place])


def _sizes(section: dict[str, Any]) -> list[tuple[int, int]]:
    return list(zip(section["ladders"]["n"], section["ladders"]["k"], strict=True))


def own_ladders(section: dict[str, Any]) -> Iterator[tuple[tuple[int, int], Ladder]]:
    """List the ladders of a section that are no other one's, each behind its n and k."""
    lists = section["ladders"]
    for i, size in enumerate(_sizes(section)):
        if lists["gaps"][i]:
            yield size, Ladder(lists, i, section["kernels"], is_own=True)


def find_ladder(table: dict[str, Any], section: dict[str, Any], n: int, k: int) -> Ladder:
    """Return the ladder of an n and k.

    Raises:
        ValueError: there is none.
    """
    lists, place = section["ladders"], _sizes(section).index((n, k))
    if lists["gaps"][place]:
        return Ladder(lists, place, section["kernels"], is_own=True)
    for other in (x for x in table["sections"] if x["grid"] == section["grid"]):
        own = {size: i for i, size in enumerate(_sizes(other))}.get((n, k))
        if own is not None and other["ladders"]["gaps"][own]:
            return Ladder(other["ladders"], own, section["kernels"], is_own=False)
    raise ValueError(f"no section has a ladder of n {n} and k {k}")


def ladder_edges(ladder: Ladder) -> list[int]:
    """Return the upper edges of m of a ladder."""
    return list(accumulate(ladder.column("gaps")))


def edges_with_library(ladder: Ladder) -> list[int]:
    """Return the upper edges of m at which both the kernel's time and torch's were measured."""
    if not ladder.is_own:
        return []
    rows = zip(ladder_edges(ladder), ladder.column("provenances"), ladder.column("library"), strict=True)
    return [edge for edge, provenance, library in rows if library and _PROVENANCES[provenance] == MEASURED]


def row_of(ladder: Ladder, step: int) -> Row:
    """Return a row of a ladder."""
    kernel, general = ladder.column("kernels")[step], ladder.column("generals")[step]
    time = sum(map(_unsigned, ladder.column("times")[: step + 1]))
    library = ladder.column("library")[step] if ladder.is_own else 0
    return Row(
        kernel=ladder.kernels[kernel],
        general=ladder.kernels[general - 1 if general else kernel],
        provenance=_PROVENANCES[ladder.column("provenances")[step]] if ladder.is_own else PREDICTED,
        time_us=_time_of(time),
        runner_up=ladder.kernels[ladder.column("runners_up")[step]],
        runner_up_us=_time_of(time + _unsigned(ladder.column("margins")[step])),
        library_us=_time_of(time + _unsigned(library - 1)) if library else None,
    )
