"""bench/model.py without a GPU: its stack, its checks and its table, with the wheel, graphs and clock replaced.

The layers are small ones of our own, called as transformers' decoder layers are; where transformers is installed, also
its own.
"""

import sys
import types

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.slow


class RefusedError(Exception):
    pass


@pytest.fixture
def wheel(monkeypatch):
    """Give the bench and its stack a wheel of torch's products; `wheel.scale` makes them wrong."""
    module = types.ModuleType("aot_gemm")
    module.scale, module.promised = 1.0, []

    def linear(x, weight, bias):
        if module.scale is None:
            raise RefusedError("no")
        return nn.functional.linear(x, weight, bias) * module.scale

    def constant(weight):
        module.promised.append(weight.data_ptr())
        return weight

    module.AotGemmError, module.__version__, module.linear, module.constant = RefusedError, "1", linear, constant
    module.plan = lambda m, n, k, dtype: types.SimpleNamespace(kernel=f"{dtype}_{m}x{n}x{k}")
    monkeypatch.setitem(sys.modules, "aot_gemm", module)
    for name in ("research.bench.model", "research.bench.stack"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield module
    for name in ("research.bench.model", "research.bench.stack"):
        sys.modules.pop(name, None)


@pytest.fixture
def stack(wheel):
    import research.bench.stack as module

    module.register()
    return module


@pytest.fixture
def model(stack, monkeypatch):
    import research.bench.model as module

    calls = []

    def capture(call, sets, graph_us):
        assert graph_us == 0
        call(*sets[0])
        calls.append(len(sets))
        return len(calls), len(sets)

    # Each graph takes 10 us more than the one before; a second round takes 2 us more, a third 4.
    monkeypatch.setattr(module, "capture", capture)
    monkeypatch.setattr(
        module, "interleave", lambda x: {name: [10.0 * g, 10.0 * g + 2, 10.0 * g + 4] for name, (g, _) in x.items()}
    )
    module.captured = calls
    monkeypatch.setattr(module, "clocks", lambda: "none")
    monkeypatch.setattr(module, "make_stack", lambda shape, dtype, device: small(stack, shape, dtype))
    monkeypatch.setattr(torch, "compile", lambda stack, **_: stack)
    return module


class Layer(nn.Module):
    """One head of attention over a cache, and a Linear; it returns a tuple, as transformers' layers did."""

    def __init__(self, index, hidden, head_dim):
        super().__init__()
        self.index = index
        self.k_proj, self.v_proj = nn.Linear(hidden, head_dim, bias=False), nn.Linear(hidden, head_dim)
        self.mlp = nn.Sequential(nn.Linear(head_dim, hidden, bias=False), nn.ReLU())

    def forward(self, hidden_states, position_embeddings=None, past_key_values=None):
        keys, values = (each(hidden_states)[:, None] for each in (self.k_proj, self.v_proj))
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, self.index, {"sin": None})
        mixed = (keys.float().softmax(2).to(values.dtype) * values).sum(2)
        return (hidden_states + self.mlp(mixed + position_embeddings),)


def small(stack, shape, dtype):
    torch.manual_seed(0)
    layers = [Layer(i, shape.hidden_size, shape.head_dim) for i in range(shape.num_hidden_layers)]
    embedding = nn.Module()
    embedding.forward = lambda x, positions: positions.sum(-1, keepdim=True)[:, None].to(x.dtype) / 100
    return stack.Stack(layers, nn.LayerNorm(shape.hidden_size), embedding).to(dtype)


def sizes(stack):
    return stack.Shape(hidden_size=16, num_attention_heads=1, num_key_value_heads=1, head_dim=8, num_hidden_layers=2)


