"""Frozen models: what is promised, padded, joined and fused, and what ends it."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from tests.runtime import torch_reference
from tests.runtime.torch_reference import random_tensor

BF16 = torch.bfloat16


class Attention(nn.Module):
    def __init__(self, bias=(True, False, True)):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, n, b, dtype=BF16) for n, b in zip((32, 16, 16), bias, strict=True))

    def forward(self, x, other=None):
        kv = x if other is None else other
        return self.q(x) + torch.cat([self.k(kv), self.v(kv)], -1)


class Same(Attention):
    def forward(self, x):
        q = self.q(x)
        k = self.k(x)
        return q + torch.cat([k, self.v(x)], -1)


class Written(Attention):
    def forward(self, x):
        q = self.q(x)
        x = x * 2
        return q + torch.cat([self.k(x), self.v(x)], -1)


class InPlace(Attention):
    def forward(self, x):
        q = self.q(x)
        x.mul_(2)
        return q + torch.cat([self.k(x), self.v(x)], -1)


class Hidden(Attention):
    """Writes its input where the source does not show it."""

    def forward(self, x):
        q = self.q(x)
        torch.mul(x, 2, out=x)
        return q + torch.cat([self.k(x), self.v(x)], -1)


class Aliased(Attention):
    """Writes its input by another name of it."""

    def forward(self, x):
        other = x
        q = self.q(x)
        other.mul_(2)
        return q + torch.cat([self.k(x), self.v(x)], -1)


class Turned(Attention):
    """Writes a product in place, as a rotary embedding may."""

    def forward(self, x):
        q = self.q(x)
        q.mul_(2)
        k = self.k(x)
        k *= q[..., :1].sigmoid()
        return q + torch.cat([k, self.v(x)], -1)


class Gated(nn.Module):
    def __init__(self, act=nn.functional.silu, width=48):
        super().__init__()
        self.gate, self.up = (nn.Linear(32, width, bias=False, dtype=BF16) for _ in range(2))
        self.down, self.act = nn.Linear(width, 32, dtype=BF16), act
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.down(self.dropout(self.up(x) * self.act(self.gate(x))))


class Activated(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.first, self.second, self.act = nn.Linear(32, 48, dtype=BF16), nn.Linear(48, 32, dtype=BF16), act

    def forward(self, x):
        return self.second(self.act(self.first(x)))


@pytest.fixture(autouse=True)
def plain_gradients():
    with torch.no_grad():
        yield


def drawn(model, but=()):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in but:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model.eval()


def close(got, expected):
    torch.testing.assert_close(got.float(), expected.float(), rtol=0.03, atol=0.03)


@pytest.mark.parametrize(
    ("kind", "groups", "num_calls"),
    [
        (Same, {"": "q and k and v in one product"}, 1),
        (Attention, {"": "k and v in one product"}, 2),
        (Written, {}, 3),
        (InPlace, {}, 3),
        (Hidden, {}, 3),
        (Aliased, {}, 3),
        (Turned, {"": "q and k and v in one product"}, 1),
    ],
)
def test_linears_of_one_unwritten_input_are_one_product(module, calls, kind, groups, num_calls):
    model, x = drawn(kind()), random_tensor(2, 5, 32)
    expected = model(x.clone())
    report = module.patch(model)
    assert report.fused == groups
    close(model(x.clone()), expected)
    assert calls == ["linear"] * num_calls


def test_another_view_of_a_promised_weight_is_not_taken_for_it(module, calls):
    """The transpose of a square weight has its address and shape, and so has every other row of twice as many."""
    layer, x = nn.Linear(32, 32, bias=False, dtype=BF16), random_tensor(5, 32)
    drawn(layer)
    module.patch(layer)
    for view in (layer.weight.t(), layer.weight.view(torch.float16)):
        given = x.to(view.dtype)
        compiled = torch.compile(module.linear, backend="aot_eager", fullgraph=True)
        close(compiled(given, view), nn.functional.linear(given, view))
    assert not any(torch_reference.PROMISED)
    close(torch.compile(module.linear, backend="aot_eager")(x, layer.weight), nn.functional.linear(x, layer.weight))
    assert torch_reference.PROMISED[-1]
    expected = nn.functional.linear(x, layer.weight.t())
    layer.weight.data = layer.weight.data.t()
    close(layer(x), expected)


def test_a_part_of_a_product_may_be_written_where_a_gradient_is_recorded(module, calls):
    model, given = drawn(Turned()), random_tensor(5, 32)
    twin = copy.deepcopy(model)
    module.patch(model)
    gradients = []
    with torch.enable_grad():
        for one in (model, twin):
            x = given.clone().requires_grad_()
            one(x).float().square().sum().backward()
            gradients.append(x.grad.float())
    assert calls == ["linear"]
    assert (gradients[0] - gradients[1]).norm() < 0.02 * gradients[1].norm()


def test_another_input_gets_a_product_of_its_own(module, calls):
    model, x, other = drawn(Attention()), random_tensor(5, 32), random_tensor(5, 32)
    expected = model(x, other), model(x)
    module.patch(model)
    close(model(x, other), expected[0])
    close(model(x), expected[1])
    model.k.forward(x)  # a first product whose second is never asked for
    close(model(other, x), model(other.clone(), x.clone()))


def test_an_input_that_is_written_between_the_calls_is_computed_anew(module, calls):
    model, x = drawn(Same()), random_tensor(5, 32)
    module.patch(model)
    model.q(x)
    x.mul_(2)
    close(model.k(x), nn.functional.linear(x, model.k.weight))
    close(model.v(x), nn.functional.linear(x, model.v.weight, model.v.bias))
    assert calls == ["linear"] * 2


def test_threads_do_not_take_each_others_parts(module, calls):
    from concurrent.futures import ThreadPoolExecutor

    model = drawn(Same())
    inputs = [random_tensor(5, 32) for _ in range(32)]
    expected = [model(x) for x in inputs]
    module.patch(model)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for got, wanted in zip(pool.map(torch.no_grad()(model), inputs), expected, strict=True):
                close(got, wanted)


@pytest.mark.parametrize("rows", [7, 50])
@pytest.mark.parametrize("bias", [False, True])
def test_an_action_head_gets_rows_of_zeros_and_a_tuned_kernel(module, calls, every_package, rows, bias):
    model, x = drawn(nn.Sequential(nn.Linear(32, rows, bias, dtype=BF16))), random_tensor(3, 32)
    assert module.patch(copy.deepcopy(model), frozen=False).left["0"].startswith(f"n {rows} and k 32 get the fallback")
    seen, linear = [], every_package._operations.linear
    every_package._operations.linear = lambda x, w, *rest, **more: (
        seen.append(w.tensor.shape) or linear(x, w, *rest, **more)
    )
    expected = model(x)
    report = module.patch(model)
    try:
        got = model(x)
    finally:
        every_package._operations.linear = linear
    assert (report.padded, report.left, seen) == (("0",), {}, [(-(-rows // 8) * 8, 32)])
    assert "with rows of zeros: 0\n" in f"{report}\n"
    close(got, expected)
    assert (got.shape, model[0].weight.shape) == ((3, rows), (rows, 32))
    module.unpatch(model)
    assert torch.equal(model(x), expected)


GATES = {
    "silu": (nn.functional.silu, "silu"),
    "a module": (nn.SiLU(), "silu"),
    "gelu of tanh": (nn.GELU(approximate="tanh"), "gelu_tanh"),
}


@pytest.mark.parametrize("case", GATES)
def test_a_gate_is_computed_in_the_product(module, calls, case):
    act, name = GATES[case]
    model, x = drawn(Gated(act)), random_tensor(2, 5, 32)
    expected = model(x)
    report = module.patch(model)
    assert report.fused == {"": f"{name} in the product of gate and up"}
    assert isinstance(model, Gated)
    assert (str(type(model)), str(inspect.signature(model.forward))) == (str(Gated), "(x)")
    close(model(x), expected)
    close(model(x=x), expected)
    assert calls == ["gated_linear", "linear"] * 2


@pytest.mark.parametrize("act", [nn.GELU(), nn.GELU(approximate="tanh"), nn.ReLU(), nn.SiLU(), nn.functional.gelu])
def test_an_activation_is_computed_in_the_product(module, calls, act):
    model, x = drawn(Activated(act)), random_tensor(5, 32)
    expected = model(x)
    report = module.patch(model)
    assert list(report.fused) == [""]
    close(model(x), expected)
    assert calls == ["linear"] * 2


@pytest.mark.parametrize("act", [nn.GELU(), nn.Tanh(), nn.Dropout(), lambda x: x + 1, torch.tanh])
def test_a_gate_of_another_function_is_torchs(module, calls, act):
    model, x = drawn(Gated(act)), random_tensor(5, 32)
    expected = model(x)
    report = module.patch(model)
    assert report.fused == {"": "up and gate in one product"}
    close(model(x), expected)
    assert calls == ["linear"] * 2


def test_hooks_training_and_gradients_take_the_modules_own_forward(module, calls):
    model, x = drawn(Gated()), random_tensor(5, 32)
    module.patch(model)
    seen = []
    handle = model.gate.register_forward_hook(lambda layer, given, result: seen.append(result.shape))
    model(x)
    assert (seen, calls) == ([(5, 48)], ["linear"] * 2)
    handle.remove()
    calls.clear()
    with torch.enable_grad():
        given = x.clone().requires_grad_()
        model(given).float().sum().backward()
    assert calls == ["linear"] * 2
    assert given.grad.abs().sum() > 0
    calls.clear()
    model.train()(x)
    assert calls == ["linear"] * 2


class Clipped(nn.Module):
    """What transformers has as gelu_10."""

    def forward(self, x):
        return nn.functional.gelu(x).clamp(-10, 10)


@pytest.mark.parametrize("act", [nn.ReLU6(), nn.Hardtanh(0, 1000), Clipped()], ids=["relu6", "hardtanh", "gelu_10"])
def test_an_activation_that_clips_is_torchs(module, calls, act):
    model, x = drawn(Activated(act)), random_tensor(5, 32) * 1000
    expected = model(x)
    assert module.patch(model).fused == {}
    close(model(x), expected)
    assert calls == ["linear"] * 2


class Adapted(nn.Module):
    """What wraps a Linear in an adapter of a low rank, as LoRA's do."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.first = nn.Linear(base.in_features, 4, bias=False, dtype=BF16)
        self.second = nn.Linear(4, base.out_features, bias=False, dtype=BF16)

    def forward(self, x):
        return self.base(x) + self.second(self.first(x.to(BF16)))


