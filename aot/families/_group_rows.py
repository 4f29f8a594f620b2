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
