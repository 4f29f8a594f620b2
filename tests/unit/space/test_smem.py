"""The arithmetic of shared memory against the installed kernels' own, against the families', and by hand."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from aot.core.errors import CandidateError, TargetError
from aot.core.target import load_target, target_names
from aot.families import families
from aot.space.smem import (
    ELEMENTS,
    ENGINES,
    OUTPUT_BYTES,
    SMEM_BYTES,
    Kernel,
    base_arch,
    count,
    explain,
    smaller_tile,
    tiles,
)
from tests.answers import answers, stages
from tests.compiling import EVERY
from tests.unit.twins import BF16

NVFP4 = Kernel("sm_110a", "nvfp4", 256, 256, use_2cta=True)
BF16_WIDE = Kernel("sm_110a", "bf16", 128, 256)


@cache
def real(engine):
    """Give what the installed kernels say of themselves: capacities, and (library, kernel, stages) of each case."""
    arch = {"tcgen05": "sm_110a", "warp": "sm_120a"}[engine]
    kept = answers(f"stages_{engine}")
    rows = stages(engine, 1) if EVERY else kept
    capacities = {row[1]: row[2] for row in rows if row[0] == "capacity"}
    return capacities, [(row[0], Kernel(arch, *row[1]), row[2]) for row in rows if row[0] != "capacity"]


def counted(kernel):
    """Give (stages of A and B, of D, of C, tile_k), with the rest of the block filled with stages of D."""
    usage = count(kernel)
    fit = usage.num_stages_fit
    spare = usage.limit_bytes - usage.fixed_bytes - fit * usage.stage_bytes
    return [fit, usage.num_output_stages + spare // usage.output_stage_bytes, usage.num_source_stages, kernel.tile_k]


def test_the_limits_are_those_of_the_targets_and_of_the_compiler():
    limits = {x.arch: x.smem_bytes_per_block for x in map(load_target, target_names())}
    known = {x: SMEM_BYTES[x.removesuffix("a")] for x in limits if x.removesuffix("a") in SMEM_BYTES}
    assert {x: limit for x, limit in limits.items() if x in known} == known
    assert limits.keys() - known.keys() == {"sm_80", "sm_87", "sm_89"}
    assert real("tcgen05")[0] == SMEM_BYTES


def test_tcgen05_stages_are_those_of_the_installed_kernels():
    _, cases = real("tcgen05")
    assert {library for library, _, _ in cases} == {"nvidia", "quack"}
    assert {kernel.element for _, kernel, _ in cases} == set(ELEMENTS) - {"fp32"}
    assert [x for x in cases if counted(x[1]) != x[2]] == []
    assert {stages[0] for _, _, stages in cases} >= {1, 2, 3, 21}  # some do not fit, and the model says so


def test_warp_stages_are_those_of_the_installed_kernel():
    _, cases = real("warp")
    assert {kernel.element for _, kernel, _ in cases} == set(ELEMENTS) - {"fp32", "tf32"}
    plain = [(kernel, [max(found[0], 0), *found[1:]]) for _, kernel, found in cases if not kernel.source]
    assert [(kernel, found) for kernel, found in plain if counted(kernel) != found] == []
    # With C the spare bytes go to C before D, which the model leaves open: A, B and the fewest stages of both hold.
    for kernel, found in [(kernel, found) for _, kernel, found in cases if kernel.source]:
        usage = count(kernel)
        assert (usage.num_stages_fit, kernel.tile_k) == (max(found[0], 0), found[3]), kernel
        assert usage.num_output_stages <= found[1], kernel
        assert usage.num_source_stages <= found[2], kernel
        used = found[1] * usage.output_stage_bytes + found[2] * usage.source_stage_bytes
        least = usage.num_output_stages * usage.output_stage_bytes + usage.num_source_stages * usage.source_stage_bytes
        fixed = usage.fixed_bytes - least + used
        assert found[0] < 1 or fixed + found[0] * usage.stage_bytes <= usage.limit_bytes, kernel
    assert {found[0] for _, _, found in cases} >= {0, 1, 2, 3}


@pytest.mark.parametrize("family", ["sm100_persistent", "sm100_quack"])
def test_bf16_is_counted_as_the_families_count(family):
    target, seen = load_target("thor"), 0
    for candidate in families()[family].candidates(BF16, target):
        if candidate.gemm.swap_ab or not candidate.gemm.use_tma_store or candidate.gemm.split_k > 1:
            continue
        if families()[family].check(candidate, BF16, target):
            continue
        used = families()[family].resources(candidate, BF16, target)
        usage = count(Kernel("sm_110a", "bf16", candidate.gemm.tile_m, candidate.gemm.tile_n, candidate.gemm.use_2cta))
        filled = usage.spare_bytes // usage.output_stage_bytes * usage.output_stage_bytes
        assert (usage.num_stages, usage.stage_bytes) == (used.num_stages, used.stage_bytes)
        assert usage.needed_bytes + filled == used.smem_bytes
        seen += 1
    assert seen > 50


def test_parts_by_hand():
    usage = count(NVFP4)
    # 128 rows of A and 128 of B in a CTA, 128 bytes of k (256 elements) each.
    assert (usage.a_bytes, usage.b_bytes) == (128 * 128, 128 * 128)
    # A scale for every 16 elements: 16 a row, for the CTA's 128 rows of A and for all 256 of B.
    assert (usage.sfa_bytes, usage.sfb_bytes) == (128 * 16, 256 * 16)
    assert (usage.output_stage_bytes, usage.num_output_stages, usage.barrier_bytes) == (128 * 32 * 2, 2, 1024)
    assert usage.needed_bytes == 5 * 38_912 + 2 * 8192 + 1024


def test_scale_factors_are_padded_to_atoms():
    # 64 columns of B take an atom of 128; 4 scales of a row of mxfp8, 8 of mxfp4, 16 of nvfp4.
    narrow = [count(Kernel("sm_110a", name, 128, 64)).sfb_bytes for name in ("mxfp8", "mxfp4", "nvfp4", "fp8")]
    assert narrow == [128 * 4, 128 * 8, 128 * 16, 0]
    assert count(Kernel("sm_110a", "mxfp8", 128, 192)).sfb_bytes == 256 * 4


def test_the_warp_mma_pads_its_struct():
    used = [count(Kernel("sm_120a", "mxfp8", m, n)) for m, n in ((128, 128), (256, 128), (256, 256))]
    assert [x.sfa_bytes + x.sfb_bytes for x in used] == [1024, 1536, 2048]
    assert [x.padding_bytes for x in used] == [0, 1024, 0]


@pytest.mark.parametrize(
    ("kernel", "num_stages", "message"),
    [
        (
            NVFP4,
            None,
            (
                "nvfp4_256x256x256_2cta fits: 211,968 of 232,448 bytes with 5 stages of 38,912; 5 stages fit; "
                "20,480 bytes are left"
            ),
        ),
        (
            NVFP4,
            6,
            (
                "nvfp4_256x256x256_2cta needs 250,880 bytes of shared memory with 6 stages of 38,912; sm_110a gives "
                "232,448 a block; 5 stages fit; take 5 stages or fewer, or tile 256x192 holds 6"
            ),
        ),
        (
            replace(BF16_WIDE, arch="sm_121a"),
            None,
            (
                "bf16_128x256x64 needs 107,520 bytes of shared memory with 2 stages of 49,152; sm_121a gives 101,376 a "
                "block; 1 stage fits; tile 128x224 holds 2"
            ),
        ),
        (
            replace(BF16_WIDE, arch="sm_120a", tile_m=256, k_bytes=256),
            None,
            (
                "bf16_256x256x128 needs 271,360 bytes of shared memory with 2 stages of 131,072; sm_120a gives 101,376 "
                "a block; no stage fits; tile 64x96 holds 2, or halve the 256 bytes of k in a stage"
            ),
        ),
        (
            replace(BF16_WIDE, k_bytes=1024),
            None,
            (
                "bf16_128x256x512 needs 803,840 bytes of shared memory with 2 stages of 393,216; sm_110a gives 232,448 "
                "a block; no stage fits; tile 64x32 holds 2, or halve the 1024 bytes of k in a stage"
            ),
        ),
        (
            Kernel("sm_120a", "fp32", 64, 32),
            20,
            (
                "fp32_64x32x32 needs 250,880 bytes of shared memory with 20 stages of 12,288; sm_120a gives 101,376 a "
                "block; 7 stages fit; take 7 stages or fewer"
            ),
        ),
    ],
)
def test_the_verdict_says_what_is_needed_what_there_is_and_what_to_do(kernel, num_stages, message):
    assert explain(count(kernel, num_stages)) == message


def test_a_smaller_tile_that_is_named_does_fit():
    refused = 0
    for arch, name, output, use_2cta in product(ENGINES, ELEMENTS, OUTPUT_BYTES, (False, True)):
        rows, columns = tiles(arch, ELEMENTS[name], use_2cta=use_2cta)
        for tile_m, tile_n in product(rows, columns):
            usage = count(Kernel(arch, name, tile_m, tile_n, use_2cta, output))
            assert usage.fits == (usage.num_stages_fit >= 2)
            if not usage.fits:
                smaller = smaller_tile(usage.kernel)
                assert smaller is not None
                assert count(smaller).fits
                refused += 1
    assert refused > 100


def test_on_thor_every_tile_fits_and_on_sm_121_some_do_not():
    def fits(arch, tile):
        return {name: count(Kernel(arch, name, *tile)).fits for name in ELEMENTS}

    assert set(fits("sm_110a", (128, 256)).values()) == {True}
    assert set(fits("sm_121a", (128, 128)).values()) == {True}
    assert set(fits("sm_121a", (256, 128)).values()) == {False}


ARCHS = "expected one of sm_100, sm_103, sm_110, sm_120, sm_121"
WGMMA = "sm_90a gives 232,448 bytes a block, but its wgmma kernels are not counted here"
OUTPUTS = "expected one of fp32, fp16, bf16, fp8"
TILES_N = "tile_n 32, 64, 96, 128, 160, 192, 224, 256"


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        ("sm_80", f"no architecture 'sm_80'; {ARCHS}; write for example sm_110a"),
        ("sm_90a", f"{WGMMA}; {ARCHS}; see `aot space --target h200 --explain`"),
    ],
)
def test_an_architecture_that_is_not_counted_is_refused(arch, message):
    with pytest.raises(TargetError) as caught:
        count(replace(NVFP4, arch=arch))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"element": "fp6"}, f"no element type 'fp6'; expected one of {', '.join(ELEMENTS)}"),
        ({"output": "nvfp4"}, f"D cannot be 'nvfp4'; {OUTPUTS}"),
        ({"source": "int8"}, f"C cannot be 'int8'; {OUTPUTS}"),
        ({"arch": "sm_121a"}, "sm_121a has no MMA of two CTAs, got nvfp4_256x256x256_2cta; leave --two-cta out"),
        (
            {"k_bytes": 192},
            "a stage cannot hold 192 bytes of k; expected a multiple of 128; leave --k-bytes out for 128",
        ),
        (
            {"use_2cta": False},
            "no tcgen05 tile 256x256 of nvfp4; expected tile_m 128 and tile_n 64, 128, 192, 256",
        ),
        (
            {"element": "bf16", "tile_n": 20},
            f"no tcgen05 tile 256x20 of bf16 with two CTAs; expected tile_m 128 or 256 and {TILES_N}",
        ),
    ],
)
def test_what_no_kernel_has_is_refused(change, message):
    with pytest.raises(CandidateError) as caught:
        count(replace(NVFP4, **change))
    assert str(caught.value) == message


def test_one_stage_is_refused():
    with pytest.raises(CandidateError, match="--stages is 1; expected 2 or more; leave it out for as many as fit"):
        count(NVFP4, 1)


def test_an_architecture_has_a_letter_or_none():
    assert [base_arch(x) for x in ("sm_110", "sm_110a", "sm_120f")] == ["sm_110", "sm_110", "sm_120"]
