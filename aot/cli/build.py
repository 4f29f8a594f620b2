"""The commands about wheels: build, verify."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli import selection_tables
from aot.cli.completion import complete_targets
from aot.cli.interrupt import was_interrupted
from aot.cli.options import (
    ALL_OPERATIONS_TYPE,
    EPILOGUES,
    JOBS,
    MAX_HELDOUT_REGRET,
    OUTPUT_FILE,
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
from aot.cli.output import JSON, show, tell
from aot.cli.selection import (
    COMMITTED,
    LAST,
    NAMED,
    PREDICTED,
    UNSELECTED,
    check_products,
    last_selection,
    selection_for,
    selection_with,
    shipped_mode,
)
from aot.compile.compiler import Processes
from aot.compile.workplace import Workplace
from aot.core.errors import PackageError, SelectionError
from aot.core.progress import waiting
from aot.core.shape_set import load_shape_set
from aot.core.target import Target, load_target
from aot.core.whole_file import check_folder, check_output, write_whole
from aot.kinds.named_operations import DEFAULT_PRESET, HELP, all_named_operations, with_epilogues
from aot.package.distribution import check_name, check_version
from aot.package.pack import ANSWERS, pack_name
from aot.package.states import batches_texts, states_text
from aot.package.wheel import DEFAULT_PACKAGE, BuiltWheel, TableSource, check_one_host, make_wheel, toolchain_version
from aot.select import pipeline
from aot.select.coverage import only_fallback
from aot.select.score import gate
from aot.select.selection import Selection, read_selection

if TYPE_CHECKING:
    from aot.select.coverage import Coverage

VARIOUS = "with targets of which some have a selection and others have none"
EXTENDED = "with --operations and a committed selection"
MODES = (NAMED, PREDICTED, LAST, COMMITTED, UNSELECTED, EXTENDED, VARIOUS)


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
        if values["operations"] and not values["predicted"]:
            return EXTENDED if pipeline.committed_selection(device) else PREDICTED
        return shipped_mode(device, is_predicted=values["predicted"], is_committed=values["committed"])

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
    left = last_selection(device.name)
    if left and mode in (PREDICTED, EXTENDED):
        why = "--predicted" if values["predicted"] else "--operations"
        click.echo(f"{left}, made here last, is left aside, since {why} was given", err=True)
    chosen = _selection(context, wanted)
    check_products(chosen)
    shapes = {COMMITTED: pipeline.COMMITTED_SHAPES, EXTENDED: values["shapes"]}.get(mode)
    asked = values["operations"].products if values["operations"] else ()
    found = gate.covered(chosen, load_shape_set(shapes) if shapes else None, asked)
    if values["require_measured"]:
        gate.require_measured(found)
    if found and found.num_general:
        click.echo(f"warning: {device.name}: {found.text_of_general}", err=True)
    tell(selection_tables.selection_summary(chosen))
    gate.check_heldout(chosen, *values["max_heldout_regret"])
    return TableSource(chosen, device, pipeline.times_behind(chosen, None, RECORDS), found), found


def said(built: BuiltWheel, coverages: Mapping[str, Coverage | None]) -> str:
    """Say what was built, and how each table answers what it was made for."""
    num_kernels, num_objects = len(built.manifest.all_kernels), len(built.manifest.with_objects)
    size = f"{built.path}: {built.path.stat().st_size / 2**20:.2f} MiB, {num_kernels} kernels"
    if num_objects < num_kernels:
        size += f" in {num_objects} objects"
    texts = {name: gate.coverage_text(found) for name, found in coverages.items()}
    notes = [states_text(built.manifest), *batches_texts(built.manifest)]
    if built.api is not None:
        notes = [f"{built.api}: the functions, which find it", f"{built.lock}: both, by their hashes", *notes]
    if len(texts) == 1:
        return "\n".join([size, *notes, *texts.values()])
    tables = [f"{name}: {text}" for name, text in texts.items()]
    return "\n".join([f"{size} for {len(texts)} tables", *notes, *tables])


def built_facts(built: BuiltWheel, coverages: Mapping[str, Coverage | None]) -> dict[str, object]:
    """Return what was built: the wheel, its kernels, and by target what its table is."""
    tables = {x.target: {"provenance": x.provenance, "record": x.record} for x in built.manifest.tables}
    return {
        "wheel": built.path,
        "api": built.api,
        "lock": built.lock,
        "num_bytes": built.path.stat().st_size,
        "version": built.manifest.version,
        "arch": built.manifest.arch,
        "kernels": [x.name for x in built.manifest.all_kernels],
        "states": {x.name: x.state for x in built.manifest.all_kernels},
        "tables": {name: {**facts, "coverage": coverages[name]} for name, facts in tables.items()},
    }


def _refuse_unmeasured(values: Mapping[str, Any], wanted: Sequence[_Wanted]) -> None:
    """Refuse --require-measured where nothing can be: before it takes minutes to say so (click.UsageError)."""
    predicted = [x.target.name for x in wanted if x.mode == PREDICTED]
    if values["require_measured"] and predicted:
        raise click.UsageError(
            f"--require-measured: the cost model selects for {', '.join(predicted)}, so that nothing is measured; "
            "leave it out, or give a --selection that `aot select --record` made"
        )


def _pack_of(values: Mapping[str, Any], package: str, target: Target) -> str:
    """Return the name of a pack that is asked for.

    Raises:
        PackageError: it is none, or the package's own.
    """
    name = check_name(values["pack_name"] or pack_name(package, target.arch), "--pack-name")
    if name == package:
        raise PackageError(f"--pack-name is {name}, as --package is; expected another name; leave it out")
    return name


class _Build(Command):
    """The command of a build, whose --epilogues add to what --operations names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options, and put the two together."""
        rest = super().parse_args(ctx, args)
        values = ctx.params
        if values.get("epilogues"):
            named = values["operations"] or all_named_operations(DEFAULT_PRESET)
            values["operations"] = with_epilogues(named, values["epilogues"])
        return rest


@click.command(cls=_Build, axes=(Axis(MODES, _mode),))
@option(
    "--target",
    default="thor",
    show_default=True,
    help=f"{TARGET_HELP} Several of one architecture with commas between, h100,h200: one wheel with a table for each.",
    shell_complete=complete_targets,
)
@options(JOBS, VERBOSE)
@option(
    "--operations",
    type=ALL_OPERATIONS_TYPE,
    only=[PREDICTED, COMMITTED, EXTENDED, VARIOUS],
    help=f"{HELP} By default {DEFAULT_PRESET}.",
)
@option(
    "--epilogues",
    metavar="NAME,...",
    only=[PREDICTED, COMMITTED, EXTENDED, VARIOUS],
    help=f"What products like those of --operations compute besides, with commas between: {', '.join(EPILOGUES[1:])}.",
)
@shapes_option(
    only=[PREDICTED, UNSELECTED, EXTENDED, VARIOUS],
    text="What is selected for, where there is no selection: a shipped shape set, or a TOML file.",
)
@click.option(
    "--selection",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Build this selection of its target; once for each target.",
)
@option("--predicted", only=[PREDICTED, VARIOUS], is_flag=True, help="Build what the cost model selects for --shapes.")
@option(
    "--committed",
    only=[COMMITTED, VARIOUS],
    is_flag=True,
    help="Build the committed selection, though another was made here.",
)
@click.option("--require-measured", is_flag=True, help="Refuse to build where not every problem was measured.")
@option(
    "--max-heldout-regret",
    only=[NAMED, LAST, COMMITTED, UNSELECTED, EXTENDED, VARIOUS],
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
@click.option(
    "--pack",
    is_flag=True,
    help="Build two wheels and a lock: the functions without kernels, and a pack that holds the kernels.",
)
@click.option(
    "--pack-name",
    default=None,
    help="Name of the pack's distribution, with --pack; by default the package's and the architecture.",
)
@click.option(
    "--pack-answers",
    type=click.Choice(ANSWERS),
    help="What the pack answers for beside others: all that it has kernels for, or tuned sizes of its table alone.",
)
@click.option("--package", default=DEFAULT_PACKAGE, show_default=True, help="Name of the distribution.")
@click.option("--version", "package_version", default=None, help="Version of the wheel; by default this toolchain's.")
@click.option("--dist", type=OUTPUT_FOLDER, default=None, show_default="dist", help="Folder to put the wheel into.")
@JSON
@click.pass_context
def build(context: click.Context, /, **values: Any) -> None:
    """Compile the selected kernels and build the wheel. Needs no GPU.

    Without --selection, builds what `aot select` made here last, build/selections/TARGET.json; else the target's
    committed selection; else it selects, from the target's record, or where there is none, by the cost model. It says
    which it was. --committed and --predicted ask for one of the others.
    With --operations the wheel has these: the committed selection's kernels and times where it has them; else,
    predicted, those of the same operation in another type of the same size or with another activation, unless --shapes
    is given; else what `aot select --operations` would select. --epilogues adds to them, so that --epilogues silu is
    --operations default,bf16_kk_silu,fp16_kk_silu. Operations on rows, such as norms, are selected by the target's
    record of them, or where there is none by the cost model.
    With --pack the functions are a wheel of their own, for every machine, and the kernels a pack, which the functions
    find where both are installed; DIST/PACK.lock pins the two.
    The wheel's version ends with what its tables are: predicted or measured, and a hash of the selections.
    """
    package, number = check_name(values["package"]), values["package_version"] or toolchain_version()
    for name in ("pack_name", "pack_answers"):
        if values[name] and not values["pack"]:
            raise click.UsageError(f"--{name.replace('_', '-')} means nothing without --pack; give --pack too")
    check_version(number)
    dist = values["dist"] or check_folder(Path("dist"))
    wanted = _wanted(values, is_target_given=is_given(context, "target"))
    pack = _pack_of(values, package, wanted[0].target) if values["pack"] else None
    _refuse_unmeasured(values, wanted)
    found = [_source(context, x) for x in wanted]
    workplace = Workplace(compilers=Processes(values["jobs"]), verbose=values["verbose"])
    built = make_wheel(
        [source for source, _ in found],
        dist,
        workplace,
        package=package,
        wheel_version=number,
        batch_invariant=values["batch_invariant"],
        pack=pack,
        pack_answers=values["pack_answers"] or ANSWERS[0],
    )
    coverages = {source.target.name: coverage for source, coverage in found}
    show(lambda: built_facts(built, coverages), lambda: said(built, coverages))


@click.command()
@click.argument("wheel", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--device", is_flag=True, help="Also run every kernel on this machine's GPU against a reference.")
@click.option(
    "--report",
    type=OUTPUT_FILE,
    help="With --device: time some products too, and write all of it to send home, for `aot import`.",
)
@JSON
def verify(wheel: Path, device: bool, report: Path | None, as_json: bool) -> None:
    """Check a wheel: tag, libraries, symbols, hashes; with --device, every kernel's results.

    With --report FILE what came of it is written too: the device, its clocks and power mode, the wheel's hash, errors,
    and times of a few sizes of each operation.
    """
    from aot.package.wheel_check import check_kernels, check_wheel

    if report is not None and not device:
        raise click.UsageError("--report is of a device: give --device too")
    found = []
    with waiting(f"check {wheel.name}") as at:
        kernels = _reported(wheel, report, at) if report else check_kernels(wheel) if device else ()
        for line in chain(check_wheel(wheel), kernels):
            found.append(line)
            at(f"{len(found)} things found right")
            if not as_json:
                click.echo(line)
    if as_json:
        show(lambda: {"wheel": wheel, "right": found, "report": report}, str)


def _reported(wheel: Path, path: Path, at: Callable[[str], None]) -> Iterator[str]:
    """Run the kernels, write the report, and give a line for each kernel that is right, and for the report.

    Raises:
        DeviceError: there is no GPU of the wheel's architecture.
        VerificationError: a kernel is wrong, as the report says too.
        KeyboardInterrupt: the command was interrupted, and the report has what was known then.
    """
    from aot.package.device_report import make_report
    from aot.package.wheel_check import refuse_wrong, right_text

    check_output(path)
    found = make_report(wheel, at)
    write_whole(path, found.text())
    for kernel in found.kernels:
        if kernel.relative_error is not None:
            yield f"{kernel.name}: {right_text(kernel.relative_error)}"
    yield f"wrote {path}: {found.summary}; next, where the record is kept: aot import {path}"
    if was_interrupted():
        raise KeyboardInterrupt
    refuse_wrong(found.wrong, found.not_run, len(found.kernels))
