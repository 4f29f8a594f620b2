"""Kernels of groups: what their entries launch; of a Thor's too in `make walk`, as test_operand_kernels has them."""

from __future__ import annotations

import ctypes
import struct

import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.formats import SCALE_BLOCK, FactorLayout
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.signature import Argument
from tests.compiling import EVERY, some
from tests.runtime.test_operand_kernels import (
    PROGRAMMATIC,
    STREAM,
    compile_all,
    launch,
    launches,
    maps,
    recording,
    struct_of,
)

ROWS, ROWS_OF_A, N, K, GROUPS = 304, 100, 256, 384, 6
A, B, D, SCALE_A, SCALE_B, BIAS, OFFSETS, INDEX, SCALE_D, PLACES = (0x7F0000000000 + i * 2**40 for i in range(1, 11))
STEP_OF_FACTORS = 48 * 512
"""Bytes between places of factors."""
FAR = 2**30
"""Rows of D as its descriptor has them: so many that a group's end can be moved to the last one. Source: quack
copy_utils.py, `create_ragged_tensor_for_tma`."""


def sm90(tile_m, tile_n, schedule="pingpong", **fields):
    return gemm_candidate("sm90_grouped", tile_m, tile_n, schedule=schedule, **fields)


def block(tile_m, tile_n, schedule="pingpong", **fields):
    return gemm_candidate("sm90_grouped_block_scale", tile_m, tile_n, schedule=schedule, **fields)


def sm100(tile_m, tile_n, schedule="clc", **fields):
    return gemm_candidate("sm100_grouped", tile_m, tile_n, schedule=schedule, **fields)


def in_atoms(tile_m, tile_n, schedule="clc", **fields):
    return gemm_candidate("sm100_grouped_block_scale", tile_m, tile_n, schedule=schedule, **fields)


PAIR = {"cluster_m": 2, "use_2cta": True}
SOME = [
    (Operation.BF16_KK_GROUPED, sm90(128, 256, "cooperative", cluster_m=2)),
    (Operation.BF16_KN_GROUPED, sm90(64, 128)),
    (Operation.BF16_KK_GROUPED_SWIGLU, sm90(64, 256)),
    (Operation.BF16_MN_KGROUPED, sm90(128, 128)),
    (Operation.E4M3_BF16_KK_GATHERED_SWIGLU, sm90(128, 128, "cooperative")),
    (Operation.E4M3_BF16_BLOCK_KK_GATHERED_SWIGLU, block(64, 128)),
]
"""Of each family and kind of groups one."""
MORE = [
    (Operation.E4M3_BF16_BLOCK_KK_GROUPED, block(128, 128, "cooperative")),
    (Operation.BF16_KK_GROUPED, sm100(128, 256, **PAIR)),
    (Operation.BF16_MN_KGROUPED, sm100(128, 64, "static")),
    (Operation.NVFP4_BF16_KK_GROUPED, in_atoms(128, 64, "static")),
    (Operation.NVFP4_BF16_KK_GROUPED_SWIGLU, in_atoms(256, 128, **PAIR)),
    (Operation.BF16_KK_GATHERED, sm90(128, 192)),
    (Operation.BF16_KK_GATHERED_SWIGLU, sm90(128, 256, "cooperative")),
    (Operation.BF16_KK_GROUPED, sm90(64, 128)),
    (Operation.E4M3_BF16_KK_GROUPED, sm90(64, 192)),
    (Operation.BF16_KK_GATHERED_SWIGLU, sm100(128, 128)),
    (Operation.E4M3_BF16_KK_GATHERED, sm100(64, 128)),
    (Operation.MXFP4_BF16_KK_GROUPED, in_atoms(128, 64)),
    (Operation.MXFP8_BF16_KK_GROUPED, in_atoms(128, 192)),
    (Operation.MXFP8_BF16_KK_GROUPED_SWIGLU, in_atoms(256, 64, "static", **PAIR)),
]
KERNELS = SOME + MORE if EVERY else some(SOME, 4)


@pytest.fixture(scope="module")
def compiled():
    return compile_all(KERNELS)


@pytest.fixture(scope="module")
def library(compiled, tmp_path_factory):
    return recording(compiled, tmp_path_factory.mktemp("grouped"))


