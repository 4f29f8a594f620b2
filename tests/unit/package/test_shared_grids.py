from aot.core.dispatch import Column, Grid
from aot.package.shared_grids import SharedGrids, share_grids


def grid(*kernels, edges=(8, 64), orders=None):
    """Make a grid of one row of columns, each with two steps."""
    pairs = zip(kernels[::2], kernels[1::2], strict=True)
    columns = tuple(Column(edges, pair, orders) for pair in pairs)
    return Grid((128,), tuple(range(1, 1 + len(columns))), columns)


def test_grids_of_other_kernels_are_one():
    found = share_grids([grid(7, 9, 9, 3), grid(20, 5, 5, 21)])
    assert found == SharedGrids((grid(1, 0, 0, 2),), ((0, (9, 7, 3)), (0, (5, 20, 21))))


def test_another_choice_edge_or_order_is_another_grid():
    found = share_grids([grid(1, 2), grid(2, 2), grid(1, 2, edges=(8, 65)), grid(1, 2, orders=(0, 1)), grid(3, 4)])
    assert [number for number, _ in found.users] == [0, 1, 2, 3, 0]
    assert len(found.grids) == 4


def test_what_most_steps_name_has_the_smallest_number_and_else_what_is_first():
    assert share_grids([grid(4, 5, 6, 5)]).users == ((0, (5, 4, 6)),)
