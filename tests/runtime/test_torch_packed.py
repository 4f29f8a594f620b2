"""Packed weights as torch has them: packing, what the bytes stand for, the operator, and modules that hold them."""

from __future__ import annotations

import copy
import io
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from aot.core import weight_rounding
from aot.core.element import ElementType
from aot.core.weight_format import FORMATS, INT4_G128, PackedLayout, format_named
from aot.core.weight_packing import pack
from aot.core.weight_values import weight_values
from aot.kinds.gemm.packed_inputs import draw_parts
from aot.package.shared_modules import SHARED
from tests.runtime import torch_reference
from tests.runtime.torch_reference import random_tensor

BF16, F16 = torch.bfloat16, torch.float16
N, K = 40, 256
NAMES = [x.name for x in FORMATS]


@pytest.fixture(scope="module")
def gemm(packed_package):
    return import_module(f"{packed_package.__name__}.torch")


@pytest.fixture
def launched(gemm, packed_package, monkeypatch):
    """Have torch compute on the CPU what the package's functions would on a GPU; give which are called."""
    return torch_reference.stand_in(packed_package, monkeypatch)


def torch_of(parts, form, element):
    """Return the parts of a weight as tensors of the types that they are of."""
    codes = torch.from_numpy(parts.codes)
    if parts.factors is None:
        return codes, None, None
    dtype = {16: {ElementType.BFLOAT16: BF16, ElementType.FLOAT16: F16}[element]}.get(
        form.factor_bits, torch.float8_e4m3fn if form.is_nvfp4 else torch.uint8
    )
    bits = torch.from_numpy(parts.factors.view(np.int16) if form.factor_bits == 16 else parts.factors)
    zeros = None if parts.zeros is None else torch.from_numpy(parts.zeros)
    return codes, bits.view(dtype), zeros


def drawn(gemm, name, n=N, k=K, element=ElementType.BFLOAT16, seed=0):
    """Draw a weight; return its parts and what the package packs of them."""
    form, rng = format_named(name), np.random.default_rng(seed)
    parts = draw_parts(form, element, n, k, rng)
    scale = torch.rand(1 if form.group else n) + 0.5 if form.has_row_factors else None
    codes, factors, zeros = torch_of(parts, form, element)
    return parts, scale, gemm.pack(codes, factors, zeros, format=name, scale=scale)


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_one_input_are_one_behind_the_other(gemm, launched, name):
    form = format_named(name)
    rows = (128, 256, 24) if form.in_rows else (16, 48, 24)
    held = [drawn(gemm, name, n, K, seed=i)[2] for i, n in enumerate(rows)]
    if form.in_rows:
        held = [gemm.PackedWeight(x.data, held[0].scale, name, x.shape, x.dtype) for x in held]
    joined = gemm.join(held)
    assert (joined.shape, joined.format, joined.dtype) == ((sum(rows), K), name, held[0].dtype)
    wide = [gemm.dequantize(x, dtype=torch.float32) for x in held]
    assert torch.equal(gemm.dequantize(joined, dtype=torch.float32), torch.cat(wide))
    x = random_tensor(3, K)
    y = gemm.linear(x, joined)
    assert launched == ["packed_linear"]  # in one launch
    for part, weight in zip(y.split(rows, -1), held, strict=True):
        assert torch.equal(part, gemm.linear(x, weight))
    alone = gemm.join(held[:1])
    assert (alone.shape, torch.equal(alone.data, held[0].data)) == (held[0].shape, True)


def test_what_cannot_be_joined_is_refused(gemm, packed_package):
    _, _, short = drawn(gemm, "int4g128", 24)
    _, _, whole = drawn(gemm, "int4g128", 32)
    _, _, other = drawn(gemm, "mxfp4", 32)
    _, _, wider = drawn(gemm, "int4g128", 32, 2 * K)
    assert gemm.join([whole, short]).shape == (56, K)
    for given, message in (
        ([short, whole], "in front of another has 24 rows; expected a multiple of 16; put it last"),
        ([whole, other], "expected one format, k, type and device"),
        ([whole, wider], "expected one format, k, type and device"),
    ):
        with pytest.raises(packed_package.FormatError, match=message):
            gemm.join(given)
    rows = [drawn(gemm, "nvfp4rows", 128, seed=i)[2] for i in range(2)]
    with pytest.raises(packed_package.FormatError, match="own factors of their own; expected one"):
        gemm.join(rows)
    for given in ([], whole, [whole.data]):
        with pytest.raises(packed_package.OperandError, match="expected a list of PackedWeight, one or more"):
            gemm.join(given)


