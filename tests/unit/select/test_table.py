import numpy as np
import pytest

from aot.core.errors import SelectionError
from aot.core.operation import Layout, Operation
from aot.core.target import load_target
from aot.select import table
from aot.select.buckets import FINE_GRID_M, FINE_K, FINE_N
from aot.select.portfolio import Budget, choose
from aot.select.table import MAX_WORKSPACE_BYTES, PREDICTED_TIE, Bucket, Timed, build_section, is_general
from aot.select.time_model import Prior
from tests.unit.accepted import named
from tests.unit.twins import BF16, problem_of

H200, THOR = load_target("h200"), load_target("thor")
PLAIN = named("sm90_quack_128x128_c1x1_pingpong", "h200")
SPLIT = named("sm90_quack_64x64_c1x1_pingpong_serial4", "h200")
SEPARATE = named("sm90_quack_64x64_c1x1_pingpong_separate2", "h200")
TMA = named("sm100_persistent_128x128_c1x1_clc", "thor")
DIRECT = named("sm100_persistent_128x128_c1x1_clc_direct", "thor")


SWAPPED = named("sm90_quack_64x16_c1x1_pingpong_swap", "h200")


class Shades:
    """A model by which a kernel takes what a function of it and of the problem says, in microseconds."""

    def __init__(self, time):
        self.time = time

    def times_us(self, candidates, problems):
        return np.array([[float(self.time(c, p)) for c in candidates] for p in problems])


def section_of(rows, model=None, max_kernels=8, incumbent=None, operation=BF16):
    """Build the section of times {(m, n, k): {candidate: us}}; kernel 0 is the fallback."""
    times = {problem_of(*shape, operation): row for shape, row in rows.items()}
    portfolio = choose(times, Budget(max_kernels))
    indices = {candidate: 1 + i for i, candidate in enumerate(portfolio.candidates)}
    options = {"incumbent": incumbent} if incumbent else {}
    timed = Timed(times, times, "measured", model or Prior(H200), **options)
    return indices, build_section(operation, portfolio, timed, indices, 0)


@pytest.fixture
def coarse(monkeypatch):
    """Look at few fine steps."""
    m_edges, edges = (16, 32, 64, 128, 256), (512, 4096)
    for name, few in (("FINE_M", m_edges), ("FINE_GRID_M", m_edges), ("FINE_N", edges), ("FINE_K", edges)):
        monkeypatch.setattr(table, name, few)


@pytest.fixture(scope="module")
def mixed():
    return section_of(
        {
            (16, 4096, 4096): {SPLIT: 5.0, PLAIN: 9.0},
            (64, 4096, 4096): {SPLIT: 8.0, PLAIN: 10.0},
            (256, 4096, 4096): {SPLIT: 20.0, PLAIN: 21.0},
            (16, 512, 512): {PLAIN: 4.0, SPLIT: 6.0},
        }
    )


def test_ladders_hold_the_measured_times(mixed):
    indices, section = mixed
    plain, split = indices[PLAIN], indices[SPLIT]
    assert [(x.n, x.k) for x in section.ladders] == [(512, 512), (4096, 4096)]
    small, big = (dict(zip(x.m_edges, x.rows, strict=True)) for x in section.ladders)
    assert set(big) >= {16, 64, 256}
    assert max(big) == 256
    first = big[16]
    assert (first.kernel, first.general, first.time_us, first.provenance) == (split, split, 5.0, "measured")
    assert (first.runner_up, first.runner_up_us) == (plain, 9.0)
    assert (big[64].kernel, big[64].time_us, small[16].kernel, small[16].time_us) == (split, 8.0, plain, 4.0)
    for rows, m_tuned in ((small, {16}), (big, {16, 64, 256})):
        assert {m: row.provenance for m, row in rows.items()} == {
            m: "measured" if m in m_tuned else "predicted" for m in rows
        }


def test_split_k_never_serves_an_open_bucket(mixed):
    indices, section = mixed
    last = section.ladders[1].rows[-1]
    assert (last.kernel, last.time_us) == (indices[PLAIN], 21.0)
    assert (last.runner_up, last.runner_up_us) == (indices[PLAIN], 21.0)
    grid, open_edges = section.grid, 0
    for cell, row in enumerate(grid.cells):
        i, j, k = grid.place(cell)
        if i == len(grid.m_edges) - 1 or j == len(grid.n_edges) - 1 or k == len(grid.k_edges) - 1:
            open_edges += 1
            assert {row.kernel, row.general, row.runner_up} == {indices[PLAIN]}
    assert open_edges > 0


def test_split_k_serves_closed_cells(mixed):
    indices, section = mixed
    assert indices[SPLIT] in {cell.kernel for cell in section.grid.cells}
    assert section.grid.cells[section.grid.cell(16, 4096, 4096)].kernel == indices[SPLIT]