@pytest.mark.parametrize("name", ["gate", "up", "down"])
@pytest.mark.parametrize("grad", [True, False])
def test_an_adapter_around_a_linear_of_a_gate_is_called(module, calls, name, grad):
    model, x = drawn(Gated()), random_tensor(5, 32)
    other = copy.deepcopy(model)
    module.patch(model)
    for each in (model, other):
        torch.manual_seed(3)
        adapter = drawn(Adapted(getattr(each, name)), but=("base.weight", "base.bias"))
        setattr(each, name, adapter)
    with torch.set_grad_enabled(grad):
        got = model(x)
        close(got, other(x))
        assert got.requires_grad is grad


def drawing(model):
    """Have a dropout draw in a model in evaluation mode, as samples of a model's uncertainty are taken."""
    model.dropout.train()


def replaced(model):
    model.act = nn.ReLU()


def hooked(model):
    model.act.register_forward_hook(lambda layer, given, result: result * 2)


def given_a_forward(model):
    model.act.forward = lambda x: nn.functional.silu(x) * 2


def given_a_forward_of_its_linear(model):
    own = model.gate.forward
    model.gate.forward = lambda x: own(x) * 2


def hooked_everywhere(model):
    del model
    return register_module_forward_hook(lambda layer, given, result: result * 2 if type(layer) is nn.SiLU else None)


