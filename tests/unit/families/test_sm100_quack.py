import pytest

from aot.core.candidate import Reason, Workspace, changed
from aot.core.operation import Operation
from aot.families.sm100_quack import FAMILY
from tests.unit.accepted import named, reason, resources


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages", "tmem_columns"),
    [
        ("128x128_c1x1_clc", 229376, 6, 256),
        ("256x256_c2x1_static_2cta", 229376, 6, 512),
        ("128x64_c2x1_clc_2cta", 225280, 17, 64),
        ("64x32_c1x1_clc_swap", 229376, 18, 32),
        ("128x224_c1x1_clc", 229376, 4, 512),
        ("64x256_c1x1_clc", 229376, 5, 256),
        ("128x32_c1x1_clc_serial4", 229376, 10, 64),
        ("128x32_c1x1_clc_separate4", 217088, 9, 64),
    ],
)
def test_resources_are_those_of_the_compiled_kernels(name, smem_bytes, stages, tmem_columns):
    # Source: what quack 0.6.5 and nvidia-cutlass-dsl 4.8.1 gave, 2026-11-20.
    assert resources(f"sm100_quack_{name}", "thor") == (smem_bytes, stages, 256, tmem_columns)


@pytest.mark.parametrize(
    ("tile_m", "use_2cta", "message"),
    [
        (256, False, "tcgen05 takes tile_m (64, 128) with use_2cta=False, got 256"),
        (64, True, "tcgen05 takes tile_m (128, 256) with use_2cta=True, got 64"),
    ],
)
def test_tiles_are_the_mmas(tile_m, use_2cta, message):
    candidate = changed(named("sm100_quack_128x128_c2x1_clc_2cta"), tile_m=tile_m, use_2cta=use_2cta)
    assert reason(candidate, "thor") == (Reason.TILE, message)


def test_two_ctas_are_taken_where_the_tile_allows():
    names = ["128x64_c2x1_clc_2cta", "256x64_c2x1_static_2cta", "64x64_c2x1_clc", "128x64_c1x2_clc"]
    assert [named(f"sm100_quack_{x}").gemm.use_2cta for x in names] == [True, True, False, False]


def test_a_workspace_region_is_one_ctas():
    split = named("sm100_quack_256x64_c2x1_clc_2cta_serial4")
    assert FAMILY.workspace(split) == Workspace("serial", 4, 128, 64, 2, 1, False)
    assert FAMILY.multiples(split) == (1, 1)
    assert FAMILY.multiples(named("sm100_quack_256x64_c2x1_clc_2cta_separate4")) == (1, 4)


@pytest.mark.parametrize(
    ("operation", "name", "smem_bytes", "stages", "tmem_columns"),
    [
        (Operation.E4M3_BF16_KK, "128x256_c2x1_clc_2cta", 231424, 8, 256),
        (Operation.E4M3_BF16_KK, "64x32_c1x1_static_swap", 230400, 18, 32),
        (Operation.E4M3_E4M3_KK, "128x128_c1x1_static", 231424, 6, 256),
        (Operation.E4M3_FP32_KK, "128x64_c1x1_clc_serial4", 230400, 8, 128),
        (Operation.E4M3_BF16_FAST_KK, "128x256_c1x1_clc", 231424, 4, 512),
        (Operation.FP16_KK_RESIDUAL, "128x256_c1x1_clc", 230400, 3, 512),
        (Operation.BF16_KK_RESIDUAL, "64x64_c1x1_clc_serial4_swap", 230400, 13, 64),
        (Operation.BF16_KK_RESIDUAL, "128x160_c1x1_clc_swap", 226304, 5, 512),
        (Operation.BF16_KK_GEGLU, "128x256_c1x1_clc", 230400, 4, 512),
        (Operation.E4M3_BF16_KK_SWIGLU, "128x64_c2x1_clc_2cta", 230400, 18, 64),
        (Operation.INT8_BF16_KK, "256x256_c2x1_clc_2cta", 231424, 6, 512),
        (Operation.INT8_INT32_KK, "64x32_c1x1_clc_swap", 225280, 17, 32),
        (Operation.TF32_KK, "128x96_c1x2_clc_separate8", 221184, 6, 256),
    ],
)
def test_resources_with_an_epilogue_are_those_of_the_compiled_kernels(
    operation, name, smem_bytes, stages, tmem_columns
):
    # Source: as above, 2026-11-22; tests/runtime/test_operand_kernels.py compares with what is launched.
    assert resources(f"sm100_quack_{name}", "thor", operation) == (smem_bytes, stages, 256, tmem_columns)


SEPARATE = "the kernel that adds up separate split-K's sums adds a bias at most"


@pytest.mark.parametrize(
    ("operation", "name", "why", "message"),
    [
        (
            Operation.BF16_KK_SWIGLU,
            "64x64_c1x1_clc",
            Reason.TILE,
            "swiglu takes tile_m 128 without two CTAs, since each thread of the epilogue stores a row; got 64",
        ),
        (
            Operation.BF16_KK_GEGLU,
            "128x64_c1x1_clc_swap",
            Reason.COMBINATION,
            "geglu multiplies neighbouring columns, which swap_ab would make rows; take no swap",
        ),
        (
            Operation.E4M3_BF16_KK,
            "128x64_c1x1_clc_separate4",
            Reason.COMBINATION,
            f"{SEPARATE}, e4m3_bf16_kk has more; take serial split-K",
        ),
        (
            Operation.INT8_BF16_KK,
            "128x64_c1x1_clc_serial4",
            Reason.COMBINATION,
            "serial split-K adds up in float32, int8_bf16_kk in int32; take no split",
        ),
        (
            Operation.TF32_KK,
            "256x96_c2x1_clc_2cta",
            Reason.TILE,
            "tf32 takes 16 columns of a tile to a CTA, or a multiple of 32, got 48",
        ),
    ],
)
def test_what_does_not_go_with_an_epilogue_is_refused(operation, name, why, message):
    assert reason(named(f"sm100_quack_{name}"), "thor", operation) == (why, message)
