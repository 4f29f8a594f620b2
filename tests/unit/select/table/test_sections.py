import math
from dataclasses import replace

import numpy as np
import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Scope, Section, round_up
from aot.core.errors import SelectionError
from aot.core.measurement import PROVENANCE_PREDICTED
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.families import family_of
from aot.select.portfolio.choose import Budget, choose
from aot.select.score.invariance import prices
from aot.select.table import column_losses
from aot.select.table import sections as table
from aot.select.table.buckets import FINE_GRID_M, FINE_M
from aot.select.table.section_kernels import PREDICTED_TIE, SectionKernels
from aot.select.table.sections import build_section
from aot.select.times.inputs import MAX_WORKSPACE_BYTES, Bucket, Timed, is_general
from aot.select.times.model import Prior
from aot.space.roofline import roofline
from tests.unit.accepted import named
from tests.unit.twins import BF16, problem_of

H200, THOR = load_target("h200"), load_target("thor")
PLAIN = named("sm90_quack_128x128_c1x1_pingpong")
SPLIT = named("sm90_quack_64x64_c1x1_pingpong_serial4")
SEPARATE = named("sm90_quack_64x64_c1x1_pingpong_separate2")
TMA = named("sm100_persistent_128x128_c1x1_clc")
DIRECT = named("sm100_persistent_128x128_c1x1_clc_direct")


SWAPPED = named("sm90_quack_64x16_c1x1_pingpong_swap")


class Shades:
    """A model by which a kernel takes what a function of it and of the problem says, in microseconds."""

    def __init__(self, time):
        self.time, self.num_asked = time, 0

    def times_us(self, candidates, problems, asked=None):
        asked = np.ones((len(problems), len(candidates)), dtype=bool) if asked is None else asked
        self.num_asked += int(asked.sum())
        return np.array(
            [
                [float(self.time(c, p)) if is_asked else np.inf for c, is_asked in zip(candidates, row, strict=True)]
                for p, row in zip(problems, asked, strict=True)
            ]
        )


def section_of(rows, model=None, max_kernels=8, operation=BF16, **options):
    """Build the section of times {(m, n, k): {candidate: us}}; kernel 0 is the fallback."""
    times = {problem_of(*shape, operation): row for shape, row in rows.items()}
    portfolio = choose(times, Budget(max_kernels))
    indices = {candidate: 1 + i for i, candidate in enumerate(portfolio.candidates)}
    timed = Timed(times, times, "measured", model or Prior(H200), **options)
    return indices, build_section(operation, portfolio, timed, indices, 0)


@pytest.fixture(autouse=True)
def _few_columns(monkeypatch):
    """Give the grid four columns."""
    for name in ("FINE_N", "FINE_K"):
        monkeypatch.setattr(table, name, (512, 4096))


@pytest.fixture
def coarse(monkeypatch):
    """Look at few fine steps."""
    for name in ("FINE_M", "FINE_GRID_M"):
        monkeypatch.setattr(table, name, (16, 32, 64, 128, 256))


MIXED_EDGES = (512, 4096, 32768)
"""Of n and k in the grid that `mixed` gives."""


@pytest.fixture(scope="module")
def mixed():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FINE_N", "FINE_K"):
            patch.setattr(table, name, MIXED_EDGES)
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
    assert max(big) == max(small) == FINE_M[-1]
    first = big[16]
    assert (first.kernel, first.general, first.time_us, first.provenance) == (split, split, 5.0, "measured")
    assert (first.runner_up, first.runner_up_us) == (plain, 9.0)
    assert (big[64].kernel, big[64].time_us, small[16].kernel, small[16].time_us) == (split, 8.0, plain, 4.0)
    assert (big[256].kernel, big[256].time_us, big[256].runner_up_us) == (split, 20.0, 21.0)
    for rows, m_tuned in ((small, {16}), (big, {16, 64, 256})):
        assert {m: row.provenance for m, row in rows.items()} == {
            m: "measured" if m in m_tuned else "predicted" for m in rows
        }


def test_split_k_never_serves_an_open_bucket(mixed):
    indices, section = mixed
    for ladder in section.ladders:
        last = ladder.rows[-1]
        assert {last.kernel, last.general, last.runner_up} == {indices[PLAIN]}
        assert last.time_us == last.runner_up_us
        assert last.provenance == "predicted"
    grid = section.grid
    for i, column in enumerate(grid.columns):
        assert column.kernels[-1] == indices[PLAIN]
        if MIXED_EDGES[-1] in grid.corner(i):
            assert set(column.kernels) == {indices[PLAIN]}


def test_split_k_serves_closed_cells(mixed):
    indices, section = mixed
    column = section.grid.columns[section.grid.place(4096, 4096)]
    assert column.kernels[round_up(16, column.m_edges)] == indices[SPLIT]


