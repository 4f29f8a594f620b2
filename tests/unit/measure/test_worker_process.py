import pytest

from aot.core.errors import DeviceError
from aot.measure.tuning_set import TuningSet
from aot.measure.worker_process import check_arch, step_reporter, warn
from tests.unit.twin_worker import KERNELS, PROBLEMS

TUNING = TuningSet("h200", "sm_90a", KERNELS, PROBLEMS)


def test_architecture_must_be_the_kernels():
    check_arch(TUNING.arch, (9, 0), "H200")
    check_arch("sm_110a", (11, 0), "Thor")
    with pytest.raises(DeviceError, match="the kernels are for sm_90a, B200 is sm_100"):
        check_arch(TUNING.arch, (10, 0), "B200")


def test_steps_and_warnings_are_lines(capfd):
    step_reporter(0.0)(3, 9, "verified it")
    warn("clocks")
    assert capfd.readouterr().out == "step 3 9 verified it\nwarning: clocks\n"
