"""Five architectures of transformers with random weights, patched and quantized: that nothing else differs.

The one stand-in is for the products themselves, which torch computes on the CPU as the kernels would on a GPU, in
float32 and rounded once (`torch_reference.stand_in`); tables, tracing and torch.compile are the real ones.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="transformers is not installed")

from research.bench.architectures import examples

NAMES = ("dense language model", "mixture of experts", "vision tower", "diffusion transformer", "speech model")
FORMATS = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


@pytest.fixture(scope="module")
def drawn():
    return {x.name: x for x in examples()}


@pytest.fixture(params=NAMES)
def example(request, drawn):
    found = drawn[request.param]
    return type(found)(found.name, copy.deepcopy(found.model), found.call)


def error(got, expected):
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def close(got, expected):
    """Compare by the Frobenius norm: both round to bfloat16 after every product, each in its own order."""
    assert error(got, expected) < 0.02, error(got, expected)


def placed(model):
    return {name: (x.data_ptr(), x.requires_grad, x.clone()) for name, x in model.named_parameters()}


def test_outputs_are_those_of_stock_and_no_parameter_is_touched(example, module, calls):
    model, before = example.model, placed(example.model)
    keys, classes = list(model.state_dict()), [type(x) for x in model.modules()]
    with torch.no_grad():
        stock = example.call(model)
        report = module.patch(model)
        close(example.call(model), stock)
        assert set(calls) == {"linear"}
        assert len(calls) >= len(report.swapped) > 0
        assert list(model.state_dict()) == keys
        assert module.patch(model).already == report.swapped
        assert module.unpatch(model) == report.swapped
        assert [type(x) for x in model.modules()] == classes
        assert torch.equal(example.call(model), stock)
    after = placed(model)
    assert {x: y[:2] for x, y in after.items()} == {x: y[:2] for x, y in before.items()}
    assert all(torch.equal(after[x][2], before[x][2]) for x in before)


def test_every_linear_is_swapped_or_left_for_a_reason(example, module, calls):
    linears = {name for name, x in example.model.named_modules() if isinstance(x, nn.Linear)}
    report = module.patch(example.model)
    assert {*report.swapped, *report.left} == linears
    own = "NonDynamicallyQuantizableLinear, whose forward may be its own; expected nn.Linear itself"
    left = {"vision tower": {"head.attention.out_proj": f"it is a torch.nn.modules.linear.{own}"}}
    assert report.left == left.get(example.name, {})
    num_left = len(report.left)
    assert str(report).startswith(f"{len(linears) - num_left} swapped, 0 were already, {num_left} left")
    experts = ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"]
    assert [x for x in report.others if "experts" in x] == (experts if example.name == "mixture of experts" else [])


def test_a_patched_model_compiles(example, module, calls):
    model = example.model
    with torch.no_grad():
        stock = example.call(model)
        module.patch(model)
        eager = example.call(model)
        count = len(calls)
        calls.clear()
        compiled = torch.compile(model, backend="aot_eager")
        torch.testing.assert_close(example.call(compiled), eager, rtol=0.05, atol=0.05)
        close(example.call(compiled), stock)
        assert len(calls) == 2 * count


def test_copies_and_pickles_of_a_patched_model_give_the_same(example, module, calls):
    with torch.no_grad():
        stock = example.call(example.model)
        module.patch(example.model)
        close(example.call(copy.deepcopy(example.model)), stock)
        close(example.call(pickle.loads(pickle.dumps(example.model))), stock)


@pytest.mark.parametrize("offload", ["cpu_offload", "disk_offload"])
def test_a_patched_model_is_offloaded(drawn, module, calls, tmp_path, offload):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    example = drawn["dense language model"]
    model = copy.deepcopy(example.model)
    module.patch(model)
    options = {"offload_dir": str(tmp_path)} if offload == "disk_offload" else {}
    getattr(accelerate, offload)(model, execution_device="cpu", **options)
    with torch.no_grad():
        close(example.call(model), example.call(example.model))
    assert "linear" in calls


@pytest.mark.parametrize("kind", FORMATS)
def test_quantized_models_are_near_and_narrow(example, module, calls, kind):
    with torch.no_grad():
        stock = example.call(example.model)
        report = module.quantize(example.model, kind)
        calls.clear()
        got = example.call(example.model)
    assert 0.001 < error(got, stock) < 0.15, error(got, stock)
    held = [example.model.get_submodule(name) for name in report.quantized]
    assert {x.qweight.dtype for x in held} == {FORMATS[kind]}
    assert not any(isinstance(y, nn.Parameter) and y.ndim > 1 for x in held for y in vars(x)["_parameters"].values())
    assert calls.count("linear") >= len(held) > 0
    assert report.bytes_before - report.bytes_after == sum(x.qweight.numel() - 4 * x.scale.numel() for x in held)