def test_the_grid_is_complete(mixed):
    indices, section = mixed
    grid = section.grid
    assert (grid.n_edges, grid.k_edges) == (MIXED_EDGES, MIXED_EDGES)
    assert len(grid.columns) == len(MIXED_EDGES) ** 2
    for column in grid.columns:
        assert set(column.m_edges) <= set(FINE_GRID_M)
        assert column.m_edges[-1] == FINE_GRID_M[-1]
        assert set(column.kernels) <= set(indices.values())
    assert max(len(column.m_edges) for column in grid.columns) > 1
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
    known = SectionKernels((candidate,), {candidate: 0}, Timed({}, {}, PROVENANCE_PREDICTED, Prior(THOR)))
    assert known.takes([Bucket(problem_of(*shape), is_open)]).tolist() == [[takes]]


@pytest.mark.parametrize(
    ("m", "is_open_along_m", "takes"), [(1, False, True), (4, False, True), (5, False, False), (4, True, False)]
)
def test_a_bucket_has_no_more_rows_than_its_kernels_are_for(m, is_open_along_m, takes):
    """However far the bucket reaches along n and k."""
    candidate = gemm_candidate("gemv", 1, 4, schedule="r4k4", use_tma_store=False)
    known = SectionKernels((candidate,), {candidate: 0}, Timed({}, {}, PROVENANCE_PREDICTED, Prior(THOR)))
    assert known.takes([Bucket(problem_of(m, 4097, 4097), True, is_open_along_m)]).tolist() == [[takes]]
    assert not is_general(candidate)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("model", [Prior(THOR), Shades(lambda c, _p: 10.0 if c is DIRECT else 30.0)])
def test_a_kernel_of_whole_tiles_names_a_general_one_and_is_in_no_column(model):
    indices, section = section_of(
        {(128, 256, 256): {DIRECT: 5.0, TMA: 6.0}, (256, 64, 64): {TMA: 5.0, DIRECT: 9.0}}, model
    )
    rows = {x.n: dict(zip(x.m_edges, x.rows, strict=True)) for x in section.ladders}
    assert (rows[256][128].kernel, rows[256][128].general) == (indices[DIRECT], indices[TMA])
    assert (rows[64][256].kernel, rows[64][256].general) == (indices[TMA], indices[TMA])
    assert {kernel for column in section.grid.columns for kernel in column.kernels} == {indices[TMA]}


@pytest.mark.parametrize(("candidate", "target", "m"), [(SPLIT, H200, FINE_M[-1]), (DIRECT, THOR, 1)])
def test_a_portfolio_that_does_not_take_everything_is_refused(candidate, target, m):
    with pytest.raises(SelectionError) as caught:
        section_of({(1, 64, 64): {candidate: 5.0}}, Prior(target))
    assert str(caught.value) == (
        f"no kernel of the portfolio takes every shape near bf16_kk m{m} n64 k64; raise --max-kernels, or keep one "
        "with a TMA store and no split-K"
    )


def test_known_times_stand_before_the_models():
    here, there = problem_of(64, 1024, 1024), problem_of(128, 1024, 1024)
    filled = {here: {PLAIN: 3.0, SPLIT: 4.0}, there: {SPLIT: 5.0}}
    timed = Timed({here: {PLAIN: 3.0}}, filled, "measured", Shades(lambda _c, p: p.m))
    assert timed.times_us((PLAIN, SPLIT), [there, here]).tolist() == [[128.0, 5.0], [3.0, 4.0]]
    assert timed.incumbent(here) is None


def test_a_time_of_another_operation_is_at_least_the_roofline_and_one_of_its_own_stands():
    here = problem_of(256, 8192, 8192)
    least = roofline(here, H200).time_us
    filled = {here: {PLAIN: 0.9 * least, SPLIT: 0.9 * least, SWAPPED: 1.5 * least}}
    timed = Timed({here: {PLAIN: 0.9 * least}}, filled, "measured", Shades(lambda *_: 1.0), target=H200)
    found = timed.times_us((PLAIN, SPLIT, SWAPPED, SEPARATE), [here])
    assert found[0].tolist() == [0.9 * least, least, 1.5 * least, least]
    found = replace(timed, provenance="predicted").times_us((PLAIN, SPLIT, SWAPPED, SEPARATE), [here])
    assert found[0].tolist() == [least, least, 1.5 * least, least]