def test_the_grid_is_predicted_and_complete(mixed):
    _, section = mixed
    grid = section.grid
    for edges, fine in ((grid.m_edges, FINE_GRID_M), (grid.n_edges, FINE_N), (grid.k_edges, FINE_K)):
        assert set(edges) <= set(fine)
        assert edges[-1] == fine[-1]
    assert len(grid.cells) == len(grid.m_edges) * len(grid.n_edges) * len(grid.k_edges) > 1
    assert {cell.provenance for cell in section.grid.cells} == {"predicted"}
    assert all(cell.time_us > 0 and cell.runner_up_us > 0 for cell in section.grid.cells)
    assert section.fallback == 0


@pytest.mark.parametrize(
    ("candidate", "shape", "is_open", "takes"),
    [
        (PLAIN, (2**20, 2**20, 64), True, True),
        (SPLIT, (1, 64, 64), True, False),
        (SPLIT, (1, 64, 64), False, True),
        (SPLIT, (8192, 8191, 64), False, False),  # 128 x 128 tiles of 16 KiB are the limit; the flags are over it
        (SPLIT, (8192, 8128, 64), False, True),
        (SEPARATE, (8192, 4096, 64), False, True),  # 2 x 8192 x 4096 x 4 bytes are the limit
        (SEPARATE, (8193, 4096, 64), False, False),
    ],
)
def test_a_bucket_bounds_the_workspace(candidate, shape, is_open, takes):
    assert MAX_WORKSPACE_BYTES == 2**28
    assert Bucket(problem_of(*shape), is_open).takes(candidate) is takes


def test_a_kernel_of_whole_tiles_names_a_general_one():
    indices, section = section_of(
        {(128, 256, 256): {DIRECT: 5.0, TMA: 6.0}, (256, 64, 64): {TMA: 5.0, DIRECT: 9.0}}, Prior(THOR)
    )
    rows = {x.n: x.rows[-1] for x in section.ladders}
    assert (rows[256].kernel, rows[256].general) == (indices[DIRECT], indices[TMA])
    assert (rows[64].kernel, rows[64].general) == (indices[TMA], indices[TMA])
    assert {cell.general for cell in section.grid.cells} == {indices[TMA]}


@pytest.mark.parametrize(("candidate", "target"), [(SPLIT, H200), (DIRECT, THOR)])
def test_a_portfolio_that_does_not_take_everything_is_refused(candidate, target):
    with pytest.raises(SelectionError) as caught:
        section_of({(1, 64, 64): {candidate: 5.0}}, Prior(target))
    assert str(caught.value) == (
        "no kernel of the portfolio takes every shape near bf16_kk m1 n64 k64; raise --max-kernels, or keep one with a "
        "TMA store and no split-K"
    )


def test_known_times_stand_before_the_models():
    here, there = problem_of(64, 1024, 1024), problem_of(128, 1024, 1024)
    filled = {here: {PLAIN: 3.0, SPLIT: 4.0}, there: {SPLIT: 5.0}}
    timed = Timed({here: {PLAIN: 3.0}}, filled, "measured", Shades(lambda _c, p: p.m))
    assert timed.times_us((PLAIN, SPLIT), [there, here]).tolist() == [[128.0, 5.0], [3.0, 4.0]]
    assert timed.incumbent(here) is None


def test_only_what_takes_everything_without_a_workspace_is_general():
    assert [is_general(x) for x in (PLAIN, TMA, SPLIT, SEPARATE, DIRECT)] == [True, True, False, False, False]


def test_the_other_layouts_look_at_every_third_step():
    operation = Operation.of(BF16.element, Layout.MN)
    thin = tuple(sorted({*FINE_GRID_M[::3], FINE_GRID_M[-1]}))

    # From one step that is looked at to the next another kernel is the best, so that nothing merges for free.
    def time(candidate, problem):
        step = next(i for i, m in enumerate(thin) if problem.m <= m)
        return 10.0 if (candidate is PLAIN) == bool(step % 2) else 20.0

    rows = {(64, 512, 512): {PLAIN: 5.0, SWAPPED: 5.5}, (128, 512, 512): {PLAIN: 5.5, SWAPPED: 5.0}}
    _, section = section_of(rows, Shades(time), operation=operation)
    assert (section.grid.m_edges, section.grid.n_edges, section.grid.k_edges) == (thin, FINE_N[-1:], FINE_K[-1:])
    assert {cell.time_us for cell in section.grid.cells} == {10.0}


@pytest.mark.usefixtures("coarse")
def test_a_cell_does_not_merge_into_one_that_cannot_take_its_kernel():
    # SPLIT is the best everywhere, but no open bucket takes it: merging the last steps would lose it.
    model = Shades(lambda c, _p: 10.0 if c is SPLIT else 30.0)
    rows = {(16, 64, 64): {SPLIT: 5.0, PLAIN: 9.0}, (256, 64, 64): {PLAIN: 7.0, SPLIT: 9.0}}
    indices, section = section_of(rows, model)
    grid = section.grid
    assert (grid.m_edges, grid.n_edges, grid.k_edges) == ((128, 256), (512, 4096), (512, 4096))
    assert [cell.kernel == indices[SPLIT] for cell in grid.cells] == [True] + [False] * 7
    (ladder,) = section.ladders
    assert (ladder.m_edges, [row.kernel for row in ladder.rows]) == (
        (16, 128, 256),
        [indices[SPLIT], indices[SPLIT], indices[PLAIN]],
    )


