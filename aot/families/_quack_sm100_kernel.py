"""quack's Blackwell GEMM, waiting for the kernel in front also where it loads nothing. Imports CUTLASS and quack."""

from __future__ import annotations

from typing import Any

from cutlass import cute
from quack.gemm_default_epi import GemmDefaultSm100


class GemmSplitSm100(GemmDefaultSm100):
    """`GemmDefaultSm100` whose splits without k tiles wait for the kernel in front before they touch the workspace."""

    def epilogue_split_k(self, *args: Any, **kwargs: Any) -> Any:
        """Store a tile or its sums as quack does, where there are splits after a wait for the kernel in front.

        A split without k tiles has no loads that would have waited, but writes to the workspace.
        """
        if self.split_k > 1:
            cute.arch.griddepcontrol_wait()
        return super().epilogue_split_k(*args, **kwargs)
