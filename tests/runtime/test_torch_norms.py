"""Norms of patched models: which are found and what they round, the sums in front of them, and what ends it."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from tests.runtime.torch_reference import random_tensor

BF16, F16 = torch.bfloat16, torch.float16
WIDTH = 64


class LlamaNorm(nn.Module):
    def __init__(self, eps=1e-6, dtype=BF16, width=WIDTH):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=dtype))
        self.variance_epsilon = eps

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class OnceNorm(LlamaNorm):
    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight * wide).to(x.dtype)


class GemmaNorm(LlamaNorm):
    def forward(self, x):
        wide = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class MaxNorm(LlamaNorm):
    """No norm that there is a kernel of."""

    def forward(self, x):
        return self.weight * (x / x.abs().amax(-1, keepdim=True))


class FirstNorm(LlamaNorm):
    """A norm over the first dimension."""

    def forward(self, x):
        return self.weight * (x / x.pow(2).mean(0, keepdim=True).sqrt())


FOUND = {
    "Llama": (LlamaNorm, {"eps": 1e-6, "round_norm": True}),
    "Llama of another eps": (lambda: LlamaNorm(1e-5), {"eps": 1e-5, "round_norm": True}),
    "Llama of fp16": (lambda: LlamaNorm(dtype=F16), {"eps": 1e-6, "round_norm": True}),
    "rounded once": (OnceNorm, {"eps": 1e-6}),
    "Gemma": (GemmaNorm, {"eps": 1e-6, "weight_offset": 1.0}),
    "nn.RMSNorm": (lambda: nn.RMSNorm(WIDTH, 1e-5, dtype=BF16), {"eps": 1e-5}),
    "nn.LayerNorm": (lambda: nn.LayerNorm(WIDTH, 1e-6, dtype=BF16), {"eps": 1e-6, "has_mean": True}),
    "nn.LayerNorm without a bias": (
        lambda: nn.LayerNorm(WIDTH, bias=False, dtype=BF16),
        {"eps": 1e-5, "has_mean": True},
    ),
}


def drawn(model):
    with torch.no_grad():
        for parameter in model.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 1.0
            parameter.normal_(std=scale)
    return model.eval()


@pytest.fixture(autouse=True)
def plain_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("case", FOUND)
def test_a_norm_is_found_by_what_it_computes(module, every_package, calls, case):
    make, options = FOUND[case]
    model = nn.ModuleDict({"norm": drawn(make())})
    norm = model["norm"]
    x = random_tensor(3, 5, WIDTH, dtype=norm.weight.dtype)
    expected, kind = norm(x), type(norm)
    report = module.patch(model.eval())
    assert (report.norms, report.norms_left) == (("norm",), {})
    assert norm.aot_kind == every_package._torch_norms.NormKind(**options)
    got = norm(x)
    assert calls == ["layer_norm" if options.get("has_mean") else "rms_norm"]
    assert (got != expected).float().mean() < 0.02
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=1e-3)
    module.unpatch(model)
    assert type(norm) is kind
    assert not any(name.startswith("aot_") for name in vars(norm))


class EitherNorm(LlamaNorm):
    """Computes one of two norms, as a number, a text or an object of its own says."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        wide = x.float()
        if self.how in ("layer", 1) or getattr(self.how, "has_mean", False):
            wide = wide - wide.mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * self.weight.float()).to(x.dtype)


class How:
    def __init__(self, has_mean):
        self.has_mean = has_mean


@pytest.mark.parametrize("hows", [("rms", "layer"), (0, 1), (How(False), How(True))], ids=["text", "number", "object"])
def test_norms_of_one_class_that_compute_differently_are_told_apart(module, calls, hows):
    model = nn.ModuleList([drawn(EitherNorm(how)) for how in (*hows, *hows)]).eval()
    x = random_tensor(5, WIDTH) + 1
    expected = [norm(x) for norm in model]
    assert module.patch(model).norms == ("0", "1", "2", "3")
    for norm, result in zip(model, expected, strict=True):
        torch.testing.assert_close(norm(x), result, rtol=2**-6, atol=1e-3)
    assert calls == ["rms_norm", "layer_norm"] * 2


