"""Weights that are packed once: their rows and factors, products of them, and what is refused."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.nn import functional

from tests.runtime.torch_reference import random_tensor

BF16, E4M3, E5M2, INT8 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
N, K = 160, 192
LARGEST = {E4M3: 448.0, E5M2: 57344.0, INT8: 127.0}
STEP = {E4M3: 2.0**-4, E5M2: 2.0**-3, INT8: 1.0}
"""Half a unit in the last place: relatively of a floating type, of int8 as a number (and more than half)."""


def restored(values, scale):
    """Return what a weight stands for, with one factor, those of rows, or those of blocks."""
    wide = values.float()
    if scale.ndim == 2 and scale.shape[1] > 1:
        scale = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[: wide.shape[0], : wide.shape[1]]
    return wide * scale


SHAPES = {"row": (N, 1), "tensor": (1,), "block": (2, 2)}
PREPARED = [(dtype, granularity) for dtype in (E4M3, E5M2, INT8) for granularity in ("row", "tensor")]


@pytest.mark.parametrize(("dtype", "granularity"), [*PREPARED, (E4M3, "block")], ids=str)
def test_rows_and_factors_restore_the_weight(module, calls, dtype, granularity):
    weight = random_tensor(N, K) * torch.logspace(-3, 3, N)[:, None].to(BF16)
    weight[7] = 0
    prepared = module.prepare(weight, dtype, granularity)
    values = prepared.weight.tensor
    assert (values.dtype, prepared.scale.dtype, tuple(prepared.scale.shape)) == (
        dtype,
        torch.float32,
        SHAPES[granularity],
    )
    assert values.is_contiguous()
    assert values.float().abs().amax() == LARGEST[dtype]
    steps = prepared.scale if granularity != "block" else prepared.scale.amax()
    error = (restored(values, prepared.scale) - weight.float()).abs()
    if dtype is INT8:
        assert (error <= 0.5001 * steps).all()
    else:  # below the least normal number, steps are all of one size
        assert (error <= STEP[dtype] * weight.float().abs() + steps * 2.0 ** (-9 if dtype is E4M3 else -16)).all()
    if granularity == "row":
        assert prepared.scale[7] == 1
        assert prepared.scale[8] == weight[8].float().abs().max() / LARGEST[dtype]


def test_a_weight_of_many_slabs_is_the_same_as_of_one(module, calls, every_package, monkeypatch):
    weight = random_tensor(300, K)
    found = {}
    for granularity in ("row", "block", "tensor"):
        found[granularity] = module.prepare(weight, E4M3, granularity)
    monkeypatch.setattr(every_package._torch_prepare, "_SLAB", 128)
    for granularity, one in found.items():
        other = module.prepare(weight, E4M3, granularity)
        assert torch.equal(other.weight.tensor.float(), one.weight.tensor.float())
        assert torch.equal(other.scale, one.scale)


@pytest.mark.parametrize("granularity", SHAPES)
@pytest.mark.parametrize("shape", [(0, K), (N, 0), (0, 0)], ids=str)
def test_a_weight_without_elements_has_factors_of_1(module, calls, shape, granularity):
    prepared = module.prepare(torch.zeros(shape, dtype=BF16), E4M3, granularity)
    n, k = shape
    of_blocks = -(-n // 128), -(-k // 128)
    assert tuple(prepared.scale.shape) == {"row": (n, 1), "tensor": (1,), "block": of_blocks}[granularity]
    assert (prepared.scale == 1).all()
    assert (tuple(prepared.weight.tensor.shape), prepared.weight.tensor.dtype) == (shape, E4M3)


@pytest.mark.parametrize("granularity", SHAPES)
def test_no_factor_of_small_numbers_becomes_zero(module, calls, granularity):
    """A zero over a factor of 0 is NaN."""
    weight = torch.zeros(N, K)
    weight[:, 3] = 2.0**-149
    prepared = module.prepare(weight, E4M3, granularity)
    assert prepared.scale.flatten()[0] == 2.0**-126
    assert not prepared.weight.tensor.float().isnan().any()


@pytest.mark.parametrize(("dtype", "limit"), [(E4M3, 0.06), (INT8, 0.02)], ids=str)
def test_linear_takes_what_is_prepared(module, calls, dtype, limit):
    x, weight = random_tensor(2, 5, K), random_tensor(N, K)
    prepared, scale = module.prepare(weight, dtype)
    rows, scale_x = module.quantize(x, dtype)
    y = module.linear(rows, prepared, scale_x=scale_x, scale_w=scale, out_dtype=BF16)
    expected = x.float() @ weight.float().t()
    assert (y.float() - expected).norm() / expected.norm() < limit
    assert calls == ["quantize", "linear"]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [None, E4M3], ids=str)
def test_a_gate_and_its_linear_rows_are_one_matrix(module, calls, dtype, interleaved):
    x, gate, up = random_tensor(5, K), random_tensor(N, K), random_tensor(K, N).t()
    prepared = module.prepare(gate, dtype, up=up, interleaved=interleaved)
    held = prepared.weight.tensor
    assert (tuple(held.shape), held.is_contiguous()) == ((2 * N, K), True)
    options, rows = {}, x
    if dtype is not None:
        rows, scale_x = module.quantize(x)
        options = {"scale_x": scale_x, "scale_w": prepared.scale, "out_dtype": BF16}
    y = module.gated_linear(rows, prepared.weight, interleaved=interleaved, **options)
    expected = functional.silu(x.float() @ gate.float().t()) * (x.float() @ up.float().t())
    assert (y.float() - expected).norm() / expected.norm() < (0.01 if dtype is None else 0.1)


def test_a_weight_that_lies_as_it_should_is_promised_as_it_is(module, calls):
    weight = torch.nn.Parameter(random_tensor(N, K))
    prepared = module.prepare(weight)
    assert prepared.scale is None
    assert prepared.weight.tensor.data_ptr() == weight.data_ptr()
    assert prepared.weight.is_kept
    turned = module.prepare(random_tensor(K, N).t())
    assert turned.weight.tensor.is_contiguous()
    with torch.no_grad():
        weight.mul_(2)
    assert not prepared.weight.is_kept


REFUSED = {
    "no tensor": ({"weight": [1.0]}, "OperandError", "weight is a builtins.list; expected a plain torch.Tensor"),
    "a vector": ({"weight": random_tensor(K)}, "ShapeError", r"shape \(192,\); expected \(n, k\)"),
    "integers": ({"weight": torch.ones(N, K, dtype=INT8)}, "DtypeError", "torch.int8; expected bfloat16, float16 or"),
    "elsewhere": ({"weight": random_tensor(N, K).to("meta")}, "DeviceError", "is on meta; expected a GPU"),
    "no type": ({"dtype": "fp8"}, "DtypeError", "dtype"),
    "a wide type": ({"dtype": BF16}, "DtypeError", "dtype is bfloat16; expected float8_e4m3fn, float8_e5m2, int8"),
    "no granularity": ({"granularity": "column"}, "UnsupportedError", "'column'; expected one of 'row', 'tensor'"),
    "no gate": ({"interleaved": True}, "OperandError", "interleaved goes with up="),
    "another shape": ({"up": random_tensor(N, 64)}, "ShapeError", r"up has shape \(160, 64\); expected \(160, 192\)"),
    "another type": ({"up": random_tensor(N, K).half()}, "DtypeError", "up is torch.float16; expected torch.bfloat16"),
    "no blocks of a gate": ({"up": random_tensor(N, K), "dtype": E4M3, "granularity": "block"}, None, ""),
    "no gate of int8": ({"up": random_tensor(N, K), "dtype": INT8}, None, ""),
    "no blocks of int8": ({"dtype": INT8, "granularity": "block"}, None, ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(module, calls, every_package, case):
    options, kind, text = REFUSED[case]
    weight = options.get("weight", random_tensor(N, K))
    expected = getattr(every_package, kind) if kind else (every_package.DtypeError, every_package.UnsupportedError)
    with pytest.raises(expected, match=text or None):
        module.prepare(weight, **{key: value for key, value in options.items() if key != "weight"})


def test_its_class_is_found_where_it_is_named(module):
    assert pickle.loads(pickle.dumps(module.PreparedWeight)) is module.PreparedWeight
