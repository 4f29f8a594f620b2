"""The command `aot wheel`: the whole road, from a model's configuration to a wheel."""

from __future__ import annotations

import hashlib
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli import selection_tables, tables
from aot.cli.build import built_facts, said
from aot.cli.options import (
    JOBS,
    OUTPUT_FOLDER,
    RECORDS,
    TARGET_HELP,
    VERBOSE,
    Axis,
    Command,
    FiniteFloat,
    option,
    options,
)
from aot.cli.output import JSON, show
from aot.cli.request import Request, select
from aot.cli.select import selection_facts
from aot.cli.selection import selection_for_shapes
from aot.cli.shapes import CONFIG_AXIS, CONFIG_OPTIONS, configured_shapes
from aot.cli.tune import PRUNE
from aot.compile.compiler import Processes
from aot.compile.workplace import Workplace
from aot.core.errors import AotError, StoreError
from aot.core.scratch import scratch_folder
from aot.core.shape_set import load_shape_set
from aot.core.strict_json import DecodeError, read_content, text_of
from aot.core.target import Target, load_target
from aot.core.whole_file import check_folder, write_whole
from aot.package.distribution import check_name
from aot.package.wheel import DEFAULT_PACKAGE, TableSource, make_wheel, toolchain_version
from aot.select import pipeline
from aot.select.selection import Selection, read_selection, write_selection
from aot.space.enumeration import Patterns
from aot.tune.kinds import TuningRequest
from aot.tune.remote import Tuning as RemoteTuning
from aot.tune.tuning import check_problems, import_results, make_tuning_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WALKS = Path("build/wheel")
"""Where a walk keeps what it has done, below the working directory: a folder for each target and shape set."""
LIMIT = 320
"""Candidates of an operation that are measured: as many as `aot tune` takes."""
FROM_CONFIG, FROM_SHAPES = "with --config", "without --config"
MEASURED, UNMEASURED = "with --on", "without --on"

AXES = (
    CONFIG_AXIS,
    Axis((FROM_CONFIG, FROM_SHAPES), lambda values: FROM_CONFIG if values["config"] else FROM_SHAPES),
    Axis((MEASURED, UNMEASURED), lambda values: MEASURED if values["url"] else UNMEASURED),
)


@dataclass
class _Progress:
    """The one view of a walk: which step it is at, of how many, and how long each took."""

    num_steps: int
    seconds: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show that a step begins, and when it has ended how long it took."""
        number, start = len(self.seconds) + 1, time.monotonic()
        click.echo(f"[{number}/{self.num_steps}] {what}", err=True)
        yield
        self.seconds.append((what, time.monotonic() - start))

    def summary(self) -> str:
        """Say how long each step took."""
        total = sum(seconds for _, seconds in self.seconds)
        rows = [(what, f"{seconds:.1f} s") for what, seconds in (*self.seconds, ("all", total))]
        return tables.table(("step", "time"), rows)


@dataclass(frozen=True)
class _Walk:
    """What is made, where from, and the folder that keeps what is done."""

    target: Target
    shapes: str
    folder: Path
    workplace: Workplace

    @property
    def shapes_path(self) -> Path:
        return self.folder / "shapes.toml"

    @property
    def record(self) -> Path:
        return self.folder / "record.jsonl.gz"


def _shape_text(values: Mapping[str, Any]) -> str:
    """Return the shape set, as TOML, of --config or --shapes.

    Raises:
        click.UsageError: neither is given, or both are.
        ShapeFileError: there is none in it.
    """
    if (values["config"] is None) == (values["shapes"] is None):
        raise click.UsageError("give one of --config and --shapes: a config.json of Hugging Face, or a shape set")
    if values["config"] is not None:
        found = configured_shapes(values["config"], values)
        for note in found.notes:
            click.echo(f"  {note}", err=True)
        return found.text
    load_shape_set(str(values["shapes"]))
    try:
        return text_of(read_content(values["shapes"]))
    except DecodeError as error:
        raise StoreError(f"{values['shapes']}: {error}; give the path of a shape set") from error


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _measure(walk: _Walk, url: str, seconds: float | None) -> None:
    """Measure on a device by SSH, into the walk's record; a run that was interrupted carries on."""
    if walk.record.exists():
        click.echo(f"  measured before: {walk.record}; to measure again, remove it", err=True)
        return
    shapes = load_shape_set(str(walk.shapes_path))
    request = TuningRequest(shapes, shapes.tuned((), ()), Patterns.parse(""), LIMIT, PRUNE)
    for line in check_problems(request):
        click.echo(f"  {line}", err=True)
    remote = RemoteTuning(url, walk.target, lambda text: click.echo(text, err=True), verbose=walk.workplace.verbose)
    with scratch_folder("aot-runner-") as scratch:
        remote.inspect(scratch)
    bundle, failures = make_tuning_bundle(request, walk.target, walk.folder / "tuning", walk.workplace)
    for failure in failures:
        click.echo(f"  not compiled: {failure.name}: {failure.reason}", err=True)
    words = [] if seconds is None else ["--budget-seconds", f"{seconds:g}"]
    results = bundle.directory / "results.sqlite"
    code = remote.measure(bundle, words, results, lambda text: click.echo(text, err=True, nl=False))
    if code:
        click.echo(f"the run there ended with exit code {code}; the same command carries on", err=True)
        raise SystemExit(code)
    import_results([results], walk.record, RECORDS)


