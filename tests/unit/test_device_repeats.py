"""The device's check of bits, by calls on the CPU: what repeats passes, and what does not is found."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left

import pytest
import torch

from aot.core.dispatch import MAX_STEP_M
from tests.device.repeats import (
    MOST_ROWS,
    Rows,
    alone,
    bits,
    count_varying,
    edges,
    placements,
    sampled_rows,
    varying_with_groups,
)

X = torch.arange(MOST_ROWS * 2, dtype=torch.float32).reshape(MOST_ROWS, 2)


def test_bits_tell_the_zeros_apart_and_a_nan_is_itself():
    assert not torch.equal(bits(torch.tensor([0.0])), bits(torch.tensor([-0.0])))
    assert torch.equal(bits(torch.tensor([float("nan")])), bits(torch.tensor([float("nan")])))


def test_a_run_that_varies_is_counted():
    numbers = itertools.count()
    assert count_varying(lambda: torch.ones(3), 100) == 0
    assert count_varying(lambda: torch.tensor([float(next(numbers) % 10 == 3)]), 100) == 10


def test_the_edges_are_those_by_which_rows_are_answered():
    column = (16, 64, 4096, MAX_STEP_M)
    known = edges(lambda m: column[bisect_left(column, m)])
    assert known == {*column}
    assert edges(lambda _: 0) == set()
    assert edges(lambda m: (16, 64)[m > 16]) == {16, 64}
    sample = sampled_rows(known)
    assert {63, 64, 65, 4095, 4096, 4097, 1, MOST_ROWS} <= set(sample)
    assert sample == sorted(set(sample))
    assert max(sample) == MOST_ROWS


def test_a_row_that_depends_on_m_or_on_its_neighbours_is_found():
    sample = [1, 7, 64, 65, 300]
    right = Rows(X, lambda x: x * 2)
    assert list(right.varying_with_m(sample)) == list(right.varying_with_neighbours(sample)) == []
    by_m = Rows(X, lambda x: x * (2 if len(x) > 64 else 2.001))
    assert list(by_m.varying_with_m(sample)) == [1, 7, 64]
    by_neighbours = Rows(X, lambda x: x + 0 * x[-1:])
    assert list(by_neighbours.varying_with_neighbours(sample)) == [7, 64, 65, 300]


ROWS = 5


def test_placements_are_in_one_group_and_of_every_kind():
    drawn = list(placements(random.Random(1), 200, ROWS))
    for placement in drawn:
        ends = [0, *placement.ends]
        first, end = ends[placement.group], ends[placement.group + 1]
        assert len({x for x in placement.places if first <= x < end}) == ROWS
    sizes = {x.sizes[x.group] for x in drawn}
    assert (min(sizes), max(sizes)) == (ROWS, ROWS + 4000)
    assert {len(x.sizes) for x in drawn} == {1, 2, 8, 64}
    assert {x.is_nan for x in drawn} == {False, True}
    assert any(0 in x.sizes for x in drawn)
    assert alone(ROWS).ends == [ROWS]


FAULTS = {
    "none": lambda placement: 1.0,
    "the size of the group": lambda placement: 1.0 if placement.sizes[placement.group] < 600 else 1.001,
    "the number of groups": lambda placement: 1.0 if len(placement.sizes) < 64 else 1.001,
    "what other rows hold": lambda placement: float("nan") if placement.is_nan else 1.0,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_rows_that_depend_on_what_is_beside_them_are_found(fault):
    drawn = list(placements(random.Random(2), 100, ROWS))
    found = list(varying_with_groups(lambda x: torch.arange(1.0, 6.0) * FAULTS[fault](x), ROWS, drawn))
    assert found == [x for x in drawn if FAULTS[fault](x) != 1.0]
    assert bool(found) == (fault != "none")
