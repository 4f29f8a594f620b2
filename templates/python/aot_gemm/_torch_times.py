"""What the dispatch table knows of a product's time, for choosing what `patch` fuses."""

from __future__ import annotations

import math
from typing import Any

from . import errors
from ._manifest import manifest
from ._table import plan

STEP_US = 2.5
"""What a small kernel between two products costs beside the bytes that it moves. Source: an H200, 2026-11-21: 2.5 to
5.7 us between products of this package, back to back in a CUDA graph."""
FEW_ROWS = "cluster_split_k"
"""Part of the names of kernels for few rows, in which a cluster shares k."""


def bandwidth(m: int, n: int, k: int, options: dict[str, Any]) -> float:
    """Return the memory's bytes a second, of the table that answers."""
    target = plan(m, n, k, **options).target
    return float(next(x["bandwidth_bytes_per_s"] for x in manifest()["tables"] if x["target"] == target))


def is_for_few_rows(m: int, n: int, k: int, options: dict[str, Any]) -> bool:
    """Say whether a kernel of the family for few rows answers a product."""
    try:
        return FEW_ROWS in plan(m, n, k, **options).kernel
    except errors.AotGemmError:
        return False


def time_us(m: int, n: int, k: int, options: dict[str, Any]) -> float:
    """Return the table's time in microseconds; infinite where it has none."""
    try:
        found = plan(m, n, k, **options).time_us
    except errors.AotGemmError:
        return math.inf
    return math.inf if found is None else found
