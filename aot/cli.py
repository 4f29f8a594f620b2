"""The command `aot`: parses, prints, and is the only place that exits."""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot import pipeline, reports
from aot.calibration import constants_of
from aot.candidate import Candidate, KernelKey
from aot.cli_census import census_command
from aot.cli_options import CALIBRATION, DTYPE, JOBS, KERNELS, LAYOUT, RECORDS, SHAPES, TARGET, VERBOSE, options
from aot.cli_prior import prior_command
from aot.cli_report import report
from aot.cli_search import SEARCH_COMMANDS
from aot.cli_select import COMMANDS
from aot.cli_smem import smem_command
from aot.errors import AotError
from aot.problem import Dtype, Layout, Operation
from aot.remote import Tuning as RemoteTuning
from aot.search import EXHAUSTIVE, MODEL, NAMES
from aot.selection import read_selection
from aot.shape_set import load_shape_set, shape_set_names
from aot.space import Patterns, census, judge
from aot.target import load_target, target_names
from aot.wheel_check import check_kernels, check_wheel

if TYPE_CHECKING:
    from aot.bundle import Bundle
    from aot.target import Target

PRUNE = 2.0
"""Times the best, by the model, past which a candidate is not measured. Source: in the first H200 record, pruned
likewise, no problem's fastest kernel is past 1.61 by the model, 99 of 100 within 1.45."""

EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells report it: 128 + SIGINT."""


class _Group(click.Group):
    """Prints our errors in one place and exits with their codes."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except AotError as error:
            click.echo(f"aot: error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("aot: interrupted; what was done is kept, and the same command carries on", err=True)
            ctx.exit(EXIT_INTERRUPTED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="aot-kernels")
def main() -> None:
    """Tune GEMM kernels offline and package the winners, compiled, in a wheel."""


for _command in (*COMMANDS, *SEARCH_COMMANDS, census_command, prior_command, report, smem_command):
    main.add_command(_command)


@main.command()
def targets() -> None:
    """List the targets: device, host and limits."""
    click.echo(reports.targets_table([load_target(name) for name in target_names()]))


@main.command()
@SHAPES
@click.option("--problems", is_flag=True, help="List every problem rather than the models.")
def shapes(shapes: str, problems: bool) -> None:
    """List a shape set: models, weights and the ladder of m."""
    shape_set = load_shape_set(shapes)
    click.echo(reports.problems_table(shape_set) if problems else reports.shapes_table(shape_set))
    click.echo(f"shipped shape sets: {', '.join(shape_set_names())}", err=True)


@main.command()
@options(TARGET, KERNELS, DTYPE, LAYOUT)
@click.option("--explain", is_flag=True, help="Say of every reason why, with an example in figures.")
@click.option("--list", "list_all", is_flag=True, help="List every candidate with its verdict.")
def space(target: str, kernels: str, dtype: str, layout: str, explain: bool, list_all: bool) -> None:
    """Show which candidates are in the space, which are out, and why. Needs no compiler and no GPU."""
    operation = Operation.of(Dtype(dtype), Layout(layout))
    patterns, device = Patterns.parse(kernels), load_target(target)
    if list_all:
        click.echo(reports.verdicts_table(judge(operation, device, patterns)))
    else:
        click.echo(reports.census_table(census(operation, device, patterns), explain=explain))


@main.command(name="compile")
@options(TARGET, SHAPES, KERNELS, DTYPE, LAYOUT, JOBS)
@click.option("--limit", type=click.IntRange(1), default=64, show_default=True, help="Candidates to compile.")
def compile_command(
    target: str, shapes: str, kernels: str, dtype: str, layout: str, jobs: int | None, limit: int
) -> None:
    """Compile the candidates that the cost model ranks best on a shape set. Needs no GPU; resumes."""
    operation = Operation.of(Dtype(dtype), Layout(layout))
    request = pipeline.TuningRequest(load_shape_set(shapes), (operation,), Patterns.parse(kernels), limit, PRUNE)
    device = load_target(target)
    keys = [KernelKey(operation, x) for x in pipeline.tuning_candidates(request, device, operation)]
    artifacts, failures = pipeline.compile_all(keys, device, pipeline.Workplace(jobs=jobs))
    click.echo(reports.artifacts_table(artifacts, failures))
    if failures:
        raise SystemExit(AotError.exit_code)


@main.command()
@options(TARGET, SHAPES, KERNELS, JOBS, VERBOSE, CALIBRATION)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice([x.value for x in Dtype]),
    help="May be given again; by default bfloat16, and of a wheel's miss log all that it has.",
)
@click.option(
    "--layout",
    "layouts",
    multiple=True,
    type=click.Choice([x.value for x in Layout]),
    help="May be given again; by default kk, and of a wheel's miss log all that it has.",
)
@click.option("--limit", type=click.IntRange(1), default=320, show_default=True, help="Candidates an operation.")
@click.option(
    "--prune",
    type=click.FloatRange(1.0),
    show_default=f"{PRUNE:g}; with --selection none is left out",
    help="Leave out a candidate on a problem where the model says it takes this many times the best.",
)
@click.option(
    "--selection", type=click.Path(path_type=Path), help="Measure the kernels of a selection rather than the model's."
)
@click.option(
    "--strategy",
    type=click.Choice(NAMES),
    help="How to search on each problem: by default model; with --selection exhaustive, which measures all.",
)
@click.option(
    "--search-budget",
    type=click.FloatRange(0.0, 100.0, min_open=True),
    default=100.0,
    show_default=True,
    help="Percentage of a problem's candidates to measure at most.",
)
@click.option("--bundle", type=click.Path(path_type=Path, file_okay=False), help="Make a directory to run elsewhere.")
@click.option("--on", "url", help="Measure there: ssh://[user@]host[:port][/folder]. Needs Python 3.10 there, no more.")
@click.option("--record", type=click.Path(path_type=Path), help="With --on: record to write; by default the target's.")
@click.option("--budget-seconds", type=click.FloatRange(0.0), help="End the measuring in good order after this long.")
def tune(**values: Any) -> None:
    """Compile candidates and measure them on this machine's GPU, on a device by SSH, or make a bundle to carry there.

    Without --on and --bundle the GPU is this machine's: it is checked, then measured into
    build/tuning/TARGET/results.sqlite, for `aot import`; `make tune` does both. --on ships the bundle, checks the
    device, follows the run, survives a dropped link and brings the record home. --bundle goes there by hand; on the
    device, with Python and numpy: `python run.py --out results.sqlite`; then, here, `aot import results.sqlite`.
    Whatever is interrupted carries on when it is run again.
    """
    device = load_target(values["target"])
    shape_set = load_shape_set(values["shapes"])
    request = pipeline.TuningRequest(
        shape_set,
        shape_set.tuned(tuple(map(Dtype, values["dtypes"])), tuple(map(Layout, values["layouts"]))),
        Patterns.parse(values["kernels"]),
        values["limit"],
        values["prune"] or (math.inf if values["selection"] else PRUNE),
        _selected_candidates(values["selection"]),
        constants_of(values["calibration"], device.name),
    )
    workplace = pipeline.Workplace(jobs=values["jobs"], verbose=values["verbose"])
    directory = values["bundle"] or Path("build/tuning") / device.name
    remote = _inspected(values, device)
    bundle, failures = pipeline.make_tuning_bundle(request, device, directory, workplace)
    for failure in failures:
        click.echo(f"not compiled: {failure.name}: {failure.reason}", err=True)
    click.echo(f"{bundle.directory}: {bundle.num_bytes / 2**20:.1f} MiB")
    if remote:
        _measure_remotely(remote, bundle, values)
        return
    words = _search_words(values)
    if values["bundle"]:
        command = " ".join([f"python {bundle.directory.name}/run.py --out results.sqlite", *words])
        click.echo(f"on the device: {command}")
        return
    results = directory / "results.sqlite"
    budget = values["search_budget"] / 100
    code = pipeline.measure(directory, results, values["budget_seconds"], _strategy(values), budget)
    if code:
        raise SystemExit(code)
    click.echo(f"measured into {results}; next: aot import {results}")


