"""The tables of a report: conditions, what was not chosen and why, the slowest rows, the largest regrets. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.dispatch import Tier
from aot.kinds.registry import kind_of
from aot.report.parts import MINUS, Bar, Table, kernel_name, microseconds, share, sizes
from aot.select.selection import BY_IMPUTED_TIMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.measurement import Conditions
    from aot.report.facts import Cell, Facts, OperationFacts
    from aot.select.selection import Selection

NUM_SHOWN = 12
"""Rows of a table of extremes."""

LARGE_US = 10.0
"""Limit from which on a launch, about 2 us, is not what keeps a problem from it."""


def _range(values: Sequence[int | None], unit: str) -> str:
    known = sorted({value for value in values if value is not None})
    if not known:
        return "not read"
    return f"{known[0]} {unit}" if len(known) == 1 else f"{known[0]} to {known[-1]} {unit}, read just after load"


def _each(values: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def conditions(facts: Facts) -> list[tuple[str, str]]:
    """List the device and the conditions of the measuring, as names and values."""
    selection, target, runs = facts.selection, facts.target, facts.selection.conditions
    found = [("Target", f"{target.name}: {target.description}")]
    if facts.is_predicted:
        return [
            *found,
            ("Provenance", f"predicted: the times are {_predicted_by(selection)}; nothing was measured"),
            *_rates(facts),
            *_runs(selection),
        ]
    dates = sorted({x.date for x in runs})
    found += [
        ("Device", _each([f"{x.device}, {x.arch}, {x.num_sms} SMs" for x in runs])),
        ("Driver", _each([x.driver for x in runs])),
        ("Power", _each([_power(x) for x in runs])),
        ("SM clock", _range([x.sm_clock_mhz for x in runs], "MHz")),
        ("Memory clock", _range([x.memory_clock_mhz for x in runs], "MHz")),
        (
            "Measured",
            f"{' to '.join(dict.fromkeys([dates[0], dates[-1]]))}, in {len(runs)} runs" if dates else "not known",
        ),
        ("Protocol", _each([x.protocol for x in runs])),
        ("Record", f"{selection.record}: {facts.num_measurements:,} times"),
    ]
    return [*found, *_rates(facts), *_runs(selection)]


def _runs(selection: Selection) -> list[tuple[str, str]]:
    """Say by which commands the selection is made again; of several, which operations each chose."""
    tags = [", ".join(x.tag for x in run.operations) for run in selection.runs or ()]
    return [
        (f"Made by, {of}" if len(tags) > 1 else "Made by", x.text)
        for of, x in zip(tags, selection.runs or (), strict=True)
    ]


def _predicted_by(selection: Selection) -> str:
    if any(x.method.endswith(BY_IMPUTED_TIMES) for x in selection.regrets):
        return f"those of equivalent operations ({selection.record})"
    return f"the cost model's ({selection.record})"


def _power(run: Conditions) -> str:
    return run.power_mode or "not known"


def _of(names: Sequence[str]) -> str:
    return f" of {', '.join(names)}"


def _rates(facts: Facts) -> list[tuple[str, str]]:
    """Say the target's rates, of each type that the operations multiply."""
    target, rates = facts.target, dict[float, list[str]]()
    for operation in sorted((x.operation for x in facts.operations), key=lambda x: x.position):
        names = rates.setdefault(target.peak_flops_per_s(operation), [])
        names += [] if operation.types.a.tag in names else [operation.types.a.tag]
    many = len(rates) > 1
    roofs = [f"{rate / 1e12:.0f} TFLOP/s{_of(names) if many else ''}" for rate, names in rates.items()]
    bandwidth = f"{target.bandwidth_bytes_per_s / 1e12:.3g} TB/s"
    roofs = ["; ".join(roofs), bandwidth] if roofs else [bandwidth]
    return [("Roofs", f"{', '.join(roofs)}, as the target's file gives them, measured or published")]


