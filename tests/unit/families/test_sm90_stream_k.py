"""The split tail: which candidates there are, and what they take."""

from dataclasses import replace

import pytest

from aot.core.candidate import Reason, Workspace, changed, gemm_candidate
from aot.core.target import load_target
from aot.families._sm90_tiles import large_shapes
from aot.families.sm90_partial_tile import FAMILY as PARTIAL_TILE
from aot.families.sm90_stream_k import FAMILY, MAX_ACCUMULATORS, NUM_SMS
from tests.unit.accepted import named, reason, resources
from tests.unit.twins import BF16

H200 = load_target("h200")
TILE = gemm_candidate("sm90_stream_k", 128, 128, schedule="pingpong", split_k=4, split_k_mode="tail")


def test_the_space_has_clusters_that_wait_and_a_tail_of_each_number_of_splits():
    found = list(FAMILY.candidates(BF16, H200))
    assert {(x.gemm.cluster_m, x.gemm.cluster_n) for x in found} == {(1, 1), (2, 1), (1, 2)}
    assert {(x.gemm.split_k_mode, x.gemm.split_k) for x in found} == {("tail", 2), ("tail", 4), ("tail", 8)}
    tiles = {(x.gemm.schedule, x.gemm.tile_m, x.gemm.tile_n) for x in found}
    others = {(x.gemm.schedule, x.gemm.tile_m, x.gemm.tile_n) for x in PARTIAL_TILE.candidates(BF16, H200)}
    assert tiles == others - {*large_shapes()}


@pytest.mark.parametrize(
    ("change", "why", "message"),
    [
        (
            {"split_k": 1, "split_k_mode": "none"},
            Reason.COMBINATION,
            "only the tiles of the last wave are split: expected split_k_mode tail, got none",
        ),
        (
            {"split_k_mode": "serial"},
            Reason.COMBINATION,
            "only the tiles of the last wave are split: expected split_k_mode tail, got serial",
        ),
        (
            {"cluster_m": 4},
            Reason.COMBINATION,
            "splits wait for CTAs that must all be resident; clusters of 4 do not fill the device",
        ),
        ({"tile_n": 224}, Reason.TILE, "pingpong takes tile_n in steps of 8 up to 208 at tile_m 128, got 224"),
        (
            {"tile_n": 200},
            Reason.REGISTERS,
            f"128x200 needs 200 accumulator registers a thread; {MAX_ACCUMULATORS} fit beside partial sums",
        ),
        (
            {"tile_n": 272, "schedule": "cooperative"},
            Reason.TILE,
            "large tiles are computed whole, got 128x272; take sm90_partial_tile",
        ),
        (
            {"num_stages": 3},
            Reason.COMBINATION,
            "num_stages is 3; the kernel fills the block, give 0",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(change, why, message):
    assert reason(changed(TILE, **change), "h200") == (why, message)


def test_another_number_of_sms_is_refused():
    found = FAMILY.check(TILE, BF16, replace(H200, num_sms=114))
    assert (found.reason, found.message) == (Reason.COMBINATION, "waves are counted for 132 SMs, h200 has 114")
    assert H200.num_sms == NUM_SMS


@pytest.mark.parametrize(
    "family", ["sm90_quack", "sm90_partial_tile", "sm90_prefetch_b"], ids=lambda name: name.removeprefix("sm90_")
)
def test_no_other_family_of_hopper_splits_a_tail(family):
    message = "the kernel has no tail split-K; expected serial, parallel, separate"
    assert reason(replace(TILE, family=family), "h200") == (Reason.COMBINATION, message)


def test_thors_kernels_split_no_tail():
    tile = named("sm100_quack_128x256_c1x1_static")
    found = reason(changed(tile, split_k=2, split_k_mode="tail"), "thor")
    assert found == (Reason.COMBINATION, "the kernel has no tail split-K")


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages", "threads"),
    [
        ("128x128_c1x1_pingpong_tail4", 229376, 6, 384),
        ("256x192_c2x1_cooperative_tail2", 230400, 3, 384),
        ("128x168_c1x1_pingpong_tail4_swap", 227328, 5, 384),
    ],
)
def test_resources_are_those_of_the_same_tile_without_splits(name, smem_bytes, stages, threads):
    plain = name.partition("_tail")[0] + ("_swap" if name.endswith("swap") else "")
    found = resources(f"sm90_stream_k_{name}", "h200")
    assert found == resources(f"sm90_partial_tile_{plain}", "h200")
    assert found[1:3] == (stages, threads)


def test_workspace_and_multiples():
    candidate = changed(TILE, cluster_m=2, swap_ab=True)
    assert FAMILY.workspace(candidate) == Workspace("tail", 4, 128, 128, 2, 1, True, 66)
    assert FAMILY.workspace(TILE).num_clusters == 132
    assert FAMILY.multiples(candidate) == (1, 1)
