"""A finished wheel's library as its callers have it: one product, by whichever kernel its table picks."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, ClassVar

from aot.core.errors import DeviceError
from aot.measure.call_structs import ProblemStruct, SelectionStruct
from aot.measure.kernel_library import KernelLibrary

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aot.core.operation import Operation
    from aot.measure.call_structs import AnyStruct

_POINTER = ctypes.POINTER(ProblemStruct)
REFUSALS = (2, 3, 4)
"""Statuses of a problem that the library does not take: AOT_GEMM_ERROR_OPERATION, _SHAPE and _STRIDE of aot_gemm.h."""


class RefusedError(DeviceError):
    """A problem that the wheel does not take, with the library's text."""


class DispatchedLibrary(KernelLibrary):
    """A wheel's library whose only kernel is its product; satisfies `aot.measure.gpu.Kernels`.

    Raises:
        DeviceError: the file cannot be loaded, or is no library of a wheel.
    """

    signatures: ClassVar[Mapping[str, tuple[Any, list[Any]]]] = {
        **KernelLibrary.signatures,
        "aot_gemm_version": (ctypes.c_char_p, []),
        "aot_gemm_table_target": (ctypes.c_char_p, [ctypes.c_int32]),
        "aot_gemm_device_table": (
            ctypes.c_int,
            [ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_char_p)],
        ),
        "aot_gemm_select": (ctypes.c_int, [_POINTER, ctypes.POINTER(SelectionStruct)]),
        "aot_gemm_workspace_bytes": (ctypes.c_int, [_POINTER, ctypes.POINTER(ctypes.c_size_t)]),
        "aot_gemm_launch": (ctypes.c_int, [_POINTER, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]),
    }

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.kernels: tuple[str, ...] = self.names
        """The names of its kernels by their index."""
        self.version: str = self._library.aot_gemm_version().decode()
        self.names = (f"the product of {path.name} {self.version}",)

    def _refuse(self, what: str, status: int) -> None:
        if status:
            kind = RefusedError if status in REFUSALS else DeviceError
            raise kind(f"{what} gave status {status}: {self._last_error()}")

    def has(self, operation: Operation) -> bool:
        """Say whether the wheel has kernels of an operation, in its layout or another."""
        try:
            self.operation(operation.call)
        except DeviceError:
            return False
        return True

    def table(self) -> tuple[str, str]:
        """Return the target of the table that answers on the current device, and why it is that.

        Raises:
            DeviceError: the device is none that the library is for.
        """
        table, reason = ctypes.c_int32(), ctypes.c_char_p()
        status = self._library.aot_gemm_device_table(-1, ctypes.byref(table), ctypes.byref(reason))
        self._refuse("asking which table answers", status)
        target: bytes = self._library.aot_gemm_table_target(table)
        return target.decode(), (reason.value or b"").decode()

    def choices(self) -> str:
        """Return the hash of all that decides which kernel a product gets on the current device.

        Raises:
            DeviceError: the device is none that the library is for, or the library is too old to say.
        """
        sha256 = ctypes.c_char_p()
        ask = getattr(self._library, "aot_gemm_choices", None)
        if ask is None:
            raise DeviceError(
                f"{self.names[0]} has no aot_gemm_choices; expected a wheel of this version; build it again"
            )
        self._refuse("asking what decides", ask(ctypes.c_int32(-1), ctypes.byref(sha256)))
        return (sha256.value or b"").decode()

    def chosen(self, bound: AnyStruct) -> str:
        """Return the name of the kernel that the table picks for a call.

        Raises:
            RefusedError: the library does not take the call.
        """
        selection = SelectionStruct(ctypes.sizeof(SelectionStruct))
        self._refuse("choosing a kernel", self._library.aot_gemm_select(bound, ctypes.byref(selection)))
        index: int = selection.kernel
        return self.kernels[index]

    def workspace_bytes(self, kernel: int, bound: AnyStruct) -> int:
        """Return the workspace in bytes that the product needs for a call.

        Raises:
            RefusedError: the library does not take the call.
        """
        del kernel
        size = ctypes.c_size_t()
        self._refuse("the workspace query", self._library.aot_gemm_workspace_bytes(bound, ctypes.byref(size)))
        return size.value

    def max_active_clusters(self, kernel: int, bound: AnyStruct, workspace: int, workspace_bytes: int) -> int | None:
        """Return None: the library chooses what fits."""
        del kernel, bound, workspace, workspace_bytes
        return None

    def launch(self, kernel: int, bound: AnyStruct, workspace: int, workspace_bytes: int, stream: int) -> None:
        """Put the product on a stream.

        Raises:
            RefusedError: the library does not take the call.
            DeviceError: the launch failed.
        """
        del kernel
        status = self._library.aot_gemm_launch(bound, workspace or None, workspace_bytes, stream)
        self._refuse("the launch", status)
