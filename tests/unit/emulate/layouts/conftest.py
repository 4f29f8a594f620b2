"""What CuTe DSL says of layouts and descriptors, in one process for each architecture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def _run(arch, folder):
    script = Path(__file__).with_name("dsl_layouts.py")
    command = [sys.executable, "-W", "ignore", str(script), arch, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def sm110(tmp_path_factory):
    return _run("sm_110a", tmp_path_factory.mktemp("sm110"))


@pytest.fixture(scope="session")
def sm90(tmp_path_factory):
    return _run("sm_90a", tmp_path_factory.mktemp("sm90"))
