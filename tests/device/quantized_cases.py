"""What may be done with a quantized model: a test a line of the wheel's table, on the CPU by stand-ins and on a GPU.

The fixtures are those of `patched_cases`.
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests.device.small_models import (
    BF16,
    NUM_LINEARS,
    WIDTH,
    beside,
    draw,
    error,
    net,
    num_bytes,
    package_of,
    standing,
    to_one_bound,
)

FORMATS = {"fp8": (torch.float8_e4m3fn, 0.08), "int8": (torch.int8, 0.03)}
"""By format: the element type, and what relative error ten products in a row stay within. A wrong factor gives 1."""


@pytest.fixture(params=FORMATS)
def narrow(request, wheel, device, calls):
    report = wheel.quantize(net(device), request.param)
    if not report.quantized:
        pytest.skip(f"this wheel has no products of {request.param}: {report.left['head']}")
    return request.param


@pytest.fixture
def base(device):
    return net(device)


@pytest.fixture
def inputs(device):
    return draw(device, 2, 5, WIDTH)


@torch.no_grad()
def test_the_narrow_weight_is_the_only_one(wheel, calls, base, inputs, narrow):
    stock, before, dtype = beside(base), num_bytes(base), FORMATS[narrow][0]
    calls.clear()
    report = wheel.quantize(base, narrow)
    assert (len(report.quantized), report.left, report.already) == (NUM_LINEARS, {}, ())
    assert (report.bytes_before, report.bytes_after) == (before, num_bytes(base))
    assert num_bytes(base) < 0.52 * before
    assert f"the model's tensors take {num_bytes(base) / 2**20:.1f} MiB" in str(report)
    head = base.head
    assert (head.qweight.dtype, head.qweight.shape) == (dtype, head.weight.shape)
    assert (head.scale.dtype, tuple(head.scale.shape)) == (torch.float32, (1024, 1))
    assert set(head.state_dict()) == {"bias", "qweight", "scale"}
    assert not any(x.shape == head.weight.shape for x in head.parameters())
    result = base(inputs)
    assert result.view(-1).shape == (result.numel(),)
    found = error(result, stock(inputs))
    assert 0.001 < found < FORMATS[narrow][1], found
    assert calls.count("linear") == NUM_LINEARS
    assert calls.count("quantize") == NUM_LINEARS - len(report.by_torch)
    assert wheel.quantize(base, narrow).already == report.quantized
    assert wheel.unpatch(base) == ()
    assert "it is quantized to" in wheel.patch(base).left["head"]


@torch.no_grad()
def test_a_weight_is_read_as_what_it_stands_for(wheel, calls, base, narrow):
    stock = beside(base)
    wheel.quantize(base, narrow)
    mine, theirs = base.head.weight, stock.head.weight
    assert (mine.dtype, mine.device, mine.shape) == (theirs.dtype, theirs.device, theirs.shape)
    to_one_bound(mine, theirs, 0.05)
    to_one_bound(mine.t()[3] + 1, theirs.t()[3] + 1, 0.05)
    to_one_bound(mine.float(), base.head.dequantize(), 1e-6)
    assert type(mine.clone()) is torch.Tensor
    assert "tensor(" in repr(mine)


WRITES = {
    "data": lambda m, d: m.weight.data.add_(d),
    "merge": lambda m, d: exec("m.weight.data += d", {"m": m, "d": d}),
    "other memory": lambda m, d: setattr(m.weight, "data", d),
    "merge of a product": lambda m, d: exec("m.weight += d", {"m": m, "d": d}),
    "another tensor": lambda m, d: setattr(m, "weight", d),
    "in place": lambda m, d: m.weight.mul_(2),
    "copy": lambda m, d: m.weight.copy_(d),
    "a view": lambda m, d: m.weight[0].zero_(),
    "a row": lambda m, d: m.weight.__setitem__(0, 0.0),
    "the transpose": lambda m, d: m.weight.t().data.add_(1),
    "a part": lambda m, d: m.weight.chunk(2)[1].fill_(1),
    "out": lambda m, d: torch.add(d, d, out=m.weight),
    "parameter": lambda m, d: setattr(m, "weight", nn.Parameter(d)),
    "foreach": lambda m, d: torch._foreach_add_([m.weight], [d]),
}


@torch.no_grad()
@pytest.mark.parametrize("write", WRITES)
def test_a_write_of_the_weight_is_refused_by_name(wheel, calls, base, inputs, write):
    wheel.quantize(base, "fp8")
    if not isinstance(base.head, wheel.QuantizedLinear):
        pytest.skip("this wheel has no products of fp8")
    before = base(inputs)
    kind = package_of(wheel).ReadOnlyError
    with pytest.raises(kind, match=r"QuantizedLinear of fp8 is held in that alone.*requantize"):
        WRITES[write](base.head, torch.ones_like(base.head.dequantize()))
    assert torch.equal(base(inputs), before)


@torch.no_grad()
def test_another_weight_is_quantized_anew(wheel, calls, base, inputs, narrow):
    stock = beside(base)
    wheel.quantize(base, narrow, constant=True)
    base(inputs)
    delta = torch.randn_like(stock.head.weight) / 10
    address = base.head.qweight.data_ptr()
    base.head.requantize(base.head.dequantize() + delta)
    stock.head.weight.add_(delta)
    to_one_bound(base(inputs), stock(inputs), FORMATS[narrow][1])
    assert base.head.qweight.data_ptr() == address
    with pytest.raises(package_of(wheel).ShapeError, match=r"got a weight \(512, 1024\); expected \(1024, 512\)"):
        base.head.requantize(delta.t())


@torch.no_grad()
@pytest.mark.parametrize("kind", ["other", "meta", "cpu"])
def test_it_is_saved_and_loaded(wheel, calls, base, inputs, device, narrow, tmp_path, kind):
    wheel.quantize(base, narrow)
    torch.save(base.state_dict(), tmp_path / "model.pt")
    other = net("cpu" if kind == "cpu" else device)
    other = other.to_empty(device="meta") if kind == "meta" else other
    wheel.quantize(other, narrow)
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    other.load_state_dict(state, assign=kind == "meta")
    other = other.to(device)
    assert torch.equal(other(inputs), base(inputs))


def test_it_is_saved_and_loaded_by_safetensors(wheel, calls, base, inputs, device, narrow, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    wheel.quantize(base, narrow)
    file = tmp_path / "model.safetensors"
    safetensors.save_model(base, str(file))
    assert file.stat().st_size < 1.01 * num_bytes(base) + 10_000
    other = net(device)
    wheel.quantize(other, narrow)
    safetensors.load_model(other, str(file))
    with torch.no_grad():
        assert torch.equal(other(inputs), base(inputs))


@pytest.mark.parametrize("offload", ["cpu_offload", "disk_offload", "save_model"])
def test_accelerate_offloads_and_saves_it(wheel, calls, base, inputs, device, narrow, tmp_path, offload):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    wheel.quantize(base, narrow)
    with torch.no_grad():
        expected = base(inputs)
    if offload == "save_model":
        accelerate.Accelerator(cpu=True).save_model(base, str(tmp_path))
        other = net(device)
        wheel.quantize(other, narrow)
        accelerate.load_checkpoint_in_model(other, str(tmp_path))
    else:
        other, options = base, {"offload_dir": str(tmp_path)} if offload == "disk_offload" else {}
        getattr(accelerate, offload)(
            other, execution_device=0 if device == "cuda" else device, offload_buffers=True, **options
        )
    with torch.no_grad():
        assert torch.equal(other(inputs), expected)


@torch.no_grad()
def test_operations_are_counted_as_those_of_16_bits(wheel, calls, base, inputs, narrow):
    counts = []
    for is_narrow in (False, True):
        if is_narrow:
            wheel.quantize(base, narrow)
        with FlopCounterMode(display=False) as counter:
            base(inputs)
        counts.append(counter.get_total_flops())
    assert counts[1] == counts[0] > 0


@torch.no_grad()
def test_a_state_dict_of_16_bits_is_quantized(wheel, calls, base, inputs, device, narrow):
    other = net(device)
    wheel.quantize(base, narrow)
    base.load_state_dict(other.state_dict())
    wheel.quantize(other, narrow)
    assert torch.equal(base(inputs), other(inputs))


@torch.no_grad()
def test_copies_and_pickles(wheel, calls, base, inputs, narrow):
    wheel.quantize(base, narrow)
    expected = base(inputs)
    file = io.BytesIO()
    torch.save(base, file)
    file.seek(0)
    for other in (copy.deepcopy(base), pickle.loads(pickle.dumps(base)), torch.load(file, weights_only=False)):
        assert torch.equal(other(inputs), expected)
        other.head.requantize(other.head.dequantize() * 2)
    assert torch.equal(base(inputs), expected)


@torch.no_grad()
def test_the_models_type_and_place_change_as_before(wheel, calls, base, inputs, device, narrow):
    wheel.quantize(base, narrow)
    expected, held = base(inputs), base.head.qweight.clone()
    for other in (copy.deepcopy(base).half(), copy.deepcopy(base).float(), copy.deepcopy(base).to("cpu")):
        assert (other.head.qweight.dtype, other.head.scale.dtype) == (held.dtype, torch.float32)
        assert other.head.weight.dtype is other.head.bias.dtype
        x = inputs.to(other.head.bias.device, other.head.bias.dtype)
        to_one_bound(other(x).to(device), expected, 0.06)
    base.half().bfloat16().to("cpu").to(device)
    assert torch.equal(base.head.qweight.view(torch.uint8), held.view(torch.uint8))
    to_one_bound(base(inputs), expected)


@torch.no_grad()
def test_it_compiles_without_a_graph_break(wheel, calls, base, inputs, narrow):
    wheel.quantize(base, narrow)
    eager = base(inputs)
    calls.clear()
    compiled = torch.compile(base, backend="aot_eager", fullgraph=True)
    to_one_bound(compiled(inputs), eager)
    assert calls.count("linear") == NUM_LINEARS


@pytest.mark.parametrize("is_compiled", [False, True])
def test_gradients_go_through_to_what_is_trained(wheel, calls, base, inputs, narrow, is_compiled):
    stock = beside(base)
    wheel.quantize(base, narrow)
    grads = []
    for each in (stock, base):
        x = inputs.clone().requires_grad_()
        run = torch.compile(each, backend="aot_eager", fullgraph=True) if is_compiled and each is base else each
        run(x).float().square().mean().backward()
        grads.append((x.grad, each.head.bias.grad, each.norm.weight.grad))
    for mine, theirs in zip(grads[1], grads[0], strict=True):
        to_one_bound(mine, theirs, 0.15)
    assert ("linear" in calls) or is_compiled


def test_adapters_train_on_it_and_are_not_merged_into_it(wheel, calls, base, inputs, narrow):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    wheel.quantize(base, narrow)
    with torch.no_grad():
        before = base(inputs)
    model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj", "up_proj"], r=4))
    with torch.no_grad():
        assert torch.equal(model(inputs), before)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = (model(inputs).float() - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    with torch.no_grad():
        trained = model(inputs)
        for merge in (model.merge_adapter, lambda: model.merge_adapter(safe_merge=True), model.merge_and_unload):
            with pytest.raises(package_of(wheel).ReadOnlyError, match="merge adapters before quantize"):
                merge()
        to_one_bound(model(inputs), trained, 1e-6)
        assert torch.equal(model.unload()(inputs), before)


@torch.no_grad()
def test_a_patched_model_is_quantized_and_keeps_hooks(wheel, calls, base, inputs, narrow):
    base.head.register_forward_hook(lambda m, args, y: y * 2)
    stock, head = beside(base), base.head
    wheel.patch(base)
    wheel.quantize(base, narrow, where=lambda name, _: name != "layers.0.mlp.up_proj")
    assert base.head is head
    assert type(base.layers[0].mlp.up_proj) is wheel.Linear
    to_one_bound(base(inputs), stock(inputs), FORMATS[narrow][1])


@torch.no_grad()
def test_a_weight_that_stays_elsewhere_is_left(wheel, calls, device, narrow):
    model = nn.ModuleDict({"embed": nn.Embedding(64, 32), "head": nn.Linear(32, 64, bias=False)}).to(device, BF16)
    model["head"].weight = model["embed"].weight
    report = wheel.quantize(model, narrow)
    assert report.left == {"head": "its weight is embed.weight too, where it stays as it is"}
    pair = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).to(device, BF16)
    pair[1].weight = pair[0].weight
    assert wheel.quantize(pair, narrow).quantized == ("0", "1")
    assert pair[0].qweight is pair[1].qweight


@torch.no_grad()
@pytest.mark.parametrize("step", [0, 5])
def test_a_failure_of_quantize_leaves_all_as_it_was(wheel, calls, base, inputs, narrow, monkeypatch, step):
    inner = package_of(wheel)._torch_patch
    before, expected, real, count = standing(base), base(inputs), inner._set, []

    def fail(change):
        count.append(change)
        real(change)
        if len(count) == step + 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(inner, "_set", fail)
    with pytest.raises(KeyboardInterrupt):
        wheel.quantize(base, narrow, constant=True)
    assert standing(base) == before
    assert torch.equal(base(inputs), expected)


def test_a_format_that_there_is_not_is_refused(wheel, calls, base):
    package = package_of(wheel)
    for wrong in ("fp4", None, torch.int8):
        with pytest.raises(package.UnsupportedError, match="expected one of 'fp8', 'int8'"):
            wheel.quantize(base, wrong)
    with pytest.raises(TypeError):
        wheel.quantize(base)


@torch.no_grad()
def test_calls_that_the_wheel_does_not_serve_are_torchs(wheel, calls, base, inputs, narrow, device):
    wheel.quantize(base, narrow)
    expected = base(inputs)
    calls.clear()
    results = [torch.vmap(base)(inputs), torch.func.functional_call(base, {"head.bias": base.head.bias + 0}, (inputs,))]
    results.append(torch.func.jvp(base, (inputs,), (inputs,))[0])
    torch.use_deterministic_algorithms(mode=True, warn_only=True)  # CUDA's own products may not be
    try:
        results.append(base(inputs))
    finally:
        torch.use_deterministic_algorithms(mode=False)
    for result in results:
        to_one_bound(result, expected, FORMATS[narrow][1])
    with pytest.raises(RuntimeError):
        base.head(inputs[..., :100])


@torch.no_grad()
def test_a_graph_of_torch_fx_has_a_node_for_each(wheel, calls, base, inputs, narrow):
    wheel.quantize(base, narrow)
    traced = torch.fx.symbolic_trace(base.layers[0].mlp)
    assert [n.target for n in traced.graph.nodes if n.op == "call_module"] == ["gate_proj", "up_proj", "down_proj"]
    x = inputs.clone()
    assert torch.equal(traced(x), base.layers[0].mlp(x))


@torch.no_grad()
def test_one_is_made_by_itself(wheel, calls, base, inputs, narrow, device):
    layer = wheel.QuantizedLinear(WIDTH, 1024, device=device, format=narrow)
    assert f"in_features=512, out_features=1024, bias=True, format='{narrow}'" in repr(layer)
    assert float(layer(inputs).abs().max()) == 0
    layer.load_state_dict(base.head.state_dict())
    wheel.quantize(base, narrow)
    assert torch.equal(layer(inputs), base.head(inputs))
