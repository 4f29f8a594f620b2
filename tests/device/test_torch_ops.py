"""The wheel under torch.compile, in CUDA graphs, with gradients and under a model, beside torch's own results."""

import copy

import pytest

pytest.importorskip("torch")
pytest.importorskip("aot_gemm")

import torch
from torch import nn
from torch.library import opcheck

from tests.device.reference import randn

SHAPES = ((16, 4096), (4096, 4096))
BOUND = 0.02
"""Of the relative error of a few products in a row, in bfloat16."""


@pytest.fixture(scope="module")
def wheel():
    import aot_gemm.torch

    return aot_gemm.torch


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def operands(*, grad=False):
    return [(randn(*shape, dtype=torch.bfloat16) / shape[-1] ** 0.25).requires_grad_(grad) for shape in SHAPES]


def distance(result, expected):
    """Return the norm of the difference over that of what is expected."""
    return float((result.float() - expected.float()).norm() / expected.float().norm())


def make_model():
    layers = nn.Linear(1024, 4096, bias=False), nn.GELU(), nn.Linear(4096, 1024, bias=False)
    return nn.Sequential(*layers).to("cuda", torch.bfloat16)


def test_torch_finds_no_fault(wheel):
    for grad in (False, True):
        assert set(opcheck(torch.ops.aot_gemm.linear.default, operands(grad=grad)).values()) == {"SUCCESS"}
    x, weight = operands()
    out = torch.empty(16, 4096, dtype=torch.bfloat16, device="cuda")
    assert set(opcheck(torch.ops.aot_gemm.linear.out, (x, weight), {"out": out}).values()) == {"SUCCESS"}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_a_compiled_function_gives_what_an_eager_call_gives(wheel, mode):
    x, weight = operands()
    compiled = torch.compile(lambda x, w: wheel.linear(x, w), mode=mode, fullgraph=True)  # noqa: PLW0108 - made anew
    expected = wheel.linear(x, weight)
    for _ in range(3):
        assert distance(compiled(x, weight), expected) < BOUND


def test_a_cuda_graph_takes_the_operator(wheel):
    x, weight = operands()
    expected = torch.ops.aot_gemm.linear(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.ops.aot_gemm.linear(x, weight)
    result.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, expected)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_patched_model_trains_as_torch_trains_it(wheel, is_compiled):
    stock = make_model()
    patched = copy.deepcopy(stock)
    assert wheel.patch(patched).swapped == ("0", "2")
    function = torch.compile(patched, fullgraph=True) if is_compiled else patched
    x = randn(256, 1024, dtype=torch.bfloat16)
    for model in (stock, function):
        model(x).float().square().mean().backward()
    for mine, theirs in zip(patched.parameters(), stock.parameters(), strict=True):
        assert distance(mine.grad, theirs.grad) < BOUND
    with torch.no_grad():
        assert distance(function(x), stock(x)) < BOUND
