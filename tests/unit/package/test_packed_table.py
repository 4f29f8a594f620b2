"""What a manifest writes of a table: as it is read by the toolchain, and by the wheel."""

from dataclasses import asdict, replace

import pytest

from aot.core.dispatch import Column, DispatchTable
from aot.core.operation import Operation
from aot.core.strict_json import DecodeError
from aot.package.packed_table import pack, unpack
from tests.golden.manifest import golden_manifest, without_grids
from tests.packed import wheels_reader
from tests.runtime.host import random_manifest

GOLDEN = golden_manifest().tables[0].table
RANDOM = [random_manifest(seed).tables[0].table for seed in range(3)]


def plain(packed):
    """Return a packed table as JSON has it."""
    return asdict(packed)


@pytest.mark.parametrize("table", [GOLDEN, *RANDOM], ids=["golden", "0", "1", "2"])
def test_a_table_is_unpacked_as_it_was_without_its_grids(table):
    assert unpack(pack(table)) == without_grids(table)


@pytest.mark.parametrize("table", [GOLDEN, *RANDOM], ids=["golden", "0", "1", "2"])
def test_the_wheel_reads_each_row(table):
    reader, packed = wheels_reader(), plain(pack(table))
    for section, known in zip(packed["sections"], table.sections, strict=True):
        for ladder in known.ladders:
            found = reader.find_ladder(packed, section, ladder.n, ladder.k)
            assert tuple(reader.ladder_edges(found)) == ladder.m_edges
            for step, row in enumerate(ladder.rows):
                expected = row.kernel, row.general, row.provenance, row.time_us, row.runner_up, row.runner_up_us
                assert reader.row_of(found, step) == (*expected, row.library_us)
            timed = [m for m, row in zip(ladder.m_edges, ladder.rows, strict=True) if row.library_us is not None]
            assert reader.edges_with_library(found) == timed
        with pytest.raises(ValueError, match="not in list"):
            reader.find_ladder(packed, section, 7, 7)


def test_the_golden_table_has_rows_with_a_time_of_the_library_and_without():
    rows = [row for section in GOLDEN.sections for ladder in section.ladders for row in ladder.rows]
    assert {row.library_us is None for row in rows} == {True, False}


def test_a_predicted_time_is_compared_with_none_of_the_library():
    section = GOLDEN.sections[0]
    rows = tuple(replace(x, provenance="predicted", library_us=3.0) for x in section.ladders[0].rows)
    section = replace(section, ladders=(replace(section.ladders[0], rows=rows),))
    packed = plain(pack(DispatchTable((section,))))
    ladder = wheels_reader().find_ladder(packed, packed["sections"][0], section.ladders[0].n, section.ladders[0].k)
    assert wheels_reader().row_of(ladder, 0).library_us == 3.0
    assert wheels_reader().edges_with_library(ladder) == []


def of_another_type(section):
    """Return a section with the ladders of another one, by kernels of its own, which nobody timed."""
    numbers = {x: x + 10 for x in range(10)}
    rows = {"provenance": "predicted", "library_us": None}

    def moved(row):
        named = (row.kernel, row.general, row.runner_up)
        return replace(
            row, **rows, **dict(zip(("kernel", "general", "runner_up"), map(numbers.get, named), strict=True))
        )

    columns = tuple(replace(x, kernels=tuple(map(numbers.get, x.kernels))) for x in section.grid.columns)
    ladders = tuple(replace(x, rows=tuple(map(moved, x.rows))) for x in section.ladders)
    grid = replace(section.grid, columns=columns)
    return replace(section, operation=Operation.FP16_KK, grid=grid, ladders=ladders)


