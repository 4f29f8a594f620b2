"""The GPU through the driver's own library, libcuda.so.1, by ctypes: the only module that loads it.

No package is needed on the device, and a kernel library's CUDA runtime works on the same primary context.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from aot.core.errors import DeviceError
from aot.measure.gpu import OutOfMemoryError
from aot.measure.separator import NUM_BYTES, Separator

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.core.numerics import Bits
    from aot.measure.gpu import Handle

LIBRARY = "libcuda.so.1"
ERROR_OUT_OF_MEMORY = 2
"""Source of this and of the numbers below: cuda.h of CUDA 13.0."""
STREAM_NON_BLOCKING = 1
CAPTURE_MODE_THREAD_LOCAL = 1

_ATTRIBUTES = {
    "num_sms": 16,
    "integrated": 18,
    "pci_bus": 33,
    "pci_device": 34,
    "l2_bytes": 38,
    "pci_domain": 50,
    "major": 75,
    "minor": 76,
}
"""CUdevice_attribute."""

_SIGNATURES: dict[str, list[Any]] = {
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxSynchronize": [],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
    "cuDeviceGetCount": [POINTER(c_int)],
    "cuDeviceGetName": [c_char_p, c_int, c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuDriverGetVersion": [POINTER(c_int)],
    "cuEventCreate": [POINTER(c_void_p), c_uint],
    "cuEventElapsedTime": [POINTER(c_float), c_void_p, c_void_p],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuGetErrorName": [c_int, POINTER(c_char_p)],
    "cuGetErrorString": [c_int, POINTER(c_char_p)],
    "cuGraphDestroy": [c_void_p],
    "cuGraphExecDestroy": [c_void_p],
    "cuGraphInstantiateWithFlags": [POINTER(c_void_p), c_void_p, c_uint64],
    "cuGraphLaunch": [c_void_p, c_void_p],
    "cuInit": [c_uint],
    "cuLaunchKernel": [c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p],
    "cuMemAlloc_v2": [POINTER(c_uint64), c_size_t],
    "cuMemFree_v2": [c_uint64],
    "cuMemcpyAsync": [c_uint64, c_uint64, c_size_t, c_void_p],
    "cuMemsetD8Async": [c_uint64, c_ubyte, c_size_t, c_void_p],
    "cuModuleGetFunction": [POINTER(c_void_p), c_void_p, c_char_p],
    "cuModuleLoadData": [POINTER(c_void_p), c_char_p],
    "cuStreamBeginCapture_v2": [c_void_p, c_int],
    "cuStreamCreate": [POINTER(c_void_p), c_uint],
    "cuStreamEndCapture": [c_void_p, POINTER(c_void_p)],
    "cuStreamSynchronize": [c_void_p],
}

Driver: TypeAlias = Any
"""The loaded library: its functions as attributes, each giving a CUresult."""


@cache
def load_driver() -> Driver:
    """Load the driver's library and initialise it.

    Raises:
        DeviceError: there is no driver, one too old, or it finds no GPU.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = c_int, arguments
    except (OSError, AttributeError) as error:
        raise DeviceError(f"no usable NVIDIA driver: {error}; run where nvidia-smi finds a GPU") from error
    check(library, "cuInit", library.cuInit(0))
    return library


def _describe(driver: Driver, error: int) -> str:
    texts = []
    for function, unknown in ((driver.cuGetErrorName, f"CUDA error {error}"), (driver.cuGetErrorString, "no message")):
        text = c_char_p()
        found = function(error, byref(text)) == 0 and text.value
        texts.append(text.value.decode(errors="replace") if found and text.value else unknown)
    return ": ".join(texts)


def check(driver: Driver, call: str, error: int) -> None:
    """Look at what a driver function gave.

    Args:
        driver: the library, for the error's text.
        call: the function's name, for the message.
        error: its CUresult.

    Raises:
        OutOfMemoryError: there is not enough device memory.
        DeviceError: anything else but success; the message has the call's name and CUDA's text.
    """
    if error:
        kind = OutOfMemoryError if error == ERROR_OUT_OF_MEMORY else DeviceError
        raise kind(f"{call} failed with {_describe(driver, error)}")