@pytest.mark.parametrize("seed", range(5))
def test_what_a_column_has_is_the_best_of_all_kernels_though_few_are_looked_at(seed, monkeypatch):
    # Nothing merges, so that each fine step has a kernel of its own. A kernel takes a start and so much a row.
    monkeypatch.setattr(table, "MERGE_COST", -1.0)
    names = (f"64x{n}_c1x1_pingpong" for n in (32, 64, 96, 128, 160, 192))
    kernels = [*(named(f"sm90_quack_{x}") for x in names), PLAIN, SWAPPED]
    rng = np.random.default_rng(seed)
    starts = dict(zip(kernels, np.sort(rng.uniform(3, 9, 8)), strict=True))
    slopes = dict(zip(kernels, np.sort(np.exp(rng.uniform(-8, -4, 8)))[::-1], strict=True))
    model = Shades(lambda c, p: starts[c] + slopes[c] * p.m * p.n * p.k / 4096**2)
    rows = {(64 + i, 64, 64): {x: 5.0 + (x is not y) for x in kernels} for i, y in enumerate(kernels)}
    indices, section = section_of(rows, model)
    assert len(indices) == len(kernels)
    asked = model.num_asked
    grid, used = section.grid, set()
    for i, column in enumerate(grid.columns):
        assert column.m_edges == FINE_GRID_M
        n, k = grid.corner(i)
        ends = n, {512: 8, 4096: 520}[n]
        for m, kernel in zip(FINE_GRID_M, column.kernels, strict=True):
            times = [{indices[x]: math.log(model.time(x, problem_of(m, end, k))) for x in kernels} for end in ends]
            over = {x: max(of[x] - min(of.values()) - math.log(1.25) for of in times) for x in indices.values()}
            joined = {x: sum(of[x] for of in times) / 2 + max(over[x], 0.0) for x in over}
            assert kernel == min(joined, key=joined.get), (m, n, k)
            used.add(kernel)
    assert len(used) > 2
    (ladder,) = section.ladders
    of_ladder = 2 * len(ladder.m_edges) * len(kernels)
    assert asked - of_ladder < 0.9 * 2 * 4 * len(FINE_GRID_M) * len(kernels)


@pytest.mark.parametrize(("narrow", "kept"), [(12.0, PLAIN), (20.0, SWAPPED)])
def test_a_kernel_that_loses_a_factor_at_the_narrow_end_of_a_column_is_not_taken(narrow, kept):
    # SWAPPED takes 10 us anywhere; PLAIN 8 at the wide ends of columns, by which it was chosen before.
    model = Shades(lambda c, p: 10.0 if c is SWAPPED else 8.0 if p.n in (512, 4096) else narrow)
    rows = {(64, 64, 64): {PLAIN: 5.0, SWAPPED: 9.0}, (128, 64, 64): {PLAIN: 9.0, SWAPPED: 5.0}}
    indices, section = section_of(rows, model)
    assert {x for column in section.grid.columns for x in column.kernels} == {indices[kept]}


def test_what_a_bucket_cannot_take_stays_barred():
    barred = table.BARRED + 0.5
    found = column_losses.within_factor(np.array([[[1.0, 0.9, barred]]]), np.array([[[1.2, 0.1, barred]]]))
    assert found[0, 0].tolist() == [pytest.approx(1.1 + 1.1 - math.log(1.25)), pytest.approx(0.5), barred]


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(("most", "between"), [(1, PLAIN), (2, SWAPPED)])
def test_between_two_scanned_steps_only_the_nearest_kernels_are_looked_at(monkeypatch, most, between):
    # Steps 16 and 256 are scanned, on which SWAPPED comes second; at all others it is the better by far.
    monkeypatch.setattr(table, "MERGE_COST", -1.0)
    monkeypatch.setattr(column_losses, "MOST", most)
    model = Shades(lambda c, p: 10.0 if c is PLAIN else 11.0 if p.m in (16, 256) else 5.0)
    rows = {(16, 64, 64): {PLAIN: 5.0, SWAPPED: 9.0}, (256, 64, 64): {PLAIN: 9.0, SWAPPED: 5.0}}
    indices, section = section_of(rows, model)
    kernels = tuple(indices[x] for x in (PLAIN, between, between, between, PLAIN))
    assert section.grid.columns == (Column((16, 32, 64, 128, 256), kernels),) * 4


@pytest.mark.usefixtures("coarse")
def test_a_kernel_that_no_bucket_here_takes_hides_none_that_may_stand():
    # SPLIT and DIRECT are far better than PLAIN and TMA, so that these are not near the best of all.
    model = Shades(lambda c, _p: 10.0 if c in {SPLIT, DIRECT} else 30.0)
    best = {16: SPLIT, 32: DIRECT, 256: PLAIN}
    rows = {(m, 64, 64): {c: 5.0 if c is x else 9.0 for c in (SPLIT, DIRECT, PLAIN)} for m, x in best.items()}
    indices, section = section_of(rows, model)
    assert set(indices) == {SPLIT, DIRECT, PLAIN}
    assert section.grid.columns[0] == Column((128, 256), (indices[SPLIT], indices[PLAIN]))
    assert {x for column in section.grid.columns[1:] for x in column.kernels} == {indices[PLAIN]}


