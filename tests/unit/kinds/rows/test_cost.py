import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.core.target import load_target
from aot.kinds.rows.candidate import row_candidate
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.problem import RowProblem
from aot.space.kinds import space_of

H200, THOR = load_target("h200"), load_target("thor")
NORM = row_operation("bf16_rms_norm")
REGISTERS = row_candidate("row_registers", 256, 1, 8, 2)
LOOPED = row_candidate("row_looped", 256, 1, 8, 2)


def time_us(rows, cols, candidate=REGISTERS, operation=NORM, target=H200):
    (found,) = space_of(operation).times_us([candidate], RowProblem(operation, rows, cols), target)
    return found


def test_many_rows_take_what_moving_their_bytes_takes():
    problem = RowProblem(NORM, 65536, 4096)
    bytes_us = problem.num_bytes / H200.bandwidth_bytes_per_s * 1e6
    assert bytes_us < time_us(65536, 4096) < 1.05 * bytes_us


def test_one_row_takes_a_launch_and_a_trip_to_memory():
    assert H200.launch_us + 0.8 < time_us(1, 4096) < 2 * H200.launch_us


@given(st.integers(1, 2**16), st.integers(1, 2**16))
def test_more_rows_never_take_less(rows, more):
    assert time_us(rows, 4096) <= time_us(rows + more, 4096)


def test_reading_again_takes_longer():
    assert time_us(8192, 4096) < time_us(8192, 4096, LOOPED)
    assert time_us(1, 4096) < time_us(1, 4096, LOOPED)


@pytest.mark.parametrize("rows", [1, 512, 8192])
def test_a_warp_a_row_is_slow_where_rows_are_wide_and_few_threads_wait_where_they_are_narrow(rows):
    narrow = row_candidate("row_looped", 256, 1, 8, 1)
    assert time_us(rows, 16384, narrow) > time_us(rows, 16384, row_candidate("row_looped", 1024, 1, 8, 2))


def test_less_bandwidth_takes_longer():
    assert time_us(8192, 4096, target=THOR) > 10 * time_us(8192, 4096)
