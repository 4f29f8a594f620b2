"""The package's operators of torch, and its functions that call them, with no GPU.

Two stand-ins: fake tensors that torch says are on a GPU, and a package whose functions torch computes on the CPU, so
that what torch does around them is torch's own.
"""

from __future__ import annotations

import random
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.nn import functional

from tests.compiling import some
from tests.runtime import torch_reference
from tests.runtime.tensors import BFLOAT16, E4M3, E5M2, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, FakeTensor
from tests.runtime.test_torch_operands import operands as gpu_operands
from tests.runtime.torch_reference import random_tensor

BF16, F16, E4 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
M, N, K = 4, 6, 8


@pytest.fixture
def operators(module, every_package):
    return getattr(torch.ops, every_package.__name__)


def test_operators_are_in_a_namespace_of_the_packages_name(module, operators):
    assert {str(operators.linear.default._schema.returns[0].type), operators.linear.default.namespace} == {
        "Tensor",
        "every_gemm",
    }
    assert [operators.linear.overloads(), operators.matmul.overloads()] == [["default", "out"]] * 2


# What fake tensors give.

GPU_DTYPES = {
    BF16: BFLOAT16,
    F16: FLOAT16,
    torch.float32: FLOAT32,
    torch.float64: FLOAT64,
    E4: E4M3,
    torch.float8_e5m2: E5M2,
    torch.int8: INT8,
    torch.int32: INT32,
}


def drawn_call(rng):
    """Draw a product whose shapes and types mostly fit; give its name, tensors as (shape, dtype), and options."""
    name = rng.choice(("linear", "linear", "gated_linear", "matmul"))
    m, n, k = (rng.choice((0, 1, 2, 8, 128, 130)) for _ in range(3))
    a, b = rng.choice(((BF16, BF16), (F16, F16), (torch.float32,) * 2, (E4, E4), (torch.int8,) * 2, (E4, BF16)))
    leading = rng.choice(((m,), (m,), (2, m), ()))
    rows = 2 * n if name == "gated_linear" else n
    if name == "matmul":
        rights = (k, n), (k,), (2, k, n), (3, 1, k, n)
        return name, damaged(rng, {"x": ((*leading, k), a), "weight": (rng.choice(rights), b)}), {}
    tensors = {"x": ((*leading, k), a), "weight": ((rows, k), b)}
    if a.itemsize == 1 and rng.random() < 0.9:
        tensors |= drawn_scales(rng, leading, rows, k)
    d = rng.choice((None, None, a, BF16, torch.int32))
    result = d or (BF16 if "scale_x" in tensors else a)
    if rng.random() < 0.4:
        tensors["bias"] = ((rows,), BF16 if result.itemsize == 1 else result)
    known = ("silu", "gelu_tanh") if name == "gated_linear" else (None, None, "relu", "gelu", "silu")
    options = {"activation": rng.choice(known), "out_dtype": d}
    if name == "linear":
        others = {
            "residual": ((*leading, n), result),
            "scale_out": (rng.choice(((1,), (), (1, 1), (2,))), torch.float32),
        }
        tensors |= {key: value for key, value in others.items() if rng.random() < 0.3}
        options |= {"allow_tf32": rng.random() < 0.3, "use_fast_accum": rng.random() < 0.3}
    return name, damaged(rng, tensors), options


