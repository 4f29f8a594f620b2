"""The committed records of operations on rows: their sizes are those that a table looks up."""

from pathlib import Path

import pytest

import aot
from aot.core.target import load_target
from aot.kinds.rows.operation import RowFunction, RowProblem
from aot.row_families import row_family_of
from aot.select.row_record import read_row_record
from aot.select.rows import HEAD_EDGES

RECORDS = sorted((Path(aot.__file__).parent / "row_records").glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_every_time_is_of_a_size_that_its_kernel_takes_and_that_there_is(path):
    record = read_row_record(path)
    target = load_target(record.head.target)
    assert record.times
    for time in record.times:
        problem = RowProblem(time.operation, time.rows, time.cols)
        assert row_family_of(time.candidate).limits(time.candidate, time.operation).takes(time.cols), problem.name
        if time.operation.function is RowFunction.ROTARY:
            assert time.cols in HEAD_EDGES, problem.name
        # What fits the L2 cache may move faster than memory.
        if problem.num_bytes > 4 * target.l2_bytes:
            assert time.median_us * 1e-6 * target.bandwidth_bytes_per_s > 0.9 * problem.num_bytes, problem.name
