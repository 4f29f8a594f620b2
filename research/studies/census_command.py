"""The study `census`: compile a whole space, read every object, count."""

from __future__ import annotations

from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli.options import (
    ANY_OPERATIONS,
    OUTPUT_FILE,
    TARGET,
    Axis,
    Command,
    jobs_option,
    option,
    options,
)
from aot.cli.output import JSON, show
from aot.compile.compiler import ArtifactStore, Processes, toolchain_versions
from aot.compile.legal_keys import legal_keys
from aot.compile.workplace import Workplace, compile_each
from aot.core.errors import CompileError
from aot.core.progress import waiting
from aot.core.target import load_target
from aot.core.whole_file import write_whole
from research.studies import census

if TYPE_CHECKING:
    from collections.abc import Mapping


COMPILED, COUNTED = "without --count-only", "with --count-only"


def _work(values: Mapping[str, Any]) -> str:
    return COUNTED if values["count_only"] else COMPILED


def _address(data: Path | None, page: Path | None) -> str:
    """Return the data's path as a link on a page has it."""
    return Path(relpath(data, page.parent if page else ".")).as_posix() if data else "#"


@click.command(name="census", cls=Command, axes=(Axis((COMPILED, COUNTED), _work),))
@options(TARGET, jobs_option(only=[COMPILED]), ANY_OPERATIONS)
@option(
    "--sample",
    metavar="N",
    only=[COMPILED],
    type=click.IntRange(min=1),
    help="Compile up to N candidates of each operation and family, drawn at random, always the same; by default all.",
)
@click.option("--count-only", is_flag=True, help="Compile nothing; count what has been compiled already.")
@click.option("-o", "--output", type=OUTPUT_FILE, help="JSON file to write; what it holds of others stays.")
@click.option("--markdown", type=OUTPUT_FILE, help="Also write the table as Markdown.")
@JSON
def census_command(**values: Any) -> None:
    """Compile every legal candidate of every family, check each object, and count. Needs no GPU; takes hours.

    A legal candidate that does not compile, or whose object is refused, is a bug: it is named with its reason, and the
    command ends with an error. By default of all operations, products and those on rows: 12 CPU hours for a Thor;
    --operations narrows that, and --sample takes a few of each, in minutes. What is compiled is kept in build/ (a
    gigabyte and more), so that an interrupted census carries on, and `aot tune` finds its kernels there. It goes round
    all families and operations, so that --count-only counts a sample of all however soon it was interrupted. A census
    may be made in parts, by --operations, into one --output.
    """
    target = load_target(values["target"])
    named = values["operations"]
    operations = named.operations if named else census.OPERATIONS
    earlier = census.read_census(values["output"]) if values["output"] and values["output"].exists() else None
    workplace = Workplace(compilers=Processes(values["jobs"]))
    if not values["count_only"]:
        keys = legal_keys(operations, target, values["sample"])
        click.echo(f"{len(keys):,} legal kernels of {len(operations)} operations", err=True)
        compile_each(keys, target, workplace)
    store = ArtifactStore(workplace.artifacts)
    with waiting("read what has been compiled"):
        found = census.count(operations, target, toolchain_versions(), lambda key: store.get(key, target))
    if earlier:
        found = census.merge(earlier, found)
    if values["output"]:
        write_whole(values["output"], census.text(found))
    page = census.markdown(found, _address(values["output"], values["markdown"]))
    if values["markdown"]:
        write_whole(values["markdown"], page)
    show(lambda: vars(found), lambda: page.removesuffix("\n"))
    failures = [name for row in found.all_rows for name in row.failures]
    if failures:
        raise CompileError(
            f"{len(failures)} legal candidates did not compile or were refused, {failures[0]} among them; each is a "
            "bug of legality or of its family"
        )
