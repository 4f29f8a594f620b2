"""Tables filled anew where a rule refuses their kernels: what changes, and what does not."""

from dataclasses import replace

import numpy as np
import pytest

from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Scope, Section
from aot.core.target import load_target
from aot.select.reuse.refill import Refill
from aot.select.times.orders import NONE_ORDERED, Orders
from aot.space.roofline import roofline
from tests.unit.accepted import named
from tests.unit.select.table.test_sections import Shades
from tests.unit.twins import BF16, problem_of

H200 = load_target("h200")
SIMT = named("simt_64x64_c1x1_direct")
ONE = named("sm90_one_tile_128x128_c1x1_direct")
BIG = named("sm90_partial_tile_128x256_c1x1_cooperative")
PLAIN = named("sm90_quack_128x128_c1x1_pingpong")
SPLIT = named("sm90_quack_64x64_c1x1_pingpong_serial4")
KERNELS = tuple(KernelKey(BF16, x) for x in (SIMT, ONE, BIG, PLAIN, SPLIT))
TIMES = {SIMT: 1.0, ONE: 2e6, BIG: 3e6, PLAIN: 4e6, SPLIT: 1.0}


class NotAbove:
    """Refuses a kernel above an m."""

    def __init__(self, kernel, m):
        self.kernel, self.m = kernel, m

    def penalty(self, candidates, problems):
        return np.array([[1e3 if c == self.kernel and p.m > self.m else 0.0 for c in candidates] for p in problems])


def row(kernel, provenance="predicted", **changes):
    return replace(Row(kernel, kernel, 9.0, provenance, 3, 10.0), **changes)


SECTION = Section(
    BF16,
    (
        Ladder(
            512,
            512,
            (64, 256, 512, 1024),
            (row(1), row(1, tile_order=3), row(1, "measured"), row(2)),
        ),
    ),
    Grid((512,), (512, 4096), (Column((64, 256), (1, 1), (5, 5)), Column((256, 1024), (1, 3), None))),
    0,
)


def refill(rule, times=TIMES, orders=None):
    return Refill(KERNELS, rule, Shades(lambda c, _: times[c]), H200, orders)


def test_what_a_rule_refuses_gets_the_best_kernel_that_it_allows():
    found, count = refill(NotAbove(ONE, 100)).section(SECTION)
    assert count == 3
    rows = found.ladders[0].rows
    assert [x.kernel for x in rows] == [1, 2, 1, 2]
    # The next best, without the kernel with a workspace and the fallback, which the model calls the fastest.
    assert rows[1] == Row(2, 2, 3e6, "predicted", 3, 4e6)
    assert (rows[0], rows[2], rows[3]) == (SECTION.ladders[0].rows[0], *SECTION.ladders[0].rows[2:])
    assert found.grid.columns == (Column((64, 256), (1, 2), (5, 0)), Column((256, 1024), (2, 3), None))
    assert [x.m_edges for x in found.ladders] == [x.m_edges for x in SECTION.ladders]


def test_a_table_within_the_rule_stays_as_it_is():
    found, count = refill(NotAbove(ONE, 512)).section(SECTION)
    assert (found is SECTION, count) == (True, 0)


def test_no_time_is_below_the_roofline():
    found, _ = refill(NotAbove(ONE, 100), dict.fromkeys(TIMES, 1e-6)).section(SECTION)
    least = round(roofline(problem_of(256, 512, 512), H200).time_us, 3)
    assert (found.ladders[0].rows[1].time_us, found.ladders[0].rows[1].runner_up_us) == (least, least)


def test_where_all_are_refused_the_least_penalty_decides():
    class Rule(NotAbove):
        def penalty(self, candidates, problems):
            return super().penalty(candidates, problems) + np.array([[2e3 if c == BIG else 1e2 for c in candidates]])

    found, count = refill(Rule(ONE, 0)).section(SECTION)
    assert count == 6  # all predicted places but the one that has the kernel already
    assert {x for column in found.grid.columns for x in column.kernels} == {3}


def test_a_new_kernel_has_the_order_that_is_predicted_for_it():
    class Always:
        def best(self, candidate, problems):
            return 7

    orders = Orders(NONE_ORDERED, None, KERNELS)
    told = replace(orders, ordered=replace(NONE_ORDERED, times={problem_of(1, 8, 8): {}}), model=Always())
    found, _ = refill(NotAbove(ONE, 100), orders=told).section(SECTION)
    assert [x.tile_order for x in found.ladders[0].rows] == [None, 7, None, None]
    assert [x.tile_orders for x in found.grid.columns] == [(5, 7), (7, 0)]
    assert refill(NotAbove(ONE, 100), orders=orders).section(SECTION)[0].grid.columns[1].tile_orders is None


def test_a_batch_invariant_table_keeps_its_order_of_sums():
    section = replace(SECTION, scope=Scope(1, batch_invariant=True))
    rule = NotAbove(BIG, 100)
    assert refill(rule).section(SECTION)[0].ladders[0].rows[3].kernel == 1  # the fastest, by turns of k
    found, count = refill(rule).section(section)
    assert (found.ladders[0].rows[3].kernel, count) == (3, 1)


def test_sections_are_left_out_on_demand():
    table = DispatchTable((SECTION, replace(SECTION, scope=Scope(2, batch_invariant=False))))
    found, count = refill(NotAbove(ONE, 100)).table(table, lambda section: section.num_groups == 1)
    assert count == 3
    assert (found.sections[0] != SECTION, found.sections[1]) == (True, table.sections[1])


@pytest.mark.parametrize("m", [100, 0])
def test_filling_twice_changes_nothing_more(m):
    rule = NotAbove(ONE, m)
    once, count = refill(rule).section(SECTION)
    assert count
    assert refill(rule).section(once) == (once, 0)
