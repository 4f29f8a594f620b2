import pytest

from aot.core.candidate import Reason, changed
from aot.families.sm100_persistent import FAMILY
from tests.unit.accepted import named, reason, resources

TILE = named("sm100_persistent_128x128_c1x1_clc")


@pytest.mark.parametrize(
    ("name", "stages", "threads", "tmem_columns"),
    [
        ("128x128_c1x1_clc", 6, 224, 256),
        ("64x32_c1x1_clc_swap", 18, 224, 32),
        ("128x224_c1x1_clc_direct", 5, 224, 512),
        ("128x96_c1x1_clc_swap", 7, 224, 256),
        ("256x256_c2x1_static_2cta", 6, 192, 512),
    ],
)
def test_resources_are_those_of_the_compiled_kernels(name, stages, threads, tmem_columns):
    # Source: what nvidia-cutlass-operators 0.3.0 and nvidia-cutlass-dsl 4.8.1 gave, 2026-11-20.
    assert resources(f"sm100_persistent_{name}", "thor")[1:] == (stages, threads, tmem_columns)


def test_the_direct_store_frees_the_epilogue_buffers():
    assert resources("sm100_persistent_128x224_c1x1_clc_direct", "thor")[:2] == (5 * 45056, 5)
    assert resources("sm100_persistent_128x224_c1x1_clc", "thor")[:2] == (4 * 45056 + 6 * 8192, 4)


@pytest.mark.parametrize(
    ("change", "why", "message"),
    [
        ({"tile_m": 256}, Reason.TILE, "tcgen05 takes tile_m (64, 128) with use_2cta=False, got 256"),
        ({"use_2cta": True}, Reason.CLUSTER, "use_2cta needs an even cluster_m, got 1"),
        ({"cluster_m": 8, "cluster_n": 4}, Reason.CLUSTER, "8x4 CTAs in a cluster; 16 at most"),
        ({"split_k": 2, "split_k_mode": "serial"}, Reason.COMBINATION, "the kernel has no split-K"),
    ],
)
def test_what_the_kernel_does_not_have_is_refused(change, why, message):
    assert reason(changed(TILE, **change), "thor") == (why, message)


@pytest.mark.parametrize(
    ("name", "multiples"),
    [
        ("128x96_c1x2_clc", (1, 1)),
        ("128x96_c1x2_clc_direct", (128, 192)),
        ("128x96_c2x1_clc_direct_swap", (96, 256)),
        ("256x96_c2x1_clc_2cta_direct", (256, 96)),
    ],
)
def test_the_direct_store_needs_whole_clusters_of_tiles(name, multiples):
    assert FAMILY.multiples(named(f"sm100_persistent_{name}")) == multiples
