"""The committed records of operations on rows: their sizes are those that a table looks up."""

from pathlib import Path

import pytest

import aot
from aot.core.target import load_target
from aot.families import rows_family_of
from aot.kinds.rows.kind import ROWS
from aot.kinds.rows.sizes import HEAD_EDGES
from aot.select.times.record import read_record

RECORDS = sorted((Path(aot.__file__).parent / "records").glob("*_rows.jsonl.gz"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_every_time_is_of_a_size_that_its_kernel_takes_and_that_there_is(path):
    record = ROWS.part(read_record(path))
    target = load_target(record.target)
    assert record.measurements
    for item in record.measurements:
        problem, candidate = item.problem, item.kernel.candidate
        assert rows_family_of(candidate).limits(candidate, problem.operation).takes(problem.cols), problem.name
        if problem.operation.is_rotary:
            assert problem.cols in HEAD_EDGES, problem.name
        # What fits the L2 cache may move faster than memory.
        if problem.num_bytes > 4 * target.l2_bytes:
            assert item.median_us * 1e-6 * target.bandwidth_bytes_per_s > 0.9 * problem.num_bytes, problem.name


def test_the_h200_has_one():
    assert [path.name for path in RECORDS] == ["h200_rows.jsonl.gz"]
