"""What a graph of a model becomes, and that it computes the same, where torch stands in for the package."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.compiling import some
from tests.runtime.attending import (
    DIM,
    HIDDEN,
    WRITES,
    Attending,
    Rotary,
    check_attending,
    copy_at,
    linear,
    others_of,
    turn,
    turn_part,
)
from tests.runtime.torch_reference import PROMISED, random_tensor

BF16 = torch.bfloat16
WIDE = 48


@pytest.fixture(autouse=True)
def plain_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def backend(module, calls):
    return import_module(f"{module.__package__}._torch_backend")


GATES = random_tensor(2, WIDE, HIDDEN)


class LlamaNorm(nn.Module):
    """The norm of transformers' Llama, whose weight multiplies what is rounded already."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(random_tensor(HIDDEN))

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class GemmaNorm(LlamaNorm):
    """The norm of transformers' Gemma, whose weight is what is added to 1."""

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class Gate(nn.Module):
    def __init__(self, activation=functional.silu):
        super().__init__()
        self.gate, self.up, self.activation = linear(WIDE, HIDDEN), linear(WIDE, HIDDEN), activation
        for place, layer in enumerate((self.up, self.gate)):  # in this order, as torch's allocator often has them
            layer.weight = nn.Parameter(GATES[place])

    def forward(self, x):
        return self.activation(self.gate(x)) * self.up(x)


class JoinedGate(nn.Module):
    """The gate of transformers' Phi-3, whose two weights are one."""

    def __init__(self):
        super().__init__()
        self.both = linear(2 * WIDE, HIDDEN)

    def forward(self, x):
        gate, up = self.both(x).chunk(2, dim=-1)
        return up * functional.silu(gate)


class Then(nn.Module):
    """A Linear and what comes behind it."""

    def __init__(self, step, *, bias=True):
        super().__init__()
        self.linear, self.step = linear(HIDDEN, HIDDEN, bias=bias), step

    def forward(self, x):
        return self.step(self.linear(x), x)


