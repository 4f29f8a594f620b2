"""A selection filled anew by its record: what was timed stays, and what is far outside of it changes."""

from dataclasses import replace

import numpy as np
import pytest

from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Section
from aot.core.errors import SelectionError
from aot.core.measurement import Record
from aot.select import selector
from aot.select.selection import read_selection, write_selection
from aot.studies import refill
from tests.unit.accepted import named
from tests.unit.selections import SELECTION
from tests.unit.twins import BF16, CONDITIONS, problem_of

NAMES = ("simt_64x64_c1x1_direct", "sm90_one_tile_128x128_c1x1_direct", "sm90_quack_128x128_c1x1_pingpong")
KERNELS = tuple(KernelKey(BF16, named(x, "h200")) for x in NAMES)
SIMT, ONE, PLAIN = range(3)
ROWS = (Row(ONE, ONE, 9.0, "measured", ONE, 9.0), Row(ONE, ONE, 9.0, "predicted", PLAIN, 10.0))
SECTION = Section(
    BF16,
    (Ladder(4096, 4096, (16384, 65536), ROWS),),
    Grid((4096,), (512, 8192), (Column((128, 16384), (ONE, ONE)), Column((128, 16384), (ONE, ONE)))),
    SIMT,
)
CHOSEN = replace(SELECTION, target="h200", kernels=KERNELS, table=DispatchTable((SECTION,)), coverage=None)
TIMED = {
    problem_of(16384, 4096, 4096): {KERNELS[ONE].candidate: 9.0, KERNELS[PLAIN].candidate: 12.0},
    problem_of(128, 128, 64): {KERNELS[PLAIN].candidate: 2.0},
}


class Even:
    """A model by which every kernel takes 70 ms on everything."""

    def times_us(self, candidates, problems, asked=None):
        return np.full((len(problems), len(candidates)), 7e4)


@pytest.fixture(autouse=True)
def _times(monkeypatch):
    monkeypatch.setattr(selector.TimeModel, "fit", lambda *_: Even())
    monkeypatch.setattr(refill, "measured_times", lambda record: {BF16: TIMED} if record.target == "h200" else {})


RECORD = Record("h200", (CONDITIONS,), ())


def test_what_is_outside_of_the_timed_range_gets_another_kernel():
    found, count = refill.refilled(CHOSEN, RECORD, ())
    (section,) = found.table.sections
    assert count == 2
    assert [x.kernel for x in section.ladders[0].rows] == [ONE, PLAIN]
    assert section.ladders[0].rows[0] == ROWS[0]  # measured
    # 31 waves of k 4096 were timed, and so are 31 of k 512; of k 8192 one row of tiles alone.
    assert [x.kernels for x in section.grid.columns] == [(ONE, ONE), (ONE, PLAIN)]
    assert (found.kernels, found.heldout, found.coverage) == (KERNELS, (), None)


def test_another_record_widens_the_range():
    more = {BF16: {problem_of(65536, 4096, 8192): {KERNELS[ONE].candidate: 100.0}}}
    found, count = refill.refilled(CHOSEN, RECORD, [more])
    assert (found.table, count) == (CHOSEN.table, 0)


def test_a_record_of_another_target_or_without_times_is_refused(monkeypatch):
    with pytest.raises(
        SelectionError, match="the record is of h100, the selection of h200; give the record of the latt"
    ):
        refill.refilled(CHOSEN, replace(RECORD, target="h100"), ())
    monkeypatch.setattr(refill, "measured_times", lambda _: {})
    with pytest.raises(SelectionError, match="the record of h200 has no usable times; give one that has"):
        refill.refilled(CHOSEN, RECORD, ())


def test_the_command_writes_the_selection_and_counts_what_changed(monkeypatch, tmp_path, capsys):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    write_selection(old, CHOSEN)
    monkeypatch.setattr(refill, "read_record", lambda path: RECORD)
    monkeypatch.setattr("sys.argv", ["refill", str(old), "record.jsonl.gz", "-o", str(new)])
    refill.main()
    assert capsys.readouterr().out == f"{new}: 2 rows and steps got another kernel\n"
    assert read_selection(new) == refill.refilled(CHOSEN, RECORD, ())[0]