def test_a_ladder_that_is_another_sections_stands_once():
    kk, kn = GOLDEN.sections
    table = DispatchTable((kk, kn, of_another_type(kk)))
    packed = plain(pack(table))
    assert set(packed["sections"][2]["ladders"]["gaps"]) == {""}
    assert unpack(pack(table)) == without_grids(table)
    reader, section = wheels_reader(), packed["sections"][2]
    for ladder in table.sections[2].ladders:
        found = reader.find_ladder(packed, section, ladder.n, ladder.k)
        assert tuple(reader.ladder_edges(found)) == ladder.m_edges
        assert [reader.row_of(found, i) for i in range(len(ladder.rows))] == [
            (x.kernel, x.general, x.provenance, x.time_us, x.runner_up, x.runner_up_us, None) for x in ladder.rows
        ]
        assert reader.edges_with_library(found) == []
    assert list(reader.own_ladders(section)) == []


def test_a_ladder_that_differs_in_a_time_or_was_measured_is_written():
    kk, kn = GOLDEN.sections
    other = of_another_type(kk)
    first = other.ladders[0]
    for change in ({"time_us": 0.001}, {"provenance": "measured"}, {"library_us": 3.0}):
        rows = (replace(first.rows[0], **change), *first.rows[1:])
        table = DispatchTable((kk, kn, replace(other, ladders=(replace(first, rows=rows), *other.ladders[1:]))))
        gaps = plain(pack(table))["sections"][2]["ladders"]["gaps"]
        assert [bool(x) for x in gaps] == [True, *(False for _ in gaps[1:])]
        assert unpack(pack(table)) == without_grids(table)


def test_a_ladder_without_steps_that_no_section_before_has_is_refused():
    kk, kn = GOLDEN.sections
    packed = pack(DispatchTable((kk, kn)))
    ladders = packed.sections[0].ladders
    empty = replace(ladders, gaps=("", *ladders.gaps[1:]))
    broken = replace(packed, sections=(replace(packed.sections[0], ladders=empty), packed.sections[1]))
    with pytest.raises(DecodeError, match="no section before has a ladder of its n and k"):
        unpack(broken)


def test_what_the_golden_table_is_packed_to():
    packed = plain(pack(GOLDEN))
    kk, kn = packed["sections"]
    assert (kk["kernels"], kn["kernels"]) == ((2, 3, 1), (4,))
    assert (kk["ladders"]["kernels"], kk["ladders"]["generals"]) == (("#!$", "!"), ("!!#", "!"))


def test_the_hash_of_a_grid_tells_all_of_it_but_its_kernels():
    kk, kn = GOLDEN.sections
    first, *others = kk.grid.columns
    columns = tuple(Column(x.m_edges, tuple({2: 9, 3: 7}[y] for y in x.kernels)) for x in kk.grid.columns)
    grids = [
        kk.grid,
        replace(kk.grid, columns=columns),
        replace(kk.grid, n_edges=(1024, 8193)),
        replace(kk.grid, columns=(replace(first, m_edges=(17, *first.m_edges[1:])), *others)),
        replace(kk.grid, columns=(replace(first, tile_orders=(1,) * len(first.kernels)), *others)),
        replace(kk.grid, columns=(replace(first, kernels=first.kernels[::-1]), *others)),
    ]
    packed = pack(DispatchTable(tuple(replace(kn, grid=grid) for grid in grids)))
    assert [x.kernels[:2] for x in packed.sections[:2]] == [(2, 3), (9, 7)]
    assert packed.sections[0].grid == packed.sections[1].grid
    assert len({x.grid for x in packed.sections}) == len(grids) - 1


@pytest.mark.parametrize("time_us", [1 / 3, 5.0005, 12.345])
def test_a_time_that_is_not_rounded_as_a_wheels_is_not_written(time_us):
    section = GOLDEN.sections[0]
    ladder = section.ladders[1]
    ladder = replace(ladder, rows=(replace(ladder.rows[0], runner_up_us=time_us),))
    with pytest.raises(
        DecodeError, match=f"the time {time_us} us is no whole number of nanoseconds in 3 digits; round"
    ):
        pack(DispatchTable((replace(section, ladders=(ladder,)),)))


def test_edges_that_descend_are_not_written():
    section = GOLDEN.sections[0]
    ladder = replace(section.ladders[0], m_edges=(256, 16, 4096))
    with pytest.raises(DecodeError, match="-240 is below 0"):
        pack(DispatchTable((replace(section, ladders=(ladder,)),)))
