from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aot.select.buckets import FINE_GRID_M, FINE_K, FINE_M, FINE_N, coarsen, merge_costs


def along_m(*rows):
    """Make losses of steps of m, a row a step and a column a kernel, with one step of n and of k."""
    return np.array(rows, float)[:, None, None, :]


def coarsen_m(losses, edges, *, max_cost=0.0, max_cells=10**6, num_shapes=None, kept=()):
    number = num_shapes or len(edges)
    ends = coarsen(
        losses, (edges, (1,), (1,)), num_shapes=number, max_cost=max_cost, max_cells=max_cells, kept=(kept, (), ())
    )
    assert ends[1:] == ((1,), (1,))
    return ends[0]


@pytest.mark.parametrize("edges", [FINE_M, FINE_GRID_M, FINE_N, FINE_K])
def test_the_fine_steps_ascend(edges):
    assert all(low < high for low, high in pairwise(edges))


def test_the_fine_steps_by_hand():
    assert FINE_M[:5] == (1, 8, 16, 24, 32)
    assert [m for m in FINE_M if 120 <= m <= 640] == [120, 128, *range(144, 513, 16), 544, 576, 608, 640]
    assert [m for m in FINE_M if 992 <= m <= 1152] == [992, 1024, 1088, 1152]
    assert [m for m in FINE_M if 3968 <= m <= 4608] == [3968, 4032, 4096, 4352, 4608]
    assert FINE_M[-2:] == (7936, 8192)
    assert FINE_GRID_M[:4] == (1, 16, 32, 48)
    assert [m for m in FINE_GRID_M if 1984 <= m <= 2304] == [1984, 2048, 2176, 2304]
    assert [m for m in FINE_GRID_M if m <= 512] == [1, *range(16, 513, 16)]
    assert set(FINE_GRID_M) < set(FINE_M)
    assert FINE_N[:8] == (128, 192, 256, 320, 384, 448, 512, 640)
    assert [n for n in FINE_N if 15872 <= n <= 18432] == [15872, 16384, 17408, 18432]
    assert FINE_N[-2:] == (31744, 32768)
    assert tuple(2**i for i in range(8, 15)) == FINE_K


# Kernel 0 is best up to 32, kernel 1 above; at 32 it is nearly even.
HAND = along_m((0, 5), (1, 4), (2.5, 2.75), (4, 1))
HAND_EDGES = (8, 16, 32, 64)


@pytest.mark.parametrize(
    ("max_cost", "edges"),
    [
        (0.0, (32, 64)),  # the first three are free, all best with kernel 0
        (0.74, (32, 64)),
        (0.76, (64,)),  # kernel 0 on all takes 7.5, 3 more than 3.5 and 1 in two parts; over 4 shapes
    ],
)
def test_what_costs_nothing_is_merged_and_what_costs_little_up_to_the_limit(max_cost, edges):
    assert coarsen_m(HAND, HAND_EDGES, max_cost=max_cost) == edges


def test_the_costs_of_the_hand_example():
    assert merge_costs(HAND, 0).tolist() == [0, 0, 0.25]
    assert merge_costs(HAND, 1).tolist() == []
    both = np.array([[[[0, 1], [1, 0]]], [[[0, 2], [3, 0]]]], float)  # m 2, n 1, k 2, kernel 2
    assert merge_costs(both, 0).tolist() == [0]
    assert merge_costs(both, 2).tolist() == [1 + 2]


def test_an_edge_that_is_kept_stays():
    assert coarsen_m(HAND, HAND_EDGES, max_cost=100.0, kept={16}) == (16, 64)
    assert coarsen_m(HAND, HAND_EDGES, max_cost=100.0, kept={8, 16, 32}) == HAND_EDGES
    assert coarsen_m(HAND, HAND_EDGES, max_cost=100.0, kept={16}, max_cells=1) == (16, 64)


def test_many_cells_merge_at_any_cost():
    different = along_m(*(np.where(np.eye(6), 0, 5)))
    edges = (1, 2, 3, 4, 5, 6)
    assert coarsen_m(different, edges) == edges
    assert [len(coarsen_m(different, edges, max_cells=cells)) for cells in (6, 4, 2, 1)] == [6, 4, 2, 1]


