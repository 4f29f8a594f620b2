"""What research/bench/captured.py measured, as Markdown, and the correction that it makes. Imports no torch.

    PYTHONPATH=. python -m research.bench.captured_summary run1.json run2.json
    PYTHONPATH=. python -m research.bench.captured_summary run1.json --target h200 --out aot/captured/h200.json

A product's gain is torch's time over the wheel's. In a layer the wheel is so many microseconds ahead of torch as the
two layers differ; what that is less than alone, as a part of the wheel's own time, is its loss. A loss goes by the rows
and by the bytes of the weight, since these say what the L2 holds and how long a product takes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from aot.core.captured import CAPTURED_VERSION, Captured, CapturedLosses, write_captured
from research.bench.compact import read_result
from research.bench.summary import geomean

M_EDGES = (1, 4, 16, 64, 256, 1024, 4096)
"""Upper edges of the rows of a cell; more rows are in the last."""
BYTES_EDGES = (4 << 20, 16 << 20, 64 << 20, 1 << 30)
"""Upper edges of a weight's bytes of a cell; more are in the last."""
LEAST = 3
"""Products that a cell is to have, for its median to count; with fewer those of all weights of so many rows do."""
ELEMENT_BYTES = 2
TIMES = ("wheel_us", "torch_us", "neighbours_us", "wheel_layer_us", "torch_layer_us")
COMPILED = ("inductor_us", "wheel_inductor_us")

Row = dict[str, Any]
Losses = list[list[float]]
"""By rows and bytes, as parts of the wheel's own time."""


def place(value: int, edges: Sequence[int]) -> int:
    """Return the first edge that is not below a value; the last past all."""
    return next((i for i, edge in enumerate(edges) if value <= edge), len(edges) - 1)


def cell(row: Row) -> tuple[int, int]:
    """Return the places of a product's rows and of its weight's bytes."""
    return place(row["m"], M_EDGES), place(ELEMENT_BYTES * row["n"] * row["k"], BYTES_EDGES)


def loss(row: Row) -> float:
    """Return what the wheel loses in a layer against torch, as a part of its own time."""
    alone, layer = row["torch_us"] - row["wheel_us"], row["torch_layer_us"] - row["wheel_layer_us"]
    return float((alone - layer) / row["wheel_us"])


def losses(rows: Sequence[Row]) -> Losses:
    """Return the median loss of each cell."""
    found = []
    for i in range(len(M_EDGES)):
        of_rows = [x for x in rows if cell(x)[0] == i]
        every = median(map(loss, of_rows)) if of_rows else 0.0
        cells = ([loss(x) for x in of_rows if cell(x)[1] == j] for j in range(len(BYTES_EDGES)))
        found.append([round(median(x) if len(x) >= LEAST else every, 4) for x in cells])
    return found


def lost(rows: Sequence[Row], is_ours: Callable[[Row], bool]) -> tuple[float, float, float]:
    """Say what a rule of choice costs: mean and worst time over the better layer's, less 1, and the wheel's share."""
    over = []
    for row in rows:
        best = min(row["wheel_layer_us"], row["torch_layer_us"])
        over.append(row["wheel_layer_us" if is_ours(row) else "torch_layer_us"] / best - 1)
    return fmean(over), max(over), fmean(map(is_ours, rows))


def left_out(rows: Sequence[Row]) -> dict[tuple[int, int], Losses]:
    """Return the losses by the products of all other weights, for each weight (n, k)."""
    weights = {(x["n"], x["k"]) for x in rows}
    return {weight: losses([x for x in rows if (x["n"], x["k"]) != weight]) for weight in weights}


def _rules(rows: Sequence[Row]) -> dict[str, Callable[[Row], bool]]:
    """Return the rules of choice that are compared."""
    others = left_out(rows)

    def corrected(row: Row) -> bool:
        i, j = cell(row)
        return bool(row["torch_us"] / row["wheel_us"] >= 1 + others[row["n"], row["k"]][i][j])

    return {
        "always the wheel": lambda _: True,
        "always torch": lambda _: False,
        "by times alone": lambda x: x["torch_us"] >= x["wheel_us"],
        "by times alone, corrected by the other weights": corrected,
    }


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB"


