"""Call the row operations of a built kernel library through its C API, templates/include/aot_gemm.h, by ctypes."""

from __future__ import annotations

import ctypes


class RowsTensorStruct(ctypes.Structure):
    """`aot_rows_tensor_t`."""

    _fields_ = (("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 3))


class RowsProblemStruct(ctypes.Structure):
    """`aot_rows_problem_t`, stated here alone in Python; a test compares it with the header through the C compiler."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        ("operation", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("flags", ctypes.c_uint64),
        ("eps", ctypes.c_float),
        ("weight_offset", ctypes.c_float),
        ("x", RowsTensorStruct),
        ("y", RowsTensorStruct),
        ("residual", RowsTensorStruct),
        ("residual_out", RowsTensorStruct),
        ("weight", RowsTensorStruct),
        ("bias", RowsTensorStruct),
        ("cos", RowsTensorStruct),
        ("sin", RowsTensorStruct),
        ("scale", RowsTensorStruct),
        ("heads", ctypes.c_int64),
        ("positions", ctypes.c_int64),
        ("rotary_dim", ctypes.c_int64),
    )


class RowsSelectionStruct(ctypes.Structure):
    """`aot_rows_selection_t`."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in ("kernel", "tier", "section", "index")),
        *((name, ctypes.c_int64) for name in ("rows", "cols")),
        *((name, ctypes.c_int32) for name in ("table", "reserved")),
    )


SCALE_GIVEN = 1
"""Flag of a problem whose scale is read. Source: aot_gemm.h, AOT_ROWS_SCALE_GIVEN."""

INTERLEAVED = 2
"""Flag of a problem whose pairs lie side by side. Source: aot_gemm.h, AOT_ROWS_INTERLEAVED."""
