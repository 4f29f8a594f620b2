"""The maps of a table: colours, cells joined to rectangles, and what is hatched."""

from dataclasses import replace

import pytest

from aot.core.dispatch import Grid
from aot.report import maps as report_maps
from aot.report.parts import NUM_COLOURS
from aot.space.roofline import Roofline
from tests.unit.reported import DIRECT, GRID, TMA, drawn, measured_facts, predicted_facts
from tests.unit.twins import problem_of


def test_eight_kernels_have_colours_of_their_own():
    (x,) = measured_facts().operations
    cells = tuple(replace(x.cells[0], kernel=i, problem=problem_of(16 + i, 256, 512)) for i in range(12))
    classes = report_maps.colours(replace(x, cells=cells))
    assert len(classes) == NUM_COLOURS
    assert list(classes.values()) == [f"k{i + 1}" for i in range(NUM_COLOURS)]


def test_cells_of_one_kernel_are_one_rectangle():
    first, other = GRID.cells[0], replace(GRID.cells[0], kernel=2)
    grid = Grid((1, 2), (8, 16, 24), (64,), (first, first, first, first, first, other))
    found = report_maps._stacks(grid, 0)
    assert {(run.kernel, run.first, run.last): stack for run, stack in found.items()} == {
        (1, 0, 1): [(0, 1)],
        (1, 0, 0): [(2, 2)],
        (2, 1, 1): [(2, 2)],
    }


def test_a_table_without_ladders_has_a_map_of_its_grid_alone():
    (x,) = measured_facts().operations
    section = replace(x.section, ladders=())
    bare = replace(x, cells=(), section=section)
    assert report_maps.chosen(bare) is None
    assert report_maps.reached(bare) is None
    assert report_maps.colours(bare) == {1: "k1"}
    figure = report_maps.grid_map(bare)
    assert figure.table.rows == ((TMA.name, 4, "100.0%"),)
    assert "4 rest on measured ones" in figure.caption
    assert drawn(figure, "hatching") == []


def test_a_grid_of_one_predicted_cell_is_hatched():
    (x,) = predicted_facts().operations
    grid = Grid((1,), (1,), (1,), x.section.grid.cells[:1])
    figure = report_maps.grid_map(replace(x, section=replace(x.section, grid=grid)))
    assert "the 1 cells" in figure.caption
    assert "all predicted, so hatched" in figure.caption
    assert (len(drawn(figure, "cell")), len(drawn(figure, "hatching"))) == (1, 1)


def test_ladders_name_their_kernels_and_their_open_end():
    (x,) = measured_facts().operations
    figure = report_maps.chosen(x)
    assert figure.table.rows == (
        (256, 512, "1", "16", TMA.name, "1 of 1"),
        (256, 512, "17", "and more", DIRECT.name, "1 of 1"),
    )
    assert [mark["title"] for mark in drawn(figure, "cell")] == [TMA.name, DIRECT.name]
    assert [mark.text for mark in figure.legend] == [TMA.name, DIRECT.name, report_maps.PREDICTED.text]


def test_more_kernels_than_colours_share_one():
    (x,) = measured_facts().operations
    names = tuple(replace(x.kernels[1], candidate=replace(TMA, tile_n=8 * (i + 1))) for i in range(12))
    cells = tuple(replace(x.cells[0], kernel=i, problem=problem_of(16 + i, 256, 512)) for i in range(12))
    figure = report_maps.chosen(replace(x, cells=cells, kernels=names))
    assert len(drawn(figure, report_maps.OTHER)) == 12 - NUM_COLOURS
    assert figure.legend[-2].text == "4 others, named in the table and on pointing"


@pytest.mark.parametrize(
    ("fraction", "shade"),
    [(1e-6, "below 25%"), (0.2499, "below 25%"), (0.25, "25 to 50%"), (0.85, "85% and more"), (40.0, "85% and more")],
)
def test_a_shade_is_of_the_share_of_the_limit(fraction, shade):
    (x,) = measured_facts().operations
    cell = replace(x.cells[-1], roofline=Roofline(1.0, "memory"), time_us=1 / fraction)
    figure = report_maps.reached(replace(x, cells=(cell,)))
    assert [row[0] for row in figure.table.rows if row[1]] == [shade]
    assert [mark["title"] for mark in drawn(figure, "cell")] == [f"{shade} of the roofline"]


@pytest.mark.parametrize(
    ("edges", "step", "text"),
    [
        ((64,), 0, "any k"),
        ((64, 128), 0, "k up to 64"),
        ((64, 128, 256), 1, "k 65 to 128"),
        ((64, 128), 1, "k above 64"),
    ],
)
def test_extents_of_a_step(edges, step, text):
    assert report_maps._between(edges, step, "k") == text
