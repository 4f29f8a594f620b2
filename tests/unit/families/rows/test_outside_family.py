"""A family of rows from another package: its space, its kernels compiled and executed, the table that takes it."""

import pytest
from click.testing import CliRunner

from aot.cli.main import main
from aot.core.candidate import Accepted
from aot.core.target import load_target
from aot.families import all_families_for, row_tiling_of, rows_family_of
from aot.kinds.rows.candidate import RowKnobs
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.problem import RowProblem
from aot.select.table.stepped import SteppedTimes, select_stepped
from aot.space.enumeration import Patterns, judge, legal
from aot.space.kinds import space_of
from tests.emulated import share_kept
from tests.example_family import example_family

pytestmark = pytest.mark.slow
H200 = load_target("h200")
GATE = row_operation("fp16_silu_mul")
OWN = "gate_pieces_warps4"


@pytest.fixture(scope="module", autouse=True)
def _example():
    with example_family("rows_family", "gate_pieces"):
        yield


def own(operation=GATE):
    return {x.name: x for x in legal(operation, H200, Patterns(("gate_pieces_*",)))}


def test_its_candidates_are_in_the_space_beside_ours():
    assert list(own()) == ["gate_pieces_warps2", OWN, "gate_pieces_warps8"]
    assert {x.family for x in legal(GATE, H200)} == {"gate_pieces", "row_registers"}
    verdicts = [verdict for x, verdict in judge(GATE, H200, Patterns()) if x.family == "gate_pieces"]
    assert [x.resources.num_threads for x in verdicts if isinstance(x, Accepted)] == [64, 128, 256]
    assert not [x for x, _ in judge(row_operation("bf16_rms_norm"), H200, Patterns()) if x.family == "gate_pieces"]
    # What it asks of a chip is its own to say: nothing, where ours ask for dependent launches.
    assert [x.name for x in all_families_for(load_target("a100"), "rows")] == ["gate_pieces"]


def test_the_model_knows_it_by_the_tiling_that_it_describes():
    candidate = own()[OWN]
    assert row_tiling_of(candidate) == RowKnobs(128, 1, 8, 1)
    problem = RowProblem(GATE, 8192, 4096)
    (time_us,) = space_of(GATE).times_us([candidate], problem, H200)
    bytes_us = problem.num_bytes / H200.bandwidth_bytes_per_s * 1e6
    assert bytes_us < time_us < 1.2 * bytes_us


def test_the_table_takes_it_where_it_is_fastest():
    candidate, *others = [own()[OWN], *(x for x in legal(GATE, H200) if x.family == "row_registers")]
    times = {GATE: {RowProblem(GATE, 64, 4096): {candidate: 1.0, **dict.fromkeys(others, 2.0)}}}
    chosen = select_stepped((GATE,), H200, SteppedTimes(times)).others
    (column,) = [x for x in chosen.table.sections[0].columns if x.cols == 4096]
    (step,) = [x for x in column.steps if x.provenance == "measured"]
    assert chosen.kernels[step.kernel].candidate == candidate
    assert rows_family_of(candidate).limits(candidate, GATE).alignment_bytes == 16


def test_the_interpreter_finds_it_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    share_kept(tmp_path, monkeypatch)
    words = ["emulate", "--target", "h200", "--operations", "fp16_silu_mul", "--legal", "--kernels", OWN]
    done = CliRunner().invoke(main, [*words, "--problem", "3,1032"])  # two pieces of a row, the second one short
    assert done.exit_code == 0, done.output
    assert "1 of 1 kernels are right" in done.output
