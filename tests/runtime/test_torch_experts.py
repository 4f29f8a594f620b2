"""A mixture's experts in narrow weights: quantized, loaded, computed; torch computes what kernels would."""

from __future__ import annotations

import copy
import pickle
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from aot.checkpoint.packing import Request, pack_checkpoint
from aot.core.element import ElementType
from aot.core.numerics import encode
from tests import checkpoints
from tests.device.small_experts import SIZES, Experts, GptOss
from tests.runtime import torch_reference

BF16 = torch.bfloat16
EXPERTS, HIDDEN, WIDTH = SIZES
TOP, TOKENS = 2, 9


@pytest.fixture(scope="module")
def gemm(packed_package):
    return import_module(f"{packed_package.__name__}.torch")


@pytest.fixture
def calls(packed_package, monkeypatch):
    return torch_reference.stand_in(packed_package, monkeypatch)


def drawn(seed=0):
    """Draw tokens, their experts and weights; the third expert gets no token."""
    torch.manual_seed(seed)
    scores = torch.randn(TOKENS, EXPERTS)
    scores[:, 2] = -9
    weights, chosen = scores.softmax(-1).topk(TOP)
    return torch.randn(TOKENS, HIDDEN).to(BF16), chosen, weights.to(BF16)


def exact(module, x, chosen, weights, first, second, rounded=lambda x: x):
    """Compute experts token by token in float64, by weights (experts, n, k), of inputs that are rounded."""
    result = torch.zeros(x.shape, dtype=torch.float64)
    biases = [getattr(module, f"{name}_bias", None) for name in ("gate_up_proj", "down_proj")]
    for token, expert, weight in zip(range(TOKENS), chosen, weights, strict=True):
        for e, w in zip(expert.tolist(), weight.double(), strict=True):
            inner = first[e].double() @ rounded(x[token]).double() + (0 if biases[0] is None else biases[0][e].double())
            inner = rounded(module._apply_gate(inner)).double()
            result[token] += w * (second[e].double() @ inner + (0 if biases[1] is None else biases[1][e].double()))
    return result.detach()


def model_of(kind, dtype=BF16):
    torch.manual_seed(1)
    return nn.ModuleDict({"router": nn.Linear(HIDDEN, EXPERTS, dtype=dtype), "experts": kind(dtype)})


