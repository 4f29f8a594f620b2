"""Launch kernels through the library's own host code over the recorder, and execute what it asks of CUDA.

`EmulatedKernels` is the library that `aot.measure` verifies on a device, with an `EmulatedGpu` where the device would
be: a launch goes through the C API, the plan, and the entry of the kernel's own object, which computes the grid and
writes the TMA descriptors.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from aot.core.errors import DeviceError
from aot.emulate.gpu import Clear, KernelLaunch
from aot.emulate.launch import Launch
from aot.measure.call_structs import SCALE_GIVEN, RowsProblemStruct, RowsTensorStruct
from aot.measure.kernel_library import KernelLibrary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aot.core.target import Target
    from aot.emulate.code import DeviceCode
    from aot.emulate.gpu import EmulatedGpu
    from aot.kinds.trial import AnyCall
    from aot.measure.call_structs import AnyStruct

MAX_PARAMETERS = 1024
MAX_ATTRIBUTES = 8
NUM_VALUES = 16
"""Of an attribute of a launch. Source: driver_types.h, cudaLaunchAttributeValue has 64 bytes."""
CLUSTER_DIMENSION = 4
"""The attribute that holds the cluster's extents. Source: driver_types.h, cudaLaunchAttributeClusterDimension."""

_OPERANDS = (
    "a",
    "b",
    "d",
    "bias",
    "scale_a",
    "scale_b",
    "residual",
    "scale_d",
    "own_d",
    "factors_d",
    "offsets",
    "index",
)
"""The fields of `ProblemStruct` that are tensors."""
_OF_PARTS = ("b", "d", "bias")
"""The fields of `PartStruct` that are tensors."""
_ROW_OPERANDS = tuple(name for name, kind in RowsProblemStruct._fields_ if kind is RowsTensorStruct)
"""Those of `RowsProblemStruct`."""


class _Operation(ctypes.Structure):
    """`Operation` of recorder.cc."""

    _fields_ = (
        ("kernel", ctypes.c_char * 1024),
        *((name, ctypes.c_uint64) for name in ("stream", "address", "num_bytes", "smem_bytes")),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("num_parameters", ctypes.c_int32),
        ("parameter_sizes", ctypes.c_int32 * MAX_PARAMETERS),
        ("num_attributes", ctypes.c_int32),
        ("attribute_ids", ctypes.c_int32 * MAX_ATTRIBUTES),
        ("attribute_values", ctypes.c_int32 * NUM_VALUES * MAX_ATTRIBUTES),
        ("parameters", ctypes.c_ubyte * 4096),
    )


class Recorder:
    """The recorder inside a library that `build_host_library` made.

    Args:
        path: the library.
        target: the device that it answers for.
    """

    def __init__(self, path: Path, target: Target) -> None:
        self._library: Any = ctypes.CDLL(str(path.resolve()))
        self._library.recorder_add_kernel.restype = ctypes.c_bool
        name = (target.device_names or (target.name,))[0]
        self._library.recorder_set_device(
            name.encode(),
            *map(ctypes.c_int32, (*target.compute_capability, target.num_sms)),
            ctypes.c_int64(round(target.nominal_bandwidth_bytes_per_s / 1e9)),
            ctypes.c_int32(target.smem_bytes_per_block),
        )
        self._described: DeviceCode | None = None

    def describe(self, code: DeviceCode) -> None:
        """Say what parameters the kernels have that are launched next.

        Raises:
            DeviceError: a kernel has more than a launch may pass.
        """
        if self._described is code:
            return
        self._library.recorder_forget_kernels()
        for name, kernel in code.kernels.items():
            sizes = kernel.parameter_sizes
            array = (ctypes.c_int32 * len(sizes))(*sizes)
            if not self._library.recorder_add_kernel(name.encode(), array, ctypes.c_int32(len(sizes))):
                raise DeviceError(
                    f"{code.name}: the kernel {name} has {len(sizes)} parameters of {sum(sizes)} bytes; "
                    f"expected at most {MAX_PARAMETERS} of 4096 bytes, and a name of 1023 characters"
                )
        self._described = code

    def take(self) -> Iterator[_Operation]:
        """Return what was asked for since the last time, in order, and forget it."""
        count = self._library.recorder_num_operations()
        for index in range(count):
            operation = _Operation()
            self._library.recorder_operation(ctypes.c_int32(index), ctypes.byref(operation))
            yield operation
        self._library.recorder_forget_operations()


