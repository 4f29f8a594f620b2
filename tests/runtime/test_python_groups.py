"""`grouped_linear` over the recorder: what reaches the C API, and what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from aot.core.dispatch import Tier, look_up, round_up
from aot.core.element import ElementType
from aot.core.formats import SCALE_BLOCK, FactorLayout
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.kinds.gemm.group_inputs import GroupSizes, draw_ends
from tests.runtime import host
from tests.runtime.exchange import Framework
from tests.runtime.tensors import BFLOAT16, E4M3, E8M0, FLOAT32, INT32, UINT8, install_old_torch
from tests.runtime.test_groups import GROUPED
from tests.runtime.test_python_operations import DTYPES, address, call_of
from tests.runtime.ways import IN_EXCHANGE

NVFP4 = Operation.NVFP4_BF16_KK_GROUPED
FACTOR_TYPES = {ElementType.E4M3: E4M3, ElementType.E8M0: E8M0}
TYPE_OF = {**DTYPES, ElementType.E2M1: UINT8}
DTYPES_OF = {x.types.a: x.types.a.value for x in Operation}
ROWS, TOKENS, N, K, GROUPS = 40, 12, 128, 256, 3
CALLS = [x for x in GROUPED if x is x.layouts[0] and x.grouping.groups_rows and x.factors_of_d is None]


@pytest.fixture(scope="module")
def manifest():
    return replace(host.random_manifest(7, GROUPED), package="grouped-gemm")


@pytest.fixture(scope="module")
def package(manifest, tmp_path_factory):
    return host.compile_package(manifest, tmp_path_factory.mktemp("python_groups"))


@pytest.fixture
def library(package):
    library = host.Library(package._library.LIBRARY)
    library.c.recorder_reset()
    return library


def arguments(operation, tensor):
    """Make all that a call is given."""
    is_gathered = operation.grouping is Grouping.GATHERED
    rows, height = operation.num_rows_of_b(N), TOKENS if is_gathered else ROWS
    operands = [
        tensor((height, columns_of(operation.types.a)), TYPE_OF[operation.types.a]),
        tensor((GROUPS, rows, columns_of(operation.types.b)), TYPE_OF[operation.types.b]),
        tensor((GROUPS,), INT32),
    ]
    named = {"out": tensor((ROWS, N), DTYPES[operation.d])}
    if operation.has_bias:
        operands.append(tensor((GROUPS, rows), DTYPES[operation.bias]))
    if is_gathered:
        named["index"] = tensor((ROWS,), INT32)
    if operation.gate is not None:
        named["gate"] = "silu"
    if operation.types.factors is FactorLayout.VECTOR:
        named |= {"scale_x": tensor((height, 1), FLOAT32), "scale_w": tensor((GROUPS, rows), FLOAT32)}
    if operation.types.factors is FactorLayout.BLOCK:
        blocks = K // SCALE_BLOCK
        named["scale_x"] = tensor((height, blocks), FLOAT32)
        named["scale_w"] = tensor((GROUPS, rows // SCALE_BLOCK, blocks), FLOAT32)
    if operation.types.factors is FactorLayout.ATOMS:
        named |= narrow_factors(operation, tensor)
    return operands, named


def columns_of(element):
    """Count the elements of a row as Python sees them: of those of 4 bits bytes."""
    return K // element.num_sharing


def row_of_atoms(operation):
    """Count the bytes of the atoms of 128 rows."""
    return K // (4 * operation.a.scale.block_k) * 512


def narrow_factors(operation, tensor):
    """Make the factors of rows in groups and of the weights, in atoms, and say that a gate's rows are in turns."""
    kind, rows = FACTOR_TYPES[operation.types.factor], operation.num_rows_of_b(N)
    made = {
        "scale_x": tensor(((1 + GROUPS - 1) * row_of_atoms(operation),), kind),
        "scale_w": tensor((GROUPS * rows // 128 * row_of_atoms(operation),), kind),
    }
    if operation.types.scales_sum:
        made["scale_out"] = tensor((GROUPS,), FLOAT32)
    return made | ({"interleaved": True} if operation.gate is not None else {})


@IN_EXCHANGE
@pytest.mark.parametrize("operation", CALLS, ids=lambda x: x.call)
def test_every_operation_of_groups_is_launched_with_what_it_was_given(package, library, manifest, tensor, operation):
    operands, named = arguments(operation, tensor)
    assert package.grouped_linear(*operands, **named) is named["out"]
    (launch,) = library.fake_launches()
    x, weight, offsets, *bias = operands
    assert call_of(manifest, launch) == operation.call
    assert (launch.a.data, launch.b.data, launch.d.data) == (x.address, weight.address, named["out"].address)
    assert (launch.offsets.data, list(launch.offsets.shape)) == (offsets.address, [GROUPS])
    assert launch.index.data == address(named.get("index"))
    assert launch.bias.data == (bias[0].address if bias else None)
    assert launch.scale_d.data == address(named.get("scale_out"))
    factors = [launch.scale_a.vector.data, launch.scale_b.vector.data]
    assert factors == [address(named.get(name)) for name in ("scale_x", "scale_w")]
    assert list(launch.a.shape) == [x.shape[0], K]
    assert list(launch.d.shape) == [ROWS, N]


def taken(operation, tensor, **changes):
    operands, named = arguments(operation, tensor)
    return operands, named | {name: tensor(*x) if isinstance(x, tuple) else x for name, x in changes.items()}


def test_own_factors_of_the_weights_are_multiplied_by_that_of_x(package, library, tensor):
    operands, named = arguments(NVFP4, tensor)
    whole = named.pop("scale_out")

    class Own:
        def __mul__(self, other):
            assert other is of_weights
            return whole

    of_weights = object()
    named |= {"scale_x": (named["scale_x"], Own()), "scale_w": (named["scale_w"], of_weights)}
    package.grouped_linear(*operands, **named)
    (launch,) = library.fake_launches()
    assert (launch.scale_d.data, launch.scale_d.shape[0]) == (whole.address, GROUPS)


def test_factors_of_narrow_groups_are_of_whole_atoms(package, library, tensor):
    for operation in (NVFP4, Operation.MXFP8_BF16_KK_GROUPED_SWIGLU, Operation.MXFP8_MXFP4_BF16_KK_GROUPED):
        library.c.recorder_reset()
        operands, named = arguments(operation, tensor)
        package.grouped_linear(*operands, **named)
        (launch,) = library.fake_launches()
        held = [x.vector.shape[0] for x in (launch.scale_a, launch.scale_b)]
        assert held == [named[x].shape[0] for x in ("scale_x", "scale_w")]
        b = launch.b.stack if operation.gate is None else launch.b.stack_of_parts
        assert list(b.shape)[-1] == K
        assert list(b.strides)[:2] == ([N * K, K] if operation.gate is None else [2 * N * K, K])


def test_factors_of_weights_in_rows_of_blocks_are_put_into_atoms(package, library, tensor, monkeypatch):
    blocks = K // NVFP4.a.scale.block_k
    operands, named = taken(NVFP4, tensor, scale_w=((GROUPS, N, blocks), E4M3))
    packed = tensor((GROUPS * row_of_atoms(NVFP4),), E4M3)
    calls = []

    def pack(factors, *, stacked):
        calls.append((factors, stacked))
        return packed

    monkeypatch.setattr(import_module(f"{package.__name__}._factors"), "pack_factors", pack)
    package.grouped_linear(*operands, **named)
    assert calls == [(named["scale_w"], True)]
    assert library.fake_launches()[0].scale_b.vector.data == packed.address


NARROW_REFUSED = [
    ({"scale_x": ((ROWS, 16), E4M3)}, "ShapeError", "scale_x has shape (40, 16), of 40 rows and k 256 in 3 groups"),
    ({"scale_x": ((2 * 2048,), E4M3)}, "ShapeError", "2048 for 128 rows, of which there are 3 whatever the groups'"),
    ({"scale_x": ((3 * 2048 + 1,), E4M3)}, "ShapeError", "put factors into them by pack_factors(factors, offsets)"),
    ({"scale_w": ((3, 128, 17), E4M3)}, "ShapeError", "(3, 128, 16); or atoms as one run of bytes, 2048 for each of 3"),
    ({"scale_w": ((2 * 2048,), E4M3)}, "ShapeError", "pack_factors(factors, stacked=True)"),
    ({"scale_w": ((3 * 2048,), E8M0)}, "DtypeError", "scale_x is float8_e4m3fn and scale_w float8_e8m0fnu"),
    ({"scale_out": ((1,), FLOAT32)}, "ShapeError", "scale_out has shape (1,); expected (3,), the product of x's own"),
    ({"scale_out": ((3,), FLOAT32, (2,))}, "StrideError", "scale_out has the stride 2; expected adjacent elements"),
    ({"scale_out": None}, "OperandError", "as scale_out=, a float32 tensor of (groups,) in GPU memory"),
    ({"bias": ((GROUPS, N), BFLOAT16)}, "UnsupportedError", "with bias"),
    ({"index": ((ROWS,), INT32)}, "UnsupportedError", "is nvfp4_bf16_grouped: give the rows that"),
    ({"gate": "silu"}, "OperandError", "got halves of a gate; expected one weight of both, whose rows and factors"),
    ({"gate": "gelu_tanh", "interleaved": True}, "UnsupportedError", "geglu"),
]


@IN_EXCHANGE
@pytest.mark.parametrize(("changes", "error", "text"), NARROW_REFUSED)
def test_what_narrow_groups_do_not_take_is_refused(package, library, tensor, changes, error, text):
    operands, named = taken(NVFP4, tensor, **{"out": None, **changes})
    with pytest.raises(getattr(package, error), match="grouped_linear: ") as raised:
        package.grouped_linear(*operands, **named)
    assert text in str(raised.value)
    assert library.fake_launches() == []


def test_narrow_rows_beside_wide_weights_are_refused(package, library, tensor):
    operands, named = arguments(NVFP4, tensor)
    with pytest.raises(package.DtypeError, match="there is no product of float4_e2m1fn by bfloat16 into bfloat16"):
        package.grouped_linear(operands[0], tensor((GROUPS, N, K), BFLOAT16), operands[2], **named)
    assert library.fake_launches() == []


def test_the_result_is_allocated_of_the_rows_of_the_index(package, library, tensor):
    operands, named = arguments(Operation.BF16_KK_GATHERED_SWIGLU, tensor)
    del named["out"]
    result = package.grouped_linear(*operands, **named)
    assert tuple(result.shape) == (ROWS, N)
    assert library.fake_launches()[0].d.data == result.address


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        ((1,), [0, 0]),
        ((GROUPS,), [1, 0]),
        ((GROUPS, 1), [1, 0]),
        ((GROUPS, N), [N, 1]),
        ((GROUPS, N, 1), [N, 1]),
        ((GROUPS, 1, N), [N, 1]),
    ],
)
def test_factors_of_the_weights_are_one_of_all_of_a_group_or_of_a_row(package, library, tensor, shape, steps):
    operands, named = arguments(Operation.E4M3_BF16_KK_GROUPED, tensor)
    package.grouped_linear(*operands, **(named | {"scale_w": tensor(shape, FLOAT32)}))
    (launch,) = library.fake_launches()
    assert list(launch.scale_b.matrix.shape) == [GROUPS, N]
    assert list(launch.scale_b.matrix.strides) == steps


