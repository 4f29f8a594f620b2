from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aot.core.dispatch import MAX_STEP_M
from aot.select.table.buckets import FINE_GRID_M, FINE_K, FINE_M, FINE_N, LEARNED_M, LEARNED_N, breadths, coarsen


@pytest.mark.parametrize("edges", [FINE_M, FINE_GRID_M, FINE_N, FINE_K, LEARNED_M, LEARNED_N])
def test_the_fine_steps_ascend(edges):
    assert all(low < high for low, high in pairwise(edges))


def test_the_fine_steps_by_hand():
    assert FINE_M[:5] == (1, 8, 16, 24, 32)
    assert [m for m in FINE_M if 120 <= m <= 640] == [120, 128, *range(144, 513, 16), 544, 576, 608, 640]
    assert [m for m in FINE_M if 992 <= m <= 1152] == [992, 1024, 1088, 1152]
    assert [m for m in FINE_M if 3968 <= m <= 4608] == [3968, 4032, 4096, 4352, 4608]
    assert FINE_M[-2:] == (16128, 16384)
    assert FINE_GRID_M[:4] == (1, 8, 16, 24)
    assert [m for m in FINE_GRID_M if 56 <= m <= 112] == [56, 64, 80, 96, 112]
    assert [m for m in FINE_GRID_M if 496 <= m <= 576] == [496, 512, 544, 576]
    assert [m for m in FINE_GRID_M if 1984 <= m <= 2112] == [1984, 2048, 2112]
    assert [m for m in FINE_GRID_M if 4032 <= m <= 5120] == [4032, 4096, 4608, 5120]
    assert FINE_GRID_M[-2:] == (15872, 16384)
    assert set(FINE_GRID_M) < set(FINE_M)
    assert FINE_GRID_M[-1] <= MAX_STEP_M
    assert FINE_N[:4] == (64, 128, 192, 256)
    assert [n for n in FINE_N if 960 <= n <= 1280] == [960, 1024, 1152, 1280]
    assert [n for n in FINE_N if 8064 <= n <= 8704] == [8064, 8192, 8448, 8704]
    assert [n for n in FINE_N if 16128 <= n <= 18432] == [16128, 16384, 17408, 18432]
    assert FINE_N[-3:] == (61440, 65536, 131072)
    assert FINE_K[:9] == (64, 128, 256, 384, 512, 768, 1024, 1280, 1536)
    assert FINE_K[9:15] == (2048, 2560, 3072, 4096, 5120, 6144)
    assert FINE_K[15:] == (8192, 10240, 12288, 14336, 16384, 20480, 24576, 28672, 32768)


def test_the_steps_of_many_times_by_hand():
    assert LEARNED_M[:7] == (1, 2, 4, 8, 12, 16, 20)
    assert [m for m in LEARNED_M if 56 <= m <= 80] == [56, 60, 64, 72, 80]
    assert [m for m in LEARNED_M if 248 <= m <= 288] == [248, 256, 272, 288]
    assert [m for m in LEARNED_M if 2032 <= m <= 2112] == [2032, 2048, 2080, 2112]
    assert [m for m in LEARNED_M if 4064 <= m <= 4224] == [4064, 4096, 4160, 4224]
    assert LEARNED_M[-2:] == (16320, 16384)
    assert len(LEARNED_M) == 410
    assert LEARNED_M[-1] == FINE_M[-1] <= MAX_STEP_M
    assert LEARNED_N[:5] == (8, 16, 24, 32, 64)
    assert [n for n in LEARNED_N if 480 <= n <= 640] == [480, 512, 576, 640]
    assert [n for n in LEARNED_N if 4032 <= n <= 4352] == [4032, 4096, 4224, 4352]
    assert [n for n in LEARNED_N if 8064 <= n <= 8704] == [8064, 8192, 8448, 8704]
    assert [n for n in LEARNED_N if 16128 <= n <= 17408] == [16128, 16384, 16896, 17408]
    assert LEARNED_N[-3:] == (63488, 65536, 131072)
    assert len(LEARNED_N) == 188


def test_a_step_weighs_the_root_of_its_octaves_and_the_first_begins_at_a_half():
    # 3, 1 and 4 octaves above 0.5, 4 and 8.
    roots = np.sqrt([3.0, 1.0, 4.0])
    assert breadths((4, 8, 128)) == pytest.approx(3 * roots / roots.sum())
    assert breadths((7,)) == pytest.approx([1.0])


# Kernel 0 is best up to 32, kernel 1 above; at 32 it is nearly even.
HAND = np.array([(0, 5), (1, 4), (2.5, 2.75), (4, 1)], float)
HAND_EDGES = (8, 16, 32, 64)


def merged(losses, edges, *, max_cost=0.0, **bounds):
    return coarsen(np.array(losses, float), edges, num_shapes=len(edges), max_cost=max_cost, **bounds)


