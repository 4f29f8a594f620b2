"""Call a built kernel library through its C API, templates/include/aot_gemm.h, by ctypes."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, ClassVar

from aot.core.errors import DeviceError
from aot.core.operands import GemmCall
from aot.core.operation import Operation
from aot.core.tile_order import order_name
from aot.measure.call_structs import AnyStruct, ProblemStruct, RowsProblemStruct, gemm_struct, rows_struct

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aot.kinds.trial import AnyCall

_POINTER, _ROWS_POINTER = ctypes.POINTER(ProblemStruct), ctypes.POINTER(RowsProblemStruct)
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
    "aot_rows_num_kernels": (ctypes.c_int32, []),
    "aot_rows_kernel_name": (ctypes.c_char_p, [ctypes.c_int32]),
    "aot_rows_operation": (ctypes.c_int32, [ctypes.c_char_p]),
    "aot_rows_launch_kernel": (ctypes.c_int, [ctypes.c_int32, _ROWS_POINTER, ctypes.c_void_p]),
    "aot_gemm_last_error": (ctypes.c_char_p, []),
    "aot_gemm_arch": (ctypes.c_char_p, []),
}


def operation_of(kernel: str) -> Operation:
    """Return the operation that a kernel's name begins with."""
    return max((x for x in Operation if kernel.startswith(f"{x.tag}_")), key=lambda x: len(x.tag))


class KernelLibrary:
    """A kernel library that is loaded; satisfies `aot.measure.gpu.Kernels`. Kernels of products come first.

    Raises:
        DeviceError: the file cannot be loaded, or is not a kernel library.
    """

    signatures: ClassVar[Mapping[str, tuple[Any, list[Any]]]] = _SIGNATURES
    """What is called of the library: result and arguments of each function."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path.resolve()))
            for name, (result, arguments) in self.signatures.items():
                function = getattr(self._library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise DeviceError(f"cannot load the kernel library {path}: {error}; build the bundle again") from error
        self._launch = self._library.aot_gemm_launch_kernel_in_order
        self._num_products = count = self._library.aot_gemm_num_kernels()
        names = [self._library.aot_gemm_kernel_name(i) for i in range(count)]
        names += [self._library.aot_rows_kernel_name(i) for i in range(self._library.aot_rows_num_kernels())]
        self.names: tuple[str, ...] = tuple(name.decode() for name in names)
        self.arch: str = self._library.aot_gemm_arch().decode()

    def operation(self, tag: str, *, is_on_rows: bool = False) -> int:
        """Return the library's number of an operation; that of a product is asked for without its layout: `bf16`.

        Raises:
            DeviceError: the library has no such operation.
        """
        ask = self._library.aot_rows_operation if is_on_rows else self._library.aot_gemm_operation
        number: int = ask(tag.encode())
        if number < 0:
            raise DeviceError(f"the operation {tag}: {self._last_error()}")
        return number

    def bind(self, call: AnyCall, *, b_is_constant: bool = False) -> AnyStruct:
        """Make the C struct of a call.

        Args:
            call: operands and sizes.
            b_is_constant: promise that nothing writes B meanwhile, which a caller does not by default.

        Raises:
            DeviceError: the library has no kernels of the call's operation.
        """
        if isinstance(call, GemmCall):
            number = self.operation(call.problem.operation.call)
            return gemm_struct(call, number, b_is_constant=b_is_constant)
        return rows_struct(call, self.operation(call.problem.operation.tag, is_on_rows=True))

    def _raise(self, what: str, kernel: int, status: int) -> None:
        order, kernel = divmod(kernel, len(self.names))
        name = f"{self.names[kernel]} {order_name(order)}".rstrip()
        raise DeviceError(f"{what} of {name} gave status {status}: {self._last_error()}")

    def _last_error(self) -> str:
        text = self._library.aot_gemm_last_error()
        return text.decode(errors="replace") if text else "no message"

    def workspace_bytes(self, kernel: int, bound: AnyStruct) -> int:
        """Return the workspace in bytes that a kernel needs for a call; those of operations on rows need none.

        Raises:
            DeviceError: the kernel does not take the call.
        """
        if isinstance(bound, RowsProblemStruct):
            return 0
        size = ctypes.c_size_t()
        status = self._library.aot_gemm_kernel_workspace_bytes(kernel % len(self.names), bound, ctypes.byref(size))
        if status:
            self._raise("the workspace query", kernel, status)
        return size.value

    def max_active_clusters(self, kernel: int, bound: AnyStruct, workspace: int, workspace_bytes: int) -> int | None:
        """Return how many of a kernel's clusters the device can run at once for a call; None without clusters.

        Raises:
            DeviceError: the kernel does not take the call, or the device does not answer.
        """
        if isinstance(bound, RowsProblemStruct):
            return None
        count = ctypes.c_int32()
        ask = self._library.aot_gemm_kernel_max_active_clusters
        status = ask(kernel % len(self.names), bound, workspace or None, workspace_bytes, ctypes.byref(count))
        if status:
            self._raise("the query of active clusters", kernel, status)
        return None if count.value < 0 else count.value

    def launch(self, kernel: int, bound: AnyStruct, workspace: int, workspace_bytes: int, stream: int) -> None:
        """Put a kernel on a stream.

        Raises:
            DeviceError: the kernel does not take the call, or the launch failed.
        """
        order, index = divmod(kernel, len(self.names))
        if isinstance(bound, RowsProblemStruct):
            status = self._library.aot_rows_launch_kernel(index - self._num_products, bound, stream)
        else:
            status = self._launch(index, order, bound, workspace or None, workspace_bytes, stream)
        if status:
            self._raise("the launch", kernel, status)
