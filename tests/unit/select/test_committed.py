"""The selections that the repository ships, held against what their targets can do."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from aot.cli.options import MAX_HELDOUT_REGRET, RECORDS
from aot.core.alignment import has_unaligned_sections
from aot.core.dispatch import MAX_STEP_M, look_up
from aot.core.formats import ALIGNMENT_BYTES
from aot.core.grouping import Grouping
from aot.core.measurement import PROVENANCE_MEASURED
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.families import family_of
from aot.kinds.rows.catalogue import twins
from aot.kinds.rows.problem import RowProblem
from aot.select.coverage import multiples_of
from aot.select.pipeline import COMMITTED
from aot.select.score.explain import explained
from aot.select.score.gate import check_heldout
from aot.select.selection import FamilyKernel, read_selection
from aot.select.times.inputs import MAX_WORKSPACE_BYTES, workspace_bytes
from aot.select.times.known import measured_times
from aot.select.times.record import read_record
from aot.space.cost import estimate
from aot.space.cost_operands import Sizes
from aot.space.roofline import roofline
from tests.compiling import EVERY
from tests.many_look_ups import answers

MEASURED_LEAST = 0.93
"""Least measured time over the roofline: the rates in a target's file were measured, and a kernel may exceed them.

Those of random bfloat16 are bound by power. Elements of e2m1 have few bits that change: an H200 multiplies packed mxfp4
at 847 TFLOP/s, where its file says 790 (aot/records/h200_packed.jsonl.gz)."""

MULTIPLIED = (Grouping.DENSE, Grouping.BATCHED)
"""Of these a roofline is a bound. Groups are timed on skewed loads too, which leave some empty: their weights are not
read, and the roofline of the rows expected of each counts them."""

ROUNDING_US = 0.0005
"""A row's times have three decimals."""


NUM_SIZES = 1_000_000
"""Looked up in all committed tables together, as many in each section."""

MOST = 32768, 131072, 65536
"""Of m, n and k: twice the last edges of m and k, and the last one of n."""

FACTOR = 1.25
"""Predicted time over that of the best of the table's kernels from which on a choice is counted."""

ABOVE = {
    "h200.json.gz": (0.14, 6.7),
    "h200.groups.json.gz": (0.05, 5.2),
    "h200.many.json.gz": (0.06, 3.1),
    "h200.operands.json.gz": (0.055, 12.0),
    "h200.packed.json.gz": (0.09, 5.8),
}
"""By file: the largest share of choices above FACTOR by the cost model, and how far one may be.

What was measured is no prediction, and does not count. These hold of tables that were made before a cell of a coarse
grid had to serve both ends of its n; with each table that is made anew they are to become less. (Those of an H200's
layouts, of more kernels since, are 5.1% in place of 4.5% above, and 2.9 for 6.5 at worst. Since kernels that copy stand
in the tables for what is not aligned, 11.4% are above and 5.8 at worst: the model takes `mma_sync` to be faster, and
copies to be slower, than both were measured; research/log/2026-11-29-realigned.md. With 52 kernels of `mk` and `mn`,
chosen by 33,000 more times, 11.6%: the wheel is faster; research/log/2026-11-29-more-kernels-of-layouts.md. Since what
is not aligned of `mk` and `mn` is chosen by times, 13.9%, and 6.7 at worst: the wheel is 1.9 and 1.6 times as fast as
before there; research/log/2026-11-30-vectors.md. Of batches
5.0% are above, 5.2 at worst, in 128 products of 28,736 x 1 x 1, which a grid of few steps gives tiles of 128 x 128.
Of several weights in one launch 3.01 at worst, in products that are drawn since there are more sections; 5.4% are above
since they are chosen by times of their own, up to 4.5% were when their choice was by times of one weight.)
Of packed weights single products are 1.7 to 3.5% above, and groups, which are chosen by times of their own, 8 to 16%:
at 9 to 24 rows a group and a short k the model prefers `weight_only`, which was best in no timed problem from 17 rows
on; research/log/2026-11-29-packed-times.md. The records' times tell more than the cost model: by what was learned from
them, 2 to 18% of the choices of coarse grids were above FACTOR, and 0.2 to 1.8% are in grids that are made now
(research/log/2026-11-28-choices.md)."""

PATHS = sorted(COMMITTED.glob("*.json.gz"))
TAKEN = {path: path.with_name(path.name.replace("h100", "h200")) for path in PATHS if path.name.startswith("h100.")}
"""Files that `aot select --like` made of another, by which they choose: their times alone are their own."""
OF_ROWS = [path for path in PATHS if path.name.endswith(".rows.json.gz")]
SMALL = 1_000_000
"""Bytes of a file that takes less than a second to read."""
OF_PRODUCTS = [path for path in PATHS if path not in OF_ROWS]
TIMED = [path for path in OF_PRODUCTS if EVERY or path not in TAKEN]
"""Whose times `make test` looks at: those of the others come from the same two functions."""

