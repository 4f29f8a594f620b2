"""vLLM's own linear layers under the plug-in, on the CPU, where the products are torch's in the package's place.

They need vLLM, which is no dependency of the tests: a gigabyte, and a torch of its own. Tried with 0.33.0.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.runtime.torch_reference import random_tensor, stand_in

pytest.importorskip("vllm", reason="NOT TESTED WITH vLLM: it is not installed")

from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.kernels import linear as linear_kernels
from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import MPLinearLayerConfig
from vllm.model_executor.layers import linear as layers
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import CompressedTensorsWNA16
from vllm.model_executor.layers.quantization.utils.quant_utils import get_and_maybe_dequant_weights
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.platforms import PlatformEnum, current_platform
from vllm.scalar_type import scalar_types

BF16 = torch.bfloat16


@pytest.fixture(scope="module", autouse=True)
def served(tmp_path_factory):
    """Be the only rank of a server."""
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        store = tmp_path_factory.mktemp("store") / "store"
        init_distributed_environment(1, 0, f"file://{store}", 0, "gloo")
        initialize_model_parallel(1, 1)
        yield


@pytest.fixture
def plug_in(module, every_package, calls):
    found = import_module(f"{every_package.__name__}.vllm")
    found.register()
    found.register()  # vLLM loads plug-ins in each process, and may again
    return found


def config_of(plug_in, name=None):
    return get_quantization_config(plug_in.NAME if name is None else f"{plug_in.NAME}_{name}")()


def loaded(layer):
    """Give a layer random values, and have vLLM process them as when a checkpoint has been loaded."""
    for parameter in layer.parameters():
        parameter.data.copy_(random_tensor(*parameter.shape))
    wide = {name: x.detach().clone() for name, x in layer.named_parameters()}
    process_weights_after_loading(nn.ModuleList([layer]), CONFIG, torch.device("cpu"))
    return wide


CONFIG = SimpleNamespace(dtype=BF16, quantization=None, word_embeddings_untied_by_checkpoint=False)
LAYERS = {
    "replicated": lambda **options: layers.ReplicatedLinear(128, 48, **options),
    "column": lambda **options: layers.ColumnParallelLinear(128, 48, **options),
    "merged": lambda **options: layers.MergedColumnParallelLinear(128, [48, 48], **options),
    "qkv": lambda **options: layers.QKVParallelLinear(128, 16, 4, 2, **options),
    "row": lambda **options: layers.RowParallelLinear(128, 48, **options),
}


def check(layer, weight, bias, x, calls, *, skips):
    del calls[:]
    found, left = layer(x)
    torch.testing.assert_close(found, nn.functional.linear(x, weight, None if skips else bias))
    assert left is None or torch.equal(left, bias)
    assert calls.count("linear") == 1


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("bias", ["none", "added", "returned"])
def test_linear_layers_of_weights_as_they_are_stored_are_this_packages(plug_in, calls, kind, bias):
    options = {"bias": bias != "none", "skip_bias_add": bias == "returned", "params_dtype": BF16}
    layer = LAYERS[kind](**options, quant_config=config_of(plug_in), prefix="model.layer")
    wide = loaded(layer)
    assert layer.quant_method.is_served
    for shape in [(5, 128), (2, 3, 128)]:
        check(layer, wide["weight"], wide.get("bias"), random_tensor(*shape), calls, skips=bias == "returned")
    layer.weight.data.fill_(0.5)  # as a server that takes new weights writes them
    check(layer, layer.weight, wide.get("bias"), random_tensor(1, 128), calls, skips=bias == "returned")


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("bias", ["none", "added", "returned"])
@pytest.mark.parametrize("name", ["fp8", "int8", "fp8_block"])
def test_a_rounded_weight_replaces_the_wide_one(plug_in, calls, kind, bias, name):
    options = {"bias": bias != "none", "skip_bias_add": bias == "returned", "params_dtype": BF16}
    layer = LAYERS[kind](**options, quant_config=config_of(plug_in, name), prefix="model.layer")
    wide = loaded(layer)
    held = dict(layer.named_buffers())
    assert "weight" not in dict(layer.named_parameters())
    assert held["rounded.qweight"].shape == wide["weight"].shape
    assert held["rounded.qweight"].element_size() == 1
    del calls[:]
    x = random_tensor(5, 128)
    found, left = layer(x)
    assert (left is None) == (bias != "returned")
    narrow = layer.rounded.dequantize()
    assert ((narrow - wide["weight"]).abs().max() / wide["weight"].abs().max()).item() < 0.05
    expected = nn.functional.linear(x, narrow, None if bias == "returned" else wide.get("bias"))
    assert ((found - expected).abs().max() / expected.abs().max()).item() < 0.1  # inputs are rounded, too
    assert "linear" in calls
    assert torch.equal(get_and_maybe_dequant_weights(layer, BF16), narrow)
    plain = nn.functional.linear(x, narrow)
    without = layer.quant_method.apply(layer, x)  # as on a rank that adds no bias
    assert ((without - plain).abs().max() / plain.abs().max()).item() < 0.1


def test_a_head_is_computed_by_the_package_and_its_embedding_looked_up(plug_in, calls):
    head = ParallelLMHead(64, 32, params_dtype=BF16, quant_config=config_of(plug_in), prefix="lm_head")
    wide, x = loaded(head), random_tensor(3, 32)
    del calls[:]
    torch.testing.assert_close(head.quant_method.apply(head, x), nn.functional.linear(x, wide["weight"]))
    assert calls == ["linear"]
    assert torch.equal(head.quant_method.embedding(head, torch.tensor([2, 0])), wide["weight"][[2, 0]])


@pytest.mark.parametrize("name", [None, "fp8"])
def test_what_the_wheel_has_no_kernels_for_stays_vllms(plug_in, calls, name, caplog):
    config = config_of(plug_in, name)
    layer = layers.ReplicatedLinear(20, 7, bias=False, params_dtype=BF16, quant_config=config, prefix="model.layer")
    with caplog.at_level("INFO", plug_in._logger.name):
        plug_in._logger.propagate = True
        wide = loaded(layer)
    assert "model.layer stays vLLM's" in caplog.text
    assert "get the fallback" in caplog.text
    del calls[:]
    x = random_tensor(5, 20)
    torch.testing.assert_close(layer(x)[0], nn.functional.linear(x, wide["weight"]))
    assert calls == []


@pytest.mark.parametrize("name", [None, "fp8"])
def test_a_compiler_takes_the_layers_without_a_break(plug_in, calls, name):
    layer = layers.ReplicatedLinear(32, 48, params_dtype=BF16, quant_config=config_of(plug_in, name), prefix="model.l")
    loaded(layer)
    x = random_tensor(5, 32)
    expected = layer(x)[0]
    seen = []

    def backend(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    with torch.no_grad():
        assert torch.equal(torch.compile(layer, backend=backend, fullgraph=True)(x)[0], expected)
    assert any(f"{plug_in.NAME}.linear" in target for target in seen)


def test_results_that_depend_on_no_batch_are_vllms(plug_in, calls, monkeypatch):
    monkeypatch.setattr(plug_in.envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    layer = layers.ReplicatedLinear(32, 48, params_dtype=BF16, quant_config=config_of(plug_in), prefix="model.layer")
    loaded(layer)
    assert not layer.quant_method.is_served
    config = config_of(plug_in, "fp8")
    with pytest.raises(
        plug_in.errors.UnsupportedError, match=r"VLLM_BATCH_INVARIANT is set.*serve the weights as stored"
    ):
        layers.ReplicatedLinear(32, 48, params_dtype=BF16, quant_config=config, prefix="model.layer")


def test_the_configurations_are_what_vllm_asks_for(plug_in):
    for name in (None, *plug_in.FORMATS):
        config = config_of(plug_in, name)
        assert config.get_name() == (plug_in.NAME if name is None else f"{plug_in.NAME}_{name}")
        assert config.get_supported_act_dtypes() == [BF16, torch.float16]
        assert (config.get_min_capability(), config.get_config_filenames()) == (80, [])
        assert isinstance(config.from_config({"quant_method": "other"}), type(config))
        assert config.get_quant_method(nn.Embedding(4, 4), "model.embedding") is None


@pytest.mark.parametrize("name", ["int4g128", "nvfp4"])
def test_a_weight_is_packed(packed_package, monkeypatch, name):
    calls = stand_in(packed_package, monkeypatch)
    found = import_module(f"{packed_package.__name__}.vllm")
    found.register()
    layer = LAYERS["row"](params_dtype=BF16, quant_config=config_of(found, name), prefix="model.layer")
    wide, x = loaded(layer), random_tensor(5, 128)
    assert "weight" not in dict(layer.named_parameters())
    expected = nn.functional.linear(x, layer.rounded.dequantize(), wide["bias"])
    assert ((layer(x)[0] - expected).abs().max() / expected.abs().max()).item() < 0.01  # factors are rounded there
    assert calls == ["packed_linear"]
    assert layer.rounded.format == name


@pytest.fixture
def int4(packed_package, monkeypatch):
    """Give the kernel class for checkpoints of int4, and what is called of the package."""
    calls = stand_in(packed_package, monkeypatch)
    return import_module(f"{packed_package.__name__}._vllm_kernels").AotGemmInt4LinearKernel, calls


def words_of(numbers):
    """Pack numbers (n, k) of 4 bits into words of 32 along k, the first in the lowest bits."""
    n, k = numbers.shape
    shifts = 4 * torch.arange(8)
    return (numbers.reshape(n, k // 8, 8).long() << shifts).sum(-1).to(torch.uint32).view(torch.int32)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 128])
def test_a_checkpoint_of_compressed_tensors_in_int4_is_served_behind_vllms_kernels(int4, monkeypatch, symmetric, group):
    kernel, calls = int4
    monkeypatch.setattr(kernel, "can_implement", classmethod(lambda cls, c: (True, None)))
    monkeypatch.setitem(linear_kernels._POSSIBLE_KERNELS, current_platform._enum, [])
    linear_kernels.register_linear_kernel(kernel, current_platform._enum, "mp")
    scheme = CompressedTensorsWNA16("group", 4, group, symmetric)
    layer, (n, k) = nn.Module(), (24, 256)
    scheme.create_weights(layer, n, k, [n], k, BF16, lambda *_: None)
    generator = torch.Generator().manual_seed(group)
    codes = torch.randint(16, (n, k), generator=generator)
    zeros = torch.full((n, k // group), 8) if symmetric else torch.randint(16, (n, k // group), generator=generator)
    factors = random_tensor(n, k // group)
    layer.weight_packed.data.copy_(words_of(codes))
    layer.weight_scale.data.copy_(factors)
    if not symmetric:
        layer.weight_zero_point.data.copy_(words_of(zeros.t().contiguous()).t())
    scheme.process_weights_after_loading(layer)
    each = [x.repeat_interleave(group, 1) for x in (zeros, factors)]
    weight, x, bias = (codes - each[0]).to(BF16) * each[1], random_tensor(3, k), random_tensor(n)
    assert torch.equal(layer.packed.dequantize(), weight)
    assert {name for name, _ in layer.named_parameters()} == {"weight_shape", "weight_packed"}
    assert layer.weight_packed.data_ptr() == layer.packed.qweight.data_ptr()
    del calls[:]
    for added in (None, bias):
        found = scheme.apply_weights(layer, x, added)
        expected = nn.functional.linear(x, weight, added)
        assert ((found - expected).abs().max() / expected.abs().max()).item() < 0.01
    assert calls == ["packed_linear"] * 2


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"weight_type": scalar_types.uint8b128}, "weights are uint8b128"),
        ({"zero_points": True}, "zero points True"),
        ({"group_size": 16}, "groups are of 16; expected 32, 64 or 128"),
        ({"group_size": -1}, "groups are of -1"),
        ({"act_type": torch.float32}, "inputs are torch.float32"),
        ({"out_type": torch.float16}, "results torch.float16"),
        ({"partition_weight_shape": (250, 24)}, "250"),
        ({"act_type": torch.float16}, "no kernels for"),
    ],
)
def test_a_checkpoint_that_the_kernel_does_not_serve_is_told_why(int4, changed, reason):
    config = MPLinearLayerConfig((256, 24), (256, 24), scalar_types.uint4b8, BF16, 128, zero_points=False)
    assert int4[0].can_implement(config) == (True, None)
    is_served, why = int4[0].can_implement(replace(config, **changed))
    assert not is_served
    assert reason in why


def test_the_kernel_is_registered_once_and_last(plug_in):
    found = linear_kernels._POSSIBLE_KERNELS[PlatformEnum.CUDA]
    kernel = import_module(f"{plug_in.__package__}._vllm_kernels").AotGemmInt4LinearKernel
    assert found.count(kernel) == 1
    assert found.index(kernel) >= found.index(linear_kernels.MarlinLinearKernel)
