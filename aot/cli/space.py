"""The commands that look at what there is: targets, shape sets, candidates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli import tables
from aot.cli.options import (
    ASKED_OPERATIONS,
    KERNELS,
    OPERATIONS_AXIS,
    OUTPUT_FILE,
    SHAPES,
    TARGET,
    Axis,
    Command,
    asked_operations,
    is_given,
    option,
    options,
)
from aot.core.miss_log import load_miss_log
from aot.core.shape_set import load_shape_set, parse_shape_set, shape_set_names
from aot.core.target import load_target, target_names
from aot.core.whole_file import write_whole
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


@click.group(invoke_without_command=True)
@SHAPES
@click.option("--problems", is_flag=True, help="List every problem rather than the models.")
@click.pass_context
def shapes(context: click.Context, shapes: str, problems: bool) -> None:
    """List a shape set: models, weights and the ladder of m."""
    if context.invoked_subcommand is not None:
        given = next((x for x in context.command.params if is_given(context, x.name or "")), None)
        if given is not None:
            raise click.UsageError(f"{given.opts[-1]} means nothing with {context.invoked_subcommand}; leave it out")
        return
    shape_set = load_shape_set(shapes)
    click.echo(tables.problems_table(shape_set) if problems else tables.shapes_table(shape_set))
    for reason, count in untuned(shape_set.operations, shape_set).items():
        click.echo(f"{count} of them by the slow general kernel, whatever is tuned: {reason}")
    click.echo(f"shipped shape sets: {', '.join(shape_set_names())}", err=True)


@shapes.command("from-misses")
@click.argument("log", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=OUTPUT_FILE, help="Shape set to write, for --shapes.")
def from_misses(log: Path, output: Path) -> None:
    """Make a shape set of LOG, a miss log that a wheel wrote for AOT_GEMM_MISSES."""
    text = load_miss_log(log)
    write_whole(output, text)
    click.echo(f"{output}: {tables.problem_counts(parse_shape_set(text, str(output)))}")


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
