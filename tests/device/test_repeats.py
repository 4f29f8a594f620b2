"""Results that repeat bit for bit: of all batches and groups from run to run, and in batch-invariant mode over m."""

import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("aot_gemm")

import aot_gemm
import torch
from aot_gemm import _packed
from aot_gemm._manifest import manifest

from tests.device.group_cases import GROUPED, batch_case, grouped_case, runs_case
from tests.device.reference import randn
from tests.device.repeats import MOST_ROWS, Rows, count_varying, edges, sampled_rows

RUNS, CASES, DRAWS = 100, 3, 20
"""Of each case; of each kind, cases, and most that are drawn until so many are of types that the wheel has."""
SHAPES = ((4096, 4096), (1024, 4096), (28672, 4096), (520, 264))
"""(n, k): of ladders of the wheels that the project builds, and one of the grid."""
DRAWN = {
    "batches": ("matmul", batch_case),
    **{
        kind.name: ("grouped_linear", lambda rng, device, kind=kind: grouped_case(kind, rng, device))
        for kind in GROUPED
    },
    "runs of k": ("grouped_linear", runs_case),
}


def supported(call):
    """Return what a call gives; skip where the wheel has no kernels for it."""
    try:
        return call()
    except aot_gemm.UnsupportedError as error:
        pytest.skip(str(error)[:200])


@pytest.mark.parametrize("name", list(DRAWN))
def test_batches_and_groups_repeat_bit_for_bit(name):
    """Groups have kernels that add in one order alone, and need not be asked; batches are."""
    function, draw = DRAWN[name]
    rng = random.Random(f"repeats {name}")
    options = {"deterministic": True} if function == "matmul" else {}
    found = 0
    for _ in range(DRAWS):
        case = draw(rng, "cuda")

        def call(case=case):
            getattr(aot_gemm, function)(*case.arguments, **case.keywords, **options)
            return case.whole.clone()

        try:
            varying = count_varying(call, RUNS)
        except aot_gemm.UnsupportedError:
            continue
        assert varying == 0, case.text
        found += 1
        if found == CASES:
            return
    if not found:
        pytest.skip(f"the wheel has no kernels for {name}")


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("m", [1, 16, 300, 2048])
def test_deterministic_products_repeat_bit_for_bit(m, n, k):
    x, weight = randn(m, k, dtype=torch.bfloat16), randn(n, k, dtype=torch.bfloat16)
    assert count_varying(lambda: aot_gemm.linear(x, weight, deterministic=True), RUNS) == 0
    assert count_varying(lambda: aot_gemm.matmul(x, weight.T, deterministic=True), RUNS) == 0


def invariant_rows(name, n, k):
    """Return the calls of a batch-invariant operation, and its tag."""
    weight = randn(n, k, dtype=torch.bfloat16)
    x = randn(MOST_ROWS, k, dtype=torch.bfloat16)
    calls = {
        "linear": ("bf16_kk", lambda x: aot_gemm.linear(x, weight, batch_invariant=True)),
        "matmul": ("bf16_kk", lambda x: aot_gemm.matmul(x, weight.T, batch_invariant=True)),
        "gated_linear": ("bf16_kk_swiglu", lambda x: aot_gemm.gated_linear(x, weight, batch_invariant=True)),
        "batch": (
            "bf16_kk",
            lambda x: aot_gemm.matmul(x.expand(3, *x.shape), weight.T.expand(3, k, n), batch_invariant=True)[1],
        ),
    }
    tag, call = calls[name]
    return tag, Rows(x, call)


@pytest.mark.parametrize("name", ["linear", "matmul", "gated_linear", "batch"])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_rows_bits_depend_neither_on_m_nor_on_its_neighbours(name, n, k):
    tag, rows = invariant_rows(name, n, k)
    try:
        rows.call(rows.x[:1])
    except (aot_gemm.UnsupportedError, aot_gemm.DtypeError) as error:  # the latter: there is no such table
        pytest.skip(str(error)[:200])
    known = edges(manifest(), _packed, tag, n, k)
    sample = sampled_rows(known)
    sample = sample if name == "linear" else sample[::7]
    assert list(rows.varying_with_m(sample)) == []
    assert list(rows.varying_with_neighbours(sample[::5])) == []


def grouped_rows(kind, n, k):
    """Return groups of any number of rows: three, whose second has none, of which the first has a third."""
    is_fp8 = kind.startswith("fp8")
    dtype = torch.float8_e4m3fn if is_fp8 else torch.bfloat16
    weight = randn(3, n, k, dtype=torch.bfloat16)
    weight = (weight[:1].expand(3, n, k) if kind != "listed" else weight).to(dtype).contiguous()
    weight[1:] = weight[:1]
    weights = [x.clone() for x in weight] if kind == "listed" else weight
    blocks = -(-n // 128), -(-k // 128)
    of_x = torch.rand(MOST_ROWS, blocks[1] if kind == "fp8 blocks" else 1, device="cuda") + 0.5
    of_w = torch.rand(3, *blocks, device="cuda") if kind == "fp8 blocks" else torch.rand(3, n, device="cuda")
    of_w[1:] = of_w[:1]

    def call(x):
        m = x.shape[0]
        ends = torch.tensor([m // 3, m // 3, m], dtype=torch.int32, device="cuda")
        scales = {"scale_x": of_x[:m], "scale_w": of_w} if is_fp8 else {}
        index = {"index": torch.arange(m, dtype=torch.int32, device="cuda")} if kind == "gathered" else {}
        gate = {"gate": "silu"} if kind == "gathered" else {}
        return aot_gemm.grouped_linear(x, weights, ends, **scales, **index, **gate)

    return Rows(randn(MOST_ROWS, k, dtype=torch.bfloat16).to(dtype), call)


@pytest.mark.parametrize("kind", ["rows", "gathered", "listed", "fp8 rows", "fp8 blocks"])
@pytest.mark.parametrize(("n", "k"), [(2816, 2048), (512, 256)])
def test_a_grouped_rows_bits_depend_neither_on_m_nor_on_its_neighbours(kind, n, k):
    """The groups have equal weights, so that a row has the same product in each. All kernels of groups that use the
    tensor cores add up k in one order."""
    rows = grouped_rows(kind, n, k)
    supported(lambda: rows.call(rows.x[:3]))
    tags = {"gathered": "bf16_kk_gathered_swiglu", "fp8 rows": "e4m3_bf16_kk_grouped"}
    tag = {"fp8 blocks": "e4m3_bf16_block_kk_grouped"} | tags
    sample = sampled_rows(3 * x for x in edges(manifest(), _packed, tag.get(kind, "bf16_kk_grouped"), n, k))[::4]
    assert list(rows.varying_with_m(sample)) == []
    assert list(rows.varying_with_neighbours(sample[::8])) == []


def test_separate_weights_in_a_cuda_graph_are_read_at_each_replay():
    x, stack = randn(96, 256, dtype=torch.bfloat16), randn(5, 128, 256, dtype=torch.bfloat16)
    weights = [stack[i].clone() for i in (3, 1, 4, 0, 2)]
    offsets = torch.tensor([10, 10, 70, 90, 96], dtype=torch.int32, device="cuda")
    supported(lambda: aot_gemm.grouped_linear(x, weights, offsets))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = aot_gemm.grouped_linear(x, list(weights), offsets)
    for seed in range(3):
        torch.manual_seed(seed)
        for weight in weights:
            weight.copy_(randn(128, 256, dtype=torch.bfloat16))
        result.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, aot_gemm.grouped_linear(x, torch.stack(weights), offsets))
