"""What research/bench/atlas.py measured, as Markdown: torch's time over the wheel's, by m. Imports no torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from research.bench.summary import geomean

EDGES = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
"""Last m of each range of a table's rows; larger m are in a row of their own."""
SHARES = (0.98, 0.93)
"""Speeds below which shapes are counted."""
NUM_WORST = 10
COLUMNS = {"speedup": "back to back", "speedup_behind": "behind a kernel", "speedup_mixed": "one of each"}
TIMES = ("wheel_us", "torch_us", "wheel_behind_us", "torch_behind_us")
"""Of a row, in microseconds: products back to back, and behind an elementwise kernel, whose own time is taken off."""


def speedups(row: dict[str, Any]) -> dict[str, float]:
    """Return torch's time over the wheel's: back to back, behind a kernel, and of one launch of each."""
    wheel, torch, wheel_behind, torch_behind = (row[name] for name in TIMES)
    ratios = (torch / wheel, torch_behind / wheel_behind, (torch + torch_behind) / (wheel + wheel_behind))
    return {name: round(ratio, 4) for name, ratio in zip(COLUMNS, ratios, strict=True)}


def joined(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join runs of one wheel on one kind of device: each time is the median over the runs, of the rows that all have.

    Raises:
        ValueError: the runs differ in device, torch, wheel or element type, or have no row in common.
    """
    kinds = {tuple(x[key] for key in ("device", "torch", "wheel", "dtype")) for x in results}
    if len(kinds) > 1:
        raise ValueError(f"runs differ in device, torch, wheel or element type: {sorted(kinds)}; give runs of one kind")
    by_size = [{(row["m"], row["n"], row["k"]): row for row in x["rows"]} for x in results]
    rows = []
    for size, row in by_size[0].items():
        if all(size in found for found in by_size):
            times = {name: statistics.median(found[size][name] for found in by_size) for name in TIMES}
            rows.append({**row, **times, "error": max(found[size]["error"] for found in by_size)})
            rows[-1] |= speedups(rows[-1])
    if not rows:
        raise ValueError("the runs have no row in common; give runs of one shape set")
    failures = [failure for x in results for failure in x["failures"]]
    return {**results[0], "rows": rows, "failures": failures, "num_runs": len(results)}


def figures(ratios: Sequence[float]) -> dict[str, float]:
    """Return the geometric mean, the shares of shapes below each of SHARES, and the worst."""
    below = {f"below_{share}": sum(x < share for x in ratios) / len(ratios) for share in SHARES}
    return {"geomean": geomean(ratios), **below, "worst": min(ratios)}


def _cell(ratios: Sequence[float]) -> str:
    found = figures(ratios)
    shares = ", ".join(f"{found[f'below_{share}']:.1%}" for share in SHARES)
    return f"{found['geomean']:.3f}, {shares}, {found['worst']:.3f}"


def ranges(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each range of m that has some, then all."""
    found = {}
    for low, high in zip((0, *EDGES), (*EDGES, None), strict=True):
        inside = [row for row in rows if low < row["m"] and (high is None or row["m"] <= high)]
        if inside:
            name = f"above {low}" if high is None else str(high) if high == low + 1 else f"{low + 1} to {high}"
            found[name] = inside
    return {**found, "all": list(rows)}


def summary(result: dict[str, Any]) -> str:
    """Render the tables."""
    rows = result["rows"]
    shares = ", ".join(f"share below {share}" for share in SHARES)
    kind = ", ".join(f"{name} {result[name]}" for name in ("torch", "wheel"))
    runs = f"medians of {result['num_runs']} runs" if "num_runs" in result else "one run"
    lines = [
        f"{result['device']}, {kind}, {result['date']}, {runs}",
        f"{result['dtype']}, {len(rows)} of the {result['num_problems']} problems of {result['shapes']}",
        f"torch.mm's time over the wheel's: geomean, {shares}, worst",
        "",
        f"| m | shapes | {' | '.join(COLUMNS.values())} |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    for name, inside in ranges(rows).items() if rows else ():
        cells = [_cell([row[column] for row in inside]) for column in COLUMNS]
        lines.append(f"| {name} | {len(inside)} | {' | '.join(cells)} |")
    lines += [
        "",
        "| m, n, k | back to back, us and torch's | behind a kernel | one of each | kernel |",
        "|---" * 5 + "|",
    ]
    for row in sorted(rows, key=lambda x: x["speedup_mixed"])[:NUM_WORST]:
        texts = [
            f"{row['m']}, {row['n']}, {row['k']}",
            f"{row['wheel_us']:.1f}, {row['torch_us']:.1f}: {row['speedup']:.3f}",
            f"{row['wheel_behind_us']:.1f}, {row['torch_behind_us']:.1f}: {row['speedup_behind']:.3f}",
            f"{row['speedup_mixed']:.3f}",
            row.get("kernel", "-"),
        ]
        lines.append(f"| {' | '.join(texts)} |")
    errors = [row["error"] for row in rows]
    lines += ["", f"largest relative error against torch: {max(errors, default=0):.2g}"]
    lines += [f"failed: m{x['m']} n{x['n']} k{x['k']}: {x['reason']}" for x in result["failures"]]
    return "\n".join(lines)