def test_rounding_before_the_weight_is_told_from_rounding_once(every_package):
    norms = every_package._torch_norms
    x, weight = random_tensor(64, WIDTH), random_tensor(WIDTH)
    once, twice = (norms.NormKind(1e-6, round_norm=y).expected(x, weight, None) for y in (False, True))
    assert 0.1 < float((once != twice).float().mean()) < 0.5


LEFT = {
    "another norm": (MaxNorm, "it computes no norm that there are kernels of"),
    "over the first dimension": (FirstNorm, "it computes no norm that there are kernels of"),
    "groups": (lambda: nn.GroupNorm(4, WIDTH, dtype=BF16), "it computes no norm that there are kernels of"),
    "float32": (lambda: LlamaNorm(dtype=torch.float32), "its parameters are torch.float32; expected torch.bfloat16"),
    "columns": (lambda: LlamaNorm(width=65), "rms_norm of 65 columns gets the fallback"),
}


WITHOUT = {
    "nn.LayerNorm": (lambda: nn.LayerNorm(WIDTH, 1e-6, elementwise_affine=False), "layer_norm"),
    "nn.RMSNorm": (lambda: nn.RMSNorm(WIDTH, 1e-5, elementwise_affine=False), "rms_norm"),
}


class Adaptive(nn.Module):
    """Scales and shifts a norm that has no weight, as diffusion transformers do."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.proj = norm, nn.Linear(WIDTH, WIDTH, dtype=BF16)

    def forward(self, x, scale):
        return self.proj(self.norm(x) * (1 + scale))


@pytest.mark.parametrize("case", WITHOUT)
def test_a_norm_without_a_weight_is_swapped(module, calls, case):
    make, function = WITHOUT[case]
    model = drawn(Adaptive(make()))
    x, scale = random_tensor(3, 5, WIDTH), random_tensor(WIDTH)
    expected, kind = model(x, scale), type(model.norm)
    assert module.patch(model).norms == ("norm",)
    torch.testing.assert_close(model(x, scale), expected, rtol=2**-6, atol=0.03)
    assert calls == [function, "linear"]
    assert model.norm(x.float()).dtype is torch.float32  # which the model's own forward computes
    assert calls == [function, "linear"]
    module.unpatch(model)
    assert type(model.norm) is kind


def test_a_norm_without_a_weight_needs_a_model_that_says_its_type(module, calls):
    model = nn.ModuleDict({"norm": nn.LayerNorm(WIDTH, elementwise_affine=False)}).eval()
    assert "neither it nor the model has parameters" in module.patch(model).norms_left["norm"]


@pytest.mark.parametrize("case", LEFT)
def test_a_norm_is_left_for_a_reason(module, calls, case):
    make, reason = LEFT[case]
    model = nn.ModuleDict({"norm": make()}).eval()
    kind = type(model["norm"])
    report = module.patch(model)
    assert report.norms == ()
    assert reason in report.norms_left["norm"]
    assert reason in str(report)
    assert type(model["norm"]) is kind


class Layer(nn.Module):
    """A decoder layer as Llama's."""

    def __init__(self, norm=LlamaNorm):
        super().__init__()
        self.first, self.second = norm(), norm()
        self.attention, self.down = (nn.Linear(WIDTH, WIDTH, bias=False, dtype=BF16) for _ in range(2))

    def forward(self, x, scale: float | None = 1.0, *, shift: int = 0):
        residual = x
        x = self.first(x)
        x = self.attention(x) * scale + shift
        x = residual + x
        residual = x
        x = self.second(x)
        x = self.down(x)
        x = residual + x
        return x  # noqa: RET504 - as transformers has it


