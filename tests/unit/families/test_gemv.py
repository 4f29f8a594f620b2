"""The family of one row of A by a matrix of any alignment: its space, its limits, what it asks for."""

import pytest

from aot.core.candidate import Accepted, Alignment, KernelKey, Reason, Rejected, changed, gemm_candidate
from aot.core.epilogue import Epilogue
from aot.core.grouping import Grouping
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.families import families_of
from aot.families._gemv_tile import IN_FLIGHT, PIECE, WARP
from aot.families.gemv import FAMILY, LANES, tile_of
from aot.space.cost import estimate
from aot.space.enumeration import legal, takes_loads, unaligned
from aot.space.legality import check
from tests.compiling import compile_kernels

H200 = load_target("h200")
ROWS = gemm_candidate("gemv", 1, 4, schedule="r4k4", use_tma_store=False)
COLUMNS = gemm_candidate("gemv", 1, 56, schedule="k8", use_tma_store=False)
OPERATIONS = [x for x in Operation if x.types in FAMILY.types and x.grouping is Grouping.DENSE and not x.has_parts]


def candidate_of(operation):
    return ROWS if operation.b.is_k_major else COLUMNS


def test_takes_every_layout_and_every_epilogue_but_gates():
    able = [x for x in OPERATIONS if x.gate is None]
    assert {x.layout for x in able} == set(Layout)
    assert {x.epilogue for x in able} == set(Epilogue) - {Epilogue.SWIGLU, Epilogue.GEGLU, Epilogue.MANY}
    for operation in OPERATIONS:
        verdict = check(candidate_of(operation), operation, H200)
        assert isinstance(verdict, Accepted if operation.gate is None else Rejected), operation.tag


@pytest.mark.parametrize("target", ["thor", "a100", "gb10", "orin"])
def test_is_for_chips_that_it_was_timed_on(target):
    """Others can have it: a cost model that was never held against such kernels would choose them."""
    assert "gemv" not in {x.name for x in families_of(Operation.BF16_KK, load_target(target))}


@pytest.mark.parametrize("operation", [Operation.BF16_KK, Operation.FP16_MK])
def test_rows_of_b_are_shared_by_lanes_or_by_whole_warps(operation):
    found = list(FAMILY.candidates(operation, H200))
    tiles = [tile_of(x, operation) for x in found]
    assert len(found) == len(set(found)) == 21
    for tile in tiles:
        assert tile.along_n * tile.groups * tile.at_once == tile.columns
        assert tile.num_threads == WARP * max(4, tile.along_k)
        assert tile.turns_at_once * tile.at_once == IN_FLIGHT
        assert tile.lanes == WARP or tile.along_k == 1
        assert tile.smem_bytes == (4 * tile.along_k * tile.columns if tile.along_k > 1 else 0)


@pytest.mark.parametrize("operation", [Operation.BF16_KN, Operation.FP16_MN])
def test_columns_of_b_are_a_lane_less_than_what_a_warp_loads(operation):
    found = list(FAMILY.candidates(operation, H200))
    assert {x.gemm.split_k for x in found} == {1, 2, 4, 8}
    assert {tile_of(x, operation).lanes for x in found} == set(LANES)
    for candidate in found:
        tile = tile_of(candidate, operation)
        for shift in range(PIECE):  # the columns that a CTA stores are in the pieces of a row that begins anywhere
            assert 0 <= shift <= tile.columns - 1 + shift < tile.lanes * PIECE
        assert tile.row_floats >= (tile.lanes + 1) * PIECE
        assert tile.groups * tile.lanes == WARP
        assert tile.num_threads >= tile.columns


@pytest.mark.parametrize("operation", [Operation.BF16_KK, Operation.BF16_KN])
def test_every_candidate_is_legal(operation):
    for candidate in FAMILY.candidates(operation, H200):
        assert isinstance(check(candidate, operation, H200), Accepted), candidate.name


def test_takes_operands_of_any_alignment_and_leaves_aligned_ones_to_others():
    assert FAMILY.alignment(ROWS) == Alignment(2, 1, only_unaligned=True)
    assert all(takes_loads(ROWS, x) for x in (2, 4, 8, 16))
    assert FAMILY.multiples(ROWS) == (1, 1)
    assert not FAMILY.workspace(ROWS).is_needed
    assert "gemv" not in {x.family for x in legal(Operation.BF16_KK, H200)}
    for loads in (2, 4, 8, 16):
        assert "gemv" in {x.family for x in unaligned(Operation.BF16_KK, H200, loads)}


@pytest.mark.parametrize(
    ("operation", "candidate"),
    [
        (Operation.BF16_KK, COLUMNS),
        (Operation.BF16_KN, ROWS),
        (Operation.BF16_KK, changed(ROWS, schedule="r3k4")),
        (Operation.BF16_KK, changed(ROWS, schedule="r4k2l8")),
        (Operation.BF16_KK, changed(ROWS, schedule="")),
        (Operation.BF16_KK, changed(ROWS, tile_n=8)),
        (Operation.BF16_KK, changed(ROWS, tile_m=2)),
        (Operation.BF16_KN, changed(COLUMNS, tile_n=64)),
        (Operation.BF16_KN, changed(COLUMNS, schedule="k4")),
        (Operation.BF16_KN, changed(COLUMNS, swap_ab=True)),
    ],
)
def test_other_candidates_are_refused_by_name(operation, candidate):
    verdict = check(candidate, operation, H200)
    assert isinstance(verdict, Rejected)
    assert verdict.reason in (Reason.COMBINATION, Reason.TILE)
    assert verdict.message.endswith(f"got {candidate.name}")


def test_a_tile_that_is_none_is_not_made():
    with pytest.raises(ValueError, match="expected a legal candidate of gemv, got"):
        FAMILY.entry(changed(ROWS, schedule="r3k4"), Operation.BF16_KK, H200)


def test_what_is_under_way_counts_in_the_cost_model():
    """Eight loads a thread: by one, as of other kernels without stages, it would be told three times as slow."""
    problem = Problem(Operation.BF16_KK, 1, 4097, 4097)
    vector, tiles = estimate(
        [ROWS, gemm_candidate("mma_sync", 16, 16, schedule="a2k8", use_tma_store=False)], [problem], H200
    ).total_us[0]
    assert vector < 1.5 * tiles


@pytest.mark.slow
def test_waits_for_the_kernel_in_front_and_loads_by_16_bytes():
    (made,) = compile_kernels([KernelKey(Operation.BF16_KK, ROWS)], H200)
    ptx = made.ptx_path.read_text()
    assert ptx.count("griddepcontrol") == 2
    assert ptx.index("griddepcontrol.wait") < min(ptx.index("griddepcontrol.launch"), ptx.index("ld.global"))
    assert ptx.count("ld.global.v4.b32") == IN_FLIGHT
