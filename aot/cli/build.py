"""The commands about wheels: build, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aot.cli import tables
from aot.cli.options import (
    JOBS,
    MAX_HELDOUT_REGRET,
    OUTPUT_FOLDER,
    RECORDS,
    REGRETS,
    TARGET,
    VERBOSE,
    Axis,
    Command,
    option,
    options,
    regrets_text,
    shapes_option,
)
from aot.cli.selection import COMMITTED, NAMED, PREDICTED, last_selection, selection_of, shipped_mode, target_name
from aot.compile.workplace import Workplace
from aot.core.shape_set import load_shape_set
from aot.core.target import load_target
from aot.core.whole_file import check_folder
from aot.package.distribution import check_name, check_version
from aot.package.wheel import DEFAULT_PACKAGE, make_wheel, toolchain_version
from aot.select import pipeline


@click.command(cls=Command, axes=(Axis((NAMED, PREDICTED, COMMITTED), shipped_mode),))
@options(TARGET, JOBS, VERBOSE)
@shapes_option(only=[PREDICTED], text="What the cost model selects for: a shipped shape set, or a TOML file.")
@click.option("--selection", type=click.Path(path_type=Path), help="Build this selection, not the committed one.")
@option("--predicted", only=[PREDICTED], is_flag=True, help="Build what the cost model selects for --shapes.")
@click.option("--require-measured", is_flag=True, help="Refuse to build where not every problem was measured.")
@option(
    "--max-heldout-regret",
    only=[NAMED, COMMITTED],
    type=REGRETS,
    default=MAX_HELDOUT_REGRET,
    show_default=regrets_text(MAX_HELDOUT_REGRET),
    help="Refuse to build where the bucketing loss on held-out problems is higher; none for no limit.",
)
@click.option("--package", default=DEFAULT_PACKAGE, show_default=True, help="Name of the distribution.")
@click.option("--version", "package_version", default=None, help="Version of the wheel; by default this toolchain's.")
@click.option("--dist", type=OUTPUT_FOLDER, default=None, show_default="dist", help="Folder to put the wheel into.")
@click.pass_context
def build(context: click.Context, /, **values: Any) -> None:
    """Compile the selected kernels and build the wheel. Needs no GPU.

    Without --selection, builds the target's committed selection, or where there is none, selects by the cost model.
    The wheel's version ends with what its table is: predicted or measured, and a hash of the selection.
    """
    package, number = check_name(values["package"]), values["package_version"] or toolchain_version()
    check_version(number)
    dist = values["dist"] or check_folder(Path("dist"))
    mode = shipped_mode(values)
    chosen = selection_of(context, mode)
    device = load_target(target_name(context))
    newer = last_selection(device.name)
    if mode == COMMITTED and newer:
        click.echo(f"{newer} is another, made here; to build it: --selection {newer}", err=True)
    found = pipeline.covered(chosen, load_shape_set(pipeline.COMMITTED_SHAPES) if mode == COMMITTED else None)
    if values["require_measured"]:
        pipeline.require_measured(found)
    click.echo(tables.selection_summary(chosen))
    pipeline.check_heldout(chosen, *values["max_heldout_regret"])
    workplace = Workplace(jobs=values["jobs"], verbose=values["verbose"])
    timed = pipeline.times_behind(chosen, None, RECORDS)
    built = make_wheel(chosen, device, dist, workplace, package=package, wheel_version=number, timed=timed)
    click.echo(f"{built.path}: {built.path.stat().st_size / 2**20:.2f} MiB, {len(built.manifest.kernels)} kernels")
    click.echo(pipeline.coverage_text(found))


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
