"""How many times as fast as torch a product was, by times of both that were measured in one run. Needs no GPU."""

from __future__ import annotations

import math
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
ALIKE = 4.0
"""A weight says something of one whose n and k are up to so many times its own, and down to such a part of them, and so
do rows.

An assumption, as is `LEAST_ALIKE`. By an H200's times of 32 weights whose rows begin at multiples of 2 or 4 bytes, each
judged by the others alone: of 26 that are as fast as torch's in the mean 25 are taken, and of 6 that are slower 5, 0.82
to 0.96 times as fast.
Source: research/log/2026-11-28-choices.md of the toolchain."""
LEAST_ALIKE = 8
"""Rows of weights that are alike, below which those of all weights count."""


def measured_gain(m: int, n: int, k: int, dtype: Any, **options: Unpack[Computed]) -> float | None:
    """Return how many times as fast as torch a product of packed operands is by the table, in `linear`'s layout.

    It is the least of what was measured with the next fewer and the next more rows by the same weight's sizes, less
    what such products lose in a captured layer, where that was measured. What a residual takes torch is left out of its
    time: torch's compiler adds it in the norm behind.

    Returns:
        None where no times of both are known near.
    """
    request = request_of(dtype, **options)
    selection = select(request, "kk", (m, n, k), 1, 0, None)
    if TIERS[selection.tier] != "tuned":
        return None
    table = selection.manifest["tables"][selection.table]
    section = table["table"]["sections"][selection.section]
    ladder = _packed.find_ladder(table["table"], section, n, k)
    known = _packed.edges_with_library(ladder)
    place = bisect_left(known, m)
    near = [x for x in known[max(0, place - 1) : place + 1] if m / NEAR <= x <= m * NEAR]
    bits = selection.manifest["element_bits"][selection.call]
    edges = _packed.ladder_edges(ladder)
    gains = []
    for rows in near:
        row = _packed.row_of(ladder, edges.index(rows))
        added = ADDED_ELEMENTS * rows * n * bits["d"] / 8 if request.residual else 0
        torch_us = (row.library_us or 0.0) - 1e6 * added / table["bandwidth_bytes_per_s"]
        gains.append(torch_us / row.time_us - _lost(table, bits, (rows, n, k)))
    return min(gains, default=None)


def _lost(table: dict[str, Any], bits: dict[str, int], size: tuple[int, int, int]) -> float:
    """Return how much less a product (m, n, k) is ahead of torch in a captured layer than alone, as a part of its time.

    Twin of the toolchain's captured.py.
    """
    known = table.get("captured")
    if known is None:
        return 0.0
    m, n, k = size
    asked = ("rows", m), ("weight_bytes", bits["parts"] * n * k * bits["b"] // 8)
    i, j = (min(bisect_left(known[name], x), len(known[name]) - 1) for name, x in asked)
    part: float = known["parts"][i][j]
    return part


def mean_gain(n: int, k: int, dtype: Any, rows: int | None = None, **options: Unpack[Computed]) -> float | None:
    """Return how many times as fast as torch products of a weight (n, k) are in the mean, in `linear`'s layout.

    It is the geometric mean of what was measured, at ALIKE numbers of rows where one is given, of weights whose
    operands begin at multiples of as many bytes: of this one where it was, else of those that are ALIKE, else of all.
    What was not measured with an epilogue is taken to be as without, and of float16 as of bfloat16.

    Returns:
        None where the table has no times of torch.
    """
    for each, asked in ((dtype, options), (dtype, {}), ("bfloat16", {})):
        found = _gains_near(n, k, each, rows, **asked)
        if found:
            return math.exp(math.fsum(map(math.log, found)) / len(found))
    return None


def _gains_near(n: int, k: int, dtype: Any, rows: int | None, **options: Unpack[Computed]) -> list[float]:
    """Return what was measured of the weights that are nearest; empty where the section has no times of torch."""
    selection = select(request_of(dtype, **options), "kk", (rows or 1, n, k), 1, 0, None)
    if TIERS[selection.tier] == "fallback":
        return []
    table, bits = selection.manifest["tables"][selection.table], selection.manifest["element_bits"][selection.call]
    section = table["table"]["sections"][selection.section]
    own, alike, every = list[float](), list[float](), list[float]()
    for size, ladder in _packed.own_ladders(section):
        edges = _packed.ladder_edges(ladder)
        near = [x for x in _packed.edges_with_library(ladder) if rows is None or _are_alike(x, rows)]
        found = ((x, _packed.row_of(ladder, edges.index(x))) for x in near)
        gains = [(row.library_us or 0.0) / row.time_us - _lost(table, bits, (x, *size)) for x, row in found]
        every += gains
        own += gains if size == (n, k) else []
        alike += gains if all(map(_are_alike, size, (n, k))) else []
    return own or (alike if len(alike) >= LEAST_ALIKE else every)


def _are_alike(one: int, other: int) -> bool:
    return one <= ALIKE * other and other <= ALIKE * one
