"""Prebuilt matrix products for one GPU architecture: `linear`, `matmul`, and what they do for which shape.

Nothing is compiled, downloaded or written to disk, but for the miss log where the environment asks for one
(AOT_GEMM_MISSES=file; see aot_gemm.h). Importing this checks the sizes of its libraries; they are loaded with the first
use.
"""

from __future__ import annotations

from . import _library
from ._operations import early_weights, linear, matmul, preload
from ._table import Info, Plan, explain, info, plan
from ._version import __version__
from .errors import (
    AotGemmError,
    ArchitectureError,
    CorruptLibraryError,
    CudaError,
    DeviceError,
    DtypeError,
    NoGpuError,
    ShapeError,
    StrideError,
)

_library.check_sizes()

__all__ = [
    "AotGemmError",
    "ArchitectureError",
    "CorruptLibraryError",
    "CudaError",
    "DeviceError",
    "DtypeError",
    "Info",
    "NoGpuError",
    "Plan",
    "ShapeError",
    "StrideError",
    "__version__",
    "early_weights",
    "explain",
    "info",
    "linear",
    "matmul",
    "plan",
    "preload",
]
