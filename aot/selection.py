"""A selection: the kernels to ship and their table, decided but not compiled. Versioned JSON, strict both ways."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from aot.candidate import KernelKey
from aot.coverage import Coverage
from aot.dispatch import DispatchTable, table_fault
from aot.errors import SelectionError
from aot.measurement import Conditions
from aot.problem import Operation
from aot.strict_json import DecodeError, decode
from aot.whole_file import write_whole

SELECTION_VERSION = 2
"""Raised whenever a field is added without a default, dropped, or changes its meaning."""


@dataclass(frozen=True)
class Regret:
    """How far one operation's kernels are from the best times known, over the problems that they were selected on.

    Regrets are fractions: 0.02 is 2 percent above the best.
    """

    operation: Operation
    num_problems: int
    num_kernels: int
    mean: float
    worst: float
    method: str
    """How the kernels were chosen: `exact`, or `greedy and exchange`."""
    mean_bound: float
    """Proven: no portfolio of as many kernels has a lower mean regret over these problems."""


@dataclass(frozen=True)
class CurvePoint:
    """What a number of kernels costs in regret and in bytes, on the problems that were selected on."""

    num_kernels: int
    mean: float
    worst: float
    mean_bound: float
    """Proven: no portfolio of this size has a lower mean."""
    wheel_bytes: int
    """What the kernels take in the wheel, compressed."""
    is_estimate: bool
    """Whether some of the kernels were not compiled here, so that their bytes are the others' mean."""


@dataclass(frozen=True)
class Curve:
    """One operation's regret against its number of kernels, ascending."""

    operation: Operation
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True)
class HeldOut:
    """What the table costs on problems that no step of the selection saw: measured, not predicted.

    `rounding_*` is the time of the kernel that the table names over the best shipped kernel's time on the very shape:
    what rounding costs. `mean` and `worst` are regrets: over the best time known of any kernel.
    """

    operation: Operation
    tier: int
    """1: tuned (n, k) at another m; 2: foreign (n, k)."""
    num_problems: int
    num_unmeasured: int
    """Held-out problems besides, whose kernel was not timed on them."""
    rounding_mean: float
    rounding_worst: float
    mean: float
    worst: float
    worst_problem: str
    """Name of the problem of `rounding_worst`."""


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
    curves: tuple[Curve, ...]
    """Of the operations whose problems are many; may be empty."""
    heldout: tuple[HeldOut, ...]
    """Empty where nothing was held out, as in a predicted selection."""
    kernels: tuple[KernelKey, ...]
    """By the index that the table uses."""
    table: DispatchTable
    coverage: Coverage | None = None
    """How the problems that it was made for are answered; None in selections that do not say it."""


def write_selection(path: Path, selection: Selection) -> None:
    """Write a selection, compressed where the path ends with `.gz`; equal selections are equal bytes."""
    content = (json.dumps(asdict(selection), indent=1, sort_keys=True) + "\n").encode()
    write_whole(path, gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)


def read_selection(path: Path) -> Selection:
    """Read a selection.

    Raises:
        SelectionError: the file is missing, of another version, or not a selection.
    """
    try:
        content = path.read_bytes()
        value = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    except (OSError, EOFError, ValueError, zlib.error) as error:
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