def test_offsets_of_one_more_begin_with_the_first_start(package, library, tensor):
    operands, named = arguments(Operation.BF16_KK_GROUPED, tensor)
    package.grouped_linear(operands[0], operands[1], tensor((GROUPS + 1,), INT32), **named)
    assert list(library.fake_launches()[0].offsets.shape) == [GROUPS + 1]


def test_a_weight_of_k_by_n_is_read_as_it_lies(package, library, manifest, tensor):
    operands, named = arguments(Operation.BF16_KK_GROUPED, tensor)
    weight = tensor((GROUPS, N, K), BFLOAT16, (K * N, 1, N))
    package.grouped_linear(operands[0], weight, operands[2], **named)
    (launch,) = library.fake_launches()
    assert manifest.kernels[launch.kernel].operation is Operation.BF16_KN_GROUPED
    assert list(launch.b.stack.strides)[:2] == [K * N, N]


def gradient(tensor, **changes):
    """Make the operands of a weight's gradient: runs of k, along which neither operand is contiguous."""
    given = {
        "x": ((N, ROWS), BFLOAT16, (1, N)),
        "weight": ((K, ROWS), BFLOAT16, (1, K)),
        "offsets": ((GROUPS,), INT32),
        "out": ((GROUPS, N, K), BFLOAT16),
    } | changes
    return {name: tensor(*x) if isinstance(x, tuple) else x for name, x in given.items()}


