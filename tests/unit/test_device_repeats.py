"""The device's check of bits, by calls on the CPU: what repeats passes, and what does not is found."""

from __future__ import annotations

import itertools

import torch

from tests.device.repeats import MOST_ROWS, Rows, bits, count_varying, edges, sampled_rows

X = torch.arange(MOST_ROWS * 2, dtype=torch.float32).reshape(MOST_ROWS, 2)
MANIFEST = {
    "tables": [
        {
            "table": {
                "sections": [
                    {
                        "operation": "a",
                        "ladders": [{"n": 8, "k": 16, "m_edges": [5, 90]}, {"n": 9, "k": 16, "m_edges": [70]}],
                        "grid": {"columns": [{"m_edges": [1000]}]},
                    },
                    {"operation": "b", "ladders": [], "grid": {"columns": [{"m_edges": [300]}]}},
                ]
            }
        }
    ]
}


def test_bits_tell_the_zeros_apart_and_a_nan_is_itself():
    assert not torch.equal(bits(torch.tensor([0.0])), bits(torch.tensor([-0.0])))
    assert torch.equal(bits(torch.tensor([float("nan")])), bits(torch.tensor([float("nan")])))


def test_a_run_that_varies_is_counted():
    numbers = itertools.count()
    assert count_varying(lambda: torch.ones(3), 100) == 0
    assert count_varying(lambda: torch.tensor([float(next(numbers) % 10 == 3)]), 100) == 10


def test_the_edges_are_those_of_the_operation_and_sizes():
    assert edges(MANIFEST, "a", 8, 16) == {5, 90, 1000}
    sample = sampled_rows(edges(MANIFEST, "a", 8, 16))
    assert {89, 90, 91, 999, 1000, 1001, 1, MOST_ROWS} <= set(sample)
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
