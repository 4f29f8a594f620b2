"""The layer of experts that a wheel ships as an example, over torch's products on the CPU, and what a wheel lacks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from aot.core.factor_atoms import unpack_factors
from aot.core.operation import Operation
from tests.runtime import host, torch_reference

BF16, E4 = torch.bfloat16, torch.float8_e4m3fn
TOKENS, EXPERTS, TOP, HIDDEN, INTERMEDIATE = 9, 6, 2, 32, 24
PLAIN = (Operation.BF16_KK, Operation.BF16_KK_GROUPED, Operation.BF16_KK_GATHERED_SWIGLU)
NVFP4 = (Operation.NVFP4_BF16_KK_GROUPED, Operation.NVFP4_BF16_KK_GROUPED_SWIGLU)
FP8 = (Operation.E4M3_BF16_KK_GROUPED, Operation.E4M3_BF16_KK_GATHERED_SWIGLU)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Give a wheel of the operations that the layer takes in bfloat16, and no others of groups."""
    manifest = replace(host.random_manifest(11, PLAIN), package="moe-plain")
    return host.compile_package(manifest, tmp_path_factory.mktemp("moe_plain"))


@pytest.fixture(scope="module")
def package_of_both(tmp_path_factory):
    manifest = replace(host.random_manifest(11, (*PLAIN, *FP8)), package="moe-both")
    return host.compile_package(manifest, tmp_path_factory.mktemp("moe_both"))


@pytest.fixture(scope="module")
def package_of_all(tmp_path_factory):
    manifest = replace(host.random_manifest(11, (*PLAIN, *FP8, *NVFP4)), package="moe-all")
    return host.compile_package(manifest, tmp_path_factory.mktemp("moe_all"))


def example_of(package):
    return import_module(f"{package.__name__}.examples.moe")


def drawn(tokens=TOKENS, bias=0.0):
    """Draw x, router, and the weights of the experts; the first expert's logits are raised by a bias."""
    x = torch_reference.random_tensor(tokens, HIDDEN)
    x[:, 0] = 1
    router = torch_reference.random_tensor(EXPERTS, HIDDEN)
    router[0, 0] += bias
    gate_up = torch_reference.random_tensor(EXPERTS, 2 * INTERMEDIATE, HIDDEN) / 4
    return x, router, gate_up, torch_reference.random_tensor(EXPERTS, HIDDEN, INTERMEDIATE) / 5


def by_tokens(x, logits, gate_up, down):
    """Compute the layer token by token, in float64."""
    result = torch.zeros(x.shape, dtype=torch.float64)
    for token, (row, given) in enumerate(zip(x.double(), logits.double(), strict=True)):
        probabilities = torch.softmax(given, -1)
        chosen = probabilities.argsort(descending=True)[:TOP]
        for expert in chosen.tolist():
            gate, linear = (gate_up[expert].double() @ row).chunk(2)
            part = down[expert].double() @ (torch.nn.functional.silu(gate) * linear)
            result[token] += part * probabilities[expert] / probabilities[chosen].sum()
    return result


