"""cuBLAS's own product through its C API by ctypes, for machines without torch.

Source of constants and prototypes: cublas_api.h of nvidia-cublas 13.1.1.3, and library_types.h of CUDA 13.0; those of
cuBLAS 12 are the same.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.errors import DeviceError
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.reference import is_16_bit_product
from aot.core.signature import Argument
from aot.kinds.trials import trial_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aot.core.operands import GemmCall, Tensor
    from aot.core.work import AnyOperation
    from aot.kinds.trial import Baseline

NAMES = ("libcublas.so.13", "libcublas.so.12")
OP_N, OP_T = 0, 1
COMPUTE_32F = 68
GEMM_DEFAULT = -1
CUDA_TYPE = {ElementType.FLOAT16: 2, ElementType.BFLOAT16: 14}
WORKSPACE_BYTES = 32 << 20
"""What cuBLAS takes of a Hopper by default; given to it, so that a capture holds no allocation. Source: cuBLAS 13
documentation, cublasSetWorkspace."""

_SIGNATURES: dict[str, list[Any]] = {
    "cublasCreate_v2": [POINTER(c_void_p)],
    "cublasGetVersion_v2": [c_void_p, POINTER(c_int)],
    "cublasSetStream_v2": [c_void_p, c_void_p],
    "cublasSetWorkspace_v2": [c_void_p, c_void_p, c_size_t],
    "cublasGemmEx": [
        *(c_void_p, c_int, c_int, c_int, c_int, c_int, POINTER(c_float)),
        *(c_void_p, c_int, c_int, c_void_p, c_int, c_int, POINTER(c_float)),
        *(c_void_p, c_int, c_int, c_int, c_int),
    ],
}


@dataclass(frozen=True)
class _Factor:
    """One of the two matrices that cuBLAS multiplies, which are column-major or the transpose of one that is."""

    address: int
    operation: int
    leading: int

    @staticmethod
    def of(tensor: Tensor, *, is_transposed: bool) -> _Factor:
        """Return a matrix, or its transpose."""
        is_row_major = tensor.matrix.column_stride == 1
        leading = tensor.matrix.row_stride if is_row_major else tensor.matrix.column_stride
        return _Factor(tensor.address, OP_N if is_row_major == is_transposed else OP_T, leading)


@dataclass(frozen=True)
class _Bound:
    """One call: D transposed, (n, m), is B (n, k) times A transposed, (k, m)."""

    m: int
    n: int
    k: int
    cuda_type: int
    left: _Factor
    right: _Factor
    d: int
    leading: int


def _places() -> Iterator[str]:
    """List where the library may be: what the loader finds, then the folders of NVIDIA's packages for Python."""
    yield from NAMES
    spec = find_spec("nvidia")
    for folder in map(Path, spec.submodule_search_locations or () if spec else ()):
        for name in NAMES:
            yield from (str(path) for path in sorted(folder.glob(f"*/lib/{name}")))


class CublasLibrary:
    """cuBLAS's product of 16-bit operands: a library of one kernel, `aot.measure.gpu.Library`.

    Args:
        library: libcublas, loaded.
        stream: handle of the stream that everything runs on.
        workspace: address of WORKSPACE_BYTES of device memory.

    Raises:
        DeviceError: it cannot be used on this device.
    """

    def __init__(self, library: ctypes.CDLL, stream: int, workspace: int) -> None:
        self._library, self._handle = library, c_void_p()
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = c_int, arguments
        version = c_int()
        self._check("cublasCreate", library.cublasCreate_v2(ctypes.byref(self._handle)))
        self._check("cublasGetVersion", library.cublasGetVersion_v2(self._handle, ctypes.byref(version)))
        self._check("cublasSetStream", library.cublasSetStream_v2(self._handle, stream))
        # Behind the stream, which sets the workspace back to cuBLAS's own.
        status = library.cublasSetWorkspace_v2(self._handle, workspace, WORKSPACE_BYTES)
        self._check("cublasSetWorkspace", status)
        major, rest = divmod(version.value, 10000)
        self.names: tuple[str, ...] = (f"cuBLAS {major}.{rest // 100}.{rest % 100}",)
        self._one, self._zero = c_float(1.0), c_float(0.0)

    def _check(self, call: str, status: int) -> None:
        if status:
            raise DeviceError(f"{call} failed with status {status}; see cublasStatus_t of cublas_api.h")

    def baseline(self, operation: AnyOperation) -> Baseline | None:
        """Return what it has for an operation: a product of 16-bit operands and nothing behind it, or None."""
        if not isinstance(operation, Operation) or operation.grouping is not Grouping.DENSE:
            return None
        is_plain = is_16_bit_product(operation) and operation.epilogue is Epilogue.NONE
        return trial_of(operation).baseline(operation) if is_plain else None

    def bind(self, call: GemmCall, *, b_is_constant: bool = False) -> _Bound:
        """Put a call as cuBLAS takes it, whose matrices are column-major; it takes no promise."""
        del b_is_constant
        a, b, d = (call.tensors[x] for x in (Argument.A, Argument.B, Argument.D))
        left, right = _Factor.of(b, is_transposed=False), _Factor.of(a, is_transposed=True)
        problem, leading = call.problem, d.matrix.row_stride
        cuda_type = CUDA_TYPE[problem.operation.d]
        return _Bound(problem.m, problem.n, problem.k, cuda_type, left, right, d.address, leading)

    def workspace_bytes(self, kernel: int, bound: _Bound) -> int:
        """Return 0: cuBLAS has a workspace of its own."""
        del kernel, bound
        return 0

    def max_active_clusters(self, kernel: int, bound: _Bound, workspace: int, workspace_bytes: int) -> int | None:
        """Return None: cuBLAS chooses what fits."""
        del kernel, bound, workspace, workspace_bytes
        return None

    def launch(self, kernel: int, bound: _Bound, workspace: int, workspace_bytes: int, stream: int) -> None:
        """Put a product on the stream.

        Raises:
            DeviceError: cuBLAS refused it.
        """
        del kernel, workspace, workspace_bytes, stream
        left, right, kind = bound.left, bound.right, bound.cuda_type
        status = self._library.cublasGemmEx(
            *(self._handle, left.operation, right.operation, bound.n, bound.m, bound.k, self._one),
            *(left.address, kind, left.leading, right.address, kind, right.leading, self._zero),
            *(bound.d, kind, bound.leading, COMPUTE_32F, GEMM_DEFAULT),
        )
        self._check("cublasGemmEx", status)


def load_cublas(stream: int, alloc: Callable[[int], int], say: Callable[[str], None]) -> CublasLibrary | None:
    """Load cuBLAS into the primary context; None, and a line that says why, where that cannot be.

    Args:
        stream: handle of the stream that everything runs on.
        alloc: allocates device memory.
        say: told the line.
    """
    why = f"there is no {' and no '.join(NAMES)}"
    for place in _places():
        try:
            return CublasLibrary(ctypes.CDLL(place), stream, alloc(WORKSPACE_BYTES))
        except OSError:
            continue
        except (AttributeError, DeviceError) as error:
            why = f"{place}: {error}"
            break
    say(f"cuBLAS's times are not taken beside the wheel's: {why}")
    return None
