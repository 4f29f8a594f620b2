"""What the kernels of groups are called with, and which groups the C API refuses."""

from __future__ import annotations

import ctypes

import pytest

from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.types import SCALE_BLOCK, Scale
from aot.measure.kernel_library import GATE_INTERLEAVED, OFFSETS_START, ProblemStruct, TensorStruct
from tests.runtime import host

GROUPED = tuple(x for x in Operation if x.grouping.has_offsets)
M, N, K, GROUPS, ROWS_OF_A = 48, 128, 256, 5, 19
STREAM = 0x5550
ADDRESSES = {
    name: place << 44
    for place, name in enumerate(("a", "b", "d", "bias", "scale_a", "scale_b", "offsets", "index", "scale_d"), 1)
}
ARGUMENT, SHAPE, STRIDE = 1, 3, 4  # aot_gemm_status_t
FALLBACK = 3  # AOT_GEMM_TIER_FALLBACK


@pytest.fixture(scope="module")
def grouped_path(tmp_path_factory):
    return host.compile_library(host.random_manifest(5, GROUPED), tmp_path_factory.mktemp("grouped"))


@pytest.fixture
def library(grouped_path):
    library = host.Library(grouped_path)
    library.c.recorder_reset()
    return library


def rows_of_b(operation):
    return N if operation.gate is None else 2 * N