def test_groups_of_one_weight_are_runs_of_k(package, library, manifest, tensor):
    named = gradient(tensor, out=((GROUPS, N, K), BFLOAT16, (2 * N * K, K, 1)))
    assert package.grouped_linear(**named) is named["out"]
    (launch,) = library.fake_launches()
    assert manifest.kernels[launch.kernel].operation is Operation.BF16_MN_KGROUPED
    assert (launch.a.data, list(launch.a.shape), launch.a.strides[0]) == (named["x"].address, [N, ROWS], N)
    b = launch.b.matrix
    assert (b.data, list(b.shape), b.strides[0]) == (named["weight"].address, [K, ROWS], K)
    assert (launch.d.parts.data, list(launch.d.parts.shape)) == (named["out"].address, [GROUPS, N, K])
    assert list(launch.d.parts.strides)[:2] == [2 * N * K, K]
    assert (launch.offsets.data, list(launch.offsets.shape)) == (named["offsets"].address, [GROUPS])


def test_the_results_of_runs_of_k_are_allocated(package, library, tensor):
    named = gradient(tensor, out=None)
    result = package.grouped_linear(**named)
    assert tuple(result.shape) == (GROUPS, N, K)
    assert library.fake_launches()[0].d.parts.data == result.address


RUNS_REFUSED = [
    ({"index": ((ROWS,), INT32)}, "OperandError", "whose groups are runs of k; an index is of rows"),
    ({"offsets": ((0,), INT32)}, "ShapeError", "offsets has shape (0,); expected where each run of k ends"),
    ({"out": ((N, K), BFLOAT16)}, "ShapeError", f"expected ({GROUPS}, {N}, {K})"),
    ({"weight": ((K, ROWS + 8), BFLOAT16)}, "ShapeError", "expected one k"),
    ({"bias": ((GROUPS, K), BFLOAT16)}, "UnsupportedError", "with bias"),
    ({"gate": "silu"}, "UnsupportedError", "swiglu"),
    (
        {
            "x": ((N, ROWS), E4M3),
            "weight": ((K, ROWS), E4M3),
            "scale_x": ((1,), FLOAT32),
            "scale_w": ((1,), FLOAT32),
        },
        "UnsupportedError",
        "e4m3",
    ),
]


