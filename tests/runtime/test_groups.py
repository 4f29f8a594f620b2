"""What the kernels of groups are called with, and which groups the C API refuses."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest

from aot.core.dispatch import DispatchTable, Scope
from aot.core.formats import SCALE_BLOCK, FactorLayout
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.measure.call_structs import GATE_INTERLEAVED, OFFSETS_START, ProblemStruct, TensorStruct
from tests.runtime import host

GROUPED = tuple(x for x in Operation if x.grouping.has_offsets and x.types.weight is None)
M, N, K, GROUPS, ROWS_OF_A = 48, 128, 256, 5, 19
STREAM = 0x5550
ADDRESSES = {
    name: place << 44
    for place, name in enumerate(
        ("a", "b", "d", "bias", "scale_a", "scale_b", "offsets", "index", "scale_d", "own_d", "factors_d"), 1
    )
}
ARGUMENT, OPERATION, SHAPE, STRIDE = 1, 2, 3, 4  # aot_gemm_status_t
BATCH_INVARIANT, DETERMINISTIC = 4, 8
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


def row_of_atoms(operation):
    """Return the bytes of the atoms of 128 rows: 512 for each four blocks along k, of 16 or 32 elements."""
    return K // (4 * (16 if operation.tag.startswith("nvfp4") else 32)) * 512


def group_steps(operation):
    """Return the steps from group to group of packed operands."""
    rows, blocks = rows_of_b(operation), K // SCALE_BLOCK
    if operation.grouping is Grouping.K_GROUPED:
        return {"d": M * N}
    of_factors = {
        FactorLayout.BLOCK: rows // SCALE_BLOCK * blocks,
        FactorLayout.ATOMS: rows // 128 * row_of_atoms(operation),
    }
    return {"b": rows * K, "bias": rows, "scale_b": of_factors.get(operation.types.factors, rows)}


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
        is_block = operation.types.factors is FactorLayout.BLOCK
        tensors |= {"scale_a": (blocks if is_block else 1, 1), "scale_b": (blocks if is_block else 1, 1)}
    if operation.has_bias:
        tensors["bias"] = (0, 1)
    if operation.types.scales_sum:
        tensors["scale_d"] = (1, 1)
    if operation.factors_of_d is not None:
        tensors |= {"factors_d": (0, 0)} | ({"own_d": (0, 0)} if operation.types.scales_sum else {})
    if operation.is_interleaved:
        changes = {"flags": GATE_INTERLEAVED} | changes
        changes["flags"] |= GATE_INTERLEAVED
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
    return tensor.data or 0, list(tensor.shape), list(tensor.strides)[:num_strides] if num_strides else []


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
        steps = [K, 2 * K] if operation.is_interleaved else [N * K, K]
        assert read(launch.b.stack_of_parts, 3) == (ADDRESSES["b"], [GROUPS, 2, N, K], [2 * N * K, *steps])
    if operation.grouping is Grouping.GATHERED:
        assert (launch.index.data, list(launch.index.shape)) == (ADDRESSES["index"], [M])


@pytest.mark.parametrize("operation", [x for x in GROUPED if x.types.is_scaled], ids=lambda x: x.tag)
def test_factors_and_bias_of_groups_arrive(library, operation):
    launch = launched(library, state(library, operation))
    rows_a = ROWS_OF_A if operation.grouping is Grouping.GATHERED else M
    rows, blocks = rows_of_b(operation), K // SCALE_BLOCK
    if operation.types.factors is FactorLayout.BLOCK:
        stack = [GROUPS, rows // SCALE_BLOCK, blocks], [rows // SCALE_BLOCK * blocks, blocks, 1]
        assert read(launch.scale_a.matrix, 2) == (ADDRESSES["scale_a"], [rows_a, blocks], [blocks, 1])
        assert read(launch.scale_b.stack, 3) == (ADDRESSES["scale_b"], *stack)
        return
    if operation.types.factors is FactorLayout.ATOMS:
        whole = GROUPS * rows // 128 * row_of_atoms(operation)  # of B, whose rows are whole atoms here
        held = (1 + GROUPS - 1) * row_of_atoms(operation)  # of A's 48 rows
        assert read(launch.scale_a.vector, 0) == (ADDRESSES["scale_a"], [held], [])
        assert read(launch.scale_b.vector, 0) == (ADDRESSES["scale_b"], [whole], [])
        of_groups = (ADDRESSES["scale_d"], [GROUPS], []) if operation.types.scales_sum else (0, [0], [])
        assert read(launch.scale_d, 0) == of_groups
        if operation.factors_of_d is not None:  # whose D of 128 columns has half as many atoms along n as A has of 256
            assert read(launch.own_d, 0) == (
                (ADDRESSES["own_d"], [1], []) if operation.types.scales_sum else (0, [0], [])
            )
            assert read(launch.factors_d, 0) == (ADDRESSES["factors_d"], [held * N // K], [])
        if operation.gate is not None:
            assert read(launch.bias.stack_of_parts, 3) == (ADDRESSES["bias"], [GROUPS, 2, N], [2 * N, 1, 2])
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


NVFP4 = Operation.NVFP4_BF16_KK_GROUPED


@pytest.mark.parametrize(
    ("operation", "changes", "status", "text"),
    [
        (NVFP4, {"scale_a": (0, (0, 0))}, ARGUMENT, "`scale_a.data` is null"),
        (NVFP4, {"scale_d": (0, (1, 1))}, ARGUMENT, "`scale_d.data` is null"),
        (
            NVFP4,
            {"scale_d": (ADDRESSES["scale_d"], (0, 1))},
            STRIDE,
            "scale_d of 5 groups has the stride 0; expected 1",
        ),
        (NVFP4, {"scale_a": (ADDRESSES["scale_a"] + 8, (0, 0))}, STRIDE, "expected a multiple of 16, which its atoms"),
        (NVFP4, {"b": (ADDRESSES["b"], (K + 1, 1))}, STRIDE, "rows at multiples of 2 elements, which share a byte"),
        (NVFP4, {"m": 2**31 - 1}, SHAPE, "scale_a takes 16777220 times 2048 bytes of atoms; expected at most"),
        (NVFP4, {"d": (ADDRESSES["scale_a"] + 5 * 2048 - 2, (N, 1))}, STRIDE, "reaches into the memory of scale_a"),
        (NVFP4, {"d": (ADDRESSES["scale_b"] + 5 * 2048 - 2, (N, 1))}, STRIDE, "reaches into the memory of scale_b"),
        (NVFP4, {"d": (ADDRESSES["scale_d"] + 4 * 4, (N, 1))}, STRIDE, "reaches into the memory of scale_d"),
        (NVFP4, {"d": (ADDRESSES["b"] + GROUPS * N * K // 2 - 2, (N, 1))}, STRIDE, "reaches into the memory of B"),
        (NVFP4, {"bias": (64, (0, 1))}, ARGUMENT, "got a bias, which operation nvfp4_bf16_grouped does not take"),
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


@pytest.mark.parametrize(
    ("field", "step", "text"),
    [
        ("b", N * K + 1, "group_strides.b is 32769; expected a multiple of 2 elements, which share a byte"),
        ("scale_b", 4096, "group_strides.scale_b is 4096; expected 2048, the bytes of a group's atoms"),
        ("scale_b", 0, "group_strides.scale_b is 0; expected 2048"),
    ],
)
def test_steps_of_narrow_groups_are_of_whole_bytes_and_atoms(library, field, step, text):
    stated = state(library, NVFP4)
    setattr(stated.group_strides, field, step)
    assert library.launch(stated, 0, 0, STREAM) == STRIDE
    assert text in library.error()


@pytest.mark.parametrize("ends", ["behind the last byte", "on the last byte"])
def test_a_result_lies_apart_from_the_atoms_of_all_groups(library, ends):
    address = ADDRESSES["scale_b"] + 5 * 2048 - (0 if ends.startswith("behind") else 2)
    status = library.select(state(library, NVFP4, d=(address, (N, 1))))[0]
    assert (status == 0) == ends.startswith("behind"), library.error()


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


PLACED = [x for x in GROUPED if x.grouping.groups_rows]
WORKSPACE = 0x900000
MIB = 1 << 20


def listed(library, operation, addresses, **changes):
    """State groups whose B have an address each."""
    stated = state(library, operation, **changes)
    stated.b.data = None
    stated.group_strides.b = 0
    stated.b_of_groups = (ctypes.c_void_p * len(addresses))(*addresses)
    return stated


def b_of(launch, operation):
    """Return the address, the number and the step of the stack that a kernel takes for B."""
    b = launch.b.stack if operation.gate is None else launch.b.stack_of_parts
    return b.data, b.shape[0], b.strides[0]


@pytest.mark.parametrize("operation", PLACED, ids=lambda x: x.tag)
def test_groups_of_separate_b_are_one_stack_with_a_place_each(library, operation):
    addresses = [ADDRESSES["b"] + x * MIB for x in (7, 3, 1, 19, 3)]
    of_kernel = library.workspace_bytes(state(library, operation))
    stated = listed(library, operation, addresses)
    assert library.workspace_bytes(stated) == of_kernel + 32  # five int32, to 16 bytes
    launch = launched(library, stated)
    assert b_of(launch, operation) == (ADDRESSES["b"] + MIB, 2**31 - 1, operation.b.element.num_in(2 * MIB))
    assert (launch.places.data, launch.places.shape[0]) == (WORKSPACE + of_kernel, GROUPS)
    assert launch.b_of_groups.shape[0] == GROUPS
    assert launch.b_of_groups.data == ctypes.cast(stated.b_of_groups, ctypes.c_void_p).value


@pytest.mark.parametrize("step", [0, 512, 3 * MIB])
def test_addresses_of_one_step_are_a_stack_without_places(library, step):
    operation = Operation.BF16_KK_GROUPED
    stated = listed(library, operation, [ADDRESSES["b"] + i * step for i in range(GROUPS)])
    assert library.workspace_bytes(stated) == library.workspace_bytes(state(library, operation))
    launch = launched(library, stated)
    assert b_of(launch, operation) == (ADDRESSES["b"], GROUPS, step // 2)
    assert (launch.places.shape[0], launch.b_of_groups.shape[0]) == (0, 0)


def test_groups_whose_addresses_descend_have_places(library):
    operation = Operation.BF16_KK_GROUPED
    stated = listed(library, operation, [ADDRESSES["b"] + (GROUPS - i) * 512 for i in range(GROUPS)])
    launch = launched(library, stated)
    assert b_of(launch, operation) == (ADDRESSES["b"] + 512, 2**31 - 1, 256)
    assert launch.places.shape[0] == GROUPS


def test_steps_of_places_stay_below_what_a_tensor_map_takes(library):
    operation = Operation.BF16_KK_GROUPED
    far = [ADDRESSES["b"] + x * 2**41 for x in (0, 1, 2, 3, 4)]
    assert b_of(launched(library, listed(library, operation, far)), operation) == (ADDRESSES["b"], 2**31 - 1, 2**29)


@pytest.mark.parametrize(
    ("operation", "addresses", "changes", "status", "text"),
    [
        (Operation.BF16_KK_GROUPED, [512, 0, 1024, 2048, 4096], {}, ARGUMENT, "`b_of_groups[i]` is null"),
        (Operation.BF16_KK_GROUPED, [513, 1024, 2048, 4096, 5120], {}, STRIDE, "B of a group is at address 0x201"),
        (Operation.BF16_KK_GROUPED, [0x100, 0x110, 1 << 40, 4096, 5120], {}, STRIDE, "at multiples of 16 bytes"),
        (Operation.BF16_KK_GROUPED, [ADDRESSES["d"], 512, 5120, 4096, 8192], {}, STRIDE, "D at address"),
        (Operation.BF16_KK_GROUPED, [2**64 - 512, 512, 5120, 4096, 8192], {}, STRIDE, "past the end of the address"),
        (
            Operation.BF16_MN_KGROUPED,
            [512] * GROUPS,
            {},
            ARGUMENT,
            "got b_of_groups, which operation bf16_kgrouped does not take",
        ),
        (Operation.BF16_KK_GROUPED, [512] * GROUPS, {"b": (ADDRESSES["b"], (K, 1))}, ARGUMENT, "expected null and 0"),
    ],
)
def test_b_of_groups_that_no_kernel_takes_are_refused(library, operation, addresses, changes, status, text):
    stated = listed(library, operation, addresses)
    for name, value in changes.items():
        setattr(stated, name, TensorStruct(*value))
    assert library.launch(stated, WORKSPACE, 64, STREAM) == status
    assert text in library.error()
    assert not library.fake_launches()


def test_places_need_the_workspace_that_was_asked_for(library):
    stated = listed(library, Operation.BF16_KK_GROUPED, [512, 2048, 1024, 4096, 8192])
    needed = library.workspace_bytes(stated)
    assert library.launch(stated, WORKSPACE, needed - 1, STREAM) == 8  # AOT_GEMM_ERROR_WORKSPACE
    assert f"needs a workspace of {needed} bytes" in library.error()


def test_no_b_of_groups_is_read_where_k_is_0(library):
    stated = listed(library, Operation.BF16_KK_GROUPED, [1, 0, 7, 3, 5], k=0)
    assert launched(library, stated).places.shape[0] == 0


# Results that repeat.


def selected(library, operation, **changes):
    """Return the kernel that is chosen."""
    status, selection = library.select(state(library, operation, **changes))
    assert status == 0, library.error()
    return selection.kernel


def rows_to_ask(operation):
    """List m for which packed groups can be stated."""
    return (1, 48, 500, 8000) if operation.grouping.groups_rows else (1, 7, 20, 48)


@pytest.mark.parametrize("operation", GROUPED, ids=lambda x: x.tag)
def test_kernels_of_several_orders_are_refused_to_a_batch_invariant_call(library, operation):
    stated = state(library, operation, flags=BATCH_INVARIANT)
    assert library.select(stated)[0] == OPERATION
    assert library.error() == (
        f"the kernels of {operation.call} in this library add up k in more than one order, by which a row's bits "
        "depend on the sizes of groups; expected a call without AOT_GEMM_BATCH_INVARIANT, or a library built of "
        "a selection that `aot select --batch-invariant` made"
    )
    assert library.launch(stated, 0, 0, STREAM) == OPERATION
    assert not library.fake_launches()


@pytest.fixture(scope="module")
def one_order():
    return host.with_one_order(host.random_manifest(5, GROUPED))


@pytest.fixture(scope="module")
def ordered_path(one_order, tmp_path_factory):
    return host.compile_library(one_order, tmp_path_factory.mktemp("one_order"))


@pytest.mark.parametrize("operation", GROUPED, ids=lambda x: x.tag)
def test_kernels_of_one_order_are_chosen_as_without_the_flag(ordered_path, one_order, operation):
    library = host.Library(ordered_path)
    for m in rows_to_ask(operation):
        usual, *asked = (selected(library, operation, m=m, flags=x) for x in (0, BATCH_INVARIANT, DETERMINISTIC))
        assert asked == [usual, usual]
        assert one_order.kernels[usual].candidate.gemm.split_k == 1


def test_a_library_whose_calls_are_all_batch_invariant_computes_groups(tmp_path):
    """By kernels of one order alone, or by a table of such beside those of several, for any number of groups."""
    operations = (Operation.BF16_KK_GROUPED, Operation.BF16_KK_GATHERED)
    made = host.with_one_order(host.random_manifest(5, operations))
    (one, own), several = made.tables[0].table.sections, host.random_manifest(5, operations).tables[0].table.sections[1]
    assert one.operation is Operation.BF16_KK_GROUPED
    table = DispatchTable((one, several, replace(own, scope=Scope(8, batch_invariant=True))))
    made = replace(host.with_table(made, made.kernels, table), batch_invariant=True)
    library = host.Library(host.compile_library(made, tmp_path))
    for operation in operations:
        for groups in (1, GROUPS, 64):
            library.c.recorder_reset()
            stated = state(library, operation, num_groups=groups)
            launch = launched(library, stated)
            assert made.kernels[launch.kernel].candidate.gemm.split_k == 1
            assert library.select(stated)[1].section == operations.index(operation) * 2


def test_a_deterministic_call_takes_no_kernel_that_adds_in_the_order_of_arrival(library):
    """None of real groups does; those of this library do."""
    kernels = host.random_manifest(5, GROUPED).kernels
    varying = 0
    for operation in GROUPED:
        for m in rows_to_ask(operation):
            usual, asked = (selected(library, operation, m=m, flags=x) for x in (0, DETERMINISTIC))
            arrives = kernels[usual].workspace.mode == "parallel"
            varying += arrives
            assert kernels[asked].workspace.mode != "parallel"
            assert (asked == usual) != arrives
    assert varying > 3