@pytest.mark.parametrize("element", [ElementType.BFLOAT16, ElementType.FLOAT16])
@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_the_toolchain_s_and_stand_for_the_same(gemm, name, element):
    n, k = 37, 3 * format_named(name).quantum
    parts, scale, packed = drawn(gemm, name, n, k, element)
    form = format_named(name)
    assert np.array_equal(packed.data.numpy(), pack(form, parts))
    assert (packed.shape, packed.format) == ((n, k), name)
    found = gemm.unpack(packed)
    expected = torch_of(parts, form, element)
    for got, want in zip(found[:3], expected, strict=True):
        assert (got is None) == (want is None)
        assert want is None or (got.dtype == want.dtype and torch.equal(got.view(torch.uint8), want.view(torch.uint8)))
    wide = torch.from_numpy(weight_values(form, parts, element))
    wide = wide if scale is None else wide.float() * scale[:, None]
    assert torch.equal(gemm.dequantize(packed, dtype=torch.float32), wide.float())
    with pytest.raises(gemm.errors.OperandError, match="got scale, expected none"):
        gemm.dequantize(packed, torch.float32)


def test_a_wheel_has_the_toolchain_s_own_modules(packed_package):
    for name in SHARED:
        ours = import_module(f"aot.core.{name}")
        theirs = import_module(f"{packed_package.__name__}._{name}")
        header, text = Path(theirs.__file__).read_text("utf-8").split("\n", 1)
        restored = text.replace(" ._", " aot.core.").replace(" .errors", " aot.core.errors")
        assert restored == Path(ours.__file__).read_text("utf-8")
        assert header == f"# The toolchain's aot/core/{name}.py, with imports of this package."


def test_parts_that_a_format_has_not_are_refused(gemm, packed_package):
    error = packed_package.FormatError
    codes = torch.zeros(16, 128, dtype=torch.uint8)
    with pytest.raises(error, match=r"factors of int4g128 are torch.float32; expected torch.bfloat16 or torch.float16"):
        gemm.pack(codes, torch.ones(16, 1), format="int4g128")
    with pytest.raises(error, match="no weight format 'int3'"):
        gemm.pack(codes, format="int3")
    with pytest.raises(error, match="int8 has float32 factors, one for each row or one for all: pass scale="):
        gemm.pack(codes, format="int8")
    with pytest.raises(error, match="scale has 3 elements; expected 1 or 16"):
        gemm.pack(codes, format="int8", scale=torch.ones(3))
    with pytest.raises(error, match=r"packed bytes are torch.uint8 of \(1, 7\); expected torch.uint8 of \(1, 1056\)"):
        gemm.PackedWeight(torch.zeros(1, 7, dtype=torch.uint8), None, "int4g128", (16, 128), BF16)


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
E8M0 = torch.float8_e8m0fnu
OTHER_TYPES = {
    "int8": (E4M3, None, "codes are torch.float8_e4m3fn .16, 128.; expected .n, k. of torch.uint8 or torch.int8"),
    "e4m3": (
        torch.int8,
        None,
        "codes are torch.int8 .* expected .n, k. of torch.uint8 or torch.float8_e4m3fn, as e4m3",
    ),
    "int4g128": (E4M3, BF16, "codes are torch.float8_e4m3fn .* expected .n, k. of torch.uint8 or torch.int8"),
    "nvfp4": (
        torch.uint8,
        E8M0,
        "factors of nvfp4 are torch.float8_e8m0fnu; expected torch.float8_e4m3fn or torch.uint8",
    ),
    "nvfp4rows": (torch.uint8, E5M2, "factors of nvfp4rows are torch.float8_e5m2; expected torch.float8_e4m3fn or"),
    "mxfp4": (
        torch.uint8,
        E4M3,
        "factors of mxfp4 are torch.float8_e4m3fn; expected torch.float8_e8m0fnu or torch.uint8",
    ),
}


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_elements_that_mean_something_else_are_refused(gemm, packed_package, name):
    """Their bits would be taken for those of the format's type."""
    codes, factors, message = OTHER_TYPES[name]
    form = format_named(name)
    held = None if factors is None else torch.ones(16, form.num_groups(128)).to(factors)
    with pytest.raises(packed_package.FormatError, match=message):
        gemm.pack(
            torch.zeros(16, 128).to(codes), held, format=name, scale=torch.ones(1) if form.has_row_factors else None
        )


