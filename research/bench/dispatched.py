"""The installed wheel's library by its C API, as a caller has it: each problem goes to the kernel that it chooses."""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path

from aot.core.errors import DeviceError
from aot.core.operation import Operation
from aot.measure.call_structs import ProblemStruct
from aot.measure.kernel_library import KernelLibrary

REFUSALS = (2, 3, 4)
"""Statuses of a problem that the library does not take: AOT_GEMM_ERROR_OPERATION, _SHAPE and _STRIDE of aot_gemm.h."""


class SelectionStruct(ctypes.Structure):
    """`aot_gemm_selection_t`."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in ("kernel", "tier", "section", "index", "layout", "exchanged")),
        *((name, ctypes.c_int64) for name in "mnk"),
        *((name, ctypes.c_int32) for name in ("table", "reserved")),
    )


class RefusedError(DeviceError):
    """A problem that the wheel does not take, with the library's text."""


class Dispatched(KernelLibrary):
    """The library's own choice as the only kernel; satisfies `aot.measure.gpu.Kernels`.

    Raises:
        DeviceError: the file cannot be loaded, or is not a kernel library.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._kernel_names, self.names = self.names, ("wheel",)
        pointer = ctypes.POINTER(ProblemStruct)
        library = self._library
        library.aot_gemm_workspace_bytes.argtypes = [pointer, ctypes.POINTER(ctypes.c_size_t)]
        library.aot_gemm_launch.argtypes = [pointer, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        library.aot_gemm_select.argtypes = [pointer, ctypes.POINTER(SelectionStruct)]

    def has(self, operation: Operation) -> bool:
        """Say whether the wheel has kernels of an operation, in its layout or another."""
        try:
            self.operation(operation.call)
        except DeviceError:
            return False
        return True

    def _check(self, what: str, status: int) -> None:
        if status:
            kind = RefusedError if status in REFUSALS else DeviceError
            raise kind(f"{what} gave status {status}: {self._last_error()}")

    def kernel(self, bound: ProblemStruct) -> str:
        """Return the name of the kernel chosen.

        Raises:
            RefusedError: the wheel does not take the problem.
        """
        found = SelectionStruct(ctypes.sizeof(SelectionStruct))
        self._check("the choice of a kernel", self._library.aot_gemm_select(bound, ctypes.byref(found)))
        name: str = self._kernel_names[found.kernel]
        return name

    def workspace_bytes(self, kernel: int, bound: ProblemStruct) -> int:
        """Return the workspace in bytes of the kernel chosen.

        Raises:
            RefusedError: the wheel does not take the problem.
        """
        del kernel
        size = ctypes.c_size_t()
        self._check("the workspace query", self._library.aot_gemm_workspace_bytes(bound, ctypes.byref(size)))
        return size.value

    def launch(self, kernel: int, bound: ProblemStruct, workspace: int, workspace_bytes: int, stream: int) -> None:
        """Put a problem on a stream.

        Raises:
            RefusedError: the wheel does not take the problem.
            DeviceError: the launch failed.
        """
        del kernel
        self._check("the launch", self._library.aot_gemm_launch(bound, workspace or None, workspace_bytes, stream))


def library_of(package: str) -> Path:
    """Return the library of an installed wheel, by the package's name.

    Raises:
        DeviceError: there is no such package, or it has no library.
    """
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        raise DeviceError(f"cannot import {package}: {error}; install the wheel, or give its --package") from error
    found = sorted(Path(str(module.__file__)).parent.glob("lib*.so.*"))  # lib*.so beside it is for the linker alone
    if not found:
        raise DeviceError(f"{module.__file__} has no library beside it; build the wheel again")
    return found[0]
