"""The family for operands of any alignment: its space, its limits, what it asks for."""

import pytest

from aot.core.candidate import Accepted, Alignment, KernelKey, Reason, Rejected, changed, gemm_candidate
from aot.core.epilogue import OF_ONE_WEIGHT
from aot.core.grouping import Grouping
from aot.core.knobs import SplitK
from aot.core.operation import Layout, Operation
from aot.core.target import load_target
from aot.families._mma_sync_tile import MMA_K, MMA_M, MMA_N, PAD, SUM_PAD, WARPS, Tile
from aot.families.mma_sync import FAMILY, MAX_SPLIT_TILE, PLAIN_COLUMNS, tile_of
from aot.space.enumeration import legal, takes_loads, unaligned
from aot.space.legality import check
from tests.compiling import compile_kernels

H200 = load_target("h200")
THOR = load_target("thor")
A100 = load_target("a100")
TILE = gemm_candidate("mma_sync", 64, 64, schedule="a8k2", use_tma_store=False)

OPERATIONS = [x for x in Operation if x.types in FAMILY.types and x.grouping in FAMILY.groupings and not x.has_parts]


def test_takes_every_layout_and_epilogue_of_16_bits_and_batches():
    assert {x.layout for x in OPERATIONS} == set(Layout)
    batched = [x for x in Operation if x.grouping is Grouping.BATCHED]
    assert [x for x in OPERATIONS if x.grouping is not Grouping.DENSE] == batched
    assert {x.epilogue for x in OPERATIONS} == set(OF_ONE_WEIGHT)
    assert all(isinstance(check(TILE, x, target), Accepted) for x in OPERATIONS for target in (H200, THOR))


@pytest.mark.parametrize(("target", "splits"), [("h200", {1, 2, 4, 8}), ("thor", {1, 2})])
def test_every_candidate_is_legal_and_fits_the_instructions(target, splits):
    device = load_target(target)
    found = list(FAMILY.candidates(Operation.BF16_KK, device))
    assert {x.gemm.split_k for x in found} == splits
    assert {x.gemm.split_k for x in found if x.gemm.tile_m * x.gemm.tile_n > MAX_SPLIT_TILE} == {1}
    assert len(found) == sum(
        (5 if m == 16 and target == "h200" else 4)
        * len({x[2] for x in warps})
        * (len(splits) if m * n <= MAX_SPLIT_TILE else 1)
        for (m, n), warps in WARPS.items()
        if target == "h200" or n in PLAIN_COLUMNS
    )
    for candidate in found:
        assert isinstance(check(candidate, Operation.BF16_KK, device), Accepted), candidate.name
        tile = tile_of(candidate, Operation.BF16_KK)
        assert tile.warp_rows % MMA_M == tile.warp_columns % (2 * MMA_N) == tile.block_k % (MMA_K * tile.warps[2]) == 0
        assert tile.num_threads <= 1024
        assert tile.num_accumulators <= 128
        assert tile.num_ring >= 2
        assert tile.num_stages == tile.num_ring + 2 * (tile.loads == 2)


@pytest.mark.slow
def test_of_a_chip_without_tma_aligned_problems_take_those_of_16_bytes():
    found = legal(Operation.BF16_KK, A100)
    assert {x.family for x in found} == {"mma_sync"}
    assert {FAMILY.alignment(x).loads for x in found} == {16}
    assert len(found) == sum(len({x[2] for x in warps}) for (_, n), warps in WARPS.items() if n in PLAIN_COLUMNS)
    assert "mma_sync" not in {x.family for x in legal(Operation.BF16_KK, H200)}


def test_an_operand_is_loaded_by_its_own_rows_where_those_of_both_need_not_begin_at_the_same_multiples():
    def own(operation):
        return [x for x in FAMILY.candidates(operation, H200) if x.gemm.schedule.startswith("o")]

    assert own(Operation.BF16_KK) == own(Operation.BF16_KK_SWIGLU) == []
    for operation in (Operation.BF16_KN, Operation.FP16_MK_BATCHED, Operation.BF16_MN):
        assert {FAMILY.alignment(x).loads for x in own(operation)} == {4, 2}
        assert own(operation)
        for candidate in own(operation):
            assert isinstance(check(candidate, operation, H200), Accepted), candidate.name
            tile = tile_of(candidate, operation)
            assert tile.loads_own
            assert 1 <= tile.num_ahead == tile.num_ring - 1  # what is not moved stays in the ring till it is multiplied
            assert tile.num_ring >= 2 + tile.is_shifted


@pytest.mark.slow
def test_waits_for_the_kernel_in_front_where_the_chip_can_start_it_early():
    key = KernelKey(Operation.BF16_KK, TILE)
    (early,), (plain,) = compile_kernels([key], H200), compile_kernels([key], A100)
    assert early.ptx_path.read_text().count("griddepcontrol") == 2
    assert "griddepcontrol" not in plain.ptx_path.read_text()
    assert ".target sm_80" in plain.ptx_path.read_text()


