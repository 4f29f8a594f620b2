"""The narrow formats of weights: their elements, factors, plans, and names."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch

from aot.core.weight_rounding import by_blocks
from tests.runtime.torch_reference import random_tensor

BF16 = torch.bfloat16


@pytest.fixture
def formats(every_package, module):
    return every_package._torch_formats


@pytest.mark.parametrize(("name", "dtype", "largest"), [("fp8", torch.float8_e4m3fn, 448), ("int8", torch.int8, 127)])
def test_rows_are_rounded_by_their_largest(formats, every_package, monkeypatch, name, dtype, largest):
    monkeypatch.setattr(every_package._torch_prepare, "_SLAB", 3)
    weight = random_tensor(7, 96)
    weight[2] = 0
    weight[4] *= 1e4
    narrow = formats.format_of(name)
    qweight, scale = narrow.narrow(weight)
    expected = weight.float().abs().amax(1, keepdim=True) / largest
    expected[2] = 1
    assert (qweight.dtype, scale.dtype) == (dtype, torch.float32)
    assert torch.equal(scale, expected)
    assert qweight.float().abs().amax(1).tolist() == [0 if row == 2 else largest for row in range(7)]
    step = scale / 2 if name == "int8" else weight.float().abs() / 16 + scale * 2.0**-10
    assert ((narrow.widen(qweight, scale, torch.float32) - weight.float()).abs() <= 1.001 * step).all()
    assert narrow.widen(qweight, scale, BF16).dtype is BF16


def test_a_weight_of_meta_gives_what_can_be_loaded_into(formats):
    qweight, scale = formats.format_of("fp8").narrow(torch.empty(8, 32, dtype=BF16, device="meta"))
    assert (qweight.shape, qweight.dtype, qweight.device.type) == ((8, 32), torch.float8_e4m3fn, "meta")
    assert (scale.shape, scale.dtype, scale.device.type) == ((8, 1), torch.float32, "meta")


def test_what_the_wheel_lacks_is_said(formats, package):
    assert formats.format_of("fp8").why_not(48, 32, BF16, bias=True) is None
    assert "get the fallback" in formats.format_of("fp8").why_not(7, 32, BF16, bias=False)
    lacking = import_module(f"{package.__name__}._torch_formats")
    assert "no kernels for" in lacking.format_of("int8").why_not(48, 32, BF16, bias=False)
    assert not lacking.format_of("int8").has_kernel(32, BF16)
    assert formats.format_of("int8").has_kernel(32, BF16)


def test_blocks_are_rounded_by_their_largest(formats):
    weight = random_tensor(200, 320)
    weight[:128, 128:256] = 0
    narrow = formats.format_of("fp8_block")
    qweight, scale = narrow.narrow(weight)
    codes, expected = by_blocks(weight.float().numpy(), 128)
    assert np.array_equal(qweight.view(torch.uint8).numpy(), codes)
    assert np.array_equal(scale.numpy(), expected)
    wide = narrow.widen(qweight, scale, torch.float32)
    assert torch.equal(wide[:128, 128:256], torch.zeros(128, 128))
    assert float((wide - weight.float()).norm() / weight.float().norm()) < 0.03
    held, factors = narrow.narrow(torch.empty(200, 320, dtype=BF16, device="meta"))
    assert (held.shape, factors.shape, factors.device.type) == (qweight.shape, scale.shape, "meta")


@pytest.mark.parametrize("by_kernel", [True, False])
def test_products_of_blocks_round_inputs_by_128_columns(formats, calls, by_kernel):
    narrow, x, bias = formats.format_of("fp8_block"), random_tensor(5, 256), random_tensor(136)
    qweight, scale = narrow.narrow(random_tensor(136, 256))
    rows, factors = formats.quantize_by_blocks(x, torch.float8_e4m3fn)
    rounded = rows.float() * factors.repeat_interleave(128, 1)
    expected = (rounded @ narrow.widen(qweight, scale, torch.float32).t()).to(BF16) + bias
    assert torch.equal(narrow.product(x, qweight, scale, bias, 136, by_kernel=by_kernel), expected)
    assert calls == (["quantize", "linear"] if by_kernel else ["linear"])


def test_without_a_kernel_torch_rounds_inputs_and_the_report_says_so(formats, module, calls, monkeypatch):
    monkeypatch.setattr(formats.RowFormat, "has_kernel", lambda *_: False)
    model = torch.nn.Sequential(torch.nn.Linear(32, 48, dtype=BF16))
    x = random_tensor(5, 32)
    with torch.no_grad():
        expected = model(x)
        report = module.quantize(model, "fp8")
        got = model(x)
    assert report.by_torch == ("0",)
    assert "torch rounds the inputs of 1, for which the wheel has no kernel" in str(report)
    assert calls == ["linear"]
    assert float((got - expected).norm() / expected.norm()) < 0.06


@pytest.mark.parametrize("name", ["fp8", "int8"])
@pytest.mark.parametrize("shape", [(), (0,), (4, 0), (4, 7), (2, 4, 257)])
def test_inputs_of_other_extents_get_torchs_error(module, every_package, calls, monkeypatch, name, shape):
    monkeypatch.setattr(every_package._torch_modules, "DEVICES", ["cpu"])
    model = torch.nn.Sequential(torch.nn.Linear(256, 512)).to(BF16)
    with pytest.raises(RuntimeError) as expected:
        model(random_tensor(*shape))
    assert module.quantize(model, name).quantized == ("0",)
    calls.clear()
    with pytest.raises(RuntimeError) as found:
        model(random_tensor(*shape))
    assert (type(found.value), str(found.value)) == (type(expected.value), str(expected.value))
    assert calls == []
