"""What the bench of several weights draws, and what it says of its rows."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.unit.research.test_groups import OnCpu


@pytest.fixture
def several(monkeypatch):
    """Import research.bench.several with a wheel of torch's products, in which the second weight's may be `wrong`."""

    def linear_many(x, weights, biases, *, out):
        assert biases == [None] * len(weights)
        for i, (weight, result) in enumerate(zip(weights, out, strict=True)):
            torch.mm(x, weight.t(), out=result).add_(1.0 if wheel.wrong and i == 1 else 0.0)

    wheel = ModuleType("aot_gemm")
    wheel.linear, wheel.plan = (
        lambda x, w, out: torch.mm(x, w.t(), out=out),
        lambda *_, **__: SimpleNamespace(kernel="x"),
    )
    wheel._operations, wheel.wrong = SimpleNamespace(linear_many=linear_many), False
    monkeypatch.setitem(sys.modules, "aot_gemm", wheel)
    monkeypatch.delitem(sys.modules, "research.bench.several", raising=False)
    import research.bench.several as module

    def capture(call, sets):
        for operands in sets:
            call(*operands)
        return None, len(sets)

    monkeypatch.setattr(module, "capture", capture)
    monkeypatch.setattr(module, "interleave", lambda graphs: {x: [2.0 + (x == "torch")] for x in graphs})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=1 << 10))
    yield module
    sys.modules.pop("research.bench.several", None)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_problem_is_computed_and_timed_three_ways(several, is_wrong):
    sys.modules["aot_gemm"].wrong = is_wrong
    with OnCpu():
        row = several.measure(3, (16, 8, 8), 24)
    assert {x: row[x] for x in ("m", "sizes", "k", "kernel")} == {"m": 3, "sizes": [16, 8, 8], "k": 24, "kernel": "x"}
    assert (row["one_us"], row["torch_us"], row["one_speedup"], row["apart_speedup"]) == (2.0, 3.0, 1.5, 1.5)
    assert (row["error"] > several.TOLERANCE) == is_wrong


def test_what_is_drawn_is_aligned_and_the_same_each_time(several):
    drawn = several.draw(200, 3)
    assert drawn == several.draw(200, 3)
    assert drawn != several.draw(200, 4)
    assert all(0 < m <= 1024 and k % 8 == 0 and len(sizes) == 3 for m, sizes, k in drawn)
    assert all(n > 0 and n % 8 == 0 for _, sizes, _ in drawn for n in sizes)
    assert {min(8, sizes[0] // sizes[1]) for _, sizes, _ in drawn} >= set(several.SHARES)
    assert any(low <= 16 for low, _, _ in drawn)


def test_a_summary_has_means_and_the_worst_by_rows(several):
    rows = [
        {"m": m, "one_speedup": one, "apart_speedup": 1.0} for m, one in ((1, 2.0), (16, 0.5), (17, 3.0), (1000, 0.97))
    ]
    found = several.summary(rows).splitlines()
    assert found == [
        "m 1 to 16, 2 problems: one 1.000, 50.0%, 0.500; apart 1.000, 0.0%, 1.000",
        "m 17 to 64, 1 problems: one 3.000, 0.0%, 3.000; apart 1.000, 0.0%, 1.000",
        "m 513 to 1024, 1 problems: one 0.970, 100.0%, 0.970; apart 1.000, 0.0%, 1.000",
        "m 1 to 1024, 4 problems: one 1.306, 50.0%, 0.500; apart 1.000, 0.0%, 1.000",
    ]


def test_a_mean_is_geometric(several):
    assert several.mean([2.0, 8.0]) == pytest.approx(4.0)
