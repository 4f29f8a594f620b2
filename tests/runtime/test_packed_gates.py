"""Gates of two packed weights: what the C API takes, what kernels get, Python's calls, torch's operator and graphs."""

from __future__ import annotations

import ctypes
from importlib import import_module

import pytest
import torch

from aot.core.weight_format import PackedLayout
from aot.measure.call_structs import GATE_INTERLEAVED, GATE_PARTS, GroupStrides, ProblemStruct, TensorStruct
from tests.runtime import host, torch_reference
from tests.runtime.exchange import Framework
from tests.runtime.stating import PACKED_GATES
from tests.runtime.tensors import BFLOAT16, FLOAT16, FLOAT32, UINT8
from tests.runtime.torch_reference import random_tensor

M, N, K = 48, 72, 256
X, B, D, SCALE, BIAS, WORKSPACE = (i << 44 for i in range(1, 7))
STEP, OF_FACTORS = 1 << 20, -(1 << 12)


@pytest.fixture
def library(packed_package):
    library = host.Library(packed_package._library.LIBRARY)
    library.c.recorder_reset()
    return library


def launch(library, operation, *, n=N, steps=None, flags=0, scale=(1, 0), b=B):
    """Launch a gate; `steps` are those of bytes and of factors from the gate's weight to the linear one."""
    number = library.c.aot_gemm_operation(operation.call.encode())
    tensors = TensorStruct(X, (K, 1)), TensorStruct(b, (-3, 7)), TensorStruct(D, (n, 1))
    problem = ProblemStruct(ctypes.sizeof(ProblemStruct), number, -1, M, n, K, *tensors, flags)
    problem.bias = TensorStruct(BIAS, (0, 1))
    if operation.types.scale_b is not None:
        problem.scale_b = TensorStruct(SCALE, scale)
    if steps is not None:
        problem.flags |= GATE_PARTS
        problem.group_strides = GroupStrides(b=steps[0], scale_b=steps[1])
    status = library.c.aot_gemm_launch(
        ctypes.byref(problem), ctypes.c_void_p(WORKSPACE), ctypes.c_size_t(1 << 40), None
    )
    return library.c.aot_gemm_last_error().decode() if status else ""


@pytest.mark.parametrize("operation", PACKED_GATES, ids=lambda x: x.tag)
@pytest.mark.parametrize("steps", [None, (STEP, OF_FACTORS), (-STEP, 1)], ids=("one", "behind", "in front"))
def test_a_kernel_gets_the_bytes_of_both(library, operation, steps):
    for n in (N, N - 1):  # the second is the fallback's
        assert launch(library, operation, n=n, steps=steps) == ""
        (got,) = library.fake_launches()
        rows, row_bytes = PackedLayout(operation.b.weight).shape(n, K)
        b, step = got.b.parts, rows * row_bytes if steps is None else steps[0]
        assert (b.data, tuple(b.shape), tuple(b.strides)[:2]) == (B, (2, rows, row_bytes), (step, row_bytes))
        assert (tuple(got.bias.parts.shape), got.bias.parts.strides[0]) == ((2, n), n)
        if operation.types.scale_b is not None:
            own = n if steps is None else steps[1]
            factors = got.scale_b.matrix
            assert (factors.data, tuple(factors.shape), tuple(factors.strides)) == (SCALE, (2, n), (own, 1))
        library.c.recorder_reset()


def test_one_factor_serves_a_weight(library):
    operation = PACKED_GATES[1]
    assert launch(library, operation, steps=(STEP, 5), scale=(0, 0)) == ""
    assert tuple(library.fake_launches()[0].scale_b.matrix.strides) == (5, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flags": GATE_INTERLEAVED}, "flags are 0x2; expected 0, or of AOT_GEMM_B_CONSTANT"),
        ({"steps": (STEP + 8, 0)}, f"group_strides.b is {STEP + 8}, the bytes from the gate's packed weight to the"),
        ({"steps": (D - B + 32, 0)}, "D at address 0x300000000000 overlaps B at address 0x300000000020"),
        ({"steps": (-(1 << 62), 0)}, "group_strides.b is -4611686018427387904, the step from the gate rows of B"),
    ],
)
def test_what_no_two_weights_are_is_refused(library, changes, message):
    assert launch(library, PACKED_GATES[0], **changes)[: len(message)] == message
    assert library.fake_launches() == []


