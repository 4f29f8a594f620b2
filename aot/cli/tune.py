"""The command that compiles and measures: tune."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli.fleet import CLUSTER, fleet_of
from aot.cli.importing import merge_results
from aot.cli.options import (
    ANY_OPERATIONS_TYPE,
    CALIBRATION,
    DTYPES,
    EPILOGUES,
    JOBS,
    KERNELS,
    LAYOUTS,
    OPERATIONS_AXIS,
    OUTPUT_FILE,
    OUTPUT_FOLDER,
    RECORDS,
    SHAPES,
    TARGET,
    VERBOSE,
    Axis,
    Command,
    FiniteFloat,
    is_given,
    option,
    options,
    several,
)
from aot.cli.output import JSON, show, tell
from aot.compile.compiler import Processes
from aot.compile.workplace import Workplace
from aot.core.constraints import one_line
from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.errors import SelectionError
from aot.core.operation import Layout, Operation
from aot.core.scratch import scratch_folder
from aot.core.shape_set import load_shape_set
from aot.core.target import load_target
from aot.core.whole_file import check_output
from aot.kinds.named_operations import HELP, NamedOperations
from aot.search.strategy import EXHAUSTIVE, MODEL, NAMES
from aot.select.selection import read_selection
from aot.space import cost
from aot.space.calibration import calibration_of
from aot.space.enumeration import Patterns
from aot.tune.bundle import check_bundle_folder
from aot.tune.kinds import TuningRequest
from aot.tune.remote import Tuning as RemoteTuning
from aot.tune.tuning import check_problems, check_this_machine, learn, make_tuning_bundle, measure_here

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.compile.artifact import CompileFailure
    from aot.core.candidate import Candidate
    from aot.core.shape_set import ShapeSet
    from aot.core.target import Target
    from aot.fleet.fleet import Fleet
    from aot.tune.bundle import Bundle

PRUNE = 2.0
"""Times the best, by the model, past which a candidate is not measured. Source: in the first H200 record, pruned
likewise, no problem's fastest kernel is past 1.61 by the model, 99 of 100 within 1.45."""

HERE, ON, BUNDLE = "without --on and --bundle", "with --on", "with --bundle"
ON_CLUSTER = "with --cluster"
SELECTED, CHOSEN = "with --selection", "without --selection"
LEARNED, UNLEARNED = "with --learn-from", "without --learn-from"


def _place(values: Mapping[str, Any]) -> str:
    if values["cluster"]:
        return ON_CLUSTER
    return ON if values["urls"] else BUNDLE if values["bundle"] else HERE


def _kernels_from(values: Mapping[str, Any]) -> str:
    return SELECTED if values["selection"] else CHOSEN


def _ranked_by(values: Mapping[str, Any]) -> str:
    return LEARNED if values["learn_from"] else UNLEARNED


@dataclass(frozen=True)
class _Options:
    """What `aot tune` is asked for, as its options are called."""

    target: str
    shapes: str
    kernels: str
    jobs: int | None
    verbose: bool
    calibration: Path | None
    operations: NamedOperations | None
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    epilogues: tuple[str, ...]
    limit: int
    prune: float | None
    selection: Path | None
    strategy: str | None
    search_budget: float
    """Percentage of a problem's candidates."""
    bundle: Path | None
    urls: tuple[str, ...]
    cluster: str | None
    cluster_tls: Path | None
    record: Path | None
    budget_seconds: float | None
    no_reference: bool
    learn_from: tuple[Path, ...]
    per_problem: int

    @property
    def url(self) -> str | None:
        """Return the device by SSH that is measured on without a cluster."""
        return self.urls[0] if self.urls and not self.cluster else None

    @property
    def found_strategy(self) -> str:
        """Return the strategy: the one asked for, or else what the kernels call for."""
        return self.strategy or (EXHAUSTIVE if self.selection or self.learn_from else MODEL)

    @property
    def search_share(self) -> float:
        """Return the share of a problem's candidates that may be measured."""
        return self.search_budget / 100

    def runner_words(self) -> list[str]:
        """Return what the runner is to be told of the measuring, where that is not what it does by itself."""
        words = [] if self.found_strategy == MODEL else ["--strategy", self.found_strategy]
        words += ["--no-reference"] if self.no_reference else []
        return words + ([] if self.search_share == 1.0 else ["--search-budget", f"{self.search_share:g}"])


AXES = (
    Axis((HERE, ON, BUNDLE, ON_CLUSTER), _place),
    Axis((SELECTED, CHOSEN), _kernels_from),
    Axis((LEARNED, UNLEARNED), _ranked_by),
    OPERATIONS_AXIS,
)


