"""What may be done with a patched model's weights: a test a line of the wheel's table, on the CPU and on a GPU.

Whoever imports these has the fixtures `wheel`, the module `aot_gemm.torch`, `device`, and `calls`, a list of the names
of the package's functions that were called.
"""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from tests.device.small_models import (
    BF16,
    NUM_LINEARS,
    WIDTH,
    beside,
    draw,
    net,
    standing,
    to_one_bound,
    weights,
)


@pytest.fixture
def model(device):
    return net(device)


@pytest.fixture
def x(device):
    return draw(device, 2, 5, WIDTH)


@torch.no_grad()
def test_nothing_but_classes_changes(wheel, calls, model, x):
    before, stock, keys = standing(model), beside(model), list(model.state_dict())
    report = wheel.patch(model)
    assert (len(report.swapped), report.already, report.left) == (NUM_LINEARS, (), {})
    after = standing(model)
    assert {name: y[1:] for name, y in after.items()} == {name: y[1:] for name, y in before.items()}
    assert {name for name, y in after.items() if y[0] is not before[name][0]} == set(report.swapped)
    assert list(model.state_dict()) == keys
    assert len({y.untyped_storage().data_ptr() for y in model.parameters()}) == len(list(model.parameters()))
    to_one_bound(model(x), stock(x))
    assert calls.count("linear") == NUM_LINEARS
    assert len(wheel.unpatch(model)) == NUM_LINEARS
    assert {name: y[0] for name, y in standing(model).items()} == {name: y[0] for name, y in before.items()}
    assert torch.equal(model(x), stock(x))


@torch.no_grad()
@pytest.mark.parametrize("constant", [False, True])
def test_writes_of_any_sort_are_heeded(wheel, calls, model, x, device, constant):
    """Merges write through `.data`, which torch does not count; optimisers and loaders write otherwise."""
    stock = beside(model)
    wheel.patch(model, constant=constant)
    model(x)
    for write in (
        lambda w, d: w.data.add_(d),
        lambda w, d: w.copy_(w + d),
        lambda w, d: setattr(w, "data", w.data + d),
        lambda w, d: torch._foreach_add_([w], [d]),
    ):
        for mine, theirs in zip(weights(model), weights(stock), strict=True):
            delta = torch.randn_like(theirs) / 30
            write(mine, delta)
            write(theirs, delta)
        if constant and device == "cuda":
            torch.cuda.synchronize()  # the promise asks for it behind writes that torch does not count
        to_one_bound(model(x), stock(x))


@torch.no_grad()
def test_a_write_within_a_compiled_function_is_heeded(wheel, calls, model, x):
    wheel.patch(model)
    new = [torch.randn_like(y) / 30 for y in weights(model)]

    @torch.compile(backend="aot_eager")
    def written(x):
        first = model(x)
        for weight, values in zip(weights(model), new, strict=True):
            weight.copy_(values)
        return first, model(x)

    expected = model(x)
    first, second = written(x)
    to_one_bound(first, expected)
    stock = beside(model)
    wheel.unpatch(stock)
    to_one_bound(second, stock(x))


@pytest.mark.parametrize("adapters_first", [False, True])
@pytest.mark.parametrize("ending", ["merge_adapter", "merge_and_unload", "unmerge_adapter"])
def test_adapters_are_merged_in_any_order(wheel, calls, model, x, adapters_first, ending):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False)
    stock = peft.get_peft_model(beside(model), config)
    if not adapters_first:
        wheel.patch(model)
    mine = peft.get_peft_model(model, config)
    mine.load_state_dict(stock.state_dict())
    if adapters_first:
        wheel.patch(mine)
    with torch.no_grad():
        to_one_bound(mine(x), stock(x))
        for each in (mine, stock):
            each.merge_adapter()
            if ending != "merge_adapter":
                getattr(each, ending)()
        to_one_bound(mine(x), stock(x))
    assert "linear" in calls


@torch.no_grad()
def test_results_are_tensors_of_their_own_memory(wheel, calls, device, x):
    model = net(device, out=7)
    report = wheel.patch(model)
    plan = import_module(wheel.__name__.rpartition(".")[0]).plan
    is_left = plan(16, 7, 512).tier == "fallback"
    assert list(report.left) == (["head"] if is_left else [])
    results = [model.layers[0].attn.k_proj(x), model.layers[0].mlp.up_proj(x), model(x)]
    for result in results:
        assert result.view(-1).shape == (result.numel(),)
        assert result.untyped_storage().nbytes() == result.numel() * result.element_size()
    assert not results[0]._is_view()


