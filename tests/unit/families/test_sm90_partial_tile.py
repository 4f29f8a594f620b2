from itertools import product

import pytest

from aot.core.candidate import Reason, Workspace, changed
from aot.core.target import load_target
from aot.families._boxes import box_rows
from aot.families._sm90_tiles import is_large, large_shapes
from aot.families.sm90_partial_tile import FAMILY
from aot.families.sm90_quack import FAMILY as QUACK
from tests.unit.accepted import named, reason, resources
from tests.unit.twins import BF16

TILE = named("sm90_partial_tile_128x128_c1x1_pingpong")


def test_clusters_of_several_rows_and_columns_are_refused():
    """Where partial tiles are not shared, a stage of such a cluster counts as free too early: docs/safety.md."""
    square = changed(TILE, cluster_m=2, cluster_n=2)
    verdict = FAMILY.check(square, BF16, load_target("h200"))
    assert verdict.reason is Reason.COMBINATION
    assert verdict.message.endswith("; got a cluster of 2x2, expected 1 x n or n x 1")
    for cluster in ("2x1", "1x2", "4x1", "1x4"):
        resources(f"sm90_partial_tile_128x128_c{cluster}_pingpong", "h200")


def test_no_hopper_target_has_clusters_of_several_rows_and_columns():
    """One hung, which is not explained, and none was soaked (docs/safety.md): so quack has none."""
    quack = named("sm90_quack_128x128_c1x1_pingpong")
    for target, shape in product(("h200", "h100"), ((2, 2), (4, 2), (2, 4))):
        square = changed(quack, cluster_m=shape[0], cluster_n=shape[1])
        assert reason(square, target)[0] is Reason.CLUSTER


@pytest.mark.parametrize(
    ("tile", "rows"),
    [
        (8, (8,)),
        (16, (8,)),
        (32, (8, 16)),
        (80, (8, 16, 32, 48, 64)),
        (88, (8, 16, 32, 48, 64, 80)),
        (128, (8, 16, 32, 48, 64, 80, 96, 112)),
        (208, (8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192)),
        (320, (8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)),
    ],
)
def test_boxes_of_a_partial_tile(tile, rows):
    assert box_rows(tile) == rows


def test_boxes_are_whole_swizzle_atoms_that_tma_takes():
    tiles = {x for candidate in _every_tile() for x in (candidate.gemm.tile_m, candidate.gemm.tile_n)}
    assert all(box_rows(tile) for tile in tiles)
    assert all(rows % 8 == 0 and rows <= min(tile - 1, 256) for tile in tiles for rows in box_rows(tile))


def _every_tile():
    shapes = [*product((64, 128, 192), range(32, 257, 32)), *(x[1:] for x in large_shapes() if x[2] > 8)]
    return [named(f"sm90_partial_tile_{m}x{n}_c1x1_cooperative") for m, n in shapes]


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages", "threads"),
    [
        ("128x128_c1x1_pingpong", 229376, 6, 384),
        ("64x16_c1x1_pingpong_swap", 231424, 22, 384),
        ("256x208_c1x1_cooperative", 231424, 3, 384),
        ("192x96_c2x1_cooperative", 221184, 5, 512),
        ("128x32_c1x1_pingpong_separate4_swap", 229376, 10, 384),
        ("64x80_c2x1_cooperative_serial2", 231424, 12, 256),
        ("128x272_c1x2_cooperative", 229376, 4, 384),
        ("128x352_c1x4_cooperative_swap", 229376, 3, 384),
        ("384x96_c2x1_cooperative_swap", 225280, 3, 384),
    ],
)
def test_resources_are_those_of_the_compiled_kernels(name, smem_bytes, stages, threads):
    # Source: shared_storage and stages that quack 0.6.5 and nvidia-cutlass-dsl 4.8.1 gave, 2026-11-20 and, of large
    # tiles, 2026-11-30.
    assert resources(f"sm90_partial_tile_{name}", "h200") == (smem_bytes, stages, threads, 0)


def test_what_quack_cannot_build_is_refused():
    message = "pingpong takes tile_n in steps of 8 up to 208 at tile_m 128, got 224"
    assert reason(changed(TILE, tile_n=224), "h200") == (Reason.TILE, message)


@pytest.mark.parametrize(
    "change",
    [
        {"tile_n": 264},
        {"tile_n": 368},
        {"tile_n": 272, "tile_m": 64},
        {"tile_n": 272, "schedule": "pingpong"},
        {"tile_n": 288, "split_k": 2, "split_k_mode": "serial"},
        {"tile_n": 272, "family": "sm90_quack"},
        {"tile_m": 384, "tile_n": 136},
        {"tile_m": 384, "tile_n": 96, "family": "sm90_quack"},
        {"tile_m": 384, "tile_n": 96, "split_k": 2, "split_k_mode": "separate"},
    ],
)
def test_other_large_tiles_are_refused(change):
    """Those of `large_shapes` were compiled and executed, and quack's kernel has none."""
    why, message = reason(changed(TILE, **{"schedule": "cooperative", **change}), "h200")
    assert why is Reason.TILE
    assert message.startswith("pingpong takes" if "schedule" in change else "large tiles, of our own kernels and")


def test_large_tiles_are_enumerated_once_without_splits():
    large = [x for x in FAMILY.candidates(BF16, load_target("h200")) if is_large(x)]
    assert {x.gemm.split_k for x in large} == {1}
    assert len({*large}) == len(large) == len(large_shapes()) * 5 * 2
    for name in ("128x272_c4x1_cooperative", "384x8_c1x1_cooperative_swap", "384x128_c1x4_cooperative"):
        resources(f"sm90_partial_tile_{name}", "h200")


def test_workspace_and_multiples_are_quacks():
    split = changed(TILE, cluster_m=2, swap_ab=True, split_k=4, split_k_mode="serial")
    assert FAMILY.workspace(split) == QUACK.workspace(split) == Workspace("serial", 4, 128, 128, 2, 1, True)
    assert FAMILY.multiples(changed(split, split_k_mode="separate")) == (1, 4)
