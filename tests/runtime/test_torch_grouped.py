"""`grouped_linear` as an operator of torch, with no GPU: what fake tensors give, compilers, and gradients."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from aot.core.operation import Operation
from aot.models import recorder
from aot.package.call_fields import FIELDS, PYTHON_NAMES, READ, WRITTEN
from tests.runtime import host, torch_reference
from tests.runtime.tensors import FakeTensor
from tests.runtime.test_groups import GROUPED
from tests.runtime.test_torch_ops import GPU_DTYPES, damaged
from tests.runtime.torch_reference import random_tensor

BF16, F16, E4 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
ROWS, N, K, GROUPS = 9, 6, 8, 3
ENDS = [2, 2, 7]
"""An empty group in the middle, and two rows behind the last."""
TENSORS = ("x", "weight", "offsets", "bias", "index", "scale_x", "scale_w")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    manifest = replace(host.random_manifest(7, GROUPED), package="grouped-torch")
    return host.compile_package(manifest, tmp_path_factory.mktemp("torch_groups"))


@pytest.fixture
def module(package):
    return import_module(f"{package.__name__}.torch")


@pytest.fixture
def operators(module, package):
    return getattr(torch.ops, package.__name__)


@pytest.fixture
def calls(module, package, monkeypatch):
    return torch_reference.stand_in(package, monkeypatch)


def offsets_of(*ends):
    return torch.tensor(ends, dtype=torch.int32)


# What fake tensors give.


def drawn_scales(rng, rows, groups, n, k):
    blocks = -(-n // 128), -(-k // 128)
    of_x = (1,), (rows,), (rows, 1), (rows, blocks[1])
    of_w = (1,), (groups,), (groups, n), (groups, 1, n), (groups, *blocks), (groups, *blocks)
    return {"scale_x": (rng.choice(of_x), torch.float32), "scale_w": (rng.choice(of_w), torch.float32)}


def drawn_call(rng):
    """Draw a call whose shapes and types mostly fit; give tensors as (shape, dtype), and options."""
    rows, n, k, groups = rng.choice((0, 1, 9)), rng.choice((2, 128, 130)), rng.choice((8, 128, 130)), rng.choice((1, 3))
    a, b = rng.choice(((BF16, BF16), (F16, F16), (E4, E4), (torch.float32,) * 2, (E4, BF16)))
    weight = rng.choice(((groups, n, k), (groups, n, k), (n, k)))
    tensors = {"x": ((rows, k), a), "weight": (weight, b), "offsets": ((groups + rng.randrange(2),), torch.int32)}
    height = rows
    if rng.random() < 0.4:
        height = 5
        tensors |= {"x": ((height, k), a), "index": ((rows,), torch.int32)}
    if a.itemsize == 1 and rng.random() < 0.9:
        tensors |= drawn_scales(rng, height, groups, n, k)
    d = rng.choice((None, None, None, a, BF16))
    if rng.random() < 0.2:
        tensors["bias"] = ((groups, n), d or BF16)
    return damaged(rng, tensors), {"gate": rng.choice((None, None, "silu", "gelu_tanh")), "out_dtype": d}


def by_library(package, tensors, options):
    """Return shape and type of the result as the library says, or the error that it raises."""
    capsules = {key: FakeTensor(shape, GPU_DTYPES[dtype]).__dlpack__() for key, (shape, dtype) in tensors.items()}
    dtype, gate = options["out_dtype"], options["gate"]
    element = -1 if dtype is None else package._dtypes.dtype_number("out_dtype", dtype)
    epilogue = 0 if gate is None else package._extras.GATES[gate]
    fields = [PYTHON_NAMES.get(x, x) for x in FIELDS["grouped_linear"] if x in (*READ, *WRITTEN)]
    record = (*map(capsules.get, fields), None, None, epilogue, element, 0, 0, 0)
    try:
        *shape, element = package._library.binding()["grouped_linear_result"](record)[0]["out"]
    except package.AotGemmError as error:
        return type(error).__name__, str(error)
    default = tensors["x"][1] if element < 0 else getattr(torch, package._dtypes.ELEMENTS[element])
    return tuple(shape), default


def by_fake_tensors(package, operators, tensors, options):
    made = {key: torch.empty(shape, dtype=dtype, device="cuda") for key, (shape, dtype) in tensors.items()}
    try:
        result = operators.grouped_linear(*(made.get(x) for x in TENSORS), **options)
    except package.AotGemmError as error:
        return type(error).__name__, str(error)
    assert (result.device.type, result.is_contiguous()) == ("cuda", True)
    return tuple(result.shape), result.dtype


def test_fake_tensors_get_what_the_library_says(package, operators):
    """Shape and type of the result, or class and text of the error, of calls that mostly fit."""
    rng = random.Random(23)
    outcomes = {}
    with FakeTensorMode():
        for _ in range(500):
            tensors, options = drawn_call(rng)
            if "offsets" not in tensors:
                continue
            expected = by_library(package, tensors, options)
            assert by_fake_tensors(package, operators, tensors, options) == expected, (tensors, options)
            kind = expected[0] if isinstance(expected[0], str) else f"result of {len(expected[0])} dimensions"
            outcomes[kind] = outcomes.get(kind, 0) + 1
    kinds = {"result of 2 dimensions", "result of 3 dimensions", "ShapeError", "DtypeError", "OperandError"}
    assert set(outcomes) == kinds | {"UnsupportedError"}
    assert min(outcomes.values()) > 5, outcomes


# What torch's own checks of operators say, and its compilers.


def operands(*, grad=False, dtype=BF16):
    x, weight = random_tensor(ROWS, K, dtype=dtype, grad=grad), random_tensor(GROUPS, N, K, dtype=dtype, grad=grad)
    return x, weight, offsets_of(*ENDS[:2], ROWS)


INDEX = torch.tensor([3, 1, 1, 0, 8, 2, 7, 5, 4, 6, 2], dtype=torch.int32)


def test_torch_finds_no_fault_with_the_operator(operators, calls):
    packet = operators.grouped_linear
    assert set(opcheck(packet.default, operands(grad=True)).values()) == {"SUCCESS"}
    x, weight, _ = operands()
    gathered = (x, weight, offsets_of(4, 4, len(INDEX)), None, INDEX)
    assert set(opcheck(packet.default, gathered, {"gate": "silu"}).values()) == {"SUCCESS"}
    out = random_tensor(ROWS, N)
    assert set(opcheck(packet.out, operands(), {"out": out}).values()) == {"SUCCESS"}


def test_a_compiled_function_has_no_graph_break(module, calls):
    x, weight, _ = operands()
    ends = offsets_of(1, 9, len(INDEX))

    def layer(x, weight, ends, index):
        inner = module.grouped_linear(torch.relu(x), weight, ends, index=index, gate="silu", interleaved=True)
        return module.grouped_linear(inner, weight[:, :, : N // 2], ends) + 1

    expected = layer(x, weight, ends, INDEX)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight, ends, INDEX), expected, rtol=0, atol=0)
    assert calls == ["grouped_linear"] * 4


@pytest.mark.parametrize("mode", ["deterministic", "batch_invariant"])
@pytest.mark.parametrize("is_listed", [False, True])
def test_a_mode_comes_through_a_graph_and_both_gradients(module, calls, mode, is_listed):
    x, weight, ends = operands()

    def product(x, weight):
        return module.grouped_linear(x, list(weight.unbind()) if is_listed else weight, ends, **{mode: True})

    found = torch.compile(product, backend="aot_eager", fullgraph=True)(x, weight)
    torch.testing.assert_close(found, torch_reference.grouped_linear(x, weight, ends))
    torch.testing.assert_close(product(x, weight), found, rtol=0, atol=0)
    product(x.requires_grad_(), weight.requires_grad_()).sum().backward()
    assert list(torch_reference.MODES) == [(mode,)] * 5
    assert x.grad.shape == x.shape


def test_one_graph_serves_every_number_of_rows(module, calls):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(module.grouped_linear, backend=backend, fullgraph=True, dynamic=True)
    weight = random_tensor(GROUPS, N, K)
    for rows in (4, 5, 17, 200):
        x, ends = random_tensor(rows, K), offsets_of(1, 3, rows)
        torch.testing.assert_close(compiled(x, weight, ends), torch_reference.grouped_linear(x, weight, ends))
    assert len(graphs) == 1


def test_an_exported_program_has_the_operator(module, calls):
    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(random_tensor(GROUPS, N, K))

        def forward(self, x, ends):
            return module.grouped_linear(x, self.weight, ends)

    experts, (x, _, ends) = Experts(), operands()
    program = torch.export.export(experts, (x, ends), dynamic_shapes=({0: torch.export.Dim("rows", min=2)}, None))
    targets = [str(node.target) for node in program.graph.nodes if "grouped_torch" in str(node.target)]
    assert targets == ["grouped_torch.grouped_linear.default"]
    other, ends = random_tensor(20, K), offsets_of(0, 0, 20)
    torch.testing.assert_close(program.module()(other, ends), experts(other, ends))


def test_what_is_not_traced_goes_to_the_packages_function(module, package, calls, monkeypatch):
    monkeypatch.setattr(package._torch_products, "_operators", None)
    x, weight, ends = operands()
    found = module.grouped_linear(x, weight, ends, out_dtype=BF16)
    torch.testing.assert_close(found, torch_reference.grouped_linear(x, weight, ends))
    assert calls == ["grouped_linear"]


def test_a_recorder_counts_the_operators_of_the_package(module, calls, monkeypatch):
    """What each becomes is in tests/unit/models/test_recorded.py; here are the names and arguments that torch gives."""
    counts = {}
    monkeypatch.setattr(recorder, "_counts", counts)
    monkeypatch.setattr(recorder, "_uncounted", {})
    monkeypatch.setattr(recorder, "_written", [math.inf])
    x, weight, ends = operands()
    with recorder.recorder_class()():
        module.grouped_linear(x, weight, ends)
        module.grouped_linear(x, list(weight.unbind()), ends, out=random_tensor(ROWS, N))
        module.grouped_linear(x, weight, offsets_of(4, 4, len(INDEX)), index=INDEX, gate="silu", batch_invariant=True)
    assert (len(calls), recorder._uncounted) == (3, {})
    found = [(key[7:11], key[6], key[11], count) for key, count in counts.items()]
    assert found == [((GROUPS, 3, N, K), "grouped", "none", 2), ((GROUPS, 4, N // 2, K), "gathered", "swiglu", 1)]


# Gradients.


def expected_gradients(x, weight, starts, outward):
    """Differentiate torch's product of each group, in float64."""
    x, weight = (tensor.detach().double().requires_grad_() for tensor in (x, weight))
    for group, (start, end) in enumerate(itertools.pairwise(starts)):
        (x[start:end] @ weight[group].t()).backward(outward[start:end].double())
    return x.grad, weight.grad


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("starts", [[0, *ENDS], [1, 3, 3, 8]], ids=["ends", "with the first start"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_gradients_are_those_of_each_group(module, calls, dtype, starts, is_compiled):
    x, weight, _ = operands(grad=True, dtype=dtype)
    offsets = offsets_of(*(starts if starts[0] else starts[1:]))
    function = module.grouped_linear
    if is_compiled:
        function = torch.compile(function, backend="aot_eager", fullgraph=True)
    outward = random_tensor(ROWS, N, dtype=dtype)
    function(x, weight, offsets).backward(outward)
    assert calls == ["grouped_linear"] * 3
    of_x, of_weight = expected_gradients(x, weight, starts, outward)
    torch.testing.assert_close(x.grad.double(), of_x, rtol=0.02, atol=0.02)
    torch.testing.assert_close(weight.grad.double(), of_weight, rtol=0.02, atol=0.02)
    outside = [i for i in range(ROWS) if not starts[0] <= i < starts[-1]]
    assert outside
    assert not x.grad[outside].any()


@pytest.mark.parametrize("needed", [(True, False), (False, True)])
def test_only_the_gradients_that_are_needed_are_computed(module, calls, needed):
    x, weight, ends = operands()
    for tensor, is_needed in zip((x, weight), needed, strict=True):
        tensor.requires_grad_(is_needed)
    module.grouped_linear(x, weight, ends).sum().backward()
    assert calls == ["grouped_linear"] * 2
    assert (x.grad is not None, weight.grad is not None) == needed


REFUSED = {
    "index": {"index": torch.zeros(ROWS, dtype=torch.int32)},
    "gate": {"gate": "silu"},
    "another type": {"out_dtype": torch.float32},
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_gradient_that_there_is_none_of_is_refused(module, package, calls, case):
    x, weight, ends = operands(grad=True)
    with pytest.raises(package.GradientError, match=r"recorded of plain products of groups of rows alone"):
        module.grouped_linear(x, weight, ends, **REFUSED[case])
    with torch.no_grad():
        assert len(module.grouped_linear(x, weight, ends, **REFUSED[case])) == ROWS
    with pytest.raises(package.GradientError, match=r"grouped_linear: an operand requires .* writes out="):
        module.grouped_linear(x, weight, ends, out=random_tensor(ROWS, N))


def test_a_wheel_without_the_weights_gradient_says_so_in_the_forward_pass(module, package, calls, monkeypatch):
    kind = package._library.Library
    has = kind.has
    monkeypatch.setattr(kind, "has", lambda library, call: "kgrouped" not in call and has(library, call))
    x, weight, ends = operands()
    with pytest.raises(package.UnsupportedError, match="this wheel has no kernels for bf16_kgrouped"):
        module.grouped_linear(x, weight.requires_grad_(), ends)
    module.grouped_linear(x.requires_grad_(), weight.detach(), ends).sum().backward()
    assert Operation.BF16_MN_KGROUPED.call == "bf16_kgrouped"


# Weights of groups that are a tensor each.


def listed(weight, *, grad=False):
    """Return the weights of a stack as tensors of their own."""
    return [x.detach().clone().requires_grad_(grad) for x in weight]


def test_torch_finds_no_fault_with_the_operator_of_listed_weights(operators, calls):
    x, weight, ends = operands(grad=True)
    packet = operators.grouped_linear_weights
    assert set(opcheck(packet.default, (x, listed(weight, grad=True), ends)).values()) == {"SUCCESS"}
    plain, out = operands(), random_tensor(ROWS, N)
    given = plain[0], listed(plain[1]), plain[2]
    assert set(opcheck(packet.out, given, {"out": out}).values()) == {"SUCCESS"}


@pytest.mark.parametrize("is_compiled", [False, True])
def test_gradients_of_listed_weights_are_those_of_the_stack(module, calls, is_compiled):
    x, weight, _ = operands(grad=True)
    weights = listed(weight, grad=True)
    weights[1].requires_grad_(False)
    function = module.grouped_linear
    if is_compiled:
        function = torch.compile(function, backend="aot_eager", fullgraph=True)
    outward = random_tensor(ROWS, N)
    function(x, weights, offsets_of(*ENDS)).backward(outward)
    assert calls == ["grouped_linear"] * 3
    of_x, of_weight = expected_gradients(x, weight, [0, *ENDS], outward)
    torch.testing.assert_close(x.grad.double(), of_x, rtol=0.02, atol=0.02)
    assert weights[1].grad is None
    for i in (0, 2):
        torch.testing.assert_close(weights[i].grad.double(), of_weight[i], rtol=0.02, atol=0.02)


def test_listed_weights_that_are_not_traced_go_to_the_packages_function(module, package, calls, monkeypatch):
    monkeypatch.setattr(package._torch_products, "_operators", None)
    x, weight, ends = operands()
    found = module.grouped_linear(x, tuple(listed(weight)), ends)
    torch.testing.assert_close(found, torch_reference.grouped_linear(x, weight, ends))
    assert calls == ["grouped_linear"]


def test_out_of_listed_weights_that_require_a_gradient_is_refused(module, package, calls):
    x, weight, ends = operands()
    with pytest.raises(package.GradientError, match="writes out="):
        module.grouped_linear(x, listed(weight, grad=True), ends, out=random_tensor(ROWS, N))


@pytest.mark.parametrize(
    ("weights", "kind"),
    [
        ([], "ShapeError"),
        ([(N, K), (N, K + 1)], "ShapeError"),
        ([(1, N, K)], "ShapeError"),
        ([(N, K), (N, K, F16)], "DtypeError"),
    ],
)
def test_listed_weights_that_differ_are_refused_as_the_library_does(package, operators, weights, kind):
    made = [(x[:2] if x[-1] is F16 else x, F16 if x[-1] is F16 else BF16) for x in weights]
    with FakeTensorMode():
        fakes = [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in made]
        x, ends = torch.empty((ROWS, K), dtype=BF16, device="cuda"), torch.empty((2,), dtype=torch.int32, device="cuda")
        with pytest.raises(package.AotGemmError) as by_fake:
            operators.grouped_linear_weights(x, fakes, ends)
    assert type(by_fake.value).__name__ == kind
    if not weights:
        return
    capsules = tuple(FakeTensor(shape, GPU_DTYPES[dtype]).__dlpack__() for shape, dtype in made)
    left = FakeTensor((ROWS, K), GPU_DTYPES[BF16]).__dlpack__()
    offsets = FakeTensor((2,), GPU_DTYPES[torch.int32]).__dlpack__()
    others = FIELDS["grouped_linear"].index("offsets") - 2
    record = (left, capsules[0], *[None] * others, offsets, None, capsules, None, 0, -1, 0, 0, 0)
    with pytest.raises(package.AotGemmError) as by_library:
        package._library.binding()["grouped_linear_result"](record)
    assert (type(by_library.value).__name__, str(by_library.value)) == (kind, str(by_fake.value))
