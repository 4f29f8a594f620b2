"""`linear_many` for torch, with no GPU: values, gradients, compilers, and the launches that a graph is joined to."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

from tests.runtime.torch_reference import random_tensor

BF16 = torch.bfloat16
K, SIZES = 32, (24, 8, 16)


def drawn(dtype=BF16):
    weights = [random_tensor(n, K, dtype=dtype) for n in SIZES]
    return random_tensor(2, 3, K, dtype=dtype), weights, [random_tensor(n, dtype=dtype) for n in SIZES]


def expected(x, weights, biases=None):
    biases = biases or [None] * len(weights)
    return [nn.functional.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]


def close(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("has_bias", [False, True])
@torch.no_grad()
def test_one_call_gives_a_tensor_for_each_weight(module, calls, count, has_bias):
    x, weights, biases = drawn()
    given = biases[:count] if has_bias else None
    found = module.linear_many(x, weights[:count], given)
    close(found, expected(x, weights[:count], given))
    assert calls == ["linear_many"]
    assert all(y.is_contiguous() and y.storage_offset() == 0 for y in found)
    assert len({y.untyped_storage().data_ptr() for y in found}) == count


@torch.no_grad()
def test_some_biases_may_be_none(module, calls):
    x, weights, biases = drawn()
    biases[1] = None
    close(module.linear_many(x, weights, biases), expected(x, weights, biases))


@pytest.fixture
def of_wgmma(module, monkeypatch):
    """Have the table name a kernel of wgmma for several weights, whatever it has."""
    many = import_module(f"{module.__package__}._torch_many")
    own = many.plan
    monkeypatch.setattr(many, "plan", lambda *x, **y: replace(own(*x, **y), kernel="bf16_kk_many_sm90_one_tile_64x64"))
    many.takes_one_launch.cache_clear()
    yield many
    many.takes_one_launch.cache_clear()


@torch.no_grad()
def test_many_rows_are_products_of_their_own(module, calls, of_wgmma):
    _, weights, biases = drawn()
    most = of_wgmma.MOST_ROWS
    for rows, called in ((most, ["linear_many"]), (most + 1, ["linear"] * 3)):
        calls.clear()
        x = random_tensor(rows, K)
        close(module.linear_many(x, weights, biases), expected(x, weights, biases))
        assert calls == called


@pytest.mark.parametrize(
    ("rows", "sizes", "k", "is_one"),
    [
        (16, (24, 7), K, True),
        (17, (24, 8), K, True),
        (17, (24, 7), K, False),
        (17, (20, 12), K, False),
        (4, (24, 8), 12, False),
    ],
)
def test_what_wgmma_does_not_take_has_one_launch_of_few_rows(of_wgmma, rows, sizes, k, is_one):
    assert of_wgmma.takes_one_launch(rows, sizes, k, BF16, None) is is_one


def test_kernels_for_few_rows_have_no_more(module, monkeypatch):
    many = import_module(f"{module.__package__}._torch_many")
    own = many.plan
    monkeypatch.setattr(many, "plan", lambda *x, **y: replace(own(*x, **y), kernel="bf16_kk_many_cluster_split_k_32x8"))
    many.takes_one_launch.cache_clear()
    few = many.FEW_ROWS
    assert [many.takes_one_launch(x, SIZES, K, BF16, None) for x in (few, few + 1)] == [True, False]
    monkeypatch.setattr(many, "is_batch_invariant", lambda _: True)
    many.takes_one_launch.cache_clear()
    assert all(many.takes_one_launch(x, SIZES, K, BF16, None) for x in (few, few + 1, 5000))
    many.takes_one_launch.cache_clear()


@torch.no_grad()
def test_rows_of_no_whole_16_bytes_are_products_of_their_own(module, calls):
    x, weights = random_tensor(4, 12), [random_tensor(n, 12) for n in SIZES]
    close(module.linear_many(x, weights), expected(x, weights))
    assert calls == ["linear"] * 3


def test_gradients_are_those_of_linear(module, calls):
    x, weights, biases = drawn()
    leaves = [x, *weights, *biases]
    for leaf in leaves:
        leaf.requires_grad_()
    sum(y.float().square().sum() for y in module.linear_many(x, weights, biases)).backward()
    assert set(calls) == {"linear"}
    found = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    sum(y.float().square().sum() for y in expected(x, weights, biases)).backward()
    for one, leaf in zip(found, leaves, strict=True):
        torch.testing.assert_close(one, leaf.grad, rtol=5e-2, atol=0.5)


def test_the_operator_refuses_to_be_recorded(module, calls):
    x, weights, biases = drawn()
    operator = getattr(torch.ops, module.__package__).linear_many.default
    with pytest.raises(import_module(f"{module.__package__}.errors").GradientError, match="requires a gradient"):
        operator(x.requires_grad_(), weights, biases)


@torch.no_grad()
def test_a_compiled_call_is_the_operator(module, calls):
    x, weights, biases = drawn()
    compiled = torch.compile(lambda x: module.linear_many(x, weights, biases), backend="aot_eager", fullgraph=True)
    close(compiled(x), expected(x, weights, biases))
    assert calls == ["linear_many"]


@torch.no_grad()
def test_the_operator_is_as_torch_expects(module, calls):
    x, weights, biases = drawn()
    operator = getattr(torch.ops, module.__package__).linear_many.default
    opcheck(operator, (x, weights, [*biases[:2], None]), test_utils=("test_schema", "test_faketensor"))


def test_fake_tensors_have_shapes(module):
    with FakeTensorMode():
        x, weights = torch.empty(2, 3, K, dtype=BF16), [torch.empty(n, K, dtype=BF16) for n in SIZES]
        with torch.no_grad():
            assert [y.shape for y in module.linear_many(x, weights)] == [(2, 3, n) for n in SIZES]


@torch.no_grad()
def test_its_operations_are_counted(module, calls):
    x, weights, _ = drawn()
    with FlopCounterMode(display=False) as counter:
        module.linear_many(x, weights)
    assert counter.get_total_flops() == 2 * 6 * K * sum(SIZES)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda x, w: (x, [w] * 5), "ShapeError", "got 5 weights and 5 biases; expected 1 to 4"),
        (lambda x, w: (x, []), "ShapeError", "got 0 weights"),
        (lambda x, w: (x, [w, w[:, :8]]), "ShapeError", r"a weight \(24, 8\)"),
        (lambda x, w: (x, [w.half()]), "DtypeError", "a weight is torch.float16; expected torch.bfloat16"),
        (lambda x, w: (x, [w], [w[0]]), "ShapeError", r"a bias has shape \(32,\); expected \(24,\)"),
    ],
)
def test_what_does_not_fit_is_refused(module, calls, change, kind, text):
    x, weights, _ = drawn()
    with pytest.raises(getattr(import_module(f"{module.__package__}.errors"), kind), match=text):
        module.linear_many(*change(x, weights[0]))
    assert calls == []


# Graphs.


@pytest.fixture(params=["as it is", "as Inductor takes it apart"])
def rewritten(request, module):
    """Return what compiles a model, by a graph of linear or of mm; gives what was replaced, and the model's results."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor.decomposition import select_decomp_table

    rewrite = import_module(f"{module.__package__}._graph_pass").rewrite
    table = {"decompositions": select_decomp_table()} if request.param != "as it is" else {}

    def run(model, *inputs):
        reports = []

        def compiler(graph_module, _):
            reports.append(rewrite(graph_module.graph))
            graph_module.recompile()
            return make_boxed_func(graph_module.forward)

        backend = aot_autograd(fw_compiler=compiler, inference_compiler=compiler, **table)
        torch._dynamo.reset()
        found = torch.compile(model, backend=backend, fullgraph=True)(*inputs)
        (report,) = reports
        return report.counts, found

    return run


