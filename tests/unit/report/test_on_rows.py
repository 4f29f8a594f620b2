"""What a report tells of operations on rows."""

from dataclasses import replace

import pytest

from aot.core.measurement import Record
from aot.core.target import load_target
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.problem import RowProblem
from aot.report.facts import facts_of
from aot.report.on_rows import measured_steps, operations, slowest
from aot.report.page import page
from aot.select.join import joined
from aot.select.table.stepped import SteppedTimes, select_stepped
from aot.space.enumeration import legal
from tests.unit.reported import SELECTION, THOR, measured_facts

pytestmark = pytest.mark.slow

H200, GATE, OTHER = load_target("h200"), row_operation("bf16_silu_mul"), row_operation("fp16_silu_mul")
FAST, SLOW = (x for x in legal(GATE, H200) if x.name in ("row_registers_128x1_v8x2", "row_registers_256x1_v8x1"))
TIMES = {RowProblem(GATE, rows, 4096): {FAST: us, SLOW: 2 * us} for rows, us in ((16, 3.0), (512, 8.0), (8192, 90.0))}


def selection():
    return select_stepped((GATE, OTHER), H200, SteppedTimes({GATE: TIMES}), with_heldout=False)


def test_each_operation_has_its_kernels_steps_and_regrets():
    found = operations(selection())
    assert found.header[:4] == ("operation", "kernels", "steps, measured", "steps")
    (own, imputed) = found.rows
    assert (own[0], own[2], own[4]) == ("bf16_silu_mul", "3", "0.00%")
    assert (imputed[0], imputed[2]) == ("fp16_silu_mul", "0")
    assert operations(SELECTION) is None


def test_the_slowest_are_measured_and_longer_than_a_launch():
    steps = list(measured_steps(selection(), H200))
    assert [(x.problem.rows, x.step.time_us) for x in steps] == [(16, 3.0), (512, 8.0), (8192, 90.0)]
    found = slowest(selection(), H200)
    assert [row[1] for row in found.rows] == ["512", "8,192"]
    (first, _) = found.rows
    assert first[3:5] == (FAST.name, "8.00")
    least = RowProblem(GATE, 512, 4096).num_bytes / H200.bandwidth_bytes_per_s * 1e6
    assert str(first[6]) == f"{100 * least / 8:.1f}%"
    assert slowest(SELECTION, THOR) is None


def test_the_page_has_them_where_a_selection_has_them():
    facts = measured_facts()
    assert "Operations on rows" not in page(facts)
    rows = replace(selection(), target=facts.selection.target)
    text = page(replace(facts, selection=joined(facts.selection, rows), target=H200))
    assert '<a href="#rows">Operations on rows</a>' in text
    assert "Furthest from the roofline" in text
    assert "silu_<wbr>mul" in text or "silu_mul" in text


def test_a_page_of_operations_on_rows_alone_is_whole():
    own = selection()
    facts = facts_of(own, H200, Record("h200", (), (), ()))
    text = page(facts)
    assert "<h1>Kernels for h200</h1>" in text
    assert 'href="#main"' not in text
    assert f"<b>{len(own.others.kernels)}</b><span>kernels shipped, 2 operations</span>" in text
    assert "mean regret in sample, bf16_silu_mul: 1 kernels, 3 problems" in text
    assert f"<dt>Roofs</dt><dd>{H200.bandwidth_bytes_per_s / 1e12:.3g} TB/s, as the target" in text
    predicted = select_stepped((GATE,), H200, with_heldout=False)
    assert "regret: nothing was measured" in page(facts_of(predicted, H200, None))