def relative_error(result, expected):
    return ((result.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(("bias", "are_listed"), [(0.0, False), (100.0, False), (-100.0, False), (0.0, True)])
def test_the_layer_is_the_sum_over_a_tokens_experts(package, monkeypatch, bias, are_listed):
    """With a bias all tokens go to the first expert, or none does, so that its group is empty."""
    calls = torch_reference.stand_in(package, monkeypatch)
    example, (x, router, gate_up, down) = example_of(package), drawn(bias=bias)
    experts = example.Experts(list(gate_up), list(down)) if are_listed else example.Experts(gate_up, down)
    layer = example.MixtureOfExperts(router, experts, TOP)
    logits = torch.nn.functional.linear(x, router)
    assert ((logits.topk(TOP).indices == 0).sum() == (TOKENS if bias > 0 else 0)) or bias == 0
    result = layer(x.view(3, 3, HIDDEN))
    assert (result.shape, result.dtype, calls) == ((3, 3, HIDDEN), BF16, ["grouped_linear"] * 2)
    assert relative_error(result.view(-1, HIDDEN), by_tokens(x, logits, gate_up, down)) < 0.01


def modules_of(gate_up, down, *, bias=False):
    """Make experts that are modules of their own, as older models have them."""
    experts = torch.nn.ModuleList()
    for joined, last in zip(gate_up, down, strict=True):
        expert = torch.nn.Module()
        for name, weight in zip(("w1", "w3", "w2"), (*joined.chunk(2), last), strict=True):
            linear = torch.nn.Linear(*reversed(weight.shape), bias=bias, dtype=BF16)
            linear.weight.data = weight.clone()
            setattr(expert, name, linear)
        experts.append(expert)
    return experts


def test_experts_that_are_modules_are_multiplied_where_their_second_weight_lies(package, monkeypatch):
    torch_reference.stand_in(package, monkeypatch)
    example, (x, router, gate_up, down) = example_of(package), drawn()
    modules = modules_of(gate_up, down)
    experts = example.Experts.of(modules, "w1", "w3", "w2")
    assert [y.data_ptr() for y in experts.down] == [module.w2.weight.data_ptr() for module in modules]
    layer = example.MixtureOfExperts(router, experts, TOP)
    logits = torch.nn.functional.linear(x, router)
    assert relative_error(layer(x), by_tokens(x, logits, gate_up, down)) < 0.01


@pytest.mark.parametrize("count", [0, 2])
def test_experts_with_biases_and_no_experts_are_refused(package, count):
    _, _, gate_up, down = drawn()
    modules = modules_of(gate_up[:count], down[:count], bias=True)
    with pytest.raises(
        package.OperandError, match=f"got {count} experts, (none|a part with a bias); expected one or more"
    ):
        example_of(package).Experts.of(modules, "w1", "w3", "w2")


def test_a_mode_of_the_layer_is_that_of_both_products(package, monkeypatch):
    torch_reference.stand_in(package, monkeypatch)
    example, (x, router, gate_up, down) = example_of(package), drawn()
    example.MixtureOfExperts(router, example.Experts(gate_up, down), TOP, batch_invariant=True)(x)
    assert list(torch_reference.MODES) == [("batch_invariant",)] * 2


@pytest.mark.slow
def test_a_compiler_takes_the_layer_as_one_graph(package, monkeypatch):
    torch_reference.stand_in(package, monkeypatch)
    example, (x, router, gate_up, down) = example_of(package), drawn()
    layer = example.MixtureOfExperts(router, example.Experts(gate_up, down), TOP)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x), rtol=0.01, atol=0.01)


def test_the_loop_over_experts_is_the_sum_over_a_tokens_experts(package):
    example, (x, router, gate_up, down) = example_of(package), drawn()
    logits = torch.nn.functional.linear(x, router)
    found = example.by_experts(x, logits, example.Experts(gate_up, down), TOP)
    assert relative_error(found, by_tokens(x, logits, gate_up, down)) < 1e-5


@pytest.mark.parametrize("tokens", [0, 1, TOKENS])
def test_routes_are_in_the_order_of_experts_and_lead_back(package, tokens):
    logits = torch.randn(tokens, EXPERTS)
    routes = example_of(package).route(logits, TOP)
    chosen = logits.topk(TOP, -1).indices
    ends = torch.bincount(chosen.flatten(), minlength=EXPERTS).cumsum(0).tolist()
    assert (routes.offsets.tolist(), routes.offsets.dtype, routes.token_of.dtype) == (ends, torch.int32, torch.int32)
    assert sorted(routes.places.flatten().tolist()) == list(range(tokens * TOP))
    for token in range(tokens):
        for choice in range(TOP):
            place = routes.places[token, choice]
            assert routes.token_of[place] == token
            assert next(e for e, end in enumerate(ends) if place < end) == chosen[token, choice]
    torch.testing.assert_close(routes.weights.sum(-1), torch.ones(tokens))


def with_factors(x, weight, offsets, *, scale_x=None, scale_w=None, **options):
    """Compute groups by torch, with factors of rows, which the other stand-in leaves away."""
    if scale_x is not None:
        x, weight = x.float() * scale_x, weight.float() * scale_w[..., None]
    return torch_reference.grouped_linear(x, weight, offsets, **options)


