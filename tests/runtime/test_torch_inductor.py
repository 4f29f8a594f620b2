"""Inductor takes the package's products by its pass; the products themselves are computed by a stand-in on the CPU."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from tests.runtime.attending import HIDDEN, Attending, check_attending, copy_at
from tests.runtime.torch_reference import random_tensor

BF16 = torch.bfloat16

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler on a CPU")


@pytest.fixture(autouse=True)
def plain_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True)
def inductor(monkeypatch):
    from torch._inductor import config

    # It imports setuptools, which refuses a distutils that another test has imported before it, unless told so.
    monkeypatch.setenv("SETUPTOOLS_USE_DISTUTILS", "stdlib")
    # A header that is compiled in advance takes longer than the few programs here take without, and the search for the
    # widest vectors of this processor compiles a program for each kind.
    plain = {"cpp_cache_precompile_headers": False, "aot_inductor.precompile_headers": False, "cpp.simdlen": 0}
    with config.patch(plain):
        yield


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 48, dtype=BF16), nn.Linear(48, 32, bias=False, dtype=BF16)
        self.head, self.wide = nn.Linear(32, 7, dtype=BF16), nn.Linear(32, 32)

    def forward(self, x):
        x = x + self.second(torch.relu(self.first(x)))
        return self.head(x), self.wide(x.float()), x @ x.transpose(-1, -2)


def test_products_of_a_model_that_is_not_patched_are_the_packages(module, calls):
    model, x = Layers(), random_tensor(5, 32)
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, options=module.inductor_options())
    got = compiled(x)
    # Two Linears; the head's 7 columns, float32, and what is no weight's transpose are torch's.
    assert calls[:2] == ["linear"] * 2
    assert len(calls) <= 3
    for left, right in zip(got, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=0.05, atol=0.05)
    assert type(model.first) is nn.Linear


def test_caches_are_written_by_the_package(module, calls):
    """Inductor takes the write for one of the input itself: nothing is copied."""
    model, x = Attending(copy_at), random_tensor(4, 1, HIDDEN)
    check_attending(model, x, torch.compile(model, fullgraph=True, options=module.inductor_options()))
    assert calls.count("rotary") == len(model.queries)


class Block(nn.Module):
    """A norm, a gate and a sum, as a decoder layer has them."""

    def __init__(self):
        super().__init__()
        self.norm, self.down = nn.RMSNorm(32, dtype=BF16), nn.Linear(48, 32, bias=False, dtype=BF16)
        self.gate, self.up = (nn.Linear(32, 48, bias=False, dtype=BF16) for _ in range(2))
        for layer, weight in zip((self.gate, self.up), random_tensor(2, 48, 32), strict=True):
            layer.weight = nn.Parameter(weight)  # the gate's lies in front

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def error_of(got, expected):
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def test_what_stands_beside_products_is_joined(module, calls):
    model, x = Block(), random_tensor(5, 32)
    expected = model(x)
    got = torch.compile(model, fullgraph=True, options=module.inductor_options())(x)
    assert calls[:3] == ["rms_norm", "gated_linear", "linear"]
    assert error_of(got, expected) < 0.01


@pytest.mark.walk
def test_aotinductor_takes_an_exported_program_whose_products_are_called_or_joined(module, calls, tmp_path):
    """What it compiled is loaded in this process, where the module was imported, as its documentation asks."""

    class Layer(Block):
        def forward(self, x, weight):
            return module.linear(super().forward(x) * 2, weight) + 1

    model, x, weight = Layer(), random_tensor(5, 32), random_tensor(48, 32)
    program = module.fuse(torch.export.export(model, (x, weight), strict=True))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    loaded = torch._inductor.aoti_load_package(path)
    calls.clear()
    got = loaded(x, weight)
    assert calls == ["rms_norm", "gated_linear", "linear", "linear"]
    assert error_of(got, model(x, weight)) < 0.01


def test_a_pass_names_the_wheel_for_caches(module, every_package):
    (found,) = module.inductor_options().values()
    assert found.uuid() == f"every_gemm {every_package.__version__}"
