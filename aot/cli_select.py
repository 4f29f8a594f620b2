"""The commands that decide and build: select, diff, build, explain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aot import pipeline, reports, shipping
from aot.calibration import constants_of
from aot.cli_options import (
    CALIBRATION,
    DTYPE,
    JOBS,
    KERNELS,
    LAYOUT,
    MAX_HELDOUT_REGRET,
    RECORDS,
    REGRETS,
    SELECTIONS,
    SHAPES,
    TARGET,
    VERBOSE,
    options,
    regrets_text,
)
from aot.errors import AotError, SelectionError
from aot.explain import explanation
from aot.problem import Dtype, Layout, Operation, Problem
from aot.select import NAMED_WEIGHT, SelectionLimits, Wishes
from aot.selection import Selection, read_selection, write_selection
from aot.shape_set import load_shape_set
from aot.target import load_target

LIMITS = (
    click.option(
        "--max-kernels",
        type=click.IntRange(1),
        default=SelectionLimits.max_kernels,
        show_default=True,
        help="Kernels of layout kk.",
    ),
    click.option(
        "--max-layout-kernels",
        type=click.IntRange(4),
        default=SelectionLimits.max_layout_kernels,
        show_default=True,
        help="Of each other layout.",
    ),
    click.option(
        "--max-regret",
        type=REGRETS,
        help="Mean and worst regret of layout kk, such as 2%,10%: as few kernels as reach it, up to --max-kernels.",
    ),
    click.option(
        "--named-weight",
        type=click.FloatRange(1.0),
        default=NAMED_WEIGHT,
        show_default=True,
        help="How often a problem of --shapes counts beside others measured.",
    ),
)


@click.command(name="select")
@options(TARGET, SHAPES, KERNELS, *LIMITS)
@click.option("--record", type=click.Path(path_type=Path), help="Record to select from; by default the committed one.")
@click.option("--predicted", is_flag=True, help="Select by the cost model, as where there is no record.")
@CALIBRATION
@click.option(
    "--heldout", default="heldout", show_default=True, help="Shape set to keep out and to score on; '' for none."
)
@click.option("--shipped", type=click.Path(path_type=Path), help="Selection that ties go to; by default the committed.")
@click.option("--anew", is_flag=True, help="Let ties go to no earlier selection.")
@click.option("--curve/--no-curve", default=True, show_default=True, help="Work out kernels against regret.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write; default build/selections/.")
def select_command(**values: Any) -> None:
    """Choose the kernels to ship and build the dispatch table, from a record or from the cost model.

    Says how: exactly, or by greedy choice and exchange beside a proven bound; what each number of kernels would cost;
    and what rounding costs on the problems that were held out.
    """
    selection = _select(values)
    path = values["output"] or SELECTIONS / f"{selection.target}.json"
    write_selection(path, selection)
    click.echo(reports.selection_summary(selection))
    click.echo(f"wrote {path}; next: aot build --target {selection.target} --selection {path}")


def _select(values: dict[str, Any]) -> Selection:
    mean, worst = values["max_regret"] or (None, None)
    limits = SelectionLimits(values["max_kernels"], values["max_layout_kernels"], mean, worst)
    device = load_target(values["target"])
    shipped = None if values["anew"] else values["shipped"] or shipping.shipped_selection(device)
    shapes = load_shape_set(values["shapes"])
    wishes = Wishes(
        limits,
        read_selection(shipped) if shipped else None,
        shapes,
        values["named_weight"],
        with_curves=values["curve"],
        progress=lambda what: click.echo(f"... {what}", err=True),
    )
    record = values["record"] or shipping.default_record(device, RECORDS)
    if values["predicted"] or record is None:
        constants = constants_of(values.get("calibration"), device.name)
        return shipping.select_predicted(shapes, device, wishes, values["kernels"], constants)
    if values.get("calibration"):
        raise SelectionError(
            f"--calibration {values['calibration']}: a record's times need no cost model; leave it out, or select by "
            "the model with --predicted"
        )
    heldout = load_shape_set(values["heldout"]) if values["heldout"] else None
    return shipping.select_measured(record, device, wishes, values["kernels"], heldout)


@click.command()
@click.argument("old", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("new", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--record", "records", multiple=True, type=click.Path(path_type=Path), help="Times to judge by; may repeat."
)
@click.option("--show", type=click.IntRange(0), default=20, show_default=True, help="Changes to list.")
def diff(old: Path, new: Path, records: tuple[Path, ...], show: int) -> None:
    """Say what selection NEW dispatches otherwise than OLD, and what that costs.

    By default judged by the committed record of the target; a change's cost is learned where it was not measured.
    """
    click.echo(reports.difference_table(shipping.compare_selections(old, new, records, RECORDS), show))


@click.command()
@options(TARGET, SHAPES, JOBS, VERBOSE)
@click.option("--selection", type=click.Path(path_type=Path), help="Build this selection, not the committed one.")
@click.option(
    "--max-heldout-regret",
    type=REGRETS,
    default=MAX_HELDOUT_REGRET,
    show_default=regrets_text(MAX_HELDOUT_REGRET),
    help="Refuse to build where rounding costs more on held-out problems; none for no limit.",
)
@click.option("--package", default=pipeline.DEFAULT_PACKAGE, show_default=True, help="Name of the distribution.")
@click.option("--version", "package_version", default=None, help="Version of the wheel; by default this toolchain's.")
@click.option("--dist", type=click.Path(path_type=Path), default=Path("dist"), show_default=True)
def build(**values: Any) -> None:
    """Compile the selected kernels and build the wheel. Needs no GPU.

    Without --selection, builds the target's committed selection, or where there is none, selects by the cost model.
    """
    device = load_target(values["target"])
    chosen = _shipped(values)
    click.echo(reports.selection_summary(chosen))
    if chosen.target != device.name:
        raise AotError(
            f"the selection is for {chosen.target}, --target is {device.name}; give --target {chosen.target}"
        )
    shipping.check_heldout(chosen, *values["max_heldout_regret"])
    workplace = pipeline.Workplace(jobs=values["jobs"], verbose=values["verbose"])
    number = values["package_version"] or pipeline.toolchain_version()
    timed = shipping.times_behind(chosen, None, RECORDS)
    built = pipeline.build(
        chosen, device, values["dist"], workplace, package=values["package"], wheel_version=number, timed=timed
    )
    click.echo(f"{built.path}: {built.path.stat().st_size / 2**20:.2f} MiB, {len(built.manifest.kernels)} kernels")


@click.command()
@options(TARGET, SHAPES, DTYPE, LAYOUT)
@click.argument("m", type=click.IntRange(1))
@click.argument("n", type=click.IntRange(1))
@click.argument("k", type=click.IntRange(1))
@click.option("--selection", type=click.Path(path_type=Path), help="Selection to explain; default build/selections/.")
@click.option("--record", type=click.Path(path_type=Path), help="Record to select from, or behind --selection.")
def explain(**values: Any) -> None:
    """Say which kernel an M by N by K problem gets, and why.

    From which bucket, at what time, what came second, how much of the hardware's limit is reached, and what there is
    against bigger tiles. Without --selection, explains the last selection made here, or else what `aot build` ships.
    """
    chosen = selection_of(values)
    timed = shipping.times_behind(chosen, values["record"], RECORDS)
    operation = Operation.of(Dtype(values["dtype"]), Layout(values["layout"]))
    problem = Problem(operation, values["m"], values["n"], values["k"])
    click.echo(explanation(chosen, problem, load_target(chosen.target), timed))


def selection_of(values: dict[str, Any]) -> Selection:
    """Give the selection to tell of: the one named, else of the record, the last written, or what `build` ships."""
    last = SELECTIONS / f"{values['target']}.json"
    if values["record"] and not values["selection"]:
        return _select_anew(values, values["record"])
    if not values["selection"] and last.exists():
        return read_selection(last)
    return _shipped(values)


def _shipped(values: dict[str, Any]) -> Selection:
    """Give the selection named, else the committed one, else what the cost model selects."""
    device = load_target(values["target"])
    path = values["selection"] or shipping.shipped_selection(device)
    if path is not None:
        return read_selection(path)
    click.echo(f"{device.name} has no committed selection: selecting anew", err=True)
    return _select_anew(values, None)


def _select_anew(values: dict[str, Any], record: Path | None) -> Selection:
    """Select as `aot select` does without further options, but for the curve."""
    arguments = [f"--target={values['target']}", f"--shapes={values['shapes']}", "--no-curve"]
    arguments += [] if record is None else [f"--record={record}"]
    return _select(select_command.make_context("select", arguments, parent=click.get_current_context()).params)


COMMANDS = (select_command, diff, build, explain)
"""What this module adds to `aot`."""
