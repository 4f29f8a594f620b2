from collections import Counter

import pytest

from aot.core.candidate import Accepted, Reason, Rejected, changed
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.families.sm100_block_scale import FAMILY
from aot.space.legality import check
from tests.unit.accepted import named, reason, resources

NVFP4, MXFP4, MXFP8 = Operation.NVFP4_BF16_KK, Operation.MXFP4_BF16_KK, Operation.MXFP8_BF16_KK
MIXED = Operation.MXFP8_MXFP4_BF16_KK
THOR = load_target("thor")


@pytest.mark.parametrize("operation", [NVFP4, MXFP4, MXFP8, MIXED])
@pytest.mark.parametrize("target", ["thor", "b200"])
def test_tiles_of_256_columns_are_refused_with_their_reason(operation, target):
    candidate = changed(named("sm100_block_scale_128x128_c1x1_static"), tile_n=256)
    verdict = check(candidate, operation, load_target(target))
    assert verdict == Rejected(
        Reason.TILE,
        "accumulators of 256 columns share tensor memory with the factors, and a kernel of that kind hangs; "
        "take tile_n 64, 128, 192",
    )


@pytest.mark.parametrize(
    ("changes", "why", "message"),
    [
        ({"tile_n": 96}, Reason.TILE, "atoms of 128 columns, which a tile may halve: tile_n 64, 128, 192; got 96"),
        ({"tile_m": 64}, Reason.TILE, "block-scaled tcgen05 takes tile_m 128 with use_2cta=False, got 64"),
        ({"tile_m": 256, "use_2cta": True}, Reason.CLUSTER, "use_2cta needs an even cluster_m, got 1"),
        ({"split_k": 2, "split_k_mode": "separate"}, Reason.COMBINATION, "the kernel has no separate split-K"),
    ],
)
def test_what_no_block_scaled_kernel_has_is_refused(changes, why, message):
    candidate = changed(named("sm100_block_scale_128x128_c1x1_static"), **changes)
    found, text = reason(candidate, "thor", NVFP4)
    assert found is why
    assert text.endswith(message)


def test_a_chip_without_block_scales_is_refused_by_name():
    message = check(named("sm100_block_scale_128x128_c1x1_static"), NVFP4, load_target("h200")).message
    assert message.endswith("sm100_block_scale needs tcgen05, block_scale, which h200 (sm_90a) has not")


@pytest.mark.parametrize(
    ("operation", "num_split"),
    [
        (NVFP4, 0),
        (MXFP4, 0),
        (MXFP8, 144),
        (MIXED, 0),
        (Operation.MXFP4_BF16_KK_RESIDUAL, 0),
        (Operation.MXFP8_BF16_KK_BIAS, 144),
    ],
)
def test_half_of_the_candidates_are_legal_and_fit_a_block(operation, num_split):
    verdicts = [check(x, operation, THOR) for x in FAMILY.candidates(operation, THOR)]
    accepted = [x.resources for x in verdicts if isinstance(x, Accepted)]
    rejected = Counter(x.reason for x in verdicts if isinstance(x, Rejected))
    assert rejected == Counter({Reason.TILE: 96, Reason.CLUSTER: 96, Reason.COMBINATION: num_split})
    assert len(accepted) == 192 - num_split
    assert all(x.num_stages >= 2 and x.smem_bytes <= THOR.smem_bytes_per_block for x in accepted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"swap_ab": True}, "swiglu multiplies neighbouring columns, which swap_ab would make rows; take no swap"),
        (
            {"split_k": 2, "split_k_mode": "serial"},
            "split-K's workspace holds n columns, swiglu sums 2 n; take no split",
        ),
    ],
)
def test_a_gate_takes_neither_swap_nor_split(changes, message):
    candidate = changed(named("sm100_block_scale_128x128_c1x1_static"), **changes)
    found, text = reason(candidate, "thor", Operation.NVFP4_BF16_KK_SWIGLU)
    assert found is Reason.COMBINATION
    assert text.endswith(message)


def test_more_stages_than_fit_are_explained_in_bytes():
    candidate = changed(named("sm100_block_scale_128x192_c1x1_clc"), num_stages=6)
    verdict = check(candidate, NVFP4, THOR)
    assert isinstance(verdict, Rejected)
    assert verdict.reason is Reason.SMEM
    assert (
        "bytes of shared memory with 6 stages of 47,104; sm_110a gives 232,448 a block; 4 stages fit" in verdict.message
    )


