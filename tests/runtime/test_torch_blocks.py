"""NVFP4, MXFP4 and MXFP8 by torch: the bits of the toolchain's rules, what they stand for, and compiled products."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from aot.core import block_quantization
from aot.core.factor_atoms import pack_factors

FORMATS = ("nvfp4", "mxfp4", "mxfp8")
M, N, K = 130, 72, 160


@pytest.fixture(scope="module")
def blocks(atoms_package):
    """Give what the package of these formats has for torch."""
    return import_module(f"{atoms_package.__name__}.torch")


def split(scale):
    """Return factors, and the tensor's own or None."""
    return scale if isinstance(scale, tuple) else (scale, None)


def inputs():
    normal = torch.randn(M, K)
    return {
        "normal": normal,
        "all magnitudes": normal * torch.logspace(-45, 38, M)[:, None],
        "subnormal": normal * 1e-40,
        "ties": torch.arange(M * K).reshape(M, K).remainder(97) / 8,
        "zeros": torch.zeros(3, 32),
        "many rows": torch.randn(1100, 48),
        "ragged": torch.randn(5, 6),
        "no rows": torch.zeros(0, 32),
        "no columns": torch.zeros(3, 0),
        "not finite": torch.randn(3, 64) * torch.tensor([1.0, torch.nan, torch.inf])[:, None],
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", inputs())
def test_the_bits_are_those_of_the_toolchain(blocks, case, name, dtype):
    x = inputs()[case].to(dtype)
    values, scale = blocks.quantize(x, name)
    atoms, own = split(scale)
    expected = block_quantization.quantize(x.float().numpy(), name)
    assert np.array_equal(values.view(torch.uint8).numpy(), expected.packed)
    assert np.array_equal(atoms.view(torch.uint8).numpy(), pack_factors(expected.factors))
    assert (own is None) == (expected.tensor_factor is None)
    if own is not None:
        assert (own.dtype, tuple(own.shape)) == (torch.float32, (1,))
        assert np.array_equal(own.numpy()[0], expected.tensor_factor, equal_nan=True)
    found = blocks.dequantize(values, scale, torch.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.array_equal(found.numpy(), expected.values.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_blocks_and_pairs_of_elements_are_dequantized_too(atoms_package, blocks, name):
    x = torch.randn(2, 65, K, dtype=torch.bfloat16)
    values, scale = blocks.quantize(x, name)
    atoms, own = split(scale)
    rows = atoms_package.unpack_factors(atoms, M, K // (16 if name == "nvfp4" else 32))
    pairs = values if name == "mxfp8" else values.view(torch.float4_e2m1fn_x2)
    found = blocks.dequantize(pairs, rows if own is None else [rows, own])
    assert (tuple(found.shape), found.dtype) == ((2, 65, K), torch.bfloat16)
    assert torch.equal(found, blocks.dequantize(values, scale))
    assert (found.float() - x.float()).norm() < 0.13 * x.float().norm()


def test_a_given_factor_is_the_tensors_own(blocks):
    x, given = torch.randn(4, 64), torch.tensor(0.5)
    values, (factors, own) = blocks.quantize(x, "nvfp4", scale=given)
    assert own.tolist() == [0.5]
    assert torch.equal(factors.float()[:1], (x[0, :16].abs().amax() / 3).to(torch.float8_e4m3fn).float().reshape(1))
    assert (blocks.dequantize(values, (factors, own), torch.float32) - x).norm() < 0.13 * x.norm()


def test_a_format_is_named_by_keyword_too(blocks):
    x = torch.randn(4, 64)
    assert torch.equal(blocks.quantize(x, dtype="mxfp4")[0], blocks.quantize(x, "mxfp4")[0])


REFUSED = {
    "integers": (lambda b: b.quantize(torch.ones(2, 32, dtype=torch.int32), "mxfp4"), "DtypeError", "x is torch.int32"),
    "no dimension": (lambda b: b.quantize(torch.tensor(1.0), "mxfp4"), "ShapeError", "expected (..., k)"),
    "odd k": (lambda b: b.quantize(torch.ones(2, 33), "nvfp4"), "ShapeError", "expected an even k of nvfp4"),
    "a factor of MX": (lambda b: b.quantize(torch.ones(2, 32), "mxfp8", scale=1.0), "OperandError", "with nvfp4"),
    "a number": (
        lambda b: b.quantize(torch.ones(2, 32), "nvfp4", scale=1.0),
        "OperandError",
        "scale is 1.0; expected a float32 tensor of one element",
    ),
    "a vector": (
        lambda b: b.quantize(torch.ones(2, 32), "nvfp4", scale=torch.ones(2)),
        "OperandError",
        "scale is torch.float32 (2,); expected a float32 tensor of one element",
    ),
    "no format": (
        lambda b: b.dequantize(torch.zeros(2, 16, dtype=torch.uint8), torch.zeros(2, 2)),
        "DtypeError",
        "dequantize: got torch.uint8 with factors of torch.float32; expected float4_e2m1fn with float8_e4m3fn (nvfp4)",
    ),
    "other blocks": (
        lambda b: b.dequantize(torch.zeros(2, 16, dtype=torch.uint8), torch.zeros(2, 3).to(torch.float8_e4m3fn)),
        "ShapeError",
        "dequantize: scale has shape (2, 3); expected (2, 2), or the atoms of so many",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_rounded_is_refused(atoms_package, blocks, case):
    call, kind, message = REFUSED[case]
    with pytest.raises(getattr(atoms_package, kind)) as caught:
        call(blocks)
    assert message in str(caught.value)


@pytest.fixture
def standing_in(atoms_package, blocks, monkeypatch):
    """Have torch compute what the package's `linear` would; give the factors of each call."""
    calls = []

    def linear(x, weight, bias=None, *, out=None, **options):
        calls.append(options)
        scales = options["scale_x"], options["scale_w"]
        wide = [blocks.dequantize(y, s, torch.float32) for y, s in zip((x, weight), scales, strict=True)]
        return (wide[0] @ wide[1].t() * options.get("scale_out", 1.0)).to(torch.bfloat16)

    monkeypatch.setattr(atoms_package._operations, "linear", linear)
    monkeypatch.setattr(atoms_package._torch_result, "DEVICES", ("cpu", "cuda", "meta"))
    return calls


@pytest.mark.parametrize("name", FORMATS)
def test_four_lines_are_a_product_under_a_compiler_too(blocks, standing_in, name):
    x, weight = torch.randn(3, 5, K, dtype=torch.bfloat16), torch.randn(N, K, dtype=torch.bfloat16)

    def product(x):
        values, scale_x = blocks.quantize(x, name)
        held, scale_w = blocks.quantize(weight, name)
        return blocks.linear(values, held, scale_x=scale_x, scale_w=scale_w)

    compiled = torch.compile(product, backend="eager", fullgraph=True)(x)
    assert (tuple(compiled.shape), compiled.dtype) == ((3, 5, N), torch.bfloat16)
    (call,) = standing_in
    assert isinstance(call["scale_x"], torch.Tensor)
    assert ("scale_out" in call) == (name == "nvfp4")
    expected = x.float() @ weight.float().t()
    assert (compiled.float() - expected).norm() < 0.2 * expected.norm()


@pytest.mark.parametrize("name", FORMATS)
def test_fake_tensors_and_counts_are_of_elements(blocks, standing_in, name):
    with FakeTensorMode():
        x, scale_x = blocks.quantize(torch.zeros(M, K), name)
        weight, scale_w = blocks.quantize(torch.zeros(N, K), name)
        y = blocks.linear(x, weight, scale_x=scale_x, scale_w=scale_w)
        assert (tuple(y.shape), y.dtype) == ((M, N), torch.bfloat16)
    x, scale_x = blocks.quantize(torch.zeros(M, K), name)
    weight, scale_w = blocks.quantize(torch.zeros(N, K), name)
    with FlopCounterMode(display=False) as counter:
        blocks.linear(x, weight, scale_x=scale_x, scale_w=scale_w)
    assert counter.get_total_flops() == 2 * M * N * K
