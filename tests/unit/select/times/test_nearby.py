import numpy as np
import pytest

from aot.core.target import load_target
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.problem import RowProblem
from aot.select.times.nearby import NearbyTimes
from aot.space.enumeration import legal
from aot.space.kinds import space_of

H200 = load_target("h200")
NORM = row_operation("bf16_rms_norm")
CANDIDATES = legal(NORM, H200)[:6]


def problem(rows, cols):
    return RowProblem(NORM, rows, cols)


def predicted(at):
    return np.array(space_of(NORM).times_us(CANDIDATES, at, H200))


def measured(*sizes, factors=1.0):
    return {problem(*x): dict(zip(CANDIDATES, (predicted(problem(*x)) * factors).tolist(), strict=True)) for x in sizes}


def test_without_times_it_is_the_cost_model():
    asked = [problem(5, 777), problem(5000, 4096)]
    found = NearbyTimes.of(NORM, {}, H200).times_us(CANDIDATES, asked)
    assert found == pytest.approx(np.array([predicted(x) for x in asked]))


def test_what_was_measured_is_told_again_but_for_what_similar_kernels_say():
    times = measured((16, 1024), (512, 4096), factors=np.array([1.0, 1.3, 0.8, 2.0, 1.1, 0.9]))
    found = NearbyTimes.of(NORM, times, H200).times_us(CANDIDATES, list(times))
    assert found == pytest.approx(np.array([list(row.values()) for row in times.values()]), rel=0.1)


def test_an_error_is_shared_by_near_sizes_and_fades_with_distance():
    slow = np.array([1.0, 1.0, 1.5, 1.0, 1.0, 1.0])
    nearby = NearbyTimes.of(NORM, measured((64, 2048), (64, 4096), factors=slow), H200)
    near, far = problem(64, 2880), problem(65536, 64)
    found = nearby.times_us(CANDIDATES, [near, far]) / np.array([predicted(near), predicted(far)])
    assert found[0, 2] > 1.25
    assert found[0, 2] / found[0, 0] > found[1, 2] / found[1, 0] > 1.0


def test_a_kernel_that_was_not_timed_is_compared_with_one_that_was():
    """All kernels took twice as long as predicted, one of which was not timed: it is taken for slower too."""
    times = {x: dict(list(row.items())[1:]) for x, row in measured((64, 2048), (512, 2048), factors=2.0).items()}
    found = NearbyTimes.of(NORM, times, H200).times_us(CANDIDATES, [problem(128, 2048)])[0]
    assert found[0] > 1.15 * predicted(problem(128, 2048))[0]
