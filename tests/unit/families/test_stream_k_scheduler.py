"""The split tail's scheduler: each k tile of each tile is worked on once, without a deadlock.

Its functions run here as Python: outside of a trace they compute with numbers.
"""

import inspect
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quack.tile_scheduler import TileScheduler

from aot.core.candidate import changed, gemm_candidate, tail_splits
from aot.families import _stream_k_scheduler
from aot.families._stream_k_scheduler import REPLACED, TailScheduler
from aot.families.sm90_stream_k import FAMILY

pytestmark = pytest.mark.slow

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


@pytest.mark.walk
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
    assert workspace.num_bytes(m, n, 64) == 528 + 14 * 3 * 2 * 128 * 128 * 4
