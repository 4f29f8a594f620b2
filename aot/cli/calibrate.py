"""The command `aot calibrate`: the cost model's constants, fitted to recorded times."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli import tables
from aot.cli.options import DTYPES, OUTPUT_FILE, RECORDS, Decorator, option
from aot.cli.output import JSON, show, tell
from aot.core.element import ElementType
from aot.core.errors import SelectionError
from aot.core.operation import Operation
from aot.core.progress import waiting
from aot.core.target import load_target
from aot.select.times.known import measured_times
from aot.select.times.record import read_products
from aot.space import calibrate, cost
from aot.space.calibration import Calibration, write_calibration

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aot.core.candidate import Candidate
    from aot.core.problem import Problem
    from aot.core.target import Target


def record_option(*, only: Collection[str] = ()) -> Decorator:
    """Make the option --record, which may have a meaning in some modes only."""
    return option(
        "--record",
        only=only,
        type=click.Path(path_type=Path),
        default=RECORDS / "h200_quack.jsonl.gz",
        help="By default the H200's first.",
    )


def dtype_option(*, only: Collection[str] = ()) -> Decorator:
    """Make the option --dtype, which may have a meaning in some modes only."""
    return option(
        "--dtype", only=only, type=click.Choice(list(DTYPES)), default=ElementType.BFLOAT16.value, show_default=True
    )


def recorded(record: Path, dtype: str) -> tuple[Target, Mapping[Problem, Mapping[Candidate, float]]]:
    """Read a record's times of one element type's linear.

    Raises:
        SelectionError: it has none.
    """
    found = read_products(record)
    times = measured_times(found).get(Operation.of(ElementType(dtype)), {})
    if not times:
        raise SelectionError(f"{record} has no times of {dtype}; give another --record or --dtype")
    return load_target(found.target), times


def _scores(label: str, x: calibrate.Scores) -> tuple[str, ...]:
    shares = (x.top8_hits, x.top8_near, x.top8_mean, x.top8_worst)
    return (label, f"{x.spearman:.3f}", *(f"{100 * share:.1f}%" for share in shares), str(x.num_problems))


def _folds(_context: click.Context, _option: click.Parameter, number: int) -> int:
    if number == 1:
        raise click.BadParameter("1 leaves nothing to fit to; give 0, to leave the scores out, or 2 and more")
    return number


@click.command(name="calibrate")
@record_option()
@dtype_option()
@click.option(
    "--count", type=click.IntRange(1), default=calibrate.NUM_PAIRS, show_default=True, help="Times to fit to."
)
@click.option(
    "--folds",
    type=click.IntRange(0),
    callback=_folds,
    default=5,
    show_default=True,
    help="Parts to score by, each with constants fitted to the others; 0 leaves it out.",
)
@click.option(
    "--fresh", is_flag=True, help="Start from the data sheet's rates and round numbers, not from constants set by hand."
)
@click.option("-o", "--output", type=OUTPUT_FILE, help="Calibration to write, for --calibration.")
@JSON
def calibrate_command(**values: Any) -> None:
    """Fit the cost model's constants to a handful of a record's times, and score its order on other weights."""
    target, times = recorded(values["record"], values["dtype"])
    start, width = (
        (calibrate.FRESH, calibrate.FRESH_WIDTH) if values["fresh"] else (cost.DEFAULTS, calibrate.PRIOR_WIDTH)
    )
    with waiting(f"fit the constants to {values['count']} times"):
        constants, pairs = calibrate.calibrate(times, target, count=values["count"], start=start, width=width)
    rows = [(x.name, f"{getattr(start, x.name):.4g}", f"{getattr(constants, x.name):.4g}") for x in fields(constants)]
    text = tables.table(("constant", "before", "after"), rows)
    held: Sequence[calibrate.Held] = ()
    if values["folds"]:
        with waiting(f"score on {values['folds']} parts"):
            held = calibrate.cross_validate(times, target, count=values["count"], num_folds=values["folds"])
        head = ("start", "rank correlation", "best in first 8", "within 1%", "mean regret", "worst", "problems")
        lines = [_scores(f"{x.label}{when}", s) for x in held for when, s in (("", x.before), (", fitted", x.after))]
        text += f"\n\n{tables.table(head, lines)}"
        text += f"\neach fitted to {values['count']} times of other weights than it is scored on"
    show(lambda: {"target": target.name, "before": start, "after": constants, "scores": held}, lambda: text)
    if values["output"]:
        name = values["record"].name.removesuffix(".jsonl.gz")
        source = f"aot calibrate: {len(pairs)} times of the record {name}"
        write_calibration(values["output"], Calibration(target.name, source, constants))
        tell(f"wrote {values['output']}; next: aot tune --target {target.name} --calibration {values['output']}")