class Model(nn.Module):
    def __init__(self, layer=Layer, norm=LlamaNorm):
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(3))
        self.norm = norm()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def sums_of(model):
    """Give the norms of the sums of each layer; the first adds `shift`, and no norm follows it."""
    assert all(layer.aot_norms[0] is None for layer in model.layers)
    return [layer.aot_norms[1:] for layer in model.layers]


@pytest.mark.parametrize("norm", [LlamaNorm, GemmaNorm, lambda: nn.LayerNorm(WIDTH, dtype=BF16)])
def test_sums_are_computed_with_the_norm_that_follows(module, calls, norm):
    model, x = drawn(Model(lambda: Layer(norm), norm)), random_tensor(2, 5, WIDTH)
    expected, classes = model(x), [type(y) for y in model.modules()]
    apart = module.patch(model, sums=False)
    alone = model(x)
    assert calls.count("rms_norm") + calls.count("layer_norm") == len(apart.norms) == 7
    module.unpatch(model)
    calls.clear()
    report = module.patch(model)
    assert (
        report.fused["layers.0"] == "the sum in front of layers.0.second and layers.1.first in the kernel of that norm"
    )
    assert report.fused["layers.2"] == "the sum in front of layers.2.second and norm in the kernel of that norm"
    one, two, three = model.layers
    assert sums_of(model) == [(one.second, two.first), (two.second, three.first), (three.second, model.norm)]
    got = model(x)
    assert torch.equal(got, alone)
    assert calls.count("rms_norm") + calls.count("layer_norm") == 7
    torch.testing.assert_close(got.float(), expected.float(), rtol=0.03, atol=0.05)
    assert list(model.state_dict()) == list(Model(lambda: Layer(norm), norm).state_dict())
    assert module.patch(model).norms == ()
    module.unpatch(model)
    assert [type(y) for y in model.modules()] == classes
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize(
    ("norm", "num_norms"),
    [(LlamaNorm, 6), (lambda: nn.LayerNorm(WIDTH, dtype=BF16), 7)],  # alone torch's own RMS norm takes columns
)
def test_a_sum_takes_what_lies_in_columns_as_a_vision_towers_embedding_does(module, calls, norm, num_norms):
    model = drawn(Model(lambda: Layer(norm), norm))
    x = random_tensor(2, WIDTH, 16).transpose(1, 2)
    expected = model(x)
    module.patch(model)
    torch.testing.assert_close(model(x).float(), expected.float(), rtol=0.03, atol=0.05)
    assert calls.count("rms_norm") + calls.count("layer_norm") == num_norms


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_norm_of_a_sum_is_computed_once(module, calls, monkeypatch, every_package, mode):
    model, x = drawn(Model()), random_tensor(4, WIDTH)
    module.patch(model)
    given = []
    rms_norm = every_package._rows.rms_norm
    monkeypatch.setattr(
        every_package._rows,
        "rms_norm",
        lambda *x, **y: given.append(y.get("residual") is not None) or rms_norm(*x, **y),
    )
    with mode():
        model(x)
    assert given == [False] + [True] * 6
    assert all(y.aot_ready.last is None for y in model.modules() if hasattr(y, "aot_ready"))


class Written(Layer):
    """Writes its sum in place before the norm."""

    def forward(self, x):
        residual = x
        x = self.first(x)
        x = self.attention(x)
        x = residual + x
        x.add_(3)
        residual = x
        x = self.second(x)
        x = self.down(x)
        return residual + x


class Augmented(Layer):
    def forward(self, x):
        residual = x
        x = self.attention(self.first(x))
        x = residual + x
        x += 0.5 * residual
        return x + self.down(self.second(x))


class Called(Layer):
    """Gives its sum to something before the norm."""

    def twice(self, x):
        x.add_(3)

    def forward(self, x):
        residual = x
        x = self.first(x)
        x = self.attention(x)
        x = residual + x
        self.twice(x)
        residual = x
        x = self.second(x)
        x = self.down(x)
        x = residual + x
        self.twice(x)
        return x


