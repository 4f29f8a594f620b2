"""The maps of a table: which kernel each bucket and cell has, and how near each bucket is to its roofline. Pure."""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from aot.core.measurement import PROVENANCE_MEASURED
from aot.report import few
from aot.report.parts import NUM_COLOURS, TIMES, Figure, Mark, Table, kernel_name, share
from aot.report.svg import M_LOW, WIDTH, Axis, Kind, Plot, element, figure, m_axis, rectangles, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aot.core.dispatch import Column, Grid
    from aot.report.facts import Cell, OperationFacts

    Box = tuple[float, float, float, float]

ROW = 18.0
"""Height of a ladder's row, in units: one line of text on a phone."""

FRACTIONS = (
    (0.25, "below 25%"),
    (0.5, "25 to 50%"),
    (0.7, "50 to 70%"),
    (0.85, "70 to 85%"),
    (math.inf, "85% and more"),
)
"""Shares of the roofline up to which a cell has one shade; the shades are s1 to s5."""

OTHER = "k0"
PREDICTED = Mark("hatch", "hatched: predicted, not measured")


def colours(facts: OperationFacts) -> dict[int, str]:
    """Return each kernel's class: those with most buckets and most of the map have one each, the others share one.

    Classes follow the kernels' mean m, so that a legend reads as the maps do.
    """
    areas: dict[int, list[tuple[float, float]]] = {}
    for cell in facts.cells:
        areas.setdefault(cell.kernel, []).append(_extent(cell.after, cell.problem.m))
    grid = facts.section.grid
    for column in grid.columns if not areas else ():
        for after, m, kernel in zip((0, *column.m_edges), column.m_edges, column.kernels, strict=False):
            areas.setdefault(kernel, []).append(_extent(after, m))
    weights = {kernel: sum(width for width, _ in found) for kernel, found in areas.items()}
    means = {kernel: sum(w * at for w, at in found) / weights[kernel] for kernel, found in areas.items()}
    area, count = sum(weights.values()), sum(map(len, areas.values()))
    shares = {kernel: weights[kernel] / area + len(found) / count for kernel, found in areas.items()}
    largest = sorted(areas, key=lambda kernel: (-shares[kernel], kernel))[:NUM_COLOURS]
    ordered = sorted(largest, key=lambda kernel: (means[kernel], kernel))
    return {kernel: f"k{i + 1}" for i, kernel in enumerate(ordered)}


def _extent(after: int, last: int) -> tuple[float, float]:
    """Return the width of a bucket on an axis of m, and its middle."""
    low, high = math.log(max(after, M_LOW)), math.log(last)
    return high - low, (high + low) / 2


def _legend(facts: OperationFacts, classes: dict[int, str], used: Iterable[int]) -> tuple[Mark, ...]:
    known = set(used)
    marks = [Mark(css, kernel_name(facts, kernel)) for kernel, css in classes.items() if kernel in known]
    others = len(known - set(classes))
    return (*marks, Mark(OTHER, f"{others} others, named in the table and on pointing")) if others else tuple(marks)


