"""The residual of the installed wheel's linear, on the GPU: its values, and what wrote it before."""

import random

import pytest

from tests.device.reference import error_bound, poisoned, randn, random_shapes, repeated

torch = pytest.importorskip("torch")
aot_gemm = pytest.importorskip("aot_gemm")

DTYPE = torch.bfloat16
SHAPES = [(1, 4096, 4096), (64, 4096, 4096), (600, 2048, 4096), (2600, 560, 4096), (5000, 848, 1024)]
"""Few rows, and those from which on a warp of its own loads the residual (`sm90_prefetch_b`)."""


@pytest.fixture(autouse=True, scope="module")
def _needs_the_operation():
    try:
        aot_gemm.plan(64, 64, 64, residual=True)
    except aot_gemm.UnsupportedError as error:
        pytest.skip(str(error))


def test_a_residual_on_300_random_shapes_writes_nothing_around_d():
    rng = random.Random(5)
    for m, n, k in random_shapes(seed=5, count=300):
        x, weight = randn(m, k, dtype=DTYPE), randn(n, k, dtype=DTYPE)
        residual = randn(m, n + rng.choice([0, 0, 8, 3]), dtype=DTYPE)[:, :n] * 30
        guarded = poisoned(m + 2, n, dtype=DTYPE)
        out = guarded[1:-1]
        assert aot_gemm.linear(x, weight, residual=residual, out=out) is out
        expected = x.float() @ weight.float().t() + residual.float()
        is_wrong = (out.float() - expected).abs() > error_bound(expected, k, DTYPE)
        assert not is_wrong.any(), (m, n, k)
        assert guarded[0].isnan().all()
        assert guarded[-1].isnan().all()


def test_a_residual_that_d_takes_the_place_of_is_refused():
    x, weight, residual = randn(64, 128, dtype=DTYPE), randn(256, 128, dtype=DTYPE), randn(64, 256, dtype=DTYPE)
    before = residual.clone()
    with pytest.raises(aot_gemm.AotGemmError, match="overlaps the residual"):
        aot_gemm.linear(x, weight, residual=residual, out=residual)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("promised", [False, True], ids=["default", "constant"])
@pytest.mark.parametrize("graph", [False, True], ids=["stream", "graph"])
def test_a_residual_is_read_after_the_kernel_in_front_wrote_it(shape, promised, graph):
    """The kernel in front is one of the wheel's own, which lets its successor start before its end."""
    m, n, k = shape
    first, weight = torch.ones(n, n, dtype=DTYPE, device="cuda") / n, torch.zeros(n, k, dtype=DTYPE, device="cuda")
    if promised:
        first, weight = aot_gemm.constant(first), aot_gemm.constant(weight)
    x, ones = torch.zeros(m, n, dtype=DTYPE, device="cuda"), torch.ones(m, k, dtype=DTYPE, device="cuda")
    zeros, written, out = (torch.zeros(m, n, dtype=DTYPE, device="cuda") for _ in range(3))

    def launch():
        aot_gemm.linear(x, first, residual=zeros, out=written)
        aot_gemm.linear(ones, weight, residual=written, out=out)

    replay = repeated(launch, captured=graph)
    stale = 0
    for trial in range(200):
        value = float(1 + trial % 100)
        x.fill_(value)
        torch.cuda.synchronize()
        replay()
        torch.cuda.synchronize()
        stale += not torch.equal(out, written) or abs(float(written[0, 0]) - value) > 1
    assert stale == 0
