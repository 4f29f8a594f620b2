"""The command `aot`: parses, prints, and is the only place that exits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot import pipeline, reports
from aot.candidate import Candidate, KernelKey
from aot.errors import AotError
from aot.problem import Dtype, Layout, Operation, Problem
from aot.selection import Selection, read_selection, write_selection
from aot.shape_set import load_shape_set, shape_set_names
from aot.space import Patterns, census, judge
from aot.target import load_target, target_names
from aot.wheel_check import check_kernels, check_wheel

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells report it: 128 + SIGINT."""

RECORDS = Path(__file__).parent / "records"
SELECTIONS = Path("build/selections")

TARGET = click.option("--target", default="thor", show_default=True, help="Device and host; see `aot targets`.")
SHAPES = click.option(
    "--shapes", default="representative", show_default=True, help="Shape set: a shipped name or a TOML file."
)
KERNELS = click.option(
    "--kernels",
    default="",
    help="Patterns on candidate names, separated by commas; a leading - excludes: 'sm100_*,-*256x256*'.",
)
DTYPE = click.option(
    "--dtype", type=click.Choice([dtype.value for dtype in Dtype]), default="bfloat16", show_default=True
)
LAYOUT = click.option(
    "--layout",
    type=click.Choice([layout.value for layout in Layout]),
    default="kk",
    show_default=True,
    help="Contiguous mode of A and of B; kk is torch's linear.",
)
JOBS = click.option("--jobs", type=click.IntRange(1), help="Compiler processes; by default one a core.")
VERBOSE = click.option("--verbose", is_flag=True, help="Echo the commands that are run.")


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


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def apply(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


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
@_options(TARGET, KERNELS, DTYPE, LAYOUT)
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
@_options(TARGET, SHAPES, KERNELS, DTYPE, LAYOUT, JOBS)
@click.option("--limit", type=click.IntRange(1), default=64, show_default=True, help="Candidates to compile.")
def compile_command(
    target: str, shapes: str, kernels: str, dtype: str, layout: str, jobs: int | None, limit: int
) -> None:
    """Compile the candidates that the cost model ranks best on a shape set. Needs no GPU; resumes."""
    operation = Operation.of(Dtype(dtype), Layout(layout))
    request = pipeline.TuningRequest(load_shape_set(shapes), (operation,), Patterns.parse(kernels), limit, 2.0)
    device = load_target(target)
    keys = [KernelKey(operation, x) for x in pipeline.tuning_candidates(request, device, operation)]
    artifacts, failures = pipeline.compile_all(keys, device, pipeline.Workplace(jobs=jobs))
    click.echo(reports.artifacts_table(artifacts, failures))
    if failures:
        raise SystemExit(AotError.exit_code)


@main.command()
@_options(TARGET, SHAPES, KERNELS, JOBS, VERBOSE)
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice([x.value for x in Dtype]), default=["bfloat16"])
@click.option("--layout", "layouts", multiple=True, type=click.Choice([x.value for x in Layout]), default=["kk"])
@click.option("--limit", type=click.IntRange(1), default=320, show_default=True, help="Candidates an operation.")
@click.option(
    "--prune",
    type=click.FloatRange(1.0),
    default=2.0,
    show_default=True,
    help="Leave out a candidate on a problem where the model says it takes this many times the best.",
)
@click.option(
    "--selection", type=click.Path(path_type=Path), help="Measure the kernels of a selection rather than the model's."
)
@click.option("--bundle", type=click.Path(path_type=Path, file_okay=False), help="Make a directory to run elsewhere.")
@click.option("--budget-seconds", type=click.FloatRange(0.0), help="End the measuring in good order after this long.")
def tune(**values: Any) -> None:
    """Compile candidates and measure them on this machine's GPU, or make a bundle that does so on another.

    On the device, with Python, numpy and cuda-python: `python run.py --out results.sqlite`; then, here,
    `aot import results.sqlite`. Whatever is interrupted carries on when it is run again.
    """
    device = load_target(values["target"])
    operations = tuple(Operation.of(Dtype(d), Layout(x)) for d in values["dtypes"] for x in values["layouts"])
    request = pipeline.TuningRequest(
        load_shape_set(values["shapes"]),
        operations,
        Patterns.parse(values["kernels"]),
        values["limit"],
        values["prune"],
        _selected_candidates(values["selection"]),
    )
    workplace = pipeline.Workplace(jobs=values["jobs"], verbose=values["verbose"])
    directory = values["bundle"] or Path("build/tuning") / device.name
    bundle, failures = pipeline.make_tuning_bundle(request, device, directory, workplace)
    for failure in failures:
        click.echo(f"not compiled: {failure.name}: {failure.reason}", err=True)
    click.echo(f"{bundle.directory}: {bundle.num_bytes / 2**20:.1f} MiB")
    if values["bundle"]:
        click.echo(f"on the device: python {bundle.directory.name}/run.py --out results.sqlite")
        return
    results = directory / "results.sqlite"
    code = pipeline.measure(directory, results, values["budget_seconds"])
    if code:
        raise SystemExit(code)
    click.echo(f"measured into {results}; next: aot import {results}")


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