def test_what_is_no_packed_weight_or_no_tensor_is_said(gemm, packed_package, launched):
    with pytest.raises(packed_package.OperandError, match=r"unpack: got a torch\.Tensor; expected a PackedWeight"):
        gemm.unpack(torch.zeros(1, 1))
    packed = gemm.pack(torch.zeros(16, 128, dtype=torch.uint8), torch.ones(16, 1, dtype=BF16), format="int4g128")
    for x in (None, [1.0]):
        with pytest.raises(packed_package.OperandError, match=r"linear: x is .*; expected a torch\.Tensor"):
            gemm.linear(x, packed)


# The product.


@pytest.mark.parametrize("name", ["int4g128", "nvfp4"])
def test_linear_takes_a_packed_weight(gemm, launched, name):
    _, _, packed = drawn(gemm, name)
    x, bias, out = random_tensor(3, 5, K), random_tensor(N), torch.empty(3, 5, N, dtype=BF16)
    expected = (x.float() @ gemm.dequantize(packed, dtype=torch.float32).t() + bias.float()).to(BF16)
    assert torch.equal(gemm.linear(x, packed, bias), expected)
    assert gemm.linear(x, packed, bias, out=out) is out
    assert torch.equal(out, expected)
    assert launched == ["packed_linear"] * 2


def test_x_of_another_type_than_the_factors_is_refused(gemm, packed_package, launched):
    _, _, packed = drawn(gemm, "int4g128")
    with pytest.raises(
        packed_package.DtypeError, match=r"x is torch.float16, and the packed weight has factors of torch.b"
    ):
        gemm.linear(random_tensor(2, K, dtype=F16), packed)


def test_gradients_are_those_of_torch_s_product(gemm, launched):
    _, _, packed = drawn(gemm, "int4g128")
    x, bias = random_tensor(5, K, grad=True), random_tensor(N, grad=True)
    gradient = random_tensor(5, N)
    gemm.linear(x, packed, bias).backward(gradient)
    assert torch.equal(x.grad, gradient @ gemm.dequantize(packed))
    assert torch.equal(bias.grad, gradient.sum(0))


def test_the_operator_is_what_torch_asks_of_one(gemm, packed_package, launched):
    _, _, packed = drawn(gemm, "int4g128")
    operator = getattr(torch.ops, packed_package.__name__).packed_linear
    options = {"weight_format": packed.format, "columns": N}
    opcheck(operator.default, (random_tensor(5, K), packed.data, random_tensor(N), None), options)
    compiled = torch.compile(lambda x: gemm.linear(x, packed) + 1, backend="eager", fullgraph=True)
    x = random_tensor(4, K)
    assert torch.equal(compiled(x), gemm.linear(x, packed) + 1)
    batch = random_tensor(2, 3, K)
    assert torch.equal(torch.vmap(lambda x: gemm.linear(x, packed))(batch), gemm.linear(batch, packed))


def test_a_fake_tensor_has_the_shape_and_is_checked(gemm, packed_package):
    operator = getattr(torch.ops, packed_package.__name__).packed_linear.default
    shape = PackedLayout(INT4_G128).shape(N, K)
    with FakeTensorMode():
        x, data = torch.empty(7, K, dtype=BF16, device="cuda"), torch.empty(shape, dtype=torch.uint8, device="cuda")
        assert operator(x, data, weight_format="int4g128", columns=N).shape == (7, N)
        with pytest.raises(packed_package.ShapeError, match="expected"):
            operator(x, data, weight_format="int4g128", columns=N + 16)


# Rounding.


