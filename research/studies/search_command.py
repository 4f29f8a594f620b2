"""The command `search`: search strategies, judged on recorded times or on runs of a device."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli import tables
from aot.cli.calibrate import dtype_option, record_option, recorded
from aot.cli.options import OUTPUT_FILE, Axis, Command, option
from aot.cli.output import JSON, show, tell
from aot.core.whole_file import check_output
from aot.search.strategies import strategy_of
from aot.search.strategy import EXHAUSTIVE, MODEL, NAMES, Task
from aot.space import cost
from research.studies import live, replay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.core.candidate import Candidate
    from aot.core.problem import Problem
    from aot.core.target import Target
    from aot.report.searches import CurvePoint

OUTPUT = Path("build/search")
BUDGETS = "2.5,5,10,20,50,100"


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


def curves_table(points: Sequence[CurvePoint]) -> str:
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
    target, times = recorded(values["record"], values["dtype"])
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
