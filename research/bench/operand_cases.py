"""The problems that research/bench/operands.py tries of each operation, and their outcome: no GPU, no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from aot.core.grouping import Grouping
from aot.core.operands import Arrangement
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.kinds.gemm.edge_shapes import SIZES as GROUP_SIZES
from aot.kinds.gemm.edge_shapes import Content, EdgeShape, arrangements_of, rounded, whole_k
from research.bench.summary import geomean

MAX_EXTENTS = (300, 400, 700)
"""Largest m, n and k: past the sides of a tile, and small enough for thousands of float64 references."""
SPECIAL_EXTENTS = (40, 24, 200)
"""Least m, n and k of a problem with special values (aot.kinds.gemm.edge_operands)."""
SPECIAL_EVERY = 10
"""One of so many problems has special values."""
MAX_GROUPS = 9
"""Most products of a batch, or groups."""
ALIGNED_SHARE = 0.7
"""Share of the problems that the fast kernels can take; the fallback answers the others."""

TIMED = (
    Operation.E4M3_BF16_KK,
    Operation.E4M3_BF16_BLOCK_KK,
    Operation.INT8_BF16_KK,
    Operation.BF16_KK_GELU,
    Operation.BF16_KK_GELU_TANH,
    Operation.BF16_KK_SILU,
    Operation.BF16_KK_RESIDUAL,
    Operation.BF16_KK_SWIGLU,
    Operation.E4M3_BF16_KK_SWIGLU,
    Operation.TF32_KK,
)
"""Operations that are timed unless others are asked for."""
SIZES = (
    *((m, 4096, 4096) for m in (1, 16, 64, 256, 512, 1024, 4096)),
    *((m, 14336, 4096) for m in (16, 512)),
    *((m, 4096, 14336) for m in (16, 512)),
)
"""(m, n, k) that are timed."""


def _extent(rng: np.random.Generator, largest: int) -> int:
    """Draw a size whose logarithm is uniform."""
    return int(math.exp(rng.uniform(0, math.log(largest + 1))))


def _arrangement(operation: Operation, rng: np.random.Generator) -> Arrangement:
    """Draw what the caller chooses; of a single product with operands in rows, anything."""
    if operation.grouping is Grouping.DENSE and not (operation.has_parts or operation.b.weight):
        return Arrangement(*(bool(x) for x in rng.integers(0, 2, 5)))
    choices = arrangements_of(operation)
    return choices[rng.integers(len(choices))]


def random_case(operation: Operation, number: int, rng: np.random.Generator) -> EdgeShape:
    """Draw a problem, how its operands lie and what they hold.

    Args:
        operation: what is computed.
        number: of the problem; one of SPECIAL_EVERY has special values, if it is a single product of unpacked operands.
        rng: draws all else.
    """
    m, n, k = (_extent(rng, largest) for largest in MAX_EXTENTS)
    is_dense, is_packed = operation.grouping is Grouping.DENSE, operation.b.weight is not None
    is_special = number % SPECIAL_EVERY == SPECIAL_EVERY - 1 and is_dense and not is_packed
    if is_special:
        m, n, k = (max(*pair) for pair in zip((m, n, k), SPECIAL_EXTENTS, strict=True))
    padding, offset = int(rng.choice([0, 0, 1, 3, 16])), 0
    num_groups = 1 if is_dense else int(rng.integers(1, MAX_GROUPS + 1))
    problem = Problem(operation, m, n, whole_k(operation, k), num_groups)
    if rng.random() < ALIGNED_SHARE:
        problem, padding = rounded(problem), 16 * (padding > 0)
    else:
        offset = int(rng.integers(0, 2))
    return EdgeShape(
        problem,
        padding,
        offset,
        arrangement=_arrangement(operation, rng),
        content=Content.SPECIAL if is_special else Content.RANDOM,
        sizes=GROUP_SIZES[rng.integers(len(GROUP_SIZES))],
    )


def speedups(row: Mapping[str, Any]) -> dict[str, float]:
    """Return how many times as long each baseline of a row takes as the wheel."""
    wheel = row["us"]["wheel"]
    return {name: us / wheel for name, us in row["us"].items() if name != "wheel"}


def _checked_line(check: Mapping[str, Any]) -> str:
    refused = f", {check['num_refused']} refused" if check["num_refused"] else ""
    worst = f"largest relative error {check['relative_error']:.2e}"
    return f"{check['operation']:24} {check['num_right']} of {check['num_problems']} right{refused}, {worst}"


def summary(result: Mapping[str, Any]) -> str:
    """Return a result as text: a line for each operation checked, its faults, and one for each baseline timed."""
    lines = [f"{result['device']}, wheel {result['wheel']}, torch {result['torch']}, {result['date']}"]
    lines += [f"not in the wheel: {', '.join(result['missing'])}"] if result["missing"] else []
    for check in result["checks"]:
        examples = [*check["faults"], *([f"refused: {check['refused']}"] if "refused" in check else [])]
        lines += [_checked_line(check), *(f"    {text}" for text in examples)]
    by_operation: dict[tuple[str, str], list[float]] = {}
    for row in result["rows"]:
        for name, ratio in speedups(row).items():
            by_operation.setdefault((row["operation"], name), []).append(ratio)
    for (operation, name), ratios in by_operation.items():
        mean = geomean(ratios)
        lines.append(f"{operation:24} over {name}: {mean:.3f}x, worst {min(ratios):.3f}x of {len(ratios)}")
    lines += [f"failed: {x['operation']} {x['m']} {x['n']} {x['k']}: {x['reason']}" for x in result["failures"]]
    return "\n".join(lines)


def is_right(result: Mapping[str, Any]) -> bool:
    """Say whether nothing was wrong, nothing failed, and something was checked."""
    return bool(result["checks"]) and not result["failures"] and not any(x["faults"] for x in result["checks"])
