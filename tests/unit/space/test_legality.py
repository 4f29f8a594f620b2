"""What is refused before compiling. The first cases are those of CUTLASS issue 2784: SMEM usage exceeded capacity."""

from dataclasses import replace

import pytest

from aot.core.candidate import Accepted, Reason, Rejected, Resources, changed, gemm_candidate
from aot.core.element import ElementType
from aot.core.errors import CandidateError
from aot.core.knobs import SplitK
from aot.core.operation import Layout, Operation
from aot.core.target import load_target
from aot.families import families
from aot.families._quack_smem import bias_bytes
from aot.space.enumeration import Patterns, census
from aot.space.legality import check
from tests.unit.twins import BF16

CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
THOR, H200 = replace(load_target("thor"), clusters=CLUSTERS), load_target("h200")
SMALL = replace(THOR, name="small", smem_bytes_per_block=99 * 1024)
TGV = gemm_candidate("sm100_tgv", 64, 16, num_stages=11, swap_ab=True, use_tma_store=False)
TWO_CTA = gemm_candidate("sm100_persistent", 256, 256, 2, 1, "static", use_2cta=True)
ONE_CTA = gemm_candidate("sm100_persistent", 128, 128, schedule="clc")


@pytest.mark.parametrize(
    ("candidate", "target", "message"),
    [
        (
            changed(TGV, num_stages=12),
            THOR,
            (
                "sm100_tgv_64x16_c1x1_st12_direct_swap needs 246,784 bytes of shared memory with 12 stages of 20,480; "
                "sm_110a gives 232,448 a block; 11 stages fit"
            ),
        ),
        (
            changed(TWO_CTA, num_stages=9),
            THOR,
            (
                "sm100_persistent_256x256_c2x1_static_st9_2cta needs 312,320 bytes of shared memory with 9 stages of "
                "32,768; sm_110a gives 232,448 a block; 6 stages fit"
            ),
        ),
        (
            changed(ONE_CTA, tile_n=256, num_stages=3),
            SMALL,
            (
                "sm100_persistent_128x256_c1x1_clc_st3 needs 164,864 bytes of shared memory with 3 stages of 49,152; "
                "sm_110a gives 101,376 a block; 1 stage fits; take a smaller tile"
            ),
        ),
        (
            ONE_CTA,
            replace(THOR, smem_bytes_per_block=40_000),
            (
                "sm100_persistent_128x128_c1x1_clc needs 82,944 bytes of shared memory with 2 stages of 32,768; "
                "sm_110a gives 40,000 a block; no stage fits; take a smaller tile"
            ),
        ),
    ],
)
def test_shared_memory_is_counted_in_bytes(candidate, target, message):
    assert check(candidate, BF16, target) == Rejected(Reason.SMEM, message)


def test_what_the_message_says_fits_does_fit():
    assert check(TGV, BF16, THOR) == Accepted(Resources(226304, 20480, 256, 11, 256))
    assert check(TWO_CTA, BF16, THOR) == Accepted(Resources(230400, 32768, 192, 6, 512))


def test_a_kernel_that_fills_the_block_takes_no_number_of_stages():
    verdict = check(changed(TWO_CTA, num_stages=6), BF16, THOR)
    assert verdict == Rejected(Reason.COMBINATION, "num_stages is 6; the kernel fills the block, give 0")


@pytest.mark.slow
def test_a_device_with_less_shared_memory_takes_fewer():
    def counts(target):
        return {
            x.family: (x.num_accepted, x.num_rejected.get(Reason.SMEM, 0)) for x in census(BF16, target, Patterns())
        }

    assert counts(THOR) == {
        "cluster_split_k": (120, 0),
        "mma_sync": (292, 0),
        "sm100_block_scale": (0, 0),
        "sm100_persistent": (1152, 0),
        "sm100_quack": (3360, 0),
        "sm100_tgv": (12, 3),
    }
    assert counts(SMALL) == {
        "cluster_split_k": (92, 0),
        "mma_sync": (276, 16),
        "sm100_block_scale": (0, 0),
        "sm100_persistent": (1104, 288),
        "sm100_quack": (3048, 888),
        "sm100_tgv": (3, 12),
    }


@pytest.mark.parametrize(
    ("candidate", "target", "reason", "message"),
    [
        (
            TWO_CTA,
            replace(THOR, tmem_columns=256),
            Reason.TMEM,
            (
                "sm100_persistent_256x256_c2x1_static_2cta needs 512 columns of tensor memory; sm_110a has 256; "
                "take a smaller tile_n"
            ),
        ),
        (
            ONE_CTA,
            replace(THOR, max_threads_per_block=128),
            Reason.THREADS,
            "sm100_persistent_128x128_c1x1_clc needs 224 threads; sm_110a takes 128 a block",
        ),
        (
            changed(ONE_CTA, cluster_n=8),
            THOR,
            Reason.CLUSTER,
            "sm100_persistent_128x128_c1x8_clc: cluster 1x8 is not one of thor's: 1x1, 2x1, 1x2, 2x2, 4x1, 1x4",
        ),
        (
            ONE_CTA,
            H200,
            Reason.FEATURE,
            "sm100_persistent_128x128_c1x1_clc: sm100_persistent needs tcgen05, which h200 (sm_90a) has not",
        ),
        (
            gemm_candidate("sm90_quack", 128, 128, schedule="pingpong"),
            THOR,
            Reason.FEATURE,
            "sm90_quack_128x128_c1x1_pingpong: sm90_quack needs wgmma, which thor (sm_110a) has not",
        ),
        (
            gemm_candidate("sm90_quack", 128, 128, schedule="pingpong", split_k_mode="serial"),
            H200,
            Reason.COMBINATION,
            (
                "sm90_quack_128x128_c1x1_pingpong: split_k 1 in mode 'serial'; 1 goes with none, "
                "2 and more with serial, parallel, separate, tail, cluster"
            ),
        ),
    ],
)
def test_other_limits_are_given_with_both_figures(candidate, target, reason, message):
    assert check(candidate, BF16, target) == Rejected(reason, message)