def error(got, expected):
    return float((got.detach().double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", [Experts, GptOss])
def test_quantized_experts_are_the_sum_over_a_tokens_experts(gemm, calls, kind):
    model = model_of(kind)
    stock, module = copy.deepcopy(model["experts"]), model["experts"]
    report = gemm.quantize(model, "mxfp4")
    assert (report.quantized, list(report.left)) == (("experts",), ["router"])  # the package has no dense mxfp4
    assert model["experts"] is module
    assert type(module) is gemm.QuantizedExperts
    assert report.bytes_after < report.bytes_before / 3
    wide = [x.dequantize() for x in (module.gate_up_proj, module.down_proj)]
    for got, name in zip(wide, ("gate_up_proj", "down_proj"), strict=True):
        held = getattr(stock, name).detach()
        assert error(got, (held.transpose(1, 2) if kind is GptOss else held).double()) < 0.13
    given = drawn()
    expected = exact(stock, *given, *wide)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    with torch.no_grad():
        for function in (module, compiled):
            assert error(function(*given), expected) < 0.01
    assert calls == ["packed_grouped_linear"] * 4
    assert error(module(*given), expected) < 0.01  # recorded
    assert error(module.by_torch(*given, module.biases), expected) < 0.01
    batch = [x[None] for x in given]
    assert error(module(*batch)[0], expected) < 0.01
    assert gemm.quantize(model, "mxfp4").already == ("experts",)


def rounding(gemm, name):
    """Return what rounds an input (k) as a format's products do."""
    prepare = import_module(f"{gemm.__name__.rpartition('.')[0]}._torch_prepare")

    def rounded(x):
        x = x.to(BF16)  # as what stands between the products is
        if name == "fp8":
            values, scale = prepare.quantize_by_rows(x, torch.float8_e4m3fn)
        else:
            values, scale = prepare.quantize_by_blocks(x, torch.float8_e4m3fn)
            scale = scale.repeat_interleave(128)
        return values.float() * scale

    return rounded


@pytest.mark.parametrize(("kind", "name"), [(Experts, "fp8_block"), (Experts, "fp8"), (GptOss, "fp8")])
def test_inputs_of_formats_of_8_bits_are_rounded_too(gemm, calls, kind, name):
    """Of "fp8_block" the package has the gate in the product, of "fp8" a bias beside it."""
    model = model_of(kind)
    stock, module = copy.deepcopy(model["experts"]), model["experts"]
    report = gemm.quantize(model, name)
    assert (report.quantized, report.by_torch) == (("experts",), ("experts",))  # it has no operations on rows
    assert module.kernels == ("", True, name == "fp8_block", False, None)
    assert report.bytes_after < report.bytes_before * 0.55
    wide = [x.dequantize() for x in (module.gate_up_proj, module.down_proj)]
    for got, weight in zip(wide, ("gate_up_proj", "down_proj"), strict=True):
        held = getattr(stock, weight).detach()
        assert error(got, (held.transpose(1, 2) if kind is GptOss else held).double()) < 0.03
    given = drawn()
    expected = exact(stock, *given, *wide, rounding(gemm, name))
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    with torch.no_grad():
        for function in (module, compiled):
            assert error(function(*given), expected) < 0.02
        found = module(*given)
        module.gate_up_proj.has_kernel = module.down_proj.has_kernel = True  # of the package that rounds inputs
        assert torch.equal(module(*given), found)
        assert module(*(x[:0] for x in given)).shape == (0, HIDDEN)
    assert calls[:10] == ["grouped_linear"] * 6 + ["quantize", "grouped_linear"] * 2
    again = pickle.loads(pickle.dumps(module))
    again.gate_up_proj.qweight.zero_()
    again.load_state_dict(module.state_dict())
    assert torch.equal(again.gate_up_proj.dequantize(1), wide[0][1])
    assert error(again(*given), expected) < 0.02  # recorded
    assert error(module.by_torch(*given, module.biases), exact(stock, *given, *wide)) < 0.01
    reason = again.half().kernels.reason
    assert reason.startswith("plan: no wheel has float8_e4m3fn by float8_e4m3fn into float16 with ")


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int4g32z", "int8_weight_only", "int8"])
def test_what_the_wheel_has_no_kernels_for_torch_computes(gemm, calls, name, monkeypatch):
    """Of formats with all kinds of factors; such a module comes of a folder."""
    package = import_module(f"{gemm.__name__.rpartition('.')[0]}._torch_quantized_experts")
    formats = import_module(f"{gemm.__name__.rpartition('.')[0]}._torch_formats")
    monkeypatch.setattr(formats, "why_not_planned", lambda *_, **__: None)
    package.kernels_of.cache_clear()
    model = model_of(Experts)
    stock = copy.deepcopy(model["experts"])
    gemm.quantize(model, name)
    monkeypatch.undo()
    package.kernels_of.cache_clear()
    module, given = pickle.loads(pickle.dumps(model["experts"])), drawn()
    text = "no wheel has" if name == "int8" else "this wheel has no kernels for"
    assert module.kernels.reason.startswith(f"plan: {text}") == (name != "mxfp4")
    del calls[:]
    wide = [x.dequantize() for x in (module.gate_up_proj, module.down_proj)]
    assert torch.equal(wide[0][1], module.gate_up_proj.dequantize(1))
    with torch.no_grad():
        assert error(module(*given), exact(stock, *given, *wide)) < 0.01
        half = copy.deepcopy(module).half()
        x, chosen, weights = given
        assert error(half(x.half(), chosen, weights.half()), exact(stock, *given, *wide)) < 0.02
    assert calls == []
    again = copy.deepcopy(module)
    again.gate_up_proj.qweight.zero_()
    again.load_state_dict(module.state_dict())
    assert torch.equal(again.gate_up_proj.qweight, module.gate_up_proj.qweight)


def test_gradients_are_those_of_torch(gemm, calls):
    model = model_of(GptOss)
    gemm.quantize(model, "mxfp4")
    module, (x, chosen, weights) = model["experts"], drawn()
    found = []
    for function in (module, lambda *y: module.by_torch(*y, module.biases)):
        module.zero_grad()
        given = x.clone().requires_grad_(), chosen, weights.clone().requires_grad_()
        function(*given).square().sum().backward()
        found.append([given[0].grad, given[2].grad, *(y.grad for y in module.biases)])
    assert calls == ["packed_grouped_linear"] * 2
    for got, expected in zip(*found, strict=True):
        assert error(got, expected.double()) < 0.02


def test_the_wheels_gate_and_its_gathered_product_are_taken(gemm, calls, monkeypatch):
    model = model_of(GptOss)
    gemm.quantize(model, "mxfp4")
    module, names = model["experts"], []
    package = import_module(f"{gemm.__name__.rpartition('.')[0]}._torch_quantized_experts")

    def rows(name, x, *, interleaved):
        names.append((name, interleaved))
        return package.gated(name, x, interleaved=interleaved)

    monkeypatch.setattr(package, "rows", rows)
    with torch.no_grad():
        expected = module(*drawn())
        module.kernels = module.kernels._replace(has_gate=True, is_gathered=True)
        assert torch.equal(module(*drawn()), expected)
    assert names == [("gpt_oss_mul", True)]


def test_tokens_of_many_rows_are_copied_where_rows_in_order_have_another_kernel(gemm, calls, monkeypatch):
    model = model_of(GptOss)
    gemm.quantize(model, "mxfp4")
    module, indices = model["experts"], []
    multiply = type(module.gate_up_proj).multiply

    def watched(weights, x, offsets, bias, index=None, gate=None):
        indices.append(index is not None)
        return multiply(weights, x, offsets, bias, index, gate)

    monkeypatch.setattr(type(module.gate_up_proj), "multiply", watched)
    with torch.no_grad():
        expected = module(*drawn())
        num_rows = drawn()[1].numel()
        for copied_from in (None, num_rows + 1, num_rows):
            module.kernels = module.kernels._replace(is_gathered=True, copied_from=copied_from)
            assert torch.equal(module(*drawn()), expected)
    assert indices[::2] == [False, True, True, False]


def test_tables_say_from_how_many_rows_on_tokens_are_copied(gemm, monkeypatch):
    package = import_module(f"{gemm.__name__.rpartition('.')[0]}._torch_rounded_experts")
    kind = import_module(f"{gemm.__name__.rpartition('.')[0]}._torch_expert_kinds")
    kind, many_from = kind.Kind("silu_mul", False, False, 128, 512, 256), 2048

    def plan(rows, n, k, dtype, *, grouping, weight_dtype, groups):
        assert (n, k, dtype, weight_dtype, groups) == (512, 512, "bfloat16", "mxfp4", 128)
        name = "many" if grouping == "grouped" and rows >= many_from else "few"
        return SimpleNamespace(kernel=f"bf16xmxfp4_bf16_kk_{grouping}_{name}")

    monkeypatch.setattr(package, "plan", plan)
    assert package.least_copied(kind, "mxfp4", torch.bfloat16) == many_from
    with monkeypatch.context() as patch:
        patch.setattr(package, "is_batch_invariant", lambda _: True)
        assert package.least_copied(kind, "mxfp4", torch.bfloat16) is None
    many_from = 1 << 20
    assert package.least_copied(kind, "mxfp4", torch.bfloat16) is None


def test_a_trace_knows_the_shape_of_a_gate_that_is_called_by_name(packed_package):
    result = import_module(f"{packed_package.__name__}._torch_result")
    call = result.TensorCall("rows", {"x": torch.empty(6, 128)}, {"function": "gpt_oss_mul"})
    assert result._shapes_of(call)["out"] == (6, 64)


class Other(Experts):
    def _apply_gate(self, x):
        gate, up = x.chunk(2, -1)
        return functional.gelu(gate) * up


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_experts, self.up_proj = 2, nn.Parameter(torch.zeros(2, 4, 4))


def replaced():
    module = Experts()
    module.forward = lambda *x: x
    return module


def test_experts_that_are_not_known_are_left_with_the_reason(gemm, calls):
    model = nn.ModuleDict({"a": Other(), "b": Plain(), "c": replaced(), "d": Experts(torch.float32), "e": Experts()})
    left = gemm.quantize(model, "mxfp4", where=lambda name, _: name != "e").left
    texts = {
        "a": "Other, whose gate is none of silu_mul, gelu_tanh_mul, gpt_oss_mul",
        "b": "Plain, whose forward may be its own; expected a module of experts",
        "c": "its forward was replaced on the module itself",
        "d": "its gate_up_proj is torch.float32; expected torch.bfloat16",
        "e": "where= does not choose it",
    }
    assert {name for name, text in texts.items() if text not in left[name]} == set()
    for form, text in (("int8", "no wheel has int8 by int8 into"), ("nvfp4", "this wheel has no kernels for")):
        assert text in gemm.quantize(nn.ModuleDict({"e": Experts()}), form).left["e"]
    broken = Experts()
    broken.down_proj.data[1, 2, 3] = torch.inf
    with pytest.raises(gemm.errors.FormatError, match=r"the weight of e\.down_proj has a number that is not finite"):
        gemm.quantize(nn.ModuleDict({"e": broken}), "mxfp4")
    assert type(broken) is Experts


# Loaded.


def wide_of(n, k, seed):
    return (np.random.default_rng(seed).standard_normal((EXPERTS, n, k)) / 16).astype(np.float32)


def written(folder, kind, layout, *, part=("gate_proj", "up_proj", "down_proj"), prefix="experts", change=None):
    """Write and pack a checkpoint of experts; return what they stand for."""
    bits = encode(ElementType.BFLOAT16, wide_of(1, HIDDEN, 5)[:, 0])
    tensors = [("router.weight", "BF16", bits), ("router.bias", "BF16", bits[:, 0])]
    if layout == "gpt_oss":
        shapes, values = {"gate_up_proj": (2 * WIDTH, HIDDEN), "down_proj": (HIDDEN, WIDTH)}, []
        for seed, (name, shape) in enumerate(shapes.items()):
            held, found = checkpoints.gpt_oss(wide_of(*shape, seed))
            tensors += [(f"{prefix}.{name}_{end}", *rest) for end, *rest in held]
            bias = encode(ElementType.BFLOAT16, wide_of(*shape, 7)[..., 0])
            tensors.append((f"{prefix}.{name}_bias", "BF16", bias))
            values.append(found)
    else:
        each = []
        for seed, (name, shape) in enumerate(
            zip(part, ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH)), strict=True)
        ):
            found = [checkpoints.quantised(layout, x, ElementType.BFLOAT16) for x in wide_of(*shape, seed)]
            for i, (held, _) in enumerate(found):
                tensors += [(f"{prefix}.{i}.{name}.{end}", *rest) for end, *rest in held]
                if kind is GptOss:
                    bias = encode(ElementType.BFLOAT16, wide_of(*shape, 7)[i, :, 0])
                    tensors.append((f"{prefix}.{i}.{name}.bias", "BF16", bias))
            each.append(np.stack([x for _, x in found]))
        first = np.stack(each[:2], 2).reshape(EXPERTS, -1, HIDDEN) if kind is GptOss else np.concatenate(each[:2], 1)
        values = [first, each[2]]
    config = {"model_type": "gpt_oss"} if kind is GptOss else None
    checkpoints.write_folder(folder / "c", layout, tensors if change is None else change(tensors), config=config)
    pack_checkpoint(Request(folder / "c", folder / "o"), 1)
    return [torch.from_numpy(np.ascontiguousarray(x)).to(BF16) for x in values]


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        (GptOss, "gpt_oss"),
        (GptOss, "mxfp4"),
        (GptOss, "modelopt_fp8"),
        (Experts, "mxfp4"),
        (Experts, "modelopt_nvfp4"),
        (Experts, "deepseek"),
        (Experts, "modelopt_fp8"),
    ],
)
@pytest.mark.filterwarnings("ignore:torch computes")
def test_packed_experts_are_loaded(gemm, calls, tmp_path, kind, layout):
    values = written(tmp_path, kind, layout)
    model = gemm.load_quantized(lambda: model_of(kind), tmp_path / "o")
    module = model["experts"]
    for got, expected in zip((module.gate_up_proj, module.down_proj), values, strict=True):
        assert torch.equal(got.dequantize(), expected)
    assert not any(x.is_meta for x in (*model.parameters(), *model.buffers()))
    again = gemm.load_quantized(model, tmp_path / "o")["experts"]  # into what is packed already
    assert torch.equal(again.gate_up_proj.dequantize(), values[0])
    quantized = model_of(kind)
    if layout != "modelopt_nvfp4":  # of which the package has no groups
        gemm.quantize(quantized, module.gate_up_proj.format)
        quantized.load_state_dict(model.state_dict())
        assert torch.equal(quantized["experts"].down_proj.dequantize(), values[1])
    limit = 0.05 if layout in ("deepseek", "modelopt_fp8") else 0.01  # those round inputs too
    with torch.no_grad():
        assert error(module(*drawn()), exact(bare(kind, module), *drawn(), *values)) < limit


