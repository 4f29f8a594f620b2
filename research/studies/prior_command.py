"""The study `prior`: what the cost model assumes, and how far published times and a hand rule are from it."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

import click

from aot.cli.options import (
    CROSSED_OPERATIONS,
    OPERATIONS,
    OPERATIONS_AXIS,
    OUTPUT_FILE,
    TARGET,
    Axis,
    Command,
    option,
    options,
)
from aot.cli.output import JSON, show, tell
from aot.cli.tables import table
from aot.core.progress import waiting
from aot.core.shape_set import load_shape_set
from aot.core.target import load_target
from aot.space.calibration import write_calibration
from aot.space.cost import DEFAULTS
from research.studies import hand_rule, prior, prior_calibrated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from aot.core.operation import Operation
    from aot.core.target import Target

WEIGHTS = "representative"
"""The shape set whose weights the rule is compared on."""

SHOWN = ((4096, 4096), (28672, 4096), (2560, 2048))
"""Its weights (n, k) of which every comparison is shown: a square one, the widest and a small one."""

SIZES = ((1, 4096, 4096), (64, 4096, 4096), (512, 4096, 4096), (4096, 4096, 4096), (4096, 14336, 4096))
"""The sizes (m, n, k) that operations are predicted on: from what memory limits to what the tensor cores do."""

CALIBRATED = "calibrated"
FITTED, UNFITTED = f"with --part {CALIBRATED}", f"without --part {CALIBRATED}"
PART_AXIS = Axis((FITTED, UNFITTED), lambda values: FITTED if values["part"] == CALIBRATED else UNFITTED)
"""Whether constants are fitted and nothing else is shown, so that they may be written."""


def _assumptions(target: Target) -> str:
    rows = [(x.figure, f"{x.value:g}", x.unit, x.origin) for x in prior.assumptions(target)]
    found = prior.load_published(target.name)
    rates = [
        (rate.figure, f"{rate.value / size:g}", unit, f"{rate.value / getattr(target, rate.figure):.2f}", rate.source)
        for rate in found.rate
        for size, unit in [prior.FIGURES[rate.figure]]
    ]
    return (
        f"What the cost model assumes of {target.name}; nothing of it was measured there.\n"
        f"{table(('figure', 'value', 'unit', 'from'), rows)}\n\n"
        f"Published rates.\n{table(('figure', 'published', 'unit', 'of the assumed', 'source'), rates)}"
    )


def _checks(target: Target) -> list[prior.Check]:
    found = prior.load_published(target.name)
    return [check for source in found.source for check in prior.check_source(source, target, found.clock)]


def _ghz(target: Target) -> str:
    return f"{prior.load_published(target.name).clock.lowest_hz / 1e9:g} GHz"


def _summary(target: Target) -> str:
    found, ghz = prior.load_published(target.name), _ghz(target)
    groups: dict[tuple[str, str], list[prior.Check]] = {}
    for check in _checks(target):
        groups.setdefault((check.source, check.bound), []).append(check)
    rows = []
    for (source, bound), checks in groups.items():
        fast, slow = (prior.Spread.of(x) for x in ([y.ratio for y in checks], [y.slow_ratio for y in checks]))
        spreads = [f"{x:.2f}" for spread in (fast, slow) for x in (spread.mean, spread.least, spread.most)]
        rows.append((source, bound, len(checks), *spreads))
    header = ("source", "limited by", "points", "mean", "least", "most", f"mean at {ghz}", "least", "most")
    lines = [f"{x.name}: {x.address}. {x.conditions}." for x in found.source]
    return "\n".join(
        [f"Published best over predicted time, geometric mean, least and most.\n{table(header, rows)}", *lines]
    )


def _points(target: Target) -> str:
    ghz = _ghz(target)
    rows = [
        (
            x.source,
            x.problem.name,
            f"{x.library_us:.1f}",
            f"{x.best_us:.1f}",
            f"{x.roofline_us:.1f}",
            f"{x.predicted_us:.1f}",
            f"{x.ratio:.2f}",
            f"{x.slow_us:.1f}",
            f"{x.slow_ratio:.2f}",
            "-" if x.explained is None else f"{100 * x.explained:.0f}%",
        )
        for x in _checks(target)
    ]
    slow = (f"at {ghz} us", "ratio", "explains")
    header = ("source", "problem", "library us", "best us", "limit us", "predicted us", "ratio", *slow)
    return f"Published times, and predicted ones of the best legal candidate.\n{table(header, rows)}"


def _optional(value: float | None, form: str) -> str:
    return "not in the space" if value is None else format(value, form)


def _by_rows(found: Sequence[hand_rule.Comparison]) -> str:
    rows = []
    for m, group in groupby(found, key=lambda x: x.problem.m):
        comparisons = list(group)
        tiles = "/".join(dict.fromkeys(x.tile.name for x in comparisons))
        losses = [x.loss for x in comparisons if x.loss is not None]
        ranks = [x.rank for x in comparisons if x.rank is not None]
        spread = prior.Spread.of(losses) if losses else None
        mean, most = (spread.mean, spread.most) if spread else (None, None)
        rows.append(
            (
                m,
                tiles,
                f"{sum(x.agrees for x in comparisons)} of {len(comparisons)}",
                _optional(mean, ".2f"),
                _optional(most, ".2f"),
                _optional(median(ranks) if ranks else None, ".0f"),
                _optional(max(ranks) if ranks else None, "d"),
                f"{median(x.num_close for x in comparisons):.0f}",
            )
        )
    header = ("m", "rule", "model agrees", "mean loss", "most", "median rank", "worst", "within 5%")
    return table(header, rows)


def _weights() -> list[tuple[int, int]]:
    return sorted({(weight.n, weight.k) for model in load_shape_set(WEIGHTS).models for weight in model.weights})


def _compared(target: Target) -> Sequence[hand_rule.Comparison]:
    return hand_rule.compare_weights(_weights(), target)


def _rule(target: Target) -> str:
    found = _compared(target)
    rows = [
        (
            f"{n} x {k}",
            x.problem.m,
            x.tile.name,
            x.choice.name,
            f"{x.model_us:.1f}",
            _optional(x.rule_us, ".1f"),
            _optional(x.loss, ".2f"),
            _optional(x.rank, "d"),
        )
        for n, k in SHOWN
        for x in found
        if (x.problem.n, x.problem.k) == (n, k)
    ]
    header = ("n x k", "m", "rule", "model's first choice", "predicted us", "rule's us", "loss", "rank")
    return (
        f"The hand rule on the {len(_weights())} weights of `{WEIGHTS}`, fp16, by the model's predicted times; of "
        f"{found[0].num_candidates:,} to {max(x.num_candidates for x in found):,} candidates.\n"
        f"{_by_rows(found)}\n\n{table(header, rows)}"
    )


@cache
def _study(target: Target) -> prior_calibrated.Study:
    points = prior_calibrated.timed(prior.load_published(target.name))
    return prior_calibrated.study(points, prior_calibrated.Space.of([x.problem for x in points], target))


def _changed(target: Target) -> prior_calibrated.Changed:
    """Count the first choices that the calibration changes, on what the hand rule is compared on."""
    problems = hand_rule.rule_problems(_weights())
    return prior_calibrated.changed(problems, prior_calibrated.Space.of(problems, target), _study(target).whole)


def _constants(found: prior_calibrated.Study) -> str:
    columns = [(f"{x.group}, half {i}", half) for x in found.fitted for i, half in enumerate(x.halves, start=1)]
    columns = [("before", DEFAULTS), *columns, (f"{prior_calibrated.COLD}, whole", found.whole)]
    rows = [
        (x.name, *(f"{getattr(constants, x.name):.3g}" for _, constants in columns), prior.ORIGINS[x.name][0])
        for x in fields(DEFAULTS)
    ]
    return table(("constant", *(name for name, _ in columns), "unit"), rows)


def _held(found: prior_calibrated.Study) -> str:
    rows = []
    for x in found.held:
        deviations = ["-" if x.num_points == 1 else f"{y.deviation:.2f}" for y in (x.before, x.after, x.scaled)]
        ratios = [[f"{z:.2f}" for z in (y.mean, y.least, y.most)] for y in (x.before, x.after, x.scaled)]
        shown = (*ratios[0], deviations[0], *ratios[1], deviations[1], ratios[2][0], deviations[2])
        rows.append((x.group, x.points, x.num_points, *shown))
    rest = ("least", "most", "spread")
    header = ("fitted to", "scored on", "points", "before", *rest, "after", *rest, "by one factor", "spread")
    return table(header, rows)


def _calibrated(target: Target) -> str:
    found, other = _study(target), _changed(target)
    return (
        "Constants fitted to published times: to each half of the weights, and of those with a cold L2 to all. None of "
        f"them was measured by us.\n{_constants(found)}\n\n"
        "Published best over predicted time, geometric mean, least, most and standard deviation of the logarithm, each "
        f"half by what was fitted to the other.\n{_held(found)}\n\n"
        f"On {other.num_changed} of the hand rule's {other.num_problems} problems the constants of "
        f"{prior_calibrated.COLD}, whole, make another candidate the first; by these the old one takes up to "
        f"{other.most:.3f} times the new one's time."
    )


def _calibrated_facts(target: Target) -> Mapping[str, object]:
    calibration = prior_calibrated.calibration(_study(target))
    return {"before": DEFAULTS, "study": _study(target), "changed": _changed(target), "calibration": calibration}


PARTS: dict[str, Callable[[Target], str]] = {
    "assumptions": _assumptions,
    "summary": _summary,
    "points": _points,
    "rule": _rule,
    CALIBRATED: _calibrated,
}


FACTS: dict[str, Callable[[Target], object]] = {
    "assumptions": prior.assumptions,
    "summary": lambda target: prior.load_published(target.name).source,
    "points": _checks,
    "rule": _compared,
    CALIBRATED: _calibrated_facts,
}
"""What `--json` gives of each part."""


def _predicted(target: Target, operations: Sequence[Operation]) -> list[prior.Prediction]:
    return [x for operation in operations for x in prior.predict(operation, SIZES, target)]


def _operations(target: Target, operations: Sequence[Operation]) -> str:
    rows = [
        (
            x.problem.operation.tag,
            *(x.problem.m, x.problem.n, x.problem.k),
            x.kernel or "the fallback, which the model does not know",
            "-" if x.predicted_us is None else f"{x.predicted_us:.1f}",
            f"{x.roofline_us:.1f}",
            x.bound,
        )
        for x in _predicted(target, operations)
    ]
    header = ("operation", "m", "n", "k", "model's first choice", "predicted us", "limit us", "by")
    return f"Predicted times of {target.name}, cold L2; nothing of them was measured.\n{table(header, rows)}"


def _write(target: Target, path: Path) -> None:
    write_calibration(path, prior_calibrated.calibration(_study(target)))
    tell(f"wrote {path}, which no command takes by itself; next: aot tune --target {target.name} --calibration {path}")


@click.command(name="prior", cls=Command, axes=(OPERATIONS_AXIS, PART_AXIS))
@options(TARGET, OPERATIONS)
@option("--part", only=[CROSSED_OPERATIONS], type=click.Choice(list(PARTS)), help="Only this; by default all.")
@option(
    "-o",
    "--output",
    only=[FITTED],
    type=OUTPUT_FILE,
    help="Calibration to write, of the constants fitted to all published times with a cold L2, for --calibration.",
)
@JSON
def prior_command(
    target: str, operations: tuple[Operation, ...] | None, part: str | None, output: Path | None, as_json: bool
) -> None:
    """Show what the cost model assumes of a device, and how far off published times say it is: docs/prior.md.

    Published best over predicted time is how many times too good the model is. The last columns are the same model at
    the lowest clock of the device's power modes: another assumption, not a fit. `explains` is the share of the
    difference that it makes up. Nothing here was measured by us. Nothing is fitted either, but in the part
    `calibrated`: what other constants make of published times, on half of the weights and held against the other half.
    With --operations, shows their predicted times instead, on a few problems.
    """
    del as_json
    device = load_target(target)
    if operations:
        show(lambda: {"predicted": _predicted(device, operations)}, lambda: _operations(device, operations))
        return
    prior.load_published(device.name)
    names = [part] if part else list(PARTS)
    with waiting("predict the best candidate of each problem"):
        show(
            lambda: {name: FACTS[name](device) for name in names},
            lambda: "\n\n".join(PARTS[name](device) for name in names),
        )
    if output:
        _write(device, output)
