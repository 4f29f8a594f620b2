"""Let a selection say by which `aot select` it was made, where it was made before selections said it of themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from aot.cli.run import run_of
from aot.cli.select import request_of, select_command
from aot.core.errors import SelectionError
from aot.select.runs import runs_of
from aot.select.selection import read_selection, write_selection


@click.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- OPTIONS OF aot select")
@click.option("--inputs/--no-inputs", default=True, help="Say the digests of the files as they are now.")
def run(path: Path, words: tuple[str, ...], *, inputs: bool) -> None:
    """Write into selection PATH that `aot select` made it with these options.

    Its operations are those of --operations, or all that no run says of itself that it chose. What --keep names is
    not read again: tell of the earlier runs first.
    """
    found = read_selection(path)
    parent = click.get_current_context()  # whose -h a command keeps from then on
    with select_command.make_context("select", list(words), parent) as context:
        request = request_of(context)
        own = run_of(context, request.files if inputs else ())
    known = {x for earlier in found.runs or () for x in earlier.operations}
    asked = [x for x in found.operations if x in (*request.operations, *request.others)]
    chosen = tuple(asked or (x for x in found.operations if x not in known))
    if not chosen or request.target.name != found.target:
        tags = ", ".join(x.tag for x in found.operations)
        raise SelectionError(
            f"{path} has of {found.target} {tags}; expected some that the command selects; see its options"
        )
    others = [x for x in found.operations if x not in chosen]
    write_selection(path, replace(found, runs=(replace(own, operations=chosen), *runs_of(found.runs or (), others))))
