"""Streams of two frameworks, captures, and what other threads of Python do meanwhile."""

import itertools
import os
import threading
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("aot_gemm")

import aot_gemm
import torch

from tests.device.reference import randn
from tests.device.scene import value_of

TRIALS = 200
M, N, K = 8, 256, 1024
SPIN_US = 200
SLEEP_CYCLES = 400_000
"""About as long, by torch.cuda._sleep."""

SPIN_AND_FILL = r"""
extern "C" __global__ void spin_and_fill(unsigned short* target, unsigned short bits, long long count, long long ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < ns);
  const long long step = gridDim.x * (long long)blockDim.x;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step) target[i] = bits;
}
"""


@pytest.fixture(scope="module")
def cupy(tmp_path_factory):
    os.environ["CUPY_CACHE_DIR"] = str(tmp_path_factory.mktemp("cupy"))
    return pytest.importorskip("cupy")


@pytest.fixture
def fill(cupy):
    """Return what fills a float16 array of CuPy's, on its current stream, after a while."""
    import numpy as np

    kernel = cupy.RawKernel(SPIN_AND_FILL, "spin_and_fill")

    def run(array, value):
        bits = np.float16(value).view(np.uint16)
        kernel((32,), (256,), (array, bits, np.int64(array.size), np.int64(SPIN_US * 1000)))

    return run


@pytest.fixture(params=["default stream", "side stream"])
def torch_stream(request):
    stream = torch.cuda.default_stream() if request.param == "default stream" else torch.cuda.Stream()
    with torch.cuda.stream(stream):
        yield stream


def count_wrong(run):
    """Count the trials whose result, on the host, is not all of the trial's value."""
    wrong = 0
    for trial in range(TRIALS):
        torch.cuda.synchronize()
        wrong += bool((run(value_of(trial)).float().cpu() != value_of(trial)).any())
    return wrong


def test_a_weight_that_cupy_writes_on_its_own_stream(cupy, fill, torch_stream):
    x, weight = torch.full((M, K), 1 / K, dtype=torch.float16, device="cuda"), cupy.zeros((N, K), "float16")
    own = cupy.cuda.Stream(non_blocking=True)

    def run(value):
        with own:
            fill(weight, value)
            return aot_gemm.linear(x, weight)

    assert count_wrong(run) == 0


def test_cupys_later_work_waits_for_the_product(cupy, fill, torch_stream):
    x, weight = torch.full((M, K), 1 / K, dtype=torch.float16, device="cuda"), cupy.zeros((N, K), "float16")
    own = cupy.cuda.Stream(non_blocking=True)

    def run(value):
        weight.fill(value)
        torch.cuda.synchronize()
        with own:
            torch.cuda._sleep(SLEEP_CYCLES)  # the product is not run before CuPy's next write is enqueued
            result = aot_gemm.linear(x, weight)
            weight.fill(-1)
        return result

    assert count_wrong(run) == 0


def test_an_out_of_cupys_is_ready_on_cupys_stream(cupy, torch_stream):
    x, weight = torch.empty(M, K, dtype=torch.float16, device="cuda"), randn(N, K, dtype=torch.float16).fill_(1 / K)
    out = cupy.zeros((M, N), "float16")
    own = cupy.cuda.Stream(non_blocking=True)

    def run(value):
        with own:
            torch.cuda._sleep(SLEEP_CYCLES)
            x.fill_(value)
            assert aot_gemm.linear(x, weight, out=out) is out
            return torch.from_numpy(cupy.ascontiguousarray(out).get())

    assert count_wrong(run) == 0


def test_a_weight_of_torchs_under_an_x_of_cupys(cupy, torch_stream):
    x, weight = cupy.full((M, K), 1 / K, "float16"), torch.zeros(N, K, dtype=torch.float16, device="cuda")
    own = cupy.cuda.Stream(non_blocking=True)

    def run(value):
        with own:
            torch.cuda._sleep(SLEEP_CYCLES)
            weight.fill_(value)
            return torch.from_numpy(aot_gemm.linear(x, weight).get())

    assert count_wrong(run) == 0


@pytest.fixture
def jax():
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    found = pytest.importorskip("jax")
    if found.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    # Where there are several GPUs, a JAX that begins leaves its last one as CUDA's current one, which is then torch's.
    with found.default_device(found.local_devices(backend="gpu")[torch.cuda.current_device()]):
        yield found


