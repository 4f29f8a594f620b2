"""Compiled kernels, as what verifies and measures knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.families import any_family_of
from aot.kinds.registry import kind_of

if TYPE_CHECKING:
    from aot.compile.artifact import AnyKernel
    from aot.kinds.kind import Tuned


def tuned_kernel(kernel: AnyKernel) -> Tuned:
    """Return what verifying and measuring need to know of a compiled kernel of any kind."""
    tuned_type: Any = kind_of(kernel.operation).tuned_type
    found: Tuned = tuned_type.of(kernel, is_fallback=any_family_of(kernel.candidate).is_fallback)
    return found
