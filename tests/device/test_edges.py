"""How graphs order products of ours: programmatically behind our own kernels, ordinarily behind others."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("aot_gemm")

import aot_gemm
import torch

runtime = pytest.importorskip("cuda.bindings.runtime")

ORDINARY, PROGRAMMATIC = 0, 1
"""Kinds of an edge. Source: driver_types.h, cudaGraphDependencyType."""


class Operands:
    """A product, and calls of it, of torch's and of two kernels that are no products."""

    def __init__(self) -> None:
        self.x, weight = (torch.randn(size, 512, device="cuda", dtype=torch.bfloat16) for size in (64, 256))
        self.weight, self.out = weight, torch.empty(64, 256, device="cuda", dtype=torch.bfloat16)
        self.vector = torch.ones(1024, device="cuda")

    def ours(self) -> None:
        aot_gemm.linear(self.x, self.weight, out=self.out)

    def torchs(self) -> None:
        torch.mm(self.x, self.weight.t(), out=self.out)

    def neg(self) -> None:
        torch.neg(self.vector, out=self.vector)

    def zero(self) -> None:
        self.out.zero_()


def kinds(calls):
    """Capture calls, one behind the other, and give the kind of the edge to each but the first."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    raw, room = graph.raw_cuda_graph(), 64
    _, nodes, count = runtime.cudaGraphGetNodes(raw, room)
    places = {int(node): i for i, node in enumerate(nodes[:count])}
    _, _, targets, edges, count = runtime.cudaGraphGetEdges(raw, room)
    assert (len(places), count) == (len(calls), len(calls) - 1)
    found = sorted((places[int(targets[i])], int(edges[i].type)) for i in range(count))
    graph.replay()
    torch.cuda.synchronize()
    return [kind for _, kind in found]


def test_only_behind_a_kernel_of_ours_is_a_product_launched_programmatically():
    x = Operands()
    if "_simt_" in aot_gemm.plan(64, 256, 512, "bfloat16").kernel:
        pytest.skip("NOT TESTED: the wheel's kernel of this product is never launched programmatically")
    for call in (x.ours, x.torchs, x.neg, x.zero):
        call()
    torch.cuda.synchronize()
    assert kinds([x.neg, x.ours, x.ours, x.neg, x.ours]) == [ORDINARY, PROGRAMMATIC, ORDINARY, ORDINARY]
    assert kinds([x.torchs, x.ours, x.torchs, x.ours]) == [ORDINARY] * 3
    assert kinds([x.zero, x.ours, x.ours]) == [ORDINARY, PROGRAMMATIC]
    assert kinds([x.ours] * 4) == [PROGRAMMATIC] * 3
    expected = torch.mm(x.x, x.weight.t())
    assert torch.linalg.vector_norm((x.out - expected).float()) <= 0.01 * torch.linalg.vector_norm(expected.float())


@pytest.mark.parametrize("m", [1, 8, 16, 32, 64])
def test_products_behind_each_other_in_a_graph_have_the_bits_of_calls_outside_one(m):
    """There a launch may ask for more shared memory, so that its CTAs are spread."""
    sizes = ((4096, 2048), (1024, 2048), (1024, 2048), (2048, 4096), (512, 2048), (1280, 5120), (640, 2560))
    operands = []
    for n, k in sizes:
        x, weight = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
        operands.append((x, weight, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)))
    expected = [aot_gemm.linear(x, weight) for x, weight, _ in operands]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x, weight, out in operands:
            aot_gemm.linear(x, weight, out=out)
    for _ in range(3):
        for _, _, out in operands:
            out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, right) for (_, _, out), right in zip(operands, expected, strict=True))