@pytest.mark.parametrize(("changes", "error", "text"), RUNS_REFUSED)
def test_what_runs_of_k_do_not_have_is_refused(package, library, tensor, changes, error, text):
    with pytest.raises(getattr(package, error), match="grouped_linear: ") as raised:
        package.grouped_linear(**gradient(tensor, **changes))
    assert text in str(raised.value)
    assert library.fake_launches() == []


REFUSED = [
    ({"weight": ((K,), BFLOAT16)}, "ShapeError", "weight (groups, n, k)"),
    ({"weight": ((0, N, K), BFLOAT16)}, "ShapeError", "one group or more"),
    ({"weight": ((GROUPS, N, K + 8), BFLOAT16)}, "ShapeError", "expected one k"),
    ({"x": ((2, ROWS, K), BFLOAT16)}, "ShapeError", "x (rows, k)"),
    ({"offsets": ((GROUPS + 2,), INT32)}, "ShapeError", "offsets has shape (5,)"),
    ({"weight": ((2**63 - 1, N, K), BFLOAT16)}, "ShapeError", f"({2**63 - 1},), where each group ends, or ({2**63},)"),
    ({"offsets": ((GROUPS, 1), INT32)}, "ShapeError", "expected a vector"),
    ({"offsets": ((GROUPS,), FLOAT32)}, "DtypeError", "offsets is float32; expected int32"),
    ({"offsets": ((GROUPS,), INT32, (2,))}, "StrideError", "offsets has the stride 2"),
    ({"index": ((ROWS, 1), INT32)}, "ShapeError", "index has shape"),
    ({"out": ((ROWS + 1, N), BFLOAT16)}, "ShapeError", "out has shape (41, 128); expected (40, 128)"),
    ({"bias": ((GROUPS, N), BFLOAT16)}, "UnsupportedError", "bfloat16 by bfloat16 into bfloat16 with bias"),
    ({"x": ((ROWS, K), E4M3), "weight": ((GROUPS, N, K), E4M3)}, "OperandError", "need factors"),
]