class SumNorm(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.linear, self.norm = linear(HIDDEN, HIDDEN), norm

    def forward(self, x):
        total = x + self.linear(x)
        return self.norm(total), total


class Groups(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(random_tensor(3, WIDE, HIDDEN))
        self.register_buffer("offsets", torch.tensor([2, 5, 10], dtype=torch.int32))

    def forward(self, x):
        return torch._grouped_mm(x.view(-1, HIDDEN), self.weight.transpose(-2, -1), self.offsets)


def gelu_tanh(x):
    return functional.gelu(x, approximate="tanh")


CASES = {
    "product": (Then(lambda y, _: y * 2, bias=False), ["linear"], "1 x product"),
    "bias": (Then(lambda y, _: y * 2), ["linear"], "1 x product"),
    "silu": (Then(lambda y, _: functional.silu(y)), ["linear"], "1 x activation"),
    "relu": (Then(lambda y, _: torch.relu(y)), ["linear"], "1 x activation"),
    "gelu": (Then(lambda y, _: functional.gelu(y)), ["linear"], "1 x activation"),
    "gelu_tanh": (Then(lambda y, _: gelu_tanh(y)), ["linear"], "1 x activation"),
    "residual": (Then(lambda y, x: x + y), ["linear"], "1 x sum"),
    "swiglu": (Gate(), ["gated_linear"], "1 x gate"),
    "geglu": (Gate(gelu_tanh), ["gated_linear"], "1 x gate"),
    "joined swiglu": (JoinedGate(), ["gated_linear"], "1 x gate"),
    "llama norm": (LlamaNorm(), ["rms_norm"], "1 x norm"),
    "gemma norm": (GemmaNorm(), ["rms_norm"], "1 x norm"),
    "torch rms norm": (nn.RMSNorm(HIDDEN, dtype=BF16), ["rms_norm"], "1 x norm"),
    "rms norm without weight": (nn.RMSNorm(HIDDEN, elementwise_affine=False), ["rms_norm"], "1 x norm"),
    "layer norm": (nn.LayerNorm(HIDDEN, dtype=BF16), ["layer_norm"], "1 x norm"),
    "sum and llama norm": (SumNorm(LlamaNorm()), ["linear", "rms_norm"], "1 x product, 1 x sum and norm"),
    "sum and layer norm": (SumNorm(nn.LayerNorm(HIDDEN, dtype=BF16)), ["linear", "layer_norm"], None),
}
"""By what is joined: a module, the package's functions that it becomes, and the report of the graph."""


def reports_of(caplog):
    return [record.args[0] for record in caplog.records if record.msg == "graph: %s"]


def check(got, expected):
    got, expected = ((x,) if isinstance(x, torch.Tensor) else tuple(x) for x in (got, expected))
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", CASES)
def test_a_graph_of_the_backend_is_joined(backend, calls, caplog, name):
    model, expected_calls, report = CASES[name]
    x = random_tensor(2, 5, HIDDEN)
    expected = model(x)
    calls.clear()
    with caplog.at_level("INFO"):
        got = torch.compile(model, backend=backend.backend, fullgraph=True)(x)
    assert calls == expected_calls
    check(got, expected)
    if report is not None:
        assert str(reports_of(caplog)[0]) == report


def as_inductor(module):
    """Return a backend that runs what Inductor's pass is given, and not what Inductor would make of the rest."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor.decomposition import select_decomp_table

    rewrite = import_module(f"{module.__package__}._graph_pass").rewrite

    def compiler(graph_module, _):
        rewrite(graph_module.graph)
        graph_module.recompile()
        return make_boxed_func(graph_module.forward)

    options = {"fw_compiler": compiler, "inference_compiler": compiler, "decompositions": select_decomp_table()}
    return aot_autograd(**options, keep_inference_input_mutations=True)


@pytest.mark.parametrize("name", CASES)
def test_a_graph_as_inductor_takes_it_apart_is_joined(module, calls, name):
    model, expected_calls, _ = CASES[name]
    x = random_tensor(2, 5, HIDDEN)
    expected = model(x)
    calls.clear()
    check(torch.compile(model, backend=as_inductor(module), fullgraph=True)(x), expected)
    assert calls == expected_calls


@pytest.mark.parametrize("name", some(CASES))
def test_an_exported_program_is_joined(module, calls, name):
    model, expected_calls, _ = CASES[name]
    x = random_tensor(2, 5, HIDDEN)
    expected = model(x)
    program = module.fuse(torch.export.export(model, (x,)))
    calls.clear()
    check(program.module()(x), expected)
    assert calls == expected_calls


def test_groups_of_a_mixture_of_experts_are_joined(module, calls, monkeypatch):
    model, x = Groups(), random_tensor(2, 5, HIDDEN)
    tuned = SimpleNamespace(tier="tuned")  # this package has no kernels of groups
    monkeypatch.setattr(import_module(f"{module.__package__}._graph_products"), "plan", lambda *_, **__: tuned)
    program = module.fuse(torch.export.export(model, (x,)))
    calls.clear()
    got = program.module()(x)
    assert calls == ["grouped_linear"]
    rows, ends = x.view(-1, HIDDEN).float(), [0, 2, 5, 10]
    parts = [rows[a:b] @ w.float().t() for a, b, w in zip(ends[:-1], ends[1:], model.weight, strict=True)]
    torch.testing.assert_close(got.float(), torch.cat(parts), rtol=0.02, atol=0.02)


LEFT = {
    "a result that is used twice": Then(lambda y, _: functional.silu(y) + y, bias=False),
    "a residual that is broadcast": Then(lambda y, x: y + x[:, :1], bias=False),
    "an activation in another type": Then(lambda y, _: functional.silu(y.float()), bias=False),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_does_not_join_stays_beside_its_product(backend, calls, caplog, name):
    model, x = LEFT[name], random_tensor(2, 5, HIDDEN)
    expected = model(x)
    calls.clear()
    with caplog.at_level("INFO"):
        got = torch.compile(model, backend=backend.backend, fullgraph=True)(x)
    assert calls == ["linear"]
    assert str(reports_of(caplog)[0]) == "1 x product"
    check(got, expected)


def test_a_patched_model_is_joined_too(module, backend, calls):
    model, x = Gate(), random_tensor(5, HIDDEN)
    expected = model(x)
    assert len(module.patch(model).swapped) == 2
    calls.clear()
    check(torch.compile(model, backend=backend.backend, fullgraph=True)(x), expected)
    assert calls == ["gated_linear"]


def test_a_norm_whose_middle_is_read_too_is_left(backend, calls):
    class Scaled(LlamaNorm):
        def forward(self, x):
            scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * (x.float() * scale).to(x.dtype), scale

    model, x = Scaled(), random_tensor(5, HIDDEN)
    check(torch.compile(model, backend=backend.backend, fullgraph=True)(x), model(x))
    assert not calls


def test_many_rows_are_left_to_torch_but_for_gates(backend, calls):
    product, gate = Then(lambda y, x: x + y), Gate()
    for rows, expected in ((512, ["linear", "gated_linear"]), (513, ["gated_linear"])):
        x = random_tensor(rows, HIDDEN)
        calls.clear()
        for model in (product, gate):
            torch._dynamo.reset()
            check(torch.compile(model, backend=backend.backend, dynamic=False)(x), model(x))
        assert calls == expected


@pytest.mark.parametrize("activation", [functional.silu, gelu_tanh])
def test_a_gate_of_one_weight_of_many_rows_is_an_operation_on_rows(backend, calls, activation):
    """torch's one product is faster than its two: see `_graph_choice`."""
    both = linear(2 * WIDE, HIDDEN)

    def model(x):
        gate, up = both(x).chunk(2, dim=-1)
        return activation(gate) * up

    name = {functional.silu: "silu_mul"}.get(activation, "gelu_tanh_mul")
    for rows, expected in ((128, ["gated_linear"]), (129, ["linear", name]), (513, [name])):
        x = random_tensor(rows, HIDDEN)
        calls.clear()
        torch._dynamo.reset()
        check(torch.compile(model, backend=backend.backend, dynamic=False)(x), model(x))
        assert calls == expected


@pytest.mark.parametrize(
    ("rows", "gain", "expected"),
    [
        (5, None, ["linear"]),
        (5, 1.0, ["linear"]),
        (5, 0.99, []),
        (513, None, []),
        (513, 1.01, []),
        (513, 1.03, ["linear"]),
    ],
)
def test_a_product_is_left_to_torch_where_that_was_measured_to_be_faster(
    backend, calls, monkeypatch, rows, gain, expected
):
    choice = import_module(f"{backend.__package__}._graph_choice")
    monkeypatch.setattr(choice, "measured_gain", lambda *_, **__: gain)
    one, x = linear(WIDE, HIDDEN), random_tensor(rows, HIDDEN)
    calls.clear()
    torch._dynamo.reset()
    check(torch.compile(one, backend=backend.backend, dynamic=False)(x), one(x))
    assert calls == expected


@pytest.mark.parametrize("rows", [5, 513])
@pytest.mark.parametrize(
    "take",
    [
        lambda y: y.chunk(2, -1)[::-1],
        lambda y: (y[..., :WIDE], y[..., 1 : WIDE + 1]),
        lambda y: (y[..., ::2], y[..., 1::2]),
        lambda y: (y[..., ::2], y[..., WIDE:]),
    ],
    ids=["exchanged", "one along", "interleaved", "every second"],
)
def test_other_parts_than_the_first_and_the_second_half_are_no_gate(backend, calls, take, rows):
    both, x = linear(2 * WIDE, HIDDEN), random_tensor(rows, HIDDEN)

    def model(x):
        gate, up = take(both(x))
        return functional.silu(gate) * up

    torch._dynamo.reset()
    check(torch.compile(model, backend=backend.backend, dynamic=False)(x), model(x))
    assert calls == ["linear"] * (rows == 5)


def test_layer_norms_of_many_rows_are_inductors_but_the_backends_own_where_nothing_compiles(module, backend, calls):
    norm = nn.LayerNorm(HIDDEN, dtype=BF16)
    for rows, expected in ((512, ["layer_norm"]), (513, [])):
        x = random_tensor(rows, HIDDEN)
        for run, found in ((as_inductor(module), expected), (backend.backend, ["layer_norm"])):
            torch._dynamo.reset()
            calls.clear()
            check(torch.compile(norm, backend=run, dynamic=False)(x), norm(x))
            assert calls == found


def test_rows_that_are_left_open_are_served(backend, calls):
    model = Gate()
    compiled = torch.compile(model, backend=backend.backend, dynamic=True)
    for rows in (3, 7, 11):
        x = random_tensor(2, rows, HIDDEN)
        check(compiled(x), model(x))
    assert calls == ["gated_linear"] * 3


def test_two_weights_are_one_product_in_either_order(module, calls):
    stack, x = random_tensor(2, WIDE, HIDDEN), random_tensor(5, HIDDEN)
    operator = getattr(torch.ops, module.__package__).gated_linear.parts
    for gate, up in (stack.unbind(), stack.unbind()[::-1]):
        calls.clear()
        got = operator(x, gate, up)
        assert calls == ["gated_linear"]
        check(got, functional.silu(functional.linear(x, gate)) * functional.linear(x, up))


def test_weights_that_a_kernel_cannot_step_between_are_two_products(module, calls):
    gates = import_module(f"{module.__package__}._torch_gates")
    both, x = random_tensor(WIDE, 2 * HIDDEN + 8), random_tensor(5, HIDDEN)
    gate, up = both[:, :HIDDEN], both[:, HIDDEN + 1 : 2 * HIDDEN + 1]  # 16 bytes, and 2 more
    assert not gates.are_parts(gate, up)
    assert not gates.are_parts(gate, gate)
    got = getattr(torch.ops, module.__package__).gated_linear.parts(x, gate, up)
    assert calls == ["linear", "linear", "silu_mul"]
    check(got, functional.silu(functional.linear(x, gate)) * functional.linear(x, up))


def test_a_norm_gives_8_bits_where_only_a_quantisation_reads_it(module, calls):
    quantize = getattr(torch.ops, module.__package__).quantize.default

    class Quantised(LlamaNorm):
        def forward(self, x):
            return tuple(quantize(super().forward(x), dtype=torch.float8_e4m3fn))

    model, x = Quantised(), random_tensor(4, HIDDEN)
    values, scale = model(x)
    calls.clear()
    got, got_scale = module.fuse(torch.export.export(model, (x,))).module()(x)
    assert calls == ["rms_norm"]
    torch.testing.assert_close(got_scale, scale, rtol=0.01, atol=0)
    torch.testing.assert_close(got.float() * got_scale, values.float() * scale, rtol=0.13, atol=0.02)


class Cached(nn.Module):
    """A layer that writes a cache, as those of transformers."""

    def __init__(self):
        super().__init__()
        self.linear = linear(HIDDEN, HIDDEN)
        self.register_buffer("cache", torch.zeros(3, 8, HIDDEN, dtype=BF16))

    def forward(self, x, place):
        self.cache.index_copy_(1, place, self.linear(x))
        return self.cache.sum(1)


def test_a_cache_is_written_where_it_lies(backend, calls):
    model, other = Cached(), Cached()
    other.load_state_dict(model.state_dict())
    seen = []

    def watch(graph_module, inputs, **options):
        compiled = backend.compiled

        def look(inner, given, **kept):
            found = compiled(inner, given, **kept)
            seen.extend(str(node.target) for node in inner.graph.nodes)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backend, "compiled", look)
            return backend.backend(graph_module, inputs, **options)

    compiled = torch.compile(model, backend=watch, fullgraph=True)
    for step in range(3):
        x, place = random_tensor(3, 1, HIDDEN), torch.tensor([step])
        check(compiled(x, place), other(x, place))
        check(model.cache, other.cache)
    assert "aten.index_copy_.default" in seen
    assert "aten.copy_.default" not in seen


class Masked(nn.Module):
    """Layers that each make the mask of their attention, of which one result is given too."""

    def __init__(self, gives=lambda total, mask: total):
        super().__init__()
        self.gives = gives

    def forward(self, x):
        total = x.float()
        for _ in range(3):
            place = torch.arange(x.shape[0])
            seen = place[:, None] >= place[None, :]
            mask = torch.where(seen, torch.scalar_tensor(0.0), torch.scalar_tensor(-1e9))
            total = (total @ total.T + mask).softmax(-1) @ total
        return self.gives(total, mask)


def operators_of(backend, model, *inputs):
    """Compile a model; return its result, and the operators and names that its graph has in the end."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        compiled = backend.compiled

        def look(inner, given, **kept):
            found = compiled(inner, given, **kept)
            seen.extend(str(node.target) for node in inner.graph.nodes if node.op in ("call_function", "get_attr"))
            return found

        patch.setattr(backend, "compiled", look)
        torch._dynamo.reset()
        run = torch.compile(model, backend=backend.backend, fullgraph=True)
        results = [run(*inputs), run(*inputs)]
    return results, seen


def test_what_depends_on_no_input_is_computed_when_the_graph_is_compiled(backend):
    model, x = Masked(), random_tensor(6, 16)
    results, seen = operators_of(backend, model, x)
    for result in results:
        assert torch.equal(result, model(x))
    assert seen.count("_computed_once_0") == 1
    assert "_computed_once_1" not in seen
    assert not [x for x in seen if "arange" in x or "where" in x or "scalar_tensor" in x or ".ge" in x]


@pytest.mark.parametrize("gives", [lambda _, mask: mask, lambda total, mask: (total, mask.T[1:])])
def test_a_result_is_computed_for_each_call(backend, gives):
    """Its caller may write it."""
    model, x = Masked(gives), random_tensor(6, 16)
    results, _ = operators_of(backend, model, x)
    first, second = (result[1] if isinstance(result, tuple) else result for result in results)
    before = second.clone()
    first.fill_(7)
    assert torch.equal(second, before)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.rand(4) + x,
        lambda x: torch.empty(4).fill_(3.0) + x,
        lambda x: torch.zeros(2**22 + 1)[:4] + x,
    ],
    ids=["random", "written later", "large"],
)
def test_what_differs_from_call_to_call_or_is_large_is_not_kept(backend, make):
    _, seen = operators_of(backend, lambda x: make(x).sum(), torch.ones(4))
    assert "_computed_once_0" not in seen


class Tower(nn.Module):
    """A vision tower's beginning and two of its blocks."""

    def __init__(self, *, gives_tokens=False):
        super().__init__()
        self.patches = nn.Conv2d(3, HIDDEN, 4, 4, dtype=BF16)
        self.positions = nn.Parameter(random_tensor(1, 16, HIDDEN))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(HIDDEN, dtype=BF16), linear(HIDDEN, HIDDEN)) for _ in "ab"
        )
        self.norm, self.gives_tokens = nn.LayerNorm(HIDDEN, dtype=BF16), gives_tokens

    def forward(self, pixels):
        tokens = self.patches(pixels).flatten(2).transpose(1, 2) + self.positions
        total = tokens
        for block in self.blocks:
            total = total + block(total)
        return (self.norm(total), tokens) if self.gives_tokens else self.norm(total)