pytestmark = pytest.mark.slow
committed = cache(read_selection)


@cache
def num_sections():
    """Count the sections of all files that choose by themselves."""
    return sum(len(committed(path).table.sections) for path in OF_PRODUCTS if path not in TAKEN)


def drawn(section, rng):
    """Draw sizes (size, 3) that a section answers, m, n and k by octaves; a quarter of them have a ladder."""
    operation, count = section.operation, NUM_SIZES // num_sections()
    m, n, k = (np.exp(rng.uniform(0, np.log(x), count)).astype(np.int64) for x in MOST)
    unit_n = 1 if section.loads else ALIGNMENT_BYTES // operation.d.num_bytes
    unit_k = section.loads // 2 if section.loads else 128 if operation.b.weight else 32
    n, k = np.maximum(n // unit_n, 1) * unit_n, np.maximum(k // unit_k, 1) * unit_k
    if section.ladders:
        tuned = np.array([(x.n, x.k) for x in section.ladders])[rng.integers(0, len(section.ladders), count // 4)]
        n[: len(tuned)], k[: len(tuned)] = tuned.T
    return np.stack([m, n, k], axis=1)


def why_outside(key, section, sizes, is_open):
    """Say why a kernel does not take some of the sizes that a section gives it; None where it does."""
    kernel, family = FamilyKernel.of(key), family_of(key.candidate)
    if key.operation != section.operation:
        return f"is for {key.operation.tag}"
    if section.loads and (kernel.load_alignment > section.loads or kernel.store_alignment > 1):
        return f"loads by {kernel.load_alignment} bytes and stores by {kernel.store_alignment}"
    if (sizes[:, 0] % kernel.m_multiple).any() or (sizes[:, 1] % kernel.n_multiple).any():
        return "takes whole tiles only"
    if family.max_m and sizes[:, 0].max() > family.max_m:
        return f"is for {family.max_m} rows at most"
    if not family.workspace(key.candidate).is_needed:
        return None
    return why_unbounded(key, section, sizes, is_open)


def why_unbounded(key, section, sizes, is_open):
    """Say why a kernel's workspace does not stay bounded on sizes; None where it does."""
    if is_open.any():
        return "has a workspace that grows without bound"
    problems = [Problem(section.operation, m, n, k, section.num_groups) for m, n, k in sizes.tolist()]
    most = workspace_bytes(key.candidate, problems).max()
    return f"asks for {most} bytes" if most > MAX_WORKSPACE_BYTES else None


@pytest.mark.walk
@pytest.mark.parametrize("path", TIMED, ids=lambda path: path.name)
def test_no_time_of_a_committed_table_is_below_what_the_target_can_do(path):
    selection = committed(path)
    target = load_target(selection.target)
    rows = [
        (Problem(section.operation, m, ladder.n, ladder.k, section.num_groups), row)
        for section in selection.table.sections
        if section.operation.grouping in MULTIPLIED
        for ladder in section.ladders
        for m, row in zip(ladder.m_edges, ladder.rows, strict=True)
    ]
    assert rows
    measured = {(problem, row.time_us) for problem, row in rows if row.provenance == PROVENANCE_MEASURED}
    below = []
    for problem, row in rows:
        of_twins = ((replace(problem, operation=x), row.time_us) for x in (problem.operation, *problem.operation.twins))
        share = 1.0 if measured.isdisjoint(of_twins) else MEASURED_LEAST
        bound_us = roofline(problem, target).time_us
        least = share * bound_us - ROUNDING_US
        second = MEASURED_LEAST * bound_us - ROUNDING_US  # beside a prediction it may be measured
        found = ((row.time_us, least), (row.runner_up_us, second))
        below += [(problem.name, row.provenance, us, limit) for us, limit in found if us < limit]
    assert below == []


@pytest.mark.walk
@pytest.mark.parametrize("path", TIMED, ids=lambda path: path.name)
def test_no_time_that_is_told_of_a_committed_table_is_below_the_roofline(path):
    selection = committed(path)
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


@pytest.mark.parametrize("path", [x for x in OF_PRODUCTS if x not in TAKEN], ids=lambda path: path.name)
def test_each_of_a_million_choices_is_in_its_kernels_domain_and_few_are_predicted_to_cost_a_factor(path):
    selection, rng = committed(path), np.random.default_rng(44)
    target, multiples, over = load_target(selection.target), multiples_of(selection.kernels), list[np.ndarray]()
    for section in selection.table.sections:
        sizes = drawn(section, rng)
        found = answers(section, sizes, multiples)
        for i in rng.integers(0, len(sizes), 3).tolist():
            problem = Problem(section.operation, *sizes[i].tolist(), section.num_groups)
            assert look_up(section, problem, multiples).kernel == found.kernels[i], problem.name
        for index in np.unique(found.kernels).tolist():
            own, key = found.kernels == index, selection.kernels[index]
            assert why_outside(key, section, sizes[own], found.is_open[own]) is None, key.candidate.name
        kernels = np.unique([*found.kernels, *(x for column in section.grid.columns for x in column.kernels)])
        asked = ~found.is_measured
        groups = np.full(len(sizes), section.num_groups)
        columns = (x[asked, None].astype(np.float64) for x in (*sizes.T, groups))
        candidates = [selection.kernels[i].candidate for i in kernels.tolist()]
        times = estimate(candidates, Sizes(section.operation, *columns), target).total_us
        own = times[np.arange(len(times)), kernels.searchsorted(found.kernels[asked])]
        over.append(own / times.min(axis=1))
    ratios = np.concatenate(over)
    share, worst = float((ratios > FACTOR).mean()), float(ratios.max())
    print(f"{path.name}: {share:.2%} above {FACTOR}, {worst:.2f} at worst")
    assert share <= ABOVE[path.name][0], path.name
    assert worst <= ABOVE[path.name][1], path.name


@pytest.mark.parametrize("name", ["h100.json.gz", "h200.json.gz"])
def test_no_product_of_16_bits_of_a_default_wheel_is_left_to_the_general_kernel_where_it_is_not_aligned(name):
    table = read_selection(COMMITTED / name).table
    found = {x.operation: {y.loads for y in table.sections if y.operation is x.operation} for x in table.sections}
    assert {len(found[x]) > 1 for x in found if has_unaligned_sections(x)} == {True}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_committed_selection_is_built_without_being_asked_twice(path):
    check_heldout(committed(path), *MAX_HELDOUT_REGRET)


RECORDS_OF_ROWS = ("h200_rows.jsonl.gz", "h200_rotary.jsonl.gz")
"""By which operations on rows were selected, each by one."""


@pytest.mark.parametrize("path", [x for x in OF_ROWS if x not in TAKEN], ids=lambda path: path.name)
def test_measured_steps_of_operations_on_rows_are_the_records_and_its_operations_or_their_twins_are_all_there(path):
    selection = committed(path)
    record = {x: rows for name in RECORDS_OF_ROWS for x, rows in measured_times(read_record(RECORDS / name)).items()}
    times = {
        x: {replace(p, rows=min(p.rows, MAX_STEP_M)): row for p, row in rows.items()} for x, rows in record.items()
    }
    sections, kernels = selection.others.table.sections, selection.others.kernels
    steps = [
        (RowProblem(section.operation, step.rows, column.cols), kernels[step.kernel].candidate, step)
        for section in sections
        for column in section.columns
        for step in column.steps
        if step.provenance == PROVENANCE_MEASURED
    ]
    assert [x for x, candidate, step in steps if step.time_us != round(times[x.operation][x][candidate], 3)] == []
    asked = {problem.name for rows in times.values() for problem in rows}
    assert {x.name for x, _, _ in steps} == asked
    assert {x.operation for x in sections} == {y for x in times for y in (x, *twins(x))}


def chosen(selection):
    """Return what a selection chooses, without its times and what they are compared with."""
    sections = [
        (
            section.operation, section.num_groups, section.loads, section.batch_invariant, section.grid,
            [(x.n, x.k, x.m_edges, [(row.kernel, row.tile_order) for row in x.rows]) for x in section.ladders],
        )
        for section in selection.table.sections
    ]  # fmt: skip
    steps = [
        (section.operation, column.cols, [(step.rows, step.kernel) for step in column.steps])
        for section in selection.others.table.sections
        for column in section.columns
    ]
    return selection.kernels, sections, selection.others.kernels, steps


@pytest.mark.parametrize("path", [x for x in TAKEN if EVERY or x.stat().st_size < SMALL], ids=lambda path: path.name)
def test_a_selection_that_is_taken_from_another_chooses_as_it_does(path):
    found = committed(path)
    assert (found.like, found.target) == ("h200", "h100")
    assert chosen(found) == chosen(committed(TAKEN[path]))


def test_a_target_takes_all_that_another_has_or_nothing():
    assert set(TAKEN.values()) == {path for path in PATHS if path.name.startswith("h200.")}


def test_there_is_a_committed_selection():
    assert [path.name for path in COMMITTED.glob("*.json.gz")]
