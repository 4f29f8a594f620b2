"""The charts of what was reached: the roofline, regret and rounding, portfolios, search strategies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from aot.core.dispatch import Tier
from aot.kinds.gemm.kind import GEMM
from aot.report import few
from aot.report.parts import Figure, Mark, Table, kernel_name, microseconds, share, sizes
from aot.report.svg import WIDTH, Axis, Plot, element, figure, log_axis, number, percent, root_axis, short, steps
from aot.select.portfolio.exchange import MISSING_RATIO

if TYPE_CHECKING:
    from aot.core.target import Target
    from aot.report.facts import Cell, OperationFacts, SearchPoint
    from aot.select.selection import Curve, Regret

WEIGHTS = ((4e6, "below 4M"), (16e6, "4M to 16M"), (64e6, "16M to 64M"), (float("inf"), "64M and more"))
"""Elements of B, n times k, up to which a point of the roofline has one shade; the shades are s2 to s5."""

DRAWN_SHARE = 0.95
"""Share of the problems whose times are their own below which the others are drawn too."""

HELD_OUT = (("l2", Tier.TUNED), ("l3", Tier.GRID))
"""Lines of what was held out, by the tier that answers."""

SHARES = Axis("share of the problems", 0, 1, tuple((x / 4, f"{25 * x}%") for x in range(5)))


def _weight(cell: Cell) -> int:
    size = cell.problem.n * cell.problem.k
    return next(i for i, (limit, _) in enumerate(WEIGHTS) if size < limit)


def _rate(cell: Cell) -> float:
    """Return a row's TFLOP/s."""
    return cell.problem.flops / cell.time_us / 1e6


def _intensity(cell: Cell) -> float:
    """Return a row's operations a byte."""
    return cell.problem.flops / cell.problem.num_bytes


def _point(plot: Plot, cell: Cell, name: str, rate: float, intensity: float) -> str:
    kind = "" if cell.is_measured else " hollow"
    said = "measured" if cell.is_measured else "predicted"
    title = (
        f"{sizes(cell)}: {rate:.3g} TFLOP/s at {intensity:.3g} FLOP/B; {microseconds(cell.time_us)} us {said}, "
        f"{share(cell.fraction, 0)} of the roofline; {name}"
    )
    css = f"dot s{_weight(cell) + 2}{kind}"
    return element("circle", title=title, cx=plot.px(intensity), cy=plot.py(rate), r=4.0, class_=css)


def roofline(facts: OperationFacts, target: Target) -> Figure | None:
    """Draw the rate of each measured row, or in a predicted selection of each row, under the target's roofs."""
    found = facts.measured or list(facts.cells)
    if not found:
        return None
    every = [(_rate(cell), _intensity(cell)) for cell in found]
    rates, intensities = [rate for rate, _ in every], [intensity for _, intensity in every]
    compute, bandwidth = target.peak_flops_per_s(facts.operation) / 1e12, target.bandwidth_bytes_per_s / 1e12
    x = log_axis("arithmetic intensity, FLOP a byte of all operands (logarithmic)", [*intensities, compute / bandwidth])
    low, high = min(rates), max(*rates, compute)
    y = log_axis("TFLOP/s (logarithmic)", [low, high * 1.25], most=9)
    plot = Plot(x, y, height=330, left=62)
    ridge = compute / bandwidth
    cells = few.points(found, lambda cell: (plot.px(_intensity(cell)), plot.py(_rate(cell))))
    start = max(x.low, y.low / bandwidth)
    roof = [(start, start * bandwidth), (ridge, compute), (x.high, compute)]
    said = "measured" if facts.measured else "predicted"
    marks = [_point(plot, cell, kernel_name(facts, cell.kernel), _rate(cell), _intensity(cell)) for cell in cells]
    roofs = [
        element("path", d=plot.points(roof), class_="roof"),
        element("text", f"{compute:.0f} TFLOP/s", x=WIDTH - 16, y=plot.py(compute) - 8, class_="note end"),
        _along_slope(plot, start, ridge, bandwidth),
    ]
    others = len(facts.cells) - len(found)
    left_out = f" {others} more rows have predicted times and are left out." if others else ""
    caption = (
        f"Each point is a row of tier 1 at its upper edge: its {said} rate against the operations for each byte that "
        f"must move at least. Lines: the target's rates of tensor cores and device memory (measured or published, "
        f"as the target's file says). Operands start in device memory, not in L2 (cold L2).{left_out}"
    )
    caption += few.said(
        len(cells), len(found), "points", "of those that lie together the one furthest from the roofline"
    )
    used = sorted({_weight(cell) for cell in cells})
    hollow = "" if facts.measured else " hollow"
    legend = [Mark(f"dot s{i + 2}{hollow}", f"n{chr(0xD7)}k {WEIGHTS[i][1]}") for i in used]
    rows = [
        (
            *(cell.problem.m, cell.problem.n, cell.problem.k),
            *(f"{_intensity(cell):.1f}", f"{_rate(cell):.1f}", microseconds(cell.time_us), share(cell.fraction, 0)),
            kernel_name(facts, cell.kernel),
        )
        for cell in cells
    ]
    header = ("m", "n", "k", "FLOP/B", "TFLOP/s", f"us, {said}", f"of the roofline, {said}", "kernel")
    svg = figure(plot.axes() + "".join([*roofs[:1], *marks, *roofs[1:]]), plot.total, f"Roofline: {len(cells)} rows")
    return Figure(
        "Roofline", caption, svg, (*legend, Mark("line roof", "the target's roofline")), Table(header, tuple(rows))
    )


