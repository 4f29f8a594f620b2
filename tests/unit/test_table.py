from itertools import pairwise

import pytest
from accepted import named
from twins import BF16, problem_of

from aot.cost import estimate
from aot.errors import SelectionError
from aot.problem import Layout, Operation
from aot.select import choose
from aot.table import GRID_K, GRID_M, GRID_N, MAX_WORKSPACE_BYTES, Bucket, Predictor, Timed, build_section, is_general
from aot.target import load_target

H200, THOR = load_target("h200"), load_target("thor")
PLAIN = named("sm90_quack_128x128_c1x1_pingpong", "h200")
SPLIT = named("sm90_quack_64x64_c1x1_pingpong_serial4", "h200")
SEPARATE = named("sm90_quack_64x64_c1x1_pingpong_separate2", "h200")
TMA = named("sm100_persistent_128x128_c1x1_clc", "thor")
DIRECT = named("sm100_persistent_128x128_c1x1_clc_direct", "thor")


def section_of(rows, target=H200, max_kernels=8):
    """Build the section of times {(m, n, k): {candidate: us}}; kernel 0 is the fallback."""
    times = {problem_of(*shape): row for shape, row in rows.items()}
    portfolio = choose(times, max_kernels)
    indices = {candidate: 1 + i for i, candidate in enumerate(portfolio.candidates)}
    return indices, build_section(BF16, portfolio, Timed(times, times, "measured"), indices, 0, target)


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
    assert [(x.n, x.k, x.m_edges) for x in section.ladders] == [(512, 512, (16,)), (4096, 4096, (16, 64, 256))]
    first = section.ladders[1].rows[0]
    assert (first.kernel, first.general, first.time_us, first.provenance) == (split, split, 5.0, "measured")
    assert (first.runner_up, first.runner_up_us) == (plain, 9.0)
    assert {row.provenance for x in section.ladders for row in x.rows} == {"measured"}


def test_split_k_never_serves_an_open_bucket(mixed):
    indices, section = mixed
    last = section.ladders[1].rows[-1]
    assert (last.kernel, last.time_us) == (indices[PLAIN], 21.0)
    assert (last.runner_up, last.runner_up_us) == (indices[PLAIN], 21.0)
    for i, m in enumerate(GRID_M):
        for j, n in enumerate(GRID_N):
            for k in range(len(GRID_K)):
                cell = section.grid.cells[(i * len(GRID_N) + j) * len(GRID_K) + k]
                if m == GRID_M[-1] or n == GRID_N[-1] or k == len(GRID_K) - 1:
                    assert {cell.kernel, cell.general, cell.runner_up} == {indices[PLAIN]}


def test_split_k_serves_closed_cells(mixed):
    indices, section = mixed
    assert indices[SPLIT] in {cell.kernel for cell in section.grid.cells}
    assert section.grid.cells[section.grid.cell(16, 4096, 4096)].kernel == indices[SPLIT]


def test_the_grid_is_predicted_and_complete(mixed):
    _, section = mixed
    assert (section.grid.m_edges, section.grid.n_edges, section.grid.k_edges) == (GRID_M, GRID_N, GRID_K)
    assert len(section.grid.cells) == len(GRID_M) * len(GRID_N) * len(GRID_K)
    assert {cell.provenance for cell in section.grid.cells} == {"predicted"}
    assert all(cell.time_us > 0 and cell.runner_up_us > 0 for cell in section.grid.cells)
    assert section.fallback == 0


@pytest.mark.parametrize(("edges", "factor"), [(GRID_M[1:], 2), (GRID_N, 2), (GRID_K, 4)])
def test_steps_of_the_grid_are_small(edges, factor):
    assert all(low < high <= factor * low for low, high in pairwise(edges))


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
        {(128, 256, 256): {DIRECT: 5.0, TMA: 6.0}, (256, 64, 64): {TMA: 5.0, DIRECT: 9.0}}, THOR
    )
    rows = {x.n: x.rows[0] for x in section.ladders}
    assert (rows[256].kernel, rows[256].general) == (indices[DIRECT], indices[TMA])
    assert (rows[64].kernel, rows[64].general) == (indices[TMA], indices[TMA])
    assert {cell.general for cell in section.grid.cells} == {indices[TMA]}


@pytest.mark.parametrize(("candidate", "target"), [(SPLIT, H200), (DIRECT, THOR)])
def test_a_portfolio_that_does_not_take_everything_is_refused(candidate, target):
    message = "no kernel of the portfolio takes every shape near bf16_kk m16 n64 k64; raise --max-kernels, or keep one"
    with pytest.raises(SelectionError, match=message):
        section_of({(16, 64, 64): {candidate: 5.0}}, target)


def test_predictions_are_the_models_corrected_by_what_was_timed_nearby():
    near, far, other = problem_of(64, 1024, 1024), problem_of(4096, 1024, 1024), problem_of(128, 1024, 1024)
    candidates = (PLAIN, SPLIT)
    model = dict(zip((near, far, other), estimate(candidates, [near, far, other], H200).total_us.tolist(), strict=True))
    predictor = Predictor.of(candidates, {near: {PLAIN: 2 * model[near][0]}, far: {PLAIN: model[far][0]}}, H200)
    found = dict(zip((near, far, other), predictor.times_us([near, far, other]).tolist(), strict=True))
    assert found[near][0] == pytest.approx(2 * model[near][0], rel=1e-6)
    assert found[far][0] == pytest.approx(model[far][0], rel=1e-6)
    assert found[other][0] == pytest.approx(2 * model[other][0], rel=1e-4)
    assert [found[x][1] for x in found] == pytest.approx([model[x][1] for x in found])


def test_only_what_takes_everything_without_a_workspace_is_general():
    assert [is_general(x) for x in (PLAIN, TMA, SPLIT, SEPARATE, DIRECT)] == [True, True, False, False, False]


def test_the_other_layouts_have_a_coarser_grid():
    operation = Operation.of(BF16.dtype, Layout.MN)
    times = {problem_of(64, 512, 512, operation): {PLAIN: 5.0}}
    section = build_section(operation, choose(times, 1), Timed(times, times, "measured"), {PLAIN: 1}, 0, H200)
    grid = section.grid
    assert (len(grid.m_edges), len(grid.n_edges), grid.k_edges) == (11, 7 + (GRID_N[::3][-1] != GRID_N[-1]), GRID_K)
    assert (grid.m_edges[-1], grid.n_edges[-1]) == (GRID_M[-1], GRID_N[-1])
    assert len(grid.cells) == len(grid.m_edges) * len(grid.n_edges) * len(grid.k_edges)


def test_beside_a_measured_time_stands_no_predicted_one():
    here, there = (256, 4096, 4096), (512, 4096, 4096)
    indices, section = section_of(
        {here: {PLAIN: 20.0}, there: {PLAIN: 40.0, SPLIT: 30.0}, (1024, 4096, 4096): {PLAIN: 80.0}}
    )
    first, second, _ = section.ladders[0].rows
    assert (first.kernel, first.runner_up, first.runner_up_us) == (indices[PLAIN], indices[PLAIN], 20.0)
    assert (second.kernel, second.runner_up, second.runner_up_us) == (indices[SPLIT], indices[PLAIN], 40.0)
    assert {row.provenance for row in section.ladders[0].rows} == {"measured"}