def drawn_scales(rng, leading, rows, k):
    m, blocks = torch.Size(leading).numel(), (-(-rows // 128), -(-k // 128))
    of_x = ((1,), (m,), (m, 1), (*leading, 1), leading, (m, blocks[1]))
    of_w = ((1,), (rows,), (1, rows), blocks, blocks)
    return {"scale_x": (rng.choice(of_x), torch.float32), "scale_w": (rng.choice(of_w), torch.float32)}


def damaged(rng, tensors):
    """Have something be amiss, at times."""
    if rng.random() < 0.7:
        return tensors
    which = rng.choice(list(tensors))
    shape, dtype = tensors[which]
    change = rng.choice(("dtype", "extent", "dims", "absent"))
    if change == "absent" and which not in ("x", "weight"):
        return {key: value for key, value in tensors.items() if key != which}
    if change == "dtype":
        return tensors | {which: (shape, rng.choice(list(GPU_DTYPES)))}
    if change == "dims":
        return tensors | {which: ((2, *shape) if rng.random() < 0.5 else shape[1:], dtype)}
    return tensors | {which: ((*shape[:-1], shape[-1] + 1) if shape else shape, dtype)}


def by_library(package, name, tensors, options):
    """Return shape and type of a product's result as the library says, or the error that it raises."""
    extras = package._extras
    stated = {key: FakeTensor(shape, GPU_DTYPES[dtype]) for key, (shape, dtype) in tensors.items()}
    capsules = {key: tensor.__dlpack__() for key, tensor in stated.items()}
    known = extras.GATES if name == "gated_linear" else extras.ACTIVATIONS
    dtype = options.get("out_dtype")
    element = -1 if dtype is None else package._dtypes.dtype_number("out_dtype", dtype)
    numbers = package._enumerations
    flags = options.get("allow_tf32", False) * numbers.ALLOW_TF32
    flags += options.get("use_fast_accum", False) * numbers.USE_FAST_ACCUM
    said = {"epilogue": known[options.get("activation")], "element": element, "flags": flags}
    named = {numbers.NAMES.get(x, x): x for x in numbers.FIELDS[name]}
    record = {field: capsules.get(key, said.get(field)) for key, field in named.items()}
    try:
        *shape, element = package._library.binding()[f"{name}_result"](tuple(record.values()))[0]["out"]
    except package.AotGemmError as error:
        return type(error).__name__, str(error)
    default = tensors["x"][1] if element < 0 else getattr(torch, package._dtypes.ELEMENTS[element])
    return tuple(shape), default


def by_fake_tensors(package, operators, name, tensors, options):
    made = {key: torch.empty(shape, dtype=dtype, device="cuda") for key, (shape, dtype) in tensors.items()}
    named = {key: value for key, value in made.items() if key not in ("x", "weight")}
    try:
        result = getattr(operators, name)(made["x"], made["weight"], **named, **options)
    except package.AotGemmError as error:
        return type(error).__name__, str(error)
    assert (result.device.type, result.is_contiguous()) == ("cuda", True)
    return tuple(result.shape), result.dtype


def test_fake_tensors_get_what_the_library_says(module, every_package, operators):
    """Shape and type of the result, or class and text of the error, of products that mostly fit."""
    rng = random.Random(17)
    outcomes = {}
    with FakeTensorMode():
        for _ in range(600):
            drawn = drawn_call(rng)
            expected = by_library(every_package, *drawn)
            assert by_fake_tensors(every_package, operators, *drawn) == expected, drawn
            kind = expected[0] if isinstance(expected[0], str) else "result"
            outcomes[kind] = outcomes.get(kind, 0) + 1
    assert set(outcomes) == {"result", "ShapeError", "DtypeError", "OperandError", "UnsupportedError"}
    assert min(outcomes.values()) > 5, outcomes


OUTS = {
    "shape": ((M, N + 1), BF16, {}),
    "dims": ((1, M, N), BF16, {}),
    "dtype": ((M, N), torch.float64, {}),
    "two types": ((M, N), BF16, {"out_dtype": F16}),
    "a type that there is no product of": ((M, N), torch.int32, {}),
}


@pytest.mark.parametrize("case", OUTS)
def test_an_out_that_does_not_fit_is_refused_as_by_the_package(module, every_package, operators, framework, case):
    shape, dtype, options = OUTS[case]
    stated = [framework.Tensor(*x) for x in (((M, K),), ((N, K),), (shape, GPU_DTYPES[dtype]))]
    with pytest.raises(every_package.AotGemmError) as expected:
        every_package.linear(*stated[:2], out=stated[2], **options)
    with FakeTensorMode():
        x, weight = (torch.empty(*x, dtype=BF16, device="cuda") for x in ((M, K), (N, K)))
        out = torch.empty(shape, dtype=dtype, device="cuda")
        with pytest.raises(type(expected.value)) as found:
            operators.linear.out(x, weight, out=out, **options)
    assert str(found.value) == str(expected.value)


def test_tensors_of_two_devices_and_of_none_are_refused(module, every_package, operators):
    with FakeTensorMode():
        x, weight = torch.empty(M, K, dtype=BF16, device="cuda:0"), torch.empty(N, K, dtype=BF16, device="cuda:1")
        with pytest.raises(every_package.DeviceError, match="weight is on cuda:1, x on cuda:0; expected one GPU"):
            operators.linear(x, weight)
        with pytest.raises(every_package.DeviceError, match="linear: x is on cpu; expected a CUDA tensor"):
            operators.linear(torch.empty(M, K, dtype=BF16), weight)
    with pytest.raises(every_package.DeviceError, match=r"linear: x is not in GPU memory .*move it there first"):
        operators.linear(random_tensor(M, K), random_tensor(N, K))
    meta = torch.empty(2, M, K, dtype=BF16, device="meta")
    assert operators.linear(meta, torch.empty(N, K, dtype=BF16, device="meta")).shape == (2, M, N)


def test_an_operator_that_writes_out_launches_and_counts_the_write(module, every, operators):
    x, weight, out = gpu_operands()
    operators.linear.out(x, weight, out=out)
    assert module.linear(x, weight, out=out) is out
    first, second = every.fake_launches()
    assert [tuple(t.shape) for t in (first.a, first.b, first.d)] == [(M, K), (N, K), (M, N)]
    assert (first.a.data, first.d.data, second.d.data) == (x.address, out.address, out.address)
    assert out._version == 2


# What torch's own checks of operators say, and its compilers.

SAMPLES = {
    "linear": ("linear", [(2, M, K), (N, K)], {}),
    "bias": ("linear", [(M, K), (N, K), (N,)], {}),
    "activation": ("linear", [(M, K), (N, K), (N,)], {"activation": "gelu_tanh"}),
    "residual": ("linear", [(M, K), (N, K), None, None, None, (M, N)], {}),
    "gate": ("gated_linear", [(M, K), (2 * N, K)], {"interleaved": True}),
    "matmul": ("matmul", [(M, K), (K, N)], {}),
    "vectors": ("matmul", [(K,), (K,)], {}),
    "deterministic": ("matmul", [(M, K), (K, N)], {"deterministic": True}),
    "batch-invariant": ("linear", [(M, K), (N, K)], {"batch_invariant": True}),
}


def made(shapes, *, grad=False):
    return [None if shape is None else random_tensor(*shape, grad=grad) for shape in shapes]


@pytest.mark.parametrize("sample", some(SAMPLES, 4))
def test_torch_finds_no_fault_with_an_operator(operators, calls, sample):
    name, shapes, options = SAMPLES[sample]
    packet = getattr(operators, name)
    has_gradient = sample not in ("activation", "residual", "gate")
    assert set(opcheck(packet.default, made(shapes, grad=has_gradient), options).values()) == {"SUCCESS"}
    out = random_tensor(*packet(*made(shapes), **options).shape)
    assert set(opcheck(packet.out, made(shapes), {**options, "out": out}).values()) == {"SUCCESS"}


FUNCTIONS = {
    "linear": (lambda module, x, w, b: module.linear(x, w), 1),
    "bias": (lambda module, x, w, b: module.linear(torch.relu(x), w, b) + 1, 1),
    "activation": (lambda module, x, w, b: module.linear(x, w, b, activation="silu", out_dtype="bfloat16"), 1),
    "matmul": (lambda module, x, w, b: module.matmul(x, w.t()) * b, 1),
    "gate": (lambda module, x, w, b: module.gated_linear(x, w, b, activation="gelu_tanh"), 1),
    "out": (lambda module, x, w, b: module.linear(x, w, out=x.new_empty(*x.shape[:-1], N)) + b, 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_compiled_function_has_no_graph_break(module, calls, name):
    function, num_operators = FUNCTIONS[name]
    x, weight, bias = random_tensor(M, K), random_tensor(N, K), random_tensor(N)
    expected = function(module, x, weight, bias)
    found = torch._dynamo.explain(lambda *operands: function(module, *operands))(x, weight, bias)
    assert (found.graph_break_count, found.graph_count) == (0, 1)
    assert sum("every_gemm" in str(node.target) for node in found.graphs[0].graph.nodes) == num_operators
    compiled = torch.compile(lambda *operands: function(module, *operands), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight, bias), expected, rtol=0, atol=0)


MODES = {
    "linear": lambda module, x, w, **mode: module.linear(x, w, **mode),
    "linear, out": lambda module, x, w, **mode: module.linear(x, w, out=x.new_empty(len(x), len(w)), **mode),
    "gated_linear": lambda module, x, w, **mode: module.gated_linear(x, w, **mode),
    "matmul": lambda module, x, w, **mode: module.matmul(x, w.t(), **mode),
    "matmul, out": lambda module, x, w, **mode: module.matmul(x, w.t(), out=x.new_empty(len(x), len(w)), **mode),
}


@pytest.mark.parametrize("mode", ["deterministic", "batch_invariant"])
@pytest.mark.parametrize("name", MODES)
def test_a_mode_comes_through_a_graph_and_a_gradient(module, calls, name, mode):
    x, weight = random_tensor(M, K), random_tensor(N, K)
    expected = MODES[name](module, x, weight)

    def product(x, weight):
        return MODES[name](module, x, weight, **{mode: True})

    compiled = torch.compile(product, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight), expected, rtol=0, atol=0)
    torch.testing.assert_close(product(x, weight), expected, rtol=0, atol=0)
    assert list(torch_reference.MODES) == [(), (mode,), (mode,)]
    if name in ("linear", "matmul"):
        product(x.requires_grad_(), weight).sum().backward()
        assert (torch_reference.MODES[3:], x.grad.shape) == ([(mode,)], x.shape)


def test_one_graph_serves_every_number_of_rows(module, calls):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(module.linear, backend=backend, fullgraph=True, dynamic=True)
    weight, bias = random_tensor(N, K), random_tensor(N)
    for m in (3, 4, 17, 200):
        x = random_tensor(2, m, K)
        torch.testing.assert_close(compiled(x, weight, bias), torch_reference.linear(x, weight, bias))
    assert len(graphs) == 1


def test_a_gradient_goes_through_a_compiled_function(module, calls):
    operands = [random_tensor(2, M, K, grad=True), random_tensor(N, K, grad=True), random_tensor(N, grad=True)]
    gradients = []
    for function in (module.linear, torch.compile(module.linear, backend="aot_eager", fullgraph=True)):
        function(*operands).square().sum().backward()
        gradients.append([x.grad for x in operands])
        for x in operands:
            x.grad = None
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


def test_a_promise_of_a_constant_weight_is_left_out_of_a_graph(module, every_package, calls):
    x, weight = random_tensor(M, K), random_tensor(N, K)
    promised = every_package.ConstantWeight(weight, weight.data_ptr())
    compiled = torch.compile(lambda x: module.linear(x, promised), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), torch_reference.linear(x, weight))


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_has_the_operator(module, calls, strict):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(random_tensor(N, K))

        def forward(self, x):
            return module.linear(x, self.weight)

    layer, x, rows = Layer(), random_tensor(M, K), torch.export.Dim("rows", min=2)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: rows},), strict=strict)
    assert [str(x.target) for x in program.graph.nodes if "every_gemm" in str(x.target)] == [
        "every_gemm.linear.default"
    ]
    other = random_tensor(9, K)
    torch.testing.assert_close(program.module()(other), layer(other))


