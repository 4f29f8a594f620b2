"""Plot the bench's JSON as a roofline.

    python research/bench/plot.py research/bench/results/h200_20261126_bench.json docs/roofline.png

Each tuned bf16 product is a point: the TFLOP/s that it ran at over its floating-point operations a byte, where the
bytes are those of its three matrices, each moved once. The limits are those of the target that the wheel is for:
aot/targets/TARGET.toml. Below, the same points as shares of the limit at their intensity.
"""

from __future__ import annotations

import argparse
import math
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, ScalarFormatter

from research.bench.compact import read_result

TARGETS = Path(__file__).resolve().parents[2] / "aot" / "targets"
INCHES = (12.0, 7.5)
DPI = 130
TEXT = "#1f2328"
FONT: dict[str, Any] = {"size": 11.5, "color": TEXT}
NEAR: dict[str, Any] = {"textcoords": "offset points", **FONT}
FIELDS = ("device", "date", "torch", "wheel", "clocks_after", "tuned")
ROW_FIELDS = ("m", "n", "k", "dtype", "wheel_us", "torch_us")
ELEMENT_BYTES = 2


class PlotError(ValueError):
    """The JSON is not the bench's, or of a target that there is no file of."""


@dataclass(frozen=True)
class Limits:
    """What bounds a product, of aot/targets/TARGET.toml."""

    flops_per_s: float
    bandwidth_bytes_per_s: float

    def tflops(self, intensity: float) -> float:
        """Give the TFLOP/s that are possible at an intensity of flops a byte."""
        return min(self.flops_per_s, self.bandwidth_bytes_per_s * intensity) / 1e12


@dataclass(frozen=True)
class Series:
    """What one contender reached: (flops a byte, TFLOP/s) of each product."""

    label: str
    points: tuple[tuple[float, float], ...]
    style: dict[str, Any]


def check(result: Any, where: str) -> dict[str, Any]:
    """Give the JSON if it has the fields that are plotted.

    Raises:
        PlotError: some are missing, which it names.
    """
    if not isinstance(result, dict):
        raise PlotError(
            f"{where}: got a {type(result).__name__}; expected the object that research/bench/bench.py writes"
        )
    missing = [name for name in FIELDS if name not in result]
    tuned = result.get("tuned", [])
    if not isinstance(tuned, list) or not all(isinstance(row, dict) for row in tuned):
        missing, tuned = ["rows under `tuned`"], []
    rows = [row for row in tuned if row.get("dtype", "bfloat16") == "bfloat16"]
    missing += [f"tuned[].{name}" for name in ROW_FIELDS if any(name not in row for row in rows)]
    if missing:
        raise PlotError(f"{where}: no {', '.join(missing)}; expected what research/bench/bench.py writes; run it again")
    if not rows:
        raise PlotError(f"{where}: no tuned row of bfloat16; run research/bench/bench.py without --dtype float16")
    return result


def limits_of(wheel: str) -> Limits:
    """Read the limits of the target that a wheel's version names, such as h200 of 0.1.0+h200.

    Raises:
        PlotError: there is no such target.
    """
    name = wheel.partition("+")[2].partition(".")[0]
    path = TARGETS / f"{name}.toml"
    if not name or not path.is_file():
        raise PlotError(f"wheel {wheel!r}: no target {path}; expected a version such as 0.1.0+h200")
    target = tomllib.loads(path.read_text(encoding="utf-8"))
    return Limits(target["flops_per_s"], target["bandwidth_bytes_per_s"])


def points(rows: list[dict[str, Any]], key: str) -> tuple[tuple[float, float], ...]:
    """Give (flops a byte, TFLOP/s) of the rows that have a time, in microseconds, under a key."""
    found = []
    for row in rows:
        m, n, k, us = row["m"], row["n"], row["k"], row.get(key)
        if us is not None:
            num_flops = 2 * m * n * k
            found.append((num_flops / (ELEMENT_BYTES * (m * k + n * k + m * n)), num_flops / us / 1e6))
    return tuple(found)


