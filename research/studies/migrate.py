"""Bring files of earlier versions up to date: `python -m research.studies.migrate FILE...`.

Records (`.jsonl.gz`), those of operations on rows as they were until 2026-11-27 too, selections (`.json`, `.json.gz`)
and censuses (`.json`) are rewritten in place, each as a whole; a file of today keeps its bytes. Stores of measurements
bring themselves up to date when they are opened. A journal of a tuning of operations on rows, `results.jsonl`, becomes
a record beside it.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path
from typing import Any

from aot.core.candidate import KernelKey
from aot.core.json_text import write_json
from aot.core.strict_json import decode, parse_json, read_content, text_of
from aot.core.table_check import takes_aligned
from aot.core.whole_file import write_whole
from aot.measure.store_sql import RENAMED_FAMILIES
from aot.select.selection import FamilyKernel
from aot.select.times.record import write_record
from research.studies.journals import is_journal, is_row_record, parse_row_record, read_journal

FIELDS = {"rounding_mean": "bucketing_loss_mean", "rounding_worst": "bucketing_loss_worst"}
"""The names of a selection's fields until 2026-11-22, and those since."""
VERSIONS = {'"version": 1}\n': '"version": 2}\n', '"selection_version": 2': '"selection_version": 3'}
"""How a record's first line ends and what a selection has, before operations stood as tags and since."""
ROWS_IN_GRID = '"selection_version": 3'
"""What a selection has whose grid has a row for each cell, by m, n and k, and not columns."""

_FAMILY = re.compile(rf'("family": ?")({"|".join(RENAMED_FAMILIES)})(?=")')
_NAME = re.compile(rf'("|[a-z]_)({"|".join(RENAMED_FAMILIES)})(?=_\d+x\d)')
_FIELD = re.compile(rf'(?<=")({"|".join(FIELDS)})(?=":)')
_OPERATION = re.compile(r'\{\s*"dtype(?:_name)?": "(bfloat|float)16",\s*"layout(?:_name)?": "([km][kn])"\s*\}')


def _columns(grid: dict[str, Any], is_able: list[bool]) -> list[dict[str, Any]]:
    """Make a grid's columns from its cells, neighbouring steps of m of one kernel joined.

    A cell whose kernel needs whole tiles is given its general one: a column names what takes every aligned problem.
    """
    found = []
    count = len(grid["n_edges"]) * len(grid["k_edges"])
    for i in range(count):
        kernels = [x["kernel"] if is_able[x["kernel"]] else x["general"] for x in grid["cells"][i::count]]
        steps = [(m, x) for m, x, y in zip(grid["m_edges"], kernels, [*kernels[1:], None], strict=True) if x != y]
        found.append({"m_edges": [m for m, _ in steps], "kernels": [x for _, x in steps], "tile_orders": None})
    return found


def _with_columns(text: str) -> str:
    """Return a selection whose grids have columns, as `write_selection` writes one; no library was timed for it."""
    document = parse_json(text)
    is_able = [takes_aligned(FamilyKernel.of(decode(KernelKey, x))) for x in document["kernels"]]
    for section in document["table"]["sections"]:
        grid = section["grid"]
        grid["columns"] = _columns(grid, is_able)
        del grid["cells"], grid["m_edges"]
    return write_json({**document, "references": [], "selection_version": 4})


def migrated(text: str) -> str:
    """Return a document's text as it would be written today."""
    for pattern in (_FAMILY, _NAME):
        text = pattern.sub(lambda match: match[1] + RENAMED_FAMILIES[match[2]], text)
    text = _FIELD.sub(lambda match: FIELDS[match[0]], text)
    new = _OPERATION.sub(lambda match: f'"{"bf" if match[1] == "bfloat" else "fp"}16_{match[2]}"', text)
    if new != text:
        for old, version in VERSIONS.items():
            new = new.replace(old, version, 1)
    return _with_columns(new) if ROWS_IN_GRID in new else new


def migrate(path: Path) -> None:
    """Bring one file up to date.

    Raises:
        DecodeError: it is a record of operations on rows, and damaged.
        StoreError: it is such a journal, and damaged.
        OutputError: it cannot be written.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    if is_journal(path):
        write_record(path.with_name(f"{path.name}.gz"), read_journal(path))
        return
    if is_row_record(path):
        write_record(path, parse_row_record(text_of(read_content(path))))
        return
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    new = migrated(text)
    if new != text:
        is_packed = path.suffix == ".gz"
        write_whole(path, gzip.compress(new.encode(), compresslevel=9, mtime=0) if is_packed else new.encode())


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        migrate(Path(argument))