def test_the_tokens_of_a_vision_tower_are_brought_in_order_once(backend, calls):
    model, pixels = Tower(), random_tensor(2, 3, 16, 16)
    assert not (model.patches(pixels).flatten(2).transpose(1, 2) + model.positions).is_contiguous()
    results, seen = operators_of(backend, model, pixels)
    check(results[0], model(pixels))
    assert seen.count("aten.clone.default") == 1
    assert calls == [*["layer_norm", "linear"] * 2, "layer_norm"] * 2


def test_sums_of_heads_whose_rows_lie_in_a_row_are_left(backend, calls):
    """Those of a rotary embedding are permuted, and kernels of attention read them so."""
    model, x = Rotary(doubles=False), random_tensor(3, 5, HIDDEN)
    assert not model(x).is_contiguous()
    results, seen = operators_of(backend, model, x)
    check(results[0], model(x))
    assert "aten.clone.default" not in seen


class Views(Tower):
    """A tower whose tokens are read by a view that the copy would not allow."""

    def forward(self, pixels):
        tokens = self.patches(pixels).flatten(2).transpose(1, 2) + self.positions
        return self.norm(tokens), torch.ops.aten.view(tokens.transpose(1, 2), [2, HIDDEN * 16]) + 1


def test_a_graph_that_needs_the_strides_is_left(backend, calls):
    model, pixels = Views(), random_tensor(2, 3, 16, 16)
    results, seen = operators_of(backend, model, pixels)
    check(results[0], model(pixels))
    assert "aten.clone.default" not in seen


