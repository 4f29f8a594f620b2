"""What may be done with a patched and with a quantised model, on a GPU, beside torch's own results."""

from __future__ import annotations

import sys

import pytest

SHARED = ("patched_call_cases", "patched_cases", "quantized_cases", "small_models")
pytest.register_assert_rewrite(*(f"tests.device.{x}" for x in SHARED))
pytest.importorskip("torch")
pytest.importorskip("aot_gemm")

import torch  # noqa: E402

from tests.device.patched_call_cases import *  # noqa: E402, F403
from tests.device.patched_cases import *  # noqa: E402, F403
from tests.device.quantized_cases import *  # noqa: E402, F403


@pytest.fixture(autouse=True)
def _drawing():
    torch.manual_seed(1)
    torch._dynamo.reset()


@pytest.fixture
def wheel():
    import aot_gemm.torch

    return aot_gemm.torch


@pytest.fixture
def device():
    return "cuda"


@pytest.fixture
def calls(wheel, monkeypatch):
    """Note which of the package's functions are called."""
    package, names = sys.modules[wheel.__name__.rpartition(".")[0]], []

    def noting(name, function):
        def call(*operands, **options):
            names.append(name)
            return function(*operands, **options)

        return call

    for home, name in ((package._operations, "linear"), (package._rows, "quantize")):
        monkeypatch.setattr(home, name, noting(name, getattr(home, name)))
    return names
