"""Single columns and ladders of the manifest's tables, which are packed: aot/package/packed_table.py of the toolchain.

The manifest was compared with its hash, so that nothing is checked here.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

_VALUES = {digit: value for value, digit in enumerate(chr(x) for x in range(0x21, 0x7F) if chr(x) not in '"\\')}
_NUM_LAST = 64
"""Twins of the toolchain's number_text.py, as `numbers` and `_unsigned` are."""
MEASURED = "measured"
_PROVENANCES = (MEASURED, "predicted")


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


def grid_of(table: dict[str, Any], section: dict[str, Any]) -> dict[str, Any]:
    """Return the grid of a section, which it may share with others of its table."""
    grid: dict[str, Any] = table["grids"][section["grid"]]
    return grid


def column_edges(grid: dict[str, Any], column: int) -> list[int]:
    """Return the upper edges of m of a column."""
    return [grid["m_edges"][place - 1] for place in accumulate(numbers(grid["gaps"][column]))]


def find_ladder(section: dict[str, Any], n: int, k: int) -> int:
    """Return the number of the ladder of an n and k.

    Raises:
        ValueError: there is none.
    """
    ladders = section["ladders"]
    return list(zip(ladders["n"], ladders["k"], strict=True)).index((n, k))


def ladder_edges(section: dict[str, Any], ladder: int) -> list[int]:
    """Return the upper edges of m of a ladder."""
    return list(accumulate(numbers(section["ladders"]["gaps"][ladder])))


def edges_with_library(section: dict[str, Any], ladder: int) -> list[int]:
    """Return the upper edges of m at which both the kernel's time and torch's were measured."""
    columns = (numbers(section["ladders"][name][ladder]) for name in ("provenances", "library"))
    rows = zip(ladder_edges(section, ladder), *columns, strict=True)
    return [edge for edge, provenance, library in rows if library and _PROVENANCES[provenance] == MEASURED]


def row_of(section: dict[str, Any], ladder: int, step: int) -> Row:
    """Return a row of a ladder."""

    def column(name: str) -> list[int]:
        return numbers(section["ladders"][name][ladder])

    kernel, general = column("kernels")[step], column("generals")[step]
    time_ns = sum(map(_unsigned, column("times")[: step + 1]))
    library = column("library")[step]
    return Row(
        kernel=section["kernels"][kernel],
        general=section["kernels"][general - 1 if general else kernel],
        provenance=_PROVENANCES[column("provenances")[step]],
        time_us=time_ns / 1000,
        runner_up=section["kernels"][column("runners_up")[step]],
        runner_up_us=(time_ns + _unsigned(column("margins")[step])) / 1000,
        library_us=(time_ns + _unsigned(library - 1)) / 1000 if library else None,
    )
