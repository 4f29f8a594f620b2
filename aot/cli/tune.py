"""The commands that compile and measure: compile, tune, import."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli import tables
from aot.cli.options import (
    CALIBRATION,
    DTYPE,
    DTYPES,
    EPILOGUE,
    EPILOGUES,
    JOBS,
    KERNELS,
    LAYOUT,
    LAYOUTS,
    OUTPUT_FILE,
    OUTPUT_FOLDER,
    RECORDS,
    SHAPES,
    TARGET,
    VERBOSE,
    Axis,
    Command,
    FiniteFloat,
    operation_of,
    option,
    options,
    several,
)
from aot.compile.workplace import Workplace, compile_all
from aot.core.candidate import KernelKey
from aot.core.element import ElementType
from aot.core.errors import AotError, SelectionError
from aot.core.operation import Epilogue, Layout
from aot.core.scratch import scratch_folder
from aot.core.shape_set import load_shape_set
from aot.core.target import load_target
from aot.core.whole_file import check_output
from aot.search.strategy import EXHAUSTIVE, MODEL, NAMES
from aot.select.selection import read_selection
from aot.space.calibration import constants_of
from aot.space.enumeration import Patterns
from aot.tune.bundle import check_bundle_folder
from aot.tune.remote import Tuning as RemoteTuning
from aot.tune.tuning import (
    TuningRequest,
    check_problems,
    check_this_machine,
    import_results,
    make_tuning_bundle,
    measure_here,
    tuning_candidates,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.core.candidate import Candidate
    from aot.core.target import Target
    from aot.tune.bundle import Bundle

PRUNE = 2.0
"""Times the best, by the model, past which a candidate is not measured. Source: in the first H200 record, pruned
likewise, no problem's fastest kernel is past 1.61 by the model, 99 of 100 within 1.45."""

HERE, ON, BUNDLE = "without --on and --bundle", "with --on", "with --bundle"
SELECTED, CHOSEN = "with --selection", "without --selection"


def _place(values: Mapping[str, Any]) -> str:
    return ON if values["url"] else BUNDLE if values["bundle"] else HERE


def _kernels_from(values: Mapping[str, Any]) -> str:
    return SELECTED if values["selection"] else CHOSEN


@click.command(name="compile")
@options(TARGET, SHAPES, KERNELS, DTYPE, LAYOUT, EPILOGUE, JOBS)
@click.option("--limit", type=click.IntRange(1), default=64, show_default=True, help="Candidates to compile.")
def compile_command(
    target: str, shapes: str, kernels: str, dtype: str, layout: str, epilogue: str, jobs: int | None, limit: int
) -> None:
    """Compile the candidates that the cost model ranks best on a shape set. Needs no GPU; resumes."""
    operation = operation_of(dtype, layout, epilogue)
    request = TuningRequest(load_shape_set(shapes), (operation,), Patterns.parse(kernels), limit, PRUNE)
    device = load_target(target)
    keys = [KernelKey(operation, x) for x in tuning_candidates(request, device, operation)]
    artifacts, failures = compile_all(keys, device, Workplace(jobs=jobs))
    click.echo(tables.artifacts_table(artifacts, failures))
    if failures:
        raise SystemExit(AotError.exit_code)


@click.command(cls=Command, axes=(Axis((HERE, ON, BUNDLE), _place), Axis((SELECTED, CHOSEN), _kernels_from)))
@options(TARGET, SHAPES, KERNELS, JOBS, VERBOSE, CALIBRATION)
@several("--dtype", DTYPES, "May be given again; by default bfloat16, and of a wheel's miss log all that it has.")
@several("--layout", LAYOUTS, "May be given again; by default kk, and of a wheel's miss log all that it has.")
@several("--epilogue", EPILOGUES, "May be given again; by default none.")
@option(
    "--limit",
    only=[CHOSEN],
    type=click.IntRange(1),
    default=320,
    show_default=True,
    help="Candidates an operation.",
)
@click.option(
    "--prune",
    type=FiniteFloat(1.0),
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
    type=FiniteFloat(0.0, 100.0, min_open=True),
    default=100.0,
    show_default=True,
    help="Percentage of a problem's candidates to measure at most.",
)
@option("--bundle", only=[BUNDLE], type=OUTPUT_FOLDER, help="Make a directory to run elsewhere.")
@click.option("--on", "url", help="Measure there: ssh://[user@]host[:port][/folder]. Needs Python 3.10 there, no more.")
@option("--record", only=[ON], type=OUTPUT_FILE, help="Record to write; by default the target's.")
@option("--budget-seconds", only=[HERE, ON], type=FiniteFloat(0.0), help="End the measuring in good order after this.")
def tune(**values: Any) -> None:
    """Compile candidates and measure them on this machine's GPU, on a device by SSH, or make a bundle to carry there.

    Without --on and --bundle the GPU is this machine's: it is checked, then measured into
    build/tuning/TARGET/results.sqlite, for `aot import`; `make tune` does both. --on ships the bundle, checks the
    device, follows the run, survives a dropped link and brings the record home. --bundle goes there by hand; on the
    device, with Python and numpy: `python run.py --out results.sqlite`; then, here, `aot import results.sqlite`.
    Whatever is interrupted carries on when it is run again.
    """
    device = load_target(values["target"])
    directory = check_bundle_folder(values["bundle"] or Path("build/tuning") / device.name)
    request = _request(values, device)
    if values["url"]:
        check_output(values["record"] or RECORDS / f"{device.name}.jsonl.gz")
    for line in check_problems(request):
        click.echo(line, err=True)
    workplace = Workplace(jobs=values["jobs"], verbose=values["verbose"])
    remote = _inspected(values, device)
    bundle, failures = make_tuning_bundle(request, device, directory, workplace)
    for failure in failures:
        click.echo(f"not compiled: {failure.name}: {failure.reason}", err=True)
    click.echo(f"{bundle.directory}: {bundle.num_bytes / 2**20:.1f} MiB")
    if remote:
        _measure_remotely(remote, bundle, values)
    elif values["bundle"]:
        command = " ".join([f"python {bundle.directory.name}/run.py --out results.sqlite", *_search_words(values)])
        click.echo(f"on the device: {command}")
    else:
        _measure_here(directory, values)


