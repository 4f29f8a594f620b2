from dataclasses import replace

import pytest

from aot.compile.workplace import Workplace
from aot.core.candidate import Accepted, KernelKey, Reason, Rejected, changed
from aot.core.element import ElementType
from aot.core.operation import Layout, Operation
from aot.core.target import load_target
from aot.emulate.build import emulated_target
from aot.emulate.execute import ExecutionOptions, Executor
from aot.emulate.kernels import compile_emulated
from aot.emulate.schedule import Mode, Schedule
from aot.families import families
from aot.families.sm90_partial_tile import FAMILY as BOUNDED
from aot.families.sm90_prefetch_b import FAMILY
from aot.space.legality import check
from tests.unit.accepted import named, resources
from tests.unit.twins import BF16

H200 = load_target("h200")
TILE = named("sm90_prefetch_b_128x128_c1x1_pingpong")


def bounded(candidate):
    return replace(candidate, family=BOUNDED.name)


def test_the_space_is_that_of_the_bounded_family():
    assert list(map(bounded, FAMILY.candidates(BF16, H200))) == list(BOUNDED.candidates(BF16, H200))


@pytest.mark.walk
@pytest.mark.slow
@pytest.mark.parametrize("layout", [Layout.KN])
def test_limits_and_resources_are_those_of_the_bounded_family(layout):
    operation = Operation.of(ElementType.FLOAT16, layout)
    for candidate in FAMILY.candidates(operation, H200):
        verdict = check(candidate, operation, H200)
        if isinstance(verdict, Rejected):
            verdict = replace(verdict, message=verdict.message.replace(FAMILY.name, BOUNDED.name))
        assert verdict == check(bounded(candidate), operation, H200)


def test_matrices_of_8_columns_are_stored_as_16_bits():
    tile = named("sm90_prefetch_b_64x8_c1x1_pingpong_swap")
    assert isinstance(check(tile, Operation.E4M3_BF16_KK, H200), Accepted)
    assert check(tile, Operation.E4M3_FP32_KK, H200) == Rejected(
        Reason.TILE,
        "a tile of 8 columns is stored by matrices of 16-bit elements, got a D of float32; take a tile_n of 16 or more",
    )


def test_gates_are_left_to_quacks_kernel():
    verdict = check(TILE, Operation.FP16_KK_SWIGLU, H200)
    assert isinstance(verdict, Rejected)
    assert verdict.reason is Reason.EPILOGUE


@pytest.mark.parametrize("operation", [Operation.BF16_KK_RESIDUAL, Operation.E4M3_BF16_KK_RESIDUAL])
def test_a_residual_goes_with_tiles_of_equal_pieces(operation):
    assert isinstance(check(named("sm90_prefetch_b_128x64_c1x1_pingpong"), operation, H200), Accepted)
    for ragged, columns in (("64x72_c1x1_pingpong", 72), ("192x144_c1x1_cooperative", 144)):
        assert check(named(f"sm90_prefetch_b_{ragged}"), operation, H200) == Rejected(
            Reason.TILE,
            f"a residual is loaded in the pieces of a tile, which overlap where tile_n is {columns}; take a tile_n in "
            "steps of 16, of 32 where warpgroups share the columns",
        )


