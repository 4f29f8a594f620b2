"""Prebuilt matrix products for one GPU architecture: `linear`, `gated_linear`, `matmul`, and what they do for a shape.

Wheels may have kernels of what stands between products too: `rms_norm`, `layer_norm`, `silu_mul`, `gelu_tanh_mul`,
`rotary` and `quantize`; `rows` takes any of them by name, those of other packages too.

Nothing is compiled, downloaded or written to disk, but for the miss log where the environment asks for one
(AOT_GEMM_MISSES=file; see aot_gemm.h). Importing this compares the sizes of the package's files with those recorded
when they were built; `check` compares their content. The libraries are loaded with the first use. So is what answers
`check`, `plan`, `explain`, `info` and `preload`, whose import would take longer than all else that a product needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _files
from .errors import (
    AotGemmError,
    ArchitectureError,
    CheckpointError,
    CorruptLibraryError,
    CudaError,
    DeviceError,
    DtypeError,
    FormatError,
    GradientError,
    NoGpuError,
    OperandError,
    PackError,
    ReadOnlyError,
    ShapeError,
    StrideError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from typing import Any

    from ._check import CheckReport, check
    from ._explain import explain
    from ._factors import pack_factors, unpack_factors
    from ._manifest import Info, TableInfo, info
    from ._preload import preload
    from ._row_table import RowPlan, explain_rows, plan_rows
    from ._table import Plan, plan

_files.OWN.check_sizes()
try:
    from ._constant import ConstantWeight
    from ._operations import (
        constant,
        gated_linear,
        grouped_linear,
        linear,
        matmul,
        packed_gated_linear,
        packed_grouped_linear,
        packed_linear,
    )
    from ._rows import gelu_tanh_mul, layer_norm, quantize, rms_norm, rotary, rows, silu_mul
    from ._version import __version__
except Exception:
    from ._check import check

    check()  # names the file that is damaged; where none is, the error is as it was
    raise

__all__ = [
    "AotGemmError",
    "ArchitectureError",
    "CheckReport",
    "CheckpointError",
    "ConstantWeight",
    "CorruptLibraryError",
    "CudaError",
    "DeviceError",
    "DtypeError",
    "FormatError",
    "GradientError",
    "Info",
    "NoGpuError",
    "OperandError",
    "PackError",
    "Plan",
    "ReadOnlyError",
    "RowPlan",
    "ShapeError",
    "StrideError",
    "TableInfo",
    "UnsupportedError",
    "__version__",
    "check",
    "constant",
    "explain",
    "explain_rows",
    "gated_linear",
    "gelu_tanh_mul",
    "grouped_linear",
    "info",
    "layer_norm",
    "linear",
    "matmul",
    "pack_factors",
    "packed_gated_linear",
    "packed_grouped_linear",
    "packed_linear",
    "plan",
    "plan_rows",
    "preload",
    "quantize",
    "rms_norm",
    "rotary",
    "rows",
    "silu_mul",
    "unpack_factors",
]

_LATER = {
    "CheckReport": "_check",
    "check": "_check",
    "Info": "_manifest",
    "TableInfo": "_manifest",
    "Plan": "_table",
    "RowPlan": "_row_table",
    "explain": "_explain",
    "explain_rows": "_row_table",
    "info": "_manifest",
    "pack_factors": "_factors",
    "plan": "_table",
    "plan_rows": "_row_table",
    "preload": "_preload",
    "unpack_factors": "_factors",
}
"""The names that are imported with their first use, by their module."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(f".{_LATER[name]}", __name__)
    except Exception:
        from ._check import check

        check()  # as above
        raise
    globals()[name] = value = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | _LATER.keys())
