"""quack's Hopper GEMM, waiting for the kernel in front also where it loads nothing. Imports CUTLASS and quack.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cutlass import cute
from quack.gemm_default_epi import GemmDefaultSm90


class GemmSplitSm90(GemmDefaultSm90):
    """`GemmDefaultSm90` whose splits without k tiles wait for the kernel in front before they touch the workspace.

    quack's warps that multiply wait for it through the loads, which begin after it. A split beyond the last k tile has
    no loads: its epilogue would read flags and write partial sums while the kernel in front may still use that memory.
    """

    def mma(self, *args: Any, **kwargs: Any) -> Any:
        """Multiply as quack does, after a wait of the multiplying warps' own where there are splits."""
        if self.split_k > 1:
            cute.arch.griddepcontrol_wait()
        return super().mma(*args, **kwargs)