class Branching(Layer):
    """Does not compute the norm that its source has next."""

    def forward(self, x, skip=True):
        residual = x
        x = self.first(x)
        x = self.attention(x)
        x = residual + x
        if skip:
            return x
        residual = x
        x = self.second(x)
        x = self.down(x)
        return residual + x


class Inner(Model):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x[..., :3] = 1
        return self.norm(x)


class Between(Model):
    def change(self, x):
        return x.add_(3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            self.change(x)
        self.change(x)
        return self.norm(x)


class Skipping(Model):
    def forward(self, x):
        for layer in self.layers[::2]:
            x = layer(x)
        return self.norm(x)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "make", [*(lambda x=x: Model(x) for x in (Written, Augmented, Called, Branching)), Inner, Between, Skipping]
)
def test_what_is_written_or_skipped_in_between_changes_no_result(module, calls, make, mode):
    model, x = drawn(make()), random_tensor(2, 5, WIDTH)
    expected = model(x.clone())
    module.patch(model)
    for _ in range(2):
        with mode():
            got = model(x.clone())
        torch.testing.assert_close(got.float(), expected.float(), rtol=0.03, atol=0.05)
    if mode is torch.no_grad:
        got = torch.compile(model, backend="aot_eager")(x.clone())
        torch.testing.assert_close(got.float(), expected.float(), rtol=0.03, atol=0.05)


def written_result(_module, _inputs, result):
    result[..., ::2] = 3


def written_input(_module, inputs):
    inputs[0][..., ::2] = 3


HOOKS = {
    "behind a layer": lambda model: model.layers[0].register_forward_hook(written_result),
    "in front of a layer": lambda model: model.layers[1].register_forward_pre_hook(written_input),
    "in front of a layer's norm": lambda model: model.layers[1].second.register_forward_pre_hook(written_input),
    "in front of the last norm": lambda model: model.norm.register_forward_pre_hook(written_input),
    "behind every module": lambda _: register_module_forward_hook(
        lambda module, _inputs, result: written_result(module, _inputs, result) if isinstance(module, Layer) else None
    ),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("place", HOOKS)
def test_a_hook_that_writes_a_sum_changes_the_norm_as_without_patch(module, calls, place, mode):
    model, x = drawn(Model()), random_tensor(2, 5, WIDTH)
    handle = HOOKS[place](model)
    try:
        with torch.no_grad():
            expected = model(x.clone())
        module.patch(model)
        with mode():
            got = model(x.clone())
        torch.testing.assert_close(got.float(), expected.float(), rtol=0.03, atol=0.05)
        if mode is torch.no_grad and place != "behind every module":
            got = torch.compile(model, backend="aot_eager")(x.clone())
            torch.testing.assert_close(got.float(), expected.float(), rtol=0.03, atol=0.05)
    finally:
        handle.remove()


def test_a_layer_whose_sums_are_left_is_told(module, calls):
    model = drawn(nn.ModuleDict({"layer": Called()}))
    report = module.patch(model)
    assert report.fused == {}
    reason = "sums in front of norms: its source calls something between each sum and the norm behind it"
    assert report.unfused == {"layer": reason}
    assert f"layer: not fused: {reason}" in str(report)
    assert type(model["layer"]) is Called


def test_a_compiler_gets_sums_with_norms_and_leaves_norms_alone_to_itself(module, calls):
    model, x = drawn(Model()), random_tensor(4, WIDTH)
    module.patch(model)
    expected = model(x)
    calls.clear()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected, rtol=0.03, atol=0.05)
    assert (calls.count("rms_norm"), calls.count("linear")) == (6, 6)


def test_a_compiler_keeps_sums_of_many_rows_to_itself(module, calls):
    model, x = drawn(Model()), random_tensor(65, WIDTH)
    module.patch(model)
    expected = model(x)
    assert calls.count("rms_norm") == 7
    calls.clear()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected, rtol=0.03, atol=0.05)
    assert (calls.count("rms_norm"), calls.count("linear")) == (0, 6)
    compiled(x[:64])
    assert calls.count("rms_norm") == 6


