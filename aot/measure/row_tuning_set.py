"""What a tuning of row operations measures: its kernels and its sizes, as a bundle holds them in rows.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from aot.core.constraints import Arch, Extent, Index, KernelName, Sha256, TargetName, Version
from aot.core.errors import StoreError
from aot.core.strict_json import DecodeError, decode_version, parse_json, read_content
from aot.core.whole_file import write_whole
from aot.kinds.rows.candidate import RowCandidate, RowLimits
from aot.kinds.rows.operation import RowOperation, RowProblem
from aot.measure.tuning_set import matches

if TYPE_CHECKING:
    from pathlib import Path

ROWS_FILE = "rows.json"
ROW_TUNING_SET_VERSION = 1
"""Raised whenever a field is dropped, changes its meaning, or is added that may not be absent."""


@dataclass(frozen=True)
class TunedRowKernel:
    """A kernel of the library, by its place in the list."""

    name: KernelName
    operation: RowOperation
    candidate: RowCandidate
    object_sha256: Sha256
    limits: RowLimits

    @property
    def identity(self) -> str:
        """Return what results know a kernel by: its name and its object, so that another build is measured anew."""
        return f"{self.name} {self.object_sha256}"


@dataclass(frozen=True)
class TunedRows:
    """A size of an operation, and the places of the kernels that it is measured with."""

    operation: RowOperation
    rows: Extent
    cols: Extent
    kernels: tuple[Index, ...]

    @property
    def problem(self) -> RowProblem:
        """Return the operation and the size."""
        return RowProblem(self.operation, self.rows, self.cols)


@dataclass(frozen=True)
class RowTuningSet:
    """Kernels and sizes for one target."""

    version: Version
    target: TargetName
    arch: Arch
    kernels: tuple[TunedRowKernel, ...]
    sizes: tuple[TunedRows, ...]

    def filtered(self, kernels: str | None, problems: str | None) -> RowTuningSet:
        """Keep what the patterns match; no pattern keeps all. Kernels keep their places.

        Raises:
            StoreError: nothing is left.
        """
        left = {i for i, x in enumerate(self.kernels) if kernels is None or matches(kernels, x.name)}
        sizes = [x for x in self.sizes if problems is None or matches(problems, x.problem.name)]
        sizes = [replace(x, kernels=tuple(i for i in x.kernels if i in left)) for x in sizes]
        if not any(x.kernels for x in sizes):
            raise StoreError(
                f"--kernels {kernels!r} and --problems {problems!r} leave nothing to measure; names look like "
                f"{self.kernels[0].name!r} and {self.sizes[0].problem.name!r}"
            )
        return replace(self, sizes=tuple(x for x in sizes if x.kernels))


def write_row_tuning_set(directory: Path, tuning: RowTuningSet) -> None:
    """Write rows.json; equal sets are equal bytes."""
    write_whole(directory / ROWS_FILE, json.dumps(asdict(tuning), indent=1, sort_keys=True) + "\n")


def read_row_tuning_set(directory: Path) -> RowTuningSet:
    """Read rows.json.

    Raises:
        StoreError: it is missing, damaged or of another version.
    """
    path = directory / ROWS_FILE
    try:
        found = decode_version(RowTuningSet, parse_json(read_content(path)), "version", ROW_TUNING_SET_VERSION)
    except DecodeError as error:
        raise StoreError(f"cannot read {path}: {error}; make the bundle again") from error
    for size in found.sizes:
        wrong = [i for i in size.kernels if i >= len(found.kernels) or found.kernels[i].operation != size.operation]
        if wrong:
            raise StoreError(f"{path}: {size.problem.name} names kernel {wrong[0]}, none of its own; make it again")
    return found
