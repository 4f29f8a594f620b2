import pytest

from aot.core.candidate import Accepted, Alignment, Reason, Workspace, changed
from aot.core.element import ElementType
from aot.core.epilogue import OF_ONE_WEIGHT, Epilogue
from aot.core.grouping import Grouping
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.families._sm90_split_tile import Tile
from aot.families.sm90_cluster_split_k import ELEMENTS, FAMILY
from aot.space.cost_operands import Operands
from aot.space.legality import check
from tests.unit.accepted import named, reason, resources
from tests.unit.twins import BF16

H200 = load_target("h200")
NAME = "sm90_cluster_split_k_128x128_c1x1_direct_cluster2"
TILE = named(NAME)
COMBINATION = "sm90_cluster_split_k splits k over the CTAs of a cluster and stores without TMA"
CLUSTERS = (
    "expected 1x1 in 1, 1x1 in 2, 1x1 in 4, 1x1 in 8, 2x1 in 1, 2x1 in 2, 2x1 in 4, 1x2 in 1, 1x2 in 2, 1x2 in 4, "
    "4x1 in 2, 1x4 in 2"
)


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages", "threads"),
    [
        # 6 stages of 256 rows of 128 bytes; half of 128 by 128 floats from the other CTA; 13 barriers, rounded.
        (NAME, 6 * 256 * 128 + 64 * 128 * 4 + 112, 6, 320),
        # 13 stages of 128 rows; half of 64 by 64 floats; 27 barriers.
        ("sm90_cluster_split_k_64x64_c1x1_direct_cluster2_swap", 13 * 128 * 128 + 32 * 64 * 4 + 224, 13, 192),
        # 4 stages of 272 rows; 5 of 18 groups of 8 columns from each of three CTAs; 9 barriers.
        ("sm90_cluster_split_k_128x144_c1x1_direct_cluster4", 4 * 272 * 128 + 3 * 128 * 40 * 4 + 80, 4, 320),
        # 4 stages of 320 rows; a quarter of 64 by 256 floats from each of three CTAs.
        ("sm90_cluster_split_k_64x256_c1x1_direct_cluster4", 4 * 320 * 128 + 3 * 64 * 64 * 4 + 80, 4, 192),
        # 8 stages of 192 rows; an eighth of 64 by 128 floats from each of seven CTAs.
        ("sm90_cluster_split_k_64x128_c1x1_direct_cluster8", 8 * 192 * 128 + 7 * 64 * 16 * 4 + 144, 8, 192),
        # 8 stages of 192 rows; room for 64 by 128 floats, to be stored; 17 barriers, rounded.
        ("sm90_cluster_split_k_64x128_c2x1_direct", 8 * 192 * 128 + 64 * 128 * 4 + 144, 8, 192),
    ],
)
def test_resources(name, smem_bytes, stages, threads):
    assert resources(name, "h200") == (smem_bytes, stages, threads, 0)


def test_stages_fill_the_shared_memory():
    for candidate in FAMILY.candidates(BF16, H200):
        if isinstance(check(candidate, BF16, H200), Accepted):
            used = FAMILY.resources(candidate, BF16, H200)
            assert used.smem_bytes <= H200.smem_bytes_per_block < used.smem_bytes + used.stage_bytes + 16
            fewer = FAMILY.resources(changed(candidate, num_stages=2), BF16, H200)
            assert (fewer.num_stages, used.smem_bytes - fewer.smem_bytes) == (
                2,
                (used.num_stages - 2) * (used.stage_bytes + 16),
            )


@pytest.mark.parametrize(
    ("columns", "cluster", "shares"),
    [(128, 2, [8, 8]), (144, 4, [5, 5, 5, 3]), (80, 4, [3, 3, 3, 1]), (16, 2, [1, 1]), (48, 4, [2, 2, 2, 0])],
)
def test_each_cta_stores_whole_groups_of_columns(columns, cluster, shares):
    tile = Tile(64, columns, cluster, 1, 2)
    assert [min(tile.share, tile.num_groups - tile.share * x) for x in range(cluster)] == shares
    legal = check(changed(TILE, tile_n=columns, split_k=cluster), BF16, H200)
    assert isinstance(legal, Accepted) == (0 not in shares)


