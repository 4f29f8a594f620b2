"""No product is of values of the past: not by default, nor where the promise of `constant` is kept.

AOT_GEMM_STALE_TRIALS sets the trials a case, AOT_GEMM_STALE_JSON a file for the table that is printed at the end.
"""

import os

import pytest

pytest.importorskip("torch")
pytest.importorskip("aot_gemm")

from tests.device.adversaries import CASES, CONTROLS, TRIALS, left_out, run, settings_of
from tests.device.scene import UnfitError, reads_early

NUM_TRIALS = int(os.environ.get("AOT_GEMM_STALE_TRIALS", TRIALS))


def _parameters(cases):
    return [
        pytest.param(case, setting, id=f"{case.name}, {setting.mode}, {setting}")
        for case in cases
        for setting in settings_of(case)
    ]


@pytest.mark.parametrize(("case", "setting"), _parameters(CASES))
def test_no_product_is_stale(case, setting, stale_rows):
    try:
        row = run(case, setting, NUM_TRIALS)
    except UnfitError as error:
        stale_rows.append(left_out(case, setting, error))
        pytest.skip(str(error))
    stale_rows.append(row)
    assert row.stale == 0


@pytest.mark.parametrize(("case", "setting"), _parameters(CONTROLS))
def test_the_suite_sees_a_promise_that_is_broken_behind_its_back(case, setting, stale_rows):
    try:
        row = run(case, setting, NUM_TRIALS)
    except UnfitError as error:
        stale_rows.append(left_out(case, setting, error))
        pytest.xfail(str(error))
    stale_rows.append(row)
    assert reads_early(row.kernel)
    assert row.stale * 2 > NUM_TRIALS