@pytest.mark.parametrize(
    ("operation", "name", "smem_bytes", "stages"),
    [
        (Operation.E4M3_BF16_KK, "64x8_c1x1_pingpong_swap", 230400, 24),
        (Operation.E4M3_BF16_KK, "64x72_c1x1_pingpong", 230400, 12),
        (Operation.E4M3_E4M3_KK, "64x88_c1x1_cooperative_swap", 221184, 11),
        (Operation.E4M3_BF16_KK, "128x160_c2x1_cooperative", 227328, 5),
        (Operation.E4M3_FP32_KK, "256x96_c1x1_cooperative", 215040, 4),
        (Operation.E4M3_BF16_KK_RESIDUAL, "128x160_c1x1_cooperative", 223232, 4),
        (Operation.BF16_KK_GELU, "128x104_c1x1_cooperative", 225280, 7),
        (Operation.E4M3_BF16_FAST_KK, "192x200_c1x1_cooperative3", 227328, 4),
        (Operation.BF16_KK_RESIDUAL, "64x128_c2x1_pingpong", 230400, 8),
        (Operation.BF16_KK_RESIDUAL, "256x112_c4x1_cooperative", 230400, 4),
        (Operation.E4M3_BF16_KK_RESIDUAL, "128x96_c1x1_pingpong_swap", 227328, 7),
    ],
)
def test_resources_with_an_epilogue_are_those_of_the_compiled_kernels(operation, name, smem_bytes, stages):
    # Source: what nvidia-cutlass-dsl 4.8.1 gave, 2026-11-22, and of what is stored by whole tiles 2026-11-30.
    assert resources(f"sm90_prefetch_b_{name}", "h200", operation)[:2] == (smem_bytes, stages)


@pytest.mark.parametrize(
    ("operation", "name", "is_whole"),
    [
        (Operation.E4M3_BF16_KK, "128x208_c1x1_cooperative", True),
        (Operation.E4M3_BF16_KK_RESIDUAL, "128x160_c1x1_cooperative", True),
        (Operation.E4M3_FP32_KK, "128x208_c1x1_cooperative", False),
        (Operation.E4M3_BF16_KK, "128x96_c1x1_pingpong", False),
        (Operation.E4M3_BF16_KK, "128x128_c1x1_cooperative_serial2", False),
        (Operation.E4M3_BF16_FAST_KK, "128x128_c1x1_cooperative", False),
        (Operation.BF16_KK_GELU, "128x128_c1x1_cooperative", False),
    ],
)
def test_promoted_sums_are_stored_by_whole_tiles_that_leave_four_stages(operation, name, is_whole):
    assert FAMILY.stores_whole_tiles(named(f"sm90_prefetch_b_{name}"), operation, H200) is is_whole


OVERLAPPED = (
    KernelKey(Operation.E4M3_BF16_KK, named("sm90_prefetch_b_128x40_c2x1_cooperative")),
    KernelKey(Operation.E4M3_BF16_KK_RESIDUAL, named("sm90_prefetch_b_128x16_c1x1_cooperative_swap")),
    KernelKey(Operation.E4M3_FP32_KK, named("sm90_prefetch_b_192x32_c1x2_cooperative")),
    KernelKey(Operation.E4M3_BF16_BLOCK_KK, named("sm90_block_scale_64x128_c1x1_cooperative")),
)
WIDE = (
    KernelKey(Operation.E4M3_E4M3_KK, named("sm90_prefetch_b_64x208_c1x1_cooperative")),
    KernelKey(Operation.E4M3_BF16_KK_RESIDUAL, named("sm90_prefetch_b_128x160_c2x1_cooperative")),
    KernelKey(Operation.E4M3_FP32_KK, named("sm90_prefetch_b_128x208_c1x1_cooperative")),
)
"""Tiles of more pieces than barriers, with 8 bits of D, with a residual, and too wide to be stored whole."""
LARGE = (
    KernelKey(BF16, named("sm90_prefetch_b_128x272_c2x1_cooperative_swap")),
    KernelKey(Operation.BF16_KK_RESIDUAL, named("sm90_prefetch_b_128x352_c1x1_cooperative")),
    KernelKey(Operation.BF16_KK_GELU, named("sm90_prefetch_b_384x88_c1x1_cooperative")),
    KernelKey(BF16, named("sm90_prefetch_b_128x304_c4x1_cooperative")),
    KernelKey(BF16, named("sm90_partial_tile_384x72_c1x4_cooperative")),
    KernelKey(Operation.E4M3_BF16_KK, named("sm90_prefetch_b_384x64_c1x2_cooperative_swap")),
)
"""Tiles of more columns than an instruction takes, and of more rows than quack's kernel has."""
SCHEDULES = tuple(Schedule(mode, 1) for mode in (Mode.RANDOM, Mode.LAZY, Mode.HOLD_PRODUCTS, Mode.HOLD_STORES))


