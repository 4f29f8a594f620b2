"""A D in NVFP4 with factors, over the recorder: what a kernel is given, what Python gives back, what is refused."""

from __future__ import annotations

from functools import partial

import pytest

from aot.core.element import ElementType
from aot.core.formats import MX, NVFP4
from aot.core.operation import Operation
from tests.runtime.stating import ADDRESSES, QUANTIZED, state
from tests.runtime.tensors import BFLOAT16, E4M3, E8M0, FLOAT32, UINT8, install_cupy
from tests.runtime.test_arguments import FALLBACK, launched, read, tier_of
from tests.runtime.test_packed_python import Factor, product_of, steps
from tests.runtime.test_python_operations import call_of

PLAIN, GATE = Operation.NVFP4_NVFP4_KK, Operation.NVFP4_NVFP4_KK_SWIGLU
M, N, K = 130, 96, 160
FACTORS = {NVFP4: E4M3, MX: E8M0}
"""Of which type the factors of a format are."""
TYPES = {"float8_e4m3fn": E4M3, "float8_e8m0fnu": E8M0, "uint8": UINT8, "bfloat16": BFLOAT16}


@pytest.fixture
def library(packed):
    return packed


@pytest.fixture(params=["exchange", "capsules"])
def tensor(request, framework, monkeypatch):
    """Make tensors of a framework with the exchange API, or of a CuPy, which the package asks in Python."""
    if request.param == "exchange":
        return framework.Tensor
    cupy = install_cupy(monkeypatch, 0x8880)
    cupy.empty = lambda shape, dtype: cupy.ndarray(shape, TYPES.get(dtype, dtype))
    return cupy.ndarray