@pytest.mark.parametrize(
    ("max_cost", "edges"),
    [
        (0.0, (32, 64)),  # the first three are free, all best with kernel 0
        (0.74, (32, 64)),
        (0.76, (64,)),  # kernel 0 on all takes 7.5, 3 more than 3.5 and 1 in two parts; over 4 shapes
    ],
)
def test_what_costs_nothing_is_merged_and_what_costs_little_up_to_the_limit(max_cost, edges):
    assert merged(HAND, HAND_EDGES, max_cost=max_cost) == edges


def test_the_cheapest_goes_first_and_all_that_was_spent_counts():
    # Merging 1 and 2 costs 0.2; 3 and 4 cost 0.3; all in one 18 more.
    losses = ((0, 0.2, 9, 9), (0.2, 0, 9, 9), (9, 9, 0, 0.3), (9, 9, 0.3, 0))
    edges = (1, 2, 3, 4)
    assert merged(losses, edges, max_cost=0.19 / 4) == edges
    assert merged(losses, edges, max_cost=0.21 / 4) == (2, 3, 4)
    assert merged(losses, edges, max_cost=0.49 / 4) == (2, 3, 4)
    assert merged(losses, edges, max_cost=0.51 / 4) == (2, 4)


def test_the_number_of_shapes_divides_the_cost():
    for number, edges in ((4, (64,)), (3, (32, 64))):
        assert coarsen(HAND, HAND_EDGES, num_shapes=number, max_cost=0.76) == edges


def test_of_merges_that_cost_the_same_the_first_goes_first():
    same = np.where(np.eye(4), 0, 1)
    assert merged(same, (1, 2, 3, 4), max_cost=1 / 4) == (2, 3, 4)


def test_an_edge_that_is_kept_stays():
    assert merged(HAND, HAND_EDGES, max_cost=100.0, kept={16}) == (16, 64)
    assert merged(HAND, HAND_EDGES, max_cost=100.0, kept={8, 16, 32}) == HAND_EDGES
    assert merged(HAND, HAND_EDGES, kept={16}, settled=64) == (16, 64)
    assert merged(HAND, HAND_EDGES, kept={7, 65}, settled=65) == (64,)


def test_what_is_settled_merges_at_any_cost_and_what_is_past_it_where_that_pays():
    different = np.where(np.eye(6), 0, 5)
    edges = (1, 2, 3, 4, 5, 6)
    assert merged(different, edges) == edges
    found = [merged(different, edges, kept={2, 4}, settled=m) for m in (0, 2, 3, 4, 6, 9)]
    assert found == [edges, (2, 3, 4, 5, 6), (2, 4, 5, 6), (2, 4, 5, 6), (2, 4, 6), (2, 4, 6)]
    # Of 6 shapes, one merge past what is settled costs 5 and another 5 more, however much was spent before it.
    assert merged(different, edges, kept={3}, settled=3, max_cost=5.1 / 6) == (3, 5, 6)


def test_a_single_step_is_left_as_it_is():
    assert merged(HAND[:1], (8,), max_cost=9.0, settled=8) == (8,)


@st.composite
def columns(draw):
    size = draw(st.integers(1, 7))
    losses = draw(arrays(float, (size, 3), elements=st.integers(0, 8).map(lambda x: x / 4)))
    edges = tuple(range(10, 10 * size + 1, 10))
    return losses, edges, {edge for edge in edges if draw(st.booleans())}


def cost_of(losses, edges, left):
    """Work out what the merged steps cost over the fine ones, summed, from nothing but the edges."""
    starts = (0, *(edges.index(edge) + 1 for edge in left))
    parts = [losses[start:end].sum(axis=0).min() for start, end in pairwise(starts)]
    return sum(parts) - losses.min(axis=-1).sum()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(columns(), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 8).map(lambda x: 10 * x))
def test_the_edges_left_keep_every_promise(column, max_cost, settled):
    losses, edges, kept = column
    before = losses.copy()
    options = {"num_shapes": len(edges), "max_cost": max_cost, "kept": kept}
    left = coarsen(losses, edges, settled=settled, **options)
    free = coarsen(losses, edges, **options)
    assert (losses == before).all()
    for ends in (left, free):
        assert set(ends) <= set(edges)
        assert kept <= set(ends)
        assert ends[-1] == edges[-1]
        assert list(ends) == sorted(ends)
    assert {x for x in left[:-1] if x <= settled} == {x for x in edges[:-1] if x in kept and x <= settled}
    # What is past the last kept edge that is settled is merged as if nothing were before it.
    first = sum(edge <= max((x for x in kept if x <= settled), default=0) for edge in edges)
    if first < len(edges) and settled <= (edges[first - 1] if first else 0):
        assert tuple(x for x in left if x >= edges[first]) == coarsen(losses[first:], edges[first:], **options)
    spent = cost_of(losses, edges, free)
    assert spent <= max_cost * len(edges) + 1e-9
    # No single merge more is within the bound: of the edges that are free to go, none was left for nothing.
    for edge in {*free[:-1]} - kept:
        fewer = tuple(x for x in free if x != edge)
        assert cost_of(losses, edges, fewer) > max_cost * len(edges) - 1e-9
