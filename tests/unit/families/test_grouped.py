"""The spaces and limits of the families over groups."""

from itertools import islice

import pytest

from aot.core.candidate import Accepted, Reason, Rejected, Workspace, changed
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.families import families_for, family_of
from aot.space.legality import check, unbuilt
from tests.unit.accepted import named, reason, resources

H200, THOR = load_target("h200"), load_target("thor")
GROUPED, GATHERED = Operation.BF16_KK_GROUPED, Operation.BF16_KK_GATHERED
SWIGLU, BLOCK = Operation.BF16_KK_GROUPED_SWIGLU, Operation.E4M3_BF16_BLOCK_KK_GROUPED
BLOCK_SWIGLU = Operation.E4M3_BF16_BLOCK_KK_GROUPED_SWIGLU
SM90 = named("sm90_grouped_128x128_c1x1_pingpong")
SM100 = named("sm100_grouped_128x128_c1x1_clc")
SCALED = named("sm90_grouped_block_scale_128x128_c1x1_cooperative")
NVFP4, NVFP4_SWIGLU = Operation.NVFP4_BF16_KK_GROUPED, Operation.NVFP4_BF16_KK_GROUPED_SWIGLU
MXFP8 = Operation.MXFP8_BF16_KK_GROUPED
MIXED = Operation.MXFP8_MXFP4_BF16_KK_GROUPED
QUANTIZED = Operation.NVFP4_NVFP4_KK_GROUPED
IN_ATOMS = named("sm100_grouped_block_scale_128x128_c1x1_clc")
WITH_OFFSETS = [x for x in Operation if x.grouping.has_offsets]


@pytest.mark.parametrize(
    ("name", "target", "operation", "smem_bytes", "stages", "threads", "tmem_columns"),
    [
        ("sm90_grouped_64x128_c1x1_pingpong", "h200", GROUPED, 229376, 9, 384, 0),
        ("sm90_grouped_128x256_c2x1_cooperative", "h200", GROUPED, 229376, 4, 384, 0),
        ("sm90_grouped_128x192_c1x1_pingpong", "h200", GATHERED, 229376, 5, 384, 0),
        ("sm90_grouped_64x256_c1x1_pingpong", "h200", SWIGLU, 230400, 5, 384, 0),
        ("sm90_grouped_block_scale_128x128_c1x1_cooperative", "h200", BLOCK, 229376, 6, 384, 0),
        ("sm100_grouped_128x256_c2x1_clc_2cta", "thor", GROUPED, 229376, 8, 256, 256),
        ("sm100_grouped_64x128_c1x1_clc", "thor", Operation.E4M3_BF16_KK_GATHERED, 231424, 8, 384, 128),
        ("sm100_grouped_block_scale_128x64_c1x1_static", "thor", NVFP4, 225280, 7, 256, 512),
        ("sm100_grouped_block_scale_256x128_c2x1_clc_2cta", "thor", NVFP4_SWIGLU, 230400, 7, 256, 512),
        ("sm100_grouped_block_scale_128x192_c1x1_clc", "thor", MXFP8, 229376, 5, 256, 512),
        ("sm100_grouped_block_scale_128x64_c1x1_static", "thor", QUANTIZED, 229376, 7, 256, 512),
    ],
)
def test_resources_are_those_of_the_compiled_kernels(
    name, target, operation, smem_bytes, stages, threads, tmem_columns
):
    # tests/runtime/test_grouped_kernels.py compares with what is launched.
    assert resources(name, target, operation) == (smem_bytes, stages, threads, tmem_columns)


@pytest.mark.parametrize(
    ("dense", "grouped", "families", "count"),
    [
        (Operation.BF16_KK, GROUPED, ("sm100_quack", "sm100_grouped"), 112),
        (Operation.NVFP4_BF16_KK, NVFP4, ("sm100_block_scale", "sm100_grouped_block_scale"), 24),
        (Operation.NVFP4_NVFP4_KK, QUANTIZED, ("sm100_block_scale", "sm100_grouped_block_scale"), 24),
        (Operation.MXFP8_BF16_KK, MXFP8, ("sm100_block_scale", "sm100_grouped_block_scale"), 24),
        (Operation.MXFP8_MXFP4_BF16_KK, MIXED, ("sm100_block_scale", "sm100_grouped_block_scale"), 24),
    ],
)
def test_groups_take_no_shared_memory_of_their_own(dense, grouped, families, count):
    """No tensor map of a group lies there, whatever addresses the groups' B have: docs/smem.md counts on it."""
    found = [dict[str, int](), dict[str, int]()]
    for of_family, operation, name in zip(found, (dense, grouped), families, strict=True):
        (family,) = (x for x in families_for(THOR) if x.name == name)
        for candidate in family.candidates(operation, THOR):
            verdict = check(candidate, operation, THOR)
            if isinstance(verdict, Accepted) and not candidate.gemm.swap_ab and candidate.gemm.split_k == 1:
                of_family[candidate.name.removeprefix(name)] = verdict.resources.smem_bytes
    assert len(found[1]) == count
    assert found[1].items() <= found[0].items()