def kept_grid(n_edges, m_edges):
    column = Column(m_edges, (1,) * len(m_edges))
    return Section(BF16, (), Grid(n_edges, (512, 4096), (column,) * (2 * len(n_edges))), 0)


@pytest.mark.parametrize(
    ("kept", "edges"),
    [
        (kept_grid((512, 4096), (16384,)), (16384,)),
        (kept_grid((512, 4096), (1024, 16384)), (1024, 16384)),
        (kept_grid((512, 4096), (1024, 4096, 16384)), (1024, 4096, 16384)),
        (kept_grid((512, 4096), (1024,)), (1024, 2048, 16384)),  # what is past its last step is as without it
        (kept_grid((512, 4096), (1025, 16384)), (2048, 16384)),  # no fine step
        (kept_grid((512, 2048), (16384,)), (2048, 16384)),  # another grid
        (None, (2048, 16384)),
    ],
)
def test_the_steps_of_an_earlier_column_stay_where_its_grid_is_the_same(kept, edges):
    # SWAPPED is far better up to 2048, which are 69 of 125 fine steps, and PLAIN above.
    model = Shades(lambda c, p: 10.0 if (c is SWAPPED) == (p.m <= 2048) else 20.0)
    rows = {(16, 64, 64): {SWAPPED: 5.0, PLAIN: 9.0}, (256, 64, 64): {PLAIN: 5.0, SWAPPED: 9.0}}
    indices, section = section_of(rows, model, kept=kept)
    kernels = tuple(indices[SWAPPED if m <= 2048 or edges == (16384,) else PLAIN] for m in edges)
    assert section.grid.columns == (Column(edges, kernels),) * 4


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(
    ("kept", "edges"),
    [
        (None, (16, 32, 64, 128, 256)),
        ((16, 64), (16, 64, 128, 256)),
        ((24, 64), (16, 24, 64, 128, 256)),
        ((8, 16), (8, 16, 32, 64, 128, 256)),
        ((8, 256), (8, 16, 64, 256)),
        ((8, 999), (8, 16, 64, 999)),
    ],
)
def test_an_earlier_ladders_edges_are_all_up_to_its_last_and_past_it_there_are_new_ones(kept, edges):
    # Tuned at 16 and 64; at each fine step another kernel is by far the best.
    steps = (16, 32, 64, 128, 256, 999)
    model = Shades(lambda c, p: 10.0 if (c is SWAPPED) == (round_up(p.m, steps) % 2) else 20.0)
    rows = {(m, 64, 64): {SWAPPED: 9.0, PLAIN: 5.0} for m in (16, 64)}
    rows[16, 512, 64] = {SWAPPED: 5.0, PLAIN: 9.0}
    grid = Grid((1,), (1,), (Column((1,), (1,)),))
    row = Row(1, 1, 9.0, "predicted", 1, 9.0)
    earlier = kept and Section(BF16, (Ladder(64, 64, kept, (row, row)),), grid, 0)
    _, section = section_of(rows, model, kept=earlier)
    assert [x.m_edges for x in section.ladders] == [edges, (16, 32, 64, 128, 256)]


@pytest.mark.usefixtures("coarse")
def test_a_predicted_time_is_at_least_the_roofline_and_a_measured_one_stands():
    rows = {(16, 8192, 8192): {PLAIN: 1.0, SWAPPED: 2.0}, (32, 8192, 8192): {PLAIN: 2.0, SWAPPED: 1.0}}
    model = Shades(lambda c, p: 100.0 if (c is SWAPPED) and p.m > 128 else 1.0)
    least = roofline(problem_of(256, 8192, 8192), H200).time_us
    assert 40 < least < 100
    for target, us in ((H200, round(least, 3)), (None, 1.0)):
        (ladder,) = section_of(rows, model, target=target)[1].ladders
        found = [(x.time_us, x.runner_up_us, x.provenance) for x in ladder.rows]
        assert found == [*[(1.0, 2.0, "measured")] * 2, (us, 100.0, "predicted")]