def _along_slope(plot: Plot, start: float, ridge: float, bandwidth: float) -> str:
    """Write the bandwidth above the slope of its roof, along it."""
    ends = [(plot.px(at), plot.py(at * bandwidth)) for at in (start, ridge)]
    (x0, y0), (x1, y1) = ends
    angle = float(np.degrees(np.arctan2(y1 - y0, x1 - x0)))
    middle = f"translate({number((x0 + x1) / 2)} {number((y0 + y1) / 2)}) rotate({number(angle)})"
    return element("text", f"{bandwidth:.3g} TB/s", transform=middle, dy="-.6em", class_="note mid")


def _quantiles(name: str, values: Sequence[float]) -> tuple[str | int, ...]:
    found = np.array(values)
    shown = [float(found.mean()), *(float(np.quantile(found, q)) for q in (0.5, 0.9, 0.99)), float(found.max())]
    return (name, len(found), *(share(x, 2) for x in shown), share(float((found <= 0.01).mean()), 0))


def _distribution(
    title: str, caption: str, label: str, sets: Sequence[tuple[str, str, Sequence[float]]]
) -> Figure | None:
    """Draw empirical distributions; a set is a class, a name and fractions."""
    sets = [entry for entry in sets if entry[2]]
    if not sets:
        return None
    plot = Plot(root_axis(label, max(max(values) for _, _, values in sets)), SHARES, height=270, left=62)
    lines = []
    for css, name, values in sets:
        text = f"{name}: mean {share(float(np.mean(values)), 2)}, worst {share(max(values))}"
        ends = [*steps([max(value, 0.0) for value in values]), (plot.x.high, 1.0)]
        lines.append(element("path", d=plot.points(ends), class_=f"line {css}", title=text))
    legend = tuple(
        Mark(f"line {css}", f"{name}: {len(values)} problems, mean {share(float(np.mean(values)), 2)}")
        for css, name, values in sets
    )
    rows = tuple(_quantiles(name, values) for _, name, values in sets)
    table = Table(("", "problems", "mean", "median", "90%", "99%", "worst", "within 1%"), rows)
    return Figure(title, caption, figure(plot.axes() + "".join(lines), plot.total, title), legend, table)


def regrets(facts: OperationFacts) -> Figure | None:
    """Draw the distribution of regret, in sample and out of sample."""
    inside = [(x.is_own, x.found.regret) for x in facts.inside]
    own = [regret for is_own, regret in inside if is_own and regret is not None]
    both = [regret for _, regret in inside if regret is not None]
    sets = [("l1", "in sample", own)]
    caption = (
        "Regret: the measured time of the kernel that the table gives, over the best time measured of any kernel, "
        "minus 1. In sample: the problems that the kernels were selected on."
    )
    if len(own) < len(both):
        caption += (
            f" On {len(both) - len(own)} of {len(both)} problems one of the two was measured in the other element type "
            f"only, which stands in; with these, left out of the line, the mean is {share(float(np.mean(both)), 2)}."
        )
    if len(own) < DRAWN_SHARE * len(both):
        caption = caption.replace("left out of the line", "dotted")
        sets.append(("l0", "in sample, with imputed times", both))
    for css, tier in HELD_OUT:
        found = [x.regret for x in facts.outside_of(tier) if x.regret is not None]
        sets.append((css, f"held out, {GEMM.held_out[tier.value]}", found))
    unmeasured = sum(x.regret is None for x in facts.outside)
    if facts.outside:
        caption += " Held out: problems that no step of the selection saw."
        caption += f" Not among them: {unmeasured} whose kernel was never timed on them." if unmeasured else ""
    else:
        caption += " Nothing was held out: regret out of sample is not known."
    return _distribution("Regret, in and out of sample", caption, "regret (square-root scale)", sets)


