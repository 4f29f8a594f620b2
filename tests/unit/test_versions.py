"""docs/versioning.md states the versions that the code has."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from aot.package.render import ABI_VERSION
from aot.select.times.record import READ_VERSIONS, RECORD_VERSION

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "versioning.md").read_text()
ROWS = {
    row[0].split(":")[0]: (row[1], row[2].strip("`"))
    for row in (re.split(r" *\| *", line.strip("| ")) for line in PAGE.splitlines() if line.startswith("| "))
    if row[0] not in {"what", "---"}
}
CONSTANTS = {
    "manifest": "MANIFEST_VERSION",
    "record": "RECORD_VERSION",
    "selection": "SELECTION_VERSION",
    "shape set": "VERSION",
    "calibration": "CALIBRATION_VERSION",
    "executions": "EXECUTIONS_VERSION",
    "results of measuring": "SCHEMA_VERSION",
    "bundle": "TUNING_SET_VERSION",
    "folder of packed weights": "VERSION",
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_files_version_is_that_of_the_code(name):
    version, path = ROWS[name]
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    assert int(version) == getattr(module, CONSTANTS[name])


def test_the_apis_version_is_the_toolchains():
    version, path = ROWS["API"]
    assert version == tomllib.loads((ROOT / path).read_text())["project"]["version"]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_abis_version_is_the_headers_the_librarys_and_the_symbols():
    version, path = ROWS["ABI"]
    assert re.findall(r"^#define AOT_GEMM_ABI_VERSION (\d+)$", (ROOT / path).read_text(), re.MULTILINE) == [version]
    assert int(version) == ABI_VERSION
    assert re.findall(r"`(?:libaot_gemm\.so\.|aot_gemm_)(\d+)`", PAGE) == [version, version]


def test_the_provenances_version_is_that_of_its_build_type():
    version, path = ROWS["provenance of a release"]
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    assert module.BUILD_TYPE.rpartition(":")[2] == version
    assert module.BUILD_TYPE.removeprefix("urn:") in PAGE
    assert module.BUILD_TYPE in (ROOT / "docs" / "releases.md").read_text()


def test_the_records_that_are_read_are_those_stated():
    assert re.findall(r"Record: versions (\d+) to (\d+) are read, and (\d+) is written", PAGE) == [
        (str(READ_VERSIONS[0]), str(READ_VERSIONS[-1]), str(RECORD_VERSION))
    ]


def test_every_row_is_compared():
    assert set(ROWS) == {"API", "ABI", "provenance of a release", *CONSTANTS, "---"} - {"---"}
