"""Quantised models: what makes the rows of 8 bits that products take, which kernels those are, and what ends it."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from tests.runtime.test_torch_norms import LlamaNorm, drawn
from tests.runtime.torch_reference import random_tensor

BF16 = torch.bfloat16
WIDTH = 64
FP8 = 0.12
"""Relative error that two layers of FP8 stay within: 3 bits of each element, six products; a wrong factor gives 1."""


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False, dtype=BF16) for _ in range(4))

    def forward(self, hidden_states, scale=1.0):
        shape = hidden_states.shape[:-1]
        q, k, v = self.q(hidden_states), self.k(hidden_states), self.v(hidden_states)
        return self.o((q * k.sigmoid() + v * scale).view(*shape, -1))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False, dtype=BF16) for _ in range(2))
        self.down, self.act = nn.Linear(2 * WIDTH, WIDTH, bias=False, dtype=BF16), nn.SiLU()

    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.attention, self.mlp = LlamaNorm(), LlamaNorm(), Attention(), Gated()

    def forward(self, hidden_states):
        residual = hidden_states
        hidden_states = self.first(hidden_states)
        hidden_states = self.attention(hidden_states=hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.second(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class Nested(nn.Module):
    """Gives its norm to a Linear and to modules without a name for it."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.LayerNorm(WIDTH, dtype=BF16), nn.LayerNorm(WIDTH, dtype=BF16)
        self.mlp, self.proj = Gated(), nn.Linear(WIDTH, WIDTH, dtype=BF16)

    def forward(self, x):
        x = x + self.mlp(self.norm(x))
        return self.proj(self.last(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.norm = nn.ModuleList([Layer(), Layer()]), LlamaNorm()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


@pytest.fixture(autouse=True)
def plain_gradients():
    with torch.no_grad():
        yield


def error(got, expected):
    return float((got.float() - expected.float()).norm() / expected.float().norm())


LAYER = ["rms_norm", "linear", "quantize", "linear", "rms_norm", "gated_linear", "quantize", "linear"]
"""What a layer calls: norms give rows of 8 bits; what attention and the gate give is quantised."""


def test_norms_give_rows_of_8_bits_to_the_products_behind_them(module, calls):
    model, x = drawn(Model()), random_tensor(2, 5, WIDTH)
    expected = copy.deepcopy(model).float()(x.float())
    report = module.patch(model, quantise="fp8")
    assert error(model(x), expected) < FP8
    assert calls == [*LAYER, *LAYER, "rms_norm"]
    assert "first gives rows of fp8 and second gives rows of fp8" in report.fused["layers.0"]
    assert report.by_torch == ()
    module.unpatch(model)
    assert not any(name.startswith("aot_") for part in model.modules() for name in vars(part))


def test_they_are_nearer_to_the_truth_than_rows_of_rounded_norms(module, calls):
    """A norm that is quantised in its kernel is not rounded to bfloat16 first."""
    model, x = drawn(Model()), random_tensor(64, WIDTH)
    expected = copy.deepcopy(model).float()(x.float())
    with module.patched(model, quantise="fp8"):
        fed = error(model(x), expected)
    with module.patched(model, quantise="fp8", norms=False):
        apart = error(model(x), expected)
    assert calls.count("quantize") == 4 + 8
    assert fed < 1.05 * apart


def test_without_a_kernel_torch_quantises_and_the_report_says_so(module, calls, every_package, monkeypatch):
    monkeypatch.setattr(every_package._torch_quantised, "has_kernel", lambda *_: False)
    monkeypatch.setattr(every_package._torch_feeds, "has_kernel", lambda *_: False)
    model, x = drawn(Model()), random_tensor(2, 5, WIDTH)
    expected = copy.deepcopy(model).float()(x.float())
    report = module.patch(model, quantise="fp8")
    assert error(model(x), expected) < FP8
    assert "quantize" not in calls
    assert report.by_torch == report.swapped
    assert "torch quantises the inputs of 14, for which the wheel has no kernel" in str(report)


def test_int8_has_no_norms_that_give_rows(module, calls):
    model, x = drawn(Model()), random_tensor(2, 5, WIDTH)
    expected = copy.deepcopy(model).float()(x.float())
    report = module.patch(model, quantise="int8")
    assert error(model(x), expected) < 0.03
    assert calls.count("quantize") == 8
    assert "gives rows" not in str(report)


def test_a_norm_and_a_linear_without_names_between_them(module, calls):
    model, x = drawn(Nested()), random_tensor(7, WIDTH)
    expected = copy.deepcopy(model).float()(x.float())
    report = module.patch(model, quantise="fp8")
    assert error(model(x), expected) < FP8
    assert calls == ["layer_norm", "gated_linear", "quantize", "linear", "layer_norm", "linear"]
    assert "norm gives rows of fp8 and last gives rows of fp8" in report.fused[""]


def test_a_compiled_model_calls_the_same(module, calls):
    model, x = drawn(Model()), random_tensor(2, 5, WIDTH)
    module.patch(model, quantise="fp8")
    expected = model(x)
    calls.clear()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected, rtol=0.05, atol=0.05)
    # torch has the last norm, and the sums in front of norms are as they were
    assert [x for x in calls if "norm" not in x] == [x for x in [*LAYER, *LAYER] if "norm" not in x]
    assert calls.count("rms_norm") == 5
    torch.testing.assert_close(compiled(2 * x), model(2 * x), rtol=0.05, atol=0.05)
    assert torch.isfinite(compiled(random_tensor(3, 7, WIDTH))).all()


class Twice(Layer):
    def forward(self, hidden_states):
        normed = self.first(hidden_states)
        return self.attention(hidden_states=normed) + normed


class InBranch(Layer):
    def forward(self, hidden_states, other=None):
        normed = self.first(hidden_states)
        if other is not None:
            normed = other
        return self.attention(normed)


class Hidden(Layer):
    def forward(self, hidden_states):
        normed = self.first(hidden_states)

        def later():
            return self.attention(normed)

        return later() + later()


class Looped(Layer):
    def forward(self, hidden_states):
        for _ in range(2):
            normed = self.first(hidden_states)
            hidden_states = self.attention(normed)
        return hidden_states + normed


class Looks(Attention):
    """Asks for the type of its input, which rows of 8 bits would change."""

    def forward(self, hidden_states):
        q, k, v = self.q(hidden_states), self.k(hidden_states), self.v(hidden_states)
        return self.o((q + k + v).to(hidden_states.dtype))


class Other(Attention):
    def forward(self, hidden_states):
        return self.o(self.q(hidden_states) + self.k(hidden_states) + self.v(hidden_states) + hidden_states)


class WithChild(Layer):
    def __init__(self, child):
        super().__init__()
        self.attention = child

    def forward(self, hidden_states):
        return self.attention(self.first(hidden_states))


NOT_FED = {
    "used twice": Twice,
    "in a branch": InBranch,
    "in a function": Hidden,
    "behind a loop": Looped,
    "its type": lambda: WithChild(Looks()),
    "used beside the product": lambda: WithChild(Other()),
}


@pytest.mark.parametrize("case", NOT_FED)
def test_what_may_be_used_otherwise_stays_as_it_is(module, calls, case):
    model, x = drawn(NOT_FED[case]()), random_tensor(7, WIDTH)
    expected = copy.deepcopy(model).float()(x.float())
    report = module.patch(model, quantise="fp8")
    assert "first gives rows" not in str(report)
    assert error(model(x), expected) < FP8
    assert model.first(x).dtype is BF16


def seen_by(hooked):
    """Give a hook and what it has seen."""
    seen = []
    return seen, lambda *arguments: seen.extend(x.dtype for x in (arguments[1][0], arguments[-1]))


@pytest.mark.parametrize("name", ["layers.1.first", "layers.1.attention", "layers.1.attention.q", "every"])
def test_a_hook_sees_what_it_saw_before(module, calls, name):
    model, x = drawn(Model()), random_tensor(7, WIDTH)
    expected = copy.deepcopy(model).float()(x.float())
    module.patch(model, quantise="fp8")
    model(x)
    seen = []

    def hook(part, given, result):
        seen.extend(y.dtype for y in (*given, result))

    if name == "every":
        handle = register_module_forward_hook(hook)
    elif name.endswith("attention"):
        handle = model.get_submodule(name).register_forward_hook(
            lambda part, given, named, result: hook(part, named.values(), result), with_kwargs=True
        )
    else:
        handle = model.get_submodule(name).register_forward_hook(hook)
    assert error(model(x), expected) < FP8
    assert len(seen) >= 2
    assert set(seen) == {BF16}
    handle.remove()
    calls.clear()
    model(x)
    assert calls == [*LAYER, *LAYER, "rms_norm"]


def test_a_part_that_is_unpatched_alone_gets_its_own_type(module, calls):
    model, x = drawn(Model()), random_tensor(7, WIDTH)
    expected = copy.deepcopy(model).float()(x.float())
    module.patch(model, quantise="fp8")
    module.unpatch(model.layers[0].attention)
    assert error(model(x), expected) < FP8
    assert type(model.layers[0].attention.q) is nn.Linear


def test_loading_weights_changes_what_is_multiplied(module, calls):
    model, other, x = drawn(Model()), drawn(Model()), random_tensor(7, WIDTH)
    module.patch(model, quantise="fp8")
    model.load_state_dict(other.state_dict())
    assert error(model(x), copy.deepcopy(other).float()(x.float())) < FP8


def test_a_write_that_torch_counts_changes_what_is_multiplied(module, calls):
    model, x = drawn(Model()), random_tensor(7, WIDTH)
    module.patch(model, quantise="fp8")
    for layer in model.layers:
        layer.attention.q.weight.copy_(drawn(nn.Linear(WIDTH, WIDTH, bias=False)).weight)  # one of three in a product
        layer.attention.o.weight.neg_()
        layer.mlp.gate.weight.neg_()
    other = copy.deepcopy(model)
    module.unpatch(other)
    assert error(model(x), other.float()(x.float())) < FP8


def test_rows_whose_product_has_changed_since_are_restored(module, calls, every_package):
    model, x = drawn(Model()), random_tensor(7, WIDTH)
    module.patch(model, quantise="fp8")
    layer = model.layers[0]
    rows = layer.first(x)
    assert rows.dtype is torch.float8_e4m3fn
    weight = layer.attention.q.weight
    weight.data = weight.data.clone()
    got = layer.attention.q(rows)
    assert got.dtype is BF16
    expected = nn.functional.linear(
        torch.nn.functional.rms_norm(x.float(), (WIDTH,)) * layer.first.weight, weight.float()
    )
    assert error(got, expected) < FP8


def saved(model):
    """Save a model and load it, as pickle does not take float8 tensors."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_copies_and_pickles_feed_their_own_products(module, calls):
    model, x = drawn(Model()), random_tensor(7, WIDTH)
    module.patch(model, quantise="fp8")
    expected = model(x)
    count = len(calls)
    for other in (copy.deepcopy(model), saved(model)):
        assert torch.equal(other(x), expected)  # of matrices of its own, which are quantised
        assert calls == calls[:count] * (len(calls) // count)
        assert other.layers[0].first.aot_feed.joined is other.layers[0].attention.q.aot_joined
        assert other.layers[0].first.aot_feed.joined is not model.layers[0].attention.q.aot_joined


def test_threads_have_rows_of_their_own(module, calls):
    from concurrent.futures import ThreadPoolExecutor

    model = drawn(Model())
    module.patch(model, quantise="fp8")
    inputs = [random_tensor(5, WIDTH) for _ in range(32)]
    expected = [model(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool, torch.no_grad():
        got = list(pool.map(torch.no_grad()(model), inputs))
    assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))


def test_a_gate_gives_rows_where_it_is_faster_behind_its_product(module, calls, every_package, monkeypatch):
    patching = every_package._torch_patch
    gated_us = {1: 9.0, 16: 11.0, 256: 9.0, 4096: 11.0}
    monkeypatch.setattr(patching, "time_us", lambda m, n, k, options: gated_us[m] if options.get("gated") else 10.0)
    monkeypatch.setattr(patching, "bandwidth", lambda *_: 1e18)
    model = drawn(Gated())
    report = module.patch(model, quantise="fp8")
    assert report.fused == {
        "": "silu in the product of gate and up, near 1 and 256 rows; silu of gate and up and rows of fp8 for down in "
        "one kernel, near 16 and 4096 rows"
    }
    for rows, expected in (
        (3, ["quantize", "gated_linear", "quantize", "linear"]),
        (9, ["quantize", "linear", "silu_mul", "linear"]),
    ):
        x = random_tensor(rows, WIDTH)
        calls.clear()
        truth = (nn.functional.silu(x @ model.gate.weight.t()) * (x @ model.up.weight.t())) @ model.down.weight.t()
        assert error(model(x), truth) < FP8
        assert calls[: len(expected)] == expected
    model.down.register_forward_hook(lambda part, given, result: seen.append(given[0].dtype))
    seen = []
    model(x)
    assert seen == [BF16]


@pytest.mark.parametrize(("bytes_per_s", "is_fused"), [(1e6, True), (1e18, False)])
def test_a_gate_without_a_time_is_fused_where_it_spares_much(
    module, calls, every_package, monkeypatch, bytes_per_s, is_fused
):
    patching = every_package._torch_patch
    monkeypatch.setattr(patching, "time_us", lambda m, n, k, options: float("inf") if options.get("gated") else 10.0)
    monkeypatch.setattr(patching, "bandwidth", lambda *_: bytes_per_s)
    model = drawn(Gated())
    module.patch(model, quantise="fp8")
    assert model.aot_faster == (is_fused,) * 4


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_forward_that_is_replaced_gets_what_it_got_before(module, calls, is_compiled):
    model, x = drawn(Model()), random_tensor(7, WIDTH)
    module.patch(model, quantise="fp8")
    model.layers[0].mlp.forward = lambda x: 2 * x
    model.layers[1].attention.forward = lambda hidden_states: -hidden_states
    rows = model.layers[0](x)
    assert rows.dtype is BF16
    other = copy.deepcopy(model)
    module.unpatch(other)
    expected = other.float()(x.float())
    if is_compiled:
        model = torch.compile(model, backend="aot_eager")
    assert error(model(x), expected) < FP8


class Adapted(nn.Module):
    """What wraps a Linear and sees its input, as an adapter of LoRA."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x):
        return self.base(x) + x.to(BF16).sum(-1, keepdim=True)


class Wrapped(nn.Module):
    """What wraps a module that gets a norm's rows."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, *given, **named):
        return self.base(*given, **named) + next(iter((*given, *named.values()))).to(BF16)


@pytest.mark.parametrize(
    ("place", "wrapper"),
    [("attention.q", Adapted), ("mlp.gate", Adapted), ("mlp.down", Adapted), ("attention", Wrapped), ("mlp", Wrapped)],
)
def test_what_is_put_in_the_place_of_a_module_gets_what_that_got_before(module, calls, place, wrapper):
    model, x = drawn(Model()), random_tensor(7, WIDTH)
    expected = copy.deepcopy(model).float()
    module.patch(model, quantise="fp8")
    model(x)
    owner, _, name = place.rpartition(".")
    for each in (model, expected):
        parent = each.layers[0].get_submodule(owner)
        setattr(parent, name, wrapper(getattr(parent, name)))
    assert error(model(x), expected(x.float())) < FP8


def replicated(model, factor):
    """Return what nn.DataParallel makes of a model for another GPU, whose parameters are those times a factor here."""
    modules = list(model.modules())
    replicas = {id(x): x._replicate_for_data_parallel() for x in modules}
    for module in modules:
        replica = replicas[id(module)]
        for name, child in module.named_children():
            replica._modules[name] = replicas[id(child)]
        for name, parameter in module._parameters.items():
            if parameter is None:
                replica._parameters[name] = None
            else:
                setattr(replica, name, parameter.detach() * factor)
    return replicas[id(model)]


@pytest.mark.parametrize("kind", [None, "fp8"])
def test_a_replica_of_data_parallel_has_parameters_of_its_own(module, calls, kind):
    model, x = drawn(Model()), random_tensor(7, WIDTH)
    other = copy.deepcopy(model).float()
    for parameter in other.parameters():
        parameter.mul_(1.5)
    report = module.patch(model, quantise=kind)
    assert {"layers.0", "layers.0.attention", "layers.0.mlp"} <= set(report.fused)
    replica = replicated(model, 1.5)
    assert error(replica(x), other(x.float())) < 0.03
    assert [type(x) for x in replica.layers[0].children()] == [LlamaNorm, LlamaNorm, Attention, Gated]
