"""The commands about wheels: build, verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli import tables
from aot.cli.options import (
    JOBS,
    MAX_HELDOUT_REGRET,
    OPERATIONS_TYPE,
    OUTPUT_FOLDER,
    RECORDS,
    REGRETS,
    TARGET_HELP,
    VERBOSE,
    Axis,
    Command,
    is_given,
    option,
    options,
    regrets_text,
    shapes_option,
)
from aot.cli.selection import COMMITTED, NAMED, PREDICTED, last_selection, selection_for, selection_with
from aot.compile.workplace import Workplace
from aot.core.errors import SelectionError
from aot.core.named_operations import DEFAULT_PRESET, HELP
from aot.core.shape_set import load_shape_set
from aot.core.target import Target, load_target
from aot.core.whole_file import check_folder
from aot.package.distribution import check_name, check_version
from aot.package.wheel import DEFAULT_PACKAGE, BuiltWheel, TableSource, check_one_host, make_wheel, toolchain_version
from aot.select import pipeline
from aot.select.coverage import only_fallback
from aot.select.selection import Selection, read_selection

if TYPE_CHECKING:
    from aot.select.coverage import Coverage

VARIOUS = "with targets of which some have a selection and others have none"
EXTENDED = "with --operations and a committed selection"
MODES = (NAMED, PREDICTED, COMMITTED, EXTENDED, VARIOUS)


@dataclass(frozen=True)
class _Wanted:
    """A table that a wheel is to have: its target, and where its selection comes from."""

    target: Target
    mode: str
    path: Path | None = None
    """The selection that was named."""


def _check_named(named: Mapping[str, Path], paths: Sequence[Path], targets: Sequence[str]) -> None:
    """Refuse two selections of one target, and those of a target that was not asked for (SelectionError)."""
    if len(named) != len(paths):
        raise SelectionError(f"{len(paths)} selections are for {', '.join(named)}; give one for each target")
    strange = next((x for x in named if x not in targets), None)
    if strange:
        raise SelectionError(
            f"the selection is for {strange}, --target is {','.join(targets)}; give --target {strange}"
        )


def _wanted(values: Mapping[str, Any], *, is_target_given: bool = True) -> list[_Wanted]:
    """List the tables that a wheel is asked for, by the targets' names.

    Raises:
        AotError: a target or a selection is unknown or damaged, or they do not go together.
    """
    paths: Sequence[Path] = values["selection"]
    named = {read_selection(path).target: path for path in paths}
    targets = str(values["target"]).split(",") if is_target_given or not paths else list(named)
    _check_named(named, paths, targets)
    devices = sorted(map(load_target, targets), key=lambda x: x.name)
    check_one_host(devices)

    def mode_of(device: Target) -> str:
        if device.name in named:
            return NAMED
        if values["predicted"] or not pipeline.committed_selection(device):
            return PREDICTED
        return EXTENDED if values["operations"] else COMMITTED

    return [_Wanted(device, mode_of(device), named.get(device.name)) for device in devices]


def _mode(values: Mapping[str, Any]) -> str:
    """Say where the selections of a wheel come from."""
    if values["selection"] and "," not in values["target"]:
        return NAMED
    modes = {x.mode for x in _wanted(values)}
    return modes.pop() if len(modes) == 1 else VARIOUS


def _selection(context: click.Context, wanted: _Wanted) -> Selection:
    """Read a table's selection, or make it: of --operations where they are given."""
    operations = context.params["operations"]
    if wanted.mode == NAMED or not operations:
        return selection_for(context, wanted.mode, wanted.target, wanted.path)
    found = selection_with(context, wanted.target, operations, is_predicted=wanted.mode == PREDICTED)
    slow = [section.operation.tag for section in found.table.sections if only_fallback(section)]
    if slow:
        click.echo(f"no tuned kernel for {wanted.target.name}, the slow fallback alone: {', '.join(slow)}", err=True)
    return found


def _source(context: click.Context, wanted: _Wanted) -> tuple[TableSource, Coverage | None]:
    """Find a table's selection, and what there is to say of it."""
    values, device, mode = context.params, wanted.target, wanted.mode
    chosen = _selection(context, wanted)
    newer = last_selection(device.name)
    if mode == COMMITTED and newer:
        click.echo(f"{newer} is another, made here; to build it: --selection {newer}", err=True)
    shapes = {COMMITTED: pipeline.COMMITTED_SHAPES, EXTENDED: values["shapes"]}.get(mode)
    found = pipeline.covered(chosen, load_shape_set(shapes) if shapes else None, values["operations"])
    if values["require_measured"]:
        pipeline.require_measured(found)
    click.echo(tables.selection_summary(chosen))
    pipeline.check_heldout(chosen, *values["max_heldout_regret"])
    return TableSource(chosen, device, pipeline.times_behind(chosen, None, RECORDS), found), found