def test_an_export_of_tensors_that_are_said_to_be_on_a_gpu(module):
    """The whole road of a trace with devices as they will be: no function of the package is replaced here."""
    with FakeTensorMode():
        x, weight = (torch.empty(*shape, dtype=BF16, device="cuda") for shape in ((M, K), (N, K)))

        class Layer(torch.nn.Module):
            def forward(self, x, weight):
                return module.linear(x, weight)

        program = torch.export.export(Layer(), (x, weight), strict=False)
    (node,) = [x for x in program.graph.nodes if str(x.target) == "every_gemm.linear.default"]
    value = node.meta["val"]
    assert (tuple(value.shape), value.dtype, value.device.type) == ((M, N), BF16, "cuda")


# Gradients.


def formula(name, operands):
    left, right, *bias = operands
    return functional.linear(left, right, *bias) if name == "linear" else torch.matmul(left, right)


RECORDED = {
    "linear": ("linear", [(2, 3, K), (N, K)]),
    "bias": ("linear", [(2, 3, K), (N, K), (N,)]),
    "row": ("linear", [(K,), (N, K), (N,)]),
    "no rows": ("linear", [(0, K), (N, K), (N,)]),
    "no columns": ("linear", [(M, K), (0, K), (0,)]),
    "matmul": ("matmul", [(M, K), (K, N)]),
    "leading": ("matmul", [(2, 3, K), (K, N)]),
    "row by matrix": ("matmul", [(K,), (K, N)]),
    "matrix by vector": ("matmul", [(2, M, K), (K,)]),
    "vectors": ("matmul", [(K,), (K,)]),
}


