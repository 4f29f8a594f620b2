"""Five architectures of transformers with random weights, patched: what is swapped and fused, and that nothing differs.

The one stand-in is for the products themselves, which torch computes on the CPU as the kernels would on a GPU, in
float32 and rounded once (`torch_reference.stand_in`); tables, tracing, fusing and torch.compile are the real ones.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from tests.runtime import torch_reference

pytest.importorskip("transformers", reason="transformers is not installed")

from bench.architectures import examples

NAMES = ("dense language model", "mixture of experts", "vision tower", "diffusion transformer", "speech model")
FUSED = {
    "dense language model": {
        "model.layers.0.self_attn": "q_proj and k_proj and v_proj in one product",
        "model.layers.0.mlp": "silu in the product of gate_proj and up_proj",
    },
    "mixture of experts": {"model.layers.1.self_attn": "q_proj and k_proj and v_proj in one product"},
    "vision tower": {
        "encoder.layers.0.self_attn": "q_proj and k_proj and v_proj in one product",
        "encoder.layers.0.mlp": "gelu_tanh in the product of fc1",
    },
    "diffusion transformer": {"transformer_blocks.0.attn": "to_q and to_k and to_v in one product"},
    "speech model": {
        "encoder.layers.0.self_attn": "k_proj and v_proj in one product",
        "decoder.layers.0.encoder_attn": "k_proj and v_proj in one product",
    },
}


SUMS = {
    "dense language model": (
        "model.layers.1",
        "the sum in front of model.layers.1.post_attention_layernorm and model.norm",
    ),
    "mixture of experts": (
        "model.layers.0",
        "the sum in front of model.layers.0.post_attention_layernorm and model.layers.1.input_layernorm",
    ),
    "vision tower": (
        "encoder.layers.0",
        "the sum in front of encoder.layers.0.layer_norm2 and encoder.layers.1.layer_norm1",
    ),
    "speech model": ("decoder.layers.1", "the sum in front of decoder.layers.1.encoder_attn_layer_norm"),
}
NORMS = {
    "dense language model": ("rms_norm",),
    "mixture of experts": ("rms_norm",),
    "vision tower": ("layer_norm",),
    "diffusion transformer": ("layer_norm",),
    "speech model": ("layer_norm",),
}


def products(calls):
    return [x for x in calls if "norm" not in x]


@pytest.fixture(scope="module")
def drawn():
    return {x.name: x for x in examples()}


@pytest.fixture(params=NAMES)
def example(request, drawn):
    found = drawn[request.param]
    return type(found)(found.name, copy.deepcopy(found.model), found.call)


def close(got, expected):
    """Compare by the Frobenius norm: both round to bfloat16 after every product, each in its own order."""
    error = (got.float() - expected.float()).norm() / expected.float().norm()
    assert error < 0.02, float(error)


def bits(model):
    return {name: (x.clone(), x.requires_grad) for name, x in model.named_parameters()}


def test_outputs_are_those_of_stock_and_unpatching_restores_every_bit(example, module, calls):
    model, before = example.model, bits(example.model)
    keys, classes = list(model.state_dict()), [type(x) for x in model.modules()]
    with torch.no_grad():
        stock = example.call(model)
        report = module.patch(model)
        assert report.is_frozen
        assert FUSED[example.name].items() <= report.fused.items()
        if example.name in SUMS:
            name, text = SUMS[example.name]
            assert text in report.fused[name]
        close(example.call(model), stock)
        assert set(calls) <= {"linear", "gated_linear", "rms_norm", "layer_norm"}
        assert all(x in calls for x in NORMS[example.name])
        assert all(torch_reference.PROMISED)
        assert len(calls) >= len(report.fused) > 0
        assert list(model.state_dict()) == keys
        assert not any(p.requires_grad for x in model.modules() if isinstance(x, module.Linear) for p in x.parameters())
        assert module.patch(model).swapped == ()
        assert set(module.unpatch(model)) == set(report.swapped)
        assert [type(x) for x in model.modules()] == classes
        assert torch.equal(example.call(model), stock)
    after = bits(model)
    assert all(torch.equal(after[x][0], before[x][0]) and after[x][1] == before[x][1] for x in before)
    storages = [x.untyped_storage().data_ptr() for x in model.parameters()]
    assert len(set(storages)) == len(storages)


def test_every_linear_is_swapped_or_left_for_a_reason(example, module, calls):
    linears = {name for name, x in example.model.named_modules() if isinstance(x, nn.Linear)}
    report = module.patch(example.model)
    assert {*report.swapped, *report.left} == linears
    own = "NonDynamicallyQuantizableLinear, whose forward may be its own; expected nn.Linear itself"
    left = {"vision tower": {"head.attention.out_proj": f"it is a torch.nn.modules.linear.{own}"}}
    assert report.left == left.get(example.name, {})
    assert not report.unfused
    text, num_left = str(report), len(report.left)
    head = f"{len(linears) - num_left} swapped, 0 were already, {num_left} left, {len(report.fused)} modules fused\n"
    assert text.startswith(head)
    experts = ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"]
    assert [x for x in report.others if "experts" in x] == (experts if example.name == "mixture of experts" else [])
    assert "their parameters are frozen" in text


def test_a_state_dict_is_loaded_into_a_patched_model(example, module, calls):
    model, other = example.model, copy.deepcopy(example.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.25)
        module.patch(model)
        for assign in (False, True):
            model.load_state_dict(other.state_dict(), assign=assign)
            torch_reference.PROMISED.clear()
            close(example.call(model), example.call(other))
            assert all(torch_reference.PROMISED)
        module.unpatch(model)
        assert torch.equal(example.call(model), example.call(other))


def test_a_patched_model_compiles(example, module, calls):
    model = example.model
    with torch.no_grad():
        stock = example.call(model)
        report = module.patch(model)
        eager = example.call(model)
        count = len(products(calls))
        calls.clear()
        compiled = torch.compile(model, backend="aot_eager")
        torch.testing.assert_close(example.call(compiled), eager, rtol=0.05, atol=0.05)
        close(example.call(compiled), stock)
        assert len(products(calls)) == 2 * count
        assert all(torch_reference.PROMISED), report


def test_copies_and_pickles_of_a_patched_model_give_the_same(example, module, calls):
    with torch.no_grad():
        stock = example.call(example.model)
        module.patch(example.model)
        close(example.call(copy.deepcopy(example.model)), stock)
        close(example.call(pickle.loads(pickle.dumps(example.model))), stock)


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_quantised_models_are_near_and_restored(example, module, calls, kind):
    before = bits(example.model)
    with torch.no_grad():
        stock = example.call(example.model)
        report = module.patch(example.model, quantise=kind)
        assert report.quantised == kind
        got = example.call(example.model)
        error = (got.float() - stock.float()).norm() / stock.float().norm()
        assert 0.001 < error < 0.15, float(error)
        module.unpatch(example.model)
        assert torch.equal(example.call(example.model), stock)
    assert all(torch.equal(x, before[name][0]) for name, x in example.model.named_parameters())