@IN_EXCHANGE
@pytest.mark.parametrize(("changes", "error", "text"), REFUSED)
def test_what_makes_no_groups_is_refused(package, library, tensor, changes, error, text):
    given = {
        "x": ((ROWS, K), BFLOAT16),
        "weight": ((GROUPS, N, K), BFLOAT16),
        "offsets": ((GROUPS,), INT32),
        "out": ((ROWS, N), BFLOAT16),
    } | changes
    named = {name: tensor(*x) for name, x in given.items()}
    with pytest.raises(getattr(package, error)) as raised:
        package.grouped_linear(**named)
    assert text in str(raised.value)
    assert str(raised.value).startswith("grouped_linear: ")
    assert library.fake_launches() == []


def test_factors_of_other_shapes_are_refused(package, tensor):
    operands, named = arguments(Operation.E4M3_BF16_KK_GROUPED, tensor)
    with pytest.raises(package.ShapeError, match=r"\(groups, ceil\(n / 128\), ceil\(k / 128\)\)"):
        package.grouped_linear(*operands, **(named | {"scale_w": tensor((GROUPS, N + 1), FLOAT32)}))


def test_an_unknown_gate_is_refused(package, tensor):
    operands, _ = arguments(Operation.BF16_KK_GROUPED, tensor)
    with pytest.raises(package.UnsupportedError, match="expected one of None, 'silu', 'gelu_tanh'"):
        package.grouped_linear(*operands, gate="relu")


def test_offsets_that_are_left_away_are_told(package, tensor):
    operands, _ = arguments(Operation.BF16_KK_GROUPED, tensor)
    with pytest.raises(package.OperandError, match="offsets is None"):
        package.grouped_linear(*operands[:2], None)


# Weights of groups that are a tensor each.


def listed(operation, tensor):
    """Make all that a call of separate weights is given."""
    operands, named = arguments(operation, tensor)
    shape = operands[1].shape[1:]
    weights = [tensor(shape, TYPE_OF[operation.types.b]) for _ in range(GROUPS)]
    weights[0], weights[1] = weights[1], weights[0]
    return [operands[0], weights, *operands[2:]], named


@IN_EXCHANGE
@pytest.mark.parametrize("operation", CALLS, ids=lambda x: x.call)
def test_separate_weights_are_launched_in_one_product(package, library, manifest, tensor, operation):
    operands, named = listed(operation, tensor)
    assert package.grouped_linear(*operands, **named) is named["out"]
    (launch,) = library.fake_launches()
    assert call_of(manifest, launch) == operation.call
    addresses = [x.address for x in operands[1]]
    b = launch.b.stack if operation.gate is None else launch.b.stack_of_parts
    assert b.data == min(addresses)
    assert (b.shape[0], launch.b_of_groups.shape[0], launch.places.shape[0]) == (2**31 - 1, GROUPS, GROUPS)
    step = operation.b.element.size_of(b.strides[0])
    assert all((x - min(addresses)) % step == 0 for x in addresses)


def test_separate_weights_at_one_step_are_a_stack(package, library, tensor):
    operands, named = arguments(Operation.BF16_KK_GROUPED, tensor)
    same = tensor((N, K), BFLOAT16)
    package.grouped_linear(operands[0], (same, same, same), operands[2], **named)
    (launch,) = library.fake_launches()
    assert (launch.b.stack.data, launch.b.stack.shape[0], launch.b.stack.strides[0]) == (same.address, GROUPS, 0)
    assert launch.places.shape[0] == 0


