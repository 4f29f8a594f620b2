"""Groups of rows whose D has factors of blocks, over the recorder: in C, in Python, and as operators of torch."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from aot.core.operation import Operation
from tests.runtime.stating import QUANTIZED_GROUPS
from tests.runtime.tensors import E4M3, E8M0, FLOAT32, INT32, UINT8
from tests.runtime.test_arguments import read
from tests.runtime.test_groups import ADDRESSES, SHAPE, STRIDE, state
from tests.runtime.test_packed_python import Factor
from tests.runtime.test_python_operations import call_of

PLAIN, GATE = Operation.NVFP4_NVFP4_KK_GROUPED, Operation.NVFP4_NVFP4_KK_GROUPED_SWIGLU
ROWS, N, K, GROUPS = 300, 96, 160, 3
NUM_ATOMS = 3 + GROUPS - 1
"""Atoms of 300 rows in three groups, whatever their sizes are."""


@pytest.fixture
def library(packed):
    return packed


def along(columns, operation=PLAIN):
    """Count the bytes of the atoms of 128 rows."""
    return -(-columns // (4 * operation.factors_of_d.block_k)) * 512


# The C API.

FACTORS = ADDRESSES["factors_d"]
OF_C = {
    "half a byte at the end": ({"n": 127}, SHAPE, "n is 127; expected a multiple of 2 of nvfp4_nvfp4_grouped"),
    "rows inside of a byte": ({"d": (ADDRESSES["d"], (129, 1))}, STRIDE, "elements, which share a byte; copy D"),
    "rows that overlap": ({"d": (ADDRESSES["d"], (64, 1))}, STRIDE, "D of 1 matrices (48, 64) with strides"),
    "factors anywhere": ({"factors_d": (FACTORS + 8, (0, 0))}, STRIDE, "factors_d is at address"),
    "factors in D": ({"factors_d": (ADDRESSES["d"] + 2048, (0, 0))}, STRIDE, "reaches into the memory of factors_d"),
    "factors in A": ({"factors_d": (ADDRESSES["a"] + 2048, (0, 0))}, STRIDE, "factors_d at address"),
    "factors in those of B": ({"factors_d": (ADDRESSES["scale_b"], (0, 0))}, STRIDE, "the memory of scale_b"),
    "factors over the offsets": ({"offsets": (FACTORS + 512, (1, 1))}, STRIDE, "the memory of the offsets"),
    "the own factor in the factors": ({"own_d": (FACTORS + 16, (0, 0))}, STRIDE, "factors_d at address"),
    "the own factor in D": ({"own_d": (ADDRESSES["d"] + 16, (0, 0))}, STRIDE, "D at address"),
}


@pytest.mark.parametrize("name", OF_C)
def test_the_c_library_refuses(library, name):
    changes, status, text = OF_C[name]
    stated = state(library, PLAIN, **changes)
    assert library.launch(stated, 0x900000, 1 << 20) == status
    assert text in library.error()


# Python.


def arguments(make, operation, *, listed=False):
    """Make x, weights and offsets, and what else a call is given."""
    rows, k, (dtype, factors) = operation.num_rows_of_b(N), operation.a.element.size_of(K), types_of(operation)
    weight, of_w = make((GROUPS, rows, k), dtype), -(-rows // 128) * along(K, operation)
    scale_w = make((GROUPS * of_w,), factors)
    if listed:
        weight, scale_w = ([make(x, y) for _ in range(GROUPS)] for x, y in (((rows, k), dtype), ((of_w,), factors)))
    named = {"scale_x": make((NUM_ATOMS * along(K, operation),), factors), "scale_w": scale_w}
    named |= {"gate": "silu", "interleaved": True} if operation.gate is not None else {}
    named["out_dtype"] = operation.a.tag
    if operation.factors_of_d.has_tensor_factor:
        owns = {"scale_x": Factor(make((GROUPS,), FLOAT32)), "scale_w": object()}
        named |= {x: (named[x], y) for x, y in owns.items()} | {"scale_out": make((1,), FLOAT32)}
    return (make((ROWS, k), dtype), weight, make((GROUPS,), INT32)), named


def types_of(operation):
    """Give the types of elements and factors as tensors have them."""
    element, form = operation.a.element, operation.factors_of_d
    return UINT8 if element.num_sharing > 1 else E4M3, E4M3 if form.has_tensor_factor else E8M0


def parts_of(factors):
    """Give factors and the own factor of a pair; None where factors are alone."""
    return factors if isinstance(factors, tuple) else (factors, None)


@pytest.mark.parametrize("operation", QUANTIZED_GROUPS, ids=lambda x: x.tag)
@pytest.mark.parametrize("listed", [False, True], ids=["a stack", "a list"])
def test_python_gives_what_the_next_groups_take(atoms_package, atoms_manifest, packed, tensor, operation, listed):
    given, named = arguments(tensor, operation, listed=listed)
    (dtype, of_factors), columns = types_of(operation), operation.a.element.size_of
    values, found = atoms_package.grouped_linear(*given, **named)
    factors, own = parts_of(found)
    assert ((tuple(values.shape), values.dtype), own) == (((ROWS, columns(N)), dtype), named.get("scale_out"))
    num_bytes = NUM_ATOMS * along(N, operation)
    assert (tuple(factors.shape), factors.dtype) == ((num_bytes,), of_factors)
    (launch,) = packed.fake_launches()
    assert call_of(atoms_manifest, launch) == operation.call
    assert read(launch.d, 1) == (values.address, [ROWS, N], [N])
    assert (launch.factors_d.data, launch.factors_d.shape[0]) == (factors.address, num_bytes)
    if own is not None:
        assert (launch.own_d.data, launch.own_d.shape[0]) == (own.address, 1)
        assert launch.scale_d.data == named["scale_x"][1].tensor.address

    packed.c.recorder_reset()
    down, of_down = tensor((GROUPS, 64, columns(N)), dtype), tensor((GROUPS * along(N, operation),), of_factors)
    out = tensor((ROWS, columns(64)), dtype), tensor((NUM_ATOMS * along(64, operation),), of_factors)
    last = {"scale_x": factors, "scale_w": of_down, "out_dtype": operation.a.tag, "out": out}
    if own is not None:
        last |= {"scale_x": (factors, Factor(tensor((GROUPS,), FLOAT32))), "scale_w": (of_down, object())}
        last["scale_out"] = own
    found, written = atoms_package.grouped_linear(values, down, given[2], **last)
    assert (found, parts_of(written)[0]) == out
    (launch,) = packed.fake_launches()
    assert (launch.a.data, launch.scale_a.vector.data) == (values.address, factors.address)
    assert (launch.d.data, launch.factors_d.data) == tuple(x.address for x in out)


def test_the_product_of_the_own_factors_may_be_given_in_a_pair(atoms_package, packed, tensor):
    given, named = arguments(tensor, PLAIN)
    product, own = named["scale_x"][1].tensor, named["scale_out"]
    bare = named | {x: named[x][0] for x in ("scale_x", "scale_w")}
    _, (_, of_result) = atoms_package.grouped_linear(*given, **bare | {"scale_out": (product, own)})
    (launch,) = packed.fake_launches()
    assert (launch.scale_d.data, launch.own_d.data, of_result) == (product.address, own.address, own)
    for scale_out, text in (
        ((product, own, own), "scale_out is 3 tensors"),
        ((product, None), "scale_out is missing"),
    ):
        with pytest.raises(atoms_package.OperandError, match=text):
            atoms_package.grouped_linear(*given, **bare | {"scale_out": scale_out})
    with pytest.raises(atoms_package.OperandError, match="got scale_out and the tensors' own factors"):
        atoms_package.grouped_linear(*given, **named | {"scale_out": (product, own)})


OF_PYTHON = {
    "a factor for each group": ({"scale_out": ((GROUPS,), FLOAT32)}, "ShapeError", "expected one element, the result"),
    "out alone": ({"out": ((ROWS, N // 2), UINT8)}, "OperandError", "out is no pair beside out_dtype='nvfp4'"),
    "an index": ({"index": ((ROWS,), INT32)}, "UnsupportedError", "no wheel has"),
}


@pytest.mark.parametrize("name", OF_PYTHON)
def test_python_refuses(atoms_package, packed, framework, name):
    changes, kind, text = OF_PYTHON[name]
    given, named = arguments(framework.Tensor, PLAIN)
    named |= {x: framework.Tensor(*y) for x, y in changes.items()}
    with pytest.raises(getattr(atoms_package, kind), match=text):
        atoms_package.grouped_linear(*given, **named)


def test_factors_of_another_number_of_groups_are_refused(atoms_package, packed, framework):
    given, named = arguments(framework.Tensor, PLAIN)
    out = framework.Tensor((ROWS, N // 2), UINT8), framework.Tensor((3 * along(N),), E4M3)
    with pytest.raises(atoms_package.ShapeError, match=r"expected \(5120,\), the bytes of the factors' atoms"):
        atoms_package.grouped_linear(*given, **named, out=out)


# torch.


def on_gpu(shape, dtype):
    return torch.empty(shape, dtype=dtype, device="cuda")


TRACED = (
    *(Operation.NVFP4_NVFP4_KK, Operation.NVFP4_NVFP4_KK_GEGLU, Operation.MXFP8_MXFP8_KK, PLAIN, GATE),
    *(Operation.MXFP8_MXFP8_KK_GROUPED, Operation.MXFP4_MXFP4_KK_GROUPED_SWIGLU),
)


def traced_call(module, operation):
    """Give a function of x, its factors and the result's own factor, what it is called with, and what it gives."""
    rows, form, codes = operation.num_rows_of_b(N), operation.factors_of_d, torch.uint8
    is_grouped, has_own = operation in QUANTIZED_GROUPS, form.has_tensor_factor
    function, named = module.linear, {"out_dtype": operation.a.tag}
    if is_grouped:
        function, named = module.grouped_linear, named | ({"gate": "silu", "interleaved": True} if rows > N else {})
    elif rows > N:
        function, named = module.gated_linear, named | {"activation": "gelu_tanh", "interleaved": True}
    factors = torch.float8_e4m3fn if has_own else torch.float8_e8m0fnu
    per_byte = operation.a.element.num_sharing
    elements = codes if per_byte > 1 else torch.float8_e4m3fn
    count, held = ((GROUPS,), NUM_ATOMS) if is_grouped else ((), 3)
    weight = on_gpu((*count, rows, K // per_byte), elements)
    of_weight = on_gpu((GROUPS if is_grouped else 1) * -(-rows // 128) * -(-K // (4 * form.block_k)) * 512, factors)
    of_x = on_gpu(held * -(-K // (4 * form.block_k)) * 512, factors)
    own_x, own_w, own = on_gpu(1, torch.float32), on_gpu(count or 1, torch.float32), on_gpu(1, torch.float32)
    ends = (on_gpu(GROUPS, torch.int32),) if is_grouped else ()

    def layer(x, of_x, own=None, out=None):
        scales = {"scale_x": of_x, "scale_w": of_weight}
        if has_own:
            scales = {"scale_x": (of_x, own_x), "scale_w": (of_weight, own_w), "scale_out": own}
        return function(x, weight, *ends, **scales, **named, out=out)

    given = (on_gpu((ROWS, K // per_byte), elements), of_x, *((own,) if has_own else ()))
    atoms = held * -(-N // (4 * form.block_k)) * 512
    return layer, given, (((ROWS, N // per_byte), elements), ((atoms,), factors))


@pytest.mark.parametrize("operation", TRACED, ids=lambda x: x.call)
def test_operators_are_traced_whole(atoms_package, packed, operation):
    module = import_module(f"{atoms_package.__name__}.torch")
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph

    with FakeTensorMode(), torch.no_grad():
        layer, given, expected = traced_call(module, operation)
        values, found = torch.compile(layer, backend=keep, fullgraph=True)(*given)
        atoms, has_own = found[0] if isinstance(found, tuple) else found, len(given) > 2
        assert isinstance(found, tuple) == has_own
        assert tuple((tuple(x.shape), x.dtype) for x in (values, atoms)) == expected
        (graph,) = graphs
        assert "linear_in_blocks" in str(graph.code)
        out = torch.empty_like(values), torch.empty_like(atoms)
        written, again = layer(*given, out=out)
        assert (written, again[0] if has_own else again) == out
        with pytest.raises(atoms_package.ShapeError, match=r"scale_x has shape \(7,\)"):
            layer(given[0], on_gpu(7, atoms.dtype), *given[2:])


def test_the_operator_of_lists_takes_lists_of_factors(atoms_package, packed):
    module = import_module(f"{atoms_package.__name__}.torch")
    with FakeTensorMode(), torch.no_grad():
        weights = [on_gpu((N, K // 2), torch.uint8) for _ in range(GROUPS)]
        atoms = [on_gpu(along(K), torch.float8_e4m3fn) for _ in range(GROUPS)]
        x, of_x = on_gpu((ROWS, K // 2), torch.uint8), on_gpu(NUM_ATOMS * along(K), torch.float8_e4m3fn)
        ends, own, both = on_gpu(GROUPS, torch.int32), on_gpu(1, torch.float32), on_gpu(GROUPS, torch.float32)

        def layer(x, of_x, both):
            named = {"scale_x": of_x, "scale_w": atoms, "scale_out": (both, own), "out_dtype": "nvfp4"}
            return module.grouped_linear(x, weights, ends, **named)

        values, (factors, _) = torch.compile(layer, backend="aot_eager", fullgraph=True)(x, of_x, both)
        assert (tuple(values.shape), tuple(factors.shape)) == ((ROWS, N // 2), (NUM_ATOMS * along(N),))
    with pytest.raises(atoms_package.GradientError, match="a result in blocks has none"):
        layer(x, of_x, torch.ones(GROUPS, requires_grad=True))


BESIDE_SCHEMA = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
"""What torch checks of an operator but for its schema: it multiplies what is written, and float8 by nothing."""


def test_torch_finds_no_fault_with_an_operator(atoms_package, monkeypatch):
    module = import_module(f"{atoms_package.__name__}.torch")
    operator = getattr(torch.ops, atoms_package.__name__).grouped_linear_in_blocks

    def stand_in(x, *_, out, scale_out, **__):
        given = torch.zeros((len(x), N // 2), dtype=torch.uint8), torch.zeros(NUM_ATOMS * along(N), dtype=torch.uint8)
        values, factors = (given[0], given[1].view(torch.float8_e4m3fn)) if out is None else out
        values.copy_(x[:, : N // 2])
        factors.view(torch.uint8).fill_(1)
        return values, (factors, scale_out[1])

    monkeypatch.setattr(atoms_package._operations, "grouped_linear", stand_in)
    monkeypatch.setattr(atoms_package._torch_result, "DEVICES", ("cpu", "cuda", "meta"))
    x = torch.randint(255, (2, ROWS, K // 2), dtype=torch.uint8)
    weight, ends = torch.zeros((GROUPS, N, K // 2), dtype=torch.uint8), torch.tensor([1, 1, 9], dtype=torch.int32)
    of_x, of_weight = (torch.zeros(y, dtype=torch.uint8) for y in (NUM_ATOMS * along(K), GROUPS * along(K)))
    others = weight, ends, None, None, of_x, of_weight, torch.ones(GROUPS), torch.ones(1)
    asked = {"form": "nvfp4"}
    assert set(opcheck(operator.default, (x[0], *others), asked).values()) == {"SUCCESS"}
    out = torch.zeros((ROWS, N // 2), dtype=torch.uint8), torch.zeros(NUM_ATOMS * along(N), dtype=torch.float8_e4m3fn)
    into = asked | dict(zip(("out", "factors_out"), out, strict=True))
    assert set(opcheck(operator.out, (x[0], *others), into, test_utils=BESIDE_SCHEMA).values()) == {"SUCCESS"}
    values, factors = torch.vmap(lambda rows: operator(rows, *others, **asked))(x)
    assert torch.equal(values, x[..., : N // 2])
    assert tuple(factors.shape) == (2, NUM_ATOMS * along(N))
    scaled = {"scale_x": of_x, "scale_w": of_weight, "scale_out": others[-2:], "out_dtype": "nvfp4"}
    assert torch.equal(module.grouped_linear(x[0], weight, ends, **scaled)[0], values[0])
