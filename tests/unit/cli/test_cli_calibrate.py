"""The command `aot calibrate`, as users meet it."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

from click.testing import CliRunner

from aot.cli import main as cli
from aot.space.calibration import Calibration, read_calibration, write_calibration
from aot.space.cost import DEFAULTS
from aot.tune.bundle import Bundle
from tests.unit.invoked import succeed


def aot(*arguments):
    return CliRunner().invoke(cli.main, [str(x) for x in arguments])


def test_a_record_without_the_type_is_refused(few_record):
    result = aot("calibrate", "--record", few_record, "--dtype", "float16")
    assert result.exit_code == 9
    assert "few.jsonl.gz has no times of float16; give another --record or --dtype" in result.output


def test_calibrate_prints_scores_and_writes_a_calibration(few_record):
    result = aot("calibrate", "--record", few_record, "--count", "12", "--folds", "2", "-o", "c.toml")
    assert (result.exit_code, result.exception) == (0, None), result.output
    assert "set by hand, fitted" in result.stdout
    assert "each fitted to 12 times of other weights than it is scored on" in result.stdout
    found = read_calibration(Path("c.toml"), "h200")
    assert found.source == "aot calibrate: 12 times of the record few"
    assert found.constants != DEFAULTS
    text = aot("tune", "--target", "thor", "--calibration", "c.toml", "--bundle", "b").output
    assert "c.toml is for h200, not for thor; give another --calibration" in text


def test_what_a_calibration_is_of_goes_with_the_times_that_it_predicts(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    requests = []
    monkeypatch.setattr(
        "aot.cli.tune.make_tuning_bundle",
        lambda request, target, directory, workplace: requests.append(request) or (Bundle(directory, 0), []),
    )
    calibration = Calibration("thor", "calibrated on published times: 1, of x", replace(DEFAULTS, ramp_us=3.25))
    write_calibration(Path("c.toml"), calibration)
    words = ["tune", "--target", "thor", "--operations", "bf16_kk", "--bundle", "b"]
    plain, told = succeed(*words), succeed(*words, "--calibration", "c.toml")
    assert [x.constants for x in requests] == [DEFAULTS, calibration.constants]
    assert [x.predicted_by for x in requests] == ["cost-model-v1", calibration.model]
    assert "predicted times" not in plain
    assert f"candidates are predicted by: {calibration.model}\n" in told
    assert calibration.model == "cost-model-v1, constants: calibrated on published times: 1, of x"


def test_calibrate_prints_its_constants_for_programs(few_record):
    found = json.loads(succeed("calibrate", "--record", few_record, "--count", "12", "--folds", "0", "--json"))
    assert (found["target"], found["scores"]) == ("h200", [])
    assert found["before"].keys() == found["after"].keys() == {x.name for x in fields(DEFAULTS)}
    assert found["before"] == asdict(DEFAULTS)
    assert found["after"] != found["before"]
