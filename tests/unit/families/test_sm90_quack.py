import pytest

from aot.core.candidate import Accepted, Reason, Workspace, changed
from aot.core.epilogue import OF_ONE_WEIGHT, Epilogue
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.core.types import BF16, FP16
from aot.families import families
from aot.families.sm90_quack import FAMILY, Sm90Quack
from aot.space.legality import check
from tests.unit.accepted import named, reason, resources

TILE = named("sm90_quack_128x128_c1x1_pingpong")


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
    ("operation", "name", "smem_bytes", "stages"),
    [
        (Operation.E4M3_BF16_KK, "128x96_c1x1_pingpong", 227328, 7),
        (Operation.E4M3_BF16_KK, "192x96_c1x1_cooperative", 223232, 5),
        (Operation.E4M3_FP32_KK, "128x64_c1x1_pingpong_serial4", 230400, 8),
        (Operation.E4M3_E4M3_KK, "64x192_c1x1_pingpong", 227328, 6),
        (Operation.E4M3_E4M3_KK, "64x64_c1x1_pingpong_swap", 230400, 13),
        (Operation.E4M3_BF16_FAST_KK, "128x256_c2x1_cooperative", 223232, 4),
        (Operation.BF16_KK_GELU, "192x96_c1x1_cooperative", 222208, 5),
        (Operation.BF16_KK_RESIDUAL, "192x128_c1x1_cooperative", 222208, 3),
        (Operation.BF16_KK_RESIDUAL, "256x208_c1x1_cooperative", 228352, 3),
        (Operation.BF16_KK_RESIDUAL, "64x16_c1x1_cooperative", 230400, 22),
        (Operation.FP16_KK_GEGLU, "192x96_c1x1_cooperative", 228352, 5),
        (Operation.E4M3_BF16_KK_SWIGLU, "64x64_c1x1_pingpong", 230400, 13),
    ],
)
def test_resources_with_an_epilogue_are_those_of_the_compiled_kernels(operation, name, smem_bytes, stages):
    # Source: as above, 2026-11-22; tests/runtime/test_operand_kernels.py compares with what is launched.
    assert resources(f"sm90_quack_{name}", "h200", operation)[:2] == (smem_bytes, stages)


PROMOTED = "accumulator registers a thread, twice its sums since they are promoted every 128 of k"
SEPARATE = "the kernel that adds up separate split-K's sums adds a bias at most"
COMBINATIONS = [
    (
        Operation.E4M3_BF16_KK,
        {},
        Reason.REGISTERS,
        f"128x128 needs 256 {PROMOTED}; 208 fit",
    ),
    (
        Operation.E4M3_BF16_KK,
        {"tile_m": 192, "tile_n": 112, "schedule": "cooperative"},
        Reason.TILE,
        "cooperative 192x112: tile_n must be a multiple of 32",
    ),
    (
        Operation.E4M3_E4M3_KK,
        {"tile_m": 192, "schedule": "cooperative"},
        Reason.REGISTERS,
        f"192x128 needs 128 {PROMOTED}; 100 fit",
    ),
    (
        Operation.BF16_KK_SWIGLU,
        {"tile_n": 112},
        Reason.TILE,
        "swiglu takes tile_n in steps of 32, got 128x112",
    ),
    (
        Operation.BF16_KK_SWIGLU,
        {"tile_m": 320, "tile_n": 160, "schedule": "cooperative"},
        Reason.TILE,
        "swiglu takes a tile whose columns one warpgroup holds, which two share of 320x160",
    ),
    (
        Operation.BF16_KK_GEGLU,
        {"swap_ab": True},
        Reason.COMBINATION,
        "geglu multiplies neighbouring columns, which swap_ab would make rows; take no swap",
    ),
    (
        Operation.BF16_KK_GEGLU,
        {"split_k": 4, "split_k_mode": "serial"},
        Reason.COMBINATION,
        "serial split-K's workspace holds n columns, geglu sums 2 n; take no split",
    ),
    (
        Operation.BF16_KK_GELU,
        {"split_k": 4, "split_k_mode": "separate"},
        Reason.COMBINATION,
        f"{SEPARATE}, bf16_kk_gelu has more; take serial split-K",
    ),
    (
        Operation.INT8_INT32_KK,
        {"split_k": 4, "split_k_mode": "separate"},
        Reason.COMBINATION,
        "separate split-K adds up in float32, int8_int32_kk in int32; take no split",
    ),
    (
        Operation.INT8_FP16_KK,
        {"split_k": 2, "split_k_mode": "serial"},
        Reason.COMBINATION,
        "serial split-K adds up in float32, int8_fp16_kk in int32; take no split",
    ),
    (
        Operation.TF32_KK,
        {"tile_n": 80},
        Reason.TILE,
        "tf32 takes 16 columns of a tile to a CTA, or a multiple of 32, got 80",
    ),
]


@pytest.mark.parametrize(("operation", "change", "why", "message"), COMBINATIONS)
def test_what_does_not_go_with_an_epilogue_is_refused(operation, change, why, message):
    assert reason(changed(TILE, **change), "h200", operation) == (why, message)


@pytest.mark.parametrize("operation", [Operation.BF16_KK_BIAS, Operation.BF16_KK])
def test_the_separate_reduction_adds_a_bias(operation):
    separate = named("sm90_quack_128x128_c1x1_pingpong_separate4")
    assert isinstance(check(separate, operation, load_target("h200")), Accepted)


def test_fast_sums_have_the_registers_of_16_bits():
    widest = named("sm90_quack_128x208_c1x1_pingpong")
    verdicts = [
        isinstance(check(widest, x, load_target("h200")), Accepted)
        for x in (Operation.E4M3_BF16_FAST_KK, Operation.E4M3_BF16_KK, Operation.BF16_KK_SILU)
    ]
    assert verdicts == [True, False, True]


def test_what_derives_from_this_family_keeps_its_own_operations():
    taken = {x.name: (x.types, x.epilogues) for x in families().values() if isinstance(x, Sm90Quack)}
    plain = (BF16, FP16), (Epilogue.NONE, Epilogue.BIAS)
    others = {"sm90_quack", "sm90_prefetch_b", "sm90_block_scale", "sm90_grouped", "sm90_grouped_block_scale"}
    assert {name for name, what in taken.items() if what != plain} == others
    assert set(FAMILY.epilogues) == set(OF_ONE_WEIGHT)


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
    assert reason(changed(TILE, **change), "h200") == (why, message)


def test_workspace_is_the_kernels_own_tiling():
    split = changed(TILE, cluster_m=2, swap_ab=True, split_k=4, split_k_mode="serial")
    assert FAMILY.workspace(split) == Workspace("serial", 4, 128, 128, 2, 1, True)
    assert FAMILY.workspace(TILE) == Workspace()


@pytest.mark.parametrize(
    ("mode", "split_k", "multiples"), [("none", 1, (1, 1)), ("serial", 2, (1, 1)), ("separate", 2, (1, 4))]
)
def test_only_the_separate_reduction_asks_for_a_multiple(mode, split_k, multiples):
    assert FAMILY.multiples(changed(TILE, split_k=split_k, split_k_mode=mode)) == multiples