def series_of(result: dict[str, Any]) -> list[Series]:
    """Give what is plotted; the peers that the JSON lacks are left out."""
    rows = [row for row in result["tuned"] if row["dtype"] == "bfloat16"]
    hollow = {"facecolors": "none", "linewidths": 1.4}
    contenders = [
        ("wheel_us", f"wheel {result['wheel']}", {"marker": "o", "s": 34, "color": "#0550ae", "zorder": 3}),
        (
            "torch_us",
            f"torch.matmul, torch {result['torch']}",
            {"marker": "s", "s": 52, "edgecolors": "#bc4c00", **hollow},
        ),
        (
            "cublaslt_best_us",
            "best of cuBLASLt's proposals",
            {"marker": "^", "s": 76, "edgecolors": "#1a7f37", **hollow},
        ),
    ]
    series = [Series(label, points(rows, key), style) for key, label, style in contenders]
    return [x for x in series if x.points]


def _roof(axes: Axes, limits: Limits, series: list[Series]) -> None:
    intensities = [x for one in series for x, _ in one.points]
    low, high = min(intensities) / 1.25, max(intensities) * 1.25
    ridge = limits.flops_per_s / limits.bandwidth_bytes_per_s
    line = [low, *([ridge] if low < ridge < high else []), high]
    axes.plot(line, [limits.tflops(x) for x in line], color=TEXT, linewidth=1.5, zorder=1)
    axes.annotate(f"{limits.flops_per_s / 1e12:g} TFLOP/s", (high, limits.tflops(high)), (-6, 6), ha="right", **NEAR)
    axes.annotate(f"{limits.bandwidth_bytes_per_s / 1e12:g} TB/s", (low, limits.tflops(low)), (12, 34), **NEAR)
    for one in series:
        axes.scatter(*zip(*one.points, strict=True), label=one.label, **one.style)
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    axes.set_ylim(top=1.8 * limits.tflops(high))
    axes.set_ylabel("TFLOP/s", **FONT)
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.legend(loc="lower right", fontsize=11, labelcolor=TEXT, edgecolor="#d0d7de")


def _shares(axes: Axes, limits: Limits, series: list[Series]) -> None:
    shares = {one.label: [y / limits.tflops(x) for x, y in one.points] for one in series}
    for one in series:
        axes.scatter([x for x, _ in one.points], shares[one.label], **one.style)
    axes.axhline(1.0, color=TEXT, linewidth=1.5, zorder=1)
    lowest = min(min(values) for values in shares.values())
    axes.set_ylim(bottom=max(0.0, math.floor(lowest / 0.2 - 0.25) * 0.2))
    axes.set_ylabel("of the limit", **FONT)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("floating-point operations a byte of x, weight and out", **FONT)
    axes.xaxis.set_major_formatter(ScalarFormatter())


def draw(result: dict[str, Any]) -> Figure:
    """Draw a checked JSON: the roofline, and the shares of it below."""
    limits, series = limits_of(result["wheel"]), series_of(result)
    figure = Figure(figsize=INCHES, dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.7, 1.0])
    _roof(upper, limits, series)
    _shares(lower, limits, series)
    for axes in (upper, lower):
        axes.set_facecolor("white")
        axes.tick_params(colors=TEXT, labelsize=10.5)
        axes.grid(visible=True, which="major", color="#d0d7de", linewidth=0.7)
        axes.set_axisbelow(True)
    driver = str(result["clocks_after"]).split(",", maxsplit=1)[0]
    upper.set_title(f"bf16 linear on {result['device']}, driver {driver}, {result['date']}", fontsize=13, color=TEXT)
    return figure


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("result", type=Path, help="JSON of research/bench/bench.py")
    parser.add_argument("png", type=Path, help="file to write")
    values = parser.parse_args()
    try:
        result = check(read_result(values.result), str(values.result))
        draw(result).savefig(values.png, metadata={"Software": None})
    except (OSError, ValueError) as error:
        sys.exit(f"plot: {error}")


if __name__ == "__main__":
    main()
