"""How many times as fast as torch a product was, by times of both that were measured in one run. Needs no GPU."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from . import _packed
from ._enumerations import TIERS
from ._request import request_of
from ._table import select

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._request import Computed

NEAR = 2.0
"""Times of a product are taken to hold for up to so many times its rows, and down to such a part of them.

An assumption: how ratios change between was not measured."""
ADDED_ELEMENTS = 3
"""That a kernel reads and writes for each element of a sum of two."""


def measured_gain(m: int, n: int, k: int, dtype: Any, **options: Unpack[Computed]) -> float | None:
    """Return how many times as fast as torch a product of packed operands is by the table, in `linear`'s layout.

    It is the least of what was measured with the next fewer and the next more rows by the same weight's sizes. What a
    residual takes torch is left out of its time: torch's compiler adds it in the norm behind.

    Returns:
        None where no times of both are known near.
    """
    request = request_of(dtype, **options)
    selection = select(request, "kk", (m, n, k), 1, 0, None)
    if TIERS[selection.tier] != "tuned":
        return None
    table = selection.manifest["tables"][selection.table]
    section = table["table"]["sections"][selection.section]
    ladder = _packed.find_ladder(section, n, k)
    known = _packed.edges_with_library(section, ladder)
    place = bisect_left(known, m)
    near = [x for x in known[max(0, place - 1) : place + 1] if m / NEAR <= x <= m * NEAR]
    bits = selection.manifest["element_bits"][selection.call]["d"]
    edges = _packed.ladder_edges(section, ladder)
    gains = []
    for rows in near:
        row = _packed.row_of(section, ladder, edges.index(rows))
        added = ADDED_ELEMENTS * rows * n * bits / 8 if request.residual else 0
        torch_us = (row.library_us or 0.0) - 1e6 * added / table["bandwidth_bytes_per_s"]
        gains.append(torch_us / row.time_us)
    return min(gains, default=None)