def operations(facts: Facts) -> Table:
    """Show each operation's kernels and regrets; of a predicted selection, no regret."""
    rows: list[tuple[str, ...]] = []
    if facts.is_predicted:
        for x in facts.operations:
            kernels = sum(key.operation == x.operation for key in x.kernels)
            rows.append((x.operation.tag, str(kernels), str(len(x.cells)), str(x.section.grid.num_steps), "not known"))
        return Table(("operation", "kernels", "rows, predicted", "cells, predicted", "regret"), tuple(rows))
    for x in facts.operations:
        regret = x.regret
        if regret is None:
            rows.append((x.operation.tag, *[""] * 6))
            continue
        held = [f"{share(h.mean, 2)} ({kind_of(h.operation).held_out[h.tier]})" for h in x.heldout]
        counts = str(regret.num_kernels), str(regret.num_problems)
        figures = share(regret.mean, 2), share(regret.mean_bound, 2), share(regret.worst)
        rows.append((x.operation.tag, *counts, *figures, ", ".join(held) or "none held out"))
    header = ("operation", "kernels", "problems", "mean regret", "least possible", "worst", "held-out mean")
    note = "Regret is in sample and measured; least possible is a proven bound for so many kernels."
    return Table(header, tuple(rows), note)


def failed(facts: OperationFacts) -> Table | None:
    """Show what has no time in the record, by its cause."""
    rows = tuple((str(x.status), str(x.num_pairs), str(x.num_kernels), x.example) for x in facts.failures)
    return Table(("status", "kernels and problems", "kernels", "example"), rows) if rows else None


def rejected(facts: OperationFacts) -> Table:
    """Show how many candidates legality rejected before any compiler, with an example each."""
    rows = []
    for family in facts.families:
        rows.append((family.family, str(family.num_accepted), "legal", ""))
        for reason, count in sorted(family.num_rejected.items(), key=lambda x: (-x[1], x[0].value)):
            rows.append((family.family, str(count), reason.value, family.examples[reason]))
    return Table(("family", "candidates", "verdict", "example"), tuple(rows))


def runners(facts: OperationFacts) -> Table | None:
    """Show the kernels that were measured and are not shipped, those with most to gain first."""
    found = facts.unchosen[:NUM_SHOWN]
    if not found:
        return None
    most = found[0].mean_gain
    rows = tuple(
        (
            *(x.candidate.name, Bar(f"{MINUS}{share(x.mean_gain, 3)}", x.mean_gain / most), str(x.num_best)),
            *(f"{MINUS}{share(x.largest_gain)}", x.largest_problem.name.partition(" ")[2], str(x.num_problems)),
        )
        for x in found
    )
    header = ("kernel", "mean regret if added", "fastest on", "most on one", "which", "timed on")
    return Table(header, rows)


def _slow_row(facts: OperationFacts, cell: Cell) -> tuple[str | Bar, ...]:
    x = cell.roofline
    return (
        sizes(cell),
        Bar(share(cell.fraction), min(cell.fraction, 1.0)),
        microseconds(cell.time_us),
        f"{microseconds(x.time_us)}, {x.bound}",
        kernel_name(facts, cell.kernel),
    )


def slowest(facts: OperationFacts) -> list[tuple[str, Table]]:
    """Show the rows that reach least of their roofline: of all, and of those that a launch does not explain."""
    cells = sorted(facts.measured or facts.cells, key=lambda x: (x.fraction, x.problem))
    said = "measured" if facts.measured else "predicted"
    header = ("bucket's upper edge", f"of the roofline, {said}", f"us, {said}", "roofline, us", "kernel")
    large = [cell for cell in cells if cell.roofline.time_us >= LARGE_US]
    titles = (
        (f"Of the {len(large)} rows whose roofline is {LARGE_US:.0f} us or more", large),
        (f"Of all {len(cells)} rows, where a launch alone takes longer than many a roofline", cells),
    )
    return [
        (title, Table(header, tuple(_slow_row(facts, cell) for cell in found[:NUM_SHOWN])))
        for title, found in titles
        if found
    ]


def largest(facts: OperationFacts) -> Table | None:
    """Show the problems with the largest regrets, in sample and held out."""
    pairs = [(x.found, "in sample" if x.is_own else "in sample, by an imputed time") for x in facts.inside]
    pairs += [(x, f"held out, tier {x.tier.value}") for x in facts.outside if x.tier in (Tier.TUNED, Tier.GRID)]
    known = [(x.regret, x, where) for x, where in pairs if x.regret is not None]
    known.sort(key=lambda row: (-row[0], row[1].problem, row[2]))
    if not known:
        return None
    most = known[0][0] or 1.0
    rows = tuple(
        (
            *(x.problem.name.partition(" ")[2], where, Bar(share(regret), regret / most)),
            *(f"{x.chosen.name}, {microseconds(x.time_us or 0)}", f"{x.best.name}, {microseconds(x.best_us)}"),
        )
        for regret, x, where in known[:NUM_SHOWN]
    )
    return Table(("problem", "", "regret", "gets, measured us", "best known, measured us"), rows)
