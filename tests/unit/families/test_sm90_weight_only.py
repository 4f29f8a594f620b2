"""Kernels of packed weights by many rows of x: what is legal, what it takes, when it is chosen."""

import pytest

from aot.core.candidate import Accepted, Reason, changed
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.core.weight_format import FORMATS, MXFP4, MXFP4_ROWS, NVFP4
from aot.families import families_of, family_named
from aot.families._sm90_packed_tile import promotes
from aot.families.sm90_weight_only import CLUSTERS, FAMILY
from aot.space.cost import estimate
from aot.space.legality import check

H200 = load_target("h200")
INT4, OF_NVFP4, INT8 = Operation.BF16_INT4_G128_KK, Operation.BF16_NVFP4_KK, Operation.BF16_INT8_KK
NAME = "sm90_weight_only_128x128_c1x1_direct_swap"
NAMED = {x.name: x for x in FAMILY.candidates(INT4, H200)}
TILE = NAMED[NAME]


@pytest.mark.parametrize(
    ("name", "operation", "smem_bytes", "stages", "threads"),
    [
        # 5 stages of 8 blocks of codes of 1,024 bytes, of 128 rows of 256 bytes, and of 8 blocks' factors of 32 bytes.
        (NAME, INT4, 1024 + 5 * (8 * 1024 + 128 * 256 + 8 * 32 + 16), 5, 384),
        # 4 of 8 blocks' factors of 128 bytes; half of 128 by 128 floats from the other CTA, and a barrier for it.
        (
            "sm90_weight_only_128x128_c1x1_direct_cluster2_swap", OF_NVFP4,
            1024 + 64 * 128 * 4 + 16 + 4 * (8 * 1024 + 128 * 256 + 8 * 128 + 16), 4, 384,
        ),
        # 8 blocks of codes of 2,048 bytes, and none of factors; two loading warps beside one warpgroup.
        ("sm90_weight_only_64x64_c1x1_direct_swap", INT8, 1024 + 9 * (4 * 2048 + 64 * 256 + 16), 9, 192),
    ],
)  # fmt: skip
def test_resources(name, operation, smem_bytes, stages, threads):
    assert isinstance(check(NAMED[name], operation, H200), Accepted)
    used = FAMILY.resources(NAMED[name], operation, H200)
    assert (used.smem_bytes, used.num_stages, used.num_threads) == (smem_bytes, stages, threads)


@pytest.mark.parametrize(
    ("changes", "why", "text"),
    [
        ({"swap_ab": False}, Reason.COMBINATION, "has rows of the weight as rows of its tiles"),
        ({"split_k": 2, "split_k_mode": "parallel"}, Reason.COMBINATION, "has rows of the weight as rows of its tiles"),
        ({"cluster_m": 4}, Reason.CLUSTER, "4x1 tiles whose k is split in 1 are not a cluster"),
        ({"tile_m": 192}, Reason.TILE, "a tile has 64, 128, 256 rows and up to 256 columns in steps of 8, got 192x128"),
        ({"tile_n": 72, "cluster_m": 2}, Reason.TILE, "2 tiles cannot share a load in parts of whole groups of 8"),
        (
            {"tile_n": 176}, Reason.REGISTERS,
            "128x176 needs 176 accumulator registers a thread, twice its sums since groups have factors; 160 fit",
        ),
        ({"tile_m": 64, "schedule": "pingpong"}, Reason.COMBINATION, "one warpgroup has nobody to take turns with"),
        ({"num_stages": 1}, Reason.COMBINATION, "1 stages, expected 0 for as many as fit or at least 2"),
        ({"tile_m": 64, "tile_n": 8, "split_k": 2, "split_k_mode": "cluster"}, Reason.TILE, "leave one of 2 CTAs none"),
    ],
)  # fmt: skip
def test_what_is_refused(changes, why, text):
    verdict = check(changed(TILE, **changes), INT4, H200)
    assert verdict.reason is why
    assert text in verdict.message


def test_a_tile_of_operands_with_factors_may_have_more_columns():
    wide = changed(TILE, tile_n=256)
    assert check(wide, INT4, H200).reason is Reason.REGISTERS
    assert isinstance(check(wide, OF_NVFP4, H200), Accepted)


def test_factors_multiply_operands_where_that_is_exact():
    exact = [x for x in FORMATS if not promotes(x, is_bf16=True)]
    assert [x for x in exact if x.group] == [NVFP4, MXFP4, MXFP4_ROWS]
    assert [x.group > 0 and x is not NVFP4 for x in FORMATS] == [promotes(x, is_bf16=False) for x in FORMATS]


OPERATIONS = [x for x in Operation if x.types in FAMILY.types and x.epilogue in FAMILY.epilogues]
OPERATIONS = [x for x in OPERATIONS if x.grouping in FAMILY.groupings]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda x: x.tag)
def test_every_cluster_has_legal_kernels_whose_stages_fill_the_shared_memory(operation):
    legal = [x for x in FAMILY.candidates(operation, H200) if isinstance(check(x, operation, H200), Accepted)]
    assert {(x.gemm.cluster_m, x.gemm.split_k) for x in legal} == set(CLUSTERS)
    for candidate in legal:
        used = FAMILY.resources(candidate, operation, H200)
        assert used.smem_bytes <= H200.smem_bytes_per_block < used.smem_bytes + used.stage_bytes + 16


def fastest(operation, m, n, k):
    """Return the family of what is predicted to be the fastest kernel."""
    names = [x.name for x in families_of(operation, H200) if operation.types in x.types and not x.is_fallback]
    legal = [
        x
        for name in names
        for x in family_named(name).candidates(operation, H200)
        if isinstance(check(x, operation, H200), Accepted)
    ]
    return legal[int(estimate(legal, [Problem(operation, m, n, k)], H200).total_us.argmin())].family


@pytest.mark.slow
@pytest.mark.parametrize("operation", [INT4, OF_NVFP4, Operation.BF16_MXFP4_KK], ids=lambda x: x.tag)
def test_few_rows_are_left_to_weight_only(operation):
    assert [fastest(operation, m, 4096, 4096) for m in (1, 16)] == ["weight_only"] * 2
    assert [fastest(operation, m, 4096, 4096) for m in (65, 256, 4096)] == [FAMILY.name] * 3


def test_a_weight_in_rows_is_left_to_weight_only():
    operation = Operation.BF16_NVFP4_ROWS_KK
    found = [x.name for x in families_of(operation, H200) if operation.types in x.types]
    assert found == ["weight_only", "weight_only_simt"]


def test_a_chip_without_wgmma_and_tcgen05_has_weight_only():
    gb10 = load_target("gb10")
    assert [x.name for x in families_of(INT4, gb10) if INT4.types in x.types] == ["weight_only", "weight_only_simt"]