@click.command(cls=Command, axes=AXES)
@options(TARGET, SHAPES, KERNELS, JOBS, VERBOSE, CALIBRATION, CLUSTER)
@option("--operations", type=ANY_OPERATIONS_TYPE, help=HELP)
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
@option(
    "--prune",
    only=[UNLEARNED],
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
    help="How to search on each problem: by default model; with --selection or --learn-from exhaustive, which measures "
    "all.",
)
@click.option(
    "--search-budget",
    type=FiniteFloat(0.0, 100.0, min_open=True),
    default=100.0,
    show_default=True,
    help="Percentage of a problem's candidates to measure at most.",
)
@click.option(
    "--learn-from",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Record or results of the same architecture to learn from: each problem is measured with the candidates that "
    "are then predicted fastest. May be given again.",
)
@option(
    "--per-problem",
    only=[LEARNED],
    type=click.IntRange(1),
    default=TuningRequest.per_problem,
    show_default=True,
    help="Candidates that each problem is measured with.",
)
@option("--bundle", only=[BUNDLE], type=OUTPUT_FOLDER, help="Make a directory to run elsewhere.")
@click.option(
    "--on",
    "urls",
    multiple=True,
    help="Measure there: ssh://[user@]host[:port][/folder]. Needs Python 3.10 there, no more. May be given again with "
    "--cluster local.",
)
@option("--record", only=[ON], type=OUTPUT_FILE, help="Record to write; by default the target's.")
@click.option(
    "--no-reference",
    is_flag=True,
    help="Do not time torch's own product beside the kernels; by default it is, where torch can be imported.",
)
@option(
    "--budget-seconds",
    only=[HERE, ON, ON_CLUSTER],
    type=FiniteFloat(0.0),
    help="End the measuring in good order after this.",
)
@JSON
def tune(**values: Any) -> None:
    """Compile candidates and measure them on this machine's GPU, on a device by SSH, or make a bundle to carry there.

    Without --on and --bundle the GPU is this machine's: it is checked, then measured into
    build/tuning/TARGET/results.sqlite, for `aot import`; `make tune` does both. --on ships the bundle, checks the
    device, follows the run, survives a dropped link and brings the record home. --bundle goes there by hand; on the
    device, with Python and numpy: `python run.py --out results.sqlite`; then, here, `aot import results.sqlite`.
    Whatever is interrupted carries on when it is run again.

    --cluster shares the compiling and the measuring among the workers of a Dask cluster, or among all GPUs of this
    host, into the same file of results. docs/fleet.md says how.

    --operations names products, which are measured on the problems of --shapes, and operations on rows, which have
    sizes of their own.
    """
    asked = _Options(**{name: value for name, value in values.items() if name != "as_json"})
    _check_others(click.get_current_context(), asked)
    _check_place(click.get_current_context(), asked)
    device = load_target(asked.target)
    directory = check_bundle_folder(asked.bundle or Path("build/tuning") / device.name)
    request = _request(asked, device)
    if asked.url:
        check_output(asked.record or RECORDS / f"{device.name}.jsonl.gz")
    for line in check_problems(request):
        click.echo(line, err=True)
    with fleet_of(asked.cluster, asked.cluster_tls, asked.jobs, measures=True, urls=asked.urls) as fleet:
        if fleet:
            fleet.devices.check(device)
        remote = None if fleet else _inspected(asked, device)
        compilers = fleet.compilers_or(Processes(asked.jobs)) if fleet else Processes(asked.jobs)
        workplace = Workplace(compilers=compilers, verbose=asked.verbose)
        bundle, failures = make_tuning_bundle(request, device, directory, workplace)
        for failure in failures:
            click.echo(f"not compiled: {failure.name}: {failure.reason}", err=True)
        tell(f"{bundle.directory}: {bundle.num_bytes / 2**20:.1f} MiB")
        if asked.calibration:
            tell(f"candidates are predicted by: {request.predicted_by}")
        if remote:
            _measure_remotely(remote, bundle, asked)
            return
        if asked.bundle:
            _show_command(bundle, failures, asked)
            return
        results = directory / "results.sqlite"
        _measure(fleet, bundle, results, asked)
    show(
        lambda: {"results": results, **bundle_facts(bundle, failures)},
        lambda: f"measured into {results}; next: aot import {results}",
    )


def _show_command(bundle: Bundle, failures: Sequence[CompileFailure], asked: _Options) -> None:
    """Say how a bundle is measured elsewhere."""
    command = " ".join([f"python {bundle.directory.name}/run.py --out results.sqlite", *asked.runner_words()])
    show(lambda: {"command": command, **bundle_facts(bundle, failures)}, lambda: f"on the device: {command}")


OF_PRODUCTS = ("shapes", "limit", "selection", "learn_from", "per_problem", "calibration")
"""Options that mean something for products alone."""