def atom_bytes(rows, columns, form=NVFP4):
    return -(-rows // 128) * -(-columns // (4 * form.block_k)) * 512


@pytest.mark.parametrize("operation", QUANTIZED, ids=lambda x: x.tag)
@pytest.mark.parametrize("n", [N, N + 2], ids=["packed", "for the fallback"])
def test_a_kernel_is_given_the_place_of_the_factors(atoms_manifest, library, operation, n):
    stated = state(library, operation, M, n, K)
    launch = launched(library, stated)
    assert atoms_manifest.kernels[launch.kernel].operation is operation
    assert (tier_of(library, stated) == FALLBACK) == (n > N)
    assert read(launch.d, 1) == (ADDRESSES["d"], [M, n], [n])
    form = operation.factors_of_d
    own = (ADDRESSES["own_d"], 1) if form.has_tensor_factor else (None, 0)
    assert (launch.own_d.data, launch.own_d.shape[0]) == own
    assert (launch.factors_d.data, launch.factors_d.shape[0]) == (ADDRESSES["factors_d"], atom_bytes(M, n, form))


OF_C = {
    "half a byte at the end": ({"n": 33}, "n is 33; expected a multiple of 2 of nvfp4_nvfp4, whose elements"),
    "rows inside of a byte": (
        {"d": (ADDRESSES["d"], (97, 1))},
        "rows at multiples of 2 elements, which share a byte; copy D",
    ),
    "columns apart": ({"d": (ADDRESSES["d"], (1, M))}, "D (130, 96) of float4_e2m1fn has strides (1, 130); expected"),
    "factors anywhere": ({"factors_d": (ADDRESSES["factors_d"] + 8, (0, 0))}, "which its atoms begin at; copy it"),
    "factors in D": ({"factors_d": (ADDRESSES["d"] + 4096, (0, 0))}, "D at address"),
    "factors in A": ({"factors_d": (ADDRESSES["a"] + 4096, (0, 0))}, "factors_d at address"),
    "factors in those of A": ({"factors_d": (ADDRESSES["scale_a"], (0, 0))}, "factors_d at address"),
    "the own factor in D": ({"own_d": (ADDRESSES["d"] + 16, (0, 0))}, "overlaps own_d at address"),
    "the own factor in the factors": ({"own_d": (ADDRESSES["factors_d"] + 16, (0, 0))}, "overlaps own_d at address"),
    "a batch": ({"num_groups": 2}, "launch each product by itself"),
}


@pytest.mark.parametrize("name", OF_C)
def test_the_c_library_refuses(library, name):
    changes, text = OF_C[name]
    n = changes.get("n", N)
    stated = state(library, PLAIN, M, n, K, **{x: y for x, y in changes.items() if x != "n"})
    assert library.launch(stated) != 0
    assert text in library.error()


def test_factors_are_needed_and_belong_to_such_operations_alone(library):
    for name in ("own_d", "factors_d"):
        assert library.launch(state(library, PLAIN, M, N, K, **{name: None})) != 0
        assert f"{name}.data" in library.error()
        plain = state(library, Operation.NVFP4_BF16_KK, M, N, K, **{name: (ADDRESSES[name], (0, 0))})
        assert library.launch(plain) != 0
        assert f"got {name}, which operation nvfp4_bf16 does not take" in library.error()


def operands(make, operation, leading=(M,)):
    """Make x and a weight of one operation, their factors, and D's own: of NVFP4 those in pairs with the tensors'."""
    rows, form = operation.num_rows_of_b(N), operation.factors_of_d
    factors = {x: make((atom_bytes(y, K, form),), FACTORS[form]) for x, y in (("scale_x", M), ("scale_w", rows))}
    own = {"scale_out": make((1,), FLOAT32)} if form is NVFP4 else {}
    if own:
        factors = {x: (y, Factor(make((1,), FLOAT32))) for x, y in factors.items()}
    more = {x: y for x, y in steps(operation, make, M, N).items() if x != "out_dtype"}
    x, weight = make(*held(operation, (*leading, K))), make(*held(operation, (rows, K)))
    return (x, weight), factors | more | own | {"out_dtype": operation.a.tag}


def held(operation, shape):
    """Return shape and type in which a tensor holds elements of an operation's type: two of 4 bits in a byte."""
    *leading, columns = shape
    return ((*leading, columns // 2), UINT8) if operation.d is ElementType.E2M1 else (shape, E4M3)


@pytest.mark.parametrize("operation", QUANTIZED, ids=lambda x: x.tag)
def test_python_gives_what_the_next_product_takes(atoms_package, atoms_manifest, packed, tensor, operation):
    given, named = operands(tensor, operation, (10, 13))
    form, has_own = operation.factors_of_d, "scale_out" in named
    values, scale = product_of(atoms_package, operation)(*given, **named)
    factors = scale[0] if has_own else scale
    assert (tuple(values.shape), values.dtype) == held(operation, (10, 13, N))
    assert (tuple(factors.shape), factors.dtype) == ((atom_bytes(M, N, form),), FACTORS[form])
    (launch,) = packed.fake_launches()
    assert call_of(atoms_manifest, launch) == operation.call
    assert read(launch.d, 1) == (values.address, [M, N], [N])
    assert launch.factors_d.data == factors.address
    if has_own:
        assert scale[1] is named["scale_out"]
        assert launch.own_d.data == scale[1].address
        assert launch.scale_d.data == named["scale_x"][1].tensor.address

    packed.c.recorder_reset()
    weight, of_weight = tensor(*held(operation, (72, N))), tensor((atom_bytes(72, N, form),), FACTORS[form])
    scales = {"scale_x": factors, "scale_w": of_weight}
    if has_own:
        scales = {"scale_x": (factors, Factor(tensor((1,), FLOAT32))), "scale_w": (of_weight, object())}
    atoms_package.linear(values, weight, **scales)
    (launch,) = packed.fake_launches()
    assert (launch.a.data, launch.scale_a.vector.data) == (values.address, factors.address)


def test_what_is_written_may_be_given(atoms_package, packed, tensor):
    given, named = operands(tensor, GATE)
    out = tensor((M, N // 2), UINT8), tensor((atom_bytes(M, N),), E4M3)
    values, (factors, own) = atoms_package.gated_linear(*given, **named, out=out)
    assert (values, factors, own) == (*out, named["scale_out"])
    (launch,) = packed.fake_launches()
    assert (launch.d.data, launch.factors_d.data) == tuple(x.address for x in out)


def changed(make, **changes):
    given, named = operands(make, PLAIN)
    return given, {x: y for x, y in (named | changes).items() if y is not None}


OF_PYTHON = {
    "no own factor": (
        {"scale_out": None},
        "OperandError",
        "scale_out is missing, the result's own factor, which has to be",
    ),
    "two own factors": (
        {"scale_out": ((2,), FLOAT32)},
        "ShapeError",
        r"scale_out has shape \(2,\); expected one element",
    ),
    "an own factor of 8 bits": (
        {"scale_out": ((1,), E4M3)},
        "DtypeError",
        "scale_out is float8_e4m3fn; expected float32",
    ),
    "no pairs": ({"scale_x": ((1536,), E4M3), "scale_w": ((1536,), E4M3)}, "OperandError", "out_dtype is nvfp4 beside"),
    "out alone": ({"out": ((M, N // 2), UINT8)}, "OperandError", "out is no pair beside out_dtype='nvfp4'"),
    "another format": (
        {"out_dtype": "mxfp4"},
        "UnsupportedError",
        "no wheel has float4_e2m1fn by float4_e2m1fn into mxfp4",
    ),
    "an unknown type": ({"out_dtype": "nvfp5"}, "DtypeError", "linear: out_dtype"),
}


@pytest.mark.parametrize("name", OF_PYTHON)
def test_python_refuses(atoms_package, packed, framework, name):
    changes, kind, text = OF_PYTHON[name]
    made = {x: framework.Tensor(*y) if isinstance(y, tuple) else y for x, y in changes.items()}
    given, named = changed(framework.Tensor, **made)
    if name == "no pairs":
        named |= {x: framework.Tensor((atom_bytes(y, K),), E4M3) for x, y in (("scale_x", M), ("scale_w", N))}
    with pytest.raises(getattr(atoms_package, kind), match=text):
        atoms_package.linear(*given, **named)


def test_a_format_without_an_own_factor_takes_none(atoms_package, packed, framework):
    given, named = operands(framework.Tensor, Operation.MXFP8_MXFP8_KK)
    with pytest.raises(atoms_package.OperandError, match="got scale_out, which goes with nvfp4"):
        atoms_package.linear(*given, **named, scale_out=framework.Tensor((1,), FLOAT32))


def test_rows_of_an_odd_number_are_refused(atoms_package, packed, framework):
    given, named = changed(framework.Tensor)
    weight = framework.Tensor((33, K // 2), UINT8)
    named["scale_w"] = framework.Tensor((atom_bytes(33, K),), E4M3), object()
    with pytest.raises(atoms_package.ShapeError, match="rows of 33 elements of 4 bits; expected an even number"):
        atoms_package.linear(given[0], weight, **named)


def test_plans_know_the_format(atoms_package):
    plan = partial(atoms_package.plan, M, N, K, "nvfp4", activation="silu", gated=True)
    assert plan(out_dtype="nvfp4").operation == GATE.call
    assert plan().operation == Operation.NVFP4_BF16_KK_SWIGLU.call
    with pytest.raises(
        atoms_package.DtypeError, match="no product of float8_e4m3fn by float8_e4m3fn into float4_e2m1fn"
    ):
        atoms_package.plan(M, N, K, "mxfp8", out_dtype="nvfp4")


def test_a_bias_is_of_16_bits():
    assert {x.bias for x in QUANTIZED} == {ElementType.BFLOAT16}