@pytest.mark.parametrize("case", RECORDED)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_gradients_are_torchs(module, calls, case, dtype):
    name, shapes = RECORDED[case]
    values = [random_tensor(*shape, dtype=dtype) for shape in shapes]
    for needed in ([True] * len(values), *([i == j for j in range(len(values))] for i in range(len(values)))):
        operands = [x.clone().requires_grad_(is_needed) for x, is_needed in zip(values, needed, strict=True)]
        twins = [x.double().requires_grad_(is_needed) for x, is_needed in zip(values, needed, strict=True)]
        result, expected = getattr(module, name)(*operands), formula(name, twins)
        outward = torch.randn(expected.shape).to(dtype)
        result.backward(outward)
        expected.backward(outward.double())
        assert [x.grad is not None for x in operands] == needed
        for x, twin in zip(operands, twins, strict=True):
            if x.grad is not None:
                assert (x.grad.dtype, x.grad.shape) == (dtype, x.shape)
                torch.testing.assert_close(x.grad.double(), twin.grad, rtol=0.01, atol=0.02)


@pytest.mark.parametrize("case", ["bias", "row", "matmul", "matrix by vector", "vectors"])
def test_first_and_second_derivatives_are_those_of_the_product(module, every_package, calls, monkeypatch, case):
    """In float64, which no wheel has: the formulas against differences."""
    monkeypatch.setattr(every_package._torch_operators, "RECORDED", (torch.float64,))
    name, shapes = RECORDED[case]
    operands = [random_tensor(*shape, dtype=torch.float64, grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(getattr(module, name), operands)
    assert torch.autograd.gradgradcheck(getattr(module, name), operands)


REFUSED = {
    "activation": {"activation": "silu"},
    "residual": {"residual": random_tensor(M, N)},
    "another type": {"out_dtype": torch.float32},
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_gradient_that_there_is_none_of_is_refused(module, every_package, calls, case):
    x, weight = random_tensor(M, K, grad=True), random_tensor(N, K)
    with pytest.raises(every_package.GradientError, match="recorded of plain products and a bias alone"):
        module.linear(x, weight, **REFUSED[case])
    with torch.no_grad():
        assert module.linear(x, weight, **REFUSED[case]).shape == (M, N)


def test_a_compiler_says_what_the_package_refuses(module, calls):
    x, weight = random_tensor(M, K, grad=True), random_tensor(N, K)
    compiled = torch.compile(lambda x: module.linear(x, weight, activation="relu"), backend="eager")
    with pytest.raises(RuntimeError, match=r"GradientError.*recorded of plain products and a bias alone"):
        compiled(x)
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=r"ShapeError.*linear: x \(4, 7\) has k 7, weight \(6, 8\) has k 8"):
        compiled(x.detach()[:, 1:])


def test_more_gradients_that_are_refused(module, every_package, calls):
    x, weight, out = random_tensor(M, K, grad=True), random_tensor(2 * N, K), random_tensor(M, N)
    with pytest.raises(every_package.GradientError, match="gated_linear: an operand requires a gradient"):
        module.gated_linear(x, weight)
    with pytest.raises(every_package.GradientError, match=r"linear: an operand requires a gradient, .* writes out="):
        module.linear(x, weight[:N], out=out)
    with pytest.raises(every_package.GradientError, match="matmul: an operand requires a gradient"):
        module.matmul(x, weight.t(), out=random_tensor(M, 2 * N))
    with pytest.raises(every_package.GradientError, match="in bfloat16 and float16"):
        module.linear(x.detach().float().requires_grad_(), weight.float())
    assert out._version == 0


def test_a_batch_of_x_is_one_product_and_any_other_torchs(module, operators, calls):
    x, weight, bias = random_tensor(K, 3, 2), random_tensor(N, K), random_tensor(N)
    columns = torch.vmap(lambda x: operators.linear(x.t(), weight, bias, activation="relu"), in_dims=1)(x)
    expected = torch_reference.linear(x.permute(1, 2, 0), weight, bias, activation="relu")
    torch.testing.assert_close(columns, expected)
    assert calls == ["linear"]
    weights = random_tensor(5, N, K)
    each = torch.vmap(operators.linear, (None, 0))(random_tensor(M, K), weights)
    assert (each.shape, calls) == ((5, M, N), ["linear"])
    for added, dims in ((bias, (1, 0, None)), (random_tensor(5, N), (1, 0, 0))):
        x = random_tensor(2, 5, K)
        found = torch.vmap(module.linear, dims)(x, weights, added)
        expected = torch.vmap(functional.linear, dims)(x, weights, added)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    for shape, dims in (((5, K), (1, 0)), ((5, K, N), (1, 0)), ((5, K, N), (None, 0))):
        both = x, random_tensor(*shape)
        found, expected = torch.vmap(module.matmul, dims)(*both), torch.vmap(torch.matmul, dims)(*both)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    vectors = torch.vmap(operators.matmul, (0, None))(x[0], weight.t())
    torch.testing.assert_close(vectors, torch_reference.matmul(x[0], weight.t()))


# Which way a call goes.


def test_an_eager_call_goes_to_the_packages_function_at_once(module, every_package, calls, monkeypatch):
    def unwanted(*operands, **options):
        raise AssertionError("the dispatcher was asked")

    monkeypatch.setattr(
        every_package._torch_products, "_operators", SimpleNamespace(linear=SimpleNamespace(default=unwanted))
    )
    x, weight = random_tensor(M, K), random_tensor(N, K, grad=True)
    with torch.no_grad():
        module.linear(x, weight)
        module.linear(x, torch.nn.Parameter(weight), activation="relu")
    module.linear(x, weight.detach())
    assert calls == ["linear"] * 3
    with pytest.raises(AssertionError, match="the dispatcher was asked"):
        module.linear(x, weight).sum()


def test_what_is_no_tensor_of_torch_is_refused_as_without_torch(module, every_package):
    for x in (None, 3, [1.0]):
        with pytest.raises(every_package.DtypeError, match="expected a tensor that speaks DLPack"):
            module.linear(x, random_tensor(N, K))
        with pytest.raises(every_package.DtypeError, match="expected a tensor that speaks DLPack"):
            module.matmul(x, random_tensor(N, K))


def test_a_dispatch_mode_sees_the_call(module, calls):
    x, weight = random_tensor(M, K), random_tensor(N, K)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: module.linear(x, weight) + 1)(x)
    assert "every_gemm.linear.default" in [str(node.target) for node in graph.graph.nodes]
    other = random_tensor(M, K)
    torch.testing.assert_close(graph(other), torch_reference.linear(other, weight) + 1)


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((4,), (2, 3, 4, 5)), ((2, 1, 3, 4), (6, 4, 5))]
)
def test_gradients_of_batches_are_torchs(module, every_package, a, b):
    operators = import_module(f"{every_package.__name__}._torch_operators")
    left, right = (torch.randn(x, dtype=torch.float64, requires_grad=True) for x in (a, b))
    result = torch.matmul(left, right)
    gradient = torch.randn_like(result)
    expected = torch.autograd.grad(result, (left, right), gradient)
    found = operators._batch_backward(left.detach(), right.detach(), gradient, left.shape, right.shape, (True, True))
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
