"""The sections for rows that begin between two sectors of the L2."""

from dataclasses import replace

import pytest

from aot.core.alignment import begins_between_sectors
from aot.core.candidate import KernelKey
from aot.core.dispatch import DispatchTable, Scope, look_up
from aot.core.measurement import PROVENANCE_PREDICTED
from aot.core.operation import Operation
from aot.core.table_check import table_fault
from aot.select.join import renumbered
from aot.select.selection import FamilyKernel
from aot.select.selector import fallback_key
from aot.select.table import between
from aot.select.table import sections as table
from aot.select.times.inputs import Timed
from tests.unit.select.table.test_sections import H200, PLAIN, SPLIT, SWAPPED, Shades, section_of
from tests.unit.selections import SELECTION
from tests.unit.twins import BF16, problem_of

FP16 = Operation.FP16_KK
K = (1000, 1024, 2008, 2048)
MODEL = Shades(lambda c, p: 5.0 if (c is SWAPPED) == begins_between_sectors(p) else 8.0)
"""SWAPPED is the best where rows begin between sectors, PLAIN elsewhere."""


@pytest.fixture(autouse=True)
def _few_cells(monkeypatch):
    monkeypatch.setattr(between, "MIN_BETWEEN", 4)
    for name in ("FINE_N", "FINE_K"):
        monkeypatch.setattr(table, name, (512, 4096))
    for name in ("FINE_M", "FINE_GRID_M"):
        monkeypatch.setattr(table, name, (16, 64, 256))


def whole():
    """Build the section of all weights, and return its kernels and times too."""
    rows = {
        (m, 512, k): {c: MODEL.time(c, problem_of(m, 512, k)) for c in (PLAIN, SWAPPED)} for m in (16, 64) for k in K
    }
    indices, section = section_of(rows, MODEL)
    times = {problem_of(*shape): row for shape, row in rows.items()}
    return section, indices, Timed(times, times, "measured", MODEL, target=H200)


def making(indices):
    return between.Making([fallback_key(BF16, H200), *(KernelKey(BF16, x) for x in indices)])


def test_each_kind_of_rows_has_the_kernel_that_is_best_there_and_each_weight_one_ladder():
    section, indices, timed = whole()
    at_sectors, rows_between = between.parted(section, tuple(indices), timed, making(indices))
    assert [(x.n, x.k) for x in rows_between.ladders] == [(512, 1000), (512, 2008)]
    assert [(x.n, x.k) for x in at_sectors.ladders] == [(512, 1024), (512, 2048)]
    assert {x for column in rows_between.grid.columns for x in column.kernels} == {indices[SWAPPED]}
    assert {x for column in at_sectors.grid.columns for x in column.kernels} == {indices[PLAIN]}
    assert rows_between.scope == Scope(1, batch_invariant=False, between_sectors=True)
    assert replace(at_sectors, ladders=section.ladders) == section
    kernels = [FamilyKernel.of(fallback_key(BF16, H200)), *(FamilyKernel.of(KernelKey(BF16, x)) for x in indices)]
    tables = DispatchTable((at_sectors, rows_between))
    assert not table_fault(tables, kernels)
    for k in (*K, 520, 528):
        asked = problem_of(48, 512, k)
        found = tables.aligned_section(asked)
        assert found is (rows_between if k % 16 == 8 else at_sectors)
        best = indices[SWAPPED if k % 16 == 8 else PLAIN]
        assert look_up(found, asked, [(1, 1)] * 3).kernel == best


NOTHING = between.Making([])


def test_kernels_are_added_while_they_gain_where_rows_are_between_sectors():
    section, _, timed = whole()
    own = {p: {**row, SPLIT: 4.0 if p.m == 16 and begins_between_sectors(p) else 9.0} for p, row in timed.own.items()}
    more = replace(timed, own=own, filled=own)
    assert set(between.added(section, more, [PLAIN], NOTHING)) == {SWAPPED, SPLIT}
    assert between.added(section, more, [PLAIN, SWAPPED], NOTHING) == [SPLIT]
    assert between.added(section, more, [PLAIN, SWAPPED, SPLIT], NOTHING) == []
    # Of 16 rows alone SPLIT gains, of 64 it is slower than torch: SWAPPED's gain there counts twice.
    torch = dict.fromkeys(own, 4.5)
    assert between.added(section, more, [PLAIN], between.Making([], torch, most=1)) == [SWAPPED]
    assert between.added(section, more, [PLAIN], between.Making([], torch, most=0)) == []


