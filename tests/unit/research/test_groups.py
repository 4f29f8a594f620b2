"""What the bench of groups measures, by stand-ins on the CPU, and what it says of its rows."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from aot.core.operation import Operation
from aot.core.problem import Problem
from research.bench import groups, moe
from research.bench.moe import Model
from tests.unit.wheel_twin import wheel_twin

SMALL = Model("small, 2 of 4", 4, 2, 128, 128)


class OnCpu(TorchFunctionMode):
    """Makes tensors on the CPU that are asked for on a GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def grouped(x, weight, offsets, *, out=None, index=None, gate=None, scale_x=None, scale_w=None, out_dtype=None):
    weight = torch.stack(weight) if isinstance(weight, list) else weight
    values, weights = x.float(), weight.float()
    if scale_x is not None:
        values = values * scale_x.repeat_interleave(128, -1)
        weights = weights * scale_w.repeat_interleave(128, -1).repeat_interleave(128, -2)
    values = values if index is None else values[index.long()]
    ends = [0, *offsets.tolist()]
    result = torch.cat([values[a:b] @ w.T for a, b, w in zip(ends, ends[1:], weights, strict=False)])
    if gate:
        first, second = result.chunk(2, -1)
        result = torch.nn.functional.silu(first) * second
    return result.to(torch.bfloat16) if out is None else out.copy_(result)


def linear(x, weight, *, out=None, deterministic=False, batch_invariant=False):
    result = (x.float() @ weight.float().T).to(x.dtype)
    return result if out is None else out.copy_(result)


def matmul(a, b, *, out=None):
    result = torch.bmm(a, b)
    return result if out is None else out.copy_(result)


def plan(*_sizes, batch):
    return SimpleNamespace(kernel=f"a_kernel_of_{batch}")


WHEEL = wheel_twin(
    "twin_of_groups", grouped_linear=grouped, linear=linear, matmul=matmul, plan=plan, AotGemmError=NotImplementedError
)


def once(calls, sets):
    """Make each call once; the wheel and the modes take 2 us, the others 3."""
    for call in calls.values():
        call(*sets[0])
    return {name: 2.0 if "wheel" in name or name == "default" else 3.0 for name in calls}


def grouped_mm(rows, weight, *, offs):
    return grouped(rows, weight.transpose(1, 2), offs)


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(groups, "medians", once)
    monkeypatch.setattr(groups, "MODELS", (SMALL,))
    monkeypatch.setattr(groups, "BATCHES", (("scores", 3, 16, 24, 8, "kk"), ("values", 3, 16, 8, 24, "kn")))
    few = SimpleNamespace(operations=[Operation.BF16_KN_BATCHED], problems=lambda x: [Problem(x, 7, 9, 5, 3)])
    monkeypatch.setattr(groups, "load_shape_set", {"batches_heldout": few}.__getitem__)
    monkeypatch.setattr(groups, "WEIGHTS", ((32, 64),))
    monkeypatch.setattr(groups, "ROWS", (1, 1024))
    monkeypatch.setattr(
        groups, "make_sets", lambda m, n, k, dtype: [(torch.randn(m, k), torch.randn(n, k), torch.empty(m, n))]
    )
    monkeypatch.setattr(moe, "medians", lambda calls: once(calls, [()]))
    monkeypatch.setattr(torch, "_grouped_mm", grouped_mm)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=1000))


def measured(parts, wheel=WHEEL):
    values = argparse.Namespace(parts=parts, tokens=[16, 1024], layer_tokens=[16], max_seconds=float("inf"))
    with OnCpu(), torch.no_grad():
        return groups.measure(wheel, values, 0.0)


@pytest.mark.usefixtures("_small")
def test_every_part_but_layers_is_measured_and_right():
    result = measured(["grouped", "fp8", "batched", "heldout", "modes"])
    numbers = {"grouped": 4, "fp8": 2, "batched": 2, "heldout": 1, "modes": 2}
    assert {part: len(result[part]) for part in groups.PARTS[:-1]} == numbers
    assert (groups.wrong(result), result["refused"]) == ([], {})
    text = groups.summary(result)
    assert "grouped: geometric mean 1.500 of 4, least 1.50" in text
    assert "fp8, blocks, from 1024 tokens on: geometric mean 1.500 of 1, least 1.50" in text
    assert "batched: geometric mean 1.500 of 2, least 1.50" in text
    assert "heldout    3 m    7 n    9 k    5 kn" in text.replace("heldout batch", "heldout")
    assert "heldout: geometric mean 1.500 of 1, least 1.50" in text
    assert "batch_invariant: price to m 512 in the geometric mean 1.500 of 1" in text
    assert max(map(len, text.splitlines())) <= 140


@pytest.mark.usefixtures("_small")
def test_a_wrong_result_and_a_refusal_are_told():
    def refused(*_operands, **_keywords):
        raise NotImplementedError("no kernels\nfor this")

    wheel = SimpleNamespace(
        **{**vars(WHEEL), "matmul": lambda a, b, out=None: 1.1 * torch.bmm(a, b), "linear": refused}
    )
    result = measured(["batched", "modes"], wheel)
    assert len(groups.wrong(result)) == 2
    assert result["refused"] == {"modes": "no kernels"}
    assert "modes ended early: no kernels" in groups.summary(result)


@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.slow
def test_blocks_hold_the_values_times_their_factors(rows):
    values = torch.randn(2, 256, 384)
    rounded, scale = groups.blocks(values, rows)
    assert scale.shape == (2, 256 // rows, 3)
    back = rounded.float() * scale.repeat_interleave(rows, -2).repeat_interleave(128, -1)
    torch.testing.assert_close(back, values, rtol=2**-4, atol=2**-8)