# Python.


@pytest.mark.parametrize("operation", PACKED_GATES, ids=lambda x: x.tag)
def test_a_call_is_launched_with_both_weights(packed_package, packed_manifest, library, operation):
    framework = Framework()
    dtype = FLOAT16 if operation.a.element.value == "float16" else BFLOAT16
    shape = PackedLayout(operation.b.weight).shape(N, K)
    x, gate, up = framework.Tensor((6, 8, K), dtype), *(framework.Tensor(shape, UINT8) for _ in range(2))
    scales = [framework.Tensor((N,), FLOAT32) for _ in range(2)] if operation.types.scale_b else [None] * 2
    out = packed_package.packed_gated_linear(
        x,
        gate,
        up,
        activation="gelu_tanh" if "geglu" in operation.tag else "silu",
        weight_format=operation.b.weight.name,
        columns=N,
        scale_gate=scales[0],
        scale_up=scales[1],
    )
    (got,) = library.fake_launches()
    assert packed_manifest.kernels[got.kernel].operation == operation
    assert (tuple(out.shape), got.d.data) == ((6, 8, N), out.address)
    assert (got.b.parts.data, got.b.parts.strides[0]) == (gate.address, up.address - gate.address)
    if operation.types.scale_b:
        step = (scales[1].address - scales[0].address) // 4
        assert (got.scale_b.matrix.data, tuple(got.scale_b.matrix.strides)) == (scales[0].address, (step, 1))


def test_a_plan_names_the_operation(packed_package):
    plan = packed_package.plan(M, N, K, weight_dtype="int4g128", gated=True)
    assert plan.operation == "bf16xint4g128_bf16_swiglu"


# torch.


@pytest.fixture(scope="module")
def gemm(packed_package):
    return import_module(f"{packed_package.__name__}.torch")


@pytest.fixture
def launched(packed_package, monkeypatch):
    return torch_reference.stand_in(packed_package, monkeypatch)


