"""Call the row operations of a built kernel library through its C API, templates/include/aot_gemm.h, by ctypes."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from aot.core.errors import DeviceError
from aot.measure.kernel_library import CURRENT_DEVICE

if TYPE_CHECKING:
    from pathlib import Path

    from aot.kinds.rows.operation import RowOperation


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

ROUND_NORM = 4
"""Flag of a problem whose normalised rows are rounded to X's type. Source: aot_gemm.h, AOT_ROWS_ROUND_NORM."""


def tensor_of(address: int, *strides: int) -> RowsTensorStruct:
    """Return a tensor as the library takes it; strides are in elements."""
    return RowsTensorStruct(address, (*strides, *(0,) * (3 - len(strides))))


class RowLibrary:
    """A library's row kernels; satisfies `RowKernels`. Its failures are DeviceErrors."""

    def __init__(self, path: Path) -> None:
        """Load a library.

        Raises:
            DeviceError: it cannot be loaded here, or has no row operations.
        """
        try:
            self._library = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(self._library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise DeviceError(f"cannot load {path}: {error}; build it for this machine") from error

    def problem(self, operation: RowOperation) -> RowsProblemStruct:
        """Return an empty problem of an operation, on the current device.

        Raises:
            DeviceError: the library has no kernels of it.
        """
        number = self._library.aot_rows_operation(operation.tag.encode())
        if number < 0:
            raise DeviceError(f"{operation.tag}: {self._error()}")
        return RowsProblemStruct(ctypes.sizeof(RowsProblemStruct), number, CURRENT_DEVICE)

    def launch(self, kernel: int, problem: RowsProblemStruct, stream: int) -> None:
        """Enqueue a kernel, by its index.

        Raises:
            DeviceError: the library refused it, or the launch failed.
        """
        if self._library.aot_rows_launch_kernel(kernel, ctypes.byref(problem), stream) != 0:
            raise DeviceError(f"row kernel {kernel}: {self._error()}")

    def _error(self) -> str:
        text: bytes = self._library.aot_gemm_last_error()
        return text.decode(errors="replace")


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "aot_rows_operation": (ctypes.c_int32, [ctypes.c_char_p]),
    "aot_rows_launch_kernel": (ctypes.c_int, [ctypes.c_int32, ctypes.POINTER(RowsProblemStruct), ctypes.c_void_p]),
    "aot_gemm_last_error": (ctypes.c_char_p, []),
}