@pytest.mark.usefixtures("coarse")
def test_a_cell_takes_the_kernel_of_the_least_geometric_mean():
    # PLAIN is the better by a constant up to m = 64, SWAPPED from 128 on; neither is a tie.
    model = Shades(lambda c, p: 10.0 if (c is PLAIN) == (p.m <= 64) else 12.0)
    rows = {(16, 64, 64): {PLAIN: 5.0, SWAPPED: 9.0}, (32, 64, 64): {PLAIN: 9.0, SWAPPED: 5.0}}
    indices, section = section_of(rows, model)
    grid = section.grid
    assert (grid.m_edges, grid.n_edges, grid.k_edges) == ((64, 256), (4096,), (4096,))
    assert [(x.kernel, x.time_us, x.runner_up, x.runner_up_us) for x in grid.cells] == [
        (indices[PLAIN], 10.0, indices[SWAPPED], 12.0),
        (indices[SWAPPED], 10.0, indices[PLAIN], 12.0),
    ]


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(("gap", "is_kept"), [(0.9 * PREDICTED_TIE, True), (1.1 * PREDICTED_TIE, False)])
def test_a_predicted_tie_goes_to_the_shipped_kernel(gap, is_kept):
    model = Shades(lambda c, _p: 10.0 * np.exp(gap) if c is SWAPPED else 10.0)
    rows = {(16, 64, 64): {PLAIN: 5.0, SWAPPED: 9.0}, (256, 64, 64): {PLAIN: 9.0, SWAPPED: 5.0}}
    for shipped in (SWAPPED, SPLIT):  # what is not in the portfolio is not asked for
        indices, section = section_of(rows, model, incumbent=lambda _p, x=shipped: x)
        expected = SWAPPED if is_kept and shipped is SWAPPED else PLAIN
        assert {x.kernel for x in section.grid.cells} == {indices[expected]}


@pytest.mark.usefixtures("coarse")
def test_a_ladder_has_edges_between_what_was_tuned_where_that_pays():
    # Tuned at 16 and 256; by the model SWAPPED is better up to 64 and PLAIN above, by half.
    model = Shades(lambda c, p: 10.0 if (c is SWAPPED) == (p.m <= 64) else 15.0)
    rows = {(16, 64, 64): {SWAPPED: 5.0, PLAIN: 9.0}, (256, 64, 64): {PLAIN: 7.0, SWAPPED: 9.0}}
    indices, section = section_of(rows, model)
    (ladder,) = section.ladders
    assert ladder.m_edges == (16, 64, 256)
    assert [(x.kernel, x.time_us, x.provenance) for x in ladder.rows] == [
        (indices[SWAPPED], 5.0, "measured"),
        (indices[SWAPPED], 10.0, "predicted"),
        (indices[PLAIN], 7.0, "measured"),
    ]
    even = Shades(lambda *_: 10.0)
    (ladder,) = section_of(rows, even)[1].ladders
    assert ladder.m_edges == (16, 256)


@pytest.mark.usefixtures("coarse")
def test_a_tuned_edge_stays_with_its_measured_choice_whatever_the_model_says():
    wrong = Shades(lambda c, _p: 10.0 if c is PLAIN else 30.0)
    rows = {(m, 64, 64): {SWAPPED: 5.0, PLAIN: 9.0} for m in (16, 64, 128)}
    indices, section = section_of({**rows, (256, 64, 64): {PLAIN: 7.0, SWAPPED: 9.0}}, wrong)
    (ladder,) = section.ladders
    found = {m: row.kernel for m, row in zip(ladder.m_edges, ladder.rows, strict=True)}
    assert [found[m] for m in (16, 64, 128, 256)] == [*[indices[SWAPPED]] * 3, indices[PLAIN]]


def test_beside_a_measured_time_stands_no_predicted_one():
    here, there = (256, 4096, 4096), (512, 4096, 4096)
    indices, section = section_of(
        {here: {PLAIN: 20.0}, there: {PLAIN: 40.0, SPLIT: 30.0}, (1024, 4096, 4096): {PLAIN: 80.0}}
    )
    found = dict(zip(section.ladders[0].m_edges, section.ladders[0].rows, strict=True))
    first, second = found[256], found[512]
    assert (first.kernel, first.runner_up, first.runner_up_us) == (indices[PLAIN], indices[PLAIN], 20.0)
    assert (second.kernel, second.runner_up, second.runner_up_us) == (indices[SPLIT], indices[PLAIN], 40.0)
    assert {found[m].provenance for m in (256, 512, 1024)} == {"measured"}
