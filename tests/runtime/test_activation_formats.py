"""What x is beside a packed weight: of 16 bits by default, rounded where that is asked for, or where it is faster."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from aot.checkpoint.packing import Request, pack_checkpoint
from aot.core.element import ElementType
from aot.core.operation import Operation
from tests import checkpoints
from tests.runtime import host, torch_reference
from tests.runtime.torch_reference import random_tensor

BF16 = torch.bfloat16
N, K = 136, 288
OPERATIONS = (
    Operation.NVFP4_BF16_KK,
    Operation.NVFP4_BF16_KK_BIAS,
    Operation.BF16_NVFP4_KK,
    Operation.BF16_NVFP4_ROWS_KK,
    Operation.MXFP8_MXFP4_BF16_KK,
    Operation.MXFP8_MXFP4_BF16_KK_BIAS,
    Operation.BF16_MXFP4_KK,
    Operation.BF16_MXFP4_ROWS_KK,
)
BESIDE = {"nvfp4": "nvfp4", "mxfp4": "mxfp8"}
"""What x is rounded to, by what codes and factors of the weight are called."""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    manifest = replace(host.random_manifest(5, OPERATIONS), package="activation-gemm")
    return host.compile_package(manifest, tmp_path_factory.mktemp("activation_package"))


@pytest.fixture(scope="module")
def gemm(package):
    return import_module(f"{package.__name__}.torch")


@pytest.fixture(scope="module")
def activations(package):
    return import_module(f"{package.__name__}._torch_activations")


@pytest.fixture
def calls(gemm, package, monkeypatch):
    """Have torch compute on the CPU; give the operands of narrow products beside the names of what is called."""
    names = torch_reference.stand_in(package, monkeypatch)
    given = []

    def linear(x, weight, bias=None, *, scale_x, scale_w, out=None, out_dtype=None, **modes):
        names.append("linear")
        given.append((x, weight, scale_x, scale_w, modes))
        weight = getattr(weight, "tensor", weight)
        wide = gemm.dequantize(x, scale_x, torch.float32), gemm.dequantize(weight, scale_w, torch.float32)
        return torch_reference.linear(*wide, bias, out=out, out_dtype=out_dtype)

    monkeypatch.setattr(package._operations, "linear", linear)
    return SimpleNamespace(names=names, given=given)


@pytest.fixture
def weight():
    torch.manual_seed(3)
    return random_tensor(N, K)


def packed_of(gemm, weight, name="nvfp4rows"):
    rounding = import_module(f"{gemm.__name__.rpartition('.')[0]}._torch_rounding")
    form = import_module(f"{gemm.__name__.rpartition('.')[0]}._weight_format").format_named(name)
    codes, factors, zeros, scale = rounding.rounded(form, weight, BF16)
    return gemm.pack(codes, factors, zeros, format=name, scale=scale)


def parts_of(scale):
    """Give atoms, and a tensor's own factor or None, of what `quantize` returns."""
    return scale if isinstance(scale, tuple) else (scale, None)


@pytest.mark.parametrize("name", BESIDE)
def test_the_bytes_are_what_quantize_of_a_tensor_gives(gemm, weight, name):
    packed = packed_of(gemm, weight, f"{name}rows")
    values, scale = gemm.quantize(weight, name)
    (atoms, own), (elements, held) = parts_of(scale), packed.rows
    assert torch.equal(elements, values)
    assert (held.dtype, torch.equal(held.view(torch.uint8), atoms.view(torch.uint8))) == (atoms.dtype, True)
    assert (packed.scale, elements.data_ptr()) == (own, packed.data.data_ptr())
    assert held.data_ptr() % 16 == elements.stride(0) % 16 == 0


@pytest.mark.parametrize(("name", "another"), [("nvfp4", "mxfp4"), ("mxfp4", "nvfp4rows")])
def test_layouts_are_packed_of_each_other(gemm, package, weight, name, another):
    rows, fragments = packed_of(gemm, weight, f"{name}rows"), packed_of(gemm, weight, name)
    for packed, other in ((rows, fragments), (fragments, rows)):
        again = packed.repack(other.format)
        assert (again.format, again.scale) == (other.format, packed.scale)
        assert torch.equal(again.data, other.data)
    assert torch.equal(gemm.dequantize(rows), gemm.dequantize(fragments))
    text = f"{name}, whose bytes lie as kernels with x of 16 bits read them; expected {name}rows; pack it anew by"
    with pytest.raises(package.FormatError, match=text):
        _ = fragments.rows
    with pytest.raises(package.FormatError, match=f"{another} has other codes or factors; expected another layout"):
        rows.repack(another)