def test_float8_is_near_and_quantizes_each_token_once(package_of_both, monkeypatch):
    example = example_of(package_of_both)
    monkeypatch.setattr(example, "grouped_linear", with_factors)
    x, router, gate_up, down = drawn()
    quantized = []

    def quantize(rows):
        quantized.append(len(rows))
        return example.quantize_rows(rows)

    layer = example.MixtureOfExperts(router, example.Experts(gate_up, down).quantized(), TOP, quantize)
    error = relative_error(layer(x), by_tokens(x, torch.nn.functional.linear(x, router), gate_up, down))
    assert 0.01 < error < 0.08
    assert quantized == [TOKENS, TOKENS * TOP]


def test_float8_operands_and_factors_are_those_that_the_package_takes(package_of_both):
    """The shapes that the package's function checks, where the factors are: those of fake tensors."""
    example = example_of(package_of_both)
    drawn_routes = example.route(torch.randn(TOKENS, EXPERTS), TOP)
    with FakeTensorMode():
        x, experts = torch.empty(TOKENS, HIDDEN, dtype=BF16, device="cuda"), []
        for rows, k in ((2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)):
            experts += [torch.empty(EXPERTS, rows, k, dtype=E4, device="cuda")]
        scales = [torch.empty(*weight.shape[:2], device="cuda") for weight in experts]
        routes = example.Routes(*(torch.empty(x.shape, dtype=x.dtype, device="cuda") for x in drawn_routes))
        result = example.multiply(x, routes, example.Experts(*experts, *scales))
    assert (tuple(result.shape), result.dtype) == ((TOKENS * TOP, HIDDEN), BF16)


