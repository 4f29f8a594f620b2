"""The order of tiles of a GEMM whose last, partial wave is split along k. Imports CUTLASS and quack.

Whole waves come first, one tile after another, as quack orders them. Then come the splits of the tiles that are left,
those of a tile side by side and in ascending order. A cluster takes every so-many-th of these items, from its own on.

quack's scheduler has no public method that says which tile a work index is, so that this module replaces the private
one, and nothing else of ours does. `tests/unit/families/test_sm90_stream_k.py` fails where a release of quack changes
it.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

import dataclasses
from typing import Any, NamedTuple

import cutlass
from cutlass import Constexpr, Int32, const_expr, cute
from quack.fast_math import FastDivmod
from quack.tile_scheduler import TileScheduler, WorkTileInfo

from aot.core.candidate import MIN_SPLITS_OF_TWO_WAVES

REPLACED = {"_delinearize_work_idx": ["self", "work_idx", "bidz", "is_valid", "block_zero_only", "loc", "ip"]}
"""The private methods of `TileScheduler` that are overridden here, with their parameters."""


class TailArguments(NamedTuple):
    """What the scheduler is made of, on the host."""

    quacks: Any
    """quack's `TileSchedulerArguments`, without splits and of one batch."""
    num_clusters: Any
    """Int32: clusters of a whole wave."""
    most_splits: int
    """Most splits of a tile of the last wave."""


class TailItem(NamedTuple):
    """What a work item is, in a kernel."""

    tile: Any
    """Int32: which of the tiles of the last wave; 0 for a tile of a whole wave."""
    split: Any
    """Int32: which of the tile's splits."""
    last: Any
    """Int32: the tile's last split, which stores it; 0 for a tile that is not split."""


@cute.jit
def count_splits(tail: Int32, num_clusters: Int32, most: Constexpr[int]) -> Any:
    """Count the splits of each tile of the last wave: the twin of `aot.core.candidate.tail_splits`."""
    splits = Int32(1)
    if tail > 0:
        # The compiler divides ahead of the condition, so that the divisor must never be 0.
        splits = cutlass.min(Int32(most), num_clusters // cutlass.max(tail, 1))
        if const_expr(most >= MIN_SPLITS_OF_TWO_WAVES):  # noqa: SIM102 - known while tracing, the next is not
            if splits == 1 and MIN_SPLITS_OF_TWO_WAVES * tail <= 2 * num_clusters:
                splits = Int32(MIN_SPLITS_OF_TWO_WAVES)
    return splits


class TailScheduler(TileScheduler):
    """quack's scheduler of one batch, whose tiles' third coordinate says which split of which tail tile an item is.

    The coordinate is 0 for a tile that is not split, else 1 more than the item's place behind the whole waves.
    """

    @dataclasses.dataclass
    class Params(TileScheduler.Params):
        """quack's parameters, how many tiles are of whole waves, and the splits of each of the others."""

        num_whole: Any = None
        splits: Any = None

    @staticmethod
    def to_underlying_arguments(args: TailArguments, *, loc: Any = None, ip: Any = None) -> Any:
        """Make the kernel's parameters; to be called while tracing."""
        quacks = TileScheduler.Params.create(args.quacks, loc=loc, ip=ip)
        num_tiles = cute.size(quacks.problem_shape_ncluster_mnl)
        tail = num_tiles % args.num_clusters
        splits = FastDivmod(count_splits(tail, args.num_clusters, args.most_splits))
        fields = {x.name: getattr(quacks, x.name) for x in dataclasses.fields(quacks)}
        return TailScheduler.Params(**fields, num_whole=num_tiles - tail, splits=splits)

    @staticmethod
    def get_grid_shape(params: Any, max_active_clusters: Int32, *, loc: Any = None, ip: Any = None) -> Any:
        """Return the grid: a cluster for each item, but no more than fit the device at once."""
        del loc, ip
        num_tiles = cute.size(params.problem_shape_ncluster_mnl)
        num_items = params.num_whole + (num_tiles - params.num_whole) * params.splits.divisor
        rows, columns, depth = params.cluster_shape_mnk
        return rows, columns, depth * cutlass.min(num_items, max_active_clusters)

    @cute.jit
    def _delinearize_work_idx(
        self,
        work_idx: Int32,
        bidz: Any = None,
        is_valid: Any = None,
        *,
        block_zero_only: bool = False,
        loc: Any = None,
        ip: Any = None,
    ) -> Any:
        """Return an item's tile, with the third coordinate in the batch's place, where messages carry it."""
        tile, item = work_idx, Int32(0)
        if work_idx >= self.params.num_whole and self.params.splits.divisor > 1:
            place = work_idx - self.params.num_whole
            tail, _ = divmod(place, self.params.splits)
            tile, item = self.params.num_whole + tail, place + 1
        quacks = TileScheduler._delinearize_work_idx(  # noqa: SLF001 - this module's purpose
            self, tile, bidz, is_valid, block_zero_only=block_zero_only, loc=loc, ip=ip
        )
        return WorkTileInfo((quacks.tile_idx[0], quacks.tile_idx[1], None, item), quacks.is_valid_tile)

    def initial_work_tile_info(self, *, loc: Any = None, ip: Any = None) -> Any:
        """Return the first item of this cluster."""
        return _in_third_place(super().initial_work_tile_info(loc=loc, ip=ip))

    def get_current_work(self, *, loc: Any = None, ip: Any = None) -> Any:
        """Return the item of the message that is next."""
        return _in_third_place(super().get_current_work(loc=loc, ip=ip))

    @cute.jit
    def find_item(self, coordinate: Int32) -> Any:
        """Say what an item is by its third coordinate."""
        tile, split, last = Int32(0), Int32(0), Int32(0)
        if coordinate > 0:
            tile, split = divmod(coordinate - 1, self.params.splits)
            last = self.params.splits.divisor - 1
        return TailItem(tile, split, last)

    @cute.jit
    def range_of_k_tiles(self, k_tiles: Int32, coordinate: Int32) -> Any:
        """Return the first k tile of an item, and how many it has; the first splits take what does not divide."""
        first, count = Int32(0), Int32(k_tiles)
        if coordinate > 0:
            _, split = divmod(coordinate - 1, self.params.splits)
            least, rest = divmod(Int32(k_tiles), self.params.splits)
            first = split * least + cutlass.min(split, rest)
            count = least + Int32(split < rest)
        return first, count


def _in_third_place(work: Any) -> Any:
    """Move an item's coordinate from the batch's place to its own."""
    row, column, _, item = work.tile_idx
    return WorkTileInfo((row, column, item, Int32(0)), work.is_valid_tile)
