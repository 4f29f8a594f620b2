"""A selection: the kernels to ship and their table, decided but not compiled. Versioned JSON, strict both ways."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from aot.candidate import KernelKey
from aot.dispatch import DispatchTable, table_fault
from aot.errors import SelectionError
from aot.measurement import Conditions
from aot.problem import Operation
from aot.strict_json import DecodeError, decode

SELECTION_VERSION = 1


@dataclass(frozen=True)
class Regret:
    """How far one operation's table is from the best times known, over the problems that it was selected on."""

    operation: Operation
    num_problems: int
    num_kernels: int
    mean: float
    worst: float


@dataclass(frozen=True)
class Selection:
    """What `aot select` decides and `aot build` compiles."""

    selection_version: int
    target: str
    provenance: str
    """`measured` or `predicted`."""
    record: str
    """Name of the record, or version of the cost model."""
    conditions: tuple[Conditions, ...]
    regrets: tuple[Regret, ...]
    kernels: tuple[KernelKey, ...]
    """By the index that the table uses."""
    table: DispatchTable


def write_selection(path: Path, selection: Selection) -> None:
    """Write a selection; equal selections are equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(asdict(selection), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(path)


def read_selection(path: Path) -> Selection:
    """Read a selection.

    Raises:
        SelectionError: the file is missing, of another version, or not a selection.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SelectionError(f"cannot read the selection {path}: {error}; run `aot select`") from error
    version = value.get("selection_version") if isinstance(value, dict) else None
    if version != SELECTION_VERSION:
        raise SelectionError(f"{path}: version {version!r}, expected {SELECTION_VERSION}; run `aot select` again")
    try:
        selection: Selection = decode(Selection, value, str(path))
    except DecodeError as error:
        raise SelectionError(f"{error}; run `aot select` again") from error
    fault = table_fault(selection.table, len(selection.kernels))
    if fault:
        raise SelectionError(f"{path}: {fault}; run `aot select` again")
    return selection
