"""The GEMM of `sm90_prefetch_b` with the epilogues of `_epilogue.py`. Imports CUTLASS and quack.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from aot.families._epilogue_kernel import EpilogueMixin
from aot.families._prefetch_b_kernel import GemmPrefetchBSm90


class GemmPrefetchBEpilogueSm90(EpilogueMixin, GemmPrefetchBSm90):
    """`GemmPrefetchBSm90` with an operation's epilogue, which is read after A, and so after the wait."""

    def view_b(self, b: Any) -> Any:
        """Return the kernel's B as it is."""
        return b
