"""The commands that look at what there is: targets and candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aot.cli import tables
from aot.cli.options import (
    ASKED_OF_ANY_KIND,
    KERNELS,
    OPERATIONS_AXIS,
    TARGET,
    Axis,
    Command,
    asked_of_any_kind,
    option,
    options,
)
from aot.cli.output import JSON, show
from aot.core.progress import waiting
from aot.core.target import load_target, target_names
from aot.space.enumeration import Patterns, census, judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.core.work import AnyOperation

LISTED, COUNTED = "with --list", "without --list"


def _form(values: Mapping[str, Any]) -> str:
    return LISTED if values["list_all"] else COUNTED


@click.command()
@JSON
def targets(as_json: bool) -> None:
    """List the targets: device, host and limits."""
    del as_json
    found = [load_target(name) for name in target_names()]
    show(lambda: {"targets": found}, lambda: tables.targets_table(found))


@click.command(cls=Command, axes=(Axis((LISTED, COUNTED), _form), OPERATIONS_AXIS))
@options(TARGET, KERNELS, ASKED_OF_ANY_KIND)
@option("--explain", only=[COUNTED], is_flag=True, help="Say of every reason why, with an example in figures.")
@click.option("--list", "list_all", is_flag=True, help="List every candidate with its verdict.")
@JSON
def space(**values: Any) -> None:
    """Show which candidates are in the space, which are out, and why. Needs no compiler and no GPU."""
    operations = asked_of_any_kind(values)
    patterns, device = Patterns.parse(values["kernels"]), load_target(values["target"])

    def text_of(operation: AnyOperation) -> str:
        if values["list_all"]:
            return tables.verdicts_table(judge(operation, device, patterns))
        return tables.census_table(census(operation, device, patterns), explain=values["explain"])

    def facts_of(operation: AnyOperation) -> object:
        return dict(judge(operation, device, patterns)) if values["list_all"] else census(operation, device, patterns)

    def text() -> str:
        heads = {x: f"{x.tag}:\n" if len(operations) > 1 else "" for x in operations}
        return "\n".join(f"{head}{text_of(x)}" for x, head in heads.items())

    with waiting(f"judge the candidates of {len(operations)} operations"):
        show(lambda: {"target": device.name, "operations": {x.tag: facts_of(x) for x in operations}}, text)