def test_an_export_takes_any_number_of_rows(module, calls):
    model, x = drawn(Model()), random_tensor(8, WIDTH)
    module.patch(model)
    rows = torch.export.Dim("rows", min=1, max=4096)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},)).module()
    for count in (1, 100):
        given = random_tensor(count, WIDTH)
        calls.clear()
        torch.testing.assert_close(program(given), model(given), rtol=0.03, atol=0.05)
        assert calls.count("rms_norm") == 6 + 7


def test_where_a_gradient_is_recorded_torch_computes(module, calls):
    model, x = drawn(Model()), random_tensor(4, WIDTH)
    stock = copy.deepcopy(model)
    module.patch(model)
    with torch.enable_grad():
        loss, expected = (y(x).float().square().mean() for y in (model, stock))
        loss.backward()
        expected.backward()
    assert "rms_norm" not in calls
    torch.testing.assert_close(model.norm.weight.grad, stock.norm.weight.grad, rtol=0.05, atol=0.01)


def test_other_types_autocasts_and_strides_are_torchs(module, calls):
    model = drawn(nn.ModuleDict({"norm": LlamaNorm()}))
    module.patch(model)
    norm = model["norm"]
    stock = LlamaNorm()
    stock.load_state_dict(norm.state_dict())
    wide, strided = torch.randn(3, WIDTH), random_tensor(3, 2, 2 * WIDTH)[..., :WIDTH]
    for x in (wide, strided.transpose(0, 1), random_tensor(WIDTH, WIDTH).t()):
        torch.testing.assert_close(norm(x), stock(x), rtol=0, atol=0)
    with torch.autocast("cpu", dtype=BF16):
        x = random_tensor(3, WIDTH)
        torch.testing.assert_close(norm(x), stock(x), rtol=0, atol=0)
    assert calls == []
    norm(strided[:, 0])
    assert calls == ["rms_norm"]
    calls.clear()
    norm.to(F16)(random_tensor(3, WIDTH, dtype=F16))  # of which there may be no kernel
    assert calls == []


def test_copies_and_pickles_compute_the_same(module, calls):
    model, x = drawn(Model()), random_tensor(4, WIDTH)
    module.patch(model)
    expected = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.layers[0].aot_norms[1:] == (other.layers[0].second, other.layers[1].first)
        calls.clear()
        assert torch.equal(other(x), expected)
        assert calls.count("rms_norm") == 7


def test_a_block_of_code_and_a_choice_of_modules(module, calls):
    model = drawn(Model())
    kinds = [type(x) for x in model.modules()]
    with module.patched(model, where=lambda name, _: "second" in name) as report:
        assert report.norms == tuple(f"layers.{i}.second" for i in range(3))
        assert sums_of(model) == [(layer.second, None) for layer in model.layers]
    assert [type(x) for x in model.modules()] == kinds
    with module.patched(model, norms=False) as report:
        assert (report.norms, report.fused) == ((), {})


def test_a_state_dict_is_loaded_into_swapped_norms(module, calls):
    model, other, x = drawn(Model()), drawn(Model()), random_tensor(4, WIDTH)
    module.patch(model)
    model.load_state_dict(other.state_dict())
    module.patch(other)
    assert torch.equal(model(x), other(x))


def test_arguments_of_a_layer_are_as_they_were(module, calls):
    model, x = drawn(Model()), random_tensor(4, WIDTH)
    layer = model.layers[0]
    expected = layer(x, 0.5, shift=2)
    module.patch(model)
    torch.testing.assert_close(layer(x, 0.5, shift=2).float(), expected.float(), rtol=0.03, atol=0.05)
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        layer(x, other=1)