@dataclass(frozen=True)
class DeviceProperties:
    """What the driver says of a device."""

    name: str
    """Of a MIG slice, its profile too."""
    compute_capability: tuple[int, int]
    num_sms: int
    """Those that this process may use: a MIG slice or a power mode can have fewer than the chip."""
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
    driver = load_driver()
    count, version, handle = c_int(), c_int(), c_int()
    check(driver, "cuDeviceGetCount", driver.cuDeviceGetCount(byref(count)))
    if device >= count.value:
        raise DeviceError(f"there is no GPU {device}: cuDeviceGetCount says {count.value}; run where a GPU is visible")
    check(driver, "cuDeviceGet", driver.cuDeviceGet(byref(handle), device))
    check(driver, "cuDriverGetVersion", driver.cuDriverGetVersion(byref(version)))
    name = ctypes.create_string_buffer(256)
    check(driver, "cuDeviceGetName", driver.cuDeviceGetName(name, len(name), handle))

    def attribute(what: str) -> int:
        value = c_int()
        error = driver.cuDeviceGetAttribute(byref(value), _ATTRIBUTES[what], handle)
        check(driver, f"cuDeviceGetAttribute of {what}", error)
        return value.value

    return DeviceProperties(
        name=name.value.decode(errors="replace").strip(),
        compute_capability=(attribute("major"), attribute("minor")),
        num_sms=attribute("num_sms"),
        l2_bytes=attribute("l2_bytes"),
        driver_version=f"CUDA {version.value // 1000}.{version.value % 1000 // 10}",
        pci_bus_id=f"{attribute('pci_domain'):08x}:{attribute('pci_bus'):02x}:{attribute('pci_device'):02x}.0",
        integrated=bool(attribute("integrated")),
    )


