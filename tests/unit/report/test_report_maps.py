"""The maps of a table: colours, cells joined to rectangles, and what is hatched."""

import re
from dataclasses import replace

import pytest

from aot.core.candidate import changed
from aot.core.dispatch import Column, Grid
from aot.report import maps as report_maps
from aot.report.parts import NUM_COLOURS
from aot.space.roofline import Roofline
from tests.unit.reported import DIRECT, TMA, drawn, measured_facts, predicted_facts
from tests.unit.twins import problem_of


def test_eight_kernels_have_colours_of_their_own():
    (x,) = measured_facts().operations
    cells = tuple(replace(x.cells[0], kernel=i, problem=problem_of(16 + i, 256, 512)) for i in range(12))
    classes = report_maps.colours(replace(x, cells=cells))
    assert len(classes) == NUM_COLOURS
    assert list(classes.values()) == [f"k{i + 1}" for i in range(NUM_COLOURS)]


def test_neighbouring_steps_of_one_kernel_are_one_run():
    assert report_maps._runs(Column((1, 8, 16, 64, 99), (2, 2, 1, 2, 2))) == [(2, 0, 8), (1, 8, 16), (2, 16, 99)]
    assert report_maps._runs(Column((64,), (1,))) == [(1, 0, 64)]


def boxes_of(figure, kernel):
    """Give the corners (left, top, right, bottom) of a kernel's rectangles in the map of a grid."""
    (mark,) = (x for x in drawn(figure, "cell") if x["title"] == kernel)
    corners = re.findall(r"M([-.0-9]+) ([-.0-9]+)H([-.0-9]+)V([-.0-9]+)H[-.0-9]+z", mark["d"])
    return [tuple(map(float, x)) for x in corners]


def test_columns_beside_each_other_that_have_the_same_runs_are_one_rectangle():
    (x,) = measured_facts().operations
    # Three columns: the first two are alike but for their steps; the last has another kernel from m 17 on.
    columns = (Column((16, 64), (1, 1)), Column((64,), (1,)), Column((16, 64), (1, 2)))
    section = replace(x.section, grid=Grid((256, 512, 1024), (128,), columns))
    figure = report_maps.grid_map(replace(x, section=section))
    assert figure.table.rows == ((TMA.name, 4, "80.0%"), (DIRECT.name, 1, "20.0%"))
    low, high = sorted(boxes_of(figure, TMA.name), key=lambda box: -box[1])
    (other,) = boxes_of(figure, DIRECT.name)
    assert low[0] == high[0]
    assert low[2] == other[2] > high[2] == other[0]
    assert (high[1], high[3]) == (other[1], other[3])
    assert high[3] == low[1]
    assert len(drawn(figure, "hatching")) == 1


def test_of_many_ranges_of_k_some_are_drawn_with_the_last():
    (x,) = measured_facts().operations
    for count, depths in ((1, [0]), (6, [0, 1, 2, 3, 4, 5]), (7, [1, 2, 3, 4, 5, 6]), (24, [3, 7, 11, 15, 19, 23])):
        edges = tuple(64 * (i + 1) for i in range(count))
        grid = Grid((512,), edges, tuple(Column((16,), (1 if i in depths else 2,)) for i in range(count)))
        assert report_maps._depths(grid) == depths
        figure = report_maps.grid_map(replace(x, section=replace(x.section, grid=grid)))
        assert [mark["title"] for mark in drawn(figure, "cell")] == [TMA.name] * len(depths)
        assert figure.caption.endswith(f" {len(depths)} of {count} ranges of k are drawn.") == (count > 6)
        assert len(drawn(figure, "hatching")) == len(depths)


def test_a_table_without_ladders_has_a_map_of_its_grid_alone():
    (x,) = measured_facts().operations
    section = replace(x.section, ladders=())
    bare = replace(x, cells=(), section=section)
    assert report_maps.chosen(bare) is None
    assert report_maps.reached(bare) is None
    assert report_maps.colours(bare) == {1: "k1"}
    figure = report_maps.grid_map(bare)
    assert figure.table.rows == ((TMA.name, 3, "100.0%"),)
    assert "fall into 2 columns of 3 cells" in figure.caption
    assert "nothing here was measured" in figure.caption


def test_a_grid_alone_gives_kernels_classes_by_their_mean_m():
    (x,) = measured_facts().operations
    grid = Grid((512,), (128,), (Column((16, 64, 256), (2, 0, 1)),))
    bare = replace(x, cells=(), section=replace(x.section, ladders=(), grid=grid))
    assert report_maps.colours(bare) == {2: "k1", 0: "k2", 1: "k3"}


@pytest.mark.parametrize("facts", [measured_facts, predicted_facts])
def test_a_grid_of_one_cell_is_hatched(facts):
    (x,) = facts().operations
    grid = Grid((1,), (1,), (Column((1,), (1,)),))
    figure = report_maps.grid_map(replace(x, section=replace(x.section, grid=grid)))
    assert "fall into 1 columns of 1 cells" in figure.caption
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
    names = tuple(replace(x.kernels[1], candidate=changed(TMA, tile_n=8 * (i + 1))) for i in range(12))
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