def test_x_stays_as_it_is_where_nothing_is_said(gemm, calls, weight):
    packed, x = packed_of(gemm, weight), random_tensor(2, 3, K)
    wide = gemm.dequantize(packed, dtype=torch.float32)
    expected = (x.float() @ wide.t()).to(BF16)
    assert torch.equal(gemm.linear(x, packed), expected)
    assert torch.equal(gemm.linear(x, packed, activation_format="16-bit"), expected)
    assert calls.names == ["packed_linear"] * 2


@pytest.mark.parametrize(("name", "of_x"), BESIDE.items())
def test_x_is_rounded_where_that_is_asked_for(gemm, calls, weight, name, of_x):
    packed, x, bias = packed_of(gemm, weight, f"{name}rows"), random_tensor(2, 3, K), random_tensor(N)
    got = gemm.linear(x, packed, bias, activation_format=of_x, deterministic=True)
    values, scale = gemm.quantize(x, of_x)
    (given,) = calls.given
    assert calls.names == ["linear"]
    assert torch.equal(given[0].view(torch.uint8), values.view(torch.uint8))
    assert torch.equal(parts_of(given[2])[0].view(torch.uint8), parts_of(scale)[0].view(torch.uint8))
    assert (parts_of(given[3])[1] is packed.scale, given[4]) == (True, {"deterministic": True})
    rounded = gemm.dequantize(values, scale, torch.float32)
    expected = (rounded @ gemm.dequantize(packed, dtype=torch.float32).t() + bias.float()).to(BF16)
    assert torch.equal(got, expected)
    if name == "mxfp4":  # whose bits of a row are its own
        assert torch.equal(gemm.linear(x[:1], packed, bias, activation_format=of_x, batch_invariant=True), got[:1])
        return
    own, out = torch.full((1,), 0.01), torch.empty(2, 3, N, dtype=BF16)
    assert gemm.linear(x, packed, activation_format="nvfp4", scale_x=own, out=out) is out
    assert torch.equal(calls.given[1][2][1], own)