@pytest.mark.parametrize("name", NAMES)
def test_a_weight_is_rounded_to_nearest(gemm, packed_package, name):
    rounding = import_module(f"{packed_package.__name__}._torch_rounding")
    form, weight = import_module(f"{packed_package.__name__}._weight_format").format_named(name), random_tensor(24, 384)
    weight[3], weight[5, :200] = 0, weight[5, :200] * 100
    codes, factors, zeros, scale = rounding.rounded(form, weight, BF16)
    packed = gemm.pack(codes, factors, zeros, format=name, scale=scale)
    found, wide = gemm.dequantize(packed, dtype=torch.float32), weight.float()
    group = form.group or 384
    most = wide.unflatten(1, (-1, group)).abs().amax(2).repeat_interleave(group, 1)
    steps = {"int4": most / 7 * 1.02, "int8": most / 127, "e4m3": most / 8, "e2m1": most / 3 * 1.1}
    # Of mxfp4 the largest magnitude is above 3 powers, and from 4 on numbers lie 2 apart.
    step = most / 1.5 if form.is_mxfp4 else steps[form.code.value]
    assert ((found - wide).abs() <= 0.51 * step + 1e-12).all()
    assert (found[3] == 0).all()


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", NAMES)
def test_the_toolchain_rounds_a_weight_to_the_same_bits(packed_package, name, dtype):
    rounding = import_module(f"{packed_package.__name__}._torch_rounding")
    weight = random_tensor(48, 384, dtype=dtype)
    weight[3], weight[5, :200], weight[7] = 0, weight[5, :200] * 100, weight[7] * 3e-5
    element = {BF16: ElementType.BFLOAT16, F16: ElementType.FLOAT16}[dtype]
    ours = weight_rounding.rounded(format_named(name), weight.float().numpy(), element)
    theirs = rounding.rounded(
        import_module(f"{packed_package.__name__}._weight_format").format_named(name), weight, dtype
    )
    pairs = [*zip((ours.parts.codes, ours.parts.factors, ours.parts.zeros, ours.scale), theirs, strict=True)]
    for got, want in pairs:
        assert (got is None) == (want is None)
        if want is not None:
            bits = np.ascontiguousarray(got).reshape(-1).view(np.uint8)
            assert np.array_equal(bits, want.contiguous().reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_a_weight_and_a_tensor_are_rounded_to_the_same(gemm, packed_package, name):
    rounding = import_module(f"{packed_package.__name__}._torch_rounding")
    form, weight = import_module(f"{packed_package.__name__}._weight_format").format_named(name), random_tensor(16, 256)
    weight[1], weight[2], weight[3, :32] = 0, weight[2] * 3e-5, weight[3, :32] * 4000
    codes, factors, zeros, scale = rounding.rounded(form, weight, BF16)
    packed = gemm.pack(codes, factors, zeros, format=name, scale=scale)
    expected = gemm.dequantize(*gemm.quantize(weight, name), torch.float32)
    assert torch.equal(gemm.dequantize(packed, dtype=torch.float32), expected)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["int4g128", "int4g128z", "nvfp4", "mxfp4"])
def test_a_weight_that_is_not_finite_is_not_made_so(gemm, packed_package, name, number):
    """It is refused, or what the bytes stand for is not finite either."""
    rounding = import_module(f"{packed_package.__name__}._torch_rounding")
    form, weight = import_module(f"{packed_package.__name__}._weight_format").format_named(name), random_tensor(16, 256)
    weight[3, 5] = number
    codes, factors, zeros, scale = rounding.rounded(form, weight, BF16)
    try:
        packed = gemm.pack(codes, factors, zeros, format=name, scale=scale)
    except packed_package.FormatError:
        return
    assert not gemm.dequantize(packed, dtype=torch.float32)[3, 5].isfinite()


# Modules.


def test_a_module_whose_weight_is_not_finite_is_named(gemm, packed_package, launched):
    net = model()
    with torch.no_grad():
        net[0].weight[3, 5] = float("nan")
    with pytest.raises(packed_package.FormatError, match=r"the weight of 0 has a number that is not finite .*where="):
        gemm.quantize(net, "nvfp4")
    assert type(net[0]) is torch.nn.Linear


def model(bias=True):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(K, 64, bias=bias), torch.nn.Linear(64, 30)).to(BF16)