def test_registers_of_all_threads_fit_an_sm():
    """A thread has its sums, what is its own to store, and at least 16 addresses, within its share of 65,536."""
    found = [x for x in FAMILY.candidates(BF16, H200) if isinstance(check(x, BF16, H200), Accepted)]
    assert len(found) == 1666
    for candidate in found:
        threads = FAMILY.resources(candidate, BF16, H200).num_threads
        accumulators = candidate.gemm.tile_m * candidate.gemm.tile_n // (threads - 64)
        assert accumulators + 16 <= min(65536 // threads, 255)


@pytest.mark.parametrize(
    ("change", "why", "message"),
    [
        (
            {"tile_m": 96},
            Reason.TILE,
            "a tile has 64, 128, 192, 256 rows and up to 256 columns in steps of 8, got 96x128",
        ),
        (
            {"tile_n": 100},
            Reason.TILE,
            "a tile has 64, 128, 192, 256 rows and up to 256 columns in steps of 8, got 128x100",
        ),
        (
            {"tile_n": 16, "split_k": 4},
            Reason.TILE,
            "128x16: 2 groups of 8 columns leave one of 4 CTAs none to store",
        ),
        (
            {"tile_m": 256, "tile_n": 136},
            Reason.REGISTERS,
            "256x136 needs 136 accumulator registers a thread; 128 fit",
        ),
        ({"tile_m": 192, "tile_n": 200}, Reason.REGISTERS, "192x200 needs 100 accumulator registers a thread; 96 fit"),
        ({"num_stages": 1}, Reason.COMBINATION, "1 stages, expected 0 for as many as fit or at least 2"),
        ({"split_k": 3}, Reason.CLUSTER, f"1x1 tiles whose k is split in 3 are not a cluster; {CLUSTERS}"),
        ({"split_k": 16}, Reason.CLUSTER, f"1x1 tiles whose k is split in 16 are not a cluster; {CLUSTERS}"),
        ({"split_k_mode": "serial"}, Reason.COMBINATION, COMBINATION),
        (
            {"cluster_m": 2, "split_k": 8},
            Reason.CLUSTER,
            f"2x1 tiles whose k is split in 8 are not a cluster; {CLUSTERS}",
        ),
        (
            {"cluster_m": 2, "tile_n": 136},
            Reason.TILE,
            "128x136: 2 tiles cannot share a load in parts of whole groups of 8",
        ),
        ({"schedule": "pingpong"}, Reason.COMBINATION, COMBINATION),
        ({"use_tma_store": True}, Reason.COMBINATION, COMBINATION),
    ],
)
def test_what_the_kernel_does_not_have_is_refused(change, why, message):
    assert reason(changed(TILE, **change), "h200") == (why, message)


def test_stages_that_do_not_fit_are_refused():
    assert reason(changed(TILE, num_stages=7), "h200")[0] is Reason.SMEM


@pytest.mark.parametrize(
    ("layout", "change"),
    [
        (Layout.KN, {}),
        (Layout.KN, {"tile_n": 96, "swap_ab": True}),  # B has the tile's 128 rows
        (Layout.MK, {"tile_n": 96}),
        (Layout.MN, {"cluster_m": 2, "tile_n": 64}),
        (Layout.MN, {"cluster_n": 2}),
    ],
)
@pytest.mark.parametrize("grouping", [Grouping.DENSE, Grouping.BATCHED])
def test_an_operand_may_be_contiguous_along_its_side_of_the_tile(layout, change, grouping):
    (operation,) = [
        x for x in Operation if (x.dense or x) is Operation.of(ElementType.FLOAT16, layout) and x.grouping is grouping
    ]
    assert isinstance(check(changed(TILE, **change), operation, H200), Accepted)


@pytest.mark.parametrize(
    ("layout", "change", "tile"),
    [
        (Layout.KN, {"tile_n": 96}, "128x96"),
        (Layout.MK, {"tile_n": 96, "swap_ab": True}, "128x96"),
        (Layout.MN, {"tile_n": 80}, "128x80"),
    ],
)
def test_its_side_is_then_a_multiple_of_64(layout, change, tile):
    operation = Operation.of(ElementType.FLOAT16, layout)
    message = f"an operand that is not contiguous along k takes a side of a multiple of 64, got {tile}"
    assert reason(changed(TILE, **change), "h200", operation) == (Reason.LAYOUT, message)


@pytest.mark.slow
def test_multiples_of_64_are_asked_only_of_what_is_not_contiguous_along_k():
    """With A (m, k) and B (k, n) it is the side of n: the tile's rows where operands are exchanged."""
    legal = {x for x in FAMILY.candidates(BF16, H200) if isinstance(check(x, BF16, H200), Accepted)}
    operation = Operation.of(ElementType.BFLOAT16, Layout.KN)
    found = {x for x in FAMILY.candidates(operation, H200) if isinstance(check(x, operation, H200), Accepted)}
    assert found == {x for x in legal if (x.gemm.tile_m if x.gemm.swap_ab else x.gemm.tile_n) % 64 == 0}
    assert {x.gemm.swap_ab for x in found} == {False, True}
    assert found != legal


@pytest.mark.parametrize("epilogue", OF_ONE_WEIGHT)
def test_takes_all_sizes_without_a_workspace(epilogue):
    operation = Operation.of(ElementType.FLOAT16, Layout.KK, epilogue)
    assert isinstance(check(TILE, operation, H200), Accepted)
    assert FAMILY.resources(TILE, operation, H200) == FAMILY.resources(TILE, BF16, H200)
    assert (FAMILY.multiples(TILE), FAMILY.workspace(TILE)) == ((1, 1), Workspace())


OF_A_RESIDUAL = 1038, {192: 96, 320: 88, 448: 64}, {192: 80, 320: 64, 448: 40}
OF_AN_ACTIVATION = 1174, {192: 112, 320: 88, 448: 64}, {192: 112, 320: 80, 448: 64}
OF_A_GATE = 1426, {192: 128, 320: 104, 448: 80}, {192: 128, 320: 104, 448: 80}
OF_SEVERAL_WEIGHTS = 1074, {192: 128, 320: 128, 448: 96}, {192: 128, 320: 128, 448: 96}


def limits_of(epilogue):
    """Return the number of legal kernels, and by threads most sums that are multiplied, and that a thread finishes."""
    if epilogue is Epilogue.RESIDUAL:
        return OF_A_RESIDUAL
    if epilogue is Epilogue.MANY:
        return OF_SEVERAL_WEIGHTS
    return OF_A_GATE if epilogue in (Epilogue.SWIGLU, Epilogue.GEGLU) else OF_AN_ACTIVATION


@pytest.mark.slow
@pytest.mark.parametrize("epilogue", [x for x in Epilogue if x not in (Epilogue.NONE, Epilogue.BIAS)])
def test_an_epilogue_takes_registers_of_the_sums(epilogue):
    """Beside a thread's sums lie a residual, a bias and addresses; beside the plain product's, addresses alone."""
    operation = Operation.of(ElementType.BFLOAT16, Layout.KK, epilogue)
    found = [x for x in FAMILY.candidates(operation, H200) if isinstance(check(x, operation, H200), Accepted)]
    count, most, own = limits_of(epilogue)
    assert len(found) == count
    for candidate in found:
        threads = FAMILY.resources(candidate, operation, H200).num_threads
        sums = candidate.gemm.tile_m * candidate.gemm.tile_n // (threads - 64)
        assert sums <= most[threads]
        assert sums / candidate.gemm.split_k <= own[threads]


ALONE = {"split_k": 1, "split_k_mode": "none"}


@pytest.mark.parametrize(
    ("operation", "within", "past"),
    [
        (Operation.BF16_KK_RESIDUAL, (128, 128), (128, 144)),
        (Operation.BF16_KK_GELU, (128, 160), (128, 176)),
        (Operation.BF16_KK_SILU, (192, 128), (192, 144)),
        (Operation.BF16_KK_SWIGLU, (128, 208), (128, 224)),
        (Operation.BF16_KK_GEGLU, (192, 160), (192, 176)),
        (Operation.E4M3_BF16_KK, (128, 160), (128, 176)),
        (Operation.E4M3_BF16_KK, (192, 112), (192, 128)),
        (Operation.E4M3_BF16_KK_RESIDUAL, (64, 160), (64, 176)),
        (Operation.BF16_KK_MANY, (128, 256), None),
    ],
    ids=lambda x: x.tag if isinstance(x, Operation) else str(x),
)
def test_how_wide_a_tile_may_be_that_one_cta_finishes(operation, within, past):
    sizes = [dict(zip(("tile_m", "tile_n"), x, strict=True)) for x in (within, past) if x]
    found = [check(changed(TILE, **x, **ALONE), operation, H200) for x in sizes]
    assert isinstance(found[0], Accepted)
    assert past is None or found[1].reason is Reason.REGISTERS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tile_m": 256, "tile_n": 112}, "256x112 needs 112 accumulator registers a thread; 88 fit"),
        ({"tile_m": 192}, None),
        ({"tile_m": 192, "tile_n": 144}, "192x144 needs 72 accumulator registers a thread; 64 fit"),
        (
            {"tile_n": 144, "split_k": 1, "split_k_mode": "none"},
            "128x144 leaves a thread 72 sums for the epilogue; 64 fit; split k over more CTAs",
        ),
    ],
)
def test_tiles_of_too_many_sums_for_an_epilogue_are_refused(change, message):
    candidate = changed(TILE, **change)
    assert isinstance(check(candidate, Operation.BF16_KK_BIAS, H200), Accepted)
    if message is None:
        assert isinstance(check(candidate, Operation.BF16_KK_RESIDUAL, H200), Accepted)
    else:
        assert reason(candidate, "h200", Operation.BF16_KK_RESIDUAL) == (Reason.REGISTERS, message)