class Attention(nn.Module):
    """Query, key and value of one x, and something that uses each."""

    def __init__(self, *, bias=False, count=3):
        super().__init__()
        sizes = (24, 8, 8, 16, 8)[:count]
        self.layers = nn.ModuleList(nn.Linear(K, n, bias=bias, dtype=BF16) for n in sizes)

    def forward(self, x):
        return tuple(torch.sin(layer(x)) for layer in self.layers)


@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_products_of_one_x_are_joined(rewritten, calls, bias):
    model, x = Attention(bias=bias), random_tensor(2, 3, K)
    counts, found = rewritten(model, x)
    assert counts == {"several weights": 1}
    assert calls == ["linear_many"]
    close(found, model(x))


@pytest.mark.parametrize(
    ("count", "launches"), [(2, {"several weights": 1}), (5, {"several weights": 1, "product": 1})]
)
@torch.no_grad()
def test_up_to_four_are_one_launch(rewritten, calls, count, launches):
    counts, _ = rewritten(Attention(count=count), random_tensor(4, K))
    assert counts == launches


@torch.no_grad()
def test_many_rows_and_one_product_stay_apart(module, rewritten, calls, of_wgmma, monkeypatch):
    graph_many = import_module(f"{module.__package__}._graph_many")
    own, most = graph_many.plan, graph_many.MOST_ROWS

    def plan(*extents, **options):
        us = 2.0 if options.get("many") else 1.0
        return replace(own(*extents, **options), time_us=us, library_us=us)

    monkeypatch.setattr(graph_many, "plan", plan)
    assert rewritten(Attention(), random_tensor(most, K))[0] == {"several weights": 1}
    assert "several weights" not in rewritten(Attention(), random_tensor(most + 1, K))[0]
    assert rewritten(Attention(count=1), random_tensor(4, K))[0] == {"product": 1}


