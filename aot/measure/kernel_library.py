"""Call a built kernel library through its C API, templates/include/aot_gemm.h, by ctypes."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from aot.core.errors import DeviceError
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.core.tile_order import order_name

if TYPE_CHECKING:
    from pathlib import Path

    from aot.core.operands import GemmCall, Tensor


class TensorStruct(ctypes.Structure):
    """`aot_gemm_tensor_t`."""

    _fields_ = (("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 2))


class GroupStrides(ctypes.Structure):
    """`aot_gemm_group_strides_t`."""

    _fields_ = tuple((x, ctypes.c_int64) for x in ("a", "b", "d", "bias", "scale_a", "scale_b", "residual"))


class ProblemStruct(ctypes.Structure):
    """`aot_gemm_problem_t`, stated here alone in Python.

    tests/unit/measure/test_kernel_library.py compares it with the header through the C compiler.
    """

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        ("operation", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("a", TensorStruct),
        ("b", TensorStruct),
        ("d", TensorStruct),
        ("flags", ctypes.c_uint64),
        ("bias", TensorStruct),
        ("scale_a", TensorStruct),
        ("scale_b", TensorStruct),
        ("residual", TensorStruct),
        ("scale_d", TensorStruct),
        ("num_groups", ctypes.c_int64),
        ("group_strides", GroupStrides),
        ("offsets", TensorStruct),
        ("index", TensorStruct),
        ("rows_of_a", ctypes.c_int64),
        ("b_of_groups", ctypes.POINTER(ctypes.c_void_p)),
    )


B_CONSTANT = 1
"""Flag of a problem whose B nothing writes meanwhile. Source: aot_gemm.h, AOT_GEMM_B_CONSTANT."""

GATE_INTERLEAVED = 2
"""Flag of a problem whose B has gate row 2j before linear row 2j + 1. Source: aot_gemm.h, AOT_GEMM_GATE_INTERLEAVED."""


OFFSETS_START = 16
"""Flag of a problem whose offsets begin with the first group's start. Source: aot_gemm.h, AOT_GEMM_OFFSETS_START."""


CURRENT_DEVICE = -1
"""What `device` is for the calling thread's current device. Source: aot_gemm.h, aot_gemm_problem_t."""

_POINTER = ctypes.POINTER(ProblemStruct)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "aot_gemm_num_kernels": (ctypes.c_int32, []),
    "aot_gemm_kernel_name": (ctypes.c_char_p, [ctypes.c_int32]),
    "aot_gemm_kernel_workspace_bytes": (ctypes.c_int, [ctypes.c_int32, _POINTER, ctypes.POINTER(ctypes.c_size_t)]),
    "aot_gemm_launch_kernel_in_order": (
        ctypes.c_int,
        [ctypes.c_int32, ctypes.c_int32, _POINTER, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p],
    ),
    "aot_gemm_kernel_max_active_clusters": (
        ctypes.c_int,
        [ctypes.c_int32, _POINTER, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int32)],
    ),
    "aot_gemm_operation": (ctypes.c_int32, [ctypes.c_char_p]),
    "aot_gemm_last_error": (ctypes.c_char_p, []),
    "aot_gemm_arch": (ctypes.c_char_p, []),
}


def operation_of(kernel: str) -> Operation:
    """Return the operation that a kernel's name begins with."""
    return max((x for x in Operation if kernel.startswith(f"{x.tag}_")), key=lambda x: len(x.tag))


def _struct(tensor: Tensor | None) -> TensorStruct:
    """Return a tensor as the library takes it; one that is not there is all zero."""
    if tensor is None:
        return TensorStruct()
    return TensorStruct(tensor.address, (tensor.matrix.row_stride, tensor.matrix.column_stride))


_GROUPED = (
    *(Argument.A, Argument.B, Argument.D),
    *(Argument.BIAS, Argument.SCALE_A, Argument.SCALE_B, Argument.RESIDUAL),
)
"""The tensors that have a stride from group to group, in the order of `GroupStrides`."""

_FIELDS = (Argument.BIAS, Argument.SCALE_A, Argument.SCALE_B, Argument.RESIDUAL, Argument.SCALE_D)
"""The tensors behind the flags, in the struct's order."""