def test_what_a_graph_gives_keeps_its_strides(backend, calls):
    model, pixels = Tower(gives_tokens=True), random_tensor(2, 3, 16, 16)
    results, seen = operators_of(backend, model, pixels)
    check(results[0], model(pixels))
    assert "aten.clone.default" not in seen


@pytest.mark.parametrize(("doubles", "expected_calls"), [(True, ["rotary"]), (False, [])])
def test_a_rotary_embedding_is_one_where_both_halves_have_one_angle(backend, calls, doubles, expected_calls):
    model, x = Rotary(doubles=doubles), random_tensor(3, 5, HIDDEN)
    expected = model(x)
    check(torch.compile(model, backend=backend.backend, fullgraph=True)(x), expected)
    assert calls == expected_calls


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("compiler", ["aot_gemm", "inductor"])
def test_keys_and_values_go_to_their_cache_in_the_launch_that_turns_queries(
    module, backend, calls, write, tokens, compiler
):
    model, x = Attending(write), random_tensor(4, tokens, HIDDEN)
    compile_graph = as_inductor(module) if compiler == "inductor" else backend.backend
    check_attending(model, x, torch.compile(model, backend=compile_graph, fullgraph=True))
    assert calls.count("rotary") == len(model.queries)


@pytest.mark.parametrize("compiler", ["aot_gemm", "inductor"])
@pytest.mark.parametrize("dim", [DIM, DIM // 2])
def test_the_first_elements_of_heads_may_be_turned_alone(module, backend, calls, compiler, dim):
    model, x = Attending(copy_at, turning=turn_part, dim=dim), random_tensor(4, 1, HIDDEN)
    compile_graph = as_inductor(module) if compiler == "inductor" else backend.backend
    check_attending(model, x, torch.compile(model, backend=compile_graph, fullgraph=True))
    assert calls.count("rotary") == len(model.queries)
    calls.clear()
    check_attending(model, x, torch.compile(model, backend=compile_graph, fullgraph=True))
    assert calls.count("rotary") == len(model.queries)


def turn_another_part(heads, cos, sin):
    dim = cos.shape[-1]
    return torch.cat([turn(heads[..., dim:], cos, sin), heads[..., :dim]], dim=-1)


def turn_with_another(heads, cos, sin):
    dim = cos.shape[-1]
    return torch.cat([turn(heads[..., :dim], cos, sin), heads[..., :dim]], dim=-1)


def turn_the_rest(heads, cos, sin):
    dim = cos.shape[-1]
    return torch.cat([turn(heads[..., dim:], cos, sin), heads[..., dim:]], dim=-1)


@pytest.mark.parametrize("turning", [turn_another_part, turn_with_another, turn_the_rest])
def test_other_parts_of_heads_are_left(backend, calls, turning):
    model, x = Attending(copy_at, turning=turning, dim=DIM // 2), random_tensor(4, 1, HIDDEN)
    check_attending(model, x, torch.compile(model, backend=backend.backend, fullgraph=True))
    _, seen = operators_of(backend, model, x, *others_of(model, x))
    assert not [name for name in seen if "rotary_cache" in name]


def test_caches_are_written_where_they_lie(backend, calls):
    model, x = Attending(copy_at), random_tensor(4, 1, HIDDEN)
    _, seen = operators_of(backend, model, x, *others_of(model, x))
    assert sum(name.endswith("rotary_cache.default") for name in seen) == len(model.queries)
    assert not {"aten.copy_.default", "aten.index_copy_.default", "aten.clone.default"} & {*seen}


KEPT = {
    "keys are read before": {"reads": lambda keys, _: keys.mean()},
    "turned keys are read": {"reads": lambda _, turned: turned.mean()},
    "heads in turn": {"lies": lambda cache: torch.cat([cache, cache], 1)[:, :1]},
    "keys by heads": {"heads_lie": lambda x: [x[0], by_heads(x[1]), x[2]]},
    "values by heads": {"heads_lie": lambda x: [*x[:2], by_heads(x[2])]},
}


def by_heads(heads):
    """Let heads (batch, heads, tokens, dim) lie so: the tokens of a batch do not join with two of them."""
    return torch.cat([heads, heads], 1).contiguous()[:, :1]


@pytest.mark.parametrize("name", KEPT)
def test_a_cache_that_more_is_done_with_is_torchs(backend, calls, name):
    model, x = Attending(copy_at, **KEPT[name]), random_tensor(4, 3, HIDDEN)
    check_attending(model, x, torch.compile(model, backend=backend.backend, fullgraph=True))
    torch.compiler.reset()
    _, seen = operators_of(backend, model, x, *others_of(model, x))
    assert not [name for name in seen if "rotary_cache" in name]


def test_other_operators_that_write_what_they_are_given_are_left(backend, calls):
    library = torch.library.Library("aot_test_graph", "FRAGMENT")
    library.define("bump(Tensor(a!) x, Tensor y) -> Tensor")
    library.impl("bump", lambda x, y: x.add_(y) * 2, "CompositeExplicitAutograd")
    torch.library.register_fake("aot_test_graph::bump", lambda x, y: torch.empty_like(x), lib=library)

    class Bumped(Then):
        def forward(self, x):
            total = x + 0
            return self.linear(torch.ops.aot_test_graph.bump(total, x)) + total

    model, x = Bumped(None), random_tensor(3, HIDDEN)
    expected = model(x)
    with torch._inductor.config.patch(enable_auto_functionalized_v2=False):
        check(torch.compile(model, backend=backend.backend, fullgraph=True)(x), expected)


class Chain(nn.Module):
    """A norm and products behind it; `between` may do more with the weight of the second."""

    def __init__(self, between=lambda x, weight: x, *, has_norm=True):
        super().__init__()
        self.norm = LlamaNorm() if has_norm else nn.Identity()
        self.first, self.second = linear(HIDDEN, HIDDEN), linear(WIDE, HIDDEN)
        self.between = between

    def forward(self, x):
        x = self.first(self.norm(x))
        return self.second(self.between(x, self.second.weight))


def write_through(x, weight):
    weight.mul_(1.0)
    return x


def write_behind(x, weight):
    """Multiply by a weight that is written behind that, so that the next product is of another."""
    y = functional.linear(x, weight)
    weight.mul_(1.0)
    return x + y.sum() * 0


def promised_in(model, x, graph_backend):
    """Give for each product of a compiled call whether its weight was said to be constant."""
    expected = model(x)
    compiled = torch.compile(model, backend=graph_backend, fullgraph=True)
    compiled(x)
    PROMISED.clear()
    check(compiled(x), expected)
    return list(PROMISED)


@pytest.mark.parametrize("compiler", ["aot_gemm", "inductor"])
@pytest.mark.parametrize(
    ("model", "promised"),
    [
        (Chain(), [True, True]),
        (Chain(has_norm=False), [False, True]),
        (Chain(write_through), [True, False]),
        (Chain(write_behind), [True, False, False]),
        (Chain(lambda x, weight: x + weight.sum() * 0), [True, True]),
    ],
    ids=["norm", "no norm", "written in front", "written behind", "read"],
)
def test_a_weight_that_a_graph_does_not_write_is_constant_behind_its_first_launch(
    module, backend, calls, compiler, model, promised
):
    graph_backend = as_inductor(module) if compiler == "inductor" else backend.backend
    assert promised_in(model, random_tensor(3, HIDDEN), graph_backend) == promised


def test_the_gate_and_several_weights_behind_a_launch_are_constant(backend, calls):
    model = nn.Sequential(LlamaNorm(), Gate())
    assert promised_in(model, random_tensor(3, HIDDEN), backend.backend) == [True]
    assert calls[-1] == "gated_linear"


def test_a_launch_of_nothing_is_no_front(module, backend, calls):
    """What depends on a result without elements, or on its shape alone, may begin before that."""
    order = import_module(f"{module.__package__}._graph_order")

    def marked(between):
        graph = torch.fx.Graph()
        x, weight = (graph.placeholder(name) for name in ("x", "weight"))
        x.meta["val"], weight.meta["val"] = random_tensor(3, HIDDEN), random_tensor(HIDDEN, HIDDEN)
        operator = order.OPERATORS.linear.default
        first = graph.call_function(operator, (x, weight))
        first.meta["val"] = random_tensor(3, HIDDEN)
        seen = between(graph, first)
        graph.output(graph.call_function(operator, (seen, weight)))
        return order.mark_constant_weights(graph)

    def then(target, shape, *arguments, of=None):
        def between(graph, first):
            if of is not None:
                first.meta["val"] = random_tensor(*of)
            node = graph.call_function(target, (first, *arguments))
            node.meta["val"] = random_tensor(*shape)
            return node

        return between

    aten = torch.ops.aten
    assert marked(then(aten.neg.default, (3, HIDDEN))) == 1
    assert marked(then(aten.sum.dim_IntList, (1, HIDDEN), [0], True, of=(0, HIDDEN))) == 0
    assert marked(then(aten.zeros_like.default, (3, HIDDEN))) == 0
    assert marked(then(aten.new_zeros.default, (3, HIDDEN), [3, HIDDEN])) == 0


def test_a_mark_of_another_graph_does_not_stay(module, calls):
    order = import_module(f"{module.__package__}._graph_order")
    graph = torch.fx.Graph()
    x, weight = (graph.placeholder(name) for name in ("x", "weight"))
    node = graph.call_function(order.OPERATORS.linear.default, (x, weight), {"constant_weight": True})
    graph.output(node)
    assert order.mark_constant_weights(graph) == 0
    assert "constant_weight" not in node.kwargs


def test_gradients_are_torchs(backend, calls):
    model, x = Gate(), random_tensor(5, HIDDEN, grad=True)
    with torch.enable_grad():
        torch.compile(model, backend=backend.backend)(x).sum().backward()
        got, x.grad = x.grad, None
        model(x).sum().backward()
    assert not calls
    torch.testing.assert_close(got, x.grad, rtol=0.02, atol=0.02)


@pytest.fixture
def replayed(module, monkeypatch):
    """Give a function under CUDA graphs, whose capture is a note of the call, what ran, and what was captured."""
    replay = import_module(f"{module.__package__}._graph_replay")
    ran, captured = [], []

    class Graph:
        def replay(self):
            pass

    def capture(self, arguments):
        captured.append(arguments)
        return replay._Graph(Graph(), (None,) * len(arguments), tuple(self._function(*arguments)))

    def function(weight, x):
        ran.append(weight)
        return [x * 2]

    monkeypatch.setattr(replay.Replayed, "_capture", capture)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return replay.Replayed(function, frozenset({0})), ran, captured


def test_a_graph_is_captured_with_the_second_call_and_for_each_address_of_a_weight(replayed):
    function, ran, captured = replayed
    x, weights = torch.ones(3), [torch.ones(3), torch.ones(3)]
    for weight in (weights[0], weights[0], weights[0], weights[1], weights[1], weights[0]):
        (result,) = function(weight, x)
        assert result.tolist() == [2, 2, 2]
    assert len(captured) == 2
    assert [y.data_ptr() for y in ran] == [w.data_ptr() for w in (weights[0], weights[0], weights[1], weights[1])]
    function(weights[0], torch.ones(4))
    assert len(captured) == 2


def test_weights_buffers_and_caches_are_read_where_they_lie_by_a_graph(backend, calls, monkeypatch):
    made = []
    monkeypatch.setattr(backend, "_are_on_gpu", lambda _: True)
    monkeypatch.setattr(backend, "Replayed", lambda function, kept: made.append(kept) or function)
    model, x, place = Cached(), random_tensor(3, 1, HIDDEN), torch.tensor([0])
    seen = []
    monkeypatch.setattr(backend, "rewrite", lambda graph, **_: seen.extend(graph.find_nodes(op="placeholder")))
    torch.compile(model, backend=backend.backend, mode="reduce-overhead", fullgraph=True)(x, place)
    (kept,) = made
    shapes = [tuple(seen[index].meta["val"].shape) for index in sorted(kept)]
    assert sorted(shapes) == [(3, 8, HIDDEN), (HIDDEN, HIDDEN)]
    assert len(seen) == 4


def test_caches_that_are_joined_are_written_where_they_lie_by_a_graph(backend, calls, monkeypatch):
    made, seen, rewrite = [], [], backend.rewrite
    monkeypatch.setattr(backend, "_are_on_gpu", lambda _: True)
    monkeypatch.setattr(backend, "Replayed", lambda function, kept: made.append(kept) or function)

    def look(graph, **options):
        seen.extend(graph.find_nodes(op="placeholder"))
        return rewrite(graph, **options)

    monkeypatch.setattr(backend, "rewrite", look)
    model, x = Attending(copy_at), random_tensor(4, 1, HIDDEN)
    check_attending(model, x, torch.compile(model, backend=backend.backend, mode="reduce-overhead", fullgraph=True))
    assert calls.count("rotary") == len(model.queries)
    caches = [place for place, node in enumerate(seen) if node.meta["val"].ndim == 4]
    assert len(caches) == 2 * len(model.queries)
    assert set(caches) <= made[0]


def test_modes_that_there_are_not_are_refused(module, backend):
    with pytest.raises(import_module(f"{module.__package__}.errors").UnsupportedError, match="reduce-overhead"):
        backend.backend(None, [], mode="max-autotune")
