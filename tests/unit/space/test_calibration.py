from dataclasses import replace

import pytest

from aot.core.errors import TargetError
from aot.space.calibration import Calibration, calibration_of, read_calibration, write_calibration
from aot.space.cost import DEFAULTS

CALIBRATION = Calibration("h200", "aot calibrate: 48 times of the record h200", replace(DEFAULTS, ramp_us=3.25))


@pytest.fixture
def path(tmp_path):
    write_calibration(tmp_path / "d" / "c.toml", CALIBRATION)
    return tmp_path / "d" / "c.toml"


def test_written_calibrations_are_read_back(path):
    assert read_calibration(path, "h200") == CALIBRATION
    assert calibration_of(path, "h200") == CALIBRATION
    assert calibration_of(None, "h200") is None


def test_predicted_times_say_what_the_constants_were_fitted_to():
    assert CALIBRATION.model == "cost-model-v1, constants: aot calibrate: 48 times of the record h200"
    assert replace(CALIBRATION, source="").model == "cost-model-v1, constants: of a calibration that does not say"
    long = replace(CALIBRATION, source="x" * 4000).model
    assert (len(long), long[:28], long[-4:]) == (185, "cost-model-v1, constants: xx", "x...")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda text: text[:28],
            "c.toml: Calibration needs the key constants, which is missing; mend the entry, or run `aot",
        ),
        (lambda text: text.replace("version = 1", "version = 2"), "c.toml: version: expected 1, got 2"),
        (lambda text: text.replace("version = 1", "version = true"), "c.toml: version: expected 1, got True"),
        (lambda text: text.replace("ramp_us", "ramp"), "c.toml: constants.ramp: there is no such key in Constants"),
        (
            lambda text: text.replace("3.25", "-1"),
            "c.toml: constants.ramp_us: expected a number above 0, at most 1e+24,",
        ),
        (
            lambda text: text.replace("3.25", "inf"),
            "c.toml: constants.ramp_us: expected a number above 0, at most 1e+24,",
        ),
        (
            lambda text: text.replace("3.25", '"x"'),
            "constants.ramp_us: expected a number above 0, at most 1e+24, got 'x'",
        ),
        (lambda text: text.replace('"h200"', '"thor"'), "is for thor, not for h200; give another --calibration"),
        (lambda text: text + "=", "c.toml: not TOML: "),
        (lambda text: text + "x = " + "1" * 5000, "c.toml: not TOML that can be read: a whole number of thousands of"),
        (lambda text: text + "x = " + "[" * 5000, "c.toml: not TOML that can be read: nested too deeply"),
    ],
)
def test_damaged_calibrations_are_refused(path, edit, message):
    path.write_text(edit(path.read_text()))
    with pytest.raises(TargetError) as caught:
        read_calibration(path, "h200")
    assert message in str(caught.value)


def test_a_source_is_escaped(tmp_path):
    calibration = replace(CALIBRATION, source='a "b" \\ ${c} ]] é')
    write_calibration(tmp_path / "c.toml", calibration)
    assert read_calibration(tmp_path / "c.toml", "h200") == calibration


@pytest.mark.parametrize(
    "change", [{"source": "a\nb"}, {"target": "../x"}, {"constants": replace(DEFAULTS, ramp_us=0.0)}]
)
def test_what_could_not_be_read_is_not_written(tmp_path, change):
    with pytest.raises(TargetError, match=r"the calibration for .*: expected "):
        write_calibration(tmp_path / "c.toml", replace(CALIBRATION, **change))
    assert list(tmp_path.iterdir()) == []