@pytest.mark.parametrize("name", ["int4g128", "nvfp4"])
def test_a_model_s_weights_are_packed(gemm, launched, name):
    net, x = model(), random_tensor(3, K)
    with torch.no_grad():
        exact = net(x)
        report = gemm.quantize(net, name)
        got = net(x)
    assert report.quantized == ("0",)
    assert "1" in report.left  # k 64, or n 30
    assert launched == ["packed_linear"]
    assert float((got - exact).norm() / exact.norm()) < 0.2
    assert report.bytes_after < report.bytes_before - 64 * K * 2 * 0.7
    layer = net[0]
    assert (layer.qweight.dtype, tuple(layer.qweight.shape)) == (
        torch.uint8,
        PackedLayout(format_named(name)).shape(64, K),
    )
    assert layer.weight.shape == (64, K)


def test_a_packed_module_is_saved_and_loaded(gemm, launched):
    net, other = model(), model()
    gemm.quantize(net, "int4g128")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    gemm.quantize(other, "int4g128")
    other.load_state_dict(net.state_dict())
    x = random_tensor(3, K)
    held = io.BytesIO()
    torch.save(net, held)
    held.seek(0)
    with torch.no_grad():
        assert torch.equal(other(x), net(x))
        assert torch.equal(copy.deepcopy(net)(x), net(x))
        assert torch.equal(torch.load(held, weights_only=False)(x), net(x))


def test_a_write_of_the_wide_weight_is_refused(gemm, packed_package, launched):
    net = model()
    gemm.quantize(net, "int4g128")
    with pytest.raises(packed_package.ReadOnlyError, match="held in that alone"):
        net[0].weight.add_(1)
    net[0].requantize(torch.zeros(64, K))
    assert not net[0].dequantize().any()


