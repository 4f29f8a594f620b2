"""The bench's JSON as Markdown. Imports nothing, so that it renders anywhere."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

KEYS = ("first_call_ms", "preload_ms", "host_us", "num_kernels", "library_bytes", "clocks_after")
PEERS = {
    "speedup": "torch.matmul",
    "constant_speedup": "torch.matmul, with weights promised constant",
    "cublaslt_speedup": "the best of cuBLASLt's proposals",
}
"""Ratios of a row, and what they compare the wheel with."""
COLUMNS = {
    "wheel_us": ("back to back", "speedup"),
    "wheel_behind_us": ("behind an elementwise kernel", "speedup_behind"),
    "constant_us": ("weights constant, back to back", "constant_speedup"),
    "constant_behind_us": ("weights constant, behind it", "constant_speedup_behind"),
    "wheel_late_us": ("weights read late", "speedup_late"),
}
"""Times of the check of overlap, as far as a run has them: what each is, and its ratio to torch."""


def geomean(values: Sequence[float]) -> float:
    """Give the geometric mean."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def _median(values: Sequence[Any]) -> Any:
    """Give the median of numbers, of each entry of dictionaries and lists of one form; of all else, the first.

    A figure that some run lacks (None) is lacking.
    """
    first = next((value for value in values if value is None), values[0])
    if isinstance(first, dict):
        return {key: _median([value[key] for value in values]) for key in first}
    if isinstance(first, list):
        return [_median(items) for items in zip(*values, strict=True)]
    if isinstance(first, int | float) and any(value != first for value in values):
        return statistics.median(values)
    return first


def medians(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join runs of one wheel on one kind of device: each figure is the median of the runs'.

    Raises:
        ValueError: the runs are of different wheels or devices, or did not measure the same rows.
    """
    kinds = {(x["device"], x["wheel"], x["torch"], x["num_kernels"]) for x in results}
    rows = {
        tuple((kind, r["m"], r["n"], r["k"], r["dtype"], r["kernel"]) for kind in ("tuned", "untuned") for r in x[kind])
        for x in results
    }
    if len(kinds) > 1 or len(rows) > 1:
        raise ValueError(
            f"runs differ in device, wheel, torch, kernels or rows: {sorted(kinds)}; give runs of one wheel"
        )
    joined: dict[str, Any] = _median(results)
    return joined


def _ratios(result: dict[str, Any]) -> list[str]:
    lines = []
    for kind in ("tuned", "untuned"):
        for dtype in dict.fromkeys(row["dtype"] for row in result[kind]):
            rows = [row for row in result[kind] if row["dtype"] == dtype]
            for key, peer in PEERS.items():
                ratios = [row[key] for row in rows if row.get(key) is not None]
                missing = f" ({len(rows) - len(ratios)} of {len(rows)} without)" if len(ratios) < len(rows) else ""
                if ratios:
                    figures = f"geomean {geomean(ratios):.3f}x of {peer}, worst {min(ratios):.3f}x"
                    lines.append(f"{dtype}, {kind}: {figures}{missing}")
    return lines


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Render one element type's tuned shapes, m by (n, k)."""
    cells = {(row["m"], row["n"], row["k"]): row for row in rows}
    weights = list(dict.fromkeys((row["n"], row["k"]) for row in rows))
    lines = ["| m | " + " | ".join(f"n {n}, k {k}" for n, k in weights) + " |", "|---|" + "---|" * len(weights)]
    for m in dict.fromkeys(row["m"] for row in rows):
        line = [cells[m, n, k] for n, k in weights]
        lines.append(f"| {m} | " + " | ".join(f"{r['wheel_us']:.1f} us, {r['speedup']:.2f}x" for r in line) + " |")
    return lines


def _overlap(cells: Sequence[dict[str, Any]]) -> list[str]:
    """Render the check of programmatic dependent launch: microseconds of the wheel, and torch's over them."""
    columns = {us: column for us, column in COLUMNS.items() if us in cells[0]}
    titles = [title for title, _ in columns.values()]
    lines = ["", "| m, n, k | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for row in cells:
        texts = [
            f"{row[us]:.1f} us, {row[ratio]:.2f}x" if row[us] is not None else "-" for us, (_, ratio) in columns.items()
        ]
        lines.append(f"| {row['m']}, {row['n']}, {row['k']} | " + " | ".join(texts) + " |")
    return lines


def summary(result: dict[str, Any]) -> str:
    """Render the result as Markdown."""
    lines = [f"{result['device']}, torch {result['torch']}, wheel {result['wheel']}, {result['date']}", ""]
    lines += [*_ratios(result), ""]
    lines += _table([row for row in result["tuned"] if row["dtype"] == result["tuned"][0]["dtype"]])
    if "overlap" in result:
        lines += _overlap(result["overlap"]["cells"])
    if result.get("cublaslt"):
        lines += ["", f"cuBLASLt {result['cublaslt']['version']}"]
    return "\n".join([*lines, "", *(f"{key}: {result[key]}" for key in KEYS)])