def test_the_cache_writes_one_token_to_the_last_place_each_time(stack):
    cache = stack.Cache(sizes(stack), batch=3, length=5, like=torch.ones(1))
    before = cache.keys[1].clone()
    new = torch.full((3, 1, 1, 8), 7.0)
    for _ in range(2):
        keys, values = cache.update(new, -new, 1, {}, more=None)
        assert torch.equal(keys[:, :, :4], before[:, :, :4])
        assert (keys[:, :, 4] == 7).all()
        assert (values[:, :, 4] == -7).all()
    assert not (cache.keys[0][:, :, 4] == 7).any()
    other = cache.as_type(torch.float64)
    other.update(new.double(), new.double(), 0)
    assert not (cache.keys[0][:, :, 4] == 7).any()
    assert other.values[1].dtype == torch.float64


def test_linears_through_the_wheel_share_their_weights(stack, wheel):
    found = small(stack, sizes(stack), torch.float32)
    other = stack.with_wheel(found)
    assert stack.linears(other) == []
    assert [p.data_ptr() for p in other.parameters()] == [p.data_ptr() for p in found.parameters()]
    x, positions = torch.randn(2, 1, 16), torch.tensor([[4]])
    cache = stack.Cache(sizes(stack), 2, 5, x)
    with torch.no_grad():
        expected = found(x, positions, cache)
        assert torch.equal(other(x, positions, cache), expected)
        assert not torch.equal(other(x, positions, None), expected)
        wheel.scale = 2.0
        assert not torch.allclose(other(x, positions, cache), expected)


def test_the_operator_can_be_traced_without_the_wheel(stack, wheel):
    from torch._subclasses.fake_tensor import FakeTensorMode

    wheel.scale = None
    with FakeTensorMode():
        out = torch.ops.aot_gemm_bench.linear(torch.empty(2, 3, 8).half(), torch.empty(5, 8).half(), None)
    assert (tuple(out.shape), out.dtype) == ((2, 3, 5), torch.float16)


def test_weights_are_promised_once_each(stack, wheel):
    found = small(stack, sizes(stack), torch.float32)
    stack.promise_constant(found)
    assert wheel.promised == [linear.weight.data_ptr() for linear in stack.linears(found)]
    assert set(stack.CONSTANT) == set(wheel.promised)


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma"])
def test_the_layers_of_transformers(stack, model_type):
    pytest.importorskip("transformers")
    shape = stack.Shape(model_type, 64, 4, 2, 16, 128, 2)
    with torch.no_grad():
        found = stack.make_stack(shape, torch.bfloat16, "cpu")
        assert len(stack.linears(found)) == 14
        x = torch.randn(2, 1, 64).bfloat16()
        cache = stack.Cache(shape, 2, 6, x)
        first = found(x, torch.tensor([[5]]), cache)
        assert torch.equal(stack.with_wheel(found)(x, torch.tensor([[5]]), cache), first)
        # The cache counts: another one gives something else.
        assert not torch.equal(found(x, torch.tensor([[5]]), stack.Cache(shape, 2, 6, x)), first)


def options(model, **others):
    """Return what a run is told."""
    told = {"dtype": "bfloat16", "shape": vars(sizes(sys.modules["research.bench.stack"])), "cache": 6, "mode": None}
    return {**told, "constant": False, "rows": [], **others}


def test_a_run_has_times_speeds_errors_and_kernels(model):
    result = options(model)
    model.run(result, ["decode-3", "prefill-4"], 100, print, "cpu")
    decode, prefill = result["rows"]
    assert [decode[f"{name}_us"] for name in (*model.VARIANTS, *model.GEMMS)] == [12, 22, 32, 42, 52, 62]
    assert (decode["m"], prefill["m"]) == (3, 4)
    assert (decode["speedup"], decode["compiled_speedup"]) == (round(12 / 22, 4), round(32 / 42, 4))
    assert decode["gemm_share"] == round(52 / 32, 4)
    assert decode["stock_spread"] == round(4 / 12, 4)
    assert 0 < decode["stock_error"] == decode["wheel_error"] < 0.02
    assert decode["wheel_difference"] == 0
    assert decode["kernels"] == {"n8 k16": "bfloat16_3x8x16", "n16 k8": "bfloat16_3x16x8"}
    assert decode["failures"] == {}