@pytest.mark.parametrize(
    ("schedule", "expected"), [("", Alignment(16, 16)), (ELEMENTS, Alignment(16, 1, only_unaligned=True))]
)
def test_kernels_that_store_elements_take_any_rows_of_d(schedule, expected):
    candidate = changed(TILE, schedule=schedule)
    assert isinstance(check(candidate, BF16, H200), Accepted)
    assert FAMILY.alignment(candidate) == expected


def test_kernels_that_store_elements_multiply_16_bits():
    text = "kernels of the schedule elements take operands of 16 bits, got e4m3_bf16"
    assert reason(changed(TILE, schedule=ELEMENTS), "h200", Operation.E4M3_BF16_KK) == (Reason.TYPES, text)


def test_kernels_that_store_elements_multiply_by_one_weight():
    text = "kernels of the schedule elements multiply by one weight"
    assert reason(changed(TILE, schedule=ELEMENTS), "h200", Operation.BF16_KK_MANY) == (Reason.COMBINATION, text)


FP8 = [x for x in Operation if x.types in FAMILY.types and x.types.a.bits == 8 and x.grouping is Grouping.DENSE]


def test_takes_every_operation_of_fp8_with_vectors():
    assert len(FP8) == 14
    assert all(isinstance(check(TILE, x, H200), Accepted) for x in FP8)


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages"),
    [
        # As of 16 bits, with factors of 128 rows and of half of 128 columns, and the bias of the columns or the rows.
        (NAME, 6 * 256 * 128 + 64 * 128 * 4 + (128 + 2 * 64) * 4 + 112, 6),
        (f"{NAME}_swap", 6 * 256 * 128 + 64 * 128 * 4 + (2 * 128 + 64) * 4 + 112, 6),
        # 10 stages of 160 rows; 3 of 12 groups of 8 columns from each of three CTAs; 21 barriers, rounded.
        (
            "sm90_cluster_split_k_64x96_c1x1_direct_cluster4",
            10 * 160 * 128 + 3 * 64 * 24 * 4 + (64 + 2 * 24) * 4 + 176,
            10,
        ),
    ],
)
def test_factors_take_shared_memory(name, smem_bytes, stages):
    assert resources(name, "h200", Operation.E4M3_BF16_KK)[:2] == (smem_bytes, stages)


