"""Times of batches that are not aligned by those of one product, and the sections that are made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import numpy as np
import pytest

from aot.core.candidate import gemm_candidate
from aot.core.dispatch import Column, DispatchTable, Grid, Scope, Section
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.select import pipeline
from aot.select.portfolio.objective import KnownTimes, Objective
from aot.select.score.explain import explained
from aot.select.selection import read_selection
from aot.select.table.unaligned import UnalignedTimes, sections
from aot.select.times.batches import BATCHES, OfBatches, batched_loads, batched_problems
from aot.space.cost_operands import sizes_of
from tests.unit.invoked import coarse_grid

H200 = load_target("h200")
BATCHED, ONE = Operation.BF16_KK_BATCHED, Operation.BF16_KK
TILES = (
    gemm_candidate("mma_sync", 64, 32, schedule="a2k4", use_tma_store=False),
    gemm_candidate("sm90_quack", 128, 16, swap_ab=True),
)


@dataclass
class Rows:
    """A model whose time is the rows, which keeps what it was asked."""

    asked: list[tuple[Operation, float, float]] = field(default_factory=list)

    def times_us(self, candidates, problems, asked=None):
        sizes = sizes_of(problems)
        self.asked += [(sizes.operation, n, g) for n, g in zip(sizes.n[:, 0], sizes.num_groups[:, 0], strict=True)]
        times = np.broadcast_to(sizes.m, (len(sizes), len(candidates)))
        return times if asked is None else np.where(asked, times, np.inf)


def test_a_batch_takes_as_long_as_one_product_of_its_whole_tiles():
    model = Rows()
    problems = [Problem(BATCHED, m, 40, 72, groups) for m, groups in ((1, 5), (64, 3), (65, 3), (129, 12))]
    times = OfBatches(model).times_us(TILES, problems)
    assert times.tolist() == [[ceil(x.m / tile) * tile * x.num_groups for tile in (64, 16)] for x in problems]
    assert set(model.asked) == {(ONE, 40.0, 1.0)}


def test_what_is_not_asked_for_is_infinite():
    asked = np.array([[True, False], [False, True]])
    times = OfBatches(Rows()).times_us(TILES, [Problem(BATCHED, 64, 40, 72, 2)] * 2, asked)
    assert times.tolist() == [[128, np.inf], [np.inf, 128]]


def test_sections_for_batches_are_of_the_bytes_that_their_rows_can_have():
    assert {x: batched_loads(x) for x in BATCHED.layouts} == {
        Operation.BF16_KK_BATCHED: (2, 4, 8, 16),
        Operation.BF16_KN_BATCHED: (2, 4, 8),
        Operation.BF16_MK_BATCHED: (2, 4, 8),
        Operation.BF16_MN_BATCHED: (2, 4, 8),
    }
    found = batched_problems(BATCHED)
    assert {x.num_groups for x in found} == set(BATCHES)
    assert len(found) == len(set(found))


def test_kernels_that_were_timed_in_one_product_are_chosen_among():
    timed = {Problem(ONE, m, 64, 75): dict.fromkeys(TILES[:1], 1.0 + m) for m in (1, 16, 17, 64, 100, 300)}
    known = UnalignedTimes.of({ONE: timed}, [BATCHED], H200)
    assert known.loads_of(BATCHED) == (2, 4, 8, 16)
    found = known.of_batches(BATCHED, 2, H200)
    assert set(found.filled) == set(batched_problems(BATCHED))
    assert {x for row in found.filled.values() for x in row} == {TILES[0]}
    assert (found.own, found.provenance) == ({}, "predicted")
    assert known.of_batches(BATCHED, 8, H200) is None
    assert known.of_batches(ONE, 2, H200) is None


@pytest.mark.walk
@pytest.mark.slow
def test_kernels_that_were_timed_in_batches_are_chosen_by_those_times(monkeypatch):
    coarse_grid(monkeypatch)
    sizes = [(m, n, 75, groups) for m in (49, 197, 577) for n in (64, 96) for groups in (6, 12, 96)]
    rows = {Problem(BATCHED, *x): {TILES[0]: 1.0 + x[0], TILES[1]: 900.0 - x[0]} for x in sizes}
    single = {Problem(ONE, m, 64, 75): dict.fromkeys(TILES[:1], 1.0 + m) for m in (1, 16, 17, 64, 100, 300)}
    known = UnalignedTimes.of({ONE: single, BATCHED: rows}, [BATCHED], H200)
    assert known.loads_of(BATCHED) == (2, 4, 8, 16)
    assert known.model(BATCHED, 2) is not known.model(ONE, 2)
    kernels = []
    found = list(sections(BATCHED, known, KnownTimes({}), [], kernels, 0, H200, Objective()))
    assert [(x.loads, x.num_groups) for x in found] == [(2, x) for x in BATCHES]
    assert {x.candidate for x in kernels} == {TILES[0]}  # the other loads by TMA alone
    ladders = {x.num_groups: [(y.n, y.k) for y in x.ladders] for x in found}
    assert ladders[12] == [(64, 75), (96, 75)]
    assert ladders[48] == []


def test_a_section_is_that_of_the_next_number_of_products():
    grid = Grid((1,), (1,), (Column((1,), (0,)),))
    scopes = (None, *(Scope(groups, False, loads) for loads in (2, 8) for groups in (4, 16)))
    table = DispatchTable(tuple(Section(BATCHED, (), grid, 0, scope) for scope in scopes))
    for loads, groups, expected in ((2, 1, 4), (4, 4, 4), (4, 5, 16), (8, 4, 4), (16, 9, 16), (8, 99, 16)):
        found = table.unaligned_section(BATCHED, loads, groups)
        assert (found.loads, found.num_groups) == (2 if loads < 8 else 8, expected)
    assert table.unaligned_section(BATCHED, 0, 4) is None
    assert table.unaligned_section(Operation.FP16_KK_BATCHED, 2, 4) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (Problem(BATCHED, 729, 729, 72, 12), "n 729 is not a multiple of 8; A and B are loaded by up to 16 bytes"),
        (Problem(BATCHED, 333, 256, 700, 6), "k 700 is not a multiple of 8; A and B are loaded by up to 8 bytes"),
        (
            Problem(Operation.BF16_KN_BATCHED, 197, 64, 197, 24),
            "k 197 is not a multiple of 8; A and B are loaded by up to 2 bytes",
        ),
    ],
)
def test_the_committed_table_leaves_no_batch_of_an_odd_size_to_the_general_kernel(problem, told):
    selection = read_selection(pipeline.COMMITTED / "h200.groups.json.gz")
    found = explained(selection, problem, H200, {})
    assert "simt" not in found.kernel
    assert told in found.text