@pytest.mark.usefixtures("coarse")
def test_between_two_scanned_steps_a_tie_goes_to_the_shipped_kernel_too(monkeypatch):
    # Steps 16 and 256 are scanned, on which SWAPPED is not near; at all others it is 3% slower.
    monkeypatch.setattr(table, "MERGE_COST", -1.0)
    model = Shades(lambda c, p: 10.0 if c is PLAIN else 30.0 if p.m in (16, 256) else 10.3)
    rows = {(16, 64, 64): {PLAIN: 5.0, SWAPPED: 9.0}, (256, 64, 64): {PLAIN: 9.0, SWAPPED: 5.0}}
    for shipped, few in ((PLAIN, PLAIN), (SWAPPED, SWAPPED)):
        indices, section = section_of(rows, model, incumbent=lambda _p, x=shipped: x)
        kernels = tuple(indices[x] for x in (PLAIN, few, few, few, PLAIN))
        assert section.grid.columns == (Column((16, 32, 64, 128, 256), kernels),) * 4


def test_only_what_takes_everything_without_a_workspace_is_general():
    assert [is_general(x) for x in (PLAIN, TMA, SPLIT, SEPARATE, DIRECT)] == [True, True, False, False, False]


def alternating(edges):
    """Return a model by which another kernel is the best from one step to the next, so that nothing merges for free."""
    steps = {m: i for i, m in enumerate(edges)}
    return Shades(lambda c, p: 10.0 if (c is PLAIN) == bool(steps.get(p.m, 0) % 2) else 12.0)


MANY = {(64, 512, 512): {PLAIN: 5.0, SWAPPED: 5.5}, (128, 512, 512): {PLAIN: 5.5, SWAPPED: 5.0}}


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("many", [2, 3])
def test_from_many_problems_on_the_steps_are_the_fine_ones(monkeypatch, many):
    fine = (16, 64, 96, 128, 160, 224)
    monkeypatch.setattr(table, "LEARNED_M", fine)
    monkeypatch.setattr(table, "LEARNED_N", (96, 160, 224))
    monkeypatch.setattr(table, "MANY_PROBLEMS", many)
    model = alternating(fine)
    indices, section = section_of(MANY, model)
    (ladder,) = section.ladders
    if many > len(MANY):
        assert section.grid.n_edges == (512, 4096)
        assert {m for x in section.grid.columns for m in x.m_edges} <= {16, 32, 64, 128, 256}
        assert set(ladder.m_edges) <= {16, 32, 64, 128, 256}
        return
    assert (section.grid.n_edges, section.grid.k_edges) == ((96, 160, 224), (512, 4096))
    kernels = tuple(indices[x] for x in (SWAPPED, PLAIN) * 3)
    assert section.grid.columns == (Column(fine, kernels),) * 6
    # SWAPPED was the faster at 128, so that 96 merges with it for free.
    assert ladder.m_edges == (16, 64, 128, 160, 224)
    assert [row.kernel for row in ladder.rows] == [indices[x] for x in (SWAPPED, PLAIN, SWAPPED, SWAPPED, PLAIN)]
    # A ladder asks for each step's upper edge alone; a column scans steps 1, 5 and 6, and both kernels are near.
    assert model.num_asked == 2 * len(fine) + 6 * 2 * len(fine)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("many", [2, 3])
