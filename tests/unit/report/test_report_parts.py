"""How a report writes numbers, names and columns."""

from dataclasses import replace

from aot.core.element import ElementType
from aot.core.operation import Layout, Operation
from aot.report.parts import MINUS, Bar, Table, kernel_name, microseconds, operation_name, share, sizes
from tests.unit.reported import TMA, measured_facts


def test_entries():
    table = Table(("a", "b"), (("x", Bar("1.5%", 0.5)), ("y", "~2")))
    assert table.alignments == ("", "n")
    assert [microseconds(x) for x in (1234.5, 12.34, 1.234)] == ["1234", "12.3", "1.23"]
    assert (share(0.01234, 2), share(-1e-9), share(0.5, 0)) == ("1.23%", "0.0%", "50%")


def test_columns_of_numbers_stand_right():
    rows = (("-1.5%", "~12", MINUS + "3", "1,000", "", "1 of 2"), ("+2", 7, "0.5", Bar("9%", 0.1), "x", "3"))
    assert Table(tuple("abcdef"), rows).alignments == ("n", "n", "n", "n", "", "")
    assert Table(("a", "b"), (("", "-"),)).alignments == ("n", "n")


def test_shares_and_times_of_any_size():
    assert [share(x) for x in (9.0, 1e6, 0.0004, -0.25)] == ["900.0%", "100000000.0%", "0.0%", "-25.0%"]
    assert [microseconds(x) for x in (0.0, 9.994, 99.96, 999.94, 1e6)] == ["0.00", "9.99", "100.0", "999.9", "1000000"]


def test_names():
    (facts,) = measured_facts().operations
    assert sizes(facts.cells[0]) == "m 16, n 256, k 512"
    assert kernel_name(facts, 1) == TMA.name
    assert operation_name(facts) == "bf16_kk: bfloat16, A row-major, B (n, k) row-major"
    other = replace(facts, section=replace(facts.section, operation=Operation.of(ElementType.FLOAT16, Layout.MN)))
    assert operation_name(other) == "fp16_mn: float16, A column-major, B (k, n) row-major"
