"""Whether the kernels of a table have one order of sums. What an invariant table costs is in test_table.py."""

from __future__ import annotations

import pytest

from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, Grid, Ladder, Row, Scope, Section
from aot.core.operation import Operation
from aot.select.score.invariance import has_one_order
from tests.unit.accepted import named

GROUPED = Operation.BF16_KK_GROUPED
NAMES = {
    "plain": "sm90_quack_128x128_c1x1_pingpong",
    "small": "sm90_quack_64x64_c1x1_pingpong",
    "split": "sm90_quack_64x64_c1x1_pingpong_serial4",
    "arriving": "sm90_quack_64x64_c1x1_pingpong_parallel4",
    "fallback": "simt_64x64_c1x1_direct",
}
KERNELS = [KernelKey(GROUPED, named(name)) for name in NAMES.values()]
PLACES = {name: place for place, name in enumerate(NAMES)}


def section(*, kernel="plain", general="plain", column="plain", num_groups=8):
    """Make a section of a ladder of one row and a grid of one step; its runner-up is a split, which answers nothing."""
    rows = (Row(PLACES[kernel], PLACES[general], 1.0, "measured", PLACES["split"], 2.0),)
    grid = Grid((4096,), (4096,), (Column((64,), (PLACES[column],)),))
    ladders = (Ladder(4096, 4096, (64,), rows),)
    return Section(GROUPED, ladders, grid, PLACES["fallback"], Scope(num_groups, batch_invariant=False))


def test_kernels_of_one_order_may_have_any_tile():
    assert has_one_order([section(kernel="small"), section(column="small", num_groups=64)], KERNELS)


@pytest.mark.parametrize("place", ["kernel", "general", "column"])
@pytest.mark.parametrize("name", ["split", "fallback"])
def test_another_order_anywhere_is_found(place, name):
    """In a ladder of the very sizes of the grid's column, too, and in the section of another number of groups."""
    assert not has_one_order([section(**{place: name})], KERNELS)
    assert not has_one_order([section(), section(**{place: name}, num_groups=64)], KERNELS)


def test_a_table_of_the_fallback_alone_has_one_order():
    assert has_one_order([section(kernel="fallback", general="fallback", column="fallback")], KERNELS)


def test_sums_in_the_order_of_arrival_and_kernels_that_wait_are_none():
    for name in ("arriving", "split"):
        assert not has_one_order([section(kernel=name, general=name, column=name)], KERNELS)