def arguments(operation):
    """Give the C structure of every argument but the stream."""
    is_gathered, is_k = operation.grouping is Grouping.GATHERED, operation.grouping is Grouping.K_GROUPED
    height = ROWS_OF_A if is_gathered else ROWS
    rows, blocks = operation.num_rows_of_b(N), K // SCALE_BLOCK
    pair = operation.gate is not None
    leading = (K if operation.layout.a_k_major else height), (K if operation.layout.b_k_major else N)
    b = struct_of(B, (GROUPS, N, K), (N * K, leading[1]))
    scale_a, scale_b = struct_of(SCALE_A, (height,), (1,)), struct_of(SCALE_B, (GROUPS, N), (N, 1))
    bias = struct_of(BIAS, (GROUPS, N), (N, 1))
    if pair:
        b = struct_of(B, (GROUPS, 2, N, K), (2 * N * K, N * K, K))
        scale_b, bias = (struct_of(x, (GROUPS, 2, N), (2 * N, N, 1)) for x in (SCALE_B, BIAS))
    if operation.types.factors is FactorLayout.BLOCK:
        scale_a = struct_of(SCALE_A, (height, blocks), (blocks, 1))
        of_b = rows // SCALE_BLOCK
        scale_b = struct_of(SCALE_B, (GROUPS, of_b, blocks), (of_b * blocks, blocks, 1))
    if operation.types.factors is FactorLayout.ATOMS:  # 512 bytes for 128 rows and four blocks along k
        along = K // (4 * operation.a.scale.block_k) * 512
        scale_a = struct_of(SCALE_A, ((-(-ROWS // 128) + GROUPS - 1) * along,), ())
        scale_b = struct_of(SCALE_B, (GROUPS * rows // 128 * along,), ())
        b = struct_of(B, (GROUPS, 2, N, K), (2 * N * K, K, 2 * K)) if pair else b
    return {
        Argument.A: struct_of(A, (height, K), (leading[0],)),
        Argument.B: struct_of(B, (N, K), (leading[1],)) if is_k else b,
        Argument.D: struct_of(D, (GROUPS, ROWS, N), (ROWS * N, N)) if is_k else struct_of(D, (ROWS, N), (N,)),
        Argument.SCALE_A: scale_a,
        Argument.SCALE_B: scale_b,
        Argument.BIAS: bias,
        Argument.SCALE_D: struct_of(SCALE_D, (GROUPS,), ()),
        Argument.OFFSETS: struct_of(OFFSETS, (GROUPS,), ()),
        Argument.INDEX: struct_of(INDEX, (ROWS,), ()),
        Argument.B_OF_GROUPS: struct_of(0, (0,), ()),
        Argument.PLACES: struct_of(0, (0,), ()),
        Argument.SCALE_B_OF_GROUPS: struct_of(0, (0,), ()),
        Argument.SCALE_B_PLACES: struct_of(0, (0,), ()),
    }


@pytest.fixture(params=[KernelKey(*x) for x in KERNELS], ids=lambda x: x.name)
def each(request, compiled):
    return compiled[request.param]


def test_nothing_is_spilled_and_shared_memory_is_what_was_counted(each, library):
    record, _ = launch(library, each, arguments(each.kernel.operation))
    assert each.kernel.spill_bytes == 0
    assert record.smem_bytes == each.kernel.smem_bytes <= 232448


def test_places_are_written_in_front_and_one_tensor_map_is_of_all(each, library):
    """300 addresses, so that three launches write the table, each at most 128 places of it.

    Where factors lie in atoms theirs are written by the same launches.
    """
    operation = each.kernel.operation
    if not operation.grouping.groups_rows:
        return
    count, step = 300, 4096
    places = [(i * 37 + 5) % 1009 for i in range(count)]
    addresses = (ctypes.c_int64 * count)(*(B + x * step for x in places))
    given = arguments(operation)
    extents, strides = ((N, K), (K,)) if operation.layout.b_k_major else ((N, K), (N,))
    pair = ((2, *extents), (N * K, *strides)) if operation.gate is not None else (extents, strides)
    pair = (pair[0], (K, 2 * K)) if operation.is_interleaved else pair
    given[Argument.B] = struct_of(B, (2**31 - 1, *pair[0]), (operation.b.element.num_in(step), *pair[1]))
    given[Argument.B_OF_GROUPS] = struct_of(ctypes.addressof(addresses), (count,), ())
    given[Argument.PLACES] = struct_of(PLACES, (count,), ())
    in_atoms = operation.types.factors is FactorLayout.ATOMS
    factor_places = [(i * 23 + 1) % 1009 for i in range(count)]
    of_factors = (ctypes.c_int64 * count)(*(SCALE_B + x * STEP_OF_FACTORS for x in factor_places))
    if in_atoms:
        given[Argument.SCALE_B] = struct_of(SCALE_B, (STEP_OF_FACTORS,), ())
        given[Argument.SCALE_B_OF_GROUPS] = struct_of(ctypes.addressof(of_factors), (count,), ())
        given[Argument.SCALE_B_PLACES] = struct_of(PLACES + 8192, (count,), ())
    *writes, (_, parameters) = launches(library, each, given, num_before=3)
    written = [{} for _ in range(1 + in_atoms)]
    for write, given_values in writes:
        tables, (first, *values) = given_values[: 1 + in_atoms], given_values[1 + in_atoms :]
        assert [struct.unpack_from("<Q", x)[0] for x in tables] == [PLACES, PLACES + 8192][: 1 + in_atoms]
        assert (tuple(write.grid), tuple(write.block), write.stream) == ((1, 1, 1), (128, 1, 1), STREAM)
        assert PROGRAMMATIC in write.attribute_ids[: write.num_attributes]
        (start,) = struct.unpack("<i", first)
        for table, found in enumerate(written):
            own = values[table * 128 : (table + 1) * 128]
            found |= {start + i: struct.unpack("<i", x)[0] for i, x in enumerate(own) if start + i < count}
    assert [[x[i] for i in range(count)] for x in written] == [places, factor_places][: 1 + in_atoms]
    if in_atoms:
        of_factors = maps(parameters)[SCALE_B]
        assert (of_factors[0][-1], of_factors[1][-1]) == (2**31 - 1, STEP_OF_FACTORS)
    found = maps(parameters)[B]
    assert found[0][-1] == 2**31 - 1
    assert found[1][-1] == step
    assert PLACES in [struct.unpack_from("<Q", x)[0] for x in parameters if len(x) >= 8]