@pytest.mark.parametrize(
    ("candidate", "target", "operation", "change", "why", "message"),
    [
        (
            SM90,
            "h200",
            GROUPED,
            {"swap_ab": True},
            Reason.COMBINATION,
            "grouped rows are the kernel's rows; take no swap",
        ),
        (
            SM90,
            "h200",
            GROUPED,
            {"split_k": 2, "split_k_mode": "serial"},
            Reason.COMBINATION,
            "the kernel has no serial split-K of groups; take no split",
        ),
        (
            SM90,
            "h200",
            GATHERED,
            {"cluster_n": 2},
            Reason.COMBINATION,
            "each CTA gathers its own rows of A, which a cluster of 1x2 would share; take one of a single column",
        ),
        (
            SM90,
            "h200",
            GATHERED,
            {"tile_m": 256, "schedule": "cooperative"},
            Reason.REGISTERS,
            "warps that gather keep an index of each row, of at most 192 rows; got tile_m 256",
        ),
        (
            SM90,
            "h200",
            GATHERED,
            {"tile_n": 208},
            Reason.REGISTERS,
            "128x208 needs 208 accumulator registers a thread; 192 fit beside warps that gather",
        ),
        (SM90, "h200", SWIGLU, {"tile_n": 112}, Reason.TILE, "swiglu takes tile_n in steps of 32, got 128x112"),
        (
            SM90,
            "h200",
            Operation.BF16_MN_KGROUPED,
            {"tile_m": 320, "tile_n": 96, "schedule": "cooperative"},
            Reason.LAYOUT,
            "two warpgroups share the columns of a 320x96 tile, which the compiler cannot have contiguous in B",
        ),
        (SM90, "h200", Operation.BF16_KK, {}, Reason.GROUPING, None),
        (SM90, "h200", BLOCK, {}, Reason.TYPES, None),
        (SCALED, "h200", BLOCK, {"tile_n": 144}, Reason.TILE, "the kernel takes tile_n up to 128, got 128x144"),
        (SCALED, "h200", BLOCK_SWIGLU, {"tile_n": 96}, Reason.TILE, "swiglu takes tile_n 32, 64, 128, got 128x96"),
        (
            SCALED,
            "h200",
            BLOCK,
            {"tile_m": 256},
            Reason.REGISTERS,
            "256x128 needs 256 registers a thread for the sums of a stage and of the tile; 192 fit beside the factors",
        ),
        (
            SM100,
            "thor",
            GROUPED,
            {"swap_ab": True},
            Reason.COMBINATION,
            "grouped rows are the kernel's rows; take no swap",
        ),
        (SM100, "h200", GROUPED, {}, Reason.FEATURE, None),
        (SM100, "thor", NVFP4, {}, Reason.TYPES, None),
        (IN_ATOMS, "thor", GROUPED, {}, Reason.TYPES, None),
        (IN_ATOMS, "thor", Operation.NVFP4_BF16_KK, {}, Reason.GROUPING, None),
        (
            IN_ATOMS,
            "thor",
            NVFP4,
            {"swap_ab": True},
            Reason.COMBINATION,
            "grouped rows are the kernel's rows; take no swap",
        ),
        (
            IN_ATOMS,
            "thor",
            MXFP8,
            {"tile_n": 256},
            Reason.TILE,
            (
                "accumulators of 256 columns share tensor memory with the factors, and a kernel of that kind hangs; "
                "take tile_n 64, 128, 192"
            ),
        ),
    ],
)
def test_what_a_kernel_of_groups_cannot_do_is_refused(candidate, target, operation, change, why, message):
    found = reason(changed(candidate, **change), target, operation)
    assert found[0] is why
    assert message is None or found[1] == message


FAST = {
    ("h200", "none"): "sm90_grouped",
    ("h200", "vector"): "sm90_grouped",
    ("h200", "block"): "sm90_grouped_block_scale",
    ("thor", "none"): "sm100_grouped",
    ("thor", "vector"): "sm100_grouped",
    ("thor", "atoms"): "sm100_grouped_block_scale",
}
"""The family beside the fallback, by target and how factors lie."""
PACKED, MANY = {"weight_only", "weight_only_simt"}, "sm90_grouped_weight_only"
"""Those of packed weights, the second of which is their fallback; and Hopper's for many rows in order of fragments."""


@pytest.mark.parametrize("operation", WITH_OFFSETS, ids=lambda x: x.tag)
@pytest.mark.parametrize("target", [H200, THOR], ids=lambda x: x.name)
def test_every_operation_has_a_fallback_and_what_is_rejected_says_why(operation, target):
    legal = set()
    for family in families_for(target):
        # What is not built, or what the target lacks, is refused before anything of a candidate is looked at.
        is_refused = unbuilt(family, operation) or target.lacks(operation.needs)
        for candidate in islice(family.candidates(operation, target), 1 if is_refused else None):
            verdict = check(candidate, operation, target)
            if isinstance(verdict, Accepted):
                assert verdict.resources.smem_bytes <= target.smem_bytes_per_block
                legal.add(family.name)
            else:
                assert isinstance(verdict, Rejected)
                assert verdict.message
    if not set(operation.needs) <= set(target.features):
        assert not legal
        return
    fast = FAST.get((target.name, operation.types.scaling))
    expected = PACKED if operation.types.weight else {"simt", *(() if fast is None else (fast,))}
    if operation.types.weight and not operation.types.weight.in_rows and target is H200:
        expected = expected | ({MANY} if operation.grouping is Grouping.GROUPED else set())
    assert legal == expected


def test_no_other_family_builds_groups():
    offering = {x.name for x in (*families_for(H200), *families_for(THOR)) if Grouping.GROUPED in x.groupings}
    assert offering == {"simt", *FAST.values(), *PACKED, MANY}


def test_groups_need_no_workspace_and_kernels_of_them_take_all_shapes():
    for candidate in (SM90, SM100, SCALED, IN_ATOMS):
        assert family_of(candidate).workspace(candidate) == Workspace()
        assert family_of(candidate).multiples(candidate) == (1, 1)
