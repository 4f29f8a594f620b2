"""Models on Thor's default wheel: its own table says what answers, with torch in the kernels' place."""

from __future__ import annotations

import warnings
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from aot.core.target import load_target
from aot.families import rows_family_of
from aot.package.wheel import TableSource, manifest_of
from tests.equivalence import kernels
from tests.runtime import host, torch_reference
from tests.runtime.rows import row_kernel
from tests.runtime.test_dispatch import kernel_of
from tests.runtime.torch_reference import random_tensor

pytestmark = pytest.mark.slow
BF16 = torch.bfloat16
WIDTH, HIDDEN = 2048, 2048
FEW, MANY = 1, 1024
"""Rows of x at which the predicted table has x of 16 bits as the faster, and x in NVFP4."""


def artifact(kernel):
    return SimpleNamespace(kernel=kernel)


def row_kernel_of(key):
    limits = rows_family_of(key.candidate).limits(key.candidate, key.operation)
    return row_kernel(key.operation, key.candidate, limits)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Give the functions of the wheel that `make wheel` builds, over the recorder."""
    selection = kernels.wheel()
    made = [*map(kernel_of, selection.kernels), *map(row_kernel_of, selection.others.kernels)]
    source = TableSource(selection, load_target("thor"))
    manifest = manifest_of([source], [artifact(x) for x in made], "default-gemm", "0")
    return host.compile_package(manifest, tmp_path_factory.mktemp("default_package"))


@pytest.fixture
def gemm(package):
    return import_module(f"{package.__name__}.torch")


@pytest.fixture
def calls(gemm, package, monkeypatch):
    """Have torch compute on the CPU what kernels would on a Thor; give the names of what is called."""
    names = torch_reference.stand_in(package, monkeypatch)
    blocks = import_module(f"{package.__name__}._torch_blocks")

    def linear(x, weight, bias=None, *, scale_x, scale_w, out_dtype=None, **_):
        names.append("linear")
        wide = gemm.dequantize(x, scale_x, torch.float32), gemm.dequantize(weight, scale_w, torch.float32)
        return torch_reference.linear(*wide, bias, out_dtype=out_dtype)

    def rounded(x, name, *, scale, **_):
        names.append(f"quantize to {name}")
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "_on_gpu", lambda x: False)
            return gemm.quantize(x, name, scale=scale)

    monkeypatch.setattr(package._operations, "linear", linear)
    monkeypatch.setattr(package._rows, "quantize", rounded)
    monkeypatch.setattr(blocks, "_on_gpu", lambda x: True)
    return names


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, WIDTH, bias=False)).to(BF16)


def quantized(gemm, **options):
    """Quantise every Linear of a model; a warning, as of what the wheel has no kernels for, is an error."""
    net = model()
    with warnings.catch_warnings(action="error"):
        report = gemm.quantize(net, "nvfp4", **options)
    assert report.quantized == ("0", "1")
    return net


def run(net, rows):
    with torch.no_grad(), warnings.catch_warnings(action="error"):
        return net(random_tensor(rows, WIDTH))


def test_a_model_s_weights_in_nvfp4_are_multiplied_by_x_of_16_bits(gemm, calls):
    net = quantized(gemm)
    run(net, MANY)
    assert calls == ["packed_linear"] * 2


NARROW = ["quantize to nvfp4", "linear"] * 2


def test_both_operands_are_narrow_where_that_is_asked_for(gemm, calls):
    """With a bias and without, by a kernel that rounds x; the result is near that of x of 16 bits, and another."""
    net = quantized(gemm, activation_format="nvfp4")
    torch.manual_seed(1)
    found = run(net, 5)
    assert calls == NARROW
    for layer in net:
        layer.activation_format = "16-bit"
    torch.manual_seed(1)
    wide = run(net, 5)
    assert calls[4:] == ["packed_linear"] * 2
    assert 0 < float((found - wide).norm() / wide.norm()) < 0.3


def test_the_table_says_from_how_many_rows_on_both_are_narrow(gemm, calls):
    net = quantized(gemm, activation_format="auto")
    run(net, FEW)
    assert calls == ["packed_linear"] * 2
    calls.clear()
    run(net, MANY)
    assert calls == NARROW


@pytest.mark.parametrize("function", ["quantize", "rms_norm", "silu_mul"])
def test_what_stands_in_front_of_a_narrow_product_is_no_fallback(package, function):
    for rows in (FEW, MANY):
        assert package.plan_rows(function, rows, WIDTH, "bfloat16", out_dtype="nvfp4").tier != "fallback"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("n", "k"), [(1152, 1152), (1001, 1152), (1152, 588), (7, 1029)])
def test_a_linear_of_16_bits_with_a_bias_has_a_tuned_kernel_whether_aligned_or_not(package, n, k, dtype):
    for rows in (FEW, 50, MANY):
        found = package.plan(rows, n, k, dtype, bias=True)
        assert found.tier != "fallback"
        assert "_kk_bias_" in found.kernel