def _check_place(context: click.Context, asked: _Options) -> None:
    """Refuse several devices where one is measured on, and devices beside a cluster that has its own."""
    if len(asked.urls) > 1 and not asked.cluster:
        raise click.UsageError("several --on need --cluster local, which measures on all of them", context)
    if asked.urls and asked.cluster not in (None, "local"):
        text = f"--on means nothing with --cluster {asked.cluster}; use it with --cluster local, or let the device join"
        raise click.UsageError(f"{text}: aot worker {asked.cluster} --on {asked.urls[0]}", context)
    if asked.bundle and asked.cluster:
        raise click.UsageError("--bundle means nothing with --cluster; leave one of the two out", context)


def _check_others(context: click.Context, asked: _Options) -> None:
    """Refuse what means nothing for the operations that are named (click.UsageError)."""
    named = asked.operations
    if named is None or not named.others:
        return
    if asked.selection:
        raise click.UsageError("a selection has kernels of products alone; leave --selection out", context)
    given = next((x for x in context.command.params if x.name in OF_PRODUCTS and is_given(context, x.name or "")), None)
    if given is not None and not named.products:
        tags = ", ".join(x.tag for x in named.others)
        raise click.UsageError(f"{given.opts[-1]} means nothing for {tags}; leave it out, or name products", context)


def bundle_facts(bundle: Bundle, failures: Sequence[CompileFailure]) -> dict[str, object]:
    """Return what `--json` says of a bundle: where it is, its bytes, and which kernels did not compile."""
    not_compiled = {failure.name: failure.reason for failure in failures}
    return {"bundle": bundle.directory, "num_bytes": bundle.num_bytes, "not_compiled": not_compiled}


def _operations(asked: _Options, shape_set: ShapeSet) -> tuple[Operation, ...]:
    if asked.operations:
        return shape_set.having(asked.operations.products) if asked.operations.products else ()
    return shape_set.tuned(
        tuple(map(ElementType, asked.dtypes)),
        tuple(map(Layout, asked.layouts)),
        tuple(map(Epilogue, asked.epilogues)),
    )


def _request(asked: _Options, device: Target) -> TuningRequest:
    shape_set, calibration = load_shape_set(asked.shapes), calibration_of(asked.calibration, device.name)
    by_model = calibration.model if calibration else cost.NAME
    return TuningRequest(
        shape_set,
        (*_operations(asked, shape_set), *(asked.operations.others if asked.operations else ())),
        Patterns.parse(asked.kernels),
        asked.limit,
        asked.prune or (math.inf if asked.selection else PRUNE),
        _selected_candidates(asked.selection, device),
        calibration.constants if calibration else cost.DEFAULTS,
        learn(asked.learn_from, device) if asked.learn_from else None,
        asked.per_problem,
        one_line(f"learned from {', '.join(x.name for x in asked.learn_from)}") if asked.learn_from else by_model,
    )


def _inspected(asked: _Options, device: Target) -> RemoteTuning | None:
    """Look at the device that --on names, or at this machine where it is to measure, before anything is compiled."""
    if not asked.url:
        if not asked.bundle:
            check_this_machine(device, lambda text: click.echo(text, err=True))
        return None
    remote = RemoteTuning(asked.url, device, lambda text: click.echo(text, err=True), verbose=asked.verbose)
    with scratch_folder("aot-runner-") as scratch:
        remote.inspect(scratch)
    return remote


def _measure(fleet: Fleet | None, bundle: Bundle, results: Path, asked: _Options) -> None:
    """Measure a bundle into a file of results, on this machine's GPU or by a fleet."""
    if fleet:
        code = fleet.devices.measure(bundle.directory, asked.runner_words(), results, asked.budget_seconds)
    else:
        search = (asked.found_strategy, asked.search_share)
        has_reference = not asked.no_reference
        code = measure_here(bundle.directory, results, asked.budget_seconds, *search, has_reference=has_reference)
    if code:
        raise SystemExit(code)


def _measure_remotely(remote: RemoteTuning, bundle: Bundle, asked: _Options) -> None:
    """Measure a bundle where --on says, bring the results home and merge them into the record."""
    words = [] if asked.budget_seconds is None else ["--budget-seconds", f"{asked.budget_seconds:g}"]
    results = bundle.directory / "results.sqlite"
    words += asked.runner_words()
    code = remote.measure(bundle, words, results, lambda text: click.echo(text, err=True, nl=False))
    if code:
        click.echo(f"the run there ended with exit code {code}; what it measured is in {results}", err=True)
        raise SystemExit(code)
    merge_results([results], asked.record)


def _selected_candidates(path: Path | None, device: Target) -> tuple[Candidate, ...]:
    if path is None:
        return ()
    selection = read_selection(path)
    if selection.target != device.name:
        raise SelectionError(
            f"{path} is for {selection.target}, --target is {device.name}; give --target {selection.target}"
        )
    return tuple(dict.fromkeys(key.candidate for key in selection.kernels))