def test_a_grid_for_rows_between_sectors_has_the_steps_of_the_others(monkeypatch, many):
    monkeypatch.setattr(table, "LEARNED_M", (16, 64, 96, 128, 160, 224))
    monkeypatch.setattr(table, "LEARNED_N", (96, 160, 224))
    monkeypatch.setattr(table, "MANY_PROBLEMS", many)
    model = Shades(lambda c, p: 10.0 if (c is PLAIN) == bool(p.m // 16 % 2) else 12.0)
    indices, section = section_of(MANY, model)
    times = {problem_of(*shape): row for shape, row in MANY.items()}
    known = SectionKernels(tuple(indices), indices, Timed(times, times, "measured", model), between_sectors=True)
    grid = table.build_grid(known, BF16, lambda _: None)
    assert (grid.n_edges, grid.k_edges) == (section.grid.n_edges, section.grid.k_edges)
    assert [x.m_edges for x in grid.columns] == [x.m_edges for x in section.grid.columns]


@pytest.mark.usefixtures("coarse")
def test_other_layouts_and_predicted_tables_have_no_learned_steps(monkeypatch):
    monkeypatch.setattr(table, "LEARNED_N", (96,))
    monkeypatch.setattr(table, "BROAD_N", (128, 512))
    monkeypatch.setattr(table, "MANY_PROBLEMS", 1)
    times = {problem_of(*shape, BF16): row for shape, row in MANY.items()}
    portfolio = choose(times, Budget(8))
    indices = {candidate: 1 + i for i, candidate in enumerate(portfolio.candidates)}
    for provenance, is_invariant, n_edges in (
        ("measured", False, (96,)),
        ("predicted", False, (512, 4096)),
        ("measured", True, (128, 512, 4096)),
    ):
        timed = Timed(times, times, provenance, Shades(lambda *_: 10.0))
        section = build_section(BF16, portfolio, timed, indices, 0, is_invariant=is_invariant)
        assert section.grid.n_edges == n_edges
    for many, n_edges in ((1, (512, 4096)), (1000, (128, 512, 4096))):  # from many problems on, no step is left out
        monkeypatch.setattr(table, "MANY_PROBLEMS", many)
        _, section = section_of(MANY, Shades(lambda *_: 10.0), operation=Operation.of(BF16.element, Layout.MN))
        assert section.grid.n_edges == n_edges


@pytest.mark.usefixtures("coarse")
def test_what_is_not_aligned_has_all_steps_of_k_and_the_close_ones_of_n_where_it_was_timed(monkeypatch):
    monkeypatch.setattr(table, "FINE_N", (64, 512, 1024, 1152, 4096))
    monkeypatch.setattr(table, "FINE_K", (64, 128, 256, 512, 4096))
    monkeypatch.setattr(table, "BROAD_N", ())
    monkeypatch.setattr(table, "CLOSE_N", 600)
    times = {problem_of(*shape, BF16): row for shape, row in MANY.items()}
    portfolio = choose(times, Budget(8))
    indices = {candidate: 1 + i for i, candidate in enumerate(portfolio.candidates)}
    for provenance, n_edges, k_edges in (
        ("measured", (16, 32, 64, 512, 1152, 4096), (64, 128, 256, 512, 4096)),
        ("predicted", (16, 32, 64, 1152, 4096), (64, 512, 4096)),
    ):
        timed = Timed(times, times, provenance, Shades(lambda *_: 10.0))
        section = build_section(BF16, portfolio, timed, indices, 0, loads=2)
        assert (section.grid.n_edges, section.grid.k_edges) == (n_edges, k_edges)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(
    ("operation", "loads", "num_m", "is_named", "has_ladder"),
    [
        (BF16, 0, 1, False, False),
        (BF16, 0, 2, False, True),
        (BF16, 2, 4, False, False),
        (BF16, 2, 5, False, True),
        (BF16, 2, 1, True, True),
        (Operation.BF16_KN, 0, 5, False, False),
        (Operation.BF16_KN, 0, 1, True, True),
    ],
)
def test_sizes_that_were_drawn_have_no_ladder(operation, loads, num_m, is_named, has_ladder):
    times = {problem_of(16 * (1 + m), 512, 512, operation): {PLAIN: 5.0, SWAPPED: 5.5} for m in range(num_m)}
    portfolio = choose(times, Budget(8))
    indices = {candidate: 1 + i for i, candidate in enumerate(portfolio.candidates)}
    timed = Timed(times, times, "measured", Shades(lambda *_: 10.0))
    named = {(512, 512)} if is_named else set()
    section = build_section(operation, portfolio, timed, indices, 0, named=named, loads=loads)
    assert bool(section.ladders) == has_ladder


@pytest.mark.parametrize(("max_cost", "edges"), [(0.018, (32, 40, 256)), (0.02, (256,))])
def test_a_narrow_step_costs_less_to_merge_than_a_wide_one(monkeypatch, max_cost, edges):
    # SWAPPED is the best from 33 to 40 alone, by a fifth: 0.3 octaves of 9, which weigh 0.417 of the mean step. To take
    # PLAIN there too costs 0.417 * log(1.2) / 4 = 0.0190 in the mean of the four steps; unweighted it were 0.0456.
    for name in ("FINE_M", "FINE_GRID_M"):
        monkeypatch.setattr(table, name, (16, 32, 40, 256))
    monkeypatch.setattr(table, "MERGE_COST", max_cost)
    model = Shades(lambda c, p: 10.0 if (c is SWAPPED) == (32 < p.m <= 40) else 12.0)
    rows = {(16, 64, 64): {PLAIN: 5.0, SWAPPED: 9.0}, (256, 64, 64): {PLAIN: 5.0, SWAPPED: 9.0}}
    rows |= {(256, 128, 64): {PLAIN: 9.0, SWAPPED: 5.0}}
    _, section = section_of(rows, model)
    assert {x.m_edges for x in section.grid.columns} == {edges}
    assert section.ladders[0].m_edges == tuple(sorted({16, *edges}))


def test_the_other_layouts_look_at_every_third_step(monkeypatch):
    monkeypatch.setattr(table, "FINE_N", (512, 1024, 2048, 4096, 8192, 16384))
    monkeypatch.setattr(table, "FINE_K", (64, 512, 1024, 4096))
    operation = Operation.of(BF16.element, Layout.MN)
    thin = tuple(sorted({*(x for x in FINE_GRID_M if x <= 128), *FINE_GRID_M[::3], FINE_GRID_M[-1]}))

    # From one step that is looked at to the next another kernel is the best, so that nothing merges for free.
    def time(candidate, problem):
        step = next(i for i, m in enumerate(thin) if problem.m <= m)
        return 10.0 if (candidate is PLAIN) == bool(step % 2) else 12.0

    rows = {(64, 512, 512): {PLAIN: 5.0, SWAPPED: 5.5}, (128, 512, 512): {PLAIN: 5.5, SWAPPED: 5.0}}
    indices, section = section_of(rows, Shades(time), operation=operation)
    grid = section.grid
    narrow = (32, 64, 96, 128, 160, 192, 256, 320, 384)
    assert (grid.n_edges, grid.k_edges) == ((*narrow, 512, 4096, 16384), (64, 4096))
    for column in grid.columns:
        assert column.m_edges == thin
        assert column.kernels == tuple(indices[PLAIN if i % 2 else SWAPPED] for i in range(len(thin)))


@pytest.mark.usefixtures("coarse")
def test_a_cell_does_not_merge_into_one_that_cannot_take_its_kernel():
    # SPLIT is the best everywhere, but no open bucket takes it: merging the last steps would lose it.
    model = Shades(lambda c, _p: 10.0 if c is SPLIT else 30.0)
    rows = {(16, 64, 64): {SPLIT: 5.0, PLAIN: 9.0}, (256, 64, 64): {PLAIN: 7.0, SPLIT: 9.0}}
    indices, section = section_of(rows, model)
    closed, *others = section.grid.columns
    assert closed == Column((128, 256), (indices[SPLIT], indices[PLAIN]))
    assert others == [Column((256,), (indices[PLAIN],))] * 3
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
    assert section.grid.columns == (Column((64, 256), (indices[PLAIN], indices[SWAPPED])),) * 4


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(("gap", "is_kept"), [(0.9 * PREDICTED_TIE, True), (1.1 * PREDICTED_TIE, False)])
def test_a_predicted_tie_goes_to_the_shipped_kernel(gap, is_kept):
    model = Shades(lambda c, _p: 10.0 * np.exp(gap) if c is SWAPPED else 10.0)
    rows = {(16, 64, 64): {PLAIN: 5.0, SWAPPED: 9.0}, (256, 64, 64): {PLAIN: 9.0, SWAPPED: 5.0}}
    for shipped in (SWAPPED, SPLIT):  # what is not in the portfolio is not asked for
        indices, section = section_of(rows, model, incumbent=lambda _p, x=shipped: x)
        expected = SWAPPED if is_kept and shipped is SWAPPED else PLAIN
        assert section.grid.columns == (Column((256,), (indices[expected],)),) * 4


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
def test_a_ladder_goes_on_past_what_was_tuned_with_predicted_rows():
    # Tuned at 16 and 32; by the model SWAPPED is better up to 64 and PLAIN above.
    model = Shades(lambda c, p: 10.0 if (c is SWAPPED) == (p.m <= 64) else 15.0)
    rows = {(16, 64, 64): {SWAPPED: 5.0, PLAIN: 9.0}, (32, 64, 64): {PLAIN: 7.0, SWAPPED: 9.0}}
    indices, section = section_of(rows, model)
    (ladder,) = section.ladders
    assert ladder.m_edges == (16, 32, 64, 256)
    assert [(x.kernel, x.time_us, x.provenance) for x in ladder.rows] == [
        (indices[SWAPPED], 5.0, "measured"),
        (indices[PLAIN], 7.0, "measured"),
        (indices[SWAPPED], 10.0, "predicted"),
        (indices[PLAIN], 10.0, "predicted"),
    ]


@pytest.mark.usefixtures("coarse")
def test_a_ladder_ends_where_what_was_tuned_does_if_that_is_past_all_steps():
    rows = {(16, 64, 64): {PLAIN: 5.0, SWAPPED: 9.0}, (999, 64, 64): {PLAIN: 7.0, SWAPPED: 9.0}}
    indices, section = section_of(rows, Shades(lambda *_: 10.0))
    (ladder,) = section.ladders
    assert ladder.m_edges == (16, 999)
    assert [(x.kernel, x.time_us, x.provenance) for x in ladder.rows] == [
        (indices[PLAIN], 5.0, "measured"),
        (indices[PLAIN], 7.0, "measured"),
    ]


@pytest.mark.usefixtures("coarse")
def test_a_tuned_edge_stays_with_its_measured_choice_whatever_the_model_says():
    wrong = Shades(lambda c, _p: 10.0 if c is PLAIN else 30.0)
    rows = {(m, 64, 64): {SWAPPED: 5.0, PLAIN: 9.0} for m in (16, 64, 128)}
    indices, section = section_of({**rows, (256, 64, 64): {PLAIN: 7.0, SWAPPED: 9.0}}, wrong)
    (ladder,) = section.ladders
    found = {m: row.kernel for m, row in zip(ladder.m_edges, ladder.rows, strict=True)}
    assert [found[m] for m in (16, 64, 128, 256)] == [*[indices[SWAPPED]] * 3, indices[PLAIN]]


@pytest.mark.usefixtures("coarse")
def test_a_tuned_edge_does_not_choose_for_smaller_m_where_another_kernel_is_far_better(monkeypatch):
    monkeypatch.setattr(table, "MERGE_COST", 0.1)
    model = Shades(lambda c, _p: 10.0 if c is PLAIN else 20.0)
    rows = {(16, 64, 64): {PLAIN: 5.0, SWAPPED: 9.0}, (256, 64, 64): {SWAPPED: 7.0, PLAIN: 7.3}}
    indices, section = section_of(rows, model)
    (ladder,) = section.ladders
    assert ladder.m_edges == (16, 128, 256)
    assert [x.kernel for x in ladder.rows] == [indices[x] for x in (PLAIN, PLAIN, SWAPPED)]


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


CLUSTER = named("sm90_cluster_split_k_64x64_c1x1_direct_cluster4")
SMALL = named("sm90_quack_64x64_c1x1_pingpong")
SIMT = named("simt_64x64_c1x1_direct")


def invariant_section(rows):
    """Build the batch-invariant table of times, and the ordinary one, of all kernels that are timed."""
    times = {problem_of(*shape): row for shape, row in rows.items()}
    portfolio = choose(times, Budget(8))
    indices = {candidate: 1 + i for i, candidate in enumerate(portfolio.candidates)}
    timed = Timed(times, times, "measured", Shades(lambda c, p: 1 + (c is CLUSTER) * p.m / 6400))
    kernels = [KernelKey(BF16, SIMT), *(KernelKey(BF16, x) for x in portfolio.candidates)]
    sections = [build_section(BF16, portfolio, timed, indices, 0, is_invariant=x) for x in (False, True)]
    return kernels, indices, times, sections


@pytest.mark.usefixtures("coarse")
def orders_of(section, kernels):
    """Give the orders of sums of the kernels that each (n, k) of a section's ladders may get."""
    orders = [family_of(x.candidate).sum_order(x.candidate) for x in kernels]
    return {
        (ladder.n, ladder.k): {orders[x] for row in ladder.rows for x in (row.kernel, row.general)}
        for ladder in section.ladders
    }


def test_an_invariant_table_takes_the_order_of_sums_that_costs_least():
    rows = {
        # Split sums are far the best at few rows, and little slower at many.
        (16, 512, 4096): {CLUSTER: 1.0, SMALL: 3.0, PLAIN: 4.0},
        (256, 512, 4096): {CLUSTER: 2.2, SMALL: 3.0, PLAIN: 2.0},
        # Here they lose as much as they win before.
        (16, 4096, 4096): {CLUSTER: 2.8, SMALL: 3.0, PLAIN: 4.0},
        (256, 4096, 4096): {CLUSTER: 9.0, SMALL: 5.0, PLAIN: 4.0},
    }
    kernels, _, times, (free, invariant) = invariant_section(rows)
    assert (free.scope, invariant.scope) == (None, Scope(1, batch_invariant=True))
    orders = orders_of(invariant, kernels)
    assert orders[512, 4096] == {"wgmma, blocks of k by turns of 4"}
    assert orders[4096, 4096] == {"wgmma"}
    assert all(len(x) == 1 and "" not in x for x in orders.values())
    assert len(orders_of(free, kernels)[4096, 4096]) == 2
    table = DispatchTable((free, invariant))
    (price,) = prices(table, kernels, {BF16: times}, ((1, 1),) * len(kernels))
    assert (price.num_problems, price.worst_problem) == (4, "bf16_kk m16 n4096 k4096")
    assert price.worst == pytest.approx(4.0 / 2.8, abs=1e-4)
    assert price.mean == pytest.approx((1.1 * 4.0 / 2.8) ** 0.25, abs=1e-4)


@pytest.mark.usefixtures("coarse")
def test_a_section_is_of_one_number_of_products():
    operation = Operation.BF16_KK_BATCHED
    times = {Problem(operation, 16, 512, 4096, g): {PLAIN: 2.0 * g, SMALL: 3.0 * g} for g in (8, 64)}
    portfolio = choose(times, Budget(8))
    indices = {candidate: 1 + i for i, candidate in enumerate(portfolio.candidates)}
    timed = Timed(times, times, "measured", Prior(H200))
    found = build_section(operation, portfolio, timed, indices, 0, num_groups=64)
    assert found.scope == Scope(64, batch_invariant=False)
    (ladder,) = found.ladders
    assert ladder.rows[ladder.m_edges.index(16)].time_us == 128.0
