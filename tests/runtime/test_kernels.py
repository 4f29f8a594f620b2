"""Layers for Hugging Face's `kernels`, on the CPU, where torch computes in the package's place.

What it takes for a layer is asked of it where it is installed, which it is not for the tests. Tried with 0.17.2.
"""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.compiling import some
from tests.runtime.torch_reference import random_tensor

COLS = 4096
EPS = 1e-5


class LlamaNorm(nn.Module):
    """A norm as transformers writes it."""

    def __init__(self, cols=COLS, dtype=torch.bfloat16):
        super().__init__()
        self.weight = nn.Parameter((1 + 0.1 * torch.randn(cols)).to(dtype))
        self.variance_epsilon = EPS

    def forward(self, hidden_states):
        wide = hidden_states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)


class ZeroCentered(nn.Module):
    """A norm as transformers writes Qwen3.5's."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter((0.1 * torch.randn(COLS)).bfloat16())
        self.eps = EPS

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class Silu(nn.Module):
    def forward(self, x):
        half = x.shape[-1] // 2
        return functional.silu(x[..., :half]) * x[..., half:]


class Gelu(nn.Module):
    def forward(self, x):
        half = x.shape[-1] // 2
        return functional.gelu(x[..., :half], approximate="tanh") * x[..., half:]


CASES = {
    "RMSNorm": (LlamaNorm, "rms_norm"),
    "RMSNormZeroCentered": (ZeroCentered, "rms_norm"),
    "SiluAndMul": (Silu, "silu_mul"),
    "GeluTanhAndMul": (Gelu, "gelu_tanh_mul"),
}


@pytest.fixture
def layers(module, every_package, calls, monkeypatch):
    found = import_module(f"{every_package.__name__}.kernels")
    monkeypatch.setattr(every_package._torch_modules, "DEVICES", ["cpu"])
    calls.clear()
    return found


def taken(layers, name):
    """Put a layer's forward into the place of a module's own, as `kernels` does."""
    made = CASES[name][0]()
    made.forward = layers.mapping("cpu")[name]["cpu"].load().forward.__get__(made)
    return made


@pytest.mark.parametrize("name", some(CASES, 2))
def test_a_layer_is_the_packages_in_inference_and_torchs_where_a_gradient_is_recorded(layers, calls, name):
    layer = taken(layers, name)
    own, x = type(layer).forward, random_tensor(2, 3, COLS)
    with torch.inference_mode():
        torch.testing.assert_close(layer.forward(x), own(layer, x), rtol=0.02, atol=0.02)
    assert calls == [CASES[name][1]]
    gradients = []
    for function in (layer.forward, lambda x: own(layer, x)):
        given = x.clone().requires_grad_()
        function(given).float().square().sum().backward()
        gradients.append(given.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    assert calls == [CASES[name][1]]


@pytest.mark.parametrize("name", CASES)
def test_what_the_package_does_not_serve_is_torchs(layers, calls, name):
    layer = taken(layers, name).requires_grad_(False)
    own = type(layer).forward
    for x in (random_tensor(2, COLS, dtype=torch.float32), random_tensor(2, COLS).double(), random_tensor(2, 0)):
        if x.shape[-1] or not name.startswith("RMSNorm"):
            found, expected = layer.forward(x), own(layer, x)
            assert (found.dtype, torch.equal(found, expected)) == (expected.dtype, True)
    assert (
        layer.to("meta").forward(random_tensor(3, COLS).to("meta")).shape
        == own(layer, torch.empty(3, COLS, device="meta")).shape
    )
    assert calls == []


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_compiled_without_a_graph_break(layers, name):
    layer = taken(layers, name).requires_grad_(False)
    x = random_tensor(3, COLS)
    compiled = torch.compile(layer.forward, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer.forward(x), rtol=0.02, atol=0.02)


def test_what_stands_for_a_layer_is_equal_to_another_of_it(layers):
    first, second = layers.mapping()["RMSNorm"]["cuda"], layers.mapping()["RMSNorm"]["cuda"]
    assert (first, hash(first)) == (second, hash(second))
    assert first != layers.mapping()["SiluAndMul"]["cuda"]
    assert (first.layer_name, repr(first)) == ("RMSNorm", "every_gemm (layer RMSNorm)")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["INFERENCE", "TORCH_COMPILE", "TRAINING"])
def test_kernels_takes_the_layers(layers, calls, name, mode):
    kernels = pytest.importorskip("kernels", reason="NOT TESTED WITH kernels: it is not installed")
    made = kernels.use_kernel_forward_from_hub(name)(CASES[name][0])()
    asked = kernels.Mode.INFERENCE | kernels.Mode[mode] if mode != "TRAINING" else kernels.Mode.TRAINING
    with kernels.use_kernel_mapping(layers.mapping("cpu")):
        kernels.kernelize(nn.Sequential(made), mode=asked, device="cpu", use_fallback=False)
    with torch.inference_mode():
        made(random_tensor(2, COLS))
    assert calls == [CASES[name][1]]
