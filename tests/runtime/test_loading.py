"""Lazy loading, devices, and failures of CUDA, each on a library that has not loaded anything yet."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from tests.golden.manifest import golden_manifest
from tests.runtime.host import (
    CAPABILITY,
    CAPTURE_MODE,
    CLEAR,
    GET_DEVICE,
    INIT,
    LAUNCH,
    LOAD,
    SET_DEVICE,
    SYNCHRONIZE,
    problem,
)
from tests.runtime.structs import MemoryStruct

SMALL = "bf16_kk_sm90_quack_64x16_c1x1_pingpong_swap"
ALIGNED = problem(64, 64, 64)
NUM_THREADS = 16


def test_loads_once_for_sixteen_threads(fresh_library):
    barrier = Barrier(NUM_THREADS)

    def launch(_):
        barrier.wait()
        return fresh_library.launch(ALIGNED)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        assert list(pool.map(launch, range(NUM_THREADS))) == [0] * NUM_THREADS
    assert len(fresh_library.fake_launches()) == NUM_THREADS
    assert (fresh_library.count(INIT), fresh_library.count(LOAD)) == (1, 1)


def test_loads_each_kernel_once_for_each_device(fresh_library):
    for device in (0, 1, 0, 1):
        assert fresh_library.launch(problem(64, 64, 64, device=device)) == 0
    assert (fresh_library.count(INIT), fresh_library.count(LOAD), fresh_library.count(CAPABILITY)) == (1, 2, 2)
    assert [x.device for x in fresh_library.fake_launches()] == [0, 1, 0, 1]


def test_loading_is_let_through_a_capture_and_the_mode_restored(fresh_library):
    assert fresh_library.launch(ALIGNED) == 0
    assert fresh_library.c.recorder_loads_outside_relaxed_mode() == 0
    assert fresh_library.count(CAPTURE_MODE) == 2
    assert fresh_library.launch(ALIGNED) == 0
    assert fresh_library.count(CAPTURE_MODE) == 2


def test_the_callers_device_is_restored(fresh_library):
    assert fresh_library.launch(problem(64, 64, 64, device=3)) == 0
    assert fresh_library.c.recorder_current_device() == 0
    assert fresh_library.count(SET_DEVICE) == 2
    assert fresh_library.launch(problem(64, 64, 64, device=0)) == 0
    assert fresh_library.count(SET_DEVICE) == 2


def test_preload_loads_everything(fresh_library):
    assert fresh_library.c.aot_gemm_preload(-1) == 0
    num_kernels = fresh_library.c.aot_gemm_num_kernels()
    assert (fresh_library.count(INIT), fresh_library.count(LOAD)) == (num_kernels, num_kernels)
    assert fresh_library.launch(ALIGNED) == 0
    assert fresh_library.count(LOAD) == num_kernels


def test_another_architecture_is_named(fresh_library):
    for capability in ((8, 0), (9, 1), (10, 0)):
        fresh_library.c.recorder_set_capability(*capability)
        assert fresh_library.launch(ALIGNED) == 6
        assert fresh_library.error() == (
            f"device 0 has compute capability {capability[0]}.{capability[1]}; these kernels are sm_90a and run on 9.0 "
            "only; install the wheel built for this GPU"
        )
    assert fresh_library.count(INIT) == 0


def test_no_gpu_is_named_whichever_call_says_so(fresh_library):
    for call in (GET_DEVICE, CAPABILITY, INIT):
        fresh_library.c.recorder_reset()
        fresh_library.c.recorder_fail(call, 100)
        assert fresh_library.launch(ALIGNED) == 5
        assert fresh_library.error() == (
            "no usable NVIDIA GPU: no CUDA-capable device is detected (CUDA error 100); expected a sm_90a GPU and a "
            "driver for CUDA 13.0 or newer; see what nvidia-smi says"
        )


def test_failures_name_the_kernel_and_are_not_remembered(fresh_library):
    texts = {INIT: "reading the binary of kernel", LOAD: "loading kernel", LAUNCH: "launching kernel"}
    for call, what in texts.items():
        fresh_library.c.recorder_fail(call, 719)
        assert fresh_library.launch(ALIGNED) == 7
        assert fresh_library.error() == f"{what} {SMALL} failed on device 0: recorded error (CUDA error 719)"
        fresh_library.c.recorder_fail(call, 0)
    assert fresh_library.launch(ALIGNED) == 0


def test_failures_outside_a_kernel_say_what_failed(fresh_library):
    fresh_library.c.recorder_fail(SET_DEVICE, 101)
    assert fresh_library.launch(problem(64, 64, 64, device=9)) == 7
    assert (
        fresh_library.error() == "switching to the operands' device failed on device 9: recorded error (CUDA error 101)"
    )
    fresh_library.c.recorder_fail(SYNCHRONIZE, 700)
    assert fresh_library.c.aot_gemm_synchronize(-1, None) == 7
    assert fresh_library.error() == "waiting for the stream failed on device 0: recorded error (CUDA error 700)"
    fresh_library.c.recorder_fail(CLEAR, 700)
    stated = problem(16, 4096, 4096)
    num_bytes = fresh_library.workspace_bytes(stated)
    assert num_bytes > 0
    assert fresh_library.launch(stated, 0x10000, num_bytes) == 7
    assert fresh_library.error() == (
        "clearing the workspace of kernel bf16_kk_sm90_prefetch_b_64x32_c1x1_splitk_serial4 failed on device 0: "
        "recorded error (CUDA error 700)"
    )


def test_a_device_past_the_last_is_an_argument_error(fresh_library):
    assert fresh_library.launch(problem(64, 64, 64, device=64)) == 1
    assert fresh_library.error() == "device ordinal is 64; expected 0 to 63"


def memory_of(library, device=-1):
    found = MemoryStruct(ctypes.sizeof(MemoryStruct))
    assert library.c.aot_gemm_memory(device, ctypes.byref(found)) == 0
    return found.num_objects, found.object_bytes, found.num_loaded, found.loaded_bytes


def test_what_is_loaded_on_a_device_is_told(fresh_library):
    kernels = golden_manifest().kernels
    num_kernels, num_bytes = len(kernels), sum(x.object_bytes for x in kernels)
    assert memory_of(fresh_library) == (num_kernels, num_bytes, 0, 0)
    assert fresh_library.count(INIT) == 0
    assert fresh_library.launch(ALIGNED) == 0
    assert memory_of(fresh_library) == (num_kernels, num_bytes, 1, kernels[0].object_bytes)
    assert memory_of(fresh_library, 1)[2:] == (0, 0)
    assert fresh_library.c.aot_gemm_preload(1) == 0
    assert memory_of(fresh_library, 1) == (num_kernels, num_bytes, num_kernels, num_bytes)


def test_a_struct_that_is_too_small_for_what_is_told_is_refused(fresh_library):
    found = MemoryStruct(ctypes.sizeof(MemoryStruct) - 8)
    assert fresh_library.c.aot_gemm_memory(-1, ctypes.byref(found)) == 1
    assert "expected sizeof(aot_gemm_memory_t), at least 40" in fresh_library.error()


def test_the_kernels_of_one_operation_are_loaded_alone(fresh_library):
    kernels = golden_manifest().kernels
    for tag in dict.fromkeys(x.operation.call for x in kernels):
        before = fresh_library.count(LOAD)
        assert fresh_library.c.aot_gemm_preload_operation(tag.encode(), -1) == 0
        assert fresh_library.count(LOAD) - before == sum(x.operation.call == tag for x in kernels)
    assert fresh_library.count(LOAD) == len(kernels)
    assert fresh_library.c.aot_gemm_preload_operation(b"no_such", -1) == 2
    assert 'there is no operation "no_such" in this library; it has bf16' in fresh_library.error()
    assert fresh_library.c.aot_gemm_preload_operation(None, -1) == 1