def test_names_and_signatures_of_layers_are_as_they_were(module, calls):
    model = drawn(Model())
    parts = [x for x in model.modules() if not isinstance(x, nn.Linear)]
    before = [(str(type(x)), inspect.signature(x.forward)) for x in parts]
    module.patch(model)
    assert all(type(x) is not Layer and isinstance(x, Layer) for x in model.layers)
    assert [(str(type(x)), inspect.signature(x.forward)) for x in parts] == before


class Gathering(Layer):
    """Adds tuples, as models gather what their layers give."""

    def forward(self, x):
        found = ()
        found = found + (x,)  # noqa: RUF005 - as transformers has it
        return self.first(x), found


def test_a_sum_of_tuples_is_none_in_front_of_a_norm(module, calls):
    model, x = drawn(Gathering()), random_tensor(4, WIDTH)
    expected = model(x)
    assert module.patch(model).fused == {}
    assert type(model) is Gathering
    torch.testing.assert_close(model(x)[0].float(), expected[0].float(), rtol=0.03, atol=0.05)


class TwoNumbersNorm(LlamaNorm):
    """Holds a number that might be its eps, and would be for all but the smallest rows."""

    def __init__(self, eps):
        super().__init__()
        del self.variance_epsilon
        self.dropout, self.variance_epsilon = 0.0, eps


@pytest.mark.parametrize("eps", [1e-6, 1e-12, 1e-20])
def test_rows_of_zeros_and_of_tiny_numbers_tell_eps_from_other_numbers(module, calls, eps):
    model = drawn(nn.ModuleDict({"norm": TwoNumbersNorm(eps)}))
    x = random_tensor(4, WIDTH) * torch.tensor([[0.0], [1e-12], [1e-5], [1.0]], dtype=BF16)
    expected = model["norm"](x)
    assert module.patch(model).norms == ("norm",)
    torch.testing.assert_close(model["norm"](x), expected, rtol=0.02, atol=0)
    assert calls == ["rms_norm"]


class Private(Layer):
    """Has a name that a class changes as it is compiled."""

    def __init__(self):
        super().__init__()
        self.__factor = 2.0

    def forward(self, x):
        residual = x
        x = self.attention(self.first(x)) * self.__factor
        x = residual + x
        return self.second(x)


def test_a_layer_with_names_of_its_class_alone_is_computed(module, calls):
    model, x = drawn(Private()), random_tensor(4, WIDTH)
    expected = model(x)
    assert module.patch(model).fused == {}
    torch.testing.assert_close(model(x).float(), expected.float(), rtol=0.03, atol=0.05)


def test_a_class_whose_forward_was_replaced_computes_the_new_one(module, calls, monkeypatch):
    class Twin(Layer):
        pass

    model, x = drawn(Model(Twin)), random_tensor(4, WIDTH)
    assert "layers.0" in module.patch(model).fused
    module.unpatch(model)
    monkeypatch.setattr(Twin, "forward", Twice.forward)
    expected = model(x)
    report = module.patch(model)
    assert report.unfused["layers.0"].endswith("the forward of its class was replaced since one was patched")
    torch.testing.assert_close(model(x).float(), expected.float(), rtol=0.03, atol=0.05)


class Twice(Layer):
    def forward(self, x):
        residual = x
        x = self.attention(self.first(x)) * 2
        x = residual + x
        return self.second(x)


class Clipping(Layer):
    """Writes a sum where its source shows it by a name alone."""

    def forward(self, x):
        residual = x
        x = residual + x
        torch.nn.functional.relu(x, inplace=True)
        return self.second(x)


@pytest.mark.parametrize("mode", ["inference", "compiled"])
def test_an_activation_in_place_behind_a_sum_is_heeded(module, calls, mode):
    model, x = drawn(Clipping()), random_tensor(4, WIDTH)
    expected = model(x)
    module.patch(model)
    run = torch.compile(model, backend="aot_eager") if mode == "compiled" else model
    with torch.inference_mode(mode == "inference"):
        torch.testing.assert_close(run(x.clone()).float(), expected.float(), rtol=0.03, atol=0.05)
