"""What the bench of mixture-of-experts layers measures, by stand-ins on the CPU, and what it says of its rows."""

from __future__ import annotations

import pytest
import torch

from research.bench import moe
from research.bench.moe import Model, Weights, is_right, layer_row, summary
from tests.runtime.torch_reference import grouped_linear
from tests.unit.research.test_groups import OnCpu
from tests.unit.wheel_twin import Refusal, wheel_twin

SMALL = Model("small, 2 of 6", 6, 2, 32, 24)


def once(calls):
    for call in calls.values():
        call()
    return dict.fromkeys(calls, 2.0)


def no_block(*_operands):
    raise ImportError("no transformers")


@pytest.fixture
def _stand_ins(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(moe, "medians", once)
    monkeypatch.setattr(moe, "transformers_block", no_block)


def scaled(x, weight, offsets, *, index=None, scale_x=None, scale_w=None, gate=None, out_dtype=None):
    """Compute groups as the wheel's function, with factors of rows."""
    if scale_x is not None:
        x, weight = x.float() * scale_x, weight.float() * scale_w[..., None]
    return grouped_linear(x, weight, offsets, index=index, gate=gate, out_dtype=out_dtype)


def measured(wheel):
    with OnCpu(), torch.no_grad():
        return layer_row(wheel, SMALL, Weights.of(SMALL), 9)


@pytest.mark.usefixtures("_stand_ins")
def test_layers_of_both_element_types_are_timed_and_near():
    row = measured(wheel_twin("twin_of_layers", grouped_linear=scaled))
    assert row["errors"][0] == 0.0
    assert 0.001 < row["errors_fp8"][0] < moe.LARGEST_FP8_ERROR
    assert row["us"].keys() == {"wheel", "wheel fp8"}


@pytest.mark.usefixtures("_stand_ins")
def test_a_wheel_without_float8_is_timed_without():
    def plain(x, *operands, **options):
        if x.dtype == torch.float8_e4m3fn:
            raise Refusal("no kernels\nfor this")
        return scaled(x, *operands, **options)

    row = measured(wheel_twin("twin_of_plain_layers", grouped_linear=plain))
    assert row["fp8_refused"] == "no kernels"
    assert row["us"].keys() == {"wheel"}


def row(wheel, errors):
    us = {"wheel": wheel, "torch": 20.0, "wheel gathered, SwiGLU": 10.0, "torch gathered, SwiGLU": 30.0}
    us |= {"wheel, list": 12.5, "torch, joined list": 80.0}
    return {"model": "a model", "tokens": 16, "skew": True, "us": us, "errors": errors}


def test_a_nan_and_a_large_error_are_wrong():
    assert is_right({"products": [row(10.0, [0.001])], "layers": []})
    assert not is_right({"products": [row(10.0, [float("nan")])], "layers": []})
    assert not is_right({"products": [row(10.0, [0.001])], "layers": [{"errors": [], "errors_fp8": [0.2]}]})


def test_the_summary_has_the_geometric_mean_and_the_least():
    text = summary({"products": [row(10.0, []), row(5.0, [])], "layers": []})
    assert "a model, 16 tokens, skewed: 10.0 us, torch 20.0: 2.00x; of a list 12.5, torch joined 80.0; gathered" in text
    assert text.splitlines()[-2:] == [
        "geometric mean over 2 products: 2.828x, least 2.000x",
        "lists of weights beside one stack: 0.566x, least 0.400x",
    ]