def of_groups(atoms, ends, rows, blocks):
    """Take the factors of rows in groups out of atoms: each group's are the next atoms behind what is in front."""
    along = -(-blocks // 4)
    of_128_rows, found = atoms.view(torch.uint8).reshape(-1, along * 512), torch.zeros(rows, blocks, dtype=torch.uint8)
    start = 0
    for group, end in enumerate(ends.tolist()):
        first, count = start // 128 + group, -(-(end - start) // 128)
        held = of_128_rows[first : first + count].flatten().numpy()
        found[start:end] = torch.from_numpy(unpack_factors(held, end - start, blocks))
        start = end
    return found.view(atoms.dtype)


def in_blocks(example, x, weight, ends, *, scale_x, scale_w, interleaved=False, **options):
    """Compute groups by torch, of NVFP4."""
    (atoms, own), (atoms_w, own_w), k = scale_x, scale_w, 2 * x.shape[1]
    factors = of_groups(atoms, ends, len(x), -(-k // 16))
    wide = example.dequantize(x, (factors, own), torch.float32)
    atoms_w = atoms_w if isinstance(weight, list) else atoms_w.chunk(len(weight))
    of_w = zip(weight, atoms_w, own_w[:, None], strict=True)
    weights = torch.stack([example.dequantize(y, (z, o), torch.float32) for y, z, o in of_w])
    assert interleaved == ("gate" in options)
    if interleaved:
        weights = weights.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
    return torch_reference.grouped_linear(wide, weights, ends, **options).to(BF16)


@pytest.mark.parametrize("are_listed", [False, True])
def test_nvfp4_is_near_and_its_factors_lie_where_groups_begin(package_of_all, monkeypatch, are_listed):
    example = example_of(package_of_all)
    with_torch = import_module(f"{package_of_all.__name__}.torch")
    monkeypatch.setattr(example, "grouped_linear", partial(in_blocks, with_torch))
    x, router, gate_up, down = drawn(tokens=150)
    experts = example.Experts(list(gate_up), list(down)) if are_listed else example.Experts(gate_up, down)
    layer = example.MixtureOfExperts(router, experts.in_nvfp4(), TOP)
    assert len(list(layer.buffers())) == (5 + 4 * (EXPERTS - 1) + 2 if are_listed else 7)
    result = layer(x)
    assert (result.shape, result.dtype) == (x.shape, BF16)
    error = relative_error(result, by_tokens(x, torch.nn.functional.linear(x, router), gate_up, down))
    assert 0.08 < error < 0.3


def test_operands_and_factors_of_nvfp4_are_those_that_the_package_takes(package_of_all, monkeypatch):
    """The shapes that the package's function checks: those of fake tensors."""
    example, (x, _, gate_up, down) = example_of(package_of_all), drawn()
    experts = example.Experts(gate_up, down).in_nvfp4()
    routes = example.route(torch.randn(TOKENS, EXPERTS), TOP)
    monkeypatch.setattr(package_of_all._torch_result, "DEVICES", ("cpu",))  # torch here makes none of a GPU's slices
    with FakeTensorMode():
        x, *others = (torch.empty(y.shape, dtype=y.dtype) for y in (x, *experts, *routes))
        made = example.Experts(*others[: len(experts)])
        result = example.multiply(x, example.Routes(*others[len(experts) :]), made)
    assert (tuple(result.shape), result.dtype) == ((TOKENS * TOP, HIDDEN), BF16)


def test_lists_of_experts_of_nvfp4_are_such_as_the_package_takes(package_of_all, monkeypatch):
    example, (x, _, gate_up, down) = example_of(package_of_all), drawn()
    experts = example.Experts(list(gate_up), list(down)).in_nvfp4()
    routes = example.route(torch.randn(TOKENS, EXPERTS), TOP)
    monkeypatch.setattr(package_of_all._torch_result, "DEVICES", ("cpu",))
    with FakeTensorMode() as mode:
        made = example.Experts(
            *([mode.from_tensor(y) for y in x] if isinstance(x, list) else mode.from_tensor(x) for x in experts)
        )
        result = example.multiply(mode.from_tensor(x), example.Routes(*map(mode.from_tensor, routes)), made)
    assert (tuple(result.shape), result.dtype) == ((TOKENS * TOP, HIDDEN), BF16)


def test_a_row_of_zeros_is_quantized_to_zeros(package):
    values, scale = example_of(package).quantize_rows(torch.zeros(2, 8))
    assert (values.float() == 0).all()
    assert torch.isfinite(scale).all()


def test_what_a_wheel_lacks_is_said_by_name(package, package_of_both):
    missing = ["e4m3_bf16_kk_gathered_swiglu", "e4m3_bf16_kk_grouped"]
    assert [example_of(package).lacking(x) for x in (BF16, E4)] == [[], missing]
    assert [example_of(package_of_both).lacking(x) for x in (BF16, E4)] == [[], []]
    narrow = ["nvfp4_bf16_kk_grouped_swiglu", "nvfp4_bf16_kk_grouped"]
    assert example_of(package_of_both).lacking(torch.uint8) == narrow
    example, (_, router, gate_up, down) = example_of(package), drawn()
    with pytest.raises(package.UnsupportedError) as raised:
        example.MixtureOfExperts(router, example.Experts(gate_up, down).quantized(), TOP)
    assert str(raised.value) == (
        "this wheel lacks e4m3_bf16_kk_gathered_swiglu and e4m3_bf16_kk_grouped, which a layer of float8_e4m3fn takes; "
        "build one with it: aot build --target h200 --operations "
        "default,e4m3_bf16_kk_gathered_swiglu,e4m3_bf16_kk_grouped"
    )
    with pytest.raises(package.UnsupportedError, match=r"the experts' weights are torch\.float16; expected bfloat16"):
        example.lacking(torch.float16)


SIZES = ("--tokens", "16", "--experts", "4", "--top", "2", "--hidden", "32", "--intermediate", "24")


def test_the_program_says_what_is_right_and_what_the_wheel_lacks(package, monkeypatch, capsys):
    torch_reference.stand_in(package, monkeypatch)
    assert example_of(package).main(list(SIZES), device="cpu") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("this wheel lacks e4m3_bf16_kk_gathered_swiglu and e4m3_bf16_kk_grouped")
    assert lines[1].startswith(
        "this wheel lacks nvfp4_bf16_kk_grouped_swiglu and nvfp4_bf16_kk_grouped, which a layer of nvfp4"
    )
    assert lines[2].startswith("bfloat16: relative error 0.00")
    assert lines[2].endswith(": right")


def test_the_program_tells_a_wrong_result(package, monkeypatch, capsys):
    torch_reference.stand_in(package, monkeypatch)
    example = example_of(package)
    monkeypatch.setattr(example, "combine", lambda rows, routes: 1.1 * rows[routes.places].float().sum(1) / 2)
    assert example.main(list(SIZES), device="cpu") == 1
    assert capsys.readouterr().out.rstrip().endswith(": WRONG")
