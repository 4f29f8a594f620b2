"""Kernels of packed weights by many rows of x on `tcgen05`: what is legal, what it takes, when it is chosen."""

import pytest

from aot.core.candidate import Accepted, Reason, changed
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.families import families_of, family_named
from aot.families._sm100_packed_tile import BARRIER_SIZE, NUM_STORING, ROWS
from aot.families.sm100_weight_only import FAMILY, MAX_PROMOTED, TILE_N, tile_of
from aot.space.cost import estimate
from aot.space.legality import check

THOR = load_target("thor")
INT4, OF_NVFP4, INT8 = Operation.BF16_INT4_G128_KK, Operation.BF16_NVFP4_KK, Operation.BF16_INT8_KK
IN_ROWS = Operation.BF16_NVFP4_ROWS_KK
OPERATIONS = [x for x in Operation if x.types in FAMILY.types and x.grouping in FAMILY.groupings]
OPERATIONS = [x for x in OPERATIONS if x.gate is None or not x.types.weight.in_rows]
NAME = "sm100_weight_only_128x128_c1x1_direct_swap"
NAMED = {x.name: x for x in FAMILY.candidates(INT4, THOR)}
TILE = NAMED[NAME]


def named(columns):
    """Give the candidate of so many rows of x."""
    return NAMED[NAME.replace("x128_", f"x{columns}_")]


@pytest.mark.parametrize(
    ("columns", "operation", "packed", "operands", "tmem_columns"),
    [
        # 8 blocks of 1,024 bytes of codes and 32 of factors; 128 rows of the weight and 128 of x of 128 bytes.
        (128, INT4, (8, 8 * 1056), (4, 256 * 128), 256),
        (32, INT4, (8, 8 * 1056), (4, 160 * 128), 64),
        (256, OF_NVFP4, (3, 8 * 1152), (4, 384 * 128), 256),
        (256, INT8, (2, 8 * 2048), (4, 384 * 128), 256),
        (192, OF_NVFP4, (7, 8 * 1152), (4, 320 * 128), 256),
        (64, IN_ROWS, (8, 8 * 1152), (4, 192 * 128), 64),
    ],
)
def test_resources(columns, operation, packed, operands, tmem_columns):
    assert isinstance(check(named(columns), operation, THOR), Accepted)
    used, tile = FAMILY.resources(named(columns), operation, THOR), tile_of(named(columns), operation, THOR)
    assert (tile.num_packed, tile.packed_bytes) == packed
    assert (tile.num_operands, tile.operand_bytes) == operands
    assert used.smem_bytes == 1024 + packed[0] * packed[1] + operands[0] * operands[1]
    assert (used.tmem_columns, used.num_threads) == (tmem_columns, 512)


@pytest.mark.parametrize(
    ("changes", "why", "text"),
    [
        ({"swap_ab": False}, Reason.COMBINATION, "is one CTA to a cluster, swapped, with as many stages as fit"),
        ({"use_tma_store": True}, Reason.COMBINATION, "stores without TMA"),
        ({"num_stages": 3}, Reason.COMBINATION, "with as many stages as fit"),
        ({"cluster_m": 2}, Reason.COMBINATION, "is one CTA to a cluster"),
        ({"split_k": 2, "split_k_mode": "parallel"}, Reason.COMBINATION, "is one CTA to a cluster"),
        ({"tile_m": 64}, Reason.TILE, "has 128 rows and 32, 64, 128, 192, 256 columns, got 64x128"),
        ({"tile_n": 48}, Reason.TILE, "got 128x48"),
        (
            {"tile_n": 192}, Reason.REGISTERS,
            "128x192 needs 192 registers a thread for sums of groups, which have factors; 128 fit",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(changes, why, text):
    verdict = check(changed(TILE, **changes), INT4, THOR)
    assert verdict.reason is why
    assert text in verdict.message


def test_a_gate_takes_no_half_atoms():
    operation = Operation.BF16_NVFP4_ROWS_KK_SWIGLU
    assert list(FAMILY.candidates(operation, THOR)) == []
    assert "64 rows of each of a gate's weights in a tile, and atoms of" in check(TILE, operation, THOR).message


def test_tiles_of_few_rows_are_shared_by_a_gate_s_weights():
    few = family_named("weight_only")
    found = {x.name: x for x in few.candidates(Operation.BF16_INT4_G128_KK, THOR)}
    verdict = check(
        found["weight_only_blocks1_columns8_stages2_tiles3_warps4"], Operation.BF16_INT4_G128_KK_SWIGLU, THOR
    )
    assert "has 3 tiles of rows; expected an even number with a gate, half of each weight" in verdict.message


@pytest.mark.parametrize("target", ["thor", "b200"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda x: x.tag)
def test_all_tiles_fit(operation, target):
    target = load_target(target)
    legal = [x for x in FAMILY.candidates(operation, target) if isinstance(check(x, operation, target), Accepted)]
    is_promoted = tile_of(TILE, operation, target).is_promoted
    assert [x.gemm.tile_n for x in legal] == [x for x in TILE_N if x <= MAX_PROMOTED or not is_promoted]
    for candidate in legal:
        tile = tile_of(candidate, operation, target)
        assert tile.smem_bytes <= target.smem_bytes_per_block
        assert tile.tmem_columns <= target.tmem_columns
        assert BARRIER_SIZE * tile.num_barriers + 4 <= 1024  # and the address of tensor memory behind them
        if operation.gate is None:
            assert tile.num_operands * tile.decoded_bytes >= ROWS * candidate.gemm.tile_n * 2  # D lies over them
        else:  # half of D's columns, and behind them as many sums
            assert tile.num_operands * tile.operand_bytes >= ROWS // 2 * candidate.gemm.tile_n * (2 + 4)
        assert candidate.gemm.tile_n * tile.num_sums <= tile.tmem_columns
    assert NUM_STORING * 32 == ROWS


def test_only_chips_with_tcgen05_have_it():
    for name, has_it in (("thor", True), ("b200", True), ("gb10", False), ("h200", False)):
        found = [x.name for x in families_of(INT4, load_target(name)) if INT4.types in x.types]
        assert (FAMILY.name in found) is has_it


def fastest(operation, m, n, k):
    """Return the family of what is predicted to be the fastest kernel on a Thor."""
    names = [x.name for x in families_of(operation, THOR) if operation.types in x.types and not x.is_fallback]
    legal = [
        x
        for name in names
        for x in family_named(name).candidates(operation, THOR)
        if isinstance(check(x, operation, THOR), Accepted)
    ]
    return legal[int(estimate(legal, [Problem(operation, m, n, k)], THOR).total_us.argmin())].family


@pytest.mark.slow
@pytest.mark.parametrize("operation", [INT4, OF_NVFP4, Operation.BF16_MXFP4_KK, INT8], ids=lambda x: x.tag)
def test_few_rows_are_left_to_weight_only(operation):
    assert [fastest(operation, m, 4096, 4096) for m in (1, 4)] == ["weight_only"] * 2
    assert [fastest(operation, m, 4096, 4096) for m in (128, 256, 4096)] == [FAMILY.name] * 3