def _selected(walk: _Walk, *, is_measured: bool) -> Selection:
    """Select, from what was measured, else the target's committed selection, its record or the cost model.

    What was selected of the same is read again.
    """
    record = walk.record if is_measured else pipeline.default_record(walk.target, RECORDS)
    path, stamp = walk.folder / "selection.json", walk.folder / "selection.sha256"
    committed = [] if is_measured else pipeline.committed_selections(walk.target)
    known = b"".join(x.read_bytes() for x in ([record] if record else []) + committed)
    digest = _digest(walk.shapes.encode(), walk.target.name.encode(), known, toolchain_version().encode())
    if path.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        try:
            return read_selection(path)
        except AotError:
            click.echo(f"  {path} is damaged; selecting again", err=True)
    found = None if is_measured else selection_for_shapes(str(walk.shapes_path), walk.target)
    if found is None:
        heldout = "" if is_measured else "atlas_heldout"
        records = (record,) if record else ()
        found = select(
            Request(walk.target, str(walk.shapes_path), is_default_shapes=False, records=records, heldout=heldout)
        )
    write_selection(path, found)
    write_whole(stamp, digest)
    return found


def _basis(walk: _Walk, *, is_measured: bool) -> str:
    if is_measured:
        return "select kernels from what was measured"
    if pipeline.committed_selection(walk.target):
        return "select kernels from the committed selection"
    return (
        f"select kernels {'from the record' if pipeline.default_record(walk.target, RECORDS) else 'by the cost model'}"
    )


@click.command(name="wheel", cls=Command, axes=AXES)
@option(
    "--config",
    type=click.Path(path_type=Path),
    help="The model: a config.json of Hugging Face, or a folder that holds one.",
)
@option("--shapes", only=[FROM_SHAPES], type=click.Path(path_type=Path), help="A shape set instead of --config.")
@option("--target", default="thor", show_default=True, help=TARGET_HELP)
@option("--on", "url", help="Measure there first: ssh://[user@]host[:port][/folder].")
@option("--budget-seconds", only=[MEASURED], type=FiniteFloat(0.0), help="End the measuring in good order after this.")
@CONFIG_OPTIONS
@options(JOBS, VERBOSE)
@click.option("--package", default=DEFAULT_PACKAGE, show_default=True, help="Name of the distribution.")
@click.option("--dist", type=OUTPUT_FOLDER, default=None, show_default="dist", help="Folder to put the wheel into.")
@JSON
def wheel(**values: Any) -> None:
    """Make the wheel of a model: its shapes, times, selection, kernels and package, in one command.

    Kernels and times are those of --on, or of the target's committed selection, of which the model's problems take what
    they need, or where there is none predicted by the cost model; the wheel's version says which. Needs no GPU here.
    What is interrupted carries on with the same command, which keeps what it has done in build/wheel/.
    """
    package = check_name(values["package"])
    dist = values["dist"] or check_folder(Path("dist"))
    device, is_measured = load_target(values["target"]), values["url"] is not None
    progress = _Progress(5 if is_measured else 4)
    with progress.step("list the shapes"):
        shapes = _shape_text(values)
        folder = WALKS / f"{device.name}-{_digest(shapes.encode(), str(values['url']).encode())[:12]}"
        walk = _Walk(device, shapes, folder, Workplace(compilers=Processes(values["jobs"]), verbose=values["verbose"]))
        write_whole(walk.shapes_path, shapes)
        click.echo(f"  {walk.shapes_path}: {tables.problem_counts(load_shape_set(str(walk.shapes_path)))}", err=True)
    if is_measured:
        with progress.step(f"measure on {values['url']}"):
            _measure(walk, values["url"], values["budget_seconds"])
    with progress.step(_basis(walk, is_measured=is_measured)):
        chosen = _selected(walk, is_measured=is_measured)
    coverage = chosen.coverage
    if coverage and coverage.num_general:
        click.echo(f"warning: {device.name}: {coverage.text_of_general}", err=True)
    timed = pipeline.times_behind(chosen, walk.record if is_measured else None, RECORDS)
    with progress.step(f"compile {len(chosen.kernels)} kernels, link and package them"):
        source = TableSource(chosen, device, timed, coverage)
        built = make_wheel([source], dist, walk.workplace, package=package, wheel_version=toolchain_version())
    with progress.step("check the wheel"):
        from aot.package.wheel_check import check_wheel

        for line in check_wheel(built.path):
            click.echo(f"  {line}", err=True)
    texts = (
        selection_tables.selection_summary(chosen),
        progress.summary(),
        said(built, {device.name: coverage}),
        f"on the {device.name}: pip install {built.path}",
    )
    seconds = dict(progress.seconds)
    show(
        lambda: {
            **built_facts(built, {device.name: coverage}),
            "selection": selection_facts(chosen),
            "seconds": seconds,
        },
        lambda: "\n".join(texts),
    )
