"""The command `aot report`: one HTML page about a tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aot.cli.options import OUTPUT_FILE, RECORDS, TARGET_HELP, Axis, Command, option
from aot.cli.output import JSON, show
from aot.cli.selection import (
    COMMITTED,
    LAST,
    MODES,
    NAMED,
    RECORDED,
    selection_of,
    target_name,
    told_mode,
    told_options,
)
from aot.core.measurement import PROVENANCE_MEASURED
from aot.core.progress import waiting
from aot.core.shape_set import load_shape_set
from aot.core.target import load_target
from aot.core.whole_file import check_output, write_whole
from aot.report.facts import facts_of
from aot.report.page import page
from aot.report.searches import read_searches
from aot.select.times.record import read_record

SEARCHES = Path("build/search")
"""Where the study of searches writes."""
REPORTS = Path("build/report")
"""Where `aot report` writes, below the working directory."""


@click.command(cls=Command, axes=(Axis(MODES, told_mode),))
@told_options("Tell of what the cost model selects for --shapes.")
@option("--target", default="h200", show_default=True, help=TARGET_HELP)
@option(
    "--heldout",
    only=[NAMED, RECORDED, LAST, COMMITTED],
    default="atlas_heldout",
    show_default=True,
    help="Shape set that the selection was scored on, if it was.",
)
@click.option(
    "--search",
    type=click.Path(path_type=Path),
    help="Curves of search strategies; default build/search/.",
)
@click.option("-o", "--output", type=OUTPUT_FILE, help="Where to write; default build/report/.")
@JSON
@click.pass_context
def report(context: click.Context, /, **values: Any) -> None:
    """Write one HTML page about a tuning, to be read without a network.

    Device and conditions, roofline, the kernel of each bucket and cell, regret in and out of sample, the portfolio's
    curve, what lost and why, and the slowest cells. Without --selection, of the last selection made here, or else of
    what `aot build` ships. A predicted selection says so throughout.
    """
    output = values["output"] or check_output(REPORTS / f"{load_target(target_name(context)).name}.html")
    chosen = selection_of(context, told_mode(values))
    path = values["record"] or RECORDS / f"{chosen.record}.jsonl.gz"
    is_measured = chosen.provenance == PROVENANCE_MEASURED
    with waiting("read the record"):
        record = read_record(path) if is_measured and (values["record"] or path.exists()) else None
    heldout = load_shape_set(values["heldout"]).sizes if chosen.heldout else ()
    search = values["search"] or SEARCHES / f"{chosen.target}.json"
    points = read_searches(search, chosen.target) if values["search"] or search.exists() else ()
    with waiting("work out what the page shows"):
        text = page(facts_of(chosen, load_target(chosen.target), record, heldout, points))
    write_whole(output, text)
    size = output.stat().st_size
    show(
        lambda: {"page": output, "num_bytes": size, "target": chosen.target, "provenance": chosen.provenance},
        lambda: f"{output}: {size / 2**20:.2f} MiB, {chosen.provenance}",
    )