def roundings(facts: OperationFacts) -> Figure | None:
    """Draw the distribution of the bucketing loss on held-out problems."""
    caption = (
        "Regret among the kernels that are shipped: the measured time of the one that the table gives, over the best "
        "measured of theirs, minus 1. What regret is beyond that, kernels that are not shipped would save."
    )
    sets = [
        (
            css,
            f"held out, {GEMM.held_out[tier.value]}",
            [x.rounding for x in facts.outside_of(tier) if x.rounding is not None],
        )
        for css, tier in HELD_OUT
    ]
    return _distribution("Bucketing loss", caption, "bucketing loss (square-root scale)", sets)


def _curve_axis(curve: Curve) -> Axis:
    values = [x for point in curve.points for x in (point.mean, point.worst, point.mean_bound) if x > 0.0005]
    axis = log_axis("regret (logarithmic)", values or [0.01, 0.1], most=8)
    return Axis(axis.label, axis.low, axis.high, tuple((x, percent(x)) for x, _ in axis.ticks), axis.kind)


def _sizes_axis(points: Sequence[int]) -> Axis:
    high = max(points)
    step = next(2**i for i in count() if high / 2**i <= 9)
    return Axis("kernels shipped", 0, high * 1.03, tuple((float(x), str(x)) for x in range(0, high + 1, step)))


def portfolio(curve: Curve, regret: Regret, *, is_predicted: bool) -> tuple[Figure, ...]:
    """Draw regret against the number of kernels, the choice marked; and the bytes, where they are known."""
    points = list({point.num_kernels: point for point in curve.points}.values())
    counts = [regret.num_kernels, *(point.num_kernels for point in points)]
    said = "predicted" if is_predicted else "measured"
    plot = Plot(_sizes_axis(counts), _curve_axis(curve), height=300, left=66)
    hollow = " hollow" if is_predicted else ""
    lines = []
    sets = (("l3", "worst", [x.worst for x in points]), ("l1", "mean", [x.mean for x in points]))
    for css, name, values in sets:
        line = [(float(p.num_kernels), v) for p, v in zip(points, values, strict=True) if v > 0]
        lines.append(element("path", d=plot.points(line), class_=f"line solid {css}") if line else "")
        lines += [
            element("circle", cx=plot.px(x), cy=plot.py(y), r=4.0, class_=f"dot {css}{hollow}", title=title)
            for x, y in line
            for title in [f"{x:g} kernels: {name} regret {share(y, 2)}, {said}"]
        ]
    bound = [(float(p.num_kernels), p.mean_bound) for p in points if p.mean_bound > 0]
    lines.append(element("path", d=plot.points(bound), class_="line bound") if bound else "")
    marked = _choice(plot, regret, max(counts))
    caption = (
        f"Portfolios of each size over the {regret.num_problems} problems selected on, by {said} times. Dashed is "
        f"proven: no choice of so many kernels has a lower mean. Marked: this selection, {regret.num_kernels} kernels, "
        f"by {regret.method}."
    )
    if any(x.worst >= MISSING_RATIO - 1 for x in points):
        caption += f" {share(MISSING_RATIO - 1, 0)} stands for a problem on which none of the kernels was timed."
    legend = (
        Mark(f"line solid l1{hollow}", f"mean regret, {said}"),
        Mark("line bound", "least possible mean, proven"),
        Mark(f"line solid l3{hollow}", f"worst regret, {said}"),
    )
    rows = tuple(
        (
            *(x.num_kernels, share(x.mean, 2), share(x.mean_bound, 2), share(x.worst)),
            f"{'~' if x.is_estimate else ''}{x.wheel_bytes / 1024:.0f}" if x.wheel_bytes else "",
        )
        for x in points
    )
    note = "~ estimated: some of the kernels are not compiled here" if any(x.is_estimate for x in points) else ""
    table = Table(("kernels", "mean", "least possible", "worst", "KiB in the wheel"), rows, note)
    svg = figure(plot.axes() + "".join(lines) + marked, plot.total, "Regret against the number of kernels")
    first = Figure("Kernels against regret", caption, svg, legend, table)
    return (first, _bytes(curve, regret, table)) if any(x.wheel_bytes for x in points) else (first,)