def _strategy(values: dict[str, Any]) -> str:
    return str(values["strategy"] or (EXHAUSTIVE if values["selection"] else MODEL))


def _search_words(values: dict[str, Any]) -> list[str]:
    """Give what the runner is to be told of the search, where that is not what it does by itself."""
    words = [] if _strategy(values) == MODEL else ["--strategy", _strategy(values)]
    budget = values["search_budget"] / 100
    return words + ([] if budget == 1.0 else ["--search-budget", f"{budget:g}"])


def _inspected(values: dict[str, Any], device: Target) -> RemoteTuning | None:
    """Look at the device that --on names, or at this machine where it is to measure, before anything is compiled."""
    if not values["url"]:
        if not values["bundle"]:
            pipeline.check_this_machine(device, lambda text: click.echo(text, err=True))
        return None
    remote = RemoteTuning(values["url"], device, lambda text: click.echo(text, err=True), verbose=values["verbose"])
    with tempfile.TemporaryDirectory(prefix="aot-runner-") as scratch:
        remote.inspect(Path(scratch))
    return remote


def _measure_remotely(remote: RemoteTuning, bundle: Bundle, values: dict[str, Any]) -> None:
    """Measure a bundle where --on says, bring the results home and merge them into the record."""
    words = [] if values["budget_seconds"] is None else ["--budget-seconds", f"{values['budget_seconds']:g}"]
    words += _search_words(values)
    results = bundle.directory / "results.sqlite"
    code = remote.measure(bundle, words, results, lambda text: click.echo(text, err=True, nl=False))
    if code:
        click.echo(f"the run there ended with exit code {code}; what it measured is in {results}", err=True)
        raise SystemExit(code)
    written, path = pipeline.import_results([results], values["record"], RECORDS)
    click.echo(reports.record_summary(written))
    click.echo(f"wrote {path}; next: aot select --target {written.target} --record {path}")


def _selected_candidates(selection: Path | None) -> tuple[Candidate, ...]:
    if selection is None:
        return ()
    return tuple(dict.fromkeys(key.candidate for key in read_selection(selection).kernels))


@main.command(name="import")
@click.argument("results", type=click.Path(path_type=Path, exists=True, dir_okay=False), nargs=-1, required=True)
@click.option("--record", type=click.Path(path_type=Path), help="Record to write; by default named after the target.")
def import_command(results: tuple[Path, ...], record: Path | None) -> None:
    """Bring measurements home: merge results.sqlite files into a record."""
    written, path = pipeline.import_results(list(results), record, RECORDS)
    click.echo(reports.record_summary(written))
    click.echo(f"wrote {path}; next: aot select --target {written.target} --record {path}")


@main.command()
@click.argument("wheel", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--device", is_flag=True, help="Also run every kernel on this machine's GPU against a reference.")
def verify(wheel: Path, device: bool) -> None:
    """Check a wheel: tag, libraries, symbols, hashes; with --device, every kernel's results."""
    for line in check_wheel(wheel):
        click.echo(line)
    if device:
        for line in check_kernels(wheel):
            click.echo(line)


if __name__ == "__main__":
    sys.exit(main())
