import json
from dataclasses import replace

import pytest

from aot.compile.artifact import StoredResult, read_result
from aot.core.json_text import plain_json
from aot.core.strict_json import DecodeError
from tests.golden.manifest import golden_manifest

KERNEL = plain_json(golden_manifest().kernels[3])


def written(path, value):
    path.write_text(json.dumps(value))
    return path


def test_results_are_read(tmp_path):
    path = tmp_path / "result.json"
    assert read_result(written(path, {"seconds": 2, "failure": "why"})) == StoredResult(2.0, failure="why")
    assert read_result(written(path, {"seconds": 0.5, "kernel": KERNEL})) == StoredResult(
        0.5, golden_manifest().kernels[3]
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "StoredResult needs the key seconds, which is missing"),
        (None, "expected an object of StoredResult, got None"),
        ([], "expected an object of StoredResult, got []"),
        ({"seconds": 1}, "expected a kernel or a failure"),
        ({"seconds": 1, "kernel": KERNEL, "failure": "why"}, "expected a kernel or a failure"),
        ({"seconds": -1, "failure": "why"}, "seconds: expected a number from 0 to 1e+12, got -1"),
        (
            {"seconds": 1, "failure": ["why"]},
            "failure: expected one line of printable text of at most 4000 characters, g",
        ),
        (
            {"seconds": 1, "failure": "a\x1b[31m"},
            "failure: expected one line of printable text of at most 4000 characters",
        ),
        (
            {"seconds": 1, "kernel": {**KERNEL, "registers": None}},
            "kernel.registers: expected a whole number from 0 to",
        ),
    ],
)
def test_what_is_no_result_is_refused(tmp_path, value, message):
    with pytest.raises(DecodeError) as caught:
        read_result(written(tmp_path / "result.json", value))
    assert str(caught.value).startswith(message)


def test_an_artifact_from_before_kernels_said_their_sms_is_read(tmp_path):
    old = {name: value for name, value in KERNEL.items() if name != "num_sms"}
    found = read_result(written(tmp_path / "result.json", {"seconds": 0.5, "kernel": old})).kernel
    assert found == replace(golden_manifest().kernels[3], num_sms=None)
