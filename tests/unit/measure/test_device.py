import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from aot.core.errors import DeviceError
from aot.measure import device
from aot.measure.device import CudaGpu, DeviceProperties, check, load_driver, read_properties
from aot.measure.gpu import OutOfMemoryError

PROPERTIES = DeviceProperties("Twin", (9, 0), 132, 1 << 20, "CUDA 13.0", "00000000:19:00.0", False)
TEXTS = {2: (b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"), 1: (b"CUDA_ERROR_INVALID_VALUE", b"invalid argument")}


class Driver:
    """Stands for libcuda.so.1: notes each call, answers success unless it is to fail, and puts 1 into handles."""

    def __init__(self):
        self.calls, self.failing, self.num_gpus = [], {}, 1

    def _call(self, name, arguments):
        self.calls.append(name)
        for argument in arguments:
            target = getattr(argument, "_obj", None)
            if isinstance(target, ctypes.c_void_p | ctypes.c_uint64 | ctypes.c_int):
                target.value = 1
            elif isinstance(target, ctypes.c_float):
                target.value = 2.5
        return self.failing.get(name, 0)

    def __getattr__(self, name):
        return lambda *arguments: self._call(name, arguments)

    def _text(self, error, target, index):
        target._obj.value = TEXTS[error][index] if error in TEXTS else None
        return 0 if error in TEXTS else 1

    def cuGetErrorName(self, error, target):  # noqa: N802 - the driver's name
        return self._text(error, target, 0)

    def cuGetErrorString(self, error, target):  # noqa: N802
        return self._text(error, target, 1)

    def cuDeviceGetCount(self, target):  # noqa: N802
        target._obj.value = self.num_gpus
        return 0


@pytest.fixture
def driver(monkeypatch):
    found = Driver()
    monkeypatch.setattr(device, "load_driver", lambda: found)
    return found


def test_check_names_call_and_error():
    check(Driver(), "cuInit", 0)
    with pytest.raises(OutOfMemoryError) as caught:
        check(Driver(), "cuMemAlloc of 8 bytes", 2)
    assert str(caught.value) == "cuMemAlloc of 8 bytes failed with CUDA_ERROR_OUT_OF_MEMORY: out of memory"
    with pytest.raises(DeviceError) as caught:
        check(Driver(), "cuInit", 9999)
    assert str(caught.value) == "cuInit failed with CUDA error 9999: no message"
    assert not isinstance(caught.value, OutOfMemoryError)


@pytest.mark.parametrize("library", ["libno_such_driver.so.1", "libc.so.6"])
def test_machine_without_a_driver_is_an_error(monkeypatch, library):
    monkeypatch.setattr(device, "LIBRARY", library)
    load_driver.cache_clear()
    try:
        with pytest.raises(DeviceError, match=r"no usable NVIDIA driver: .*; run where nvidia-smi finds a GPU"):
            load_driver()
    finally:
        load_driver.cache_clear()


@pytest.mark.parametrize(
    ("call", "name", "message"),
    [
        (lambda gpu: gpu.alloc(1 << 40), "cuMemAlloc_v2", "cuMemAlloc of 1099511627776 bytes"),
        (lambda gpu: gpu.free(4096), "cuMemFree_v2", "cuMemFree"),
        (lambda gpu: gpu.upload(4096, np.zeros(8, np.uint16)), "cuMemcpyAsync", "cuMemcpyAsync"),
        (lambda gpu: gpu.download(4096, np.zeros((2, 8), np.uint16)[1]), "cuMemcpyAsync", "cuMemcpyAsync"),
        (lambda gpu: gpu.copy(4096, 8192, 16), "cuMemcpyAsync", "cuMemcpyAsync"),
        (lambda gpu: gpu.fill(4096, 0xFF, 16), "cuMemsetD8Async", "cuMemsetD8Async"),
        (lambda gpu: gpu.synchronize(), "cuStreamSynchronize", "cuStreamSynchronize"),
        (lambda gpu: gpu.time_us(lambda: None), "cuEventRecord", "cuEventRecord"),
        (lambda gpu: gpu.time_us(lambda: None), "cuEventElapsedTime", "cuEventElapsedTime"),
        (lambda gpu: gpu.capture(lambda: None), "cuStreamBeginCapture_v2", "cuStreamBeginCapture"),
        (lambda gpu: gpu.capture(lambda: None), "cuGraphInstantiateWithFlags", "cuGraphInstantiate"),
        (lambda gpu: gpu.replay_us(1), "cuGraphLaunch", "cuGraphLaunch"),
        (lambda gpu: gpu.destroy(1), "cuGraphExecDestroy", "cuGraphExecDestroy"),
    ],
)
def test_every_failure_is_told(driver, call, name, message):
    gpu = CudaGpu(PROPERTIES)
    driver.failing[name] = 1
    with pytest.raises(DeviceError, match=f"^{message} failed with CUDA_ERROR_INVALID_VALUE: invalid argument$"):
        call(gpu)


def test_replay_warms_up_before_the_first_event(driver):
    gpu = CudaGpu(PROPERTIES)
    assert (gpu.stream, gpu.l2_bytes) == (1, 1 << 20)
    gpu.time_us(lambda: None)
    driver.calls.clear()
    assert gpu.replay_us("graph") == 2500.0
    assert driver.calls == [
        "cuGraphLaunch",
        "cuEventRecord",
        "cuGraphLaunch",
        "cuEventRecord",
        "cuStreamSynchronize",
        "cuEventElapsedTime",
    ]


def test_the_separator_is_loaded_once_and_launched_as_an_ordinary_kernel(driver):
    gpu = CudaGpu(PROPERTIES)
    driver.calls.clear()
    gpu.launch_separator()
    assert driver.calls == [
        "cuMemAlloc_v2",
        "cuMemsetD8Async",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuLaunchKernel",
    ]
    driver.calls.clear()
    gpu.launch_separator()
    assert driver.calls == ["cuLaunchKernel"]


def test_a_driver_that_compiles_no_ptx_is_told(driver):
    driver.failing["cuModuleLoadData"] = 1
    with pytest.raises(DeviceError) as caught:
        CudaGpu(PROPERTIES).launch_separator()
    assert str(caught.value) == (
        "the driver does not compile PTX: cuModuleLoadData failed with CUDA_ERROR_INVALID_VALUE: invalid argument; is "
        "libnvidia-ptxjitcompiler.so.1, a part of the driver, there?"
    )


def test_flush_lies_outside_the_events(driver):
    gpu = CudaGpu(PROPERTIES)
    gpu.flushed_us(lambda i: None, 2, 4096, 64)
    driver.calls.clear()
    assert gpu.flushed_us(lambda i: driver.calls.append(f"launch {i}"), 2, 4096, 64) == [2500.0, 2500.0]
    turns = [["cuMemsetD8Async", "cuEventRecord", f"launch {i}", "cuEventRecord"] for i in range(2)]
    assert driver.calls == [*turns[0], *turns[1], "cuStreamSynchronize", "cuEventElapsedTime", "cuEventElapsedTime"]


def test_capture_frees_the_graph_it_instantiates(driver):
    gpu = CudaGpu(PROPERTIES)
    driver.calls.clear()
    assert gpu.capture(lambda: driver.calls.append("launch")).value == 1
    assert driver.calls == [
        "cuStreamBeginCapture_v2",
        "launch",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphDestroy",
    ]


def test_failed_launch_ends_the_capture(driver):
    gpu = CudaGpu(PROPERTIES)
    driver.calls.clear()

    def launch():
        raise DeviceError("launch refused")

    with pytest.raises(DeviceError, match="launch refused"):
        gpu.capture(launch)
    assert driver.calls == ["cuStreamBeginCapture_v2", "cuStreamEndCapture"]


def test_error_that_a_synchronize_repeats_loses_the_context(driver):
    gpu = CudaGpu(PROPERTIES)
    assert not gpu.is_lost()
    driver.failing["cuCtxSynchronize"] = 700
    assert gpu.is_lost()


def test_properties_are_read(driver, monkeypatch):
    values = {75: 9, 76: 0, 16: 132, 38: 62914560, 50: 0, 33: 0x19, 34: 0, 18: 0}

    def attribute(target, number, handle):
        target._obj.value = values[number]
        return 0

    def name(buffer, size, handle):
        buffer.value = b"NVIDIA H200 MIG 1g.18gb"
        return 0

    def version(target):
        target._obj.value = 13000
        return 0

    answers = SimpleNamespace(cuDeviceGetAttribute=attribute, cuDeviceGetName=name, cuDriverGetVersion=version)
    for key, answer in vars(answers).items():
        monkeypatch.setattr(driver, key, answer, raising=False)
    assert read_properties() == DeviceProperties(
        "NVIDIA H200 MIG 1g.18gb", (9, 0), 132, 62914560, "CUDA 13.0", "00000000:19:00.0", False
    )
    with pytest.raises(DeviceError, match="there is no GPU 3: cuDeviceGetCount says 1"):
        read_properties(3)