@pytest.mark.parametrize(
    "change", [drawing, replaced, hooked, given_a_forward, given_a_forward_of_its_linear, hooked_everywhere]
)
def test_what_happens_to_a_module_that_is_not_called_is_heeded(module, calls, change):
    model, x = drawn(Gated(nn.SiLU())), random_tensor(5, 32)
    other = copy.deepcopy(model)
    module.patch(model)
    model(x)
    assert calls == ["gated_linear", "linear"]
    handle = change(model) if change is hooked_everywhere else (change(model), change(other))
    calls.clear()
    try:
        torch.manual_seed(7)
        expected = other(x)
        torch.manual_seed(7)
        close(model(x), expected)
    finally:
        if change is hooked_everywhere:
            handle.remove()
    assert calls == ["linear"] * 2
    module.unpatch(model)
    assert not any(name.startswith("aot_") for name in vars(model))


def test_an_operation_that_the_wheel_lacks_is_not_fused(module, calls, monkeypatch, every_package):
    real = every_package._torch_modules.plan

    def plan(*shape, gated=False, **options):
        if gated:
            raise every_package.UnsupportedError("this wheel has no kernels for bf16_swiglu")
        return real(*shape, **options)

    monkeypatch.setattr(every_package._torch_modules, "plan", plan)
    model = drawn(Gated())
    report = module.patch(model)
    assert report.fused == {"": "up and gate in one product"}
    assert report.unfused == {"": "silu in the product of gate and up: this wheel has no kernels for bf16_swiglu"}
    assert "the model itself: not fused: silu in the product of gate and up" in str(report)