def test_files_of_weights_are_as_before(wheel, calls, model, x, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    stock = beside(model)
    wheel.patch(model)
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    saved = safetensors.load_file(str(tmp_path / "model.safetensors"))
    assert set(saved) == set(stock.state_dict())
    other = net(x.device)
    wheel.patch(other)
    safetensors.load_model(other, str(tmp_path / "model.safetensors"))
    with torch.no_grad():
        to_one_bound(other(x), stock(x))


def test_accelerate_saves_every_weight(wheel, calls, model, tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    wheel.patch(model)
    accelerate.Accelerator(cpu=True).save_model(model, str(tmp_path))
    saved = safetensors.load_file(str(tmp_path / "model.safetensors"))
    assert set(saved) == set(model.state_dict())


@torch.no_grad()
@pytest.mark.parametrize("assign", [False, True])
def test_state_dicts_are_loaded(wheel, calls, model, x, device, assign):
    other = net(device)
    wheel.patch(model, constant=True)
    model(x)
    model.load_state_dict(other.state_dict(), assign=assign)
    to_one_bound(model(x), other(x))


@torch.no_grad()
def test_a_parametrization_outlives_unpatch(wheel, calls, model, x):
    stock = beside(model)
    wheel.patch(model)
    for each in (model, stock):
        parametrizations.weight_norm(each.layers[0].attn.k_proj)
        parametrizations.spectral_norm(each.layers[1].attn.q_proj)
    to_one_bound(model(x), stock(x))
    assert len(wheel.unpatch(model)) == NUM_LINEARS
    layer = model.layers[0].attn.k_proj
    assert type(layer).__bases__ == (nn.Linear,)
    assert type(layer).__name__ == "ParametrizedLinear"
    to_one_bound(model(x), stock(x))
    for each in (model, stock):
        parametrize.remove_parametrizations(each.layers[0].attn.k_proj, "weight")
    assert type(layer) is nn.Linear
    to_one_bound(model(x), stock(x))


@torch.no_grad()
def test_a_parametrization_is_removed_from_a_patched_model(wheel, calls, model, x):
    layer = model.layers[0].attn.k_proj
    wheel.patch(model)
    parametrizations.weight_norm(layer)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is wheel.Linear
    calls.clear()
    layer(x)
    assert calls == ["linear"]


@torch.no_grad()
def test_weights_are_pruned(wheel, calls, model, x):
    stock = beside(model)
    wheel.patch(model)
    for each in (model, stock):
        prune.l1_unstructured(each.layers[0].mlp.up_proj, "weight", 0.5)
        nn.utils.weight_norm(each.layers[0].mlp.down_proj)
    to_one_bound(model(x), stock(x))
    for each in (model, stock):
        prune.remove(each.layers[0].mlp.up_proj, "weight")
        nn.utils.remove_weight_norm(each.layers[0].mlp.down_proj)
    to_one_bound(model(x), stock(x))
    wheel.unpatch(model)
    to_one_bound(model(x), stock(x))


@pytest.mark.parametrize("patched_first", [False, True])
@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_weights_are_offloaded(wheel, calls, model, x, device, tmp_path, patched_first, where):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    stock = beside(model)
    if patched_first:
        wheel.patch(model)
    target = 0 if device == "cuda" else device
    if where == "cpu":
        accelerate.cpu_offload(model, execution_device=target)
    else:
        accelerate.disk_offload(model, str(tmp_path), execution_device=target)
    if not patched_first:
        report = wheel.patch(model)
        assert all("its forward was replaced" in reason for reason in report.left.values())
    with torch.no_grad():
        to_one_bound(model(x), stock(x))
        wheel.unpatch(model)
        to_one_bound(model(x), stock(x))
    assert ("linear" in calls) == patched_first


@torch.no_grad()
@pytest.mark.parametrize("patched_first", [False, True])
def test_weights_are_emptied_and_filled_again(wheel, calls, model, x, patched_first):
    """As engines do that shard weights: each is whole while its module computes."""
    stock, kept = beside(model), {}
    if patched_first:
        wheel.patch(model)

    def fill(module, _):
        module.weight.data = kept[module]

    def empty(module, *_):
        kept[module] = module.weight.data
        module.weight.data = torch.empty(0, dtype=BF16, device=x.device)

    for module in model.modules():
        if isinstance(module, nn.Linear):
            empty(module)
            module.register_forward_pre_hook(fill)
            module.register_forward_hook(empty)
    if not patched_first:
        report = wheel.patch(model)
        assert all("has shape (0,); expected" in reason for reason in report.left.values())
        assert len(report.left) == NUM_LINEARS
    to_one_bound(model(x), stock(x))
    model.head._forward_pre_hooks.clear()
    with pytest.raises(RuntimeError):  # torch's own error
        model.head(x)


@pytest.mark.parametrize("constant", [False, True])
def test_parameters_of_inference_mode(wheel, calls, device, x, constant):
    with torch.inference_mode():
        model = net(device)
        stock = beside(model)
    report = wheel.patch(model, constant=constant)
    assert len(report.swapped) == NUM_LINEARS
    with torch.inference_mode():
        result = model(x)
        to_one_bound(result, stock(x))
        assert result.is_inference()
    wheel.unpatch(model)
