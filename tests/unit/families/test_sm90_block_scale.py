from itertools import product

import pytest

from aot.core.candidate import Accepted, Reason, Workspace, changed
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.families.sm90_block_scale import FAMILY
from aot.space.legality import check
from tests.unit.accepted import named, reason, resources

BLOCK = Operation.E4M3_BF16_BLOCK_KK
SQUARE = "partial tiles are not shared in a cluster, whose stages then count as free too early"
TILE = named("sm90_block_scale_128x128_c1x1_cooperative")


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages", "threads"),
    [
        ("64x128_c1x1_pingpong", 229376, 9, 384),
        ("128x96_c1x1_pingpong", 229376, 7, 384),
        ("64x8_c1x1_pingpong", 231424, 25, 384),
        ("192x96_c1x1_cooperative", 221184, 5, 512),
        ("256x8_c4x1_cooperative", 231424, 6, 384),
        ("128x128_c1x1_cooperative", 229376, 6, 384),
    ],
)
def test_resources_are_those_of_the_compiled_kernels(name, smem_bytes, stages, threads):
    # Source: the kernel's shared memory with nvidia-cutlass-dsl 4.8.1 and quack 0.6.5, 2026-11-22;
    # tests/runtime/test_operand_kernels.py compares with what is launched.
    assert resources(f"sm90_block_scale_{name}", "h200", BLOCK) == (smem_bytes, stages, threads, 0)


@pytest.mark.parametrize(
    ("tile", "overlaps"),
    [
        ("128x128_c1x1_cooperative", True),
        ("256x64_c2x1_cooperative", True),
        ("64x128_c1x1_cooperative", True),
        ("128x64_c1x1_cooperative", False),
        ("192x96_c1x1_cooperative", False),
        ("64x128_c1x1_pingpong", False),
    ],
)
def test_a_tile_is_begun_early_where_that_was_faster(tile, overlaps):
    assert FAMILY.overlaps_tiles(named(f"sm90_block_scale_{tile}"), BLOCK) is overlaps


@pytest.mark.parametrize(
    ("change", "why", "message"),
    [
        ({"swap_ab": True}, Reason.COMBINATION, "the kernel's rows are A's, which have a factor each; take no swap"),
        (
            {"split_k": 2, "split_k_mode": "serial"},
            Reason.COMBINATION,
            "the kernel has no serial split-K; take no split",
        ),
        ({"tile_n": 136}, Reason.COMBINATION, "the kernel takes tile_n up to 128, got 136"),
        (
            {"tile_m": 320, "tile_n": 64},
            Reason.COMBINATION,
            "the kernel's warpgroups share rows of a tile, those of a 320x64 tile its columns",
        ),
        ({"tile_m": 384, "tile_n": 64}, Reason.COMBINATION, "the kernel takes tile_m up to 256, got 384"),
        (
            {"tile_m": 256, "tile_n": 104},
            Reason.REGISTERS,
            "256x104 needs 208 registers a thread for the sums of a stage and of the tile; 192 fit beside the factors",
        ),
        (
            {"cluster_m": 2, "cluster_n": 2},
            Reason.COMBINATION,
            f"{SQUARE}; got a cluster of 2x2, expected 1 x n or n x 1",
        ),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(change, why, message):
    assert reason(changed(TILE, **change), "h200", BLOCK) == (why, message)


def test_a_tile_has_one_block_of_factors_or_two():
    """With a third block the kernel would multiply by another's factor: no legal tile begins so that it has one."""
    h200 = load_target("h200")
    tiles = {x.gemm.tile_n for x in FAMILY.candidates(BLOCK, h200) if isinstance(check(x, BLOCK, h200), Accepted)}
    assert tiles == set(range(8, 129, 8))
    for tile_n, i in product(tiles, range(128)):
        first, last = i * tile_n // 128, ((i + 1) * tile_n - 1) // 128
        assert last - first <= (0 if 128 % tile_n == 0 else 1)


def test_every_problem_is_taken_without_a_workspace():
    assert (FAMILY.multiples(TILE), FAMILY.workspace(TILE)) == ((1, 1), Workspace())
    assert not FAMILY.loads_outside