@pytest.mark.parametrize(
    ("place", "shape", "kind", "text"),
    [
        (
            1,
            ((N, K + 8), BFLOAT16),
            "ShapeError",
            "weight 1 has shape (128, 264); expected that of weight 0, (128, 256)",
        ),
        (0, ((1, N, K), BFLOAT16), "ShapeError", "weight 0 of 3 has 3 dimensions"),
        (2, ((N, K), FLOAT32), "DtypeError", "weight 2 is of another element type than weight 0"),
        (2, ((N, K), BFLOAT16, (1, N)), "StrideError", "weight 2 has the strides (1, 128); expected those of weight 0"),
    ],
)
def test_separate_weights_that_differ_are_refused(package, library, tensor, place, shape, kind, text):
    operands, named = listed(Operation.BF16_KK_GROUPED, tensor)
    operands[1][place] = tensor(*shape)
    with pytest.raises(getattr(package, kind)) as error:
        package.grouped_linear(*operands, **named)
    assert text in str(error.value)
    assert not library.fake_launches()


@pytest.mark.parametrize("num_dims", [2, -1, 2**31 - 1])
def test_a_separate_weight_without_extents_is_refused(package, library, num_dims):
    class Damaged(Framework):
        def _view(self, tensor, out):
            status = super()._view(tensor, out)
            if tensor is weights[1]:
                out.contents.ndim = num_dims
                out.contents.shape = None if num_dims == 2 else out.contents.shape
            return status

    framework = Damaged()
    operands, named = listed(Operation.BF16_KK_GROUPED, framework.Tensor)
    weights = operands[1]
    with pytest.raises(package.ShapeError, match=f"weight 1 has {num_dims} dimensions; expected 0 to 64, with extents"):
        package.grouped_linear(*operands, **named)
    assert not library.fake_launches()


def test_no_weights_are_refused(package, library, tensor):
    operands, named = arguments(Operation.BF16_KK_GROUPED, tensor)
    with pytest.raises(package.ShapeError, match="got no weights"):
        package.grouped_linear(operands[0], [], operands[2], **named)


def test_weights_beside_the_wrong_number_of_offsets_are_refused(package, library, tensor):
    operands, named = listed(Operation.BF16_KK_GROUPED, tensor)
    with pytest.raises(package.ShapeError, match=r"offsets has shape \(3,\), weight \(5, 128, 256\)"):
        package.grouped_linear(operands[0], [*operands[1], *operands[1][:2]], operands[2], **named)


# Results that repeat.


def test_a_mode_goes_to_the_call(package, library, manifest, tensor, monkeypatch):
    """What a library chooses by it is in test_groups.py."""
    operands, named = arguments(Operation.BF16_KK_GROUPED, tensor)
    with pytest.raises(package.UnsupportedError, match=r"add up k in more than one order"):
        package.grouped_linear(*operands, **named, batch_invariant=True)
    assert not library.fake_launches()
    m, n, k = varying_size(package, manifest)
    operands, named = [tensor((m, k), BFLOAT16), tensor((GROUPS, n, k), BFLOAT16), operands[2]], {}
    for options in ({}, {"deterministic": True}):
        package.grouped_linear(*operands, **named, **options)
    usual, asked = (manifest.kernels[x.kernel].workspace.mode for x in library.fake_launches())
    assert (usual, asked != "parallel") == ("parallel", True)


def varying_size(package, manifest):
    """Find sizes that get a kernel whose sums are in the order of arrival."""
    modes = {x.name: x.workspace.mode for x in manifest.kernels}
    for m in (3, 48, 500, 8000):
        for n, k in itertools.product((64, 128, 4096, 5120), (64, 72, 4096)):
            if modes[package.plan(m, n, k, groups=GROUPS).kernel] == "parallel":
                assert modes[package.plan(m, n, k, groups=GROUPS, deterministic=True).kernel] != "parallel"
                return m, n, k
    raise AssertionError("no size gets such a kernel")


def test_torchs_setting_is_heard(package, library, manifest, monkeypatch):
    torch = install_old_torch(monkeypatch, 0x8880)
    m, n, k = varying_size(package, manifest)
    operands = [torch.Tensor(x, BFLOAT16) for x in ((m, k), (GROUPS, n, k))] + [torch.Tensor((GROUPS,), INT32)]
    torch.bfloat16 = BFLOAT16
    out = torch.Tensor((m, n), BFLOAT16)
    for is_asked in (False, True):
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda is_asked=is_asked: is_asked)
        package.grouped_linear(*operands, out=out)
    usual, asked = (manifest.kernels[x.kernel].workspace.mode for x in library.fake_launches())
    assert (usual, asked != "parallel") == ("parallel", True)


