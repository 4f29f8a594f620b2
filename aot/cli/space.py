"""The commands that look at what there is: targets, shape sets, candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aot.cli import tables
from aot.cli.options import (
    DTYPE,
    EPILOGUE,
    KERNELS,
    LAYOUT,
    SHAPES,
    TARGET,
    Axis,
    Command,
    operation_of,
    option,
    options,
)
from aot.core.shape_set import load_shape_set, shape_set_names
from aot.core.target import load_target, target_names
from aot.select.coverage import untuned
from aot.space.enumeration import Patterns, census, judge

if TYPE_CHECKING:
    from collections.abc import Mapping

LISTED, COUNTED = "with --list", "without --list"


def _form(values: Mapping[str, Any]) -> str:
    return LISTED if values["list_all"] else COUNTED


@click.command()
def targets() -> None:
    """List the targets: device, host and limits."""
    click.echo(tables.targets_table([load_target(name) for name in target_names()]))


@click.command()
@SHAPES
@click.option("--problems", is_flag=True, help="List every problem rather than the models.")
def shapes(shapes: str, problems: bool) -> None:
    """List a shape set: models, weights and the ladder of m."""
    shape_set = load_shape_set(shapes)
    click.echo(tables.problems_table(shape_set) if problems else tables.shapes_table(shape_set))
    for reason, count in untuned(shape_set.operations, shape_set).items():
        click.echo(f"{count} of them by the slow general kernel, whatever is tuned: {reason}")
    click.echo(f"shipped shape sets: {', '.join(shape_set_names())}", err=True)


@click.command(cls=Command, axes=(Axis((LISTED, COUNTED), _form),))
@options(TARGET, KERNELS, DTYPE, LAYOUT, EPILOGUE)
@option("--explain", only=[COUNTED], is_flag=True, help="Say of every reason why, with an example in figures.")
@click.option("--list", "list_all", is_flag=True, help="List every candidate with its verdict.")
def space(target: str, kernels: str, dtype: str, layout: str, epilogue: str, explain: bool, list_all: bool) -> None:
    """Show which candidates are in the space, which are out, and why. Needs no compiler and no GPU."""
    operation = operation_of(dtype, layout, epilogue)
    patterns, device = Patterns.parse(kernels), load_target(target)
    if list_all:
        click.echo(tables.verdicts_table(judge(operation, device, patterns)))
    else:
        click.echo(tables.census_table(census(operation, device, patterns), explain=explain))