def _choice(plot: Plot, regret: Regret, last: int) -> str:
    x = plot.px(float(regret.num_kernels))
    css = "note end" if regret.num_kernels > last / 2 else "note"
    at = x - 7 if regret.num_kernels > last / 2 else x + 7
    line = element("path", d=f"M{number(x)} {number(plot.top)}V{number(plot.bottom)}", class_="choice")
    text = element("text", f"chosen: {regret.num_kernels}", x=at, y=plot.top + 14, class_=css)
    ring = element("circle", cx=x, cy=plot.py(max(regret.mean, plot.y.low)), r=7.5, class_="ring")
    return line + ring + text


def _bytes(curve: Curve, regret: Regret, table: Table) -> Figure:
    points = list({point.num_kernels: point for point in curve.points}.values())
    highest = max(x.wheel_bytes for x in points) / 1024
    ticks = np.linspace(0, float(f"{highest:.1g}"), 5)
    y = Axis(
        "KiB, compressed", 0, highest * 1.1, tuple((float(x), short(float(x))) for x in ticks if x <= highest * 1.1)
    )
    x_axis = _sizes_axis([regret.num_kernels, *(x.num_kernels for x in points)])
    plot = Plot(x_axis, y, height=150, left=66)
    line = plot.points((float(x.num_kernels), x.wheel_bytes / 1024) for x in points)
    marks = [element("path", d=line, class_="line solid l1")]
    for x in points:
        said = "estimated" if x.is_estimate else "counted"
        across, up = plot.px(float(x.num_kernels)), plot.py(x.wheel_bytes / 1024)
        css = f"dot l1{' hollow' if x.is_estimate else ''}"
        title = f"{x.num_kernels} kernels: {x.wheel_bytes / 1024:.0f} KiB, {said}"
        marks.append(element("circle", cx=across, cy=up, r=4.0, class_=css, title=title))
    at = plot.px(float(regret.num_kernels))
    marks.append(element("path", d=f"M{number(at)} {number(plot.top)}V{number(plot.bottom)}", class_="choice"))
    caption = (
        "What the kernels of each portfolio take in the wheel, compressed. Hollow: estimated in part, since some of "
    )
    caption += "the kernels are not compiled here; those count as the others' mean."
    legend = (Mark("dot l1", "counted"), Mark("dot l1 hollow", "estimated in part"))
    svg = figure(plot.axes() + "".join(marks), plot.total, "Bytes against the number of kernels")
    return Figure("Kernels against bytes", caption, svg, legend, table)


_SHAPES = (
    "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0 -5 0Z",
    "M-4.5-4.5H4.5V4.5H-4.5Z",
    "M0-6L6 5H-6Z",
    "M0-6.5L6.5 0 0 6.5-6.5 0Z",
)


def search_curves(points: Sequence[SearchPoint]) -> Figure | None:
    """Draw each search strategy's mean regret against the share of the candidates that it measured."""
    if not points:
        return None
    x = log_axis("share of the candidates measured (logarithmic)", [p.fraction for p in points], most=6)
    x = Axis(x.label, x.low, x.high, tuple((tick, percent(tick)) for tick, _ in x.ticks), x.kind)
    plot = Plot(
        x, root_axis("mean regret (square-root scale)", max(p.mean_regret for p in points)), height=280, left=66
    )
    names = list(dict.fromkeys(p.strategy for p in points))
    marks, legend = [], []
    for i, name in enumerate(names):
        css = f"l{i % 5 + 1}"
        found = sorted((p for p in points if p.strategy == name), key=lambda p: p.fraction)
        if len(found) > 1:
            line = plot.points((p.fraction, p.mean_regret) for p in found)
            marks.append(element("path", d=line, class_=f"line solid {css}"))
        for p in found:
            title = f"{name}: {share(p.fraction)} measured, mean regret {share(p.mean_regret, 2)}, {p.device_s:.0f} s"
            place = f"translate({number(plot.px(p.fraction))} {number(plot.py(p.mean_regret))})"
            marks.append(element("path", d=_SHAPES[i % 4], transform=place, class_=f"dot {css}", title=title))
        legend.append(Mark(f"line solid {css}", name))
    rows = tuple(
        (p.strategy, share(p.fraction), f"{p.device_s:.0f}", share(p.mean_regret, 2), share(p.worst_regret))
        for p in points
    )
    caption = (
        "Strategies replayed on the record's measured times: how far the best kernel that a strategy found is from the "
        "best known, having measured that share of the candidates. Device seconds are reckoned, not measured."
    )
    table = Table(("strategy", "measured", "device s, reckoned", "mean regret", "worst"), rows)
    svg = figure(plot.axes() + "".join(marks), plot.total, "Search strategies")
    return Figure("Search strategies", caption, svg, tuple(legend), table)
