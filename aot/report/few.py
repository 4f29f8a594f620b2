"""Which of many rows a chart draws, so that a page stays of a few MiB and nothing that stands out is lost. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aot.report.facts import Cell

MOST_POINTS = 300
"""Points of a chart: a point takes 250 bytes with what is said on pointing, and its row of the table 100."""
MOST_LADDERS = 60
"""Rows of a map: 1,080 units, some two screens."""
MOST_BANDS = 32
"""Bands of n in a panel of tier 2, each of 5 units."""
SMALLEST_BIN = 2.0
"""Units; points have a radius of 4, so that two that share such a bin cover each other."""


def points(cells: Sequence[Cell], place: Callable[[Cell], tuple[float, float]], most: int = MOST_POINTS) -> list[Cell]:
    """Choose the rows whose points are drawn: of those that lie together the one that reaches least of its roofline.

    A point with none near it is always among them, for bins grow only until few enough are occupied.

    Args:
        cells: all rows.
        place: gives a row's place in units.
        most: rows that are chosen at most.
    """
    if len(cells) <= most:
        return list(cells)
    places = [place(cell) for cell in cells]
    size = SMALLEST_BIN
    while True:
        least: dict[tuple[int, int], int] = {}
        for i, (x, y) in enumerate(places):
            of_bin = int(x // size), int(y // size)
            if of_bin not in least or cells[i].fraction < cells[least[of_bin]].fraction:
                least[of_bin] = i
        if len(least) <= most:
            return [cells[i] for i in sorted(least.values())]
        size *= 1.25


def ladders(rows: Sequence[list[Cell]], most: int = MOST_LADDERS) -> list[list[Cell]]:
    """Choose the ladders that are drawn: of neighbours the one with the row that reaches least of its roofline.

    Rows whose time was measured go before others: of those the figures are known.
    """
    if len(rows) <= most:
        return list(rows)
    bounds = [i * len(rows) // most for i in range(most + 1)]

    def rank(row: list[Cell]) -> tuple[bool, float]:
        measured = [cell.fraction for cell in row if cell.is_measured]
        return not measured, min(measured or (cell.fraction for cell in row))

    return [min(rows[low:high], key=rank) for low, high in pairwise(bounds)]


def bands(count: int, most: int = MOST_BANDS) -> list[int]:
    """Choose the steps of an axis that are drawn, evenly and with the last; each stands for those below it."""
    return [(i + 1) * count // most - 1 for i in range(most)] if count > most else list(range(count))


def said(shown: int, total: int, what: str, by: str) -> str:
    """Say that not all is drawn, and how what is was chosen; nothing where all is."""
    return f" {shown:,} of {total:,} {what} are drawn: {by}." if shown < total else ""
