"""What `make setup` asks for can be had on a Thor: there are wheels for it, and the pins agree with each other."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.package

ROOT = Path(__file__).parents[2]
GLIBC_MINOR = 39
PYTHON = {"python_version": "3.12", "python_full_version": "3.12.3"}
THOR = default_environment() | PYTHON | {"platform_machine": "aarch64"}
"""JetPack 7: Ubuntu 24.04, Python 3.12, glibc 2.39."""


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(x.name): str(next(iter(x.specifier)).version) for x in requirements}


def asked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["dev"]]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Ask pip for what each direct requirement is on a Thor; it downloads metadata, and installs nothing."""
    folder = tmp_path_factory.mktemp("setup")
    tags = [*(f"manylinux_2_{minor}_aarch64" for minor in range(GLIBC_MINOR, 16, -1)), "manylinux2014_aarch64"]
    options = ["--python-version", "3.12", "--implementation", "cp", "--only-binary=:all:"]
    options += [word for tag in tags for word in ("--platform", tag)]
    command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--no-deps", "--target", folder / "none"]
    subprocess.run([*command, "--report", folder / "report.json", *options, *asked()], check=True)
    return json.loads((folder / "report.json").read_text())["install"]


def test_every_requirement_has_a_wheel_for_a_thor(found):
    names = {canonicalize_name(Requirement(text).name) for text in asked()}
    assert {canonicalize_name(x["metadata"]["name"]) for x in found} == names
    tags = {x["download_info"]["url"].removesuffix(".whl").rpartition("-")[2] for x in found}
    assert [x for x in tags if x != "any" and "aarch64" not in x] == []


def test_the_pins_are_what_the_requirements_ask_for_on_a_thor(found):
    pinned, wrong = pins(), []
    needs = [("aot", None, asked())]
    needs += [(x["metadata"]["name"], x.get("requested_extras"), x["metadata"].get("requires_dist", [])) for x in found]
    for name, extras, texts in needs:
        for requirement in map(Requirement, texts):
            marker = requirement.marker
            if marker and not any(marker.evaluate({**THOR, "extra": extra}) for extra in ("", *(extras or []))):
                continue
            version = pinned.get(canonicalize_name(requirement.name))
            if version is None or not requirement.specifier.contains(version):
                wrong.append(f"{name} needs {requirement}; constraints.txt has {version}")
    assert wrong == []
