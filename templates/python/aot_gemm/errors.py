"""Errors of this package. Each says what failed, the value got, what was expected and what to do."""

from __future__ import annotations


class AotGemmError(Exception):
    """Base of every error of this package."""


class DtypeError(AotGemmError, TypeError):
    """An operand that is no tensor, or of an element type that there are no kernels for."""


class ShapeError(AotGemmError, ValueError):
    """Shapes that do not make a product, or that are too large."""


class StrideError(AotGemmError, ValueError):
    """A tensor whose memory is not one matrix, or an output that overlaps itself."""


class DeviceError(AotGemmError, RuntimeError):
    """An operand that is not in GPU memory, or operands on different GPUs."""


class OperandError(AotGemmError, TypeError):
    """An operand that is no plain memory of its own, as wrappers and sparse tensors, or an output that is read-only.

    A factor, too, that is missing, or that goes with other element types.
    """


class FormatError(AotGemmError, ValueError):
    """A weight, or its parts, that a narrow format does not have: extents, types or codes."""


class CheckpointError(AotGemmError, ValueError):
    """A folder of packed weights that is damaged or incomplete, or that does not go with a model."""


class GradientError(AotGemmError, RuntimeError):
    """An operand whose gradient torch would record, which this package does not."""


class ReadOnlyError(AotGemmError, RuntimeError):
    """A write of what is computed and not held, as the weight of 16 bits that a quantised one stands for."""


class UnsupportedError(AotGemmError, NotImplementedError):
    """A product, or an argument of torch's function, that this package has no kernels for."""


class NoGpuError(AotGemmError, RuntimeError):
    """No GPU, no driver, or a driver that is too old."""


class ArchitectureError(AotGemmError, RuntimeError):
    """A GPU of another compute capability than the kernels were built for."""


class CudaError(AotGemmError, RuntimeError):
    """A CUDA call that failed."""


class CorruptLibraryError(AotGemmError, ImportError):
    """A library of this package that is damaged, missing, or not for this machine."""


class PackError(AotGemmError, ImportError):
    """No pack of kernels, one that does not go with this package, or one that is installed twice."""


OF_STATUS = (
    AotGemmError,
    AotGemmError,
    UnsupportedError,
    ShapeError,
    StrideError,
    NoGpuError,
    ArchitectureError,
    CudaError,
    AotGemmError,
    CorruptLibraryError,
)
"""Class of each aot_gemm_status_t of aot_gemm.h; tests/runtime compares the two."""


def show(value: object) -> str:
    """Write a value for a message: in one line, not too long."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - whatever it is, the message is about the argument
        return "a value that has no text"
    return text if len(text) <= 80 else f"{text[:77]}..."
