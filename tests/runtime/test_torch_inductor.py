"""Inductor takes the package's products by its pass; the products themselves are computed by a stand-in on the CPU."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from tests.runtime.torch_reference import random_tensor

BF16 = torch.bfloat16

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler on a CPU")


@pytest.fixture(autouse=True)
def plain_gradients():
    with torch.no_grad():
        yield


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 48, dtype=BF16), nn.Linear(48, 32, bias=False, dtype=BF16)
        self.head, self.wide = nn.Linear(32, 7, dtype=BF16), nn.Linear(32, 32)

    def forward(self, x):
        x = x + self.second(torch.relu(self.first(x)))
        return self.head(x), self.wide(x.float()), x @ x.transpose(-1, -2)


def test_products_of_a_model_that_is_not_patched_are_the_packages(module, calls, monkeypatch):
    # Inductor imports setuptools, which refuses a distutils that another test has imported before it, unless told so.
    monkeypatch.setenv("SETUPTOOLS_USE_DISTUTILS", "stdlib")
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


def test_a_pass_names_the_wheel_for_caches(module, every_package):
    (found,) = module.inductor_options().values()
    assert found.uuid() == f"every_gemm {every_package.__version__}"