def test_a_write_that_torch_counts_ends_the_promise(module, calls):
    model, x = drawn(nn.Sequential(nn.Linear(32, 16, dtype=BF16), Same())).eval(), random_tensor(5, 32)
    model[0] = drawn(nn.Linear(32, 32, dtype=BF16))
    module.patch(model)
    model(x)
    assert torch_reference.PROMISED == [True, True]
    model[0].weight.mul_(2)
    model[1].k.weight.mul_(2)
    torch_reference.PROMISED.clear()
    got = model(x)
    assert torch_reference.PROMISED == [False, False]
    module.unpatch(model)
    close(got, model(x))


@pytest.mark.parametrize("how", ["data", "parameter", "to", "functional"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_other_parameters_are_heeded(module, calls, how, is_compiled):
    model, x = drawn(Same()), random_tensor(5, 32)
    other = drawn(Same())
    module.patch(model)
    run = torch.compile(model, backend="aot_eager", fullgraph=True) if is_compiled else model
    run(x)
    if how == "functional":
        given = dict(other.named_parameters())

        def call(x):
            return torch.func.functional_call(model, given, (x,))

        got = (torch.compile(call, backend="aot_eager", fullgraph=True) if is_compiled else call)(x)
        close(got, other(x))
        return
    for name in ("q", "k", "v"):
        layer, new = getattr(model, name), getattr(other, name)
        if how == "data" and not is_compiled:  # behind a compiler's back it is not seen: patch says so
            layer.weight.data, layer.weight.data[:] = new.weight.data.clone(), new.weight.data
            if layer.bias is not None:
                layer.bias.copy_(new.bias)
        elif how == "parameter":
            layer.weight, layer.bias = new.weight, new.bias
        else:
            other.load_state_dict(model.state_dict())
    if how == "to":
        model.to(torch.float16)
        x, other = x.half(), other.half()
    got = run(x)
    close(got, other(x))


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_bias_that_is_written_or_moved_is_heeded(module, calls, is_compiled):
    model, x = drawn(Same()), random_tensor(5, 32)
    module.patch(model)
    run = torch.compile(model, backend="aot_eager", fullgraph=True) if is_compiled else model
    run(x)
    model.q.bias.add_(3)
    close(run(x), unpatched(module, model)(x))
    if not is_compiled:  # behind a compiler's back it is not seen: patch says so
        model.v.bias.data = model.v.bias + 3
        close(model(x), unpatched(module, model)(x))
    module.unpatch(model)
    assert all(y.untyped_storage().nbytes() == y.nbytes for y in model.parameters())


def unpatched(module, model):
    other = copy.deepcopy(model)
    module.unpatch(other)
    return other


@pytest.mark.parametrize("how", ["transposed", "in other bits"])
def test_a_promise_is_of_a_weight_and_not_of_what_lies_where_it_does(module, calls, how):
    """In code that a compiler made, promises are found by address and shape."""
    model, x = drawn(nn.Sequential(nn.Linear(32, 32, bias=False, dtype=BF16))), random_tensor(5, 32)
    module.patch(model)
    other = model[0].weight.t() if how == "transposed" else model[0].weight.view(torch.float16)
    x = x.to(other.dtype)
    compiled = torch.compile(lambda x: module.linear(x, other), backend="aot_eager", fullgraph=True)
    close(compiled(x), x @ other.t())


def test_no_promise_outlives_its_model(module, calls, every_package):
    promises = every_package._torch_promises._KNOWN
    gc.collect()
    before = set(promises.values())  # of models of other tests, which may end meanwhile
    model = drawn(nn.Sequential(Same(), Gated(), nn.Linear(32, 7, dtype=BF16)))
    module.patch(model)
    assert len(set(promises.values()) - before) >= 5
    module.unpatch(model)
    assert set(promises.values()) <= before
    module.patch(model)
    del model
    gc.collect()
    assert set(promises.values()) <= before


def test_a_model_in_training_is_not_frozen_unless_it_is_asked_for(module, calls):
    model = drawn(Same()).train()
    report = module.patch(model)
    assert (report.is_frozen, report.fused, model.q.weight.requires_grad) == (False, {}, True)
    module.unpatch(model)
    assert module.patch(model, frozen=True).is_frozen
    assert not model.q.weight.requires_grad
    module.unpatch(model)
    assert model.q.weight.requires_grad


@pytest.mark.parametrize("options", [{"quantise": "fp4"}, {"quantise": "fp8", "frozen": False}])
def test_what_cannot_be_is_refused_and_nothing_changed(module, every_package, options):
    model = drawn(Same())
    with pytest.raises(every_package.OperandError, match=r"patch: quantise"):
        module.patch(model, **options)
    assert type(model.q) is nn.Linear


def test_a_block_of_code_unfuses_what_it_fused(module, calls):
    model, x = drawn(Gated()), random_tensor(5, 32)
    expected = model(x)
    with module.patched(model) as report:
        assert report.fused
        model(x)
    assert type(model) is Gated
    assert {type(y) for y in (model.gate, model.up, model.down)} == {nn.Linear}
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize(("kind", "largest"), [("fp8", 448), ("int8", 127)])
def test_rows_are_quantised_by_their_largest(every_package, module, kind, largest):
    x = torch.tensor([[0.5, -2.0, 1.0], [0.0, 0.0, 0.0]], dtype=BF16)
    values, scale = every_package._torch_quantised.quantise_rows(x, kind)
    assert values.float().tolist() == [
        [pytest.approx(largest / 4, abs=1), -largest, pytest.approx(largest / 2, abs=1)],
        [0] * 3,
    ]
    assert scale.tolist() == [[pytest.approx(2 / largest)], [pytest.approx(1e-12)]]


@pytest.mark.parametrize(
    ("gated_us", "fused", "rows"),
    [
        ({1: 9.0, 16: 9.0, 256: 9.0, 4096: 9.0}, "silu in the product of gate and up", {1: True, 64: True, 5000: True}),
        (
            {1: 12.4, 16: 12.6, 256: 9.0, 4096: 99.0},
            "silu in the product of gate and up, near 1 and 256 rows",
            {1: True, 4: True, 5: False, 64: False, 65: True, 1024: True, 1025: False},
        ),
        ({1: 99.0, 16: 99.0, 256: 99.0, 4096: 99.0}, "up and gate in one product", {}),
    ],
)
def test_a_gate_is_fused_where_the_table_says_that_it_is_faster(
    module, calls, every_package, monkeypatch, gated_us, fused, rows
):
    patching = every_package._torch_patch
    monkeypatch.setattr(patching, "time_us", lambda m, n, k, options: gated_us[m] if options.get("gated") else 10.0)
    monkeypatch.setattr(patching, "bandwidth", lambda *_: 1e18)
    model = drawn(Gated())
    report = module.patch(model)
    assert report.fused == {"": fused}
    assert {m: model._aot_is_faster(m) for m in rows} == rows
    if not rows:
        assert report.unfused == {
            "": "silu in the product of gate and up: by the table's times it is slower at every number of rows"
        }


def test_the_end_of_an_owner_leaves_the_promise_of_the_next_at_its_address(every_package, calls):
    promises, weight = every_package._torch_promises, random_tensor(16, 32)
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    promises.promise(weight, (weight,), one)
    promises.promise(weight, (weight,), two)
    del one
    gc.collect()
    assert promises.promised(weight).tensor is weight
    del two
    gc.collect()
    assert promises.promised(weight) is weight


def test_a_shallow_copy_with_other_parameters_computes_with_those(module, calls):
    model, x = drawn(Same()), random_tensor(5, 32)
    module.patch(model)
    other = copy.copy(model.k)
    other._parameters = dict(model.q._parameters)
    close(other(x), model.q(x))


def loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model)), "torch.save": loaded}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_copy_is_fused_and_heeds_writes_of_its_own_parameters(module, calls, how, is_compiled):
    model, x = drawn(Gated()), random_tensor(5, 32)
    module.patch(model)
    expected, copied = model(x), COPIES[how](model)
    other = torch.compile(copied, backend="aot_eager", fullgraph=True) if is_compiled else copied
    calls.clear()
    torch_reference.PROMISED.clear()
    close(other(x), expected)
    assert calls == ["gated_linear", "linear"]
    assert torch_reference.PROMISED == [True, True]
    for parameter in copied.parameters():
        parameter.mul_(2)
    stock = Gated()
    stock.load_state_dict(copied.state_dict())
    close(other(x), stock.eval()(x))
    close(model(x), expected)
    module.unpatch(copied)
    close(copied(x), stock(x))


