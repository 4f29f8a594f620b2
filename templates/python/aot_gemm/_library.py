"""The libraries that answer, checked and loaded: their C API and their binding, both by ctypes."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

from . import _files, errors

if TYPE_CHECKING:
    from collections.abc import Collection
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


class Memory(NamedTuple):
    """The kernels' objects of a library, each an image for the device and the host code that launches it."""

    num_objects: int
    object_bytes: int
    """In the library's file, of which untouched pages take no memory."""
    num_loaded: int
    """Of which so many are loaded on a GPU."""
    loaded_bytes: int


class _MemoryStruct(ctypes.Structure):
    """`aot_gemm_memory_t`."""

    _fields_ = (("struct_bytes", ctypes.c_uint64), *((name, ctypes.c_int64) for name in Memory._fields))


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
        folder.verify(folder.library)
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
        folder.verify(folder.library)
        raise errors.CorruptLibraryError(
            f"{library} does not load ({error}); the file is as it was built, so that it is not for this machine; "
            "install the wheel for this machine"
        ) from error
    return loaded


class Library:
    """A library of kernels that answers in this process: its C API and its binding, and the folder that it lies in.

    Args:
        folder: where it lies.
        only_tuned: whether it answers for tuned sizes of its table alone.
        passes_on: whether another is asked for what it does not answer for.
        of_some_gpus: whether there are GPUs here that others are for.

    Raises:
        CorruptLibraryError: it does not load.
    """

    def __init__(
        self,
        folder: _files.Folder,
        *,
        only_tuned: bool = False,
        passes_on: bool = False,
        of_some_gpus: bool = False,
    ) -> None:
        self.folder, self.only_tuned, self.passes_on, self.of_some_gpus = folder, only_tuned, passes_on, of_some_gpus
        texts = ("last_error", "version", "kernel_name", "table_target", "misses_file")
        functions = (*(f"aot_gemm_{name}" for name in texts), "aot_rows_kernel_name")
        self.c = load(folder, ctypes.CDLL, dict.fromkeys(functions, ctypes.c_char_p))

    @cached_property
    def binding(self) -> dict[str, Any]:
        """Return the functions of its binding by name.

        Raises:
            CorruptLibraryError: it does not load.
        """
        from . import _routes  # which needs this module

        routes: Any = _routes
        if self.passes_on or self.of_some_gpus:
            from ._in_turn import in_line

            routes = in_line(
                _routes, passes_on=self.passes_on, only_tuned=self.only_tuned, of_some_gpus=self.of_some_gpus
            )
        bind = load(self.folder, ctypes.PyDLL, {"aot_gemm_python_bind": ctypes.py_object}).aot_gemm_python_bind
        bind.argtypes = (ctypes.py_object, ctypes.py_object)
        functions: dict[str, Any] = bind(errors, routes)
        return functions

    def has(self, tag: str) -> bool:
        """Say whether it has kernels of an operation, by its tag as calls have it."""
        number: int = self.c.aot_gemm_operation(tag.encode())
        return number > 0

    def has_rows(self, tag: str) -> bool:
        """Say whether it has kernels of an operation on rows, by its tag."""
        number: int = self.c.aot_rows_operation(tag.encode())
        return number > 0

    def operation(self, tag: str) -> int:
        """Return its number of an operation.

        Raises:
            UnsupportedError: it has no such operation.
        """
        number: int = self.c.aot_gemm_operation(tag.encode())
        self.check(max(-number, 0))
        return number

    def device_table(self, device: int = -1) -> tuple[int, str]:
        """Return the index of its dispatch table that answers on a GPU (-1: the current one), and why.

        Raises:
            NoGpuError: there is no GPU or driver.
            ArchitectureError: the GPU is not of the architecture that the kernels are for.
            CudaError: CUDA failed.
        """
        table, reason = ctypes.c_int32(), ctypes.c_char_p()
        self.check(self.c.aot_gemm_device_table(ctypes.c_int32(device), ctypes.byref(table), ctypes.byref(reason)))
        return table.value, (reason.value or b"").decode()

    def can_run(self, device: int = -1) -> bool:
        """Say whether a GPU (-1: the current one) is of the architecture that its kernels are for.

        Errors are those of `device_table`, but for the architecture's.
        """
        try:
            self.device_table(device)
        except errors.ArchitectureError:
            return False
        return True

    def choices(self, device: int = -1) -> str:
        """Return the SHA-256 of all that decides which of its kernels a problem gets on a GPU (-1: the current one)."""
        sha256 = ctypes.c_char_p()
        self.check(self.c.aot_gemm_choices(ctypes.c_int32(device), ctypes.byref(sha256)))
        return (sha256.value or b"").decode()

    def preload(self, device: int, operations: Collection[str] | None = None) -> None:
        """Load its kernels onto a GPU (-1: the current one), all or those of operations, and its binding.

        Operations that it has not are left out; errors are those of `choices`.
        """
        ordinal = ctypes.c_int32(device)
        if operations is None:
            self.check(self.c.aot_gemm_preload(ordinal))
        for tag in operations or ():
            if self.has(tag) or self.has_rows(tag):
                self.check(self.c.aot_gemm_preload_operation(tag.encode(), ordinal))
        _ = self.binding

    def memory(self, device: int = -1) -> Memory:
        """Say what of its kernels is in the memory of a GPU (-1: the current one); errors are those of `choices`."""
        found = _MemoryStruct(ctypes.sizeof(_MemoryStruct))
        self.check(self.c.aot_gemm_memory(ctypes.c_int32(device), ctypes.byref(found)))
        return Memory(found.num_objects, found.object_bytes, found.num_loaded, found.loaded_bytes)

    def check(self, status: int) -> None:
        """Raise the error of a status of its C API; 0 is none."""
        if status != 0:
            raise errors.OF_STATUS[status](self.c.aot_gemm_last_error().decode())


