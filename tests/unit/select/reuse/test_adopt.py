"""A selection that another target's is taken for: its kernels and table, with this target's times."""

from dataclasses import replace

import numpy as np
import pytest

from aot.core.errors import SelectionError
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED, Record
from aot.core.target import load_target
from aot.select import selector
from aot.select.portfolio.objective import KnownTimes, Objective
from aot.select.reuse.adopt import adopt, check_alike
from aot.select.selection import parse_selection, write_selection
from aot.select.selector import select_kernels
from tests.unit.accepted import named
from tests.unit.twins import BF16, CONDITIONS, problem_of

H100, H200 = load_target("h100"), load_target("h200")
A = named("sm90_quack_128x128_c1x1_pingpong")
B = named("sm90_quack_128x64_c1x1_pingpong")
P, Q = problem_of(64, 4096, 4096), problem_of(128, 4096, 4096)


class Even:
    """A model by which every kernel takes 70 us on everything."""

    def times_us(self, candidates, problems, asked=None):
        return np.full((len(problems), len(candidates)), 70.0)


@pytest.fixture
def other(monkeypatch):
    monkeypatch.setattr(selector.TimeModel, "fit", lambda *_: Even())
    for name, few in (
        ("FINE_M", (64, 8192)),
        ("FINE_GRID_M", (64, 8192)),
        ("FINE_N", (512, 4096)),
        ("FINE_K", (4096,)),
        ("BROAD_N", ()),
    ):
        monkeypatch.setattr(f"aot.select.table.sections.{name}", few)
    times = {BF16: {P: {A: 20.0, B: 30.0}, Q: {A: 50.0, B: 40.0}}}
    return select_kernels(KnownTimes(times, record=Record("h200", (CONDITIONS,), ())), H200, Objective(), "h200")


def rows(selection):
    (ladder,) = selection.table.section(BF16).ladders
    found = (ladder.rows[ladder.m_edges.index(x.m)] for x in (P, Q))
    return [(selection.kernels[x.kernel].candidate, x.time_us, x.provenance) for x in found]


def test_the_kernels_are_the_others_and_the_times_this_targets(other, tmp_path):
    measured = KnownTimes({BF16: {P: {A: 90.0, B: 80.0}}}, record=Record("h100", (CONDITIONS,), ()))
    found = adopt(other, measured, H100, Objective(), "h100")
    assert rows(other) == [(A, 20.0, PROVENANCE_MEASURED), (B, 40.0, PROVENANCE_MEASURED)]
    assert rows(found) == [(A, 90.0, PROVENANCE_MEASURED), (B, 70.0, PROVENANCE_PREDICTED)]
    assert (found.target, found.like, found.record, found.provenance) == ("h100", "h200", "h100", PROVENANCE_MEASURED)
    assert (found.kernels, found.regrets, found.curves) == (other.kernels, (), ())
    grids = [x.table.section(BF16).grid for x in (other, found)]
    assert grids[0] == grids[1]
    path = tmp_path / "selection.json"
    write_selection(path, found)
    assert parse_selection(path.read_bytes(), "it") == found


def test_without_times_of_its_own_all_is_predicted(other):
    found = adopt(other, KnownTimes({}), H100, Objective(), "h100")
    assert {x for _, _, x in rows(found)} == {PROVENANCE_PREDICTED}
    assert (found.provenance, found.conditions) == (PROVENANCE_PREDICTED, ())


def test_targets_with_other_cores_or_fewer_are_refused():
    check_alike(H100, H200)
    with pytest.raises(SelectionError, match="thor is sm_110a with 20 SMs, h200 sm_90a with 132; kernels and tables"):
        check_alike(load_target("thor"), H200)
    with pytest.raises(SelectionError, match="leave --like out"):
        check_alike(replace(H100, num_sms=114), H200)
