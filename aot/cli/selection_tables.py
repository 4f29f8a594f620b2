"""Plain-text tables of a selection, and of what two of them differ in. Pure: values in, text out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.cli.tables import table
from aot.core.measurement import PROVENANCE_PREDICTED
from aot.kinds.registry import kind_of
from aot.select.coverage import called, only_fallback
from aot.select.selection import BY_IMPUTED_TIMES

if TYPE_CHECKING:
    from aot.select.score.diff import Difference
    from aot.select.selection import Curve, Regret, Selection

BAR = 40
"""Widest bar of a plot, in characters."""


def selection_summary(selection: Selection) -> str:
    """Show each operation's kernels and regret, the curve, the bucketing loss, and where the times come from."""
    if selection.provenance == PROVENANCE_PREDICTED:
        return _predicted_summary(selection)
    header = ("operation", "problems", "kernels", "mean regret", "at least", "worst regret", "chosen by")
    rows = [(x.operation.tag, x.num_problems, x.num_kernels, *_regrets(x), x.method) for x in selection.regrets]
    rows += _fallback_rows(selection, len(header))
    parts = [
        _selection_head(selection),
        *([table(header, rows)] if rows else []),
        *(curve_table(curve, selection) for curve in selection.curves),
    ]
    references = [references_table(selection)] if selection.references else []
    return "\n\n".join([*parts, heldout_table(selection), *references, *price_table(selection)])


def _regrets(regret: Regret) -> list[str]:
    """Show an operation's mean regret, its bound and the worst one; of what the cost model chose none is known."""
    figures = (regret.mean, regret.mean_bound, regret.worst)
    return [_percent(x) if regret.is_known else "not known" for x in figures]


def _fallback_rows(selection: Selection, num_columns: int) -> list[tuple[object, ...]]:
    """Make a row of each operation that the fallback alone computes."""
    tags = [section.operation.tag for section in selection.table.sections if only_fallback(section)]
    note = "no other: the fallback alone computes it on this target, slowly"
    return [(tag, "-", 1, *["-"] * (num_columns - 4), note) for tag in tags]


def _selection_head(selection: Selection) -> str:
    like = f", as chosen for {selection.like}" if selection.like else ""
    said = called(selection.provenance, selection.coverage)
    return f"{selection.target}: {len(selection.all_kernels)} kernels{like}, {said} ({selection.record})"


def _predicted_summary(selection: Selection) -> str:
    """Show each operation's kernels: the model's regret against its own times would say nothing."""
    header = ("operation", "problems", "kernels", "chosen by")
    rows: list[tuple[object, ...]] = [
        (x.operation.tag, x.num_problems, x.num_kernels, x.method) for x in selection.regrets
    ]
    rows += _fallback_rows(selection, len(header))
    note = "the cost model chose them; nothing was measured, so that no regret is known"
    if any(x.method.endswith(BY_IMPUTED_TIMES) for x in selection.regrets):
        note = "nothing of these operations was measured: every row of the table is predicted, and no regret is known"
    return "\n\n".join([_selection_head(selection), table(header, rows), note, *price_table(selection)])


def price_table(selection: Selection) -> list[str]:
    """Show what it costs that a row's bits do not depend on m; nothing where the selection has no such tables."""
    header = ("batch-invariant", "problems", "mean", "to m 512", "at worst", "where")
    rows = [
        (x.operation.tag, x.num_problems, f"{x.mean:.3f}x", f"{x.mean_to_512:.3f}x", f"{x.worst:.2f}x", x.worst_problem)
        for x in selection.prices or ()
    ]
    return [table(header, rows)] if rows else []


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}%"


def curve_table(curve: Curve, selection: Selection) -> str:
    """Show kernels against regret and bytes, as figures and bars, the choice marked."""
    (chosen,) = (x.num_kernels for x in selection.regrets if x.operation == curve.operation)
    highest = max(point.mean for point in curve.points) or 1.0
    rows = [
        (
            point.num_kernels,
            *map(_percent, (point.mean, point.mean_bound, point.worst)),
            f"{'~' if point.is_estimate else ''}{point.wheel_bytes / 1024:.0f}",
            "#" * max(1, round(BAR * point.mean / highest)) + (" <- chosen" if point.num_kernels == chosen else ""),
        )
        for point in curve.points
    ]
    header = ("kernels", "mean regret", "at least", "worst regret", "KiB in the wheel", "mean regret")
    note = (
        "\n~ some kernels are not compiled here: the others' mean" if any(x.is_estimate for x in curve.points) else ""
    )
    return f"{curve.operation.tag}\n{table(header, rows)}{note}"


def heldout_table(selection: Selection) -> str:
    """Show the bucketing loss on the problems that were held out."""
    if not selection.heldout:
        return "nothing was held out: the bucketing loss is not known"
    rows = [
        (
            x.operation.tag,
            kind_of(x.operation).held_out[x.tier],
            x.num_problems,
            x.num_unmeasured,
            *map(_percent, (x.bucketing_loss_mean, x.bucketing_loss_worst, x.mean, x.worst)),
            x.worst_problem,
        )
        for x in selection.heldout
    ]
    header = (
        "held out",
        "",
        "problems",
        "no time",
        "bucketing: mean",
        "worst",
        "regret: mean",
        "worst",
        "worst bucketing at",
    )
    return table(header, rows)


def references_table(selection: Selection) -> str:
    """Show the speed over the reference library, on the problems that both were timed on."""
    rows = [
        (
            x.operation.tag,
            "held out" if x.is_heldout else "selected on",
            x.num_problems,
            x.num_untimed,
            f"{x.mean:.3f}x",
            f"{x.num_below_98} ({_percent(x.num_below_98 / x.num_problems)})",
            x.num_below_93,
            f"{x.worst:.3f}x",
            x.worst_problem,
        )
        for x in selection.references
    ]
    header = (
        "over the library",
        "",
        "problems",
        "no time",
        "speed: mean",
        "below 0.98",
        "below 0.93",
        "worst",
        "worst at",
    )
    return table(header, rows)


def difference_table(difference: Difference, num_shown: int) -> str:
    """Show what two selections dispatch otherwise: how much of the table, at what cost, and the costliest changes."""
    changes = sorted(difference.changes, key=lambda change: -(change.cost or 0.0))
    known = [change.cost for change in changes if change.cost is not None]
    lines = [
        f"{len(changes)} of {difference.num_entries} entries have another kernel ({_percent(difference.churn)})",
        f"kernels added: {', '.join(difference.added) or 'none'}",
        f"kernels dropped: {', '.join(difference.dropped) or 'none'}",
    ]
    if difference.operations:
        lines.append(f"only in one of the two: {', '.join(operation.tag for operation in difference.operations)}")
    if known:
        over = sum(cost > 0.01 for cost in known)
        mean = sum(known) / len(known)
        lines.append(f"the changes cost {_percent(mean)} in the mean, {_percent(max(known))} at worst; {over} over 1%")
    rows = [
        (
            change.tier.value,
            change.corner.name,
            change.old.name,
            change.new.name,
            "-"
            if change.cost is None
            else f"{100 * change.cost:+.2f}% {'measured' if change.is_measured else 'learned'}",
        )
        for change in changes[:num_shown]
    ]
    shown = [table(("tier", "up to", "old", "new", "cost"), rows)] if rows else []
    return "\n".join([*lines, *shown])
