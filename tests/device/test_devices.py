"""Two GPUs in one process, many streams at once, and threads of which each has its own."""

import threading

import pytest

pytest.importorskip("torch")
pytest.importorskip("aot_gemm")

import aot_gemm
import aot_gemm.torch
import torch
from torch import nn

from tests.device.reference import error_bound

SHAPES = ((1, 4096, 4096), (16, 1024, 4096), (300, 520, 264), (8, 256, 16384), (2048, 512, 512))
"""(m, n, k): a tuned weight, others, and one with so long a k that kernels may split it and take a workspace."""
SLEEP_CYCLES = 20_000_000
"""Some 10 ms, by torch.cuda._sleep."""
STREAMS, ROUNDS = 8, 20


@pytest.fixture
def second():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU; expected two")
    before = torch.cuda.current_device()
    yield torch.device("cuda", 1)
    assert torch.cuda.current_device() == before, "a call left another GPU current"


def operands(shape, device="cuda:0", dtype=torch.bfloat16):
    m, n, k = shape
    return tuple(torch.randn(*extents, device=device).to(dtype) for extents in ((m, k), (n, k)))


def is_right(result, x, weight):
    expected = x.float() @ weight.float().T
    return bool(((result.float() - expected).abs() <= error_bound(expected, x.shape[1], result.dtype)).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("current", [0, 1])
def test_a_product_is_computed_where_its_operands_are(second, shape, current):
    for device in (torch.device("cuda", 0), second, torch.device("cuda", 0)):
        x, weight = operands(shape, device)
        with torch.cuda.device(current):
            result = aot_gemm.linear(x, weight)
            out = torch.empty_like(result)
            assert aot_gemm.linear(x, weight, out=out) is out
        assert result.device == device
        assert is_right(result, x, weight)
        assert is_right(out, x, weight)


def test_operands_on_two_gpus_are_refused_and_nothing_is_written(second):
    x, weight = operands(SHAPES[0])
    out = torch.full((1, 4096), 7.0, dtype=torch.bfloat16, device=second)
    for arguments, keywords in (
        ((x, weight.to(second)), {}),
        ((x.to(second), weight), {}),
        ((x, weight), {"out": out}),
        ((x, weight, torch.zeros(4096, dtype=torch.bfloat16, device=second)), {}),
    ):
        with pytest.raises(aot_gemm.AotGemmError):
            aot_gemm.linear(*arguments, **keywords)
    assert bool((out == 7).all())
    assert is_right(aot_gemm.linear(x, weight), x, weight)


def test_the_stream_is_that_of_the_operands_gpu(second):
    """A side stream is current on both; a product on GPU 1 waits for what GPU 1's stream has, whichever is current."""
    x, weight = operands(SHAPES[0], second)
    written = torch.zeros_like(weight)
    with torch.cuda.stream(torch.cuda.Stream(0)), torch.cuda.stream(torch.cuda.Stream(1)):
        torch.cuda.synchronize(1)
        with torch.cuda.device(1):
            torch.cuda._sleep(SLEEP_CYCLES)
        written.copy_(weight)
        with torch.cuda.device(0):
            result = aot_gemm.linear(x, written)
    torch.cuda.synchronize(1)
    assert is_right(result, x, weight)


def test_a_weight_that_comes_from_the_other_gpu_is_waited_for(second):
    x, weight = operands(SHAPES[0])
    held = torch.zeros_like(weight, device=second)
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    held.copy_(weight * 1, non_blocking=True)
    result = aot_gemm.linear(x.to(second), held)
    assert is_right(result, x.to(second), weight.to(second))


def test_a_graph_of_the_second_gpu_is_captured_and_replayed(second):
    x, weight = operands(SHAPES[3], second)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(1), torch.cuda.graph(graph, stream=torch.cuda.Stream(1)):
        result = aot_gemm.linear(x, weight)
    first = operands(SHAPES[3])
    for _ in range(3):
        x.normal_()
        torch.cuda.synchronize(1)
        with torch.cuda.device(1):
            graph.replay()
        assert is_right(aot_gemm.linear(*first), *first)
        torch.cuda.synchronize(1)
        assert is_right(result, x, weight)


def test_constant_weights_and_preload_of_the_second_gpu(second):
    aot_gemm.preload(1)
    x, weight = operands(SHAPES[0], second)
    held = aot_gemm.constant(weight)
    assert is_right(aot_gemm.linear(x, held), x, weight)
    with torch.cuda.device(1):
        loaded = aot_gemm.info().memory["kernels_loaded"]
    assert loaded > 0
    with pytest.raises(aot_gemm.AotGemmError):
        aot_gemm.preload(torch.cuda.device_count())


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_patched_model_whose_layers_are_on_two_gpus(second, is_compiled):
    first, last = nn.Linear(1024, 512, bias=False), nn.Linear(512, 1024, bias=False)
    first, last = first.to("cuda:0", torch.bfloat16), last.to(second, torch.bfloat16)

    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = first, last

        def forward(self, x):
            return self.last(self.first(x).to(second))

    torch._dynamo.reset()
    model = Split()
    x = torch.randn(4, 1024, device="cuda:0").bfloat16()
    with torch.no_grad():
        expected = model(x).float()
        assert aot_gemm.torch.patch(model).swapped == ("first", "last")
        got = (torch.compile(model) if is_compiled else model)(x)
    assert got.device == second
    assert float((got.float() - expected).norm() / expected.norm()) < 0.02


def run_together(functions):
    """Run functions in threads of their own, begun together; raise what one raises."""
    barrier, errors = threading.Barrier(len(functions)), []

    def run(function):
        try:
            barrier.wait(30)
            function()
        except BaseException as error:  # noqa: BLE001 - of a thread, which the test's own raises
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_threads_with_streams_of_their_own(num_gpus):
    if torch.cuda.device_count() < num_gpus:
        pytest.skip(f"GPUs: {torch.cuda.device_count()}; expected {num_gpus}")

    def work(index):
        torch.cuda.set_device(index % num_gpus)
        shape = SHAPES[index % len(SHAPES)]
        with torch.cuda.stream(torch.cuda.Stream()):
            x, weight = operands(shape, f"cuda:{index % num_gpus}")
            expected = aot_gemm.linear(x, weight, deterministic=True)
            assert is_right(expected, x, weight)
            for _ in range(ROUNDS):
                assert torch.equal(aot_gemm.linear(x, weight, deterministic=True), expected)

    run_together([lambda index=index: work(index) for index in range(STREAMS)])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_on_many_streams_at_once_share_no_workspace(shape):
    """All begin behind one event, so that they run side by side; each has other numbers."""
    streams = [torch.cuda.Stream(priority=-(i % 2)) for i in range(STREAMS)]
    pairs = [operands(shape) for _ in streams]
    gate = torch.cuda.Event()
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    gate.record()
    results = []
    for _ in range(ROUNDS):
        for stream, (x, weight) in zip(streams, pairs, strict=True):
            with torch.cuda.stream(stream):
                stream.wait_event(gate)
                results.append((aot_gemm.linear(x, weight), x, weight))
    torch.cuda.synchronize()
    assert all(is_right(*each) for each in results)


def test_a_stream_of_another_library_is_used():
    """A stream that torch did not make, as another library in the process hands it over."""
    import ctypes

    driver, stream = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    torch.cuda.current_stream()
    torch.zeros(1, device="cuda")
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0  # CU_STREAM_NON_BLOCKING
    x, weight = operands(SHAPES[0])
    written = torch.zeros_like(weight)
    torch.cuda.synchronize()
    external = torch.cuda.ExternalStream(stream.value)
    with torch.cuda.stream(external):
        torch.cuda._sleep(SLEEP_CYCLES)
        written.copy_(weight)
        result = aot_gemm.linear(x, written)
    external.synchronize()
    assert is_right(result, x, weight)
    assert driver.cuStreamDestroy_v2(stream) == 0
