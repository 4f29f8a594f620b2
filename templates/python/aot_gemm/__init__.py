"""Prebuilt matrix products for one GPU architecture: `linear`, `matmul`, and what they do for which shape.

Nothing is compiled, downloaded or written to disk, but for the miss log where the environment asks for one
(AOT_GEMM_MISSES=file; see aot_gemm.h). Importing this checks the sizes of its libraries; they are loaded with the first
use. So is what answers `plan`, `explain` and `info`, whose import would take longer than all else that a product needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _library
from ._constant import ConstantWeight
from ._operations import constant, linear, matmul, preload
from ._version import __version__
from .errors import (
    AotGemmError,
    ArchitectureError,
    CorruptLibraryError,
    CudaError,
    DeviceError,
    DtypeError,
    GradientError,
    NoGpuError,
    OperandError,
    ShapeError,
    StrideError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from ._table import Info, Plan, explain, info, plan

_library.check_sizes()

__all__ = [
    "AotGemmError",
    "ArchitectureError",
    "ConstantWeight",
    "CorruptLibraryError",
    "CudaError",
    "DeviceError",
    "DtypeError",
    "GradientError",
    "Info",
    "NoGpuError",
    "OperandError",
    "Plan",
    "ShapeError",
    "StrideError",
    "UnsupportedError",
    "__version__",
    "constant",
    "explain",
    "info",
    "linear",
    "matmul",
    "plan",
    "preload",
]

_OF_TABLE = {"Info", "Plan", "explain", "info", "plan"}


def __getattr__(name: str) -> Any:
    if name not in _OF_TABLE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _table

    globals().update({each: getattr(_table, each) for each in _OF_TABLE})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(globals().keys() | _OF_TABLE)
