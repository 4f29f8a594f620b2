"""The study `tiles`: kernels of ours with the tiles and clusters of those that a library chose.

cuBLAS has hundreds of kernels, and computes which one a size gets. Where its choice is faster than the best kernel of a
selection, the tile that it takes is often in our space and was never timed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli.options import TARGET, Command, options
from aot.cli.output import tell
from aot.compile.legal_keys import legal_keys
from aot.core.candidate import KernelKey
from aot.core.errors import StoreError
from aot.core.operation import Operation
from aot.core.target import load_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aot.core.target import Target

NAME = re.compile(
    r"nvjet_sm90_[a-z]+_(\d+)x(\d+)_\d+x\d+_(\d)x(\d)_[vh]_bz(?:_coop[AB])?(?:_algo\d+)?(_splitK)?_[TN]{2}([TN])"
)
"""A kernel of cuBLAS for Hopper: its tile along n and along m, since torch hands it the product's transpose; k of a
stage and stages; its cluster along n and m; whether k is split; whether it stores D's transpose. Source: names, grids
and sizes of 32 products that torch 2.11 launched on an H200 (research/log/2026-11-30-library-tiles.md)."""

SPLITS = (2, 4)
"""Splits of k that are listed where the library splits it, whose number the name does not say."""

CLUSTERS_OF_ONE_SIDE = ((4, 1), (1, 4))
"""What stands for a cluster of several rows and columns in families that have none."""


@dataclass(frozen=True)
class LibraryTile:
    """A library's kernel in our terms."""

    tile: tuple[int, int]
    cluster: tuple[int, int]
    swap_ab: bool
    is_split: bool

    @staticmethod
    def of(name: str) -> LibraryTile | None:
        """Read a kernel's name; None where it is another kind of kernel."""
        found = NAME.search(name)
        if found is None:
            return None
        along_n, along_m, cluster_n, cluster_m = map(int, found.groups()[:4])
        swap_ab = found[6] == "T"
        tile, cluster = (along_n, along_m), (cluster_n, cluster_m)
        return LibraryTile(
            tile if swap_ab else tile[::-1], cluster if swap_ab else cluster[::-1], swap_ab, bool(found[5])
        )

    def has(self, key: KernelKey) -> bool:
        """Say whether a kernel of ours has this tile, this cluster or what stands for it, and splits as this does."""
        knobs = key.candidate.gemm
        clusters = {self.cluster, *(CLUSTERS_OF_ONE_SIDE if min(self.cluster) > 1 else ())}
        return (
            (knobs.tile_m, knobs.tile_n) == self.tile
            and (knobs.cluster_m, knobs.cluster_n) in clusters
            and knobs.swap_ab is self.swap_ab
            and knobs.split_k in (SPLITS if self.is_split else (1,))
        )


def alike(names: Iterable[str], operation: Operation, target: Target) -> list[KernelKey]:
    """List the legal kernels of an operation that are like those of some names."""
    tiles = {x for x in map(LibraryTile.of, names) if x is not None}
    keys: Sequence[Any] = legal_keys((operation,), target)
    return [x for x in keys if isinstance(x, KernelKey) and any(y.has(x) for y in tiles)]


def read_names(path: Path) -> tuple[Operation, list[str]]:
    """Read what `research/bench/library_kernels.py` wrote: the operation, and the names of its kernels.

    Raises:
        StoreError: the file cannot be read, or is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {x.tag: x for x in Operation}[content["operation"]], [
            name for row in content["kernels"] for name in row[3]
        ]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        text = f"cannot read the kernels in {path}: {error!r}; give what research/bench/library_kernels.py wrote"
        raise StoreError(text) from error


@click.command(name="tiles", cls=Command, axes=())
@options(TARGET)
@click.argument("path", type=click.Path(path_type=Path))
def tiles(path: Path, target: str) -> None:
    """List kernels like those in PATH, with commas between, for `aot tune --kernels`.

    Says on standard error how many of the library's kernels were understood.
    """
    operation, names = read_names(path)
    found = alike(names, operation, load_target(target))
    understood = sum(LibraryTile.of(x) is not None for x in names)
    if not found:
        text = f"none of the {len(names)} kernels in {path} has a tile of {operation.tag} on {target}"
        raise StoreError(f"{text}, {understood} have names that say one; expected kernels of cuBLAS (nvjet_sm90_*)")
    tell(f"{len(found)} kernels like those of {understood} of {len(names)} names")
    click.echo(",".join(x.candidate.name for x in found))
