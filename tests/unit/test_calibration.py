from dataclasses import replace

import pytest

from aot.calibration import Calibration, constants_of, read_calibration, write_calibration
from aot.cost import DEFAULTS
from aot.errors import TargetError

CALIBRATION = Calibration("h200", "aot calibrate: 48 times of the record h200", replace(DEFAULTS, ramp_us=3.25))


@pytest.fixture
def path(tmp_path):
    write_calibration(tmp_path / "d" / "c.toml", CALIBRATION)
    return tmp_path / "d" / "c.toml"


def test_written_calibrations_are_read_back(path):
    assert read_calibration(path, "h200") == CALIBRATION
    assert constants_of(path, "h200").ramp_us == 3.25
    assert constants_of(None, "h200") == DEFAULTS


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text[:28], "version 1 and the keys ['target', 'version']; expected version 1 and"),
        (lambda text: text.replace("version = 1", "version = 2"), "version 2 and the keys"),
        (lambda text: text.replace("ramp_us", "ramp"), "[constants] must have ['bandwidth_share', "),
        (lambda text: text.replace("3.25", "-1"), "`ramp_us` is -1; expected a number above 0"),
        (lambda text: text.replace("3.25", '"x"'), "`ramp_us` is 'x'; expected a number above 0"),
        (lambda text: text.replace('"h200"', '"thor"'), "is for 'thor', not for h200"),
        (lambda text: text + "=", "cannot read the calibration"),
    ],
)
def test_damaged_calibrations_are_refused(path, edit, message):
    path.write_text(edit(path.read_text()))
    with pytest.raises(TargetError) as caught:
        read_calibration(path, "h200")
    assert message in str(caught.value)


def test_a_source_that_would_break_the_file_is_refused(tmp_path):
    with pytest.raises(TargetError, match="has a quote, a backslash or a line break"):
        write_calibration(tmp_path / "c.toml", replace(CALIBRATION, source='a "b"'))