@pytest.mark.parametrize(("schedule", "loads"), [("a16k1", 16), ("a8k2", 8), ("a4k1", 4), ("a2k2", 2)])
def test_asks_for_what_its_loads_take_and_nothing_of_d(schedule, loads):
    candidate = changed(TILE, schedule=schedule)
    assert FAMILY.alignment(candidate) == Alignment(loads, 1, only_unaligned=True)
    assert [takes_loads(candidate, x) for x in (2, 4, 8, 16)] == [x >= loads for x in (2, 4, 8, 16)]


def test_sections_are_searched_with_loads_as_wide_as_they_give_and_with_shifted_ones():
    of_8 = {FAMILY.alignment(x).loads for x in unaligned(Operation.BF16_KK, THOR, 8) if x.family == FAMILY.name}
    assert of_8 == {8, 2}


@pytest.mark.parametrize(
    ("change", "why", "message"),
    [
        ({"schedule": "a3k1"}, Reason.COMBINATION, "bytes of a load, warps along k; got 'a3k1'"),
        ({"schedule": ""}, Reason.COMBINATION, "got ''"),
        ({"schedule": "o16k2"}, Reason.COMBINATION, "got 'o16k2'"),
        ({"schedule": "o4k2"}, Reason.COMBINATION, "o4k2 is for other layouts than kk"),
        ({"schedule": "a8k8"}, Reason.TILE, "64x64 with 8 warps along k is no tile; expected one of 16x16 k8/4"),
        ({"schedule": "r4k2"}, Reason.COMBINATION, "got 'r4k2'"),
        ({"schedule": "r2k2"}, Reason.COMBINATION, "an A that is contiguous along k: take a2k2"),
        ({"tile_n": 48}, Reason.TILE, "64x48 with 2 warps along k is no tile"),
        ({"swap_ab": True}, Reason.COMBINATION, "computes a tile in a CTA"),
        ({"cluster_m": 2}, Reason.COMBINATION, "computes a tile in a CTA"),
        ({"split_k": 2}, Reason.COMBINATION, "in 2, 4 or 8 of a cluster that share k"),
        ({"split_k": 3, "split_k_mode": SplitK.CLUSTER}, Reason.COMBINATION, "in 2, 4 or 8 of a cluster"),
        ({"num_stages": 3}, Reason.COMBINATION, "with as many stages as pay"),
    ],
)
def test_other_candidates_are_refused_by_name(change, why, message):
    found = FAMILY.check(changed(TILE, **change), Operation.BF16_KK, H200)
    assert isinstance(found, Rejected)
    assert found.reason is why
    assert message in found.message


def test_clusters_that_a_target_is_not_known_to_hold_are_refused():
    four = changed(TILE, split_k=4, split_k_mode=SplitK.CLUSTER)
    assert FAMILY.check(four, Operation.BF16_KK, H200) is None
    found = FAMILY.check(four, Operation.BF16_KK, THOR)
    assert found == Rejected(
        Reason.CLUSTER, "4 CTAs share k; thor has no clusters of as many that are known to fill it"
    )


@pytest.mark.parametrize("block", [32, 64, 128, 256])
@pytest.mark.parametrize("extent", [16, 32, 64, 80, 96, 128, 256])
def test_rows_of_a_stage_lie_in_different_banks(block, extent):
    """Eight rows that `ldmatrix` reads at once are 16 bytes each; banks repeat every 128."""
    for row in (block + PAD, extent + PAD):
        assert sorted(i * row * 2 // 16 % 8 for i in range(8)) == list(range(8))


def test_the_sums_lie_over_the_stages():
    tile = Tile(128, 128, (2, 4, 1), 16, a_is_k_major=True, b_is_k_major=False)
    assert tile.stage_bytes == 2 * (128 * (32 + PAD) + 32 * (128 + PAD))
    assert tile.smem_bytes == max(tile.num_stages * tile.stage_bytes, 4 * 128 * (128 + SUM_PAD))
    assert tile.num_blocks_per_sm == 2


def test_pairs_of_sums_that_half_a_warp_writes_at_once_lie_in_different_banks():
    """A lane's pair is of row lane / 4 and columns 2 * (lane % 4); a bank is 4 bytes, a turn 16 lanes."""
    for columns in {n for _, n in WARPS}:
        banks = [lane // 4 * (columns + SUM_PAD) + lane % 4 * 2 + e for lane in range(16) for e in range(2)]
        assert sorted(bank % 32 for bank in banks) == list(range(32))


def test_warps_with_few_products_a_step_have_two_steps_between_barriers():
    few = Tile(64, 64, (2, 2, 2), 16, a_is_k_major=True, b_is_k_major=True)
    many = Tile(128, 128, (2, 4, 1), 16, a_is_k_major=True, b_is_k_major=True)
    assert (few.block_k, many.block_k) == (64, 32)
