"""What a manifest writes of a table: as it is read by the toolchain, and by the wheel."""

from dataclasses import asdict, replace

import pytest

from aot.core.dispatch import Column, DispatchTable
from aot.core.strict_json import DecodeError
from aot.package.packed_table import pack, unpack
from tests.golden.manifest import golden_manifest
from tests.packed import wheels_reader
from tests.runtime.host import random_manifest

GOLDEN = golden_manifest().tables[0].table
RANDOM = [random_manifest(seed).tables[0].table for seed in range(3)]


def plain(packed):
    """Return a packed table as JSON has it."""
    return asdict(packed)


@pytest.mark.parametrize("table", [GOLDEN, *RANDOM], ids=["golden", "0", "1", "2"])
def test_a_table_is_unpacked_as_it_was(table):
    assert unpack(pack(table)) == table


@pytest.mark.parametrize("table", [GOLDEN, *RANDOM], ids=["golden", "0", "1", "2"])
def test_the_wheel_reads_each_column_and_row(table):
    reader, packed = wheels_reader(), plain(pack(table))
    for section, known in zip(packed["sections"], table.sections, strict=True):
        grid = reader.grid_of(packed, section)
        assert (grid["n_edges"], grid["k_edges"]) == (known.grid.n_edges, known.grid.k_edges)
        for i, column in enumerate(known.grid.columns):
            assert tuple(reader.column_edges(grid, i)) == column.m_edges
        for i, ladder in enumerate(known.ladders):
            assert reader.find_ladder(section, ladder.n, ladder.k) == i
            assert tuple(reader.ladder_edges(section, i)) == ladder.m_edges
            for step, row in enumerate(ladder.rows):
                expected = row.kernel, row.general, row.provenance, row.time_us, row.runner_up, row.runner_up_us
                assert reader.row_of(section, i, step) == (*expected, row.library_us)
            timed = [m for m, row in zip(ladder.m_edges, ladder.rows, strict=True) if row.library_us is not None]
            assert reader.edges_with_library(section, i) == timed
        with pytest.raises(ValueError, match="not in list"):
            reader.find_ladder(section, 7, 7)


def test_the_golden_table_has_rows_with_a_time_of_the_library_and_without():
    rows = [row for section in GOLDEN.sections for ladder in section.ladders for row in ladder.rows]
    assert {row.library_us is None for row in rows} == {True, False}


def test_a_predicted_time_is_compared_with_none_of_the_library():
    section = GOLDEN.sections[0]
    rows = tuple(replace(x, provenance="predicted", library_us=3.0) for x in section.ladders[0].rows)
    section = replace(section, ladders=(replace(section.ladders[0], rows=rows),))
    packed = plain(pack(DispatchTable((section,))))["sections"][0]
    assert wheels_reader().row_of(packed, 0, 0).library_us == 3.0
    assert wheels_reader().edges_with_library(packed, 0) == []


def test_what_the_golden_table_is_packed_to():
    packed = plain(pack(GOLDEN))
    grid, (kk, kn) = packed["grids"][0], packed["sections"]
    assert grid["m_edges"] == (16, 64, 4096, 2**20 - 1)
    assert (grid["gaps"], grid["kernels"]) == (("$#", "%", "###", "$$"), ("!#", "!", "#!#", "!#"))
    assert (kk["kernels"], kn["kernels"], kk["grid"], kn["grid"]) == ((2, 3, 1), (4,), 0, 1)
    assert (kk["ladders"]["kernels"], kk["ladders"]["generals"]) == (("#!$", "!"), ("!!#", "!"))


def test_operations_whose_grids_differ_in_kernels_alone_share_one():
    kk, kn = GOLDEN.sections
    columns = tuple(Column(x.m_edges, tuple({2: 9, 3: 7}[y] for y in x.kernels)) for x in kk.grid.columns)
    other = replace(kn, grid=replace(kk.grid, columns=columns))
    table = DispatchTable((kk, other))
    packed = pack(table)
    assert len(packed.grids) == 1
    assert [x.kernels for x in packed.sections] == [(2, 3, 1), (9, 7)]
    assert unpack(packed) == table


def test_orders_that_are_all_none_are_told_from_no_orders():
    column = Column((16, 64), (2, 3), (0, 0))
    section = GOLDEN.sections[0]
    table = DispatchTable((replace(section, grid=replace(section.grid, columns=(column,) * 4)),))
    assert unpack(pack(table)) == table


@pytest.mark.parametrize("time_us", [1 / 3, 5.0005])
def test_a_time_between_nanoseconds_is_not_written(time_us):
    section = GOLDEN.sections[0]
    ladder = section.ladders[1]
    ladder = replace(ladder, rows=(replace(ladder.rows[0], runner_up_us=time_us),))
    with pytest.raises(DecodeError, match=f"the time {time_us} us is no whole number of nanoseconds; round it"):
        pack(DispatchTable((replace(section, ladders=(ladder,)),)))


def test_edges_that_descend_are_not_written():
    section = GOLDEN.sections[0]
    ladder = replace(section.ladders[0], m_edges=(256, 16, 4096))
    with pytest.raises(DecodeError, match="-240 is below 0"):
        pack(DispatchTable((replace(section, ladders=(ladder,)),)))