def test_promoted_sums_take_twice_the_registers():
    legal = {}
    for operation in (Operation.E4M3_BF16_KK, Operation.E4M3_BF16_FAST_KK):
        found = [x for x in FAMILY.candidates(operation, H200) if isinstance(check(x, operation, H200), Accepted)]
        legal[operation] = set(found)
    promoted, fast = legal.values()
    assert (len(promoted), len(fast)) == (680, 714)
    assert promoted < fast
    most = {192: 96, 320: 80, 448: 56}
    for candidate in fast:
        threads = FAMILY.resources(candidate, Operation.E4M3_BF16_KK, H200).num_threads
        sums = candidate.gemm.tile_m * candidate.gemm.tile_n // (threads - 64)
        assert (candidate in promoted) == (sums <= most[threads])


def test_a_tile_of_too_many_promoted_sums_is_refused():
    message = "128x176 needs 176 registers a thread, twice its sums since they are promoted every 128 of k; 160 fit"
    candidate = changed(TILE, tile_n=176, split_k=4)
    assert reason(candidate, "h200", Operation.E4M3_BF16_KK) == (Reason.REGISTERS, message)
    assert isinstance(check(candidate, Operation.E4M3_BF16_FAST_KK, H200), Accepted)


@pytest.mark.parametrize(
    ("change", "held", "fit"),
    [
        ({"tile_n": 104, "split_k": 1}, None, None),
        ({"tile_n": 112, "split_k": 1}, 168, 160),
        ({"tile_n": 128, "split_k": 2}, None, None),
        ({"tile_n": 144, "split_k": 4}, 164, 160),
        ({"tile_m": 64, "tile_n": 192, "split_k": 2}, None, None),
        ({"tile_m": 192, "tile_n": 80, "split_k": 1}, 120, 112),
    ],
)
def test_a_residual_leaves_promoted_sums_fewer_registers(change, held, fit):
    mode = "cluster" if change["split_k"] > 1 else "none"
    candidate = changed(TILE, **change, split_k_mode=mode)
    assert isinstance(check(candidate, Operation.E4M3_BF16_KK_GELU, H200), Accepted)
    if held is None:
        assert isinstance(check(candidate, Operation.E4M3_BF16_KK_RESIDUAL, H200), Accepted)
        return
    message = (
        f"{candidate.gemm.tile_m}x{candidate.gemm.tile_n} needs {held} registers a thread for promoted sums and "
        f"those that it finishes; {fit} fit beside a residual; take a smaller tile, or split k over more CTAs"
    )
    assert reason(candidate, "h200", Operation.E4M3_BF16_KK_RESIDUAL) == (Reason.REGISTERS, message)


def test_a_gate_counts_rows_of_both_halves():
    """64 rows of B are 32 of the 4096 columns of D, so that there are 3 by 128 tiles."""
    candidate = changed(TILE, tile_m=64, tile_n=64)
    (count,) = Operands.of([candidate], [Problem(Operation.BF16_KK_SWIGLU, 192, 4096, 4096)]).num_ctas().ravel()
    assert count == 3 * 128