@pytest.mark.parametrize(
    ("operation", "name", "smem_bytes", "stages"),
    [
        (NVFP4, "128x64_c1x1_static", 225280, 7),
        (NVFP4, "256x128_c2x1_static_2cta", 225280, 7),
        (NVFP4, "128x192_c1x1_clc", 229376, 4),
        (MXFP4, "128x128_c1x1_clc_swap", 225280, 6),
        (MXFP8, "128x64_c2x1_static", 229376, 8),
        (MXFP8, "256x192_c2x1_clc_2cta", 228352, 7),
        (Operation.NVFP4_FP16_KK, "128x192_c1x2_clc", 229376, 4),
        (Operation.MXFP8_FP16_KK, "128x64_c1x1_static", 229376, 8),
        (Operation.NVFP4_BF16_KK_BIAS, "128x128_c1x2_static_serial4", 226304, 5),
        (Operation.NVFP4_BF16_KK_SILU, "128x192_c1x2_clc", 230400, 4),
        (Operation.NVFP4_BF16_KK_RESIDUAL, "128x192_c2x1_clc_serial2", 224256, 3),
        (Operation.MXFP8_BF16_KK_GELU, "256x64_c2x1_clc_2cta", 228352, 9),
        (Operation.NVFP4_BF16_KK_SWIGLU, "256x128_c2x1_clc_2cta", 230400, 7),
        (Operation.MXFP8_BF16_KK_GEGLU, "256x64_c2x1_static_2cta", 228352, 10),
        (Operation.MXFP8_BF16_KK_RESIDUAL, "256x128_c2x1_static_2cta_swap", 230400, 7),
        (Operation.NVFP4_NVFP4_KK, "128x64_c1x1_static", 229376, 7),
        (Operation.NVFP4_NVFP4_KK_BIAS, "128x128_c1x1_clc", 230400, 6),
        (Operation.NVFP4_NVFP4_KK_SILU, "128x64_c1x1_static_serial2", 230400, 7),
        (Operation.NVFP4_NVFP4_KK_SWIGLU, "128x128_c1x1_static", 230400, 6),
        (Operation.NVFP4_NVFP4_KK_GEGLU, "256x128_c2x1_clc_2cta", 230400, 7),
        (Operation.MXFP8_MXFP8_KK, "128x64_c1x1_static", 229376, 8),
        (Operation.MXFP8_MXFP8_KK_GEGLU, "256x128_c2x1_clc_2cta", 230400, 8),
        (Operation.MXFP4_MXFP4_KK, "128x64_c1x1_static", 229376, 8),
    ],
)
def test_resources_are_those_of_the_compiled_kernels(operation, name, smem_bytes, stages):
    # Source: what quack 0.6.5 and nvidia-cutlass-dsl 4.8.1 gave, 2026-11-27; nine 2026-11-28, the last eight
    # 2026-11-29, as what their launches asked for.
    assert resources(f"sm100_block_scale_{name}", "thor", operation) == (smem_bytes, stages, 256, 512)


def test_elements_that_are_padded_take_as_many_bytes_of_a_stage_as_wider_ones():
    # The compiler's own count is compared wherever one of these is compiled: 50 were for the census, 2026-11-28.
    for name in ("128x64_c2x1_static", "256x192_c2x1_clc_2cta", "128x128_c1x2_clc_swap"):
        candidate = f"sm100_block_scale_{name}"
        assert resources(candidate, "thor", MIXED) == resources(candidate, "thor", MXFP8)


def test_mxfp8_takes_no_split():
    split = named("sm100_block_scale_128x64_c1x1_static_serial2")
    found = reason(split, "thor", MXFP8)
    assert found[0] is Reason.COMBINATION
    assert found[1].endswith("and a product of mxfp8_bf16 is wrong; take no split")
    assert isinstance(check(split, NVFP4, THOR), Accepted)
    assert isinstance(check(split, MIXED, THOR), Accepted)  # whose k is one of whole stages


QUANTIZED, QUANTIZED_GATE = Operation.NVFP4_NVFP4_KK, Operation.NVFP4_NVFP4_KK_SWIGLU
QUANTIZED_MX = Operation.MXFP8_MXFP8_KK_SWIGLU


@pytest.mark.parametrize(
    ("operation", "changes", "message"),
    [
        (QUANTIZED, {"swap_ab": True}, "which swap_ab would make a column of nvfp4_nvfp4_kk; take no swap"),
        (QUANTIZED_GATE, {"tile_n": 192}, "tile_n is a multiple of 128, or divides it; got 192"),
        (QUANTIZED_MX, {"tile_n": 192}, "a tile of mxfp8_mxfp8_kk_swiglu has whole atoms of D's factors, or is a part"),
    ],
)
def test_a_tile_has_whole_blocks_and_no_part_of_two_atoms_of_what_it_quantises(operation, changes, message):
    found, text = reason(changed(named("sm100_block_scale_128x128_c1x1_static"), **changes), "thor", operation)
    assert found is Reason.COMBINATION
    assert message in text


@pytest.mark.parametrize(
    ("operation", "tiles"), [(QUANTIZED, {64, 128, 192}), (QUANTIZED_GATE, {64, 128}), (QUANTIZED_MX, {64, 128})]
)
def test_what_quantises_has_these_tiles(operation, tiles):
    verdicts = {x: check(x, operation, THOR) for x in FAMILY.candidates(operation, THOR)}
    legal = [x.gemm for x, verdict in verdicts.items() if isinstance(verdict, Accepted)]
    assert {x.tile_n for x in legal} == tiles
    assert {x.tile_m for x in legal} == {128, 256}
