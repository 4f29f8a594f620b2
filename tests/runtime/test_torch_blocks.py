"""NVFP4, MXFP4 and MXFP8 by torch: the bits of the toolchain's rules, what they stand for, and compiled products."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from aot.core import block_quantization
from aot.core.factor_atoms import pack_factors, unpack_factors

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


@pytest.mark.parametrize("has_index", [False, True], ids=["in order", "gathered"])
@pytest.mark.parametrize("name", FORMATS)
def test_factors_of_groups_begin_with_an_atom_each(blocks, name, has_index):
    """Each group's run of atoms is that of its rows alone: the places are not computed by the formula here."""
    ends, rows = [0, 129, 129, 130, 300, 300], 310
    x = torch.randn(200 if has_index else rows, K, dtype=torch.bfloat16)
    index = torch.randint(0, 200, (rows,), dtype=torch.int32) if has_index else None
    offsets = torch.tensor(ends, dtype=torch.int32)
    values, scale = blocks.quantize(x, name, offsets=offsets, index=index)
    of_all, scale_of_all = blocks.quantize(x, name)
    (atoms, own), (dense, own_of_all) = split(scale), split(scale_of_all)
    taken = torch.arange(rows) if index is None else index
    assert torch.equal(values.view(torch.uint8), of_all.view(torch.uint8)[taken])
    assert own is own_of_all is None or torch.equal(own, own_of_all)
    plain = unpack_factors(dense.view(torch.uint8).numpy(), len(x), K // (16 if name == "nvfp4" else 32))[taken]
    runs = atoms.view(torch.uint8).numpy().reshape(3 + len(ends) - 1, -1)
    expected = np.zeros_like(runs)
    for first, start, end in ((0, 0, 0), (1, 0, 129), (3, 129, 129), (4, 129, 130), (5, 130, 300), (7, 300, 300)):
        of_group = pack_factors(np.ascontiguousarray(plain[start:end])).reshape(-1, runs.shape[1])
        expected[first : first + len(of_group)] = of_group
    assert np.array_equal(runs, expected)


def test_rows_that_an_index_does_not_name_are_zeros(blocks):
    x, index = torch.randn(4, 32, dtype=torch.bfloat16), torch.tensor([1, -1, 4, 0], dtype=torch.int32)
    ends = torch.tensor([1, 1, 4], dtype=torch.int32)  # the first start in front: row 0 is of no group
    values, (atoms, _) = blocks.quantize(x, "nvfp4", offsets=ends, index=index, groups=2)
    plain, (dense, _) = blocks.quantize(x, "nvfp4")
    assert torch.equal(values, torch.stack([plain[1], 0 * plain[1], 0 * plain[1], plain[0]]))
    found = unpack_factors(atoms.view(torch.uint8).numpy(), 256, 2)
    of_rows = unpack_factors(dense.view(torch.uint8).numpy(), 4, 2)
    assert np.array_equal(found[128:131], np.stack([0 * of_rows[0], 0 * of_rows[0], of_rows[0]]))
    assert np.count_nonzero(found) == np.count_nonzero(of_rows[0])
    nothing = blocks.quantize(x[:0], "nvfp4", offsets=ends, index=index, groups=2)
    assert not nothing[0].any()
    assert not nothing[1][0].view(torch.uint8).any()


GROUP_REFUSED = {
    "an index alone": (
        lambda b, x: b.quantize(x, "nvfp4", index=torch.zeros(2)),
        "OperandError",
        "quantize: got an index or groups without offsets",
    ),
    "three dimensions": (
        lambda b, x: b.quantize(x[None], "mxfp8", offsets=torch.ones(1, dtype=torch.int32)),
        "ShapeError",
        "quantize: x has 3 dimensions beside offsets; expected (rows, k)",
    ),
    "other groups": (
        lambda b, x: b.quantize(x, "mxfp8", offsets=torch.ones(3, dtype=torch.int32), groups=1),
        "ShapeError",
        "offsets have shape (3,) and groups is 1; expected (groups,), where each group ends, or",
    ),
    "a stack and offsets": (
        lambda b, x: b.pack_factors(x[None].to(torch.uint8), torch.ones(1), stacked=True),
        "OperandError",
        "got stacked=True and offsets; expected one of the two",
    ),
    "a stack of vectors": (
        lambda b, x: b.pack_factors(x.to(torch.uint8), stacked=True),
        "ShapeError",
        "expected (groups, rows, blocks)",
    ),
    "groups alone": (
        lambda b, x: b.pack_factors(x.to(torch.uint8), groups=1),
        "OperandError",
        "pack_factors: got groups or an index without offsets",
    ),
}


@pytest.mark.parametrize("case", GROUP_REFUSED)
def test_what_is_no_group_of_rows_is_refused(atoms_package, blocks, case):
    call, kind, message = GROUP_REFUSED[case]
    package = atoms_package if "pack" in call.__code__.co_names[0] else blocks
    with pytest.raises(getattr(atoms_package, kind)) as caught:
        call(package, torch.ones(4, 32))
    assert message in str(caught.value)


@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
def test_factors_of_a_stack_are_the_atoms_of_each_behind_the_other(atoms_package, library):
    codes = np.random.default_rng(3).integers(1, 256, (3, 130, 5)).astype(np.uint8)
    given = codes if library is np else torch.from_numpy(codes)
    found = np.asarray(atoms_package.pack_factors(given, stacked=True))
    assert np.array_equal(found, np.concatenate([pack_factors(x) for x in codes]))


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