@pytest.fixture(scope="module")
def overlapped(tmp_path_factory):
    few = emulated_target(H200, 2)
    folder = tmp_path_factory.mktemp("overlapped")
    return compile_emulated((*OVERLAPPED, *WIDE), few, folder, Workplace(progress=False))


@pytest.mark.parametrize("problem", [(450, 80, 400), (450, 80, 64)])
@pytest.mark.parametrize("key", OVERLAPPED, ids=lambda x: x.name)
def test_a_tile_is_stored_while_the_next_is_begun(overlapped, key, problem):
    """A CTA of two takes several tiles, of several stages and of one, which is all that is begun early."""
    result = Executor(overlapped, ExecutionOptions(SCHEDULES, problem)).execute(key.name)
    assert [(x.case, x.fault, x.findings) for x in result.cases if not x.is_right] == []
    assert result.is_right


@pytest.mark.slow
@pytest.mark.parametrize("key", WIDE, ids=lambda x: x.name)
def test_a_wide_tile_is_stored_while_the_next_is_begun(overlapped, key):
    result = Executor(overlapped, ExecutionOptions((SCHEDULES[0], SCHEDULES[-1]), (300, 330, 200))).execute(key.name)
    assert [(x.case, x.fault, x.findings) for x in result.cases if not x.is_right] == []
    assert result.is_right


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """For four SMs, of which a cluster of four needs all."""
    four = emulated_target(H200, 4)
    return compile_emulated(LARGE, four, tmp_path_factory.mktemp("large"), Workplace(progress=False))


@pytest.mark.slow
@pytest.mark.parametrize("problem", [(600, 700, 200), (401, 392, 64)])
@pytest.mark.parametrize("key", LARGE, ids=lambda x: x.name)
def test_a_large_tile_is_computed(large, key, problem):
    """Operands whose last tile no box holds are loaded by the box of a whole one."""
    result = Executor(large, ExecutionOptions((SCHEDULES[0],), problem)).execute(key.name)
    assert [(x.case, x.fault, x.findings) for x in result.cases if not x.is_right] == []
    assert result.is_right


@pytest.mark.parametrize("key", [*OVERLAPPED, *WIDE], ids=lambda x: x.name)
def test_these_kernels_overlap_tiles(key):
    """A kernel that does not is as right, so that its results do not show it."""
    gemm = families()[key.candidate.family].configure(key.candidate, key.operation, H200)
    assert gemm.overlaps_tiles
    assert (gemm.chosen_stages is not None) is (key != WIDE[-1])


def test_a_product_is_stored_behind_the_launch_in_front(tmp_path):
    """The warps that store know the end of that launch by A alone, which is loaded behind it; B may be read before."""
    key = KernelKey(BF16, named("sm90_prefetch_b_128x32_c2x1_cooperative"))
    kernels = compile_emulated([key], emulated_target(H200, None), tmp_path, Workplace(progress=False))
    options = ExecutionOptions((Schedule(Mode.BEHIND_ITSELF, 1),), max_instructions=20_000)
    result = Executor(kernels, options).execute(key.name)
    assert [(x.case, x.fault, x.findings) for x in result.cases if not x.is_right] == []
    assert result.is_right


def test_workspace_and_multiples_are_those_of_the_bounded_family():
    split = changed(TILE, cluster_m=2, swap_ab=True, split_k=4, split_k_mode="separate")
    assert FAMILY.workspace(split) == BOUNDED.workspace(bounded(split))
    assert FAMILY.multiples(split) == BOUNDED.multiples(bounded(split)) == (1, 4)


def test_nine_families_prefetch_b():
    found = [name for name, family in families().items() if family.kind == "gemm" and family.prefetches_b]
    of_hopper = ["sm90_cluster_split_k", "sm90_grouped_weight_only", "sm90_one_tile", FAMILY.name]
    of_hopper += ["sm90_shifted", "sm90_weight_only"]
    ours = ["cluster_split_k", "sm100_weight_only", *of_hopper, "weight_only"]
    assert found == ours
