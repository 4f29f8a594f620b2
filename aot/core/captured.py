"""What products lose in a captured layer of their advance over a library: `aot/captured/<target>.json`.

A table's times are of products alone, with a cold L2 and behind themselves. In a layer the L2 holds x, another kernel
stands in front, and one that reads D behind. What of its advance over the library a product then keeps goes by its rows
and by the bytes of its weight, and not by the model. `research/bench/captured.py` measures both ways in one run, and
`python -m research.bench.captured_summary` writes the file.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from operator import lt
from pathlib import Path

from aot.core.constraints import Date, Excess, Extent, Label, Positive, TargetName, Version
from aot.core.errors import StoreError
from aot.core.json_text import write_json
from aot.core.strict_json import DecodeError, decode_version, parse_json, read_content
from aot.core.whole_file import write_whole

CAPTURED_VERSION = 1
"""Raised whenever a field is dropped, changes its meaning, or is added that may not be absent."""

COMMITTED = Path(__file__).parents[1] / "captured"
"""The files that the project ships: one for each target on which layers were timed."""


@dataclass(frozen=True)
class CapturedLosses:
    """Parts of a product's own time, by cells; rows and bytes past the last edges are in the last cells."""

    rows: tuple[Extent, ...]
    """Upper edges of the rows of x, ascending."""
    weight_bytes: tuple[Positive, ...]
    """Upper edges of a weight's bytes, ascending."""
    parts: tuple[tuple[Excess, ...], ...]
    """By rows, then by bytes: how much less the product is ahead of the library in a layer than alone, over the
    product's own time alone. Below 0 where it is further ahead."""

    def part(self, rows: int, weight_bytes: int) -> float:
        """Return what a product loses."""
        i, j = (min(bisect_left(x, y), len(x) - 1) for x, y in ((self.rows, rows), (self.weight_bytes, weight_bytes)))
        return self.parts[i][j]


@dataclass(frozen=True)
class Captured:
    """The content of a file."""

    captured_version: Version
    target: TargetName
    device: Label
    library: Label
    """Name and version of what the products were timed beside, such as torch 2.11.0."""
    wheel: Label
    """Version of the wheel whose products were timed."""
    date: Date
    num_products: Positive
    losses: CapturedLosses


def _check(found: Captured, target: str) -> None:
    losses = found.losses
    if found.target != target:
        raise DecodeError(f"it is of {found.target}; expected {target}")
    for name, edges in (("rows", losses.rows), ("weight_bytes", losses.weight_bytes)):
        if not edges or not all(map(lt, edges, edges[1:])):
            raise DecodeError(f"losses.{name} is {list(edges)}; expected edges that ascend, at least one")
    shape = [len(x) for x in losses.parts]
    if shape != [len(losses.weight_bytes)] * len(losses.rows):
        raise DecodeError(
            f"losses.parts has rows of {shape} parts; expected {len(losses.rows)} of {len(losses.weight_bytes)}"
        )


def read_captured(path: Path, target: str) -> Captured:
    """Read a file.

    Args:
        path: the file.
        target: the name of the target that it must be of.

    Raises:
        StoreError: the file cannot be read, is damaged, or of another version or target.
    """
    try:
        found: Captured = decode_version(Captured, parse_json(read_content(path)), "captured_version", CAPTURED_VERSION)
        _check(found, target)
    except DecodeError as error:
        raise StoreError(f"{path}: {error}; write it again with research.bench.captured_summary") from error
    return found


def captured_losses(target: str, folder: Path = COMMITTED) -> CapturedLosses | None:
    """Return what products lose on a target; None where nobody timed layers there.

    Raises:
        StoreError: as `read_captured`.
    """
    path = folder / f"{target}.json"
    return read_captured(path, target).losses if path.exists() else None


def write_captured(path: Path, captured: Captured) -> None:
    """Write a file; equal content is equal bytes.

    Raises:
        DecodeError: it is none that could be read again.
        OutputError: the file cannot be written.
    """
    _check(captured, captured.target)
    write_whole(path, write_json(captured))
