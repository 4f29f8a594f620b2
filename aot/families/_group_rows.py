"""Which rows a group has, and in which order quack's kernels take the tiles of all groups. Imports CUTLASS and quack.

The ends of the groups lie on the device, where an earlier kernel may have written them: nothing of them is read before
that kernel has ended, and whatever they are, no group reaches past the rows that there are. What lies behind the end of
a group is loaded, but never stored.

quack's private methods that are overridden here are named in REPLACED. `tests/unit/families/test_group_rows.py` fails
where a release of quack changes one.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

import cutlass
from cutlass import Constexpr, Int32, cute
from quack.tile_scheduler import TileScheduler, VarlenMTileScheduler

REPLACED = {
    "create": ["params", "sched_smem", "scheduler_pipeline", "is_scheduler_warp", "throttle_barrier", "loc", "ip"],
    "_get_num_m_blocks": ["self", "lane", "bidb_start", "block_size"],
    "get_split_k_tile_range": ["self", "k_tile_total", "split_idx", "loc", "ip"],
}
"""The methods of quack's schedulers that are overridden here, with their parameters."""


class Starts:
    """Where the groups start in what is grouped: one more element than there are groups, the last one where they end.

    It stands where quack takes a tensor of them.
    """

    def __init__(self, offsets: Any, num_groups: Any, extent: Any) -> None:
        """Keep what they are computed from.

        Args:
            offsets: int32 on the device, where each group ends; with one element more, where the first one starts
                stands in front.
            num_groups: Int32.
            extent: Int32, of what is grouped: rows, or k.
        """
        self.offsets, self.num_groups, self.extent = offsets, num_groups, extent

    @property
    def shape(self) -> tuple[Any]:
        """Return the number of elements."""
        return (self.num_groups + 1,)

    def __getitem__(self, group: Any) -> Any:
        """Return where a group starts, from 0 to the extent."""
        position = group + self.offsets.shape[0] - self.num_groups - 1
        read = self.offsets[cutlass.max(position, 0)]
        inside = cutlass.min(cutlass.max(read, 0), self.extent)
        return cutlass.select_(position < 0, Int32(0), inside)

    def __extract_mlir_values__(self) -> list[Any]:
        """Return the values of which it is made, as CuTe DSL asks for."""
        return [value for part in self._parts() for value in cutlass.extract_mlir_values(part)]

    def __new_from_mlir_values__(self, values: list[Any]) -> "Starts":
        """Make it of other values of the same kinds, as CuTe DSL asks for."""
        made = []
        for part in self._parts():
            size = len(cutlass.extract_mlir_values(part))
            made.append(cutlass.new_from_mlir_values(part, values[:size]))
            values = values[size:]
        return Starts(*made)

    def _parts(self) -> tuple[Any, Any, Any]:
        return self.offsets, self.num_groups, self.extent


class RowScheduler(VarlenMTileScheduler):
    """quack's order of the tiles of groups of rows, which waits for the kernel in front before it reads offsets."""

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Any:
        """Make it in a warp of the kernel, after a wait of that warp's own: each reads where the groups start."""
        cute.arch.griddepcontrol_wait()
        return super().create(*args, **kwargs)

    @cute.jit
    def _get_num_m_blocks(self, lane: Int32, bidb_start: Int32, block_size: Constexpr[int]) -> Any:
        """Count the tiles of rows of a group; one that would end before it starts has none."""
        return cutlass.max(VarlenMTileScheduler._get_num_m_blocks(self, lane, bidb_start, block_size), 0)  # noqa: SLF001 - what is overridden


class DepthScheduler(TileScheduler):
    """quack's order of the tiles of groups along k, which waits for the kernel in front before it reads offsets."""

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Any:
        """Make it in a warp of the kernel, after a wait of that warp's own: each reads where the groups start."""
        cute.arch.griddepcontrol_wait()
        return super().create(*args, **kwargs)

    def get_split_k_tile_range(self, k_tile_total: Any, split_idx: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """Return a group's first tile along k and how many there are; one that would end before it starts has none."""
        del split_idx, loc, ip
        return 0, cutlass.max(k_tile_total, 0)