# What the table says of groups.


@pytest.mark.parametrize("operation", GROUPED, ids=lambda x: x.tag)
def test_plan_of_groups_asks_for_what_is_expected_of_one(package, manifest, operation):
    kind = operation.grouping.value
    is_k = kind == "kgrouped"
    named = {"layout": operation.layout.value, "grouping": kind, "gated": operation.gate is not None}
    if operation.types.factors in (FactorLayout.BLOCK, FactorLayout.VECTOR):
        named["scales"] = operation.types.scaling
    dtype = operation.a.tag if operation.types.scaling == "atoms" else DTYPES_OF[operation.types.a]
    if operation.a.tag != operation.b.tag:
        named["weight_dtype"] = operation.b.tag
    if operation.factors_of_d is not None:
        named["out_dtype"] = operation.a.tag
    for m, groups in ((1000, 7), (64, 64), (3, 8), (4096, 1)):
        shape = (256, 512, 16 * m) if is_k else (m, 512, 256)
        got = package.plan(*shape, dtype, groups=groups, **named)
        expected = -(-(shape[2] if is_k else m) // groups)
        one = (256, 512, expected) if is_k else (expected, 512, 256)
        section = manifest.tables[0].table.section(operation, groups)
        choice = look_up(section, Problem(operation, *one, groups), manifest.multiples, aligned=True)
        assert got.kernel == manifest.kernels[choice.kernel].name
        if choice.tier is Tier.GRID:
            edges = section.grid.columns[choice.index].m_edges
            assert got.bucket == (edges[round_up(one[0], edges)], *section.grid.corner(choice.index))
        assert (got.groups, got.expected, got.grouping, got.operation) == (groups, expected, kind, operation.call)
        least = operation.num_bytes(*one, groups) - operation.num_bytes(0, 0, 0, groups)
        if operation.types.factors is FactorLayout.ATOMS:  # of which a wheel does not count what fills atoms up
            scale = operation.a.scale
            least -= groups * (scale.size_of(expected, 256) - expected * 256 // scale.block_k)
        if operation.factors_of_d is not None:  # which it does not count
            least -= groups * operation.factors_of_d.size_of(expected, 512)
        assert got.roofline_us >= 0.99 * least / manifest.tables[0].bandwidth_bytes_per_s * 1e6
        text = package.explain(*shape, dtype, groups=groups, **named)
        assert f"  groups     {groups} of " in text
        assert f"asked for {expected} {'k' if is_k else 'rows'} of each" in text


def test_plan_of_groups_states_no_step_that_a_call_does_not(package):
    """Groups are rows of one A: there is no step between them that TMA could find too long."""
    assert package.plan(2**20, 64, 2**20, groups=8).tier != "fallback"
    assert package.plan(256, 512, 2**31 - 128, layout="mn", groups=8, grouping="kgrouped").tier != "fallback"


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"groups": 0}, "ShapeError", "groups is 0 beside batch 1; expected 1 or more"),
        ({"groups": 4, "batch": 2}, "ShapeError", "groups is 4 beside batch 2"),
        ({"groups": 4, "grouping": "rows"}, "UnsupportedError", "grouping is 'rows'; expected one of 'grouped'"),
        ({"grouping": "gathered"}, "UnsupportedError", "grouping is 'gathered', and groups None; give their number"),
        ({"groups": 2.5}, "ShapeError", "groups is 2.5, a float; expected an integer"),
    ],
)
def test_plan_refuses_groups_that_there_are_none_of(package, options, kind, text):
    for call in (package.plan, package.explain):
        with pytest.raises(getattr(package, kind)) as error:
            call(64, 128, 256, **options)
        assert text in str(error.value)


def test_the_skew_is_that_of_the_loads_that_kernels_are_timed_on(package):
    shares = np.diff(draw_ends(GroupSizes.SKEWED, 64, 10**9, np.random.default_rng(1)), prepend=0)
    assert package._plan_groups.skew_of(64) == pytest.approx(shares.max() / shares.mean(), rel=1e-6)
    assert package._plan_groups.skew_of(1) == 1.0
