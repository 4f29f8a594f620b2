"""Elements of 4 bits and narrow factors from Python: what reaches the library, what is packed, what is refused."""

from __future__ import annotations

import random
from functools import partial
from importlib import import_module
from itertools import product

import numpy as np
import pytest
import torch

from aot.core.element import ElementType
from aot.core.factor_atoms import pack_factors
from aot.core.operation import Operation
from tests.compiling import EVERY
from tests.runtime.stating import IN_ATOMS, state
from tests.runtime.tensors import (
    BFLOAT16,
    CUDA,
    E2M1_PAIR,
    E4M3,
    E5M2,
    E8M0,
    FLOAT16,
    FLOAT32,
    INT8,
    UINT8,
    FakeTensor,
    install_cupy,
)
from tests.runtime.test_python_operations import DTYPES, GATES, call_of
from tests.runtime.test_torch_operands import gpu_tensor
from tests.runtime.ways import IN_EXCHANGE

NVFP4, MXFP4, MXFP8 = Operation.NVFP4_BF16_KK, Operation.MXFP4_BF16_KK, Operation.MXFP8_BF16_KK
MIXED = Operation.MXFP8_MXFP4_BF16_KK
PLAIN = (NVFP4, MXFP4, MXFP8, MIXED)
M, N, K = 130, 72, 160
TYPES = {ElementType.E4M3: E4M3, ElementType.E8M0: E8M0}