@pytest.mark.parametrize("name", ["sm90_quack", "sm90_partial_tile", "sm90_prefetch_b"])
def test_a_family_that_splits_k_through_a_workspace_does_not_within_a_cluster(name):
    candidate = gemm_candidate(name, 128, 128, schedule="pingpong", split_k=2, split_k_mode=SplitK.CLUSTER)
    text = f"{candidate.name}: {name} splits k through a workspace, not within a cluster"
    assert check(candidate, BF16, H200) == Rejected(Reason.COMBINATION, text)


@pytest.mark.parametrize(("split_k", "mode"), [(2, "none"), (0, "none"), (-2, "serial"), (2, "atomic")])
def test_splits_and_modes_go_together(split_k, mode):
    candidate = gemm_candidate("sm90_quack", 128, 128, schedule="pingpong", split_k=split_k, split_k_mode=mode)
    verdict = check(candidate, BF16, H200)
    assert isinstance(verdict, Rejected)
    assert verdict.reason is Reason.COMBINATION


def test_an_unknown_family_is_an_error():
    with pytest.raises(
        CandidateError, match=r"no kernel family 'sm80'; there are: cluster_split_k, gemv, mma_sync, row_looped, "
    ):
        check(gemm_candidate("sm80", 128, 128), BF16, THOR)


def test_a_family_builds_the_epilogues_that_it_says():
    verdict = check(TGV, Operation.BF16_KK_BIAS, THOR)
    assert verdict == Rejected(
        Reason.EPILOGUE, f"{TGV.name}: sm100_tgv builds the epilogues none, bf16_kk_bias needs bias"
    )
    for name, target in (("sm90_quack", H200), ("sm90_partial_tile", H200), ("sm90_prefetch_b", H200)):
        assert isinstance(
            check(gemm_candidate(name, 64, 16, schedule="pingpong"), Operation.BF16_KK_BIAS, target), Accepted
        )


@pytest.mark.parametrize(
    ("candidate", "target", "num_bytes"),
    [
        (gemm_candidate("sm90_quack", 128, 208, schedule="pingpong"), H200, 416),
        (gemm_candidate("sm90_quack", 128, 208, schedule="pingpong", swap_ab=True), H200, 256),
        (gemm_candidate("sm90_quack", 128, 208, schedule="pingpong", split_k=2, split_k_mode=SplitK.SEPARATE), H200, 0),
        (gemm_candidate("sm100_quack", 128, 256, schedule="clc"), THOR, 512),
        (gemm_candidate("sm100_quack", 256, 256, 2, 1, "clc", use_2cta=True, swap_ab=True), THOR, 256),
    ],
)
def test_a_bias_takes_shared_memory_for_one_tile(candidate, target, num_bytes):
    plain, bias = (check(candidate, x, target).resources for x in (Operation.BF16_KK, Operation.BF16_KK_BIAS))
    fixed = [x.smem_bytes - x.num_stages * x.stage_bytes for x in (plain, bias)]
    assert bias_bytes(candidate, Operation.BF16_KK_BIAS, shape_rows(candidate)) == num_bytes
    assert bias_bytes(candidate, Operation.BF16_KK, shape_rows(candidate)) == 0
    # What is left of a block goes to further stages of the epilogue, so that the sum need not grow by the bias.
    assert bias.smem_bytes <= target.smem_bytes_per_block
    if target is THOR:
        assert (fixed[1] - fixed[0] - num_bytes) % 128 == 0
    else:
        assert [x % 1024 for x in fixed] == [0, 0]  # quack aligns the stages that follow


def shape_rows(candidate):
    return candidate.gemm.tile_m // (2 if candidate.gemm.use_2cta else 1)


def test_a_family_builds_the_types_that_it_says():
    verdict = check(TGV, Operation.TF32_KK, THOR)
    assert verdict == Rejected(Reason.TYPES, f"{TGV.name}: sm100_tgv builds the types bf16, fp16, tf32_kk needs tf32")


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("cluster_split_k", "thor"),
        ("sm100_tgv", "thor"),
        ("sm90_partial_tile", "h200"),
        ("sm90_prefetch_b", "h200"),
        ("sm90_stream_k", "h200"),
    ],
)
@pytest.mark.parametrize("layout", [Layout.KN, Layout.MK, Layout.MN])
def test_operands_that_are_not_contiguous_along_k_are_refused_whatever_the_candidate(name, target, layout):
    operation, device = Operation.of(ElementType.BFLOAT16, layout), load_target(target)
    candidate = next(iter(families()[name].candidates(operation, device)))
    text = f"{candidate.name}: {name} builds the layouts kk, {operation.tag} needs {layout.value}"
    assert check(candidate, operation, device) == Rejected(Reason.LAYOUT, text)
