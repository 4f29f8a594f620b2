"""The library of the package, checked and loaded: its C API and its binding, both by ctypes."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from . import _files, errors

if TYPE_CHECKING:
    from typing import Any

_MISSES_VARIABLE = "AOT_GEMM_MISSES"
_MAX_PATH_BYTES = 4096
"""PATH_MAX of Linux; misses.cc leaves 16 bytes of it for a suffix, and 8 more for each process id."""
_ELF_START = b"\x7fELF\x02\x01\x01"
"""Magic number, 64 bits, little-endian, version 1. Source: System V ABI, ELF header, e_ident."""
_ELF_SHARED = 3
_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
"""By e_machine, the names that the operating system has for them."""


class Asked(NamedTuple):
    """What the binding's `plan` is asked, in its order."""

    operation: int
    layout: int
    m: int
    n: int
    k: int
    num_groups: int = 1
    """Products or groups."""
    flags: int = 0
    """Those of calls that ask something of results."""
    table: int = 0


def path() -> str:
    """Return where the library lies that answers here.

    Raises:
        PackError: the package has no kernels of its own, and there is no pack that fits.
    """
    folder = _files.kernels()
    return folder.path_of(folder.library)


def __getattr__(name: str) -> Any:
    if name == "LIBRARY":  # which pack it is of is known only where it is asked for
        return path()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _check_header(folder: _files.Folder) -> None:
    """Compare the library's size with the recorded one, and its ELF header with this machine: what can be had cheaply.

    Raises:
        CorruptLibraryError: it is missing, cut, no library, or for another machine.
    """
    library, header = folder.path_of(folder.library), folder.read_header(20)
    machine = _ELF_MACHINES.get(int.from_bytes(header[18:20], "little"))
    is_shared = int.from_bytes(header[16:18], "little") == _ELF_SHARED
    if not header.startswith(_ELF_START) or not is_shared or machine is None:
        folder.read_verified(folder.library)
        raise errors.CorruptLibraryError(f"{library} is no library for a machine that is known; reinstall the package")
    here = os.uname().machine if sys.platform == "linux" else sys.platform
    if here != machine and (here in _ELF_MACHINES.values() or sys.platform != "linux"):
        raise errors.CorruptLibraryError(
            f"{library} is for {machine}; this machine is {here}; install the wheel for this machine"
        )


def load(folder: _files.Folder, kind: type[ctypes.CDLL], functions: dict[str, Any]) -> ctypes.CDLL:
    """Load the library of a folder, and set what its functions return.

    Raises:
        CorruptLibraryError: it is damaged, missing, or not for this machine.
    """
    _check_header(folder)
    library = folder.path_of(folder.library)
    try:
        loaded = kind(library)
        for function, result in functions.items():
            getattr(loaded, function).restype = result
    except (OSError, AttributeError) as error:
        folder.read_verified(folder.library)
        raise errors.CorruptLibraryError(
            f"{library} does not load ({error}); the file is as it was built, so that it is not for this machine; "
            "install the wheel for this machine"
        ) from error
    return loaded


@cache
def library() -> ctypes.CDLL:
    """Load the library for its C API.

    Raises:
        CorruptLibraryError: it does not load.
    """
    texts = ("last_error", "version", "kernel_name", "table_target", "misses_file")
    functions = (*(f"aot_gemm_{name}" for name in texts), "aot_rows_kernel_name")
    return load(_files.kernels(), ctypes.CDLL, dict.fromkeys(functions, ctypes.c_char_p))


def misses_file() -> str | None:
    """Return the file of the miss log, or None where it is off; of a library not loaded yet, as loading it now would.

    tests/runtime compares the two.
    """
    if library.cache_info().currsize > 0:
        path: bytes | None = library().aot_gemm_misses_file()
        return None if path is None else os.fsdecode(path)
    value = os.environ.get(_MISSES_VARIABLE, "")
    if value and not value.startswith("/"):
        with suppress(OSError):  # where the directory was removed, the library takes the name as it is
            value = f"{os.getcwd()}/{value}"  # noqa: PTH109
    num_bytes = len(os.fsencode(value)) + 16 + 8 * value.count("%p")
    return value.replace("%p", str(os.getpid())) if value and num_bytes < _MAX_PATH_BYTES else None


@cache
def binding() -> dict[str, Any]:
    """Load the binding and return its functions by name.

    Raises:
        CorruptLibraryError: it does not load.
    """
    from . import _routes  # which needs this function

    library()
    bind = load(_files.kernels(), ctypes.PyDLL, {"aot_gemm_python_bind": ctypes.py_object}).aot_gemm_python_bind
    bind.argtypes = (ctypes.py_object, ctypes.py_object)
    functions: dict[str, Any] = bind(errors, _routes)
    return functions


def operation(tag: str) -> int:
    """Return the library's number of an operation.

    Raises:
        DtypeError: the library has no such operation.
    """
    number: int = library().aot_gemm_operation(tag.encode())
    check(max(-number, 0))
    return number


def device_table(device: int = -1) -> tuple[int, str]:
    """Return the index of the dispatch table that answers on a GPU (-1: the current one), and why.

    Raises:
        CorruptLibraryError: the library does not load.
        NoGpuError: there is no GPU or driver.
        ArchitectureError: the GPU is not of the architecture that the kernels are for.
        CudaError: CUDA failed.
    """
    table, reason = ctypes.c_int32(), ctypes.c_char_p()
    check(library().aot_gemm_device_table(ctypes.c_int32(device), ctypes.byref(table), ctypes.byref(reason)))
    return table.value, (reason.value or b"").decode()


def choices(device: int = -1) -> str:
    """Return the SHA-256 of all that decides which kernel a problem gets on a GPU (-1: the current one).

    Raises:
        CorruptLibraryError: the library does not load.
        NoGpuError: there is no GPU or driver.
        ArchitectureError: the GPU is not of the architecture that the kernels are for.
        CudaError: CUDA failed.
    """
    sha256 = ctypes.c_char_p()
    check(library().aot_gemm_choices(ctypes.c_int32(device), ctypes.byref(sha256)))
    return (sha256.value or b"").decode()


def check(status: int) -> None:
    """Raise the error of a status of the C API; 0 is none."""
    if status != 0:
        raise errors.OF_STATUS[status](library().aot_gemm_last_error().decode())