def length(operation):
    """Return a k that kernels other than the fallback take."""
    return -(-K // operation.k_step) * operation.k_step


def atom_bytes(operation, rows):
    return operation.a.scale.size_of(rows, length(operation))


def blocks_of(operation):
    return operation.a.scale.num_factors(1, length(operation))[1]


def elements(operation, tensor, rows, kind=UINT8, leading=(), *, of="a"):
    """Make x or a weight: bytes of two elements each, or elements of 8 bits."""
    element, k = getattr(operation, of).element, length(operation)
    return tensor((*leading, rows, k // element.num_sharing), kind if element is ElementType.E2M1 else E4M3)


def atoms(operation, tensor, rows, kind=None):
    return tensor((atom_bytes(operation, rows),), TYPES[operation.a.scale.element] if kind is None else kind)


def whole(operation, tensor):
    """Make the product of the tensors' own factors, where there is one."""
    return {"scale_out": tensor((1,), FLOAT32)} if operation.types.scales_sum else {}


def steps(operation, tensor, m=M, n=N):
    """Make what an operation takes beside operands and factors, and say which type D is of."""
    named = {"out_dtype": operation.d.value}
    if operation.has_bias:
        named["bias"] = tensor((operation.num_rows_of_b(n),), DTYPES[operation.bias])
    if operation.gate is not None:
        named |= {"activation": GATES[operation.gate], "interleaved": True}
    if operation.activation is not None:
        named["activation"] = operation.activation.value
    if operation.has_residual:
        named["residual"] = tensor((m, n), DTYPES[operation.d])
    return named


def product_of(package, operation):
    """Return the function that computes an operation."""
    return package.linear if operation.gate is None else package.gated_linear


@pytest.fixture(params=["exchange", "capsules"])
def tensor(request, framework, monkeypatch):
    """Make tensors of a framework with the exchange API, or of a CuPy, which the package asks in Python."""
    if request.param == "exchange":
        return framework.Tensor
    cupy = install_cupy(monkeypatch, 0x8880)
    types = {"bfloat16": BFLOAT16, "float16": FLOAT16, "uint8": UINT8}
    cupy.empty = lambda shape, dtype: cupy.ndarray(shape, types[dtype])
    return cupy.ndarray


WAYS = list(product(("exchange", "capsules"), (UINT8, E2M1_PAIR), (False, True)))
"""How a framework hands tensors over, the type of two elements of 4 bits, and whether factors are given as bytes."""
TRIED = [(x, *way) for x in IN_ATOMS for way in (WAYS if EVERY or x in PLAIN else WAYS[:1])]


@pytest.mark.parametrize(("operation", "tensor", "kind", "codes"), TRIED, indirect=["tensor"])
def test_packed_operands_arrive_in_elements(atoms_package, packed, atoms_manifest, tensor, operation, kind, codes):
    num_rows = M, operation.num_rows_of_b(N)
    x, weight = (elements(operation, tensor, rows, kind, of=of) for of, rows in zip("ab", num_rows, strict=True))
    scale_x, scale_w = (atoms(operation, tensor, rows, UINT8 if codes else None) for rows in num_rows)
    given, more = whole(operation, tensor), steps(operation, tensor)
    out = product_of(atoms_package, operation)(x, weight, scale_x=scale_x, scale_w=scale_w, **given, **more)
    assert (tuple(out.shape), out.dtype) == ((M, N), DTYPES[operation.d])
    (launch,) = packed.fake_launches()
    assert call_of(atoms_manifest, launch) == operation.call
    a, b, k = launch.a.matrix, launch.b.matrix, length(operation)
    assert (a.data, tuple(a.shape), a.strides[0]) == (x.address, (M, k), k)
    assert b.data == weight.address
    if operation.gate is None:
        assert (tuple(b.shape), b.strides[0]) == ((N, k), k)
    else:
        assert (tuple(launch.b.parts.shape), tuple(launch.b.parts.strides[:2])) == ((2, N, k), (k, 2 * k))
    found = [(y.vector.data, y.vector.shape[0]) for y in (launch.scale_a, launch.scale_b)]
    assert found == [(y.address, y.shape[0]) for y in (scale_x, scale_w)]
    assert launch.scale_d.data == (given["scale_out"].address if given else None)
    added = launch.bias.data, launch.residual.data
    assert added == tuple(more[x].address if x in more else None for x in ("bias", "residual"))


@pytest.mark.parametrize("operation", PLAIN, ids=lambda x: x.tag)
def test_factors_in_rows_of_blocks_are_put_into_atoms(atoms_package, packed, tensor, monkeypatch, operation):
    made = []

    def pack(factors):
        rows = N if factors.shape[0] == N else M
        made.append((factors, tensor((atom_bytes(operation, rows),), factors.dtype)))
        return made[-1][1]

    monkeypatch.setattr(import_module(f"{atoms_package.__name__}._factors"), "pack_factors", pack)
    kind, blocks = TYPES[operation.a.scale.element], blocks_of(operation)
    x, weight = elements(operation, tensor, 13, leading=(10,)), elements(operation, tensor, N, of="b")
    scale_x, scale_w = tensor((10, 13, blocks), kind), tensor((N, blocks), kind)
    atoms_package.linear(x, weight, scale_x=scale_x, scale_w=scale_w, **whole(operation, tensor))
    (launch,) = packed.fake_launches()
    assert [y[0] for y in made] == [scale_x, scale_w]
    assert [y.vector.data for y in (launch.scale_a, launch.scale_b)] == [y[1].address for y in made]
    packed.c.recorder_reset()
    atoms_package.linear(
        x, weight, scale_x=tensor((M, blocks), kind), scale_w=atoms(operation, tensor, N), **whole(operation, tensor)
    )
    assert len(made) == 3
    assert len(packed.fake_launches()) == 1


class Factor:
    """A tensor's own factor, whose product with another is made by its framework."""

    def __init__(self, tensor):
        self.tensor, self.others = tensor, []

    def __mul__(self, other):
        self.others.append(other)
        return self.tensor


def test_the_tensors_own_factors_are_multiplied(atoms_package, packed, tensor):
    x, weight = (elements(NVFP4, tensor, rows) for rows in (M, N))
    of_x, of_w = Factor(tensor((1,), FLOAT32)), object()
    scale_x, scale_w = (atoms(NVFP4, tensor, rows, UINT8) for rows in (M, N))
    atoms_package.linear(x, weight, scale_x=(scale_x, of_x), scale_w=[scale_w, of_w])
    (launch,) = packed.fake_launches()
    assert (launch.scale_d.data, of_x.others) == (of_x.tensor.address, [of_w])


def test_strides_count_elements(atoms_package, packed, framework):
    x = framework.Tensor((4, 5, K // 2), UINT8, strides=(5 * 96, 96, 1))
    weight = framework.Tensor((N, K // 2), UINT8, strides=(112, 1))
    scales = {"scale_x": atoms(MXFP4, framework.Tensor, 20), "scale_w": atoms(MXFP4, framework.Tensor, N)}
    atoms_package.linear(x, weight, **scales)
    (launch,) = packed.fake_launches()
    assert [(tuple(y.matrix.shape), y.matrix.strides[0]) for y in (launch.a, launch.b)] == [
        ((20, K), 192),
        ((N, K), 224),
    ]


def test_a_packed_weight_may_be_promised(atoms_package, packed, framework):
    weight = atoms_package.constant(elements(MXFP4, framework.Tensor, N))
    scales = {"scale_x": atoms(MXFP4, framework.Tensor, M), "scale_w": atoms(MXFP4, framework.Tensor, N)}
    atoms_package.linear(elements(MXFP4, framework.Tensor, M), weight, **scales)
    (launch,) = packed.fake_launches()
    assert launch.b.data == weight.tensor.address


def launch_of(library, call, *, is_gate=False):
    """Return what the kernel of the one launch that a call makes is given; a single row's stride means nothing."""
    library.c.recorder_reset()
    call()
    (launch,) = library.fake_launches()
    of_rows = launch.a.matrix, launch.b.matrix, launch.d.matrix
    matrices = [(y.data, tuple(y.shape), y.shape[0] > 1 and y.strides[0]) for y in of_rows]
    if is_gate:
        matrices[1] = launch.b.data, tuple(launch.b.parts.shape), tuple(launch.b.parts.strides[:2])
    vectors = [(y.vector.data, y.vector.shape[0]) for y in (launch.scale_a, launch.scale_b)]
    counts = launch.num_arguments, launch.workspace_floats, launch.reads_early
    added = launch.bias.data, launch.residual.data, launch.residual.shape[0] > 1 and launch.residual.strides[0]
    return launch.kernel, counts, matrices, vectors, launch.scale_d.data, added


@IN_EXCHANGE
@pytest.mark.parametrize("operation", IN_ATOMS, ids=lambda x: x.tag)
def test_python_launches_what_the_c_api_launches(atoms_package, packed, tensor, operation):
    rng, kernels = random.Random(7), set()
    held = {ElementType.E2M1: (UINT8, 2), ElementType.E4M3: (E4M3, 1)}
    kinds = [held[y.element] for y in (operation.a, operation.b)]
    product, is_gate = product_of(atoms_package, operation), operation.gate is not None
    for _ in range(40):
        m, n, k = rng.choice((1, 5, 130, 257)), rng.choice((8, 72, 200)), rng.choice((16, 32, 96, 160, 256, 1024))
        paddings = [rng.choice((0, 0, 8, 16)) for _ in range(2)]
        x, weight = (
            tensor((rows, k // per_byte), kind, (k // per_byte + padding, 1))
            for (kind, per_byte), rows, padding in zip(kinds, (m, operation.num_rows_of_b(n)), paddings, strict=True)
        )
        scales = [tensor((operation.a.scale.size_of(y.shape[0], k),), UINT8) for y in (x, weight)]
        given, out = whole(operation, tensor), tensor((m, n), DTYPES[operation.d])
        more = {name: y for name, y in steps(operation, tensor, m, n).items() if name != "out_dtype"}
        strides = [per_byte * y.strides[0] for (_, per_byte), y in zip(kinds, (x, weight), strict=True)]
        stated = {name: (y.address, (z, 1)) for name, y, z in zip("ab", (x, weight), strides, strict=True)}
        stated |= {name: (y.address, (0, 0)) for name, y in zip(("scale_a", "scale_b"), scales, strict=True)}
        stated |= {"scale_d": (given["scale_out"].address, (0, 0))} if given else {}
        stated |= {name: (more[name].address, (n, 1)) for name in ("bias", "residual") if name in more}
        stated |= {"d": (out.address, (n, 1))}
        problem = state(packed, operation, m, n, k, **stated)
        workspace = {"workspace": 1 << 50, "num_bytes": packed.workspace_bytes(problem)}
        call = partial(product, x, weight, scale_x=scales[0], scale_w=scales[1], out=out, **given, **more)
        from_python = launch_of(packed, call, is_gate=is_gate)
        stating = partial(packed.launch, problem, **workspace)
        assert from_python == launch_of(packed, stating, is_gate=is_gate), (m, n, k)
        kernels.add(from_python[0])
    assert len(kernels) > 1  # of the table, and the fallback


def replaced(**changes):
    """Change a whole call of MXFP4, or of what `of` says."""

    def make(framework):
        operation, tensor = changes.get("of", MXFP4), framework.Tensor
        call = {"x": elements(operation, tensor, M), "weight": elements(operation, tensor, N, of="b")}
        call |= {name: atoms(operation, tensor, rows) for name, rows in (("scale_x", M), ("scale_w", N))}
        call |= {name: tensor(*y) if isinstance(y, tuple) else y for name, y in changes.items() if name != "of"}
        return {name: y for name, y in call.items() if y is not None}

    return make


REFUSED = {
    "no factors": (replaced(scale_x=None, scale_w=None), "OperandError", "need factors, of which the format is known"),
    "one has none": (replaced(scale_w=None), "OperandError", "got scale_x and no scale_w; expected both, or none"),
    "wide factors": (
        replaced(scale_x=((M, 5), FLOAT32)),
        "DtypeError",
        (
            "linear: scale_x is float32; expected float8_e4m3fn, of NVFP4, or float8_e8m0fnu, of MXFP4 and MXFP8, or "
            "the codes of these as uint8; convert it"
        ),
    ),
    "other factors": (
        replaced(scale_w=((1024,), E5M2)),
        "DtypeError",
        "scale_w is float8_e5m2; expected float8_e4m3fn",
    ),
    "mixed factors": (
        replaced(scale_w=((1024,), E4M3)),
        "DtypeError",
        "scale_x is float8_e8m0fnu and scale_w float8_e4m3fn; expected factors of one format; quantize one of the two",
    ),
    "too few blocks": (
        replaced(scale_x=((M, 4), E8M0)),
        "ShapeError",
        (
            "linear: scale_x has shape (130, 4), of 130 rows and k 160; expected a factor for each 32 elements: (130, "
            "5); or (2048,), atoms of 128 rows by 4 blocks as one run of bytes; flatten atoms, or put factors into "
            "them by pack_factors"
        ),
    ),
    "atoms of another k": (
        replaced(scale_w=((512,), E8M0)),
        "ShapeError",
        "scale_w has shape (512,), of 72 rows and k 160",
    ),
    "atoms in two dimensions": (
        replaced(scale_x=((256, 8), E8M0)),
        "ShapeError",
        "expected a factor for each 32 elements",
    ),
    "a gap in atoms": (
        replaced(scale_x=((2048,), E8M0, (2,))),
        "StrideError",
        "scale_x of shape (2048,) has the strides (2,); expected atoms as one run of bytes",
    ),
    "no own factor": (
        replaced(of=NVFP4),
        "OperandError",
        (
            "linear: NVFP4 needs the tensors' own factors, by which D is multiplied; expected pairs, scale_x=("
            "factors, factor) and scale_w=(factors, factor); or the product of the two as scale_out=, a float32 tensor "
            "of one element in GPU memory, 1.0 where the tensors have none"
        ),
    ),
    "an own factor of MX": (
        replaced(scale_out=((1,), FLOAT32)),
        "OperandError",
        "got scale_out, which goes with a float8 result, and with NVFP4; the result is bfloat16; leave it away",
    ),
    "own factors of rows": (replaced(of=NVFP4, scale_out=((M,), FLOAT32)), "ShapeError", "expected one element"),
    "a pair and none": (
        replaced(of=NVFP4, scale_x=[1, 2]),
        "OperandError",
        (
            "linear: scale_x and scale_w are 2 tensors and one; expected pairs of both, the factors of blocks and the "
            "tensor's own float32 factor; or tensors, and the product of the tensors' own factors as scale_out="
        ),
    ),
    "pairs of three": (replaced(scale_x=[1, 2, 3], scale_w=[1, 2]), "OperandError", "are 3 tensors and 2 tensors"),
    "pairs and their product": (
        replaced(scale_x=[1, 2], scale_w=[1, 2], scale_out=((1,), FLOAT32)),
        "OperandError",
        "linear: got scale_out and the tensors' own factors, whose product it is; expected one of the two",
    ),
    "another k": (replaced(weight=((N, 64), UINT8)), "ShapeError", "x (130, 80) has k 160, weight (72, 64) has k 128"),
    "another k of 8 bits": (
        replaced(of=MIXED, weight=((N, 256), UINT8)),
        "ShapeError",
        "x (130, 256) has k 256, weight (72, 256) has k 512; expected one k",
    ),
    "no factors of two widths": (
        replaced(of=MIXED, scale_x=None, scale_w=None),
        "OperandError",
        "need factors, of which the format is known",
    ),
    "columns of bytes of two widths": (
        replaced(of=MIXED, weight=((N, 128), UINT8, (1, N))),
        "StrideError",
        "linear: weight (72, 128) has the strides (1, 72); expected bytes that are adjacent along k",
    ),
    "the wider is the weight": (
        replaced(of=MIXED, x=((M, 128), UINT8), weight=((N, 256), E4M3)),
        "DtypeError",
        "there is no product of float4_e2m1fn by float8_e4m3fn into bfloat16",
    ),
    "e4m3 factors of two widths": (
        replaced(of=MIXED, scale_x=((4096,), E4M3), scale_w=((2048,), E4M3)),
        "UnsupportedError",
        "no wheel has float8_e4m3fn by float4_e2m1fn into bfloat16 with factors of blocks in float8_e4m3fn",
    ),
    "one is packed": (
        replaced(weight=((N, K), BFLOAT16)),
        "DtypeError",
        "there is no product of float4_e2m1fn by bfloat16 into bfloat16; expected one of float4_e2m1fn by",
    ),
    "columns of bytes": (
        replaced(weight=((N, K // 2), UINT8, (1, N))),
        "StrideError",
        "linear: weight (72, 80) has the strides (1, 72); expected bytes that are adjacent along k; make it contiguous",
    ),
    "on another GPU": (
        replaced(scale_w=atoms(MXFP4, partial(FakeTensor, device=(CUDA, 1)), N)),
        "DeviceError",
        "expected one GPU",
    ),
    "a bias": (
        replaced(bias=((N,), FLOAT16), out_dtype="float16"),
        "UnsupportedError",
        "no wheel has float4_e2m1fn by float4_e2m1fn into float16 with bias, factors of mxfp4",
    ),
    "an activation and a residual": (
        replaced(of=MXFP8, activation="silu", residual=((M, N),)),
        "UnsupportedError",
        "no wheel has float8_e4m3fn by float8_e4m3fn into bfloat16 with silu, residual, factors of mxfp8",
    ),
    "a bias of another type": (
        replaced(of=MXFP8, bias=((N,), FLOAT32)),
        "DtypeError",
        "linear: bias is float32; expected bfloat16",
    ),
    "e4m3 by e4m3 factors": (
        replaced(of=MXFP8, scale_x=((2048,), E4M3), scale_w=((1024,), E4M3)),
        "UnsupportedError",
        "no wheel has float8_e4m3fn by float8_e4m3fn into bfloat16 with factors of blocks in float8_e4m3fn",
    ),
    "int8 by narrow factors": (
        replaced(x=((M, K), INT8), weight=((N, K), INT8)),
        "UnsupportedError",
        "with factors of blocks in float8_e8m0fnu",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_product_is_refused(atoms_package, packed, framework, case):
    make, kind, message = REFUSED[case]
    call = make(framework)
    with pytest.raises(getattr(atoms_package, kind)) as caught:
        atoms_package.linear(call.pop("x"), call.pop("weight"), **call)
    assert message in str(caught.value)
    assert packed.fake_launches() == []


def test_another_function_takes_no_bytes(atoms_package, packed, tensor):
    x, weight = elements(MXFP4, tensor, M), elements(MXFP4, tensor, N)
    with pytest.raises(atoms_package.DtypeError, match=r"^matmul: a is uint8; expected bfloat16"):
        atoms_package.matmul(x, weight)
    with pytest.raises(
        atoms_package.OperandError, match=r"^gated_linear: bytes that hold two elements .* need factors"
    ):
        atoms_package.gated_linear(x, weight)


@IN_EXCHANGE
@pytest.mark.parametrize("is_pair", [False, True], ids=["halves", "two weights"])
@pytest.mark.parametrize("operation", [x for x in IN_ATOMS if x.gate is not None], ids=lambda x: x.tag)
def test_a_gate_whose_rows_are_not_in_turns_is_refused(atoms_package, packed, tensor, operation, is_pair):
    given = steps(operation, tensor) | {"interleaved": is_pair} | whole(operation, tensor)
    scale_x, scale_w = atoms(operation, tensor, M), atoms(operation, tensor, 2 * N)
    weight = elements(operation, tensor, 2 * N, of="b")
    if is_pair:
        weight = [elements(operation, tensor, N, of="b") for _ in range(2)]
    with pytest.raises(
        atoms_package.OperandError, match=r"gated_linear: got .* of a gate; expected one weight of both"
    ):
        atoms_package.gated_linear(elements(operation, tensor, M), weight, scale_x=scale_x, scale_w=scale_w, **given)
    assert packed.fake_launches() == []


def test_the_own_factors_of_a_gate_are_multiplied(atoms_package, packed, tensor):
    x, weight = elements(NVFP4, tensor, M), elements(NVFP4, tensor, 2 * N)
    of_x, of_w = Factor(tensor((1,), FLOAT32)), object()
    scale_x, scale_w = atoms(NVFP4, tensor, M), atoms(NVFP4, tensor, 2 * N)
    given = {"scale_x": (scale_x, of_x), "scale_w": (scale_w, of_w)}
    atoms_package.gated_linear(x, weight, interleaved=True, **given)
    (launch,) = packed.fake_launches()
    assert (launch.scale_d.data, of_x.others) == (of_x.tensor.address, [of_w])
    with pytest.raises(atoms_package.OperandError, match="gated_linear: got scale_out and the tensors' own factors"):
        atoms_package.gated_linear(x, weight, interleaved=True, scale_out=of_x.tensor, **given)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float4_e2m1fn_x2])
def test_a_wheel_without_such_kernels_says_what_else_there_is(every_package, every, dtype):
    x, weight = (torch.zeros(rows, K // 2, dtype=torch.uint8).view(dtype) for rows in (M, N))
    found = {"x": gpu_tensor(address=1 << 42, inner=x), "weight": gpu_tensor(address=2 << 42, inner=weight)}
    for name, rows in (("scale_x", M), ("scale_w", N)):
        found[name] = gpu_tensor(address=3 << 42, inner=torch.zeros(atom_bytes(MXFP4, rows), dtype=torch.uint8))
    for each in found.values():
        each.dtype = UINT8
    with pytest.raises(every_package.UnsupportedError) as caught:
        every_package.linear(found.pop("x"), found.pop("weight"), **found)
    text = str(caught.value)
    assert "no kernels for mxfp4_bf16 (float4_e2m1fn by float4_e2m1fn into bfloat16 with factors of mxfp4)" in text
    assert "the nearest that it has is bf16: dequantize the operands to bfloat16" in text
    assert "build a wheel with it: aot build --target h200 --operations default,mxfp4_bf16_kk" in text


@pytest.mark.parametrize("operation", IN_ATOMS, ids=lambda x: x.tag)
def test_the_plan_is_asked_by_the_formats_name(atoms_package, packed, atoms_manifest, framework, operation):
    name, more = operation.a.tag, steps(operation, framework.Tensor)
    told = {x: True if x in ("bias", "residual") else y for x, y in more.items() if x != "interleaved"}
    told |= {} if operation.b.tag == name else {"weight_dtype": operation.b.tag}
    plan = atoms_package.plan(M, N, length(operation), name, gated=operation.gate is not None, **told)
    num_rows = M, operation.num_rows_of_b(N)
    x, weight = (elements(operation, framework.Tensor, y, of=of) for of, y in zip("ab", num_rows, strict=True))
    scale_x, scale_w = (atoms(operation, framework.Tensor, rows) for rows in num_rows)
    given = whole(operation, framework.Tensor)
    product_of(atoms_package, operation)(x, weight, scale_x=scale_x, scale_w=scale_w, **given, **more)
    (launch,) = packed.fake_launches()
    assert (plan.operation, plan.kernel) == (operation.call, atoms_manifest.kernels[launch.kernel].name)


def test_a_plan_of_what_no_operation_computes_is_refused(atoms_package):
    with pytest.raises(atoms_package.UnsupportedError, match=r"with bias, factors of mxfp4; .* add the bias to"):
        atoms_package.plan(M, N, K, "mxfp4", bias=True, out_dtype="float16")
    with pytest.raises(atoms_package.UnsupportedError, match="dtype is mxfp8 and weight_dtype nvfp4; expected formats"):
        atoms_package.plan(M, N, K, "mxfp8", weight_dtype="nvfp4")
    with pytest.raises(atoms_package.DtypeError, match="no product of float4_e2m1fn by float8_e4m3fn"):
        atoms_package.plan(M, N, K, "mxfp4", weight_dtype="mxfp8")


def bytes_of(tensor):
    return np.asarray(tensor.view(torch.uint8) if isinstance(tensor, torch.Tensor) else tensor)


SHAPES = [(1, 1), (3, 5), (128, 4), (130, 9), (257, 8)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["numpy", "torch", "float8_e8m0fnu", "float8_e4m3fn", "jax"])
def test_factors_lie_in_atoms_as_the_toolchain_packs_them(atoms_package, kind, shape):
    codes = np.random.default_rng(2).integers(0, 255, shape).astype(np.uint8)
    tensor = codes
    if kind == "jax":
        tensor = pytest.importorskip("jax.numpy").asarray(codes)
    elif kind != "numpy":
        tensor = torch.from_numpy(codes)
        tensor = tensor if kind == "torch" else tensor.view(getattr(torch, kind))
    held = atoms_package.pack_factors(tensor)
    assert (type(held), held.dtype) == (type(tensor), tensor.dtype)
    assert np.array_equal(bytes_of(held), pack_factors(codes))
    back = atoms_package.unpack_factors(held, *shape)
    assert back.dtype == tensor.dtype
    assert np.array_equal(bytes_of(back), codes)


def test_factors_of_leading_dimensions_and_strides_are_packed(atoms_package):
    codes = torch.arange(1920).remainder(251).to(torch.uint8).reshape(60, 4, 8).permute(1, 2, 0)
    held = atoms_package.pack_factors(codes)
    assert np.array_equal(held.numpy(), pack_factors(codes.reshape(32, 60).numpy()))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda p: p.pack_factors(torch.zeros(4, 4)),
            "DtypeError",
            "got torch.float32; expected factors of",
        ),
        (lambda p: p.pack_factors([[1]]), "DtypeError", "pack_factors: got 'list'; expected factors of"),
        (lambda p: p.pack_factors(np.zeros(512, np.uint8)), "ShapeError", "what has one dimension is atoms already"),
        (
            lambda p: p.unpack_factors(np.zeros(512, np.uint8), 129, 4),
            "ShapeError",
            "atoms have shape (512,); expected (1024,), of 129 rows and 4 blocks; flatten them",
        ),
    ],
)
def test_what_is_no_factors_is_refused(atoms_package, call, kind, message):
    with pytest.raises(getattr(atoms_package, kind)) as caught:
        call(atoms_package)
    assert message in str(caught.value)
