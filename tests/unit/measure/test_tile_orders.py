"""Orders of tiles in a tuning: of which kernels they are measured, on which problems, and what is kept of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aot.core.tile_order import HEURISTIC, count_clusters, distinct_orders
from aot.measure.session import StoppedError
from aot.measure.store import open_store
from tests.unit.measure.test_worker import KERNELS, NAMES, Rig, few_shapes
from tests.unit.twins import problem_of

pytestmark = pytest.mark.slow

__all__ = ["few_shapes"]

PROBLEM = problem_of(1000, 1200, 16)
NEAR = {NAMES[0]: 10.0, NAMES[1]: 10.5, NAMES[2]: 11.5, NAMES[3]: 10.9, NAMES[4]: 10.8}
"""Five kernels near the best: four within a tenth of it, of which three get orders."""
ORDERED = (NAMES[0], NAMES[1], NAMES[4])
MANY_SMS = 10**6


def orders_of(name):
    """List the orders that are to be measured of a kernel on the problem, besides its own."""
    (kernel,) = (x for x in KERNELS if x.name == name)
    return distinct_orders(*count_clusters(kernel.key.candidate, PROBLEM))[1:]


def rig_of(path, times=(), num_sms=MANY_SMS, orders_tiles=True, **more):
    kernels = tuple(replace(x, orders_tiles=orders_tiles) for x in KERNELS)
    rig = Rig(path, kernels=kernels, num_sms=num_sms, **more)
    rig.tuning = replace(rig.tuning, problems=(PROBLEM,))
    rig.kernels.times_us |= NEAR | dict(times)
    return rig


def rows_of(rig):
    with open_store(rig.path) as store:
        return {(x.kernel.name, x.tile_order): x for x in store.latest(PROBLEM).values()}


def test_the_best_few_are_measured_in_the_orders_that_differ(tmp_path):
    fast = orders_of(NAMES[1])[2]
    rig = rig_of(tmp_path / "r", {f"{NAMES[1]} n1": 5.0})
    rig.run()
    rows = rows_of(rig)
    expected = {(name, order) for name in ORDERED for order in orders_of(name)}
    assert {x for x in rows if x[1] != HEURISTIC} == expected
    assert len(expected) > len(ORDERED)
    assert (NAMES[1], 5) in expected, fast
    assert (rows[NAMES[1], 5].median_us, rows[NAMES[1], 5].num_rounds) == (pytest.approx(5.0), 7)
    assert rows[NAMES[1], HEURISTIC].median_us == pytest.approx(10.5)
    assert all(row.ok for row in rows.values())


@pytest.mark.parametrize(("num_sms", "orders_tiles"), [(0, True), (16, True), (MANY_SMS, False)])
def test_many_waves_and_kernels_of_one_order_are_left_as_they_are(tmp_path, num_sms, orders_tiles):
    rig = rig_of(tmp_path / "r", num_sms=num_sms, orders_tiles=orders_tiles)
    rig.run()
    assert {order for _, order in rows_of(rig)} == {HEURISTIC}


def test_a_wrong_result_in_an_order_quarantines_that_order_alone(tmp_path):
    rig = rig_of(tmp_path / "r", faults={f"{NAMES[0]} n1": ("wrong", 0)})
    rig.run()
    rows = rows_of(rig)
    assert [x for x, row in rows.items() if not row.ok] == [(NAMES[0], 5)]
    assert rows[NAMES[0], HEURISTIC].num_rounds == 7


def test_a_run_that_was_stopped_carries_on_with_the_orders_that_are_left(tmp_path):
    first = rig_of(tmp_path / "r")
    first.stop = lambda: first.kernels.launches[-1][0] == f"{NAMES[0]} n1"
    with pytest.raises(StoppedError):
        first.run()
    second = rig_of(tmp_path / "r")
    second.run(2)
    assert f"{NAMES[0]} n1" in {name for name, _ in first.kernels.launches}
    checked = [name for name, _ in second.kernels.launches if " " in name]
    assert {x for x in rows_of(second) if x[1] != HEURISTIC} == {(x, y) for x in ORDERED for y in orders_of(x)}
    assert checked.count(f"{NAMES[0]} m1") < checked.count(f"{NAMES[1]} m1")