def _request(values: Mapping[str, Any], device: Target) -> TuningRequest:
    shape_set = load_shape_set(values["shapes"])
    return TuningRequest(
        shape_set,
        shape_set.tuned(
            tuple(map(ElementType, values["dtypes"])),
            tuple(map(Layout, values["layouts"])),
            tuple(map(Epilogue, values["epilogues"])),
        ),
        Patterns.parse(values["kernels"]),
        values["limit"],
        values["prune"] or (math.inf if values["selection"] else PRUNE),
        _selected_candidates(values["selection"], device),
        constants_of(values["calibration"], device.name),
    )


def _strategy(values: Mapping[str, Any]) -> str:
    return str(values["strategy"] or (EXHAUSTIVE if values["selection"] else MODEL))


def _search_words(values: Mapping[str, Any]) -> list[str]:
    """Return what the runner is to be told of the search, where that is not what it does by itself."""
    words = [] if _strategy(values) == MODEL else ["--strategy", _strategy(values)]
    budget = values["search_budget"] / 100
    return words + ([] if budget == 1.0 else ["--search-budget", f"{budget:g}"])


def _inspected(values: Mapping[str, Any], device: Target) -> RemoteTuning | None:
    """Look at the device that --on names, or at this machine where it is to measure, before anything is compiled."""
    if not values["url"]:
        if not values["bundle"]:
            check_this_machine(device, lambda text: click.echo(text, err=True))
        return None
    remote = RemoteTuning(values["url"], device, lambda text: click.echo(text, err=True), verbose=values["verbose"])
    with scratch_folder("aot-runner-") as scratch:
        remote.inspect(scratch)
    return remote


def _measure_here(directory: Path, values: Mapping[str, Any]) -> None:
    results = directory / "results.sqlite"
    budget = values["search_budget"] / 100
    code = measure_here(directory, results, values["budget_seconds"], _strategy(values), budget)
    if code:
        raise SystemExit(code)
    click.echo(f"measured into {results}; next: aot import {results}")


def _measure_remotely(remote: RemoteTuning, bundle: Bundle, values: Mapping[str, Any]) -> None:
    """Measure a bundle where --on says, bring the results home and merge them into the record."""
    words = [] if values["budget_seconds"] is None else ["--budget-seconds", f"{values['budget_seconds']:g}"]
    words += _search_words(values)
    results = bundle.directory / "results.sqlite"
    code = remote.measure(bundle, words, results, lambda text: click.echo(text, err=True, nl=False))
    if code:
        click.echo(f"the run there ended with exit code {code}; what it measured is in {results}", err=True)
        raise SystemExit(code)
    written, path = import_results([results], values["record"], RECORDS)
    click.echo(tables.record_summary(written))
    click.echo(f"wrote {path}; next: aot select --target {written.target} --record {path}")


def _selected_candidates(path: Path | None, device: Target) -> tuple[Candidate, ...]:
    if path is None:
        return ()
    selection = read_selection(path)
    if selection.target != device.name:
        raise SelectionError(
            f"{path} is for {selection.target}, --target is {device.name}; give --target {selection.target}"
        )
    return tuple(dict.fromkeys(key.candidate for key in selection.kernels))


@click.command(name="import")
@click.argument("results", type=click.Path(path_type=Path, exists=True, dir_okay=False), nargs=-1, required=True)
@click.option("--record", type=OUTPUT_FILE, help="Record to write; by default named after the target.")
def import_command(results: tuple[Path, ...], record: Path | None) -> None:
    """Bring measurements home: merge results.sqlite files into a record."""
    written, path = import_results(list(results), record, RECORDS)
    click.echo(tables.record_summary(written))
    click.echo(f"wrote {path}; next: aot select --target {written.target} --record {path}")