def test_kernels_are_added_for_what_no_ladder_answers():
    """On the weights with ladders SPLIT gains more, on others SWAPPED, and the grid answers these."""
    section, _, timed = whole()
    gains = {p: {PLAIN: 9.0, SWAPPED: 8.0, SPLIT: 1.0} for p in timed.own}
    others = {problem_of(m, 512, k): {PLAIN: 9.0, SWAPPED: 4.0, SPLIT: 9.0} for m in (16, 64) for k in (3000, 3016)}
    both = replace(timed, own={**gains, **others}, filled={**gains, **others})
    one = between.Making([], most=1)
    assert between.added(section, both, [PLAIN], one) == [SWAPPED]
    few = replace(both, filled=dict(list(both.filled.items())[:-1]))
    assert between.added(section, few, [PLAIN], one) == [SPLIT]


@pytest.mark.parametrize("reason", ["predicted", "few", "a scope"])
def test_without_times_of_such_rows_there_is_one_section(reason, monkeypatch):
    section, indices, timed = whole()
    if reason == "predicted":
        timed = replace(timed, provenance=PROVENANCE_PREDICTED)
    elif reason == "few":
        monkeypatch.setattr(between, "MIN_BETWEEN", 5)
    else:
        section = replace(section, scope=Scope(1, batch_invariant=True))
    assert between.parted(section, tuple(indices), timed, making(indices)) == [section]


def test_a_selection_gets_such_sections_and_is_the_same_when_it_gets_them_again():
    section, indices, timed = whole()
    twins = [replace(section, operation=FP16)]
    kernels = [fallback_key(BF16, H200), *(KernelKey(BF16, x) for x in indices)]
    kernels += [KernelKey(FP16, x) for x in indices]
    moved = renumbered(DispatchTable(tuple(twins)), lambda i: i + len(indices) if i else 0)
    selection = replace(SELECTION, kernels=tuple(kernels), table=DispatchTable((section, *moved.sections)))
    once, new = between.renewed(selection, [BF16, FP16], {BF16: timed.own}, MODEL, H200)
    assert list(once.table.sections) == new
    assert [(x.operation, x.between_sectors) for x in once.table.sections] == [
        (x, y) for x in (BF16, FP16) for y in (False, True)
    ]
    assert between.renewed(once, [BF16, FP16], {BF16: timed.own}, MODEL, H200) == (once, new)
    grids = [x.grid for x in once.table.sections]
    assert {x for y in grids[3].columns for x in y.kernels} == {indices[SWAPPED] + len(indices)}
    assert between.renewed(once, [], {}, MODEL, H200) == (once, [])
    # By times of such rows alone the grid of the others stays; by too few, all.
    only = {p: row for p, row in timed.own.items() if begins_between_sectors(p)}
    some, new = between.renewed(once, [BF16], {BF16: only}, MODEL, H200)
    assert some == once
    assert [x.between_sectors for x in new] == [True]
    few = dict(list(only.items())[:1])
    assert between.renewed(once, [BF16], {BF16: few}, MODEL, H200) == (once, [])
    # With times of other rows the grid for these is chosen anew too, of a kernel more, and the ladders stay.
    rows = {p: {**row, SPLIT: 9.0 if begins_between_sectors(p) else 2.0} for p, row in timed.own.items()}
    cheap = Shades(lambda c, p: 2.0 if c is SPLIT and not begins_between_sectors(p) else MODEL.time(c, p))
    more, _ = between.renewed(once, [BF16], {BF16: rows}, cheap, H200)
    none, _ = between.renewed(once, [BF16], {BF16: rows}, cheap, H200, most=0)
    kept, new = between.renewed(once, [BF16], {BF16: rows}, cheap, H200, only_between=True)
    assert kept == once
    assert [x.between_sectors for x in new] == [True]
    assert SPLIT not in {x.candidate for x in none.kernels}
    for was, now in zip(once.table.sections[:2], more.table.sections[:2], strict=True):
        assert [x.m_edges for x in now.ladders] == [x.m_edges for x in was.ladders]
        names = {more.kernels[i].candidate for column in now.grid.columns for i in column.kernels}
        assert names == ({SWAPPED} if now.between_sectors else {PLAIN, SPLIT})  # SPLIT takes no open bucket
