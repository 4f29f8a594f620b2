"""What tunings of operations on rows wrote until 2026-11-27 becomes records like all others."""

import gzip
import json

import pytest

from aot.core.errors import StoreError
from aot.core.strict_json import DecodeError
from aot.kinds.rows.candidate import RowKernelKey, row_candidate
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.problem import RowProblem
from aot.select.times.record import read_record
from research.studies.journals import parse_row_record, read_journal
from research.studies.migrate import migrate

CONDITIONS = {
    "arch": "sm_90a",
    "date": "2026-11-22",
    "device": "NVIDIA H200",
    "driver": "580",
    "memory_clock_mhz": 3201,
    "mig": None,
    "num_sms": 132,
    "power_mode": "700 W",
    "protocol": "rows-graph-cold-l2-v1",
    "sm_clock_mhz": 1950,
}
CANDIDATE = {
    "family": "row_registers",
    "rows_per_cta": 1,
    "threads_per_row": 128,
    "vector_elements": 8,
    "vectors_per_thread": 4,
}
TIME = {"candidate": CANDIDATE, "cols": 4096, "median_us": 2.165, "operation": "bf16_rms_norm", "rows": 16}
GOOD, BAD = f"a {'ab' * 32}", f"b {'cd' * 32}"
RUN = {"run": {"row_results_version": 1, "target": "h200", "conditions": CONDITIONS}}
JOURNAL = [
    RUN,
    {"start": {"kernel": GOOD, "what": "verifying a", "run": 0}},
    {"verified": {"kernel": GOOD}},
    {"time": {"kernel": GOOD, **TIME, "median_us": 3.0}},
    {"time": {"kernel": GOOD, **TIME}},
    {"time": {"kernel": GOOD, **TIME, "rows": 64}},
    {"time": {"kernel": BAD, **TIME, "cols": 8192}},
    {"quarantined": {"kernel": BAD, "reason": "hung"}},
    {"idle": {}},
]
KEY = RowKernelKey(row_operation("bf16_rms_norm"), row_candidate("row_registers", 128, 1, 8, 4))


def journal(path, lines=JOURNAL, end="\n"):
    path.write_text("\n".join(map(json.dumps, lines)) + end)
    return path


def test_a_journal_becomes_a_record_without_what_was_quarantined_and_of_several_times_the_last_counts(tmp_path):
    path = journal(tmp_path / "results.jsonl")
    migrate(path)
    found = read_record(tmp_path / "results.jsonl.gz")
    assert [(x.kernel, x.problem, x.median_us, x.num_rounds) for x in found.measurements] == [
        (KEY, RowProblem(KEY.operation, rows, 4096), 2.165, 7) for rows in (16, 64)
    ]
    assert (found.target, [x.protocol for x in found.conditions]) == ("h200", ["rows-graph-cold-l2-v1"])


def test_a_line_that_was_cut_off_counts_for_nothing(tmp_path):
    path = journal(tmp_path / "r.jsonl", JOURNAL[:6], end='\n{"time": {"ker')
    assert len(read_journal(path).measurements) == 2


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([RUN, {}], "line 2: is no line of results; expected one of run, start, idle, verified, quarantined, time"),
        ([RUN, {"time": {}}], "line 2: "),
        ([{"run": {**RUN["run"], "row_results_version": 2}}], "line 1: row_results_version: expected 1, got 2"),
        ([RUN], "has 1 runs and 0 times, expected some of one device"),
        ([*JOURNAL, {"run": {**RUN["run"], "target": "thor"}}], "has 2 runs and 4 times|has 2 runs and 3 times"),
    ],
)
def test_a_damaged_journal_is_refused_with_its_line(tmp_path, lines, text):
    with pytest.raises(StoreError, match=text):
        read_journal(journal(tmp_path / "r.jsonl", lines))


def test_a_record_of_its_own_becomes_one_like_all_others_and_the_least_of_several_times_counts(tmp_path):
    path = tmp_path / "h200.jsonl.gz"
    lines = [{"row_record_version": 1, "target": "h200", "conditions": CONDITIONS}, TIME, {**TIME, "median_us": 9.0}]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    migrate(path)
    (item,) = read_record(path).measurements
    assert (item.kernel, item.median_us, item.low_us, item.high_us, item.num_rounds) == (KEY, 2.165, 2.165, 2.165, 7)
    before = path.read_bytes()
    migrate(path)
    assert path.read_bytes() == before
    with pytest.raises(DecodeError, match="row_record_version: expected 1, got 9"):
        parse_row_record(json.dumps({**lines[0], "row_record_version": 9}))