def test_factors_follow_a_model_to_another_type(gemm, packed_package, launched):
    net = model()
    gemm.quantize(net, "int4g128")
    before, form = net[0].dequantize(), import_module(f"{packed_package.__name__}._torch_formats").format_of("int4g128")
    bytes_before = net[0].qweight
    net.half()
    assert net[0].dequantize().dtype == F16
    assert not torch.equal(net[0].qweight, bytes_before)
    exact = form.widen(net[0].qweight, net[0].scale, torch.float32, net[0].held)
    assert torch.equal(exact.to(BF16), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_of_a_wider_type_keeps_its_factors(gemm, launched, dtype):
    net, x = model(), random_tensor(3, K)
    gemm.quantize(net, "int4g128")
    held, wide = net[0].qweight.clone(), net[0].dequantize()
    net.to(dtype)
    assert torch.equal(net[0].qweight, held)
    assert torch.equal(net[0].dequantize().to(BF16), wide)
    with torch.no_grad():
        assert torch.equal(net[0](x.to(dtype)), torch.nn.functional.linear(x.to(dtype), net[0].weight, net[0].bias))
        net[0].requantize(wide.to(dtype))  # whose factors are of 16 bits too
        assert torch.equal(copy.deepcopy(net)[0].dequantize().to(BF16), wide)
    net.bfloat16()
    assert torch.equal(net[0].dequantize(), wide)
    net.float().half()
    assert (net[0].dequantize().dtype, net[0].held.dtype) == (F16, F16)


def saved(state, how):
    """Give a state dict as it comes from a file: by pickle with torch's metadata, by others without."""
    if how == "others":
        return dict(state)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("how", ["torch.save", "others"])
@pytest.mark.parametrize("assign", [False, True])
def test_factors_of_a_state_dict_get_the_type_of_the_module(gemm, launched, how, assign):
    """Or, where buffers are assigned, the module that of the state dict, as an nn.Linear does."""
    net, other = model(), model()
    gemm.quantize(net, "int4g128")
    gemm.quantize(other, "int4g128")
    other.half().load_state_dict(saved(net.state_dict(), how), assign=assign)
    assert other[0].weight_dtype == other[0].bias.dtype == (BF16 if assign else F16)
    exact = net[0].dequantize(), other[0].dequantize()
    assert torch.equal(*(x.float() for x in exact)) if assign else torch.allclose(*(x.float() for x in exact), 1e-2)
    x = random_tensor(3, K).to(other[0].bias.dtype)
    with torch.no_grad():
        assert torch.allclose(other(x).float(), net(x.to(BF16)).float(), 0.1, 0.1)


def test_a_state_dict_of_another_format_is_refused(gemm, launched):
    net, other = model(), model()
    gemm.quantize(net, "int4g128")
    before = net.state_dict()["0.qweight"].clone()
    gemm.quantize(other, "nvfp4")
    with pytest.raises(RuntimeError, match=r"0\.qweight is torch\.uint8, of the format nvfp4; .* of int4g128"):
        net.load_state_dict(other.state_dict())
    assert torch.equal(net[0].qweight, before)
    state = dict(net.state_dict())
    with pytest.raises(RuntimeError, match=r"expected torch\.Tensor or Tensor-like object"):
        net.load_state_dict(state | {"0.qweight": 7})
    state["0.qweight"] = state["0.qweight"].to(torch.int8)
    with pytest.raises(RuntimeError, match=r"0\.qweight is torch\.int8, of the format int4g128; expected torch\.uint8"):
        net.load_state_dict(state)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_inputs_that_are_no_plain_tensor_are_torchs(gemm, launched):
    net, parts = model()[:1], [random_tensor(2, K), random_tensor(3, K)]
    gemm.quantize(net, "int4g128")
    for layout in (torch.strided, torch.jagged):
        with torch.no_grad():
            found = net(torch.nested.nested_tensor(parts, layout=layout)).unbind()
            assert len(found) == len(parts)
            for got, x in zip(found, parts, strict=True):
                expected = torch.nn.functional.linear(x, net[0].dequantize(), net[0].bias)
                assert torch.allclose(got.float(), expected.float(), 0.05, 0.05)
    for value in (None, [1.0], np.ones((2, K))):
        with pytest.raises(TypeError, match="argument 'input'"):
            net(value)
    for value, error in ((None, "weight is None"), (torch.ones(64, K, device="meta"), "is on the meta device")):
        with pytest.raises(gemm.errors.OperandError, match=error):
            net[0].requantize(value)


@pytest.mark.parametrize("compiles", [False, True])
def test_a_bias_that_torch_spreads_is_added_by_torch(gemm, launched, compiles):
    net, x = model()[:1], random_tensor(3, K)
    gemm.quantize(net, "int4g128")
    net[0].bias = torch.nn.Parameter(torch.ones(1, dtype=BF16))
    with torch.no_grad():
        expected = torch.nn.functional.linear(x, net[0].dequantize(), net[0].bias)
        call = torch.compile(net, backend="eager", fullgraph=True) if compiles else net
        assert torch.equal(call(x), expected)
    assert launched == []


def test_gradients_pass_a_packed_module(gemm, launched):
    net = model()
    gemm.quantize(net, "int4g128")
    x = random_tensor(3, K, grad=True)
    net[0](x).sum().backward()
    assert torch.equal(x.grad, torch.ones(3, 64, dtype=BF16) @ net[0].dequantize())


# Checkpoints.


def test_a_checkpoint_s_tensors_are_packed(gemm, packed_package):
    rng = np.random.default_rng(3)
    n, k = 32, 256
    words = torch.from_numpy(rng.integers(-(2**31), 2**31, (n, k // 8), dtype=np.int32))
    scales = torch.rand(n, k // 128).to(F16)
    packed = gemm.load_packed({"weight_packed": words, "weight_scale": scales}, BF16)
    assert (packed.format, packed.dtype, packed.shape) == ("int4g128", BF16, (n, k))
    codes = (words.unsqueeze(2) >> torch.arange(0, 32, 4) & 15).flatten(1)
    found = gemm.unpack(packed)
    assert torch.equal(found.codes.int(), codes.int())
    assert torch.equal(found.factors, scales.to(BF16))
    halves = torch.from_numpy(rng.integers(0, 256, (n, k // 2), dtype=np.uint8))
    factors = torch.rand(n, k // 16).to(torch.float8_e4m3fn)
    tensors = {"weight": halves, "weight_scale": factors, "weight_scale_2": torch.tensor(0.5)}
    nvfp4 = gemm.load_packed(tensors)
    assert (nvfp4.format, nvfp4.scale.tolist()) == ("nvfp4", [0.5])
    powers = torch.randint(0, 255, (n, k // 32), dtype=torch.uint8)
    found = gemm.unpack(mxfp4 := gemm.load_packed({"weight_packed": halves, "weight_scale": powers}))
    assert mxfp4.format == "mxfp4"
    assert torch.equal(found.factors, powers)
    assert torch.equal(found.codes[:, ::2] | found.codes[:, 1::2] << 4, halves)
    with pytest.raises(
        packed_package.FormatError, match="load_packed: got the tensors bias; expected those of a weight"
    ):
        gemm.load_packed({"bias": scales})


def words_of(codes):
    """Put eight codes along the last axis into a word, the first into the lowest bits."""
    held = (codes.reshape(*codes.shape[:-1], -1, 8) << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(held >= 2**31, held - 2**32, held).to(torch.int32)


def test_both_versions_of_gptq_are_read_as_it_is_said(gemm):
    codes, zeros = torch.arange(128 * 8).reshape(128, 8) % 16, torch.arange(1, 9).reshape(1, 8)
    tensors = {"qweight": words_of(codes.t()).t(), "scales": torch.ones(1, 8, dtype=BF16)}
    expected = (codes - zeros).t().to(BF16)
    for version, stored in (("gptq", zeros - 1), ("gptq_v2", zeros)):
        packed = gemm.load_packed({**tensors, "qzeros": words_of(stored)}, checkpoint_format=version)
        assert torch.equal(gemm.dequantize(packed), expected)


WORDS = {"weight_packed": torch.zeros(8, 16, dtype=torch.int32), "weight_scale": torch.ones(8, 1, dtype=BF16)}
GPTQ = {
    "qweight": torch.zeros(16, 8, dtype=torch.int32),
    "qzeros": torch.zeros(1, 1, dtype=torch.int32),
    "scales": torch.ones(1, 8, dtype=BF16),
}
NVFP4 = {
    "weight": torch.zeros(8, 16, dtype=torch.uint8),
    "weight_scale": torch.ones(8, 2).to(torch.float8_e4m3fn),
    "weight_scale_2": torch.ones(()),
}
MISREAD = {
    "words of 8 bits": (WORDS | {"weight_shape": torch.tensor([8, 64])}, r"and weight_shape says \(8, 64\)"),
    "another order": (WORDS | {"weight_g_idx": torch.arange(128) % 2}, "weight_g_idx does not count 1 groups of the"),
    "another order of AWQ": (
        {**GPTQ, "qweight": torch.zeros(128, 1, dtype=torch.int32), "g_idx": torch.arange(128) // 64},
        "g_idx does not count 1 groups",
    ),
    "factors of x": (NVFP4 | {"pre_quant_scale": torch.ones(32)}, "got pre_quant_scale beside weight, weight_scale, "),
    "float32 factors": (
        WORDS | {"weight_scale": torch.ones(8, 1)},
        "factors are torch.float32; expected torch.bfloat1",
    ),
    "a vector": (GPTQ | {"scales": torch.ones(8, dtype=BF16)}, r"scales is of \(8,\); expected two dimensions"),
    "no factor": (NVFP4 | {"weight_scale_2": torch.zeros(())}, "weight_scale_2 is 0.0; expected one finite number"),
    "two factors": (NVFP4 | {"weight_scale_2": torch.ones(2)}, "weight_scale_2 is 2 elements; expected one finite"),
    "no tensor": (NVFP4 | {"weight_scale": 7}, "weight_scale is a builtins.int; expected a torch.Tensor"),
    "15": (GPTQ | {"qzeros": torch.full((1, 1), 15, dtype=torch.int32)}, "is 15 in qzeros; expected 0 to 14"),
    "blocks": (
        {"blocks": torch.zeros(8, 16, dtype=torch.uint8), "scales": torch.zeros(8, 1)},
        "expected .n, k / 32, 16",
    ),
}


@pytest.mark.parametrize("name", MISREAD)
def test_what_would_be_misread_is_refused(gemm, packed_package, name):
    tensors, message = MISREAD[name]
    with pytest.raises((packed_package.FormatError, packed_package.OperandError), match=message):
        gemm.load_packed(tensors)


def test_a_version_of_gptq_that_is_not_known_is_refused(gemm, packed_package):
    for version in ("marlin", None, 2, []):
        with pytest.raises(packed_package.FormatError, match="expected 'gptq' or 'gptq_v2'"):
            gemm.load_packed(GPTQ, checkpoint_format=version)