def test_a_promise_of_the_bytes_is_one_of_what_the_narrow_product_reads(gemm, calls, weight):
    packed = packed_of(gemm, weight).promise()
    gemm.linear(random_tensor(3, K), packed, activation_format="nvfp4")
    held = calls.given[0][1]
    assert (type(held).__name__, held.address, tuple(held.tensor.shape)) == (
        "ConstantWeight",
        packed.data.data_ptr(),
        (N, K // 2),
    )
    packed.data.add_(0)
    gemm.linear(random_tensor(3, K), packed, activation_format="nvfp4")
    assert type(calls.given[1][1]) is torch.Tensor


@pytest.mark.parametrize(
    ("options", "name", "error", "text"),
    [
        (
            {"activation_format": "fp8"},
            "nvfp4rows",
            "UnsupportedError",
            "is 'fp8'; expected one of '16-bit', 'nvfp4', 'mxfp8', ",
        ),
        (
            {"activation_format": "mxfp8"},
            "nvfp4rows",
            "FormatError",
            "packed as nvfp4rows x is rounded to nvfp4; expected 'nvfp4', 'auto' or '16-bit'",
        ),
        ({"activation_format": "mxfp8"}, "int8", "FormatError", "expected nvfp4rows or mxfp4rows; round a weight to"),
        (
            {"activation_format": "mxfp8", "scale_x": torch.ones(1)},
            "mxfp4rows",
            "OperandError",
            "got scale_x, and beside a weight of mxfp4rows x is rounded to mxfp8, which has factors of blocks alone",
        ),
        ({"activation_format": "nvfp4"}, "nvfp4", "FormatError", "the weight is packed as nvfp4, which kernels with x"),
        ({"activation_format": "auto"}, "nvfp4", "FormatError", r'pack it anew by packed.repack\("nvfp4rows"\)'),
        ({"scale_x": torch.ones(1)}, "nvfp4rows", "OperandError", "got scale_x, the factor of an x that is rounded"),
    ],
)
def test_what_cannot_be_is_refused(gemm, package, calls, weight, options, name, error, text):
    with pytest.raises(getattr(package, error), match=text):
        gemm.linear(random_tensor(3, K), packed_of(gemm, weight, name), **options)
    assert calls.names == []


def test_a_wheel_without_the_narrow_product_says_so(packed_package, weight):
    gemm = import_module(f"{packed_package.__name__}.torch")
    packed = packed_of(gemm, weight)
    with pytest.raises(packed_package.UnsupportedError, match="no kernels for"):
        gemm.linear(random_tensor(3, K), packed, activation_format="nvfp4")


def test_gradients_of_a_rounded_x_are_refused(gemm, package, calls, weight):
    with pytest.raises(package.GradientError, match="x may be rounded, which has none"):
        gemm.linear(random_tensor(3, K, grad=True), packed_of(gemm, weight), activation_format="nvfp4")


def test_a_compiler_takes_it(gemm, calls, weight):
    packed, x = packed_of(gemm, weight), random_tensor(4, K)
    compiled = torch.compile(
        lambda x: gemm.linear(x, packed, activation_format="nvfp4") + 1, backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(x), gemm.linear(x, packed, activation_format="nvfp4") + 1)


# Which of the two is faster.


def planned(time_us, roofline_us=1.0, tier="tuned", rows=0, bucket=None):
    found = {"function": "quantize", "dtype": "bfloat16", "target": None, "rows": rows, "cols": K}
    return SimpleNamespace(time_us=time_us, roofline_us=roofline_us, tier=tier, bucket=bucket, **found)


@pytest.fixture
def times(activations, monkeypatch):
    """Give what the tables say: of x of 16 bits m microseconds, of the narrow product 20, of rounding 5."""
    said = {"wide": lambda m: planned(float(m)), "narrow": lambda m: planned(20.0), "rounding": lambda m: planned(5.0)}

    def plan(m, n, k, dtype, *, weight_dtype=None, **others):
        return said["narrow" if dtype in BESIDE.values() else "wide"](m)

    monkeypatch.setattr(activations, "plan", plan)
    monkeypatch.setattr(activations, "plan_rows", lambda function, m, *others, **options: said["rounding"](m))
    activations.narrow_is_faster.cache_clear()
    yield said
    activations.narrow_is_faster.cache_clear()


def chosen(gemm, calls, packed, m):
    calls.names.clear()
    gemm.linear(random_tensor(m, K), packed, activation_format="auto")
    return list(calls.names)


@pytest.mark.parametrize("name", BESIDE)
def test_the_faster_one_is_taken_by_the_rows_of_x(gemm, calls, times, weight, name):
    packed = packed_of(gemm, weight, f"{name}rows")
    for m, expected in ((1, "packed_linear"), (25, "packed_linear"), (26, "linear"), (300, "linear")):
        assert chosen(gemm, calls, packed, m) == [expected]


def test_without_times_the_least_that_both_can_take_is_compared(gemm, calls, times, weight):
    packed = packed_of(gemm, weight)
    times["wide"] = lambda m: planned(None, float(m))
    times["narrow"] = lambda m: planned(0.5, 4.0)
    assert [chosen(gemm, calls, packed, m) for m in (9, 10)] == [["packed_linear"], ["linear"]]


def test_rounding_is_estimated_by_the_edges_of_buckets(gemm, calls, times, weight):
    """Up to 4 rows take 10 microseconds, 512 take 100 of a roofline of 50: 60 rows of 5 or 15 take 10 or 30."""
    packed, roofline = packed_of(gemm, weight), {60: 5.0, 61: 15.0}
    edges = {4: planned(10.0), 512: planned(100.0, 50.0)}
    times["rounding"] = lambda m: (
        edges.get(m) or planned(None, roofline.get(m, 0.1), "grid", m, (4 if m <= 4 else 512, K))
    )
    times["wide"] = lambda m: planned({60: 30.5, 61: 49.5}[m])
    assert [chosen(gemm, calls, packed, m) for m in (60, 61)] == [["linear"], ["packed_linear"]]
    times["wide"] = lambda m: planned({60: 29.5, 61: 50.5}[m])
    import_module(f"{gemm.__name__.rpartition('.')[0]}._torch_activations").narrow_is_faster.cache_clear()
    assert [chosen(gemm, calls, packed, m) for m in (60, 61)] == [["packed_linear"], ["linear"]]


def test_x_is_not_rounded_by_its_rows_where_bits_are_not_to_depend_on_them(activations):
    of_x = torch.empty(4096, K, dtype=BF16), None, {"batch_invariant": True}
    assert [activations.is_narrow(asked, *of_x) for asked in ("auto", "nvfp4", "bf16")] == [False, True, False]


@pytest.mark.parametrize("asked", ["by the call", "by the package"])
def test_a_factor_of_all_rows_is_refused_where_bits_are_not_to_depend_on_them(
    gemm, package, calls, activations, monkeypatch, weight, asked
):
    options = {"activation_format": "nvfp4"} | ({"batch_invariant": True} if asked == "by the call" else {})
    if asked == "by the package":
        built = package._manifest.manifest() | {"batch_invariant": True}
        monkeypatch.setattr(package._manifest, "manifest", lambda: built)
    packed, x = packed_of(gemm, weight), random_tensor(3, K)
    with pytest.raises(package.OperandError, match=r"expected scale_x, x's own factor as of a calibration"):
        gemm.linear(x, packed, **options)
    assert gemm.linear(x, packed, scale_x=torch.ones(1), **options).shape == (3, N)
    assert calls.names == ["linear"]


@pytest.mark.parametrize("which", ["narrow", "rounding"])
def test_x_is_not_rounded_where_the_wheel_has_no_kernels_for_it(gemm, package, calls, times, weight, which):
    packed = packed_of(gemm, weight)
    times[which] = lambda m: planned(1.0, tier="fallback")
    assert chosen(gemm, calls, packed, 300) == ["packed_linear"]

    def refuse(m):
        raise package.UnsupportedError("this wheel has no such operation")

    times[which] = refuse
    assert chosen(gemm, calls, packed, 301) == ["packed_linear"]


def test_the_wheel_s_own_tables_are_asked(activations, gemm):
    """Without a kernel that rounds x, as this wheel is, nothing is rounded, whatever the tables say of the products."""
    problem = activations.Narrow(4096, 4096, 4096, "bfloat16", "nvfp4rows", False, False)
    assert activations.narrow_is_faster(problem) is False


# Modules.


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(K, 64), torch.nn.Linear(64, 40)).to(BF16)