def _launch_of(operation: _Operation) -> Launch:
    attributes = {
        operation.attribute_ids[i]: tuple(operation.attribute_values[i]) for i in range(operation.num_attributes)
    }
    x, y, z = attributes.get(CLUSTER_DIMENSION, (1, 1, 1))[:3]
    parameters, at = [], 0
    for size in operation.parameter_sizes[: operation.num_parameters]:
        parameters.append(bytes(operation.parameters[at : at + size]))
        at += size
    return Launch(
        kernel=operation.kernel.decode(),
        grid=tuple(operation.grid),
        block=tuple(operation.block),
        cluster=(x, y, z),
        smem_bytes=operation.smem_bytes,
        parameters=tuple(parameters),
        attributes=attributes,
    )


def _enqueue(recorder: Recorder, code: DeviceCode, gpu: EmulatedGpu) -> None:
    """Put what the library has asked for on the emulated device's stream."""
    for operation in recorder.take():
        if operation.kernel:
            gpu.enqueue(KernelLaunch(code, _launch_of(operation)))
        else:
            gpu.enqueue(Clear(operation.address, operation.num_bytes))


class EmulatedKernels:
    """The kernels of a library over the recorder; satisfies `aot.measure.gpu.Kernels`.

    Args:
        path: the library, as `build_host_library` makes it.
        codes: the device code of each kernel, in the order of the library's: products first, then those on rows.
        gpu: what executes them.
        target: the device that the library is told of.
    """

    def __init__(self, path: Path, codes: Sequence[DeviceCode], gpu: EmulatedGpu, target: Target) -> None:
        self._library, self._recorder = KernelLibrary(path), Recorder(path, target)
        self._codes, self._gpu = codes, gpu

    @property
    def names(self) -> tuple[str, ...]:
        """Return the kernels' names in the order of their index."""
        return self._library.names

    def bind(self, call: AnyCall, *, b_is_constant: bool = False) -> AnyStruct:
        """Make the C struct of a call; see `KernelLibrary.bind`."""
        return self._library.bind(call, b_is_constant=b_is_constant)

    def workspace_bytes(self, kernel: int, bound: AnyStruct) -> int:
        """Return the workspace in bytes that a kernel needs for a call.

        Raises:
            DeviceError: the kernel does not take the call.
        """
        return self._library.workspace_bytes(kernel, bound)

    def max_active_clusters(self, kernel: int, bound: AnyStruct, workspace: int, workspace_bytes: int) -> int | None:
        """Return None: an emulated device runs any number of clusters at once."""
        del kernel, bound, workspace, workspace_bytes
        return None

    def launch(self, kernel: int, bound: AnyStruct, workspace: int, workspace_bytes: int, stream: int) -> None:
        """Put a kernel on the stream.

        Raises:
            DeviceError: the kernel does not take the call, or CUDA would refuse the launch.
        """
        code = self._codes[kernel % len(self._codes)]
        self._recorder.describe(code)
        self._declare(bound, workspace)
        self._library.launch(kernel, bound, workspace, workspace_bytes, stream)
        _enqueue(self._recorder, code, self._gpu)

    def _declare(self, bound: AnyStruct, workspace: int) -> None:
        """Tell the device which memory the kernel may read and write."""
        if isinstance(bound, RowsProblemStruct):
            written = {"y", "residual_out", "key_cache", "value_cache"}
            written |= set() if bound.flags & SCALE_GIVEN else {"scale"}
            self._gpu.declare({name: getattr(bound, name).data for name in _ROW_OPERANDS}, written)
        else:
            operands = {name: getattr(bound, name).data for name in _OPERANDS}
            of_parts = {
                (name if part == 0 else f"{name} of part {part}"): getattr(bound.parts[part], name).data
                for part in range(bound.num_parts)
                for name in _OF_PARTS
                if bound.parts[part].n > 0
            }
            written = {name for name in of_parts if name.split()[0] == "d"}
            self._gpu.declare(operands | of_parts | {"workspace": workspace}, {"d", "factors_d", "workspace", *written})
