"""SGLang's own linear layers under the plug-in, on the CPU, where the products are torch's in the package's place.

They need SGLang, which is no dependency of the tests: it asks for a torch of its own. Tried with 0.5.23.
"""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import nn

from tests.runtime.torch_reference import random_tensor

pytest.importorskip("sglang.srt.layers.linear", reason="NOT TESTED WITH SGLang: it is not installed")

from sglang.srt.arg_groups.choices import QUANTIZATION_CHOICES
from sglang.srt.layers import linear as layers
from sglang.srt.layers.quantization import get_quantization_config

BF16 = torch.bfloat16
LAYERS = {
    "replicated": lambda **options: layers.ReplicatedLinear(128, 48, **options),
    "column": lambda **options: layers.ColumnParallelLinear(128, 48, **options),
    "merged": lambda **options: layers.MergedColumnParallelLinear(128, [48, 48], **options),
    "row": lambda **options: layers.RowParallelLinear(128, 48, reduce_results=False, **options),
}


@pytest.fixture(autouse=True)
def only_rank(monkeypatch):
    """Be the only rank of a server, without the processes of one."""
    alone = layers._LogicalGroup(0, 1)
    monkeypatch.setattr(layers, "_resolve_linear_group", lambda _: alone)
    with layers.get_parallel().override(tp_group=alone):
        yield


@pytest.fixture
def plug_in(module, every_package, calls):
    found = import_module(f"{every_package.__name__}.sglang")
    found.register()
    found.register()  # SGLang loads plug-ins in each process, and may again
    return found


def loaded(plug_in, kind, name=None, **options):
    """Make a layer of random values, and have its method process them as when a checkpoint has been loaded."""
    config = get_quantization_config(plug_in.NAME if name is None else f"{plug_in.NAME}_{name}")()
    layer = LAYERS[kind](params_dtype=BF16, quant_config=config, prefix="model.layer", **options)
    for parameter in layer.parameters():
        parameter.data.copy_(random_tensor(*parameter.shape))
    wide = {name: x.detach().clone() for name, x in layer.named_parameters()}
    layer.quant_method.process_weights_after_loading(layer)
    return layer, wide


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_of_weights_as_they_are_stored_are_this_packages(plug_in, calls, kind, bias):
    layer, wide = loaded(plug_in, kind, bias=bias)
    assert layer.quant_method.is_served
    x = random_tensor(5, 128)
    del calls[:]
    found, left = layer(x)
    torch.testing.assert_close(found, nn.functional.linear(x, wide["weight"], wide.get("bias")))
    assert (left, calls.count("linear")) == (None, 1)


@pytest.mark.parametrize("kind", ["replicated", "merged"])
@pytest.mark.parametrize("name", ["fp8", "int8"])
def test_a_rounded_weight_replaces_the_wide_one(plug_in, calls, kind, name):
    layer, wide = loaded(plug_in, kind, name, bias=True)
    assert "weight" not in dict(layer.named_parameters())
    x, narrow = random_tensor(5, 128), layer.rounded.dequantize()
    assert ((narrow - wide["weight"]).abs().max() / wide["weight"].abs().max()).item() < 0.05
    expected = nn.functional.linear(x, narrow, wide["bias"])
    del calls[:]
    assert ((layer(x)[0] - expected).abs().max() / expected.abs().max()).item() < 0.1  # inputs are rounded, too
    assert "linear" in calls


def test_sums_and_results_that_are_given_are_of_the_same_product(plug_in, calls):
    layer, _ = loaded(plug_in, "replicated", "fp8", bias=False)
    x, method = random_tensor(5, 128), layer.quant_method
    product, addend, out = method.apply(layer, x), random_tensor(5, 48), torch.empty(5, 48, dtype=BF16)
    assert torch.equal(method.apply_with_addend(layer, x, addend.clone()), product + addend)
    assert method.apply_into(layer, x, out) is out
    assert torch.equal(out, product)


def test_what_the_wheel_has_no_kernels_for_stays_sglangs(plug_in, calls, caplog):
    config = get_quantization_config(plug_in.NAME)()
    layer = layers.ReplicatedLinear(20, 7, bias=False, params_dtype=BF16, quant_config=config, prefix="model.layer")
    layer.weight.data.copy_(random_tensor(7, 20))
    with caplog.at_level("INFO", plug_in.Stored.logger.name):
        layer.quant_method.process_weights_after_loading(layer)
    assert "model.layer stays SGLang's" in caplog.text
    del calls[:]
    x = random_tensor(5, 20)
    torch.testing.assert_close(layer(x)[0], nn.functional.linear(x, layer.weight))
    assert calls == []


def test_the_configurations_are_what_sglang_asks_for(plug_in):
    for name in (None, *plug_in.FORMATS):
        method = plug_in.NAME if name is None else f"{plug_in.NAME}_{name}"
        config = get_quantization_config(method)()
        assert (config.get_name(), QUANTIZATION_CHOICES.count(method)) == (method, 1)
        assert config.get_supported_act_dtypes() == [BF16, torch.float16]
        assert (config.get_min_capability(), config.get_config_filenames()) == (80, [])
        assert isinstance(config.from_config({"quant_method": "other"}), type(config))
        assert config.get_quant_method(nn.Embedding(4, 4), "model.embedding") is None