@main.command(name="select")
@_options(TARGET, SHAPES, KERNELS)
@click.option("--record", type=click.Path(path_type=Path), help="Record to select from; by default the committed one.")
@click.option("--predicted", is_flag=True, help="Select by the cost model, as where there is no record.")
@click.option("--max-kernels", type=click.IntRange(1), default=32, show_default=True, help="Kernels of layout kk.")
@click.option(
    "--max-layout-kernels", type=click.IntRange(4), default=8, show_default=True, help="Of each other layout."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write; default build/selections/.")
def select_command(**values: Any) -> None:
    """Choose the kernels to ship and build the dispatch table, from a record or from the cost model."""
    selection = _select(values)
    path = values["output"] or SELECTIONS / f"{selection.target}.json"
    write_selection(path, selection)
    click.echo(reports.selection_summary(selection))
    click.echo(f"wrote {path}; next: aot build --target {selection.target}")


def _select(values: dict[str, Any]) -> Selection:
    limits = pipeline.SelectionLimits(values["max_kernels"], values["max_layout_kernels"])
    device = load_target(values["target"])
    record = values["record"] or pipeline.default_record(device, RECORDS)
    if values["predicted"] or record is None:
        return pipeline.select_predicted(load_shape_set(values["shapes"]), device, limits, values["kernels"])
    return pipeline.select_measured(record, device, limits, values["kernels"])


@main.command()
@_options(TARGET, SHAPES, JOBS, VERBOSE)
@click.option("--selection", type=click.Path(path_type=Path), help="Build this selection rather than select anew.")
@click.option("--package", default=pipeline.DEFAULT_PACKAGE, show_default=True, help="Name of the distribution.")
@click.option("--version", "package_version", default=None, help="Version of the wheel; by default this toolchain's.")
@click.option("--dist", type=click.Path(path_type=Path), default=Path("dist"), show_default=True)
def build(**values: Any) -> None:
    """Compile the selected kernels and build the wheel. Needs no GPU.

    Without --selection, selects from the target's committed record, or by the cost model where there is none.
    """
    device = load_target(values["target"])
    defaults = {"record": None, "predicted": False, "kernels": "", "max_kernels": 32, "max_layout_kernels": 8}
    chosen = read_selection(values["selection"]) if values["selection"] else _select(values | defaults)
    if chosen.target != device.name:
        raise AotError(
            f"the selection is for {chosen.target}, --target is {device.name}; give --target {chosen.target}"
        )
    workplace = pipeline.Workplace(jobs=values["jobs"], verbose=values["verbose"])
    number = values["package_version"] or pipeline.toolchain_version()
    built = pipeline.build(chosen, device, values["dist"], workplace, package=values["package"], wheel_version=number)
    click.echo(reports.selection_summary(chosen))
    click.echo(f"{built.path}: {built.path.stat().st_size / 2**20:.2f} MiB, {len(built.manifest.kernels)} kernels")


@main.command()
@_options(TARGET, SHAPES, DTYPE, LAYOUT)
@click.argument("m", type=click.IntRange(1))
@click.argument("n", type=click.IntRange(1))
@click.argument("k", type=click.IntRange(1))
@click.option("--selection", type=click.Path(path_type=Path), help="Selection to explain; default build/selections/.")
def explain(**values: Any) -> None:
    """Say which kernel an M by N by K problem gets, from which bucket, at what time, and what came second."""
    path = values["selection"] or SELECTIONS / f"{values['target']}.json"
    operation = Operation.of(Dtype(values["dtype"]), Layout(values["layout"]))
    problem = Problem(operation, values["m"], values["n"], values["k"])
    click.echo(reports.explanation(read_selection(path), problem))


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