@pytest.mark.parametrize(("name", "asked"), [("nvfp4", "nvfp4"), ("nvfp4", "auto"), ("mxfp4", "mxfp8")])
def test_a_model_s_inputs_are_rounded_where_that_is_asked_for(gemm, calls, times, name, asked):
    net, x = model(), random_tensor(60, K)
    report = gemm.quantize(net, name, activation_format=asked)
    assert (report.format, report.quantized) == (f"{name}rows", ("0", "1"))
    assert f"format='{name}rows', activation_format='{asked}'" in str(net)
    with torch.no_grad():
        found = net(x)
        assert calls.names == ["linear"] * 2
        calls.names.clear()
        for layer in net:
            layer.activation_format = "16-bit"
        wide = net(x)
    assert calls.names == ["packed_linear"] * 2
    assert 0 < float((found - wide).norm() / wide.norm()) < 0.3


@pytest.mark.parametrize("asked", ["16-bit", "nvfp4", "auto"])
def test_a_quantized_model_compiles_without_a_break(gemm, calls, times, asked):
    net, x = model(), random_tensor(60, K)
    gemm.quantize(net, "nvfp4", activation_format=asked)
    with torch.no_grad():
        expected = net(x)
        calls.names.clear()
        assert torch.equal(torch.compile(net, backend="aot_eager", fullgraph=True)(x), expected)
    assert calls.names == ["packed_linear" if asked == "16-bit" else "linear"] * 2


def test_a_model_s_inputs_stay_by_default(gemm, package, calls):
    net = model()
    assert gemm.quantize(net, "nvfp4").format == "nvfp4"
    with pytest.raises(package.FormatError, match="expected nvfp4rows"):
        net[0].activation_format = "auto"
    with pytest.raises(package.UnsupportedError, match="which weights of int4g128 have not"):
        gemm.quantize(model(), "int4g128", activation_format="nvfp4")
    with pytest.raises(package.UnsupportedError, match="is 'fp8'; expected one of"):
        gemm.quantize(model(), "nvfp4", activation_format="fp8")
    with pytest.raises(package.FormatError, match="x is rounded to mxfp8; expected 'mxfp8', 'auto' or '16-bit'"):
        gemm.quantize(model(), "mxfp4", activation_format="nvfp4")
    left = gemm.quantize(model(), "mxfp4", activation_format="mxfp8").left["0"]
    assert "n 64 and k 288 get the fallback; expected k a multiple of 128" in left
    assert "no product of float16 by mxfp4rows" in gemm.quantize(model().half(), "mxfp4rows").left["0"]


@pytest.mark.parametrize(("layout", "name"), [("modelopt_nvfp4", "nvfp4"), ("mxfp4", "mxfp4")])
def test_a_packed_checkpoint_s_inputs_are_rounded_where_a_module_is_told_to(gemm, calls, tmp_path, layout, name):
    wide = np.random.default_rng(3).standard_normal((48, K)).astype(np.float32)
    held, values = checkpoints.quantised(layout, wide, ElementType.BFLOAT16)
    checkpoints.write_folder(tmp_path / "from", layout, [(f"0.{end}", *rest) for end, *rest in held])
    pack_checkpoint(Request(tmp_path / "from", tmp_path / "to", form=f"{name}rows"), 1)
    net = gemm.load_quantized(
        lambda: torch.nn.Sequential(torch.nn.Linear(K, 48, bias=False, dtype=BF16)), tmp_path / "to"
    )
    x, weight = random_tensor(3, K), torch.from_numpy(values).float()
    with torch.no_grad():
        assert torch.equal(net(x), (x.float() @ weight.t()).to(BF16))
        net[0].activation_format = BESIDE[name]
        rounded = gemm.dequantize(*gemm.quantize(x, BESIDE[name]), torch.float32)
        assert torch.equal(net(x), (rounded @ weight.t()).to(BF16))
    assert calls.names == ["packed_linear", "linear"]