def group_steps(operation):
    """Return the steps from group to group of packed operands."""
    rows, blocks = rows_of_b(operation), K // SCALE_BLOCK
    if operation.grouping is Grouping.K_GROUPED:
        return {"d": M * N}
    of_blocks = operation.types.scale is Scale.BLOCK
    return {"b": rows * K, "bias": rows, "scale_b": rows // SCALE_BLOCK * blocks if of_blocks else rows}


def state(library, operation, **changes):
    """State packed groups; `changes` are fields of the problem, and tensors as (address, strides)."""
    number = library.c.aot_gemm_operation(operation.call.encode())
    assert number > 0, library.error()
    is_gathered = operation.grouping is Grouping.GATHERED
    blocks = K // SCALE_BLOCK
    rows = ROWS_OF_A if is_gathered else M
    tensors = {
        "a": (K, 1) if operation.layout.a_k_major else (1, rows),
        "b": (K, 1) if operation.layout.b_k_major else (1, rows_of_b(operation)),
        "d": (N, 1),
        "offsets": (1, 1),
    }
    if is_gathered:
        tensors["index"] = (1, 1)
    if operation.types.is_scaled:
        is_block = operation.types.scale is Scale.BLOCK
        tensors |= {"scale_a": (blocks if is_block else 1, 1), "scale_b": (blocks if is_block else 1, 1)}
    if operation.has_bias:
        tensors["bias"] = (0, 1)
    stated = ProblemStruct(ctypes.sizeof(ProblemStruct), number, -1, M, N, K)
    stated.num_groups = GROUPS
    stated.rows_of_a = ROWS_OF_A if is_gathered else 0
    for name, strides in tensors.items():
        setattr(stated, name, TensorStruct(ADDRESSES[name], strides))
    for name, step in group_steps(operation).items():
        setattr(stated.group_strides, name, step)
    for name, value in changes.items():
        setattr(stated, name, TensorStruct(*value) if isinstance(value, tuple) else value)
    return stated


def launched(library, stated):
    num_bytes = library.workspace_bytes(stated)
    assert library.launch(stated, 0x900000 if num_bytes else 0, num_bytes, STREAM) == 0, library.error()
    (launch,) = library.fake_launches()
    return launch


def read(tensor, num_strides):
    return tensor.data or 0, list(tensor.shape), list(tensor.strides)[:num_strides]


@pytest.mark.parametrize("operation", GROUPED, ids=lambda x: x.tag)
def test_every_operand_of_groups_arrives(library, operation):
    launch = launched(library, state(library, operation))
    rows_a = ROWS_OF_A if operation.grouping is Grouping.GATHERED else M
    leading_a = K if operation.layout.a_k_major else rows_a
    leading_b = K if operation.layout.b_k_major else rows_of_b(operation)
    assert read(launch.a, 1) == (ADDRESSES["a"], [rows_a, K], [leading_a])
    assert (launch.offsets.data, list(launch.offsets.shape)) == (ADDRESSES["offsets"], [GROUPS])
    assert launch.stream == STREAM
    if operation.grouping is Grouping.K_GROUPED:
        assert read(launch.b.matrix, 1) == (ADDRESSES["b"], [N, K], [leading_b])
        assert read(launch.d.parts, 2) == (ADDRESSES["d"], [GROUPS, M, N], [M * N, N])
        return
    assert read(launch.d, 1) == (ADDRESSES["d"], [M, N], [N])
    if operation.gate is None:
        assert read(launch.b.stack, 2) == (ADDRESSES["b"], [GROUPS, N, K], [N * K, leading_b])
    else:
        assert read(launch.b.stack_of_parts, 3) == (ADDRESSES["b"], [GROUPS, 2, N, K], [2 * N * K, N * K, K])
    if operation.grouping is Grouping.GATHERED:
        assert (launch.index.data, list(launch.index.shape)) == (ADDRESSES["index"], [M])


@pytest.mark.parametrize("operation", [x for x in GROUPED if x.types.is_scaled], ids=lambda x: x.tag)
def test_factors_and_bias_of_groups_arrive(library, operation):
    launch = launched(library, state(library, operation))
    rows_a = ROWS_OF_A if operation.grouping is Grouping.GATHERED else M
    rows, blocks = rows_of_b(operation), K // SCALE_BLOCK
    if operation.types.scale is Scale.BLOCK:
        stack = [GROUPS, rows // SCALE_BLOCK, blocks], [rows // SCALE_BLOCK * blocks, blocks, 1]
        assert read(launch.scale_a.matrix, 2) == (ADDRESSES["scale_a"], [rows_a, blocks], [blocks, 1])
        assert read(launch.scale_b.stack, 3) == (ADDRESSES["scale_b"], *stack)
        return
    assert read(launch.scale_a.vector, 1) == (ADDRESSES["scale_a"], [rows_a], [1])
    if operation.gate is None:
        assert read(launch.scale_b.matrix, 2) == (ADDRESSES["scale_b"], [GROUPS, N], [N, 1])
        assert read(launch.bias.stack, 2) == (ADDRESSES["bias"], [GROUPS, N], [N, 1])
    else:
        assert read(launch.scale_b.stack, 3) == (ADDRESSES["scale_b"], [GROUPS, 2, N], [2 * N, N, 1])
        assert read(launch.bias.stack_of_parts, 3) == (ADDRESSES["bias"], [GROUPS, 2, N], [2 * N, N, 1])


def test_rows_of_a_gate_may_take_turns_but_not_with_blocks_of_factors(library):
    stated = state(library, Operation.BF16_KK_GROUPED_SWIGLU, flags=GATE_INTERLEAVED)
    assert read(launched(library, stated).b.stack_of_parts, 3)[2] == [2 * N * K, K, 2 * K]
    library.c.recorder_reset()
    stated = state(library, Operation.E4M3_BF16_BLOCK_KK_GROUPED_SWIGLU, flags=GATE_INTERLEAVED)
    assert library.launch(stated, 0, 0, STREAM) == ARGUMENT


def test_offsets_may_begin_with_the_start_of_the_first_group(library):
    stated = state(library, Operation.BF16_KK_GROUPED, flags=OFFSETS_START)
    assert list(launched(library, stated).offsets.shape) == [GROUPS + 1]


@pytest.mark.parametrize(
    ("operation", "changes", "status", "text"),
    [
        (Operation.BF16_KK_GROUPED, {"offsets": (0, (1, 1))}, ARGUMENT, "`offsets.data` is null"),
        (Operation.BF16_KK_GATHERED, {"index": (0, (1, 1))}, ARGUMENT, "`index.data` is null"),
        (
            Operation.BF16_KK_GROUPED,
            {"index": (64, (1, 1))},
            ARGUMENT,
            "an index, which operation bf16_grouped does not",
        ),
        (
            Operation.BF16_KK_GROUPED,
            {"rows_of_a": 3},
            ARGUMENT,
            "rows_of_a is 3, which operation bf16_grouped does not",
        ),
        (Operation.BF16_KK_GATHERED, {"rows_of_a": -1}, SHAPE, "rows_of_a is -1"),
        (Operation.BF16_KK_GROUPED, {"offsets": (66, (1, 1))}, STRIDE, "offsets is at address 0x42"),
        (Operation.BF16_KK_GROUPED, {"offsets": (64, (2, 1))}, STRIDE, "offsets of 5 int32 has the stride 2"),
        (Operation.BF16_KK_GROUPED, {"num_groups": -1}, SHAPE, "num_groups is -1"),
        (Operation.BF16_KK_GROUPED, {"d": (ADDRESSES["b"], (N, 1))}, STRIDE, "reaches into the memory of B"),
        (
            Operation.BF16_KK_GROUPED,
            {"d": (ADDRESSES["offsets"], (N, 1))},
            STRIDE,
            "reaches into the memory of the offsets",
        ),
        (Operation.BF16_KK_GROUPED, {"d": (ADDRESSES["d"], (0, 1))}, STRIDE, "overlaps itself"),
    ],
)
def test_groups_that_cannot_be_are_refused(library, operation, changes, status, text):
    assert library.launch(state(library, operation, **changes), 0, 0, STREAM) == status
    assert text in library.error()
    assert library.fake_launches() == []


def test_steps_below_0_and_out_of_reach_are_refused(library):
    stated = state(library, Operation.BF16_KK_GROUPED)
    stated.group_strides.b = -8
    assert library.launch(stated, 0, 0, STREAM) == STRIDE
    assert "group_strides.b is -8" in library.error()
    stated.group_strides.b = 2**62
    assert library.launch(stated, 0, 0, STREAM) == STRIDE
    assert "past the end of the address space" in library.error()


@pytest.mark.parametrize("is_gated", [False, True])
def test_a_gate_with_blocks_of_factors_takes_whole_blocks_of_columns(library, is_gated):
    operation = Operation.E4M3_BF16_BLOCK_KK_GROUPED_SWIGLU if is_gated else Operation.E4M3_BF16_BLOCK_KK_GROUPED
    stated = state(library, operation, n=N + 8, d=(ADDRESSES["d"], (N + 8, 1)))
    assert (library.select(stated)[1].tier == FALLBACK) == is_gated
    stated = state(library, operation)
    assert library.select(stated)[1].tier != FALLBACK


def test_a_step_that_tma_does_not_take_goes_to_the_fallback(library):
    stated = state(library, Operation.BF16_KK_GROUPED)
    stated.group_strides.b += 1
    assert library.select(stated)[1].tier == FALLBACK
    assert read(launched(library, stated).b.stack, 3)[2] == [N * K + 1, K, 1]


def test_groups_are_looked_up_by_the_rows_that_are_expected_of_one(library):
    """m of 48 in 5 groups is as 10 rows of one."""
    many = library.select(state(library, Operation.BF16_KK_GROUPED, m=10 * GROUPS))[1]
    one = library.select(state(library, Operation.BF16_KK_GROUPED, m=46))[1]
    assert (many.kernel, many.index, many.tier) == (one.kernel, one.index, one.tier)