def joined(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join runs of one wheel on one kind of device: the median of each time, of the products that all have.

    Raises:
        ValueError: the runs differ in device, torch, wheel or element type, or have no product in common.
    """
    kinds = {tuple(x[key] for key in ("device", "torch", "wheel", "dtype")) for x in results}
    if len(kinds) > 1:
        raise ValueError(f"runs differ in device, torch, wheel or element type: {sorted(kinds)}; give runs of one kind")
    by_size = [{(x["m"], x["n"], x["k"]): x for x in result["rows"]} for result in results]
    rows = []
    for size, row in by_size[0].items():
        if all(size in found for found in by_size):
            names = [x for x in (*TIMES, *COMPILED) if all(x in found[size] for found in by_size)]
            times = {name: median(found[size][name] for found in by_size) for name in names}
            rows.append({**row, **times})
    if not rows:
        raise ValueError("the runs have no product in common; give runs of the same weights")
    return {**results[0], "rows": rows, "failures": [x for result in results for x in result["failures"]]}


def _ranges(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| m to | products | alone | in a layer, less the neighbours | layers | "
        + " | ".join(f"loss, weight to {_size(x)}" for x in BYTES_EDGES)
        + " |",
        "|--:|" * 1 + "--:|" * (4 + len(BYTES_EDGES)),
    ]
    found = losses(rows)
    for i, edge in enumerate(M_EDGES):
        some = [x for x in rows if cell(x)[0] == i]
        if not some:
            continue
        alone = geomean([x["torch_us"] / x["wheel_us"] for x in some])
        less = [(x["torch_layer_us"] - x["neighbours_us"], x["wheel_layer_us"] - x["neighbours_us"]) for x in some]
        bare = geomean([a / b for a, b in less if a > 0 and b > 0] or [1.0])
        layer = geomean([x["torch_layer_us"] / x["wheel_layer_us"] for x in some])
        cells = " | ".join(f"{x:.1%}" for x in found[i])
        lines.append(f"| {edge} | {len(some)} | {alone:.3f} | {bare:.3f} | {layer:.3f} | {cells} |")
    return lines


def _compiled(rows: Sequence[Row]) -> list[str]:
    some = [x for x in rows if all(name in x for name in COMPILED)]
    if not some:
        return []
    header = "| m to | layers | Inductor's over that with the wheel | least | torch's kernels' over Inductor's |"
    lines = ["", "Times of layers that Inductor has compiled:", "", header, "|--:|--:|--:|--:|--:|"]
    for i, edge in enumerate(M_EDGES):
        of_rows = [x for x in some if cell(x)[0] == i]
        if of_rows:
            gains = [x["inductor_us"] / x["wheel_inductor_us"] for x in of_rows]
            eager = geomean([x["torch_layer_us"] / x["inductor_us"] for x in of_rows])
            lines.append(f"| {edge} | {len(of_rows)} | {geomean(gains):.3f} | {min(gains):.3f} | {eager:.3f} |")
    return lines


def summary(result: dict[str, Any]) -> str:
    """Give tables: gains and losses by rows, what rules of choice cost, and what Inductor's layers take."""
    rows = result["rows"]
    lines = [
        f"{result['device']}, torch {result['torch']}, wheel {result['wheel']}, {result['date']}, {result['dtype']}",
        f"{len(rows)} products, {len(result['failures'])} failures",
    ]
    lines += [f"failed: {x}" for x in result["failures"][:5]]
    if not rows:
        return "\n".join(lines)
    lines += ["", *_ranges(rows), "", "| choice | mean cost | worst | the wheel's share |", "|---|--:|--:|--:|"]
    for name, rule in _rules(rows).items():
        mean, worst, share = lost(rows, rule)
        lines.append(f"| {name} | {mean:.2%} | {worst:.1%} | {share:.0%} |")
    return "\n".join(lines + _compiled(rows))


def correction(result: dict[str, Any], target: str) -> Captured:
    """Make the correction of a target's tables, of all products of a run or of joined ones."""
    rows = result["rows"]
    parts = CapturedLosses(M_EDGES, BYTES_EDGES, tuple(map(tuple, losses(rows))))
    library = f"torch {result['torch']}"
    return Captured(
        CAPTURED_VERSION, target, result["device"], library, result["wheel"], result["date"], len(rows), parts
    )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="JSON", help="what research/bench/captured.py wrote")
    parser.add_argument("--target", help="whose tables --out corrects, such as h200")
    parser.add_argument("--out", type=Path, help="the correction to write")
    values = parser.parse_args()
    if (values.target is None) != (values.out is None):
        parser.error("--target and --out mean nothing without each other; give both, or neither")
    try:
        result = joined([read_result(path) for path in values.runs])
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(summary(result))
    if values.out is not None:
        write_captured(values.out, correction(result, values.target))


if __name__ == "__main__":
    main()