def _said(built: BuiltWheel, coverages: Mapping[str, Coverage | None]) -> str:
    """Say what was built, and how each table answers what it was made for."""
    size = f"{built.path}: {built.path.stat().st_size / 2**20:.2f} MiB, {len(built.manifest.kernels)} kernels"
    texts = {name: pipeline.coverage_text(found) for name, found in coverages.items()}
    if len(texts) == 1:
        return "\n".join([size, *texts.values()])
    return "\n".join([f"{size} for {len(texts)} tables", *(f"{name}: {text}" for name, text in texts.items())])


@click.command(cls=Command, axes=(Axis(MODES, _mode),))
@option(
    "--target",
    default="thor",
    show_default=True,
    help=f"{TARGET_HELP} Several of one architecture with commas between, h100,h200: one wheel with a table for each.",
)
@options(JOBS, VERBOSE)
@option(
    "--operations",
    type=OPERATIONS_TYPE,
    only=[PREDICTED, COMMITTED, EXTENDED, VARIOUS],
    help=f"{HELP} By default {DEFAULT_PRESET}.",
)
@shapes_option(
    only=[PREDICTED, EXTENDED, VARIOUS],
    text="What is selected for, where nothing is committed: a shipped shape set, or a TOML file.",
)
@click.option(
    "--selection",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Build this selection, not the committed one of its target; once for each target.",
)
@option("--predicted", only=[PREDICTED, VARIOUS], is_flag=True, help="Build what the cost model selects for --shapes.")
@click.option("--require-measured", is_flag=True, help="Refuse to build where not every problem was measured.")
@option(
    "--max-heldout-regret",
    only=[NAMED, COMMITTED, EXTENDED, VARIOUS],
    type=REGRETS,
    default=MAX_HELDOUT_REGRET,
    show_default=regrets_text(MAX_HELDOUT_REGRET),
    help="Refuse to build where the bucketing loss on held-out problems is higher; none for no limit.",
)
@click.option(
    "--batch-invariant",
    is_flag=True,
    help="Compute every call so that a row's bits do not depend on m: of a selection with tables for that.",
)
@click.option("--package", default=DEFAULT_PACKAGE, show_default=True, help="Name of the distribution.")
@click.option("--version", "package_version", default=None, help="Version of the wheel; by default this toolchain's.")
@click.option("--dist", type=OUTPUT_FOLDER, default=None, show_default="dist", help="Folder to put the wheel into.")
@click.pass_context
def build(context: click.Context, /, **values: Any) -> None:
    """Compile the selected kernels and build the wheel. Needs no GPU.

    Without --selection, builds the target's committed selection, or where there is none, selects by the cost model.
    With --operations the wheel has these: the committed selection's kernels and times where it has them, and else what
    `aot select --operations` would select, whose rows say that they are predicted.
    The wheel's version ends with what its tables are: predicted or measured, and a hash of the selections.
    """
    package, number = check_name(values["package"]), values["package_version"] or toolchain_version()
    check_version(number)
    dist = values["dist"] or check_folder(Path("dist"))
    wanted = _wanted(values, is_target_given=is_given(context, "target"))
    found = [_source(context, x) for x in wanted]
    workplace = Workplace(jobs=values["jobs"], verbose=values["verbose"])
    built = make_wheel(
        [source for source, _ in found],
        dist,
        workplace,
        package=package,
        wheel_version=number,
        batch_invariant=values["batch_invariant"],
    )
    click.echo(_said(built, {source.target.name: coverage for source, coverage in found}))


@click.command()
@click.argument("wheel", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--device", is_flag=True, help="Also run every kernel on this machine's GPU against a reference.")
def verify(wheel: Path, device: bool) -> None:
    """Check a wheel: tag, libraries, symbols, hashes; with --device, every kernel's results."""
    from aot.package.wheel_check import check_kernels, check_wheel

    for line in check_wheel(wheel):
        click.echo(line)
    if device:
        for line in check_kernels(wheel):
            click.echo(line)
