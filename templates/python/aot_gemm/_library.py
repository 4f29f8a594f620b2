"""The library of the package: found, checked and loaded; its C API and its binding, both by ctypes."""

from __future__ import annotations

import ctypes
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from . import errors
from ._version import ABI_VERSION

MODULE = __name__.split(".", maxsplit=1)[0]
DIRECTORY = Path(__file__).resolve().parent
LIBRARY = DIRECTORY / f"lib{MODULE}.so.{ABI_VERSION}"


class Tensor(ctypes.Structure):
    """`aot_gemm_tensor_t` of aot_gemm.h."""

    _fields_ = (("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 2))


class Problem(ctypes.Structure):
    """`aot_gemm_problem_t` of aot_gemm.h."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        ("dtype", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("a", Tensor),
        ("b", Tensor),
        ("d", Tensor),
        ("flags", ctypes.c_uint64),
    )


class Selection(ctypes.Structure):
    """`aot_gemm_selection_t` of aot_gemm.h."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        ("kernel", ctypes.c_int32),
        ("tier", ctypes.c_int32),
        ("section", ctypes.c_int32),
        ("index", ctypes.c_int32),
        ("layout", ctypes.c_int32),
        ("exchanged", ctypes.c_int32),
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
    )


@cache
def built() -> dict[str, dict[str, Any]]:
    """Give the size in bytes and the SHA-256 of each library, as recorded when they were built."""
    path = DIRECTORY / "_build.json"
    try:
        entries: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise errors.CorruptLibraryError(f"{path} cannot be read ({error}); reinstall the package") from error
    return entries


def check_sizes() -> None:
    """Compare the libraries' sizes with those recorded: what a copy cut short shows at once.

    Raises:
        CorruptLibraryError: one is missing or of another size.
    """
    expected = built()[LIBRARY.name]["num_bytes"]
    try:
        size = LIBRARY.stat().st_size
    except OSError as error:
        raise errors.CorruptLibraryError(
            f"{LIBRARY} is missing ({error.strerror}); expected {expected} bytes; reinstall the package"
        ) from error
    if size != expected:
        raise _corrupt(LIBRARY, "differs from what was built")


def _corrupt(path: Path, what: str) -> errors.CorruptLibraryError:
    import hashlib  # here, since only this needs it

    expected = built()[path.name]
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    intact = sha256 == expected["sha256"]
    return errors.CorruptLibraryError(
        f"{path} {what}: {len(content)} bytes, sha256 {sha256}; "
        f"expected {expected['num_bytes']} bytes, sha256 {expected['sha256']}; "
        + ("the file is intact, so that it is not for this machine" if intact else "reinstall the package")
    )


@cache
def library() -> ctypes.CDLL:
    """Load the C library.

    Raises:
        CorruptLibraryError: it does not load.
    """
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise _corrupt(LIBRARY, f"does not load ({error})") from error
    loaded.aot_gemm_last_error.restype = ctypes.c_char_p
    loaded.aot_gemm_version.restype = ctypes.c_char_p
    loaded.aot_gemm_misses_file.restype = ctypes.c_char_p
    return loaded


def misses_file() -> str | None:
    """Give the file of the miss log, or None where it is off."""
    path: bytes | None = library().aot_gemm_misses_file()
    return None if path is None else os.fsdecode(path)


@cache
def binding() -> dict[str, Any]:
    """Load the binding; gives its functions by name.

    Raises:
        CorruptLibraryError: it does not load.
    """
    from . import _routes  # which needs this function

    library()
    try:
        bind = ctypes.PyDLL(str(LIBRARY)).aot_gemm_python_bind
    except (OSError, AttributeError) as error:
        raise _corrupt(LIBRARY, f"does not load ({error})") from error
    bind.restype = ctypes.py_object
    bind.argtypes = (ctypes.py_object, ctypes.py_object)
    functions: dict[str, Any] = bind(errors, _routes)
    return functions


def check(status: int) -> None:
    """Raise the error of a status of the C API; 0 is none."""
    if status != 0:
        raise errors.OF_STATUS[status](library().aot_gemm_last_error().decode())
