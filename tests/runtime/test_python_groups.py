"""`grouped_linear` over the recorder: what reaches the C API, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.types import SCALE_BLOCK, Scale
from tests.runtime import host
from tests.runtime.tensors import BFLOAT16, E4M3, FLOAT32, INT32
from tests.runtime.test_groups import GROUPED
from tests.runtime.test_python_operations import DTYPES, address, call_of

ROWS, TOKENS, N, K, GROUPS = 40, 12, 128, 256, 3
CALLS = [x for x in GROUPED if x is x.layouts[0] and x.grouping.groups_rows]


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
        tensor((height, K), DTYPES[operation.types.a]),
        tensor((GROUPS, rows, K), DTYPES[operation.types.b]),
        tensor((GROUPS,), INT32),
    ]
    named = {"out": tensor((ROWS, N), DTYPES[operation.d])}
    if operation.has_bias:
        operands.append(tensor((GROUPS, rows), DTYPES[operation.bias]))
    if is_gathered:
        named["index"] = tensor((ROWS,), INT32)
    if operation.gate is not None:
        named["gate"] = "silu"
    if operation.types.scale is Scale.VECTOR:
        named |= {"scale_x": tensor((height, 1), FLOAT32), "scale_w": tensor((GROUPS, rows), FLOAT32)}
    if operation.types.scale is Scale.BLOCK:
        blocks = K // SCALE_BLOCK
        named["scale_x"] = tensor((height, blocks), FLOAT32)
        named["scale_w"] = tensor((GROUPS, rows // SCALE_BLOCK, blocks), FLOAT32)
    return operands, named


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
    factors = [launch.scale_a.vector.data, launch.scale_b.vector.data]
    assert factors == [address(named.get(name)) for name in ("scale_x", "scale_w")]
    assert list(launch.a.shape) == [x.shape[0], K]
    assert list(launch.d.shape) == [ROWS, N]


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
    ({"offsets": ((GROUPS, 1), INT32)}, "ShapeError", "expected a vector"),
    ({"offsets": ((GROUPS,), FLOAT32)}, "DtypeError", "offsets is float32; expected int32"),
    ({"offsets": ((GROUPS,), INT32, (2,))}, "StrideError", "offsets has the stride 2"),
    ({"index": ((ROWS, 1), INT32)}, "ShapeError", "index has shape"),
    ({"out": ((ROWS + 1, N), BFLOAT16)}, "ShapeError", "out has shape (41, 128); expected (40, 128)"),
    ({"bias": ((GROUPS, N), BFLOAT16)}, "UnsupportedError", "bfloat16 by bfloat16 into bfloat16 with bias"),
    ({"x": ((ROWS, K), E4M3), "weight": ((GROUPS, N, K), E4M3)}, "OperandError", "need factors"),
]


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
