from dataclasses import replace

import pytest

from aot.core.candidate import Reason, Workspace
from aot.core.operation import Operation
from aot.families.sm90_quack import FAMILY
from tests.unit.accepted import named, reason, resources

TILE = named("sm90_quack_128x128_c1x1_pingpong", "h200")


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages", "threads"),
    [
        ("128x128_c1x1_pingpong", 229376, 6, 384),
        ("64x16_c1x1_pingpong_swap", 231424, 22, 384),
        ("256x208_c1x1_cooperative", 231424, 3, 384),
        ("192x96_c1x1_cooperative", 221184, 5, 512),
        ("64x80_c1x1_cooperative", 231424, 12, 256),
        ("192x112_c1x1_pingpong", 231424, 5, 384),
        ("128x32_c1x1_pingpong_separate4_swap", 229376, 10, 384),
    ],
)
def test_resources_are_those_of_the_compiled_kernels(name, smem_bytes, stages, threads):
    # Source: shared_storage and stages that quack 0.6.5 and nvidia-cutlass-dsl 4.8.1 gave, 2026-11-20.
    assert resources(f"sm90_quack_{name}", "h200") == (smem_bytes, stages, threads, 0)


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages"),
    [
        ("sm90_quack_128x208_c1x1_pingpong_swap", 230400, 5),
        ("sm90_quack_128x96_c1x1_pingpong", 230400, 7),
        ("sm90_prefetch_b_64x16_c1x1_cooperative_swap", 230400, 22),
    ],
)
def test_resources_with_a_bias_are_those_of_the_compiled_kernels(name, smem_bytes, stages):
    # Source: as above, 2026-11-22: quack leaves a kilobyte for the alignment of what follows the bias.
    assert resources(name, "h200", Operation.BF16_KK_BIAS)[:2] == (smem_bytes, stages)


@pytest.mark.parametrize(
    ("change", "why", "message"),
    [
        ({"tile_n": 224}, Reason.TILE, "pingpong takes tile_n in steps of 16 up to 208 at tile_m 128, got 224"),
        ({"tile_m": 256}, Reason.TILE, "pingpong takes tile_m 64, 128, 192, got 256"),
        (
            {"tile_m": 320, "tile_n": 176, "schedule": "cooperative"},
            Reason.TILE,
            "cooperative 320x176: tile_n must be a multiple of 32",
        ),
        (
            {"tile_m": 320, "tile_n": 192, "schedule": "cooperative"},
            Reason.TILE,
            "cooperative 320x192: tile_n is at most 160 at tile_m 320",
        ),
        (
            {"tile_m": 256, "tile_n": 224, "schedule": "cooperative"},
            Reason.REGISTERS,
            "256x224 needs 224 accumulator registers a thread; 208 fit",
        ),
        (
            {"cluster_m": 4, "split_k": 2, "split_k_mode": "serial"},
            Reason.COMBINATION,
            "serial split-K waits for CTAs that must all be resident; clusters of 4 do not fill the device",
        ),
        (
            {"cluster_m": 2, "cluster_n": 2, "split_k": 4, "split_k_mode": "parallel"},
            Reason.COMBINATION,
            "parallel split-K waits for CTAs that must all be resident; clusters of 4 do not fill the device",
        ),
    ],
)
def test_what_quack_cannot_build_is_refused(change, why, message):
    assert reason(replace(TILE, **change), "h200") == (why, message)


def test_workspace_is_the_kernels_own_tiling():
    split = replace(TILE, cluster_m=2, swap_ab=True, split_k=4, split_k_mode="serial")
    assert FAMILY.workspace(split) == Workspace("serial", 4, 128, 128, 2, 1, True)
    assert FAMILY.workspace(TILE) == Workspace()


@pytest.mark.parametrize(
    ("mode", "split_k", "multiples"), [("none", 1, (1, 1)), ("serial", 2, (1, 1)), ("separate", 2, (1, 4))]
)
def test_only_the_separate_reduction_asks_for_a_multiple(mode, split_k, multiples):
    assert FAMILY.multiples(replace(TILE, split_k=split_k, split_k_mode=mode)) == multiples
