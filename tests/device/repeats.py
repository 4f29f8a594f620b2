"""Which calls give the same bits again: from run to run, whatever m is, and whatever other rows and groups hold."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

MOST_ROWS = 8192
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""By the bytes of an element, what its bits are compared as: NaN equals itself, and 0 not -0."""


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bits as integers."""
    return tensor.contiguous().view(BITS[tensor.element_size()])


def count_varying(call: Callable[[], torch.Tensor], runs: int) -> int:
    """Count the runs whose bits are not those of the first."""
    first = bits(call())
    return sum(not torch.equal(bits(call()), first) for _ in range(runs - 1))


def edges(edge_of: Callable[[int], int]) -> set[int]:
    """Return the upper edges of m at which a table may choose another kernel, up to that past MOST_ROWS.

    Args:
        edge_of: gives the upper edge of the bucket that answers for m; past the last bucket, its edge.
    """
    found, m = set[int](), 1
    while m <= MOST_ROWS and m <= (edge := edge_of(m)):
        found.add(edge)
        m = edge + 1
    return found


def sampled_rows(known: Iterable[int]) -> list[int]:
    """Return m from 1 to MOST_ROWS: each edge and its neighbours, the small ones, and some between."""
    near = (x + step for x in known for step in (-1, 0, 1))
    powers = (2**i + step for i in range(14) for step in (-1, 0, 1))
    sample = {*range(1, 34), *range(40, MOST_ROWS, 613), *near, *powers, MOST_ROWS}
    return sorted(x for x in sample if 1 <= x <= MOST_ROWS)


@dataclass(frozen=True)
class Rows:
    """A call of any number of rows: `call(x)` gives as many rows as x has, each by its own row of x alone."""

    x: torch.Tensor
    """(MOST_ROWS, k)."""
    call: Callable[[torch.Tensor], torch.Tensor]

    def varying_with_m(self, sample: Iterable[int]) -> Iterator[int]:
        """Give the m at which some row has other bits than among all rows."""
        whole = bits(self.call(self.x))
        for m in sample:
            if not torch.equal(bits(self.call(self.x[:m])), whole[:m]):
                yield m

    def varying_with_neighbours(self, sample: Iterable[int]) -> Iterator[int]:
        """Give the m at which the first, middle or last row has other bits where all other rows are NaN."""
        for m in sample:
            expected = bits(self.call(self.x[:m]))
            for row in {0, m // 2, m - 1}:
                alone = torch.full_like(self.x[:m].float(), float("nan")).to(self.x.dtype)
                alone[row] = self.x[row]
                if not torch.equal(bits(self.call(alone))[row], expected[row]):
                    yield m
                    break


@dataclass(frozen=True)
class Placement:
    """Where some rows lie among groups of rows."""

    sizes: tuple[int, ...]
    """Rows of each group."""
    group: int
    """The group that they are all in."""
    places: tuple[int, ...]
    """The row of all groups that each of them is, in any order."""
    is_nan: bool = False
    """Whether all other rows hold NaN."""

    @property
    def ends(self) -> list[int]:
        return list(itertools.accumulate(self.sizes))


def alone(rows: int) -> Placement:
    """Return the placement of rows that are the only group."""
    return Placement((rows,), 0, tuple(range(rows)))


def placements(rng: random.Random, count: int, rows: int) -> Iterator[Placement]:
    """Draw placements of some rows: in groups that they fill or that are far larger, beside empty and large ones."""
    for _ in range(count):
        groups, largest = rng.choice((1, 2, 8, 64)), rng.choice((1, 16, 300))
        sizes = [rng.choice((0, 1, rng.randint(0, largest))) for _ in range(groups)]
        group = rng.randrange(groups)
        sizes[group] = rows + rng.choice((0, 1, 30, 100, 500, 4000))
        first = sum(sizes[:group])
        places = rng.sample(range(first, first + sizes[group]), rows)
        yield Placement(tuple(sizes), group, tuple(places), rng.random() < 0.5)


def varying_with_groups(
    call: Callable[[Placement], torch.Tensor], rows: int, drawn: Iterable[Placement]
) -> Iterator[Placement]:
    """Give the placements in which some row has other bits than in a group of its own, without other groups.

    Args:
        call: gives what is computed of the rows, in their own order.
        rows: how many there are.
        drawn: what is tried.
    """
    expected = bits(call(alone(rows)))
    for placement in drawn:
        if not torch.equal(bits(call(placement)), expected):
            yield placement
