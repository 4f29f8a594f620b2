from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver, runtime

from aot import device
from aot.device import CudaGpu, DeviceProperties, check, read_properties
from aot.errors import DeviceError

HAS_GPU = int(runtime.cudaGetDeviceCount()[0]) == 0
PROPERTIES = DeviceProperties("Twin", (9, 0), 132, 1 << 20, "CUDA 13.0", "00000000:19:00.0", False)


def test_check_gives_what_the_call_gave():
    success = runtime.cudaError_t.cudaSuccess
    assert check("f", (success,)) is None
    assert check("f", (success, 5)) == 5
    assert check("f", (success, 5, 6)) == (5, 6)


def test_check_names_call_and_error():
    with pytest.raises(DeviceError) as caught:
        check("cudaMalloc of 8 bytes", (runtime.cudaError_t.cudaErrorMemoryAllocation, None))
    assert str(caught.value) == "cudaMalloc of 8 bytes failed with cudaErrorMemoryAllocation: out of memory"


def test_check_names_driver_errors(monkeypatch):
    monkeypatch.setattr(device.driver, "cuGetErrorString", lambda error: (driver.CUresult.CUDA_SUCCESS, b"bad value"))
    with pytest.raises(DeviceError, match="cuInit failed with CUDA_ERROR_INVALID_VALUE: bad value"):
        check("cuInit", (driver.CUresult.CUDA_ERROR_INVALID_VALUE,))


@pytest.mark.skipif(HAS_GPU, reason="shows the error of a machine without a GPU")
def test_machine_without_a_gpu_is_an_error():
    with pytest.raises(DeviceError, match="cudaGetDeviceCount failed with cudaError"):
        read_properties()
    with pytest.raises(DeviceError, match="cudaSetDevice failed with cudaError"):
        CudaGpu(PROPERTIES)


@pytest.mark.skipif(HAS_GPU, reason="passes addresses that are not real")
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda gpu: gpu.alloc(1 << 40), "cudaMalloc of 1099511627776 bytes"),
        (lambda gpu: gpu.free(4096), "cudaFree"),
        (lambda gpu: gpu.upload(4096, np.zeros(8, np.uint16)), "cudaMemcpyAsync"),
        (lambda gpu: gpu.download(4096, np.zeros((2, 8), np.uint16)[1]), "cudaMemcpyAsync"),
        (lambda gpu: gpu.copy(4096, 8192, 16), "cudaMemcpyAsync"),
        (lambda gpu: gpu.fill(4096, 0xFF, 16), "cudaMemsetAsync"),
        (lambda gpu: gpu.synchronize(), "cudaStreamSynchronize"),
        (lambda gpu: gpu.time_us(lambda: None), "cudaEventRecord"),
        (lambda gpu: gpu.capture(lambda: None), "cudaStreamBeginCapture"),
        (lambda gpu: gpu.replay_us(runtime.cudaGraphExec_t()), "cudaGraphLaunch"),
        (lambda gpu: gpu.destroy(runtime.cudaGraphExec_t()), "cudaGraphExecDestroy"),
        (lambda gpu: gpu._elapsed_us(), "cudaStreamSynchronize"),
    ],
)
def test_every_call_has_arguments_that_cuda_python_takes(call, name):
    # Without a driver each call fails, with CUDA's status and not with a TypeError, once its arguments are converted.
    gpu = CudaGpu.__new__(CudaGpu)
    gpu._stream, gpu._start, gpu._end = runtime.cudaStream_t(), runtime.cudaEvent_t(), runtime.cudaEvent_t()
    with pytest.raises(DeviceError, match=f"^{name} failed with cudaError"):
        call(gpu)
    assert gpu.is_lost()


class Recorder:
    """Stands for cuda.bindings.runtime: notes each call and answers with success and one value."""

    def __init__(self, failing=()):
        self.calls, self.failing = [], failing

    def __getattr__(self, name):
        if name.endswith(("Kind", "Mode", "_t")) or name == "cudaStreamNonBlocking":
            return getattr(runtime, name)

        def call(*arguments):
            self.calls.append(name)
            if name in self.failing:
                return (runtime.cudaError_t.cudaErrorUnknown,)
            if name == "cudaDeviceSynchronize":
                return (runtime.cudaError_t.cudaSuccess,)
            return (runtime.cudaError_t.cudaSuccess, 2.5 if name == "cudaEventElapsedTime" else 1)

        return call if name != "cudaGetErrorString" else runtime.cudaGetErrorString


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(device, "runtime", recorder)
    return recorder


def test_replay_warms_up_before_the_first_event(recorder):
    gpu = CudaGpu(PROPERTIES)
    assert (gpu.stream, gpu.l2_bytes) == (1, 1 << 20)
    recorder.calls.clear()
    assert gpu.replay_us("graph") == 2500.0
    assert recorder.calls == [
        "cudaGraphLaunch",
        "cudaEventRecord",
        "cudaGraphLaunch",
        "cudaEventRecord",
        "cudaStreamSynchronize",
        "cudaEventElapsedTime",
    ]


def test_capture_frees_the_graph_it_instantiates(recorder):
    gpu = CudaGpu(PROPERTIES)
    recorder.calls.clear()
    assert gpu.capture(lambda: recorder.calls.append("launch")) == 1
    assert recorder.calls == [
        "cudaStreamBeginCapture",
        "launch",
        "cudaStreamEndCapture",
        "cudaGraphInstantiate",
        "cudaGraphDestroy",
    ]


def test_failed_launch_ends_the_capture(recorder):
    gpu = CudaGpu(PROPERTIES)
    recorder.calls.clear()

    def launch():
        raise DeviceError("launch refused")

    with pytest.raises(DeviceError, match="launch refused"):
        gpu.capture(launch)
    assert recorder.calls == ["cudaStreamBeginCapture", "cudaStreamEndCapture"]


def test_error_that_a_synchronize_repeats_loses_the_context(recorder):
    gpu = CudaGpu(PROPERTIES)
    assert not gpu.is_lost()
    recorder.failing = ("cudaDeviceSynchronize",)
    assert gpu.is_lost()


def test_properties_are_read(monkeypatch):
    success = runtime.cudaError_t.cudaSuccess
    values = SimpleNamespace(
        name=b"NVIDIA H200\0", major=9, minor=0, multiProcessorCount=132, l2CacheSize=62914560,
        pciDomainID=0, pciBusID=0x19, pciDeviceID=0, integrated=0,
    )  # fmt: skip
    known = {
        "cudaGetDeviceCount": lambda: (success, 1),
        "cudaGetDeviceProperties": lambda _: (success, values),
        "cudaDriverGetVersion": lambda: (success, 13000),
    }
    monkeypatch.setattr(device, "runtime", SimpleNamespace(**known))
    assert read_properties() == DeviceProperties(
        "NVIDIA H200", (9, 0), 132, 62914560, "CUDA 13.0", "00000000:19:00.0", False
    )
    with pytest.raises(DeviceError, match="there is no GPU 3: cudaGetDeviceCount says 1"):
        read_properties(3)


def test_names_that_are_read_exist():
    fields = runtime.cudaDeviceProp()
    names = "name major minor multiProcessorCount l2CacheSize pciDomainID pciBusID pciDeviceID integrated"
    assert [name for name in names.split() if not hasattr(fields, name)] == []