def drawn(gemm, name, seed, n=N):
    codes = torch.randint(0, 16 if name.startswith("int4") else 256, (n, K), dtype=torch.uint8)
    factors = torch.rand(n, K // 128).to(torch.bfloat16) * 0.02 if name.startswith("int4") else None
    scale = None if name.startswith("int4") else torch.rand(n) * 1e-3
    return gemm.pack(codes, factors, format=name, scale=scale)


def expected(gemm, x, gate, up, activation="silu"):
    wide = [x.float() @ gemm.dequantize(y, dtype=torch.float32).t() for y in (gate, up)]
    return torch_reference.ACTIVATIONS[activation](wide[0]) * wide[1]


@pytest.mark.parametrize("is_one", [True, False])
def test_the_faster_way_is_taken(gemm, packed_package, launched, monkeypatch, is_one):
    gates = import_module(f"{packed_package.__name__}._torch_packed_gates")
    monkeypatch.setattr(gates, "is_one_launch", lambda *_: is_one)
    for name, activation, dtype in (("int4g128", "silu", torch.bfloat16), ("int8", "gelu_tanh", torch.float16)):
        x, weights = random_tensor(3, K, dtype=dtype), [drawn(gemm, name, i) for i in range(2)]
        launched.clear()
        found = gemm.gated_linear(x, weights, activation=activation)
        assert launched == (["packed_gated_linear"] if is_one else ["packed_linear"] * 2)
        assert torch.allclose(found.float(), expected(gemm, x, *weights, activation), 0.03, 0.03)
        out = torch.empty_like(found)
        assert gemm.gated_linear(x, weights, activation=activation, out=out) is out
        assert torch.equal(out, found)


def test_a_row_gets_its_bits_one_way_where_other_rows_are_not_to_change_them(
    gemm, packed_package, launched, monkeypatch
):
    gates = import_module(f"{packed_package.__name__}._torch_packed_gates")
    asked = []
    monkeypatch.setattr(gates, "is_one_launch", lambda problem, _: asked.append(problem.m) or False)
    weights = [drawn(gemm, "int4g128", i) for i in range(2)]
    for m in (3, 40):
        gemm.gated_linear(random_tensor(m, K), weights, batch_invariant=True)
        gemm.gated_linear(random_tensor(m, K), weights)
    assert asked == [1, 3, 1, 40]


def test_two_products_are_asked_for_the_type_that_one_is(gemm, packed_package, launched, monkeypatch):
    gates, asked = import_module(f"{packed_package.__name__}._torch_packed_gates"), []
    monkeypatch.setattr(gates, "is_one_launch", lambda *_: False)
    stood_in = gates._operations.packed_linear

    def packed_linear(*operands, **options):
        asked.append(options.get("out_dtype"))
        return stood_in(*operands, **options)

    monkeypatch.setattr(gates._operations, "packed_linear", packed_linear)
    gemm.gated_linear(random_tensor(3, K), [drawn(gemm, "int4g128", i) for i in range(2)], out_dtype=torch.float32)
    assert asked == [torch.float32] * 2


def test_tables_and_rows_decide(packed_package, monkeypatch):
    """Where tables have times of both, of one kind, these; else few rows are one launch; what a wheel lacks is none."""
    gates = import_module(f"{packed_package.__name__}._torch_packed_gates")

    def chosen(m, one_us, each_us, origin="predicted", **changes):
        asked = gates.Gate(m, N, K, torch.bfloat16, "int4g128", "silu", bias=False)._replace(**changes)
        times = {True: one_us, False: each_us}
        plan = packed_package._table.plan

        def timed(*operands, gated=False, **options):
            found = plan(*operands, gated=gated, **options)
            told = {"time_us": times[gated], "tier": "tuned", "provenance": origin if gated else "predicted"}
            return type(found)(**{**vars(found), **told})

        monkeypatch.setattr(gates, "plan", timed)
        gates.is_one_launch.cache_clear()
        return gates.is_one_launch(asked)

    assert [chosen(3, 7.0, each) for each in (3.0, 3.6)] == [False, True]
    assert [chosen(m, None, 1.0) for m in (8, 9)] == [True, False]
    assert [chosen(m, us, 1.0, "measured") for m, us in ((8, 9.0), (9, 0.1))] == [True, False]
    assert not chosen(3, 1.0, 1.0, activation="gelu_tanh")
    gates.is_one_launch.cache_clear()


def test_two_packed_weights_are_asked_for(gemm, packed_package, launched):
    x, gate, up = random_tensor(3, K), *(drawn(gemm, "int4g128", i) for i in range(2))
    for weight in (gate, [gate], [gate, up.data], [gate, up, up]):
        with pytest.raises(packed_package.OperandError, match="expected two packed weights, the gate's and the linear"):
            gemm.gated_linear(x, weight)
    with pytest.raises(packed_package.FormatError, match="expected the same of both"):
        gemm.gated_linear(x, [gate, drawn(gemm, "int4g128", 2, n=N + 8)])
    with pytest.raises(packed_package.DtypeError, match=r"the packed weights have factors of torch\.bfloat16"):
        gemm.gated_linear(x.half(), [gate, up])
    with pytest.raises(packed_package.GradientError, match="packed_gated_linear: an operand requires a gradient"):
        gemm.gated_linear(x.clone().requires_grad_(), [gate, up])
    assert launched == []


def test_graphs_join_gates_of_packed_layers(gemm, packed_package, launched):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj = (torch.nn.Linear(K, N, bias=False, dtype=torch.bfloat16) for _ in range(2))

        def forward(self, x):
            return torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)

    net, x = Net(), random_tensor(2, 3, K)
    backend = import_module(f"{packed_package.__name__}._torch_backend")
    gemm.quantize(net, "int4g128")
    with torch.no_grad():
        plain = net(x)
        launched.clear()
        found = torch.compile(net, backend=backend.backend, fullgraph=True)(x)
    assert launched == ["packed_gated_linear"]
    assert torch.allclose(found.float(), plain.float(), 0.05, 0.05)
