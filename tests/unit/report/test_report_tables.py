"""The tables of a report: their rows as texts, of much, of little and of nothing."""

from dataclasses import replace

import pytest

from aot.report import tables as report_tables
from aot.report.parts import MINUS, Bar
from aot.report.tables import LARGE_US, NUM_SHOWN
from aot.space.roofline import Roofline
from tests.unit.reported import DIRECT, TMA, WIDE, measured_facts, predicted_facts
from tests.unit.twins import CONDITIONS, problem_of

FACTS = measured_facts()
(OPERATION,) = FACTS.operations
(PREDICTED,) = predicted_facts().operations


def conditions_of(*runs):
    return dict(report_tables.conditions(replace(FACTS, selection=replace(FACTS.selection, conditions=runs))))


def test_conditions_of_one_run():
    found = conditions_of(CONDITIONS)
    assert found["Device"] == "Twin, sm_90a, 4 SMs"
    assert (found["SM clock"], found["Memory clock"], found["Power"]) == ("1000 MHz", "2000 MHz", "100 W")
    assert (found["Measured"], found["Record"]) == ("2026-11-20, in 1 runs", "thor: 12 times")
    assert found["Roofs"].startswith("258 TFLOP/s, 0.273 TB/s, ")


def test_conditions_that_differ_between_runs_are_ranges_and_lists():
    other = replace(CONDITIONS, sm_clock_mhz=900, memory_clock_mhz=None, power_mode=None, driver="2", date="2026-11-19")
    found = conditions_of(CONDITIONS, other, other)
    assert found["SM clock"] == "900 to 1000 MHz, read just after load"
    assert (found["Memory clock"], found["Power"], found["Driver"]) == ("2000 MHz", "100 W, not known", "1.0, 2")
    assert found["Measured"] == "2026-11-19 to 2026-11-20, in 3 runs"
    assert conditions_of(replace(CONDITIONS, sm_clock_mhz=None))["SM clock"] == "not read"
    assert conditions_of()["Measured"] == "not known"


def test_what_is_predicted_has_no_device():
    found = dict(report_tables.conditions(predicted_facts()))
    assert list(found) == ["Target", "Provenance", "Roofs"]
    assert found["Provenance"] == "predicted: the times are the cost model's (cost-model-v1); nothing was measured"


def test_operations():
    (row,) = report_tables.operations(FACTS).rows
    held = "25.00% (tuned n and k, other m), 25.00% (other n and k)"
    assert row == ("bf16_kk", "2", "2", "1.25%", "1.00%", "10.0%", held)
    bare = (replace(OPERATION, heldout=()), replace(OPERATION, regret=None))
    first, second = report_tables.operations(replace(FACTS, operations=bare)).rows
    assert first[-1] == "none held out"
    assert second == ("bf16_kk", "", "", "", "", "", "")
    (row,) = report_tables.operations(predicted_facts()).rows
    assert row[2:] == ("2", "3", "not known")


def test_what_failed_and_what_was_rejected():
    table = report_tables.failed(OPERATION)
    assert [row[:3] for row in table.rows] == [
        ("workspace too small", "2", "1"),
        ("quarantined: <wrong> & unsafe", "1", "1"),
    ]
    assert report_tables.failed(PREDICTED) is None
    rows = report_tables.rejected(OPERATION).rows
    assert {row[0] for row in rows} == {family.family for family in OPERATION.families}
    for family in OPERATION.families:
        verdict, *reasons = [row for row in rows if row[0] == family.family]
        assert verdict[1:3] == (str(family.num_accepted), "legal")
        counts = [int(row[1]) for row in reasons]
        assert counts == sorted(counts, reverse=True)
        assert sum(counts) == sum(family.num_rejected.values())


def test_runners_are_shown_beside_the_first():
    (row,) = report_tables.runners(OPERATION).rows
    assert row == (WIDE.name, Bar(f"{MINUS}12.500%", 1.0), "1", f"{MINUS}25.0%", "m16 n256 k512", "2")
    (first,) = OPERATION.unchosen
    many = tuple(replace(first, mean_gain=first.mean_gain / 2**i) for i in range(NUM_SHOWN + 5))
    rows = report_tables.runners(replace(OPERATION, unchosen=many)).rows
    assert [row[1].share for row in rows] == [0.5**i for i in range(NUM_SHOWN)]
    assert report_tables.runners(PREDICTED) is None


def test_the_slowest_rows_of_all_and_of_those_that_are_large():
    cell = OPERATION.cells[0]
    large = replace(cell, problem=problem_of(17, 256, 512), roofline=Roofline(LARGE_US, "compute"), time_us=5.0)
    tables = report_tables.slowest(replace(OPERATION, cells=(large, *OPERATION.cells)))
    assert [title.partition(",")[0] for title, _ in tables] == [
        "Of the 1 rows whose roofline is 10 us or more",
        "Of all 3 rows",
    ]
    (row,) = tables[0][1].rows
    # A roofline that was measured low may be beaten: the bar stays within its cell.
    assert row == ("m 17, n 256, k 512", Bar("200.0%", 1.0), "5.00", "10.0, compute", TMA.name)
    assert [row[0] for row in tables[1][1].rows] == [f"m {m}, n 256, k 512" for m in (16, 128, 17)]
    assert report_tables.slowest(replace(OPERATION, cells=())) == []
    ((_, table),) = report_tables.slowest(PREDICTED)
    assert table.header[1:3] == ("of the roofline, predicted", "us, predicted")


def test_the_largest_regrets():
    rows = report_tables.largest(OPERATION).rows
    assert [row[:2] for row in rows] == [
        ("m16 n256 k512", "in sample"),
        ("m20 n256 k512", "held out, tier 1"),
        ("m64 n512 k128", "held out, tier 2"),
        ("m128 n256 k512", "in sample"),
    ]
    assert rows[0][2:] == (Bar("25.0%", 1.0), f"{TMA.name}, 4.00", f"{WIDE.name}, 3.20")
    assert rows[3][2:] == (Bar("0.0%", 0.0), f"{DIRECT.name}, 6.00", f"{DIRECT.name}, 6.00")
    assert report_tables.largest(PREDICTED) is None


@pytest.mark.parametrize("is_own", [True, False])
def test_a_single_problem_without_regret_has_an_empty_bar(is_own):
    (alone,) = (replace(x, is_own=is_own) for x in OPERATION.inside if x.found.regret == 0)
    (row,) = report_tables.largest(replace(OPERATION, inside=(alone,), outside=())).rows
    assert row[1:3] == ("in sample" if is_own else "in sample, by an imputed time", Bar("0.0%", 0.0))