def test_every_graph_of_a_row_has_as_many_passes(model):
    model.run(options(model), ["decode-3", "prefill-2048", "prefill-5000"], 100, print, "cpu")
    assert model.captured == [8] * 6 + [2] * 6 + [1] * 6


def test_a_wrong_product_is_a_failure(model, wheel):
    wheel.scale = 1.1
    result = options(model)
    model.run(result, ["prefill-8"], 100, print, "cpu")
    failures = result["rows"][0]["failures"]
    assert list(failures) == ["wheel result", "compiled_wheel result"]
    assert failures["wheel result"].startswith("relative error 0.0")


def test_a_variant_that_fails_has_no_time(model, monkeypatch):
    def refuse(stack, **_):
        def call(*_):
            raise RuntimeError("no compiler")

        return call

    monkeypatch.setattr(torch, "compile", refuse)
    result = options(model)
    model.run(result, ["decode-1"], 100, print, "cpu")
    (row,) = result["rows"]
    assert row["failures"] == dict.fromkeys(("compiled", "compiled_wheel"), "RuntimeError: no compiler")
    assert "compiled_us" not in row
    assert row["gemm_share"] == round(32 / 12, 4)  # of the stack as it is


def test_rows_that_are_no_rows_are_refused(model):
    for name in ("decode", "decode-0", "train-3", "prefill-x"):
        with pytest.raises(ValueError, match=rf"there is no row '{name}'; expected decode-BATCH or prefill-TOKENS"):
            model.run(options(model), [name], 100, print, "cpu")


def test_a_run_ends_when_its_time_is_over(model):
    result, lines = options(model), []
    model.run(result, ["decode-1"], -1, lines.append, "cpu")
    assert result["rows"] == []
    assert lines == ["-1 s are over: 1 rows are left out"]


ROW = {"row": "decode-4", "m": 4, "failures": {}, "stock_us": 100.0, "wheel_us": 80.0, "compiled_us": 60.0}
ROW |= {"compiled_wheel_us": 50.0, "gemms_us": 45.0, "gemms_wheel_us": 40.0}
ROW |= {"stock_error": 0.004, "wheel_error": 0.0041, "wheel_difference": 0.03}
KIND = {"device": "NVIDIA H200", "torch": "2.11", "transformers": "5.0", "wheel": "1", "date": "2026-11-22"}
KIND |= {"dtype": "bfloat16", "shape": {"hidden_size": 16}, "cache": 6, "mode": None, "constant": False}


def test_the_table(model):
    failed = {"row": "prefill-8", "failures": {"stock": "RuntimeError: no"}, "gemms_us": 9.0, "gemms_wheel_us": 8.0}
    lines = model.summary(KIND | {"rows": [model.with_ratios(ROW), model.with_ratios(failed)]}).splitlines()
    assert lines[:2] == [
        "NVIDIA H200, torch 2.11, transformers 5.0, wheel 1, 2026-11-22, one run",
        "bfloat16, hidden_size 16, cache 6",
    ]
    assert "| decode 4 | 100 us | 80 us, 1.250x | 60 us | 50 us, 1.200x | 45 us | 40 us | 75% |" in lines
    assert "| prefill 8 | - | - | - | - | 9 us | 8 us | - |" in lines
    assert "decode-4: stock 0.004, wheel 0.0041, wheel 0.03 off" in lines
    assert lines[-1] == "prefill-8 stock failed: RuntimeError: no"


def test_several_runs_join_to_medians(model):
    runs = [KIND | {"rows": [model.with_ratios(ROW | {"wheel_us": us})]} for us in (80.0, 50.0, 100.0)]
    runs[1]["rows"].append(ROW | {"row": "prefill-8"})
    (found,) = model.joined(runs)["rows"]
    assert (found["wheel_us"], found["speedup"]) == (80.0, 1.25)
    assert "medians of 3 runs" in model.summary(model.joined(runs))
    with pytest.raises(ValueError, match="give runs of one kind"):
        model.joined([runs[0], runs[1] | {"cache": 7}])
    with pytest.raises(ValueError, match="no row in common"):
        model.joined([runs[0], KIND | {"rows": []}])
