"""The commands that look at what there is: targets and candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aot.cli import tables
from aot.cli.options import (
    ASKED_OPERATIONS,
    KERNELS,
    OPERATIONS_AXIS,
    TARGET,
    Axis,
    Command,
    asked_operations,
    option,
    options,
)
from aot.core.target import load_target, target_names
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


@click.command(cls=Command, axes=(Axis((LISTED, COUNTED), _form), OPERATIONS_AXIS))
@options(TARGET, KERNELS, ASKED_OPERATIONS)
@option("--explain", only=[COUNTED], is_flag=True, help="Say of every reason why, with an example in figures.")
@click.option("--list", "list_all", is_flag=True, help="List every candidate with its verdict.")
def space(**values: Any) -> None:
    """Show which candidates are in the space, which are out, and why. Needs no compiler and no GPU."""
    operations = asked_operations(values)
    patterns, device = Patterns.parse(values["kernels"]), load_target(values["target"])
    for operation in operations:
        if len(operations) > 1:
            click.echo(f"{operation.tag}:")
        if values["list_all"]:
            click.echo(tables.verdicts_table(judge(operation, device, patterns)))
        else:
            click.echo(tables.census_table(census(operation, device, patterns), explain=values["explain"]))