def test_a_weight_that_jax_has_just_been_asked_for(jax, torch_stream):
    x = torch.full((M, K), 1 / K, dtype=torch.float16, device="cuda")

    @jax.jit
    def make(value):
        factor = jax.numpy.ones((2048, 2048), "float32") / 2048
        product = factor
        for _ in range(4):
            product = product @ factor
        return (product[0, 0] * value * 2048).round().astype("float16") * jax.numpy.ones((N, K), "float16")

    def run(value):
        return aot_gemm.linear(x, make(value))

    assert count_wrong(run) == 0


def test_an_x_of_jaxs_and_a_weight_of_torchs(jax, torch_stream):
    weight = torch.zeros(N, K, dtype=torch.float16, device="cuda")
    x = jax.numpy.full((M, K), 1 / K, "float16")

    def run(value):
        torch.cuda._sleep(SLEEP_CYCLES)
        weight.fill_(value)
        result = aot_gemm.linear(x, weight)
        assert isinstance(result, jax.Array)
        return torch.from_dlpack(result)

    assert count_wrong(run) == 0


def test_operands_of_two_frameworks_on_a_gpu_that_is_not_the_current_one(jax):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU; expected two")
    torch.cuda.set_device(0)
    weight = randn(N, K, dtype=torch.float16).to("cuda:1")
    with jax.default_device(jax.local_devices(backend="gpu")[1]):
        x = jax.numpy.full((M, K), 1 / K, "float16")
    result = aot_gemm.linear(x, weight)
    assert result.devices() == x.devices()
    expected = weight.float().mean(dim=1).cpu()
    assert torch.allclose(torch.from_dlpack(result).float().cpu()[0], expected, atol=1e-3)
    assert aot_gemm.linear(weight, x).device == weight.device
    with pytest.raises(aot_gemm.DeviceError, match="weight is on GPU 0, x on GPU 1"):
        aot_gemm.linear(x, weight.to("cuda:0"))


def test_constant_waits_for_what_writes_the_weight():
    weight = torch.zeros(N, K, dtype=torch.float16, device="cuda")
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100 * SLEEP_CYCLES)
            weight.fill_(1)
            assert not stream.query()
            aot_gemm.constant(weight)
            assert stream.query()


def test_constant_under_capture_is_refused_and_the_capture_goes_on():
    x, weight = randn(M, K, dtype=torch.float16), randn(N, K, dtype=torch.float16)
    out = torch.zeros(M, N, dtype=torch.float16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(aot_gemm.AotGemmError):
            aot_gemm.constant(weight)
        aot_gemm.linear(x, weight, out=out)
    graph.replay()
    assert torch.equal(out, aot_gemm.linear(x, weight))


def test_an_error_under_capture_leaves_the_capture_whole():
    x, weight = randn(M, K, dtype=torch.float16), randn(N, K, dtype=torch.float16)
    out = torch.zeros(M, N, dtype=torch.float16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for wrong in (weight.float(), weight[:, 1:], "weight", None, out):
            with pytest.raises(aot_gemm.AotGemmError):
                aot_gemm.linear(x, wrong, out=out)
        aot_gemm.linear(x.t().contiguous().t(), weight, out=out)
    graph.replay()
    torch.testing.assert_close(out, torch.nn.functional.linear(x, weight), rtol=5e-3, atol=5e-2)


def test_other_threads_run_while_a_launch_waits_for_the_queue():
    x, weight = randn(1, 512, dtype=torch.bfloat16), randn(512, 512, dtype=torch.bfloat16)
    out = torch.empty(1, 512, dtype=torch.bfloat16, device="cuda")
    aot_gemm.linear(x, weight, out=out)
    torch.cuda.synchronize()
    done, ticks = threading.Event(), []

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    other = threading.Thread(target=tick)
    other.start()
    calls = [time.perf_counter()]
    try:
        torch.cuda._sleep(2_000_000_000)  # a second
        for _ in range(4096):  # the queue takes 1024
            aot_gemm.linear(x, weight, out=out)
            calls.append(time.perf_counter())
    finally:
        done.set()
        other.join()
    begin, end = max(itertools.pairwise(calls), key=lambda pair: pair[1] - pair[0])
    if end - begin < 0.2:
        pytest.skip(f"the longest of 4096 launches took {end - begin:.3f} s: the queue did not fill")
    meanwhile = sum(begin < each < end for each in ticks)
    assert meanwhile > 100 * (end - begin), f"{meanwhile} ticks in a launch of {end - begin:.3f} s"
