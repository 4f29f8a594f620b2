"""The bias of the installed wheel's linear, on the GPU: its values, its one rounding, and what wrote it before."""

import random

import pytest

from tests.device.reference import error_bound, poisoned, randn, random_shapes, repeated

torch = pytest.importorskip("torch")
aot_gemm = pytest.importorskip("aot_gemm")

DTYPES = [torch.bfloat16, torch.float16]


def whole(*shape, high, dtype):
    """Return random whole numbers from -high to high."""
    return torch.randint(-high, high + 1, shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_bias_on_500_random_shapes_writes_nothing_around_d(dtype):
    rng = random.Random(3)
    for m, n, k in random_shapes(seed=3, count=500):
        x, weight = randn(m, k, dtype=dtype), randn(n, k, dtype=dtype)
        offset = rng.choice([0, 0, 1, 4])  # 0 is aligned to 16 bytes
        bias = (randn(n + offset, dtype=torch.float32) * 30).to(dtype)[offset:]
        guarded = poisoned(m + 2, n, dtype=dtype)
        out = guarded[1:-1]
        assert aot_gemm.linear(x, weight, bias, out=out) is out
        expected = x.float() @ weight.float().t() + bias.float()
        is_wrong = (out.float() - expected).abs() > error_bound(expected, k, dtype)
        assert not is_wrong.any(), (m, n, k, offset)
        assert guarded[0].isnan().all()
        assert guarded[-1].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 4608, 3584), (16, 1280, 5120), (300, 5120, 1280), (65, 264, 4096), (5, 7, 33)])
def test_the_sum_is_rounded_once(dtype, shape):
    """Products of whole numbers are exact in float32, and so is the sum with the bias: one rounding has one result."""
    m, n, k = shape
    x, weight = whole(m, k, high=8, dtype=dtype), whole(n, k, high=8, dtype=dtype)
    bias = whole(n, high=8, dtype=dtype) + 0.125
    exact = (x.double() @ weight.double().t()).float()
    expected = (exact + bias.float()).to(dtype)
    assert k < 1000 or not torch.equal(expected, exact.to(dtype) + bias)  # a second rounding would be seen
    assert torch.equal(aot_gemm.linear(x, weight, bias), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("promised", [False, True], ids=["default", "constant"])
@pytest.mark.parametrize("graph", [False, True], ids=["stream", "graph"])
def test_a_bias_is_read_after_the_kernel_in_front_wrote_it(dtype, promised, graph):
    """The kernel in front is one of the wheel's own, which lets its successor start before its end."""
    n, k = 4096, 4096
    first = torch.ones(n, k, dtype=dtype, device="cuda") / k
    weight = torch.zeros(n, k, dtype=dtype, device="cuda")
    if promised:
        first, weight = aot_gemm.constant(first), aot_gemm.constant(weight)
    x, ones = torch.zeros(1, k, dtype=dtype, device="cuda"), torch.ones(1, k, dtype=dtype, device="cuda")
    bias, out = torch.zeros(1, n, dtype=dtype, device="cuda"), torch.empty(1, n, dtype=dtype, device="cuda")

    def launch():
        aot_gemm.linear(x, first, out=bias)
        aot_gemm.linear(ones, weight, bias[0], out=out)

    replay = repeated(launch, captured=graph)
    stale = 0
    for trial in range(500):
        value = float(1 + trial % 100)
        x.fill_(value)
        torch.cuda.synchronize()
        replay()
        torch.cuda.synchronize()
        stale += not torch.equal(out, bias) or abs(float(bias[0, 0]) - value) > 1
    assert stale == 0


def test_what_is_no_bias_is_refused():
    x, weight = randn(8, 64, dtype=torch.float16), randn(16, 64, dtype=torch.float16)
    bias = randn(16, dtype=torch.float16)
    every_other = randn(32, dtype=torch.float16)[::2]
    for value in (bias[:8], bias[None], bias.float(), bias.cpu(), bias.bfloat16(), every_other, [1.0]):
        with pytest.raises(aot_gemm.AotGemmError):
            aot_gemm.linear(x, weight, value)
    shared = randn(8, 16, dtype=torch.float16)
    with pytest.raises(aot_gemm.AotGemmError):
        aot_gemm.linear(x, weight, shared[0], out=shared)
    with pytest.raises(aot_gemm.GradientError):
        aot_gemm.linear(x, weight, bias.requires_grad_())
