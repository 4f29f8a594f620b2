"""The command that brings measurements home: import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot.cli import tables
from aot.cli.options import OUTPUT_FILE, RECORDS
from aot.cli.output import JSON, show, tell
from aot.core.progress import waiting
from aot.tune.tuning import import_results

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command(name="import")
@click.argument("results", type=click.Path(path_type=Path, exists=True, dir_okay=False), nargs=-1, required=True)
@click.option("--record", type=OUTPUT_FILE, help="Record to write; by default named after the target.")
@click.option(
    "--level",
    "is_levelled",
    is_flag=True,
    help="Put the runs' times to one level first, by the median ratio over what they have in common, and on a problem "
    "by the kernels that both have timed there, or in part by the reference library where it is at the power limit.",
)
@JSON
def import_command(results: tuple[Path, ...], record: Path | None, *, is_levelled: bool, as_json: bool) -> None:
    """Bring measurements home: merge results.sqlite files into a record.

    Journals of operations on rows, rows.jsonl as tunings wrote them until 2026-11-27, are taken too.

    Of a problem and kernel that several have timed the last counts; with --level their geometric mean.
    """
    del as_json
    merge_results(results, record, is_levelled=is_levelled)


def merge_results(results: Sequence[Path], record: Path | None, *, is_levelled: bool = False) -> None:
    """Merge results into a record, and say what it holds."""
    with waiting("merge the results into the record"):
        written = import_results(results, record, RECORDS, is_levelled=is_levelled)
    for item in written.levels:
        tell(tables.level_line(item))
    for item in written.apart:
        tell(tables.apart_line(item))
    for text in written.faults:
        tell(f"wrong on that device, and without times here: {text}")
    show(
        lambda: {
            "path": written.path,
            "levels": written.levels,
            "apart": written.apart,
            "faults": written.faults,
            **tables.record_facts(written.record),
        },
        lambda: tables.record_summary(written.record),
    )
    tell(f"wrote {written.path}; next: aot select --target {written.record.target} --record {written.path}")
