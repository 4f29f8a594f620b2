"""The GPU through cuda-python: the only module that imports it. Works with cuda-python 12.9 to 13.x."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cuda.bindings import driver, runtime

from aot.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.gpu import Bits, Handle

Value: TypeAlias = Any
"""A value of cuda-python, which has no types that a checker could read."""


def _describe(error: Value) -> str:
    if isinstance(error, driver.CUresult):
        _, text = driver.cuGetErrorString(error)
    else:
        _, text = runtime.cudaGetErrorString(error)
    return f"{error.name}: {text.decode() if text else 'no message'}"


def check(call: str, result: tuple[Value, ...]) -> Value:
    """Give what a cuda-python call returned after its status: nothing, one value, or a tuple.

    Args:
        call: the CUDA function's name, for the message.
        result: what the cuda-python function returned, its CUresult or cudaError_t first.

    Raises:
        DeviceError: the status is not success; the message has the call's name and CUDA's text.
    """
    error, *values = result
    if int(error) != 0:
        raise DeviceError(f"{call} failed with {_describe(error)}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


@dataclass(frozen=True)
class DeviceProperties:
    """What the driver says of a device."""

    name: str
    compute_capability: tuple[int, int]
    num_sms: int
    l2_bytes: int
    driver_version: str
    """The newest CUDA that the driver supports, such as `CUDA 13.0`."""
    pci_bus_id: str
    """As nvidia-smi takes it, such as `00000000:19:00.0`."""
    integrated: bool


def read_properties(device: int = 0) -> DeviceProperties:
    """Ask the driver about a device.

    Raises:
        DeviceError: there is no usable GPU.
    """
    count = check("cudaGetDeviceCount", runtime.cudaGetDeviceCount())
    if device >= count:
        raise DeviceError(f"there is no GPU {device}: cudaGetDeviceCount says {count}; run where a GPU is visible")
    values = check("cudaGetDeviceProperties", runtime.cudaGetDeviceProperties(device))
    version = check("cudaDriverGetVersion", runtime.cudaDriverGetVersion())
    name = values.name
    return DeviceProperties(
        name=(name.decode() if isinstance(name, bytes) else str(name)).strip("\0 "),
        compute_capability=(values.major, values.minor),
        num_sms=values.multiProcessorCount,
        l2_bytes=values.l2CacheSize,
        driver_version=f"CUDA {version // 1000}.{version % 1000 // 10}",
        pci_bus_id=f"{values.pciDomainID:08x}:{values.pciBusID:02x}:{values.pciDeviceID:02x}.0",
        integrated=bool(values.integrated),
    )


class CudaGpu:
    """A device and a stream of our own; satisfies `aot.gpu.Gpu`. Every failure is a DeviceError."""

    def __init__(self, properties: DeviceProperties, device: int = 0) -> None:
        check("cudaSetDevice", runtime.cudaSetDevice(device))
        flags = runtime.cudaStreamNonBlocking
        self._stream = check("cudaStreamCreateWithFlags", runtime.cudaStreamCreateWithFlags(flags))
        self._start = check("cudaEventCreate", runtime.cudaEventCreate())
        self._end = check("cudaEventCreate", runtime.cudaEventCreate())
        self.stream = int(self._stream)
        self.l2_bytes = properties.l2_bytes

    def alloc(self, num_bytes: int) -> int:
        """Allocate device memory; cudaMalloc aligns to 256 bytes."""
        return int(check(f"cudaMalloc of {num_bytes} bytes", runtime.cudaMalloc(num_bytes)))

    def free(self, address: int) -> None:
        """Free what `alloc` gave."""
        check("cudaFree", runtime.cudaFree(address))

    def _copy(self, target: int, source: int, num_bytes: int, kind: Value) -> None:
        check("cudaMemcpyAsync", runtime.cudaMemcpyAsync(target, source, num_bytes, kind, self._stream))

    def upload(self, address: int, bits: Bits) -> None:
        """Copy a contiguous host array to the device and wait for it."""
        self._copy(address, bits.ctypes.data, bits.nbytes, runtime.cudaMemcpyKind.cudaMemcpyHostToDevice)
        self.synchronize()

    def download(self, address: int, bits: Bits) -> None:
        """Copy from the device into a contiguous host array and wait for it."""
        self._copy(bits.ctypes.data, address, bits.nbytes, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost)
        self.synchronize()

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Copy from device to device, in stream order."""
        self._copy(target, source, num_bytes, runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice)

    def fill(self, address: int, value: int, num_bytes: int) -> None:
        """Set every byte to `value`, in stream order."""
        check("cudaMemsetAsync", runtime.cudaMemsetAsync(address, value, num_bytes, self._stream))

    def synchronize(self) -> None:
        """Wait for the stream, and report what failed on it."""
        check("cudaStreamSynchronize", runtime.cudaStreamSynchronize(self._stream))

    def _elapsed_us(self) -> float:
        check("cudaStreamSynchronize", runtime.cudaStreamSynchronize(self._stream))
        return 1e3 * float(check("cudaEventElapsedTime", runtime.cudaEventElapsedTime(self._start, self._end)))

    def time_us(self, launch: Callable[[], None]) -> float:
        """Time what `launch` puts on the stream, in microseconds; the host's launch time counts when it is longer."""
        check("cudaEventRecord", runtime.cudaEventRecord(self._start, self._stream))
        launch()
        check("cudaEventRecord", runtime.cudaEventRecord(self._end, self._stream))
        return self._elapsed_us()

    def capture(self, launch: Callable[[], None]) -> Handle:
        """Record what `launch` puts on the stream as an executable graph."""
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        check("cudaStreamBeginCapture", runtime.cudaStreamBeginCapture(self._stream, mode))
        try:
            launch()
        except DeviceError:
            # The stream must leave capture before anything else can run on it. The status only repeats that the
            # capture was spoilt, so the launch's own error is the one to report.
            runtime.cudaStreamEndCapture(self._stream)
            raise
        graph = check("cudaStreamEndCapture", runtime.cudaStreamEndCapture(self._stream))
        try:
            return check("cudaGraphInstantiate", runtime.cudaGraphInstantiate(graph, 0))
        finally:
            check("cudaGraphDestroy", runtime.cudaGraphDestroy(graph))

    def replay_us(self, graph: Handle) -> float:
        """Replay a graph twice and time the second replay, in microseconds.

        The first replay warms up, and keeps the device busy until the second is queued, so that the time between the
        events holds no host time.
        """
        check("cudaGraphLaunch", runtime.cudaGraphLaunch(graph, self._stream))
        check("cudaEventRecord", runtime.cudaEventRecord(self._start, self._stream))
        check("cudaGraphLaunch", runtime.cudaGraphLaunch(graph, self._stream))
        check("cudaEventRecord", runtime.cudaEventRecord(self._end, self._stream))
        return self._elapsed_us()

    def destroy(self, graph: Handle) -> None:
        """Free an executable graph."""
        check("cudaGraphExecDestroy", runtime.cudaGraphExecDestroy(graph))

    def is_lost(self) -> bool:
        """Say whether the context still fails after the last error is cleared; then only a new process helps."""
        runtime.cudaGetLastError()
        (error,) = runtime.cudaDeviceSynchronize()
        return int(error) != 0
