"""The library's times in the rows of a table."""

from dataclasses import replace

from aot.core.dispatch import DispatchTable, Scope
from aot.core.problem import Problem
from aot.select.table.library import with_library_times
from tests.golden.manifest import golden_manifest

SECTION = golden_manifest().tables[0].table.sections[0]
LADDER = SECTION.ladders[0]
FIRST = Problem(SECTION.operation, LADDER.m_edges[0], LADDER.n, LADDER.k)


def times_of(section, times):
    table = with_library_times(DispatchTable((section,)), times)
    return [row.library_us for ladder in table.sections[0].ladders for row in ladder.rows]


def test_a_row_has_the_time_of_its_upper_edge_and_no_other():
    got = times_of(SECTION, {FIRST: 7.12345, replace(FIRST, k=FIRST.k + 8): 1.0})
    assert got == [7.123] + [None] * (len(got) - 1)


def test_a_row_has_the_time_of_as_many_products():
    section = replace(SECTION, scope=Scope(num_groups=8, batch_invariant=False))
    assert times_of(section, {FIRST: 1.0, replace(FIRST, num_groups=8): 5.0})[0] == 5.0


def test_a_table_for_what_is_not_aligned_has_them_too_and_may_have_them_alone():
    section = replace(SECTION, scope=Scope(num_groups=1, batch_invariant=False, loads=8))
    assert times_of(section, {FIRST: 7.0})[0] == 7.0
    known = with_library_times(DispatchTable((SECTION,)), {FIRST: 5.0}).sections[0]
    both = with_library_times(DispatchTable((known, section)), {FIRST: 7.0}, lambda x: x.loads == 8)
    assert both.sections[0] == known
    assert both.sections[1].ladders[0].rows[0].library_us == 7.0