class Some(Attention):
    """Calls but the first of its Linears where it is told to."""

    def forward(self, x, only=False):
        q = self.q(x)
        return q if only else q + torch.cat([self.k(x), self.v(x)], -1)


def test_what_is_left_of_a_product_is_not_taken_for_that_of_other_values(module, calls):
    model = drawn(Some())
    other = copy.deepcopy(model)
    module.patch(model)
    with torch.inference_mode():  # in which torch counts no writes
        x = random_tensor(5, 32)
        model(x, only=True)
        x.mul_(2)
        close(model(x), other(x))


def test_what_is_left_of_a_product_without_gradients_is_not_taken_where_they_are_recorded(module, calls):
    model, x = drawn(Some()), random_tensor(5, 32, grad=True)
    module.patch(model)
    model(x, only=True)
    with torch.enable_grad():
        assert model.k(x).requires_grad


def test_a_model_is_copied_whatever_is_left_of_a_product(module, calls):
    model, x = drawn(Some()), random_tensor(1000, 32, grad=True)
    module.patch(model)
    size = len(pickle.dumps(model))
    with torch.enable_grad():
        model(x, only=True)
    close(copy.deepcopy(model)(x), model(x))
    model(x, only=True)
    assert len(pickle.dumps(model)) < size + 1000


