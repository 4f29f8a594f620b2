"""Grids that operations share: bf16 and fp16 have kernels of their own, and one choice between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aot.core.dispatch import Column, Grid

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class SharedGrids:
    """Grids whose kernels are numbers of places in a list, and each user's grid and list."""

    grids: tuple[Grid, ...]
    """Each once, in the order in which they are first used."""
    users: tuple[tuple[int, tuple[int, ...]], ...]
    """For each grid that was given: its number among `grids`, and the kernels by their numbers in it."""


def _own_kernels(grid: Grid) -> tuple[int, ...]:
    """List the kernels of a grid, those that most steps name first, and else in the order of the first step.

    So that two grids are one that differ in nothing but what their kernels are called, and most numbers are small.
    """
    return tuple(kernel for kernel, _ in Counter(x for column in grid.columns for x in column.kernels).most_common())


def _renumbered(grid: Grid, kernels: tuple[int, ...]) -> Grid:
    numbers = {kernel: number for number, kernel in enumerate(kernels)}

    def column(found: Column) -> Column:
        return replace(found, kernels=tuple(numbers[x] for x in found.kernels))

    return replace(grid, columns=tuple(map(column, grid.columns)))


def share_grids(grids: Iterable[Grid]) -> SharedGrids:
    """Find which grids are one but for their kernels."""
    found: dict[Grid, int] = {}
    users = []
    for grid in grids:
        kernels = _own_kernels(grid)
        users.append((found.setdefault(_renumbered(grid, kernels), len(found)), kernels))
    return SharedGrids(tuple(found), tuple(users))