class KernelLibrary:
    """A kernel library that is loaded; satisfies `aot.measure.gpu.Kernels`.

    Raises:
        DeviceError: the file cannot be loaded, or is not a kernel library.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path.resolve()))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(self._library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise DeviceError(f"cannot load the kernel library {path}: {error}; build the bundle again") from error
        self._launch = self._library.aot_gemm_launch_kernel_in_order
        count = self._library.aot_gemm_num_kernels()
        self.names: tuple[str, ...] = tuple(self._library.aot_gemm_kernel_name(i).decode() for i in range(count))
        self.arch: str = self._library.aot_gemm_arch().decode()

    def operation(self, tag: str) -> int:
        """Return the library's number of an operation, whose tag has no layout: `bf16`.

        Raises:
            DeviceError: the library has no such operation.
        """
        number: int = self._library.aot_gemm_operation(tag.encode())
        if number < 0:
            raise DeviceError(f"the operation {tag}: {self._last_error()}")
        return number

    def bind(self, call: GemmCall, *, b_is_constant: bool = False) -> ProblemStruct:
        """Make the C struct of a call.

        Args:
            call: operands and sizes.
            b_is_constant: promise that nothing writes B meanwhile, which a caller does not by default.

        Raises:
            DeviceError: the library has no kernels of the call's operation.
        """
        problem, tensors = call.problem, call.tensors
        a, d = tensors[Argument.A].matrix, tensors[Argument.D].matrix
        strides = [tensors[x].matrix.group_stride if x in tensors else 0 for x in _GROUPED]
        flags = (B_CONSTANT if b_is_constant else 0) | (GATE_INTERLEAVED if call.is_interleaved else 0)
        return ProblemStruct(
            ctypes.sizeof(ProblemStruct),
            self.operation(problem.operation.call),
            CURRENT_DEVICE,
            d.num_rows,
            d.num_columns,
            a.num_columns,
            *(_struct(tensors[x]) for x in (Argument.A, Argument.B, Argument.D)),
            flags,
            *(_struct(tensors.get(x)) for x in _FIELDS),
            problem.num_groups,
            GroupStrides(*strides),
            *(_struct(tensors.get(x)) for x in (Argument.OFFSETS, Argument.INDEX)),
            a.num_rows if problem.operation.grouping is Grouping.GATHERED else 0,
        )

    def _raise(self, what: str, kernel: int, status: int) -> None:
        order, kernel = divmod(kernel, len(self.names))
        name = f"{self.names[kernel]} {order_name(order)}".rstrip()
        raise DeviceError(f"{what} of {name} gave status {status}: {self._last_error()}")

    def _last_error(self) -> str:
        text = self._library.aot_gemm_last_error()
        return text.decode(errors="replace") if text else "no message"

    def workspace_bytes(self, kernel: int, bound: ProblemStruct) -> int:
        """Return the workspace in bytes that a kernel needs for a call.

        Raises:
            DeviceError: the kernel does not take the call.
        """
        size = ctypes.c_size_t()
        status = self._library.aot_gemm_kernel_workspace_bytes(kernel % len(self.names), bound, ctypes.byref(size))
        if status:
            self._raise("the workspace query", kernel, status)
        return size.value

    def max_active_clusters(
        self, kernel: int, bound: ProblemStruct, workspace: int, workspace_bytes: int
    ) -> int | None:
        """Return how many of a kernel's clusters the device can run at once for a call; None without clusters.

        Raises:
            DeviceError: the kernel does not take the call, or the device does not answer.
        """
        count = ctypes.c_int32()
        ask = self._library.aot_gemm_kernel_max_active_clusters
        status = ask(kernel % len(self.names), bound, workspace or None, workspace_bytes, ctypes.byref(count))
        if status:
            self._raise("the query of active clusters", kernel, status)
        return None if count.value < 0 else count.value

    def launch(self, kernel: int, bound: ProblemStruct, workspace: int, workspace_bytes: int, stream: int) -> None:
        """Put a kernel on a stream.

        Raises:
            DeviceError: the kernel does not take the call, or the launch failed.
        """
        order, index = divmod(kernel, len(self.names))
        status = self._launch(index, order, bound, workspace or None, workspace_bytes, stream)
        if status:
            self._raise("the launch", kernel, status)
