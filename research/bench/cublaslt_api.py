"""cuBLASLt's C API by ctypes, as much of it as one product needs: constants, structs, prototypes, finding the library.

Source of constants, structs and prototypes: cublasLt.h and cublas_api.h of nvidia-cublas 13.1.1.3 from PyPI (the same
in 13.1.0.3), and library_types.h of CUDA 13.0.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

LIBRARY = "libcublasLt.so.13"
MAJOR = 13

# cublas_api.h: cublasStatus_t, cublasOperation_t, cublasComputeType_t.
STATUS_SUCCESS = 0
OP_N = 0
OP_T = 1
COMPUTE_32F = 68
# library_types.h: cudaDataType.
CUDA_R_32F = 0
CUDA_R_16F = 2
CUDA_R_16BF = 14
# cublasLt.h: cublasLtMatmulDescAttributes_t (int32_t each) and cublasLtMatmulPreferenceAttributes_t.
DESC_TRANSA = 3
DESC_TRANSB = 4
PREF_MAX_WORKSPACE_BYTES = 1
"""uint64_t, 0 by default."""
PREF_MIN_ALIGNMENT_BYTES = {"a": 5, "b": 6, "c": 7, "d": 8}
"""uint32_t each, 256 by default."""
DEFAULT_ALIGNMENT_BYTES = 256


class Algorithm(ctypes.Structure):
    """`cublasLtMatmulAlgo_t`: 64 bytes."""

    _fields_ = (("data", c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """`cublasLtMatmulHeuristicResult_t`: 96 bytes."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves_count", c_float),
        ("reserved", c_int * 4),
    )


_ENUM = c_int
_DESCRIPTOR = c_void_p
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtMatmulDescCreate": (POINTER(_DESCRIPTOR), _ENUM, _ENUM),
    "cublasLtMatmulDescSetAttribute": (_DESCRIPTOR, _ENUM, c_void_p, c_size_t),
    "cublasLtMatmulDescDestroy": (_DESCRIPTOR,),
    "cublasLtMatrixLayoutCreate": (POINTER(_DESCRIPTOR), _ENUM, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (_DESCRIPTOR,),
    "cublasLtMatmulPreferenceCreate": (POINTER(_DESCRIPTOR),),
    "cublasLtMatmulPreferenceSetAttribute": (_DESCRIPTOR, _ENUM, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceDestroy": (_DESCRIPTOR,),
    # handle, operation, A, B, C, D, preference, how many are asked for, results, how many there are
    "cublasLtMatmulAlgoGetHeuristic": (
        *(c_void_p, *(_DESCRIPTOR,) * 6),
        *(c_int, POINTER(HeuristicResult), POINTER(c_int)),
    ),
    # handle, operation, alpha, A, its layout, B, its layout, beta, C, its layout, D, its layout, algorithm, workspace,
    # its bytes, stream
    "cublasLtMatmul": (
        *(c_void_p, _DESCRIPTOR, POINTER(c_float), c_void_p, _DESCRIPTOR, c_void_p, _DESCRIPTOR),
        *(POINTER(c_float), c_void_p, _DESCRIPTOR, c_void_p, _DESCRIPTOR),
        *(POINTER(Algorithm), c_void_p, c_size_t, c_void_p),
    ),
}
"""Arguments of the functions used, all of which give a `cublasStatus_t`."""


class CublasLtError(RuntimeError):
    """cuBLASLt is not there, or failed."""


def mapped(maps: str) -> list[Path]:
    """Give the libraries that a process has mapped, from the text of its /proc/self/maps."""
    rows = (line.split(maxsplit=5) for line in maps.splitlines())
    paths = (Path(row[5]) for row in rows if len(row) == 6)
    return list(dict.fromkeys(path for path in paths if path.name.startswith(LIBRARY)))


def installed(packages: Iterable[Path]) -> list[Path]:
    """Give where packages of torch's and NVIDIA's keep the library, for folders that hold such packages."""
    inside = ("nvidia/cu13/lib", "nvidia/cublas/lib", "torch/lib")
    return [folder / path / LIBRARY for folder in packages for path in inside]


def find_library() -> Path:
    """Find the library that torch uses: the one that this process has mapped, else the one installed beside torch.

    Raises:
        CublasLtError: it is in none of these places.
    """
    maps = Path("/proc/self/maps")
    loaded = mapped(maps.read_text(encoding="utf-8", errors="replace")) if maps.is_file() else []
    torch = find_spec("torch")
    beside = [Path(torch.origin).parents[1]] if torch is not None and torch.origin is not None else []
    places = installed(dict.fromkeys([*beside, *(Path(path) for path in sys.path if "-packages" in path)]))
    for path in [*loaded, *places]:
        if path.is_file():
            return path
    looked = ", ".join(str(path) for path in [maps, *places])
    raise CublasLtError(f"no {LIBRARY} was found; looked in {looked}; install torch built for CUDA {MAJOR}")


def load(path: Path) -> ctypes.CDLL:
    """Load the library and declare its functions.

    Raises:
        CublasLtError: it does not load, lacks a function, or is of another major release than the constants here.
    """
    try:
        library = ctypes.CDLL(str(path))
        library.cublasLtGetVersion.restype = c_size_t
        library.cublasLtGetStatusName.restype = ctypes.c_char_p
        for name, arguments in _PROTOTYPES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
    except (OSError, AttributeError) as error:
        raise CublasLtError(f"{path} does not load ({error}); expected cuBLASLt {MAJOR}") from error
    version = library.cublasLtGetVersion()
    if version // 10000 != MAJOR:
        raise CublasLtError(f"{path} is of version {version}; expected {MAJOR}xxxx, whose header the constants are of")
    return library


def check(library: ctypes.CDLL, name: str, status: int) -> None:
    """Raise what a call of the function `name` gave, but for success.

    Raises:
        CublasLtError: the status says so.
    """
    if status != STATUS_SUCCESS:
        raise CublasLtError(f"{name} gave {status} ({library.cublasLtGetStatusName(status).decode()})")


def pointer_to(value: c_uint32 | c_uint64 | c_int) -> tuple[Any, int]:
    """Give an attribute's value as the setters take it: its address and its bytes."""
    return ctypes.byref(value), ctypes.sizeof(value)
