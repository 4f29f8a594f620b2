"""The split tail: which candidates there are, and that each k tile of each tile is worked on once, without a deadlock.

The scheduler's functions run here as Python: outside of a trace they compute with numbers.
"""

import inspect
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quack.tile_scheduler import TileScheduler

from aot.core.candidate import Reason, Workspace, changed, gemm_candidate, tail_splits
from aot.core.target import load_target
from aot.families import _stream_k_scheduler
from aot.families._stream_k_scheduler import REPLACED, TailScheduler
from aot.families.sm90_partial_tile import FAMILY as PARTIAL_TILE
from aot.families.sm90_stream_k import FAMILY, MAX_ACCUMULATORS, NUM_SMS
from tests.unit.accepted import named, reason, resources
from tests.unit.twins import BF16

H200 = load_target("h200")
TILE = gemm_candidate("sm90_stream_k", 128, 128, schedule="pingpong", split_k=4, split_k_mode="tail")


class Divisor:
    """quack's `FastDivmod`, on numbers."""

    def __init__(self, divisor):
        self.divisor = divisor

    def __rdivmod__(self, dividend):
        return divmod(int(dividend), self.divisor)


class Scheduler:
    """What `TailScheduler`'s methods read of it."""

    class Params:
        pass

    def __init__(self, num_whole, splits):
        self.params = self.Params()
        self.params.num_whole, self.params.splits = num_whole, Divisor(splits)

    def find_item(self, coordinate):
        return tuple(map(int, inspect.unwrap(TailScheduler.find_item)(self, coordinate)))

    def range_of_k_tiles(self, k_tiles, coordinate):
        return tuple(map(int, inspect.unwrap(TailScheduler.range_of_k_tiles)(self, k_tiles, coordinate)))


def count_splits(tail, num_clusters, most):
    return int(inspect.unwrap(_stream_k_scheduler.count_splits)(tail, num_clusters, most))


@pytest.mark.parametrize("name", REPLACED)
def test_the_private_methods_take_what_they_took(name):
    found = list(inspect.signature(inspect.unwrap(getattr(TileScheduler, name))).parameters)
    assert found == REPLACED[name], f"quack changed TileScheduler.{name}"


def test_no_other_private_name_of_quacks_is_replaced():
    private = {x for x in vars(TailScheduler) if x.startswith("_") and not x.startswith("__")}
    assert private == set(REPLACED)


@pytest.mark.parametrize("most", [2, 4, 8])
@pytest.mark.parametrize("num_clusters", [66, 132])
def test_the_kernel_counts_splits_as_the_workspace_does(num_clusters, most):
    tails = range(num_clusters)
    assert [count_splits(x, num_clusters, most) for x in tails] == [tail_splits(x, num_clusters, most) for x in tails]


@pytest.mark.slow
@given(
    st.integers(1, 1000),
    st.sampled_from([66, 132]),
    st.sampled_from([2, 4, 8]),
    st.integers(1, 40),
)
def test_every_k_tile_of_every_tile_is_of_one_item(num_tiles, num_clusters, most, k_tiles):
    tail = num_tiles % num_clusters
    splits = tail_splits(tail, num_clusters, most)
    scheduler = Scheduler(num_tiles - tail, splits)
    taken = Counter()
    for place in range(tail * splits):
        item, split, last = scheduler.find_item(place + 1 if splits > 1 else 0)
        if splits == 1:
            item = place
        assert (split, last) == (place % splits, splits - 1)
        first, count = scheduler.range_of_k_tiles(k_tiles, place + 1 if splits > 1 else 0)
        taken.update((item, k) for k in range(first, first + count))
    assert taken == Counter({(item, k): 1 for item in range(tail) for k in range(k_tiles)})
    assert scheduler.range_of_k_tiles(k_tiles, 0) == (0, k_tiles)


@given(st.integers(1, 1000), st.sampled_from([66, 132]), st.sampled_from([2, 4, 8]))
def test_a_split_tail_is_worked_on_sooner_and_waits_for_lower_items_only(num_tiles, num_clusters, most):
    tail = num_tiles % num_clusters
    splits = tail_splits(tail, num_clusters, most)
    scheduler = Scheduler(num_tiles - tail, splits)
    assert -(-tail * splits // num_clusters) / splits <= (1 if tail else 0)
    if splits == 1:
        return
    assert -(-tail * splits // num_clusters) / splits < 1
    items = [scheduler.find_item(place + 1) for place in range(tail * splits)]
    for place, (tile, split, last) in enumerate(items):
        earlier = [x for x in items[:place] if x[0] == tile]
        assert len(earlier) == split  # the last one finds all others in front of it
        assert last == splits - 1


def test_the_regions_of_splits_are_apart_and_inside_the_workspace():
    candidate = changed(TILE, cluster_m=2)
    workspace = FAMILY.workspace(candidate)
    m, n = 128 * 2 * 10, 128 * 8  # 80 clusters, of which 14 are left over: 4 splits
    scheduler, taken = Scheduler(66, 4), []
    for place in range(14 * 4):
        tile, split, last = scheduler.find_item(place + 1)
        if split < last:
            taken += [(tile * last + split) * 2 + cta for cta in range(2)]
    assert sorted(taken) == list(range(14 * 3 * 2))
    assert workspace.num_bytes(m, n) == 528 + 14 * 3 * 2 * 128 * 128 * 4


def test_the_space_has_clusters_that_wait_and_a_tail_of_each_number_of_splits():
    found = list(FAMILY.candidates(BF16, H200))
    assert {(x.gemm.cluster_m, x.gemm.cluster_n) for x in found} == {(1, 1), (2, 1), (1, 2)}
    assert {(x.gemm.split_k_mode, x.gemm.split_k) for x in found} == {("tail", 2), ("tail", 4), ("tail", 8)}
    tiles = {(x.gemm.schedule, x.gemm.tile_m, x.gemm.tile_n) for x in found}
    assert tiles == {(x.gemm.schedule, x.gemm.tile_m, x.gemm.tile_n) for x in PARTIAL_TILE.candidates(BF16, H200)}


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
    tile = named("sm100_quack_128x256_c1x1_static", "thor")
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