def _rows(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Part cells by their ladder, ascending by n times k."""
    ladders = [list(group) for _, group in groupby(cells, key=lambda x: (x.problem.n, x.problem.k))]
    return sorted(ladders, key=lambda x: (x[0].problem.n * x[0].problem.k, x[0].problem.n))


def _ladder_plot(rows: Sequence[Sequence[Cell]]) -> Plot:
    """Make the plot of ladders; the ordinate counts rows from the top."""
    last = max(cell.problem.m for row in rows for cell in row)
    y = Axis(f"n{TIMES}k of each tuned weight, ascending", 0, len(rows), (), Kind.LINEAR)
    return Plot(m_axis(last), y, height=ROW * len(rows), left=122, right=62)


def _labels(plot: Plot, rows: Sequence[Sequence[Cell]]) -> str:
    parts = [element("text", plot.y.label, x=2, y=16, class_="label")]
    parts.append(element("text", f"n{TIMES}k", x=WIDTH - 2, y=16, class_="label end"))
    for i, row in enumerate(rows):
        x, at = row[0].problem, plot.top + (i + 0.5) * ROW
        parts.append(element("text", f"{x.n}{TIMES}{x.k}", x=plot.left - 6, y=at, dy=".34em", class_="tick end"))
        parts.append(element("text", short(x.n * x.k), x=WIDTH - 2, y=at, dy=".34em", class_="tick end"))
    return "".join(parts)


def _boxes(plot: Plot, rows: Sequence[Sequence[Cell]], key: Callable[[Cell], int]) -> dict[int, list[Box]]:
    """Return the rectangles of each value of a key; neighbours that have one are one."""
    found: dict[int, list[Box]] = {}
    for i, row in enumerate(rows):
        top = plot.top + i * ROW
        for value, group in groupby(row, key=key):
            run = list(group)
            right = plot.x.high if run[-1].is_last else float(run[-1].problem.m)
            box = (plot.px(float(run[0].after)), top, plot.px(right), top + ROW)
            found.setdefault(value, []).append(box)
    return found


def _unmeasured(plot: Plot, rows: Sequence[Sequence[Cell]]) -> str:
    """Hatch the rows that have no measured time, and what lies past a ladder's last edge."""
    boxes = _boxes(plot, rows, lambda x: x.is_measured).get(False, [])
    return element("path", d=rectangles(boxes), class_="hatching") + _past(plot, rows)


def _past(plot: Plot, rows: Sequence[Sequence[Cell]]) -> str:
    """Hatch what lies past the last edge of ladders whose last row is measured."""
    boxes = []
    for i, row in enumerate(rows):
        if row[-1].is_measured:
            top, end = plot.top + i * ROW, plot.px(plot.x.high)
            boxes.append((plot.px(float(row[-1].problem.m)), top, end, top + ROW))
    return element("path", d=rectangles(boxes), class_="hatching") if boxes else ""


_OF_NEIGHBOURS = "of neighbours the one with the bucket furthest from its roofline; tables of extremes are of all"


def chosen(facts: OperationFacts) -> Figure | None:
    """Draw the kernel of each bucket of tier 1 over m, a row a tuned (n, k)."""
    if not facts.cells:
        return None
    every, classes = _rows(facts.cells), colours(facts)
    rows = few.ladders(every)
    plot = _ladder_plot(rows)
    boxes = _boxes(plot, rows, lambda x: x.kernel)
    marks = [_fill(facts, kernel, boxes[kernel], classes.get(kernel, OTHER)) for kernel in sorted(boxes)]
    marks.append(_unmeasured(plot, rows))
    measured = len(facts.measured)
    why = "of the cost model" if facts.provenance != PROVENANCE_MEASURED else "learned from the measured ones"
    caption = (
        f"Tier 1: {len(facts.cells)} buckets of m of {len(every)} tuned weights, by the kernel they get. {measured} "
        f"were measured at their upper edge; hatched ones rest on times {why}, or lie past a ladder's last edge."
        f"{few.said(len(rows), len(every), 'weights', _OF_NEIGHBOURS)}"
    )
    svg = figure(_labels(plot, rows) + "".join(marks) + plot.axes(is_map=True), plot.total, "Kernel chosen, tier 1")
    legend = (*_legend(facts, classes, {cell.kernel for row in rows for cell in row}), PREDICTED)
    table = _chosen_table(facts, rows) if len(rows) == len(every) else _kernels_table(facts)
    return Figure("Kernel chosen, tuned weights", caption, svg, legend, table, has_names=True)


def _chosen_table(facts: OperationFacts, rows: Sequence[Sequence[Cell]]) -> Table:
    lines = []
    for row in rows:
        for kernel, group in groupby(row, key=lambda x: x.kernel):
            run = list(group)
            x, count = run[-1].problem, sum(cell.is_measured for cell in run)
            to = "and more" if run[-1].is_last else str(x.m)
            lines.append((x.n, x.k, str(run[0].after + 1), to, kernel_name(facts, kernel), f"{count} of {len(run)}"))
    return Table(("n", "k", "m from", "to", "kernel", "buckets measured"), tuple(lines))


def _kernels_table(facts: OperationFacts) -> Table:
    """Count the buckets of each kernel, of all weights: where not all are drawn, a line for each would be too many."""
    found: dict[int, list[Cell]] = {}
    for cell in facts.cells:
        found.setdefault(cell.kernel, []).append(cell)
    lines = [
        (
            *(kernel_name(facts, kernel), len(cells), share(len(cells) / len(facts.cells))),
            *(sum(x.is_measured for x in cells), min(x.after + 1 for x in cells), max(x.problem.m for x in cells)),
        )
        for kernel, cells in sorted(found.items(), key=lambda x: (-len(x[1]), x[0]))
    ]
    note = "aot explain M N K says which kernel a product gets."
    return Table(("kernel", "buckets", "of all", "measured", "least m", "largest"), tuple(lines), note)


def reached(facts: OperationFacts) -> Figure | None:
    """Draw the share of the roofline that each bucket's time reaches, in one hue."""
    if not facts.cells:
        return None
    every = _rows(facts.cells)
    rows = few.ladders(every)
    plot = _ladder_plot(rows)
    is_predicted = facts.provenance != PROVENANCE_MEASURED

    def shade(cell: Cell) -> int:
        if not (cell.is_measured or is_predicted):
            return 0
        return next(i + 1 for i, (limit, _) in enumerate(FRACTIONS) if cell.fraction < limit)

    boxes = _boxes(plot, rows, shade)
    marks = []
    for value in sorted(boxes):
        title = FRACTIONS[value - 1][1] + " of the roofline" if value else "not measured"
        marks.append(
            element("path", d=rectangles(boxes[value]), class_=f"cell s{value}" if value else "void", title=title)
        )
    marks.append(_past(plot, rows) if not is_predicted else _unmeasured(plot, rows))
    shown = [cell for cell in facts.cells if cell.is_measured or is_predicted]
    said = "predicted" if is_predicted else "measured"
    caption = (
        f"The roofline's time over the {said} time at the upper edge of each bucket. The roofline is the slower of "
        "moving A, B and D once and multiplying at the full rate; it knows no launch, so "
        f"that small problems stay far from it.{few.said(len(rows), len(every), 'weights', _OF_NEIGHBOURS)}"
    )
    legend = (*(Mark(f"s{i + 1}", text) for i, (_, text) in enumerate(FRACTIONS)), PREDICTED)
    counts = Counter(shade(cell) for cell in shown)
    lines = tuple(
        (text, counts[i + 1], share(counts[i + 1] / max(len(shown), 1), 0)) for i, (_, text) in enumerate(FRACTIONS)
    )
    table = Table(
        ("of the roofline", f"buckets, {said}", "of all"), lines, "Each bucket's share is in the roofline's table."
    )
    svg = figure(
        _labels(plot, rows) + "".join(marks) + plot.axes(is_map=True), plot.total, "Share of the roofline reached"
    )
    return Figure("Share of the roofline reached", caption, svg, legend, table)


PANEL = 170.0
"""Height of a panel of tier 2."""


MAX_PANELS = 6
"""Panels of tier 2: one for each edge of k, or where those are more for so many of them, the last one included."""


def _depths(grid: Grid) -> list[int]:
    """Choose the edges of k that have a panel, by index."""
    count = len(grid.k_edges)
    return sorted({count - 1 - i * count // MAX_PANELS for i in range(MAX_PANELS)} & set(range(count)))


def _runs(column: Column) -> list[tuple[int, int, int]]:
    """Join neighbouring steps of one kernel: (kernel, m after which the run begins, its last m)."""
    steps = zip((0, *column.m_edges), column.m_edges, column.kernels, strict=False)
    groups = [(kernel, list(group)) for kernel, group in groupby(steps, key=lambda x: x[2])]
    return [(kernel, group[0][0], group[-1][1]) for kernel, group in groups]


def _panel(facts: OperationFacts, depth: int, plot: Plot, classes: dict[int, str]) -> str:
    """Draw the columns of one upper edge of k; all of them are predicted."""
    grid = facts.section.grid
    shown = few.bands(len(grid.n_edges))
    every = grid.columns[depth :: len(grid.k_edges)]
    columns = [every[i] for i in shown]
    tops = [plot.bottom, *(plot.py(float(grid.n_edges[i])) for i in shown[:-1]), plot.top]
    boxes: dict[int, list[Box]] = {}
    start = 0
    for runs, group in groupby(map(_runs, columns)):
        end = start + len(list(group))
        for kernel, after, last in runs:
            right = WIDTH - plot.right if last == runs[-1][2] else plot.px(float(last))
            box = (plot.px(float(after)) if after else plot.left, tops[end], right, tops[start])
            boxes.setdefault(kernel, []).append(box)
        start = end
    marks = [_fill(facts, kernel, boxes[kernel], f"fine {classes.get(kernel, OTHER)}") for kernel in sorted(boxes)]
    whole = (plot.left, plot.top, WIDTH - plot.right, plot.bottom)
    return "".join([*marks, element("path", d=rectangles([whole]), class_="hatching")])


def _fill(facts: OperationFacts, kernel: int, boxes: Sequence[Box], css: str) -> str:
    return element("path", d=rectangles(boxes), class_=f"cell {css}", title=kernel_name(facts, kernel))


def _between(edges: Sequence[int], step: int, name: str) -> str:
    """Say which extents a step is for; the last is open."""
    if step == len(edges) - 1:
        return f"{name} above {edges[step - 1]}" if step else f"any {name}"
    return f"{name} {edges[step - 1] + 1} to {edges[step]}" if step else f"{name} up to {edges[0]}"


def grid_map(facts: OperationFacts) -> Figure:
    """Draw the kernel of each cell of tier 2 over m and n, a panel for some ranges of k."""
    grid, classes = facts.section.grid, colours(facts)
    low, high = max(grid.n_edges[0] / 2, 0.5), float(grid.n_edges[-1])
    powers = [2**i for i in range(32) if low <= 2**i <= high]
    ticks = tuple((float(x), str(x)) for x in powers[:: max(1, len(powers) // 4)])
    y = Axis("n (logarithmic)", low, high * 1.15, ticks, Kind.LOG)
    parts, depths = [], _depths(grid)
    last_m = max(column.m_edges[-1] for column in grid.columns)
    for i, depth in enumerate(depths):
        plot = Plot(m_axis(last_m), y, height=PANEL, left=70, top=34 + i * (PANEL + 34))
        where = _between(grid.k_edges, depth, "k")
        parts.append(element("text", where, x=WIDTH - plot.right, y=plot.top - 8, class_="label end"))
        parts.append(_panel(facts, depth, plot, classes))
        parts.append(plot.axes(is_map=True) if depth == depths[-1] else plot.ordinate())
    parts.append(element("text", y.label, x=2, y=16, class_="label"))
    counts = Counter(kernel for column in grid.columns for kernel in column.kernels)
    shown = "" if len(depths) == len(grid.k_edges) else f" {len(depths)} of {len(grid.k_edges)} ranges of k are drawn."
    bands = len(few.bands(len(grid.n_edges)))
    shown += few.said(bands, len(grid.n_edges), "ranges of n", "each stands for those below it; the table counts all")
    caption = (
        f"Tier 2: all other n and k fall into {len(grid.columns)} columns of {grid.num_steps} cells, by the kernel "
        "they get: the fastest by the mean of times over shapes inside the cell; all predicted, so hatched: nothing "
        f"here was measured.{shown}"
    )
    lines = [(kernel_name(facts, x), count, share(count / grid.num_steps)) for x, count in counts.most_common()]
    legend = (*_legend(facts, classes, counts), PREDICTED)
    svg = figure("".join(parts), 34 + len(depths) * (PANEL + 34) + 18, "Kernel chosen, tier 2")
    table = Table(("kernel", "cells", "of all"), tuple(lines))
    return Figure("Kernel chosen, other weights", caption, svg, legend, table, has_names=True)