class CudaGpu:
    """A device and a stream of our own; satisfies `aot.measure.gpu.Gpu`. Every failure is a DeviceError."""

    def __init__(self, properties: DeviceProperties, device: int = 0) -> None:
        self._driver = load_driver()
        handle, context, stream = c_int(), c_void_p(), c_void_p()
        self._check("cuDeviceGet", self._driver.cuDeviceGet(byref(handle), device))
        # The primary context is the one that a kernel library's CUDA runtime uses.
        error = self._driver.cuDevicePrimaryCtxRetain(byref(context), handle)
        self._check("cuDevicePrimaryCtxRetain", error)
        self._check("cuCtxSetCurrent", self._driver.cuCtxSetCurrent(context))
        self._check("cuStreamCreate", self._driver.cuStreamCreate(byref(stream), STREAM_NON_BLOCKING))
        self._events: list[c_void_p] = []
        self._separator: Separator | None = None
        self.stream = stream.value or 0
        self.l2_bytes = properties.l2_bytes

    def _check(self, call: str, error: int) -> None:
        check(self._driver, call, error)

    def alloc(self, num_bytes: int) -> int:
        """Allocate device memory; cuMemAlloc aligns to 256 bytes."""
        address = c_uint64()
        self._check(f"cuMemAlloc of {num_bytes} bytes", self._driver.cuMemAlloc_v2(byref(address), num_bytes))
        return address.value

    def free(self, address: int) -> None:
        """Free what `alloc` gave."""
        self._check("cuMemFree", self._driver.cuMemFree_v2(address))

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Copy from device to device, in stream order."""
        self._check("cuMemcpyAsync", self._driver.cuMemcpyAsync(target, source, num_bytes, self.stream))

    def upload(self, address: int, bits: Bits) -> None:
        """Copy a contiguous host array to the device and wait for it."""
        self.copy(address, bits.ctypes.data, bits.nbytes)
        self.synchronize()

    def download(self, address: int, bits: Bits) -> None:
        """Copy from the device into a contiguous host array and wait for it."""
        self.copy(bits.ctypes.data, address, bits.nbytes)
        self.synchronize()

    def fill(self, address: int, value: int, num_bytes: int) -> None:
        """Set every byte to `value`, in stream order."""
        self._check("cuMemsetD8Async", self._driver.cuMemsetD8Async(address, value, num_bytes, self.stream))

    def launch_separator(self) -> None:
        """Put a small kernel on the stream that takes no part in programmatic dependent launch.

        The first call loads it, which a capture does not allow.

        Raises:
            DeviceError: it cannot be loaded or launched.
        """
        if self._separator is None:
            data = self.alloc(NUM_BYTES)
            self.fill(data, 0, NUM_BYTES)
            self._separator = Separator(self._driver, self._check, data)
        self._separator.launch(self.stream)

    def synchronize(self) -> None:
        """Wait for the stream, and report what failed on it."""
        self._check("cuStreamSynchronize", self._driver.cuStreamSynchronize(self.stream))

    def _event(self, index: int) -> c_void_p:
        while index >= len(self._events):
            event = c_void_p()
            self._check("cuEventCreate", self._driver.cuEventCreate(byref(event), 0))
            self._events.append(event)
        return self._events[index]

    def _record(self, index: int) -> None:
        self._check("cuEventRecord", self._driver.cuEventRecord(self._event(index), self.stream))

    def _elapsed_us(self, first: int) -> float:
        """Return the time from event `first` to the next one, once the stream is done."""
        milliseconds = c_float()
        error = self._driver.cuEventElapsedTime(byref(milliseconds), self._event(first), self._event(first + 1))
        self._check("cuEventElapsedTime", error)
        return 1e3 * milliseconds.value

    def time_us(self, launch: Callable[[], None]) -> float:
        """Time what `launch` puts on the stream, in microseconds; the host's launch time counts when it is longer."""
        self._record(0)
        launch()
        self._record(1)
        self.synchronize()
        return self._elapsed_us(0)

    def flushed_us(self, launch: Callable[[int], None], count: int, flush: int, flush_bytes: int) -> list[float]:
        """Time each of `count` launches between events of its own, in microseconds, after a write of `flush_bytes`.

        The write leaves nothing of the operands in the L2 cache. It also lasts longer than the host needs to queue
        the launch, so that no host time lies between the events.
        """
        for i in range(count):
            self.fill(flush, i & 0xFF, flush_bytes)
            self._record(2 * i)
            launch(i)
            self._record(2 * i + 1)
        self.synchronize()
        return [self._elapsed_us(2 * i) for i in range(count)]

    def capture(self, launch: Callable[[], None]) -> Handle:
        """Record what `launch` puts on the stream as an executable graph."""
        graph, executable = c_void_p(), c_void_p()
        error = self._driver.cuStreamBeginCapture_v2(self.stream, CAPTURE_MODE_THREAD_LOCAL)
        self._check("cuStreamBeginCapture", error)
        try:
            launch()
        except DeviceError:
            # The stream must leave capture before anything else can run on it. The status only repeats that the
            # capture was spoilt, so the launch's own error is the one to report.
            self._driver.cuStreamEndCapture(self.stream, byref(graph))
            raise
        self._check("cuStreamEndCapture", self._driver.cuStreamEndCapture(self.stream, byref(graph)))
        try:
            error = self._driver.cuGraphInstantiateWithFlags(byref(executable), graph, 0)
            self._check("cuGraphInstantiate", error)
        finally:
            self._check("cuGraphDestroy", self._driver.cuGraphDestroy(graph))
        return executable

    def replay_us(self, graph: Handle, *, warms_up: bool = True) -> float:
        """Replay a graph, after another time to warm up if so told, and time it, in microseconds.

        The first replay also keeps the device busy until the second is queued, so that the time between the events
        holds no host time.
        """
        if warms_up:
            self._check("cuGraphLaunch", self._driver.cuGraphLaunch(graph, self.stream))
        self._record(0)
        self._check("cuGraphLaunch", self._driver.cuGraphLaunch(graph, self.stream))
        self._record(1)
        self.synchronize()
        return self._elapsed_us(0)

    def destroy(self, graph: Handle) -> None:
        """Free an executable graph."""
        self._check("cuGraphExecDestroy", self._driver.cuGraphExecDestroy(graph))

    def is_lost(self) -> bool:
        """Say whether the context fails for good: a failed launch leaves it whole, a fault of a kernel does not."""
        return bool(self._driver.cuCtxSynchronize())
