"""The arguments of a kernel's C entry: the family builds it from them, the manifest holds them, the runtime obeys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.constraints import Word

if TYPE_CHECKING:
    from aot.core.operation import Operation


class Argument(Word):
    """One argument."""

    A = "a"
    """Tensor (m, k)."""
    B = "b"
    """Tensor (n, k)."""
    D = "d"
    """Tensor (m, n)."""
    BIAS = "bias"
    """Tensor (n), contiguous, of D's type."""
    WORKSPACE = "workspace"
    """Float32 tensor, one-dimensional, as `Workspace` sizes it."""
    PREFETCH_B = "prefetch_b"
    """int32: nonzero if the kernel may read B before the kernel in front has ended, which must not have written it."""
    STREAM = "stream"
    """CUstream."""


Signature = tuple[Argument, ...]


def signature_of(operation: Operation, *, has_workspace: bool, prefetches_b: bool) -> Signature:
    """Return the signature of a kernel."""
    optional = ((Argument.BIAS, operation.has_bias), (Argument.WORKSPACE, has_workspace))
    tensors = [Argument.A, Argument.B, Argument.D, *(argument for argument, is_there in optional if is_there)]
    return (*tensors, *([Argument.PREFETCH_B] if prefetches_b else []), Argument.STREAM)
