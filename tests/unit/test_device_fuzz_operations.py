"""The fuzz's calls of operations, by stand-ins on the CPU: what is right passes, and each fault is found."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tests.device.fuzz_operations import EPILOGUES, GATES, GRANULARITIES, LARGEST, draw_operation, quantised

pytestmark = pytest.mark.slow

CALLS = 120
ACTIVATIONS = {
    None: lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


@cache
def called():
    """Draw the calls, once for all tests."""
    return [draw_operation(1, index, "cpu") for index in range(CALLS)]


def sums(x, weight, bias, scale_x, scale_w):
    """Sum in float32, as kernels do: factors behind the sum, then the bias."""
    found = x.float() @ weight.float().T
    if scale_x is not None:
        found = found * scale_x.reshape(-1, 1) * scale_w.reshape(1, -1)
    return found if bias is None else found + bias.float()


def give(y, x, out):
    element = torch.bfloat16 if x.dtype is torch.float8_e4m3fn else x.dtype
    return y.to(element) if out is None else out.copy_(y)


def linear(x, weight, bias=None, *, activation=None, residual=None, scale_x=None, scale_w=None, out=None, fault=""):
    if fault == "no bias":
        bias = None
    if fault == "no factors" and scale_w is not None:
        scale_w = torch.ones_like(scale_w)
    y = ACTIVATIONS[{"relu": "gelu"}.get(activation, activation) if fault == "gelu for relu" else activation](
        sums(x, weight, bias, scale_x, scale_w)
    )
    if residual is not None and fault != "no residual":
        y = y + residual.float()
    return give(torch.nan_to_num(y) if fault == "nan" else y, x, out)


def gated_linear(
    x, weight, bias=None, *, activation, interleaved=False, scale_x=None, scale_w=None, out=None, fault=""
):
    y = sums(x, weight, bias, scale_x, scale_w)
    interleaved = interleaved != (fault == "arrangement")
    gate, line = (y[:, ::2], y[:, 1::2]) if interleaved else y.chunk(2, -1)
    return give(ACTIVATIONS[activation](gate) * line, x, out)


def quantize(x, dtype, granularity, *, scale=None, fault=""):
    y, scales = quantised(x, dtype, "row" if fault == "rows" and granularity == "tensor" else granularity, scale)
    if fault == "infinity" and dtype is torch.float8_e5m2:
        y = torch.where((y.float().abs() == LARGEST[dtype]), float("inf"), y.float()).to(dtype)
    if fault == "scale":
        scales = scales * (1 + 2**-20)
    return y, scales


FUNCTIONS = {"linear": linear, "gated_linear": gated_linear, "quantize": quantize}


def wrong(fault):
    """Give each call that is found wrong where the stand-ins have a fault."""
    return (x for x in called() if not bool(x.is_right(FUNCTIONS[x.function](*x.arguments, **x.keywords, fault=fault))))


def test_what_is_right_passes():
    assert [x.text for x in wrong("")] == []


@pytest.mark.parametrize(
    "fault",
    ["no bias", "no factors", "gelu for relu", "no residual", "nan", "arrangement", "rows", "infinity", "scale"],
)
def test_each_fault_is_found(fault):
    assert next(wrong(fault), None) is not None


def test_a_call_is_the_same_whenever_it_is_drawn():
    again = draw_operation(1, 5, "cpu")
    assert again.text == called()[5].text
    assert torch.equal(again.arguments[0].float().nan_to_num(), called()[5].arguments[0].float().nan_to_num())


def test_every_epilogue_of_fp8_and_every_quantisation_is_drawn():
    texts = [x.text for x in called()]
    fp8 = {x.split()[3] for x in texts if "linear of torch.float8_e4m3fn" in x}
    assert fp8 == set(EPILOGUES)
    assert set(GATES) <= fp8
    found = {(x.split()[4], x.split()[6]) for x in texts if x.startswith("quantize")}
    assert {(str(x), y) for x in LARGEST for y in GRANULARITIES if y != "block"} <= found
    assert ("torch.float8_e4m3fn", "block") in found