@cache
def libraries() -> tuple[Library, ...]:
    """Load the libraries that answer here, in the order in which they are asked: one, but where there are packs.

    Raises:
        CorruptLibraryError: one does not load.
    """
    answering = _files.answering()
    is_mixed = _files.are_of_several_architectures()
    return tuple(
        Library(folder, only_tuned=only_tuned, passes_on=number < len(answering), of_some_gpus=is_mixed)
        for number, (folder, only_tuned) in enumerate(answering, 1)
    )


def here(device: int = -1) -> tuple[Library, ...]:
    """Return the libraries that answer on a GPU (-1: the current one), in the order in which they are asked.

    They are all that answer in this process, but where its GPUs are of several architectures.

    Raises:
        ArchitectureError: none is for that GPU.
        CorruptLibraryError: one does not load.
    """
    found = libraries()
    if not _files.are_of_several_architectures():
        return found
    able = tuple(x for x in found if x.can_run(device))
    if not able:
        found[0].device_table(device)  # which raises
    return able


def build_command(*tags: str) -> str:
    """Give the command that builds a wheel for the targets of what answers here, with some operations more.

    The libraries tell their targets, so that no file is read.

    Args:
        tags: of the operations, as `aot build` names them.

    Raises:
        ArchitectureError: as of `here`.
    """
    tables = ((x.c, i) for x in here() for i in range(x.c.aot_gemm_num_tables()))
    targets = dict.fromkeys(c.aot_gemm_table_target(i).decode() for c, i in tables)
    return f"aot build --target {','.join(targets)} --operations {','.join(('default', *tags))}"


def library() -> ctypes.CDLL:
    """Return the C API of the library that is asked first, loaded.

    Raises:
        CorruptLibraryError: it does not load.
    """
    return libraries()[0].c


def misses_file() -> str | None:
    """Return the file of the miss log, or None where it is off; of a library not loaded yet, as loading it now would.

    tests/runtime compares the two.
    """
    if libraries.cache_info().currsize > 0:
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
    """Return the binding's functions by name; of several libraries each is asked in turn.

    Raises:
        CorruptLibraryError: a library does not load.
    """
    found = libraries()
    if len(found) == 1:
        return found[0].binding
    from ._in_turn import in_turn

    return in_turn([x.binding for x in found])


def device_table(device: int = -1) -> tuple[int, str]:
    """Return what `Library.device_table` does, of the library that is asked first on that GPU."""
    return here(device)[0].device_table(device)


def check(status: int) -> None:
    """Raise the error of a status of the C API of the library that is asked first; 0 is none."""
    libraries()[0].check(status)