def test_steps_that_are_alike_merge_along_their_axis():
    # Kernel 0 is best in the first step of m, kernel 1 in the second, whatever n.
    losses = np.zeros((2, 2, 1, 2))
    losses[0, :, 0] = (0, 0.2)
    losses[1, :, 0] = (0.2, 0)
    assert merge_costs(losses, 0).tolist() == pytest.approx([0.4])
    assert merge_costs(losses, 1).tolist() == [0]
    assert coarsen(losses, ((1, 2), (1, 2), (1,)), num_shapes=4, max_cost=0.0, max_cells=9) == ((1, 2), (2,), (1,))
    assert coarsen(losses, ((1, 2), (1, 2), (1,)), num_shapes=4, max_cost=0.11, max_cells=9) == ((2,), (2,), (1,))


def test_the_cheapest_for_the_cells_it_saves_is_first():
    losses = np.zeros((2, 3, 1, 4))
    losses[0, :, 0] = ((0, 0.1, 9, 9), (0.1, 0, 9, 9), (9, 9, 0, 0.2))
    losses[1, :, 0] = ((0, 0.2, 9, 9), (0.2, 0, 9, 9), (9, 9, 0.2, 0))
    edges = ((1, 2), (1, 2, 3), (1,))
    assert merge_costs(losses, 0).tolist() == pytest.approx([0.2])
    assert merge_costs(losses, 1)[0] == pytest.approx(0.3)
    assert merge_costs(losses, 1)[1] > 9
    # 0.2 for three cells, then, with m merged, 0.3 for one; n first would have cost 0.3 for two.
    assert coarsen(losses, edges, num_shapes=6, max_cost=0.25 / 6, max_cells=9) == ((2,), (1, 2, 3), (1,))
    assert coarsen(losses, edges, num_shapes=6, max_cost=0.51 / 6, max_cells=9) == ((2,), (2, 3), (1,))


@st.composite
def grids(draw):
    shape = tuple(draw(st.integers(1, 4)) for _ in range(3))
    losses = draw(arrays(float, (*shape, 3), elements=st.integers(0, 8).map(lambda x: x / 4)))
    edges = tuple(tuple(range(10, 10 * size + 1, 10)) for size in shape)
    kept = tuple({edge for edge in axis if draw(st.booleans())} for axis in edges)
    return losses, edges, kept


def mean_cost(losses, edges, left):
    """Work out what the merged cells cost over the fine ones, summed, from nothing but the edges."""
    cells = {}
    for at in product(*(range(len(axis)) for axis in edges)):
        place = tuple(
            next(i for i, e in enumerate(ends) if e >= axis[j]) for ends, axis, j in zip(left, edges, at, strict=True)
        )
        cells[place] = cells.get(place, 0) + losses[at]
    return sum(total.min() for total in cells.values()) - losses.min(axis=-1).sum()


@settings(max_examples=200, deadline=None)
@given(grids(), st.sampled_from([0.0, 0.1, 1.0]), st.integers(1, 64))
def test_the_edges_left_keep_every_promise(grid, max_cost, max_cells):
    losses, edges, kept = grid
    number = int(np.prod(losses.shape[:3]))
    before = losses.copy()
    left = coarsen(losses, edges, num_shapes=number, max_cost=max_cost, max_cells=max_cells, kept=kept)
    assert (losses == before).all()
    for ends, axis, stays in zip(left, edges, kept, strict=True):
        assert set(ends) <= set(axis)
        assert stays <= set(ends)
        assert ends[-1] == axis[-1]
        assert list(ends) == sorted(ends)
    num_cells = int(np.prod([len(ends) for ends in left]))
    least = int(np.prod([len(stays | {axis[-1]}) for stays, axis in zip(kept, edges, strict=True)]))
    assert num_cells <= max(max_cells, least)
    free = coarsen(losses, edges, num_shapes=number, max_cost=max_cost, max_cells=10**9, kept=kept)
    assert mean_cost(losses, edges, free) <= max_cost * number + 1e-9
