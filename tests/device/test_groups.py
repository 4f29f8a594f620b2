"""Random batches and groups against float64, on the GPU, and the torch operator of groups in a CUDA graph."""

import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("aot_gemm")

import aot_gemm
import torch

from tests.device.group_cases import GROUPED, TAILS, grouped_case
from tests.device.groups import check, draws, line
from tests.device.reference import randn

COUNT = 300


@pytest.mark.parametrize("name", list(draws()))
def test_random_calls_against_float64(name):
    tally = check(aot_gemm, name, COUNT)
    if not tally.count:
        pytest.skip(f"the wheel has no kernels for {name}")
    assert tally.wrong == 0, line(name, tally)


@pytest.mark.parametrize("ordinal", range(5))
@pytest.mark.parametrize("kind", GROUPED, ids=lambda x: x.name)
def test_what_lies_behind_k_is_in_no_result(kind, ordinal):
    tail = TAILS[kind.dtypes[0].itemsize][ordinal]
    for seed in range(10):
        case = grouped_case(kind, random.Random(f"{kind.name} {tail} {seed}"), "cuda", tail)
        try:
            aot_gemm.grouped_linear(*case.arguments, **case.keywords)
        except aot_gemm.UnsupportedError as error:
            pytest.skip(str(error))
        share = case.expected.share(case.whole)
        assert share <= 1, (share, case.text)


def test_a_cuda_graph_of_a_list_reads_the_weights_where_they_lay():
    """The list of the capture may be gone at a replay: the graph has the addresses, and reads the weights of then."""
    x, made = randn(96, 256, dtype=torch.bfloat16), [randn(128, 256, dtype=torch.bfloat16) for _ in range(5)]
    offsets = torch.tensor([10, 10, 70, 96], dtype=torch.int32, device="cuda")
    weights = [made[place] for place in (4, 0, 3, 1)]
    try:
        aot_gemm.grouped_linear(x, weights, offsets)
    except aot_gemm.UnsupportedError as error:
        pytest.skip(str(error))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = aot_gemm.grouped_linear(x, list(weights), offsets)
    for _ in range(2):
        for weight in weights:
            weight.copy_(torch.randn_like(weight))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, aot_gemm.grouped_linear(x, torch.stack(weights), offsets))


def test_a_cuda_graph_takes_the_operator_and_follows_the_offsets():
    import aot_gemm.torch  # registers the operator

    x, weight = randn(96, 256, dtype=torch.bfloat16), randn(4, 128, 256, dtype=torch.bfloat16)
    offsets = torch.tensor([10, 10, 70, 96], dtype=torch.int32, device="cuda")
    try:
        torch.ops.aot_gemm.grouped_linear(x, weight, offsets)
    except aot_gemm.UnsupportedError as error:
        pytest.skip(str(error))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.ops.aot_gemm.grouped_linear(x, weight, offsets)
    for ends in ([10, 10, 70, 96], [0, 96, 96, 96], [1, 2, 3, 96]):
        offsets.copy_(torch.tensor(ends, dtype=torch.int32))
        result.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, torch.ops.aot_gemm.grouped_linear(x, weight, offsets))
        starts = [0, *ends]
        expected = torch.cat([x[a:b] @ w.T for a, b, w in zip(starts, ends, weight, strict=False)])
        torch.testing.assert_close(result, expected, rtol=2e-2, atol=0.2)