def bare(kind, module):
    """Return a module of a kind with another's biases."""
    found = kind()
    for name, x in module._parameters.items():
        setattr(found, name, x)
    return found


def test_names_of_an_earlier_transformers_are_known(gemm, calls, tmp_path):
    """Mixtral's: w1, w3 and w2, in block_sparse_moe."""
    values = written(tmp_path, Experts, "mxfp4", part=("w1", "w3", "w2"), prefix="layers.0.block_sparse_moe.experts")

    class Mixtral(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(HIDDEN, EXPERTS, dtype=BF16)
            self.layers = nn.ModuleList([nn.ModuleDict({"mlp": nn.ModuleDict({"experts": Experts()})})])

    model = gemm.load_quantized(Mixtral, tmp_path / "o")
    assert torch.equal(model.layers[0]["mlp"]["experts"].gate_up_proj.dequantize(), values[0])


def without(name):
    return lambda tensors: [x for x in tensors if name not in x[0]]


@pytest.mark.parametrize(
    ("kind", "layout", "change", "message"),
    [
        (Experts, "mxfp4", without("experts.2.up_proj"), r"experts \(the folder lacks 2\.up_proj, and 0 more\)"),
        (GptOss, "mxfp4", None, "its gate is of even and odd columns, and the folder has gate and linear half apart"),
        (GptOss, "gpt_oss", without("down_proj_bias"), "1 missing: experts.down_proj_bias"),
    ],
)
def test_what_does_not_go_together_is_named_and_nothing_changes(gemm, tmp_path, kind, layout, change, message):
    written(tmp_path, kind if layout == "gpt_oss" else Experts, layout, change=change)
    model = model_of(kind)
    with pytest.raises(gemm.errors.CheckpointError, match=message):
        gemm.load_quantized(model, tmp_path / "o")
    assert type(model["experts"]) is kind


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("gpt_oss", "gpt_oss"),
        ("gpt_oss", "mxfp4"),
        ("qwen3_moe", "awq"),
        ("qwen3_moe", "modelopt_nvfp4"),
        ("qwen3_moe", "deepseek"),
        ("mixtral", "gptq"),
    ],
)
@pytest.mark.filterwarnings("ignore:torch computes")
def test_models_of_transformers_are_as_close_as_torch(packed_package, calls, tmp_path, model, layout):
    pytest.importorskip("transformers", reason="transformers is not installed")
    from research.bench import packed_model

    packed_model.make(tmp_path / "wide", BF16, 256, model)
    found = packed_model.compare(layout, tmp_path, packed_package.__name__, BF16, "cpu")
    assert "QuantizedExperts" in found["kinds"]
    if layout == "deepseek":  # of which inputs are rounded too
        assert 0 < found["ours_rms"] < 0.1
    else:
        assert 0 < found["ours"] < 2 * found["torch"]
    has_products = any(x in calls for x in ("packed_grouped_linear", "grouped_linear"))
    assert has_products == (layout in ("gpt_oss", "mxfp4", "deepseek"))  # of which the package has both
