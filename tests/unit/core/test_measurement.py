from aot.core.candidate import Candidate, KernelKey
from aot.core.measurement import Measurement
from tests.unit.twins import BF16, problem_of

KEY = KernelKey(BF16, Candidate("sm90_quack", 128, 128, schedule="pingpong"))


def test_only_ok_is_ok():
    timed = Measurement(KEY, problem_of(1, 8, 8), 5.0, 4.9, 5.1, 7, 1e-3)
    assert timed.ok
    failed = Measurement(KEY, problem_of(1, 8, 8), 0.0, 0.0, 0.0, 0, 0.0, "failed: hung")
    assert not failed.ok