def doubling(layer, given):
    given[0].mul_(2)


@pytest.mark.parametrize("mode", ["inference", "compiled", "no_grad"])
def test_a_hook_that_writes_the_input_between_linears_changes_those_behind_it(module, calls, mode):
    model, x = drawn(Same()), random_tensor(5, 32)
    other = copy.deepcopy(model)
    module.patch(model)
    for each in (model, other):
        each.k.register_forward_pre_hook(doubling)
    run = torch.compile(model, backend="aot_eager") if mode == "compiled" else model
    with torch.inference_mode(mode == "inference"):
        close(run(x.clone()), other(x.clone()))


class Listed(nn.Module):
    """Has its first Linear, or its last, in a list."""

    def __init__(self, is_first):
        super().__init__()
        first, second = nn.Linear(32, 48, dtype=BF16), nn.Linear(48, 32, dtype=BF16)
        self.parts, self.own, self.is_first = nn.ModuleList([first if is_first else second]), None, is_first
        self.own = second if is_first else first

    def forward(self, x):
        first, second = (self.parts[0], self.own) if self.is_first else (self.own, self.parts[0])
        return second(nn.functional.relu(first(x)))


@pytest.mark.parametrize("is_first", [False, True])
def test_a_linear_of_a_list_is_not_fused(module, calls, is_first):
    model, x = drawn(Listed(is_first)), random_tensor(5, 32)
    expected = model(x)
    report = module.patch(model)
    assert (len(report.swapped), report.fused) == (2, {})
    close(model(x), expected)


class Counting(nn.Module):
    """Notes what it is given, and draws a number."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 48, dtype=BF16), nn.Linear(48, 32, dtype=BF16)
        self.count, self.seen = 0, []
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        self.total += 1
        self.seen.append(x)
        self.last = x + torch.rand(())
        return self.second(torch.relu(self.first(x)))


def test_patching_changes_nothing_that_a_forward_would(module, calls):
    model, state = drawn(Counting()), torch.random.get_rng_state()
    names = set(vars(model))
    module.patch(model)
    module.unpatch(model)
    assert (model.count, model.total, model.seen, set(vars(model))) == (0, 0, [], names)
    assert torch.equal(torch.random.get_rng_state(), state)
