"""The selections that the repository ships, held against what their targets can do."""

import random
from math import ceil, prod

import pytest

from aot.cli.options import MAX_HELDOUT_REGRET, RECORDS
from aot.core.dispatch import look_up
from aot.core.grouping import Grouping
from aot.core.measurement import PROVENANCE_MEASURED
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.families import family_of
from aot.select.explain import explained
from aot.select.pipeline import COMMITTED, check_heldout
from aot.select.ranges import ONE_TILE
from aot.select.record import read_record
from aot.select.selection import read_selection
from aot.select.times import measured_times
from aot.space.roofline import roofline

MEASURED_LEAST = 0.94
"""Least measured time over the roofline: the rates in a target's file were measured, and a kernel may exceed them."""

MULTIPLIED = (Grouping.DENSE, Grouping.BATCHED)
"""Of these a roofline is a bound. Groups are timed on skewed loads too, which leave some empty: their weights are not
read, and the roofline of the rows expected of each counts them."""

ROUNDING_US = 0.0005
"""A row's times have three decimals."""


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.json.gz")), ids=lambda path: path.name)
def test_no_time_of_a_committed_table_is_below_what_the_target_can_do(path):
    selection = read_selection(path)
    target = load_target(selection.target)
    rows = [
        (Problem(section.operation, m, ladder.n, ladder.k, section.num_groups), row)
        for section in selection.table.sections
        if section.operation.grouping in MULTIPLIED
        for ladder in section.ladders
        for m, row in zip(ladder.m_edges, ladder.rows, strict=True)
    ]
    assert rows
    below = []
    for problem, row in rows:
        share = MEASURED_LEAST if row.provenance == PROVENANCE_MEASURED else 1.0
        least = share * roofline(problem, target).time_us - ROUNDING_US
        second = (
            MEASURED_LEAST * roofline(problem, target).time_us - ROUNDING_US
        )  # beside a prediction it may be measured
        found = ((row.time_us, least), (row.runner_up_us, second))
        below += [(problem.name, row.provenance, us, limit) for us, limit in found if us < limit]
    assert below == []


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.json.gz")), ids=lambda path: path.name)
def test_no_time_that_is_told_of_a_committed_table_is_below_the_roofline(path):
    selection = read_selection(path)
    target = load_target(selection.target)
    rng, told = random.Random(14), 0
    for section in selection.table.sections:
        for ladder in rng.sample(section.ladders, min(5, len(section.ladders))):
            last = ladder.m_edges[-1]
            for m in (rng.randint(1, last), rng.choice(ladder.m_edges), last, last + 1, 4 * last):
                problem = Problem(section.operation, m, ladder.n, ladder.k, section.num_groups)
                found = explained(selection, problem, target, {})
                assert found.time_us is None or found.time_us >= found.roofline_us, problem.name
                assert found.time_us is None or m <= last, problem.name
                told += found.time_us is not None
    assert told


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.json.gz")), ids=lambda path: path.name)
def test_a_committed_selection_is_built_without_being_asked_twice(path):
    check_heldout(read_selection(path), *MAX_HELDOUT_REGRET)


TIMED_IN = {
    "h100.json.gz": ("h200", "h100"),
    "h200.json.gz": ("h200",),
    "h200.operands.json.gz": ("h200_operands",),
}
"""The records by which the kernels of each committed selection were chosen: the H100's are the H200's choice."""

COARSE_M = tuple(x * y for x in (1, 64, 1024) for y in (1, 3, 6, 12, 16))
COARSE_N = (128, 640, 2048, 4096, 7168, 12288, 28672, 65536)
COARSE_K = (256, 1024, 4096, 7168, 14336, 16384, 28672, 32768)


def waves_of_tiles(candidate, problem, num_sms):
    """Count the CTAs of a launch over the SMs, in whole clusters."""
    rows, columns = problem.m, problem.operation.num_rows_of_b(problem.n)
    if candidate.swap_ab:
        rows, columns = columns, rows
    sides = (rows, candidate.tile_m, candidate.cluster_m), (columns, candidate.tile_n, candidate.cluster_n)
    tiles = [ceil(ceil(extent / tile) / cluster) * cluster for extent, tile, cluster in sides]
    return prod(tiles) * candidate.split_k * problem.num_groups / num_sms


def lies_in_one_row(candidate, problem):
    """Say whether one tile is as wide, or as high, as D."""
    rows, columns = problem.m, problem.operation.num_rows_of_b(problem.n)
    rows, columns = (columns, rows) if candidate.swap_ab else (rows, columns)
    return rows <= candidate.tile_m or columns <= candidate.tile_n


@pytest.mark.parametrize("name", sorted(TIMED_IN))
def test_no_kernel_of_one_tile_answers_for_more_waves_than_it_was_timed_at(name):
    """m 12000, n 7168, k 28672 had `sm90_one_tile_128x248`, for 20 waves of a k that it was never timed at.

    In up to two waves, which are what such kernels are for, and where all tiles lie in one row,
    k may be longer.
    """
    selection = read_selection(COMMITTED / name)
    num_sms = load_target(selection.target).num_sms
    timed = {}
    for record in TIMED_IN[name]:
        for rows in measured_times(read_record(RECORDS / f"{record}.jsonl.gz")).values():
            for problem, row in rows.items():
                for candidate in (x for x in row if x.family in ONE_TILE):
                    found = waves_of_tiles(candidate, problem, num_sms), problem.k / candidate.split_k
                    timed.setdefault(candidate, set()).add(found)
    multiples = [family_of(key.candidate).multiples(key.candidate) for key in selection.kernels]
    sizes = [(m, n, k) for n in COARSE_N for k in COARSE_K for m in COARSE_M]
    wrong, num_asked = [], 0
    for section in (x for x in selection.table.sections if x.operation.grouping is Grouping.DENSE):
        for m, n, k in [*sizes, (12000, 7168, 28672)]:
            problem = Problem(section.operation, m, n, k, section.num_groups)
            choice = look_up(section, problem, multiples)
            candidate = selection.kernels[choice.kernel].candidate
            num_asked += 1
            if candidate.family in ONE_TILE:
                waves, length = waves_of_tiles(candidate, problem, num_sms), k / candidate.split_k
                most = max(x for x, _ in timed[candidate])
                is_allowed = waves <= most and (waves <= 2 or lies_in_one_row(candidate, problem))
                if not is_allowed and not any(waves <= x and length <= y for x, y in timed[candidate]):
                    wrong.append((problem.name, candidate.name, waves, most))
    assert num_asked >= 900
    assert wrong == []


def test_there_is_a_committed_selection():
    assert [path.name for path in COMMITTED.glob("*.json.gz")]