@torch.no_grad()
def test_products_of_other_rows_stay_apart(rewritten, calls):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = (nn.Linear(K, 8, bias=False, dtype=BF16) for _ in range(2))

        def forward(self, x, y):
            return self.one(x), self.other(y)

    counts, _ = rewritten(Two(), random_tensor(4, K), random_tensor(4, K))
    assert counts == {"product": 2}


@torch.no_grad()
def test_one_launch_that_the_table_has_slower_is_not_taken(module, rewritten, calls, monkeypatch):
    graph_many = import_module(f"{module.__package__}._graph_many")
    own = graph_many.plan

    def plan(*extents, **options):
        return replace(own(*extents, **options), time_us=10.0 if options.get("many") else 3.0)

    monkeypatch.setattr(graph_many, "plan", plan)
    assert rewritten(Attention(), random_tensor(4, K))[0] == {"product": 3}
    assert rewritten(Attention(count=4), random_tensor(4, K))[0] == {"several weights": 1}


@torch.no_grad()
def test_a_wide_product_stays_apart_where_the_others_alone_are_worth_a_launch(module, rewritten, calls, monkeypatch):
    graph_many = import_module(f"{module.__package__}._graph_many")
    own = graph_many.plan

    def plan(m, n, *others, **options):
        us = (4.0 if n == 16 else 30.0) if options.get("many") else 3.0
        return replace(own(m, n, *others, **options), time_us=us)

    monkeypatch.setattr(graph_many, "plan", plan)
    assert rewritten(Attention(), random_tensor(4, K))[0] == {"product": 1, "several weights": 1}


@pytest.mark.parametrize(("library_us", "launches"), [(9.0, {"several weights": 1}), (2.0, {"product": 2})])
@torch.no_grad()
def test_a_product_of_torchs_is_joined_where_that_is_faster(
    module, rewritten, calls, monkeypatch, library_us, launches
):
    graph_many = import_module(f"{module.__package__}._graph_many")
    products = import_module(f"{module.__package__}._graph_products")
    own = graph_many.plan

    def plan(*extents, **options):
        us = 10.0 if options.get("many") else 1.0
        return replace(own(*extents, **options), time_us=us, library_us=library_us)

    def is_chosen(product, **_):
        return product.weight.meta["val"].shape[0] != 24

    monkeypatch.setattr(graph_many, "plan", plan)
    for part in (graph_many, products):
        monkeypatch.setattr(part, "is_chosen", is_chosen)
    assert rewritten(Attention(), random_tensor(4, K))[0] == launches
