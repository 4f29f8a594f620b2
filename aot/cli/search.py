"""The commands `aot search` and `aot calibrate`: strategies and the cost model, judged on recorded times."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli import tables
from aot.cli.options import DTYPES, OUTPUT_FILE, RECORDS, Axis, Command, Decorator, option
from aot.cli.output import JSON, show, tell
from aot.core.element import ElementType
from aot.core.errors import SelectionError
from aot.core.operation import Operation
from aot.core.progress import waiting
from aot.core.target import load_target
from aot.core.whole_file import check_output
from aot.search.strategies import strategy_of
from aot.search.strategy import EXHAUSTIVE, MODEL, NAMES, Task
from aot.select.record import read_products
from aot.select.times import measured_times
from aot.space import cost
from aot.space.calibration import Calibration, write_calibration
from aot.studies import calibrate, live, replay

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aot.core.candidate import Candidate
    from aot.core.problem import Problem
    from aot.core.target import Target

OUTPUT = Path("build/search")
BUDGETS = "2.5,5,10,20,50,100"


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


def _recorded(record: Path, dtype: str) -> tuple[Target, Mapping[Problem, Mapping[Candidate, float]]]:
    """Read a record's times of one element type's linear.

    Raises:
        SelectionError: it has none.
    """
    found = read_products(record)
    times = measured_times(found).get(Operation.of(ElementType(dtype)), {})
    if not times:
        raise SelectionError(f"{record} has no times of {dtype}; give another --record or --dtype")
    return load_target(found.target), times


def recorded_tasks(times: Mapping[Problem, Mapping[Candidate, float]], target: Target, every: int = 1) -> list[Task]:
    """Make a task of one problem in `every`, by their order."""
    tasks = []
    for problem in sorted(times)[::every]:
        candidates = tuple(sorted(times[problem]))
        predicted = cost.estimate(candidates, [problem], target).total_us[0].tolist()
        tasks.append(Task(problem, candidates, tuple(predicted)))
    return tasks


def _budgets(_context: click.Context, _option: click.Parameter, text: str) -> list[float]:
    try:
        budgets = [float(part.strip().removesuffix("%")) / 100 for part in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: give percentages, such as {BUDGETS}") from error
    if not all(0 < budget <= 1 for budget in budgets):
        raise click.BadParameter(f"{text!r}: percentages are above 0 and at most 100")
    return budgets


def curves_table(points: Sequence[replay.CurvePoint]) -> str:
    """Show curves, a point a line."""
    rows = [
        (
            x.strategy,
            f"{100 * x.budget:g}%",
            f"{100 * x.fraction:.1f}%",
            f"{x.measurements:.0f}",
            f"{x.device_s:.0f}",
            f"{100 * x.mean_regret:.2f}%",
            f"{100 * x.p95_regret:.1f}%",
            f"{100 * x.worst_regret:.1f}%",
            f"{100 * x.within_1_percent:.0f}%",
        )
        for x in points
    ]
    head = ("strategy", "budget", "measured", "times", "device s", "mean", "95%", "worst", "within 1%")
    return tables.table(head, rows)


LIVE, REPLAYED = "with --live", "without --live"
LIMITED, UNLIMITED = "with a strategy other than exhaustive", "with --strategy exhaustive alone"


def _times(values: Mapping[str, Any]) -> str:
    return LIVE if values["results"] else REPLAYED


def _limits(values: Mapping[str, Any]) -> str:
    return UNLIMITED if set(values["strategies"]) == {EXHAUSTIVE} else LIMITED


@click.command(cls=Command, axes=(Axis((LIVE, REPLAYED), _times), Axis((LIMITED, UNLIMITED), _limits)))
@record_option(only=[REPLAYED])
@dtype_option(only=[REPLAYED])
@option(
    "--strategy",
    "strategies",
    only=[REPLAYED],
    type=click.Choice(NAMES),
    multiple=True,
    default=[MODEL],
    help="May be given again.",
)
@option(
    "--budget",
    only=[REPLAYED, LIMITED],
    callback=_budgets,
    default=BUDGETS,
    show_default=True,
    help="Percentages of the candidates.",
)
@option(
    "--seeds",
    only=[REPLAYED],
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Orders of the problems to try.",
)
@option(
    "--every",
    only=[REPLAYED],
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Take one problem in so many, by their order.",
)
@click.option(
    "--live",
    "results",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Compare results files with --live FILE, the first of them exhaustive.",
)
@click.option("-o", "--output", type=OUTPUT_FILE, help="JSON to write; default in build/search/.")
@JSON
def search(**values: Any) -> None:
    """Compare search strategies: the time they take against the regret of what they find.

    Replays them on a record, as if measuring; or, with --live, compares runs on a device.
    """
    if values["results"]:
        path = values["output"] or check_output(OUTPUT / "live.json")
        rows = live.compare_live(values["results"])
        show(lambda: {"live": rows}, lambda: live_table(rows))
        live.write_live(path, rows)
        tell(f"wrote {path}")
        return
    target, times = _recorded(values["record"], values["dtype"])
    path = values["output"] or check_output(OUTPUT / f"{target.name}.json")
    tasks = recorded_tasks(times, target, values["every"])
    points = []
    for name in dict.fromkeys(values["strategies"]):
        budgets = [1.0] if name == EXHAUSTIVE else values["budget"]
        points += replay.curve(
            partial(strategy_of, name),
            tasks,
            times,
            budgets=budgets,
            seeds=range(values["seeds"]),
            l2_bytes=target.l2_bytes,
            report=lambda x: click.echo(f"{x.strategy} {100 * x.budget:g}%: mean {100 * x.mean_regret:.2f}%", err=True),
        )
    show(lambda: {"target": target.name, "curves": points}, lambda: curves_table(points))
    replay.write_curves(path, target.name, values["record"].name.removesuffix(".jsonl.gz"), points)
    tell(f"{len(tasks)} problems; wrote {path}")


def live_table(rows: Sequence[live.LiveSearch]) -> str:
    """Show a comparison, a run a line."""
    head = ("results", "strategy", "problems", "times", "of all", "seconds", "of all", "mean", "worst", "worst problem")
    return tables.table(
        head,
        [
            (
                x.results,
                x.strategy,
                x.num_problems,
                x.measurements,
                f"{100 * x.fraction:.1f}%",
                f"{x.seconds:.1f}",
                f"{100 * x.time_fraction:.1f}%",
                f"{100 * x.mean_regret:.2f}%",
                f"{100 * x.worst_regret:.1f}%",
                x.worst_problem,
            )
            for x in rows
        ],
    )


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
    target, times = _recorded(values["record"], values["dtype"])
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


SEARCH_COMMANDS = (search, calibrate_command)
