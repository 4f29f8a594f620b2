"""How many products one launch computes, and what each has of memory."""

from __future__ import annotations

from enum import Enum


class Grouping(Enum):
    """How many products one launch computes, and what of memory each has; the value is the grouping's part of a tag.

    A batch and groups are counted alike: `num_groups`. Of grouped operations B, a bias and the scale factors of B are a
    stack, one for each group, and the offsets are int32 on the device: nothing waits for the host.
    """

    DENSE = "dense"
    """One product."""
    BATCHED = "batched"
    """Products of equal sizes: each operand has a stride from product to product, 0 where all share it."""
    GROUPED = "grouped"
    """Runs of rows of A and of D, as offsets say, each with a B of its own: the experts of a mixture."""
    GATHERED = "gathered"
    """The same, but row i of the runs is the row `index[i]` of A: the permutation of a mixture, inside the load."""
    K_GROUPED = "kgrouped"
    """Runs of k, as offsets say, each with a D of its own: the weight gradients of experts."""

    @property
    def has_offsets(self) -> bool:
        """Say whether groups are found by offsets, and may be of any size."""
        return self in (Grouping.GROUPED, Grouping.GATHERED, Grouping.K_GROUPED)

    @property
    def groups_rows(self) -> bool:
        """Say whether groups are runs of rows of D."""
        return self in (Grouping.GROUPED, Grouping.GATHERED)
