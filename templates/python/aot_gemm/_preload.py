"""Loading before the first call: all kernels, or those of the operations that a program uses."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from . import _library, errors
from ._check import check

_MAX_GPUS = 64
"""As many as a library knows: kMaxDevices of devices.h."""


def preload(device: int = -1, operations: Collection[str] | None = None) -> None:
    """Check the package's files and load kernels onto a GPU now (-1: the current one), not at their first use.

    After it, products of tensors in GPU memory open no file, unless AOT_GEMM_MISSES names one; where operations were
    named, theirs.

    Args:
        device: the GPU's ordinal.
        operations: tags as `Plan.operation` and `RowPlan.operation` have them, such as ["bf16", "bf16_rms_norm"], where
            memory is scarce: the kernels of others are loaded when a call needs them. By default all kernels.

    Raises:
        DeviceError: the device is no ordinal of a GPU.
        CorruptLibraryError: a file of the package is missing or damaged; see `check`.
        UnsupportedError: there are no kernels of an operation.
        NoGpuError: there is no GPU or driver.
        ArchitectureError: the GPU is not of the architecture that this wheel is for.
        CudaError: CUDA failed.
    """
    device = _ordinal(device)
    check()
    asked = None if operations is None else _known_operations(operations, _library.here(device))
    for library in _library.here(device):
        library.preload(device, asked)
    _library.binding()
    from . import _request, _row_request  # noqa: F401 - what a call that is refused or copied needs


def _ordinal(device: object) -> int:
    """Return the ordinal of a GPU, -1 for the current one (DeviceError where it is none)."""
    if isinstance(device, int) and not isinstance(device, bool) and -1 <= device < _MAX_GPUS:
        return device
    raise errors.DeviceError(
        f"preload: the device is {errors.show(device)}; expected the ordinal of a GPU, an integer from 0 to "
        f"{_MAX_GPUS - 1}, or -1 for the current one; of a torch.device it is .index"
    )


def _known_operations(operations: Collection[str], libraries: Sequence[_library.Library]) -> tuple[str, ...]:
    """Return the tags of operations, of which each has kernels (UnsupportedError, with those that there are)."""
    asked = (operations,) if isinstance(operations, str) else tuple(operations)
    for tag in asked:
        if not isinstance(tag, str):
            raise errors.UnsupportedError(
                f"preload: got the operation {errors.show(tag)}; expected a tag such as 'bf16'"
            )
        if not any(x.has(tag) or x.has_rows(tag) for x in libraries):
            libraries[0].operation(tag)
    return asked
