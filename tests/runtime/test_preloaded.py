"""After `preload`, a product in Python opens no file and holds no more memory, whatever its shapes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_GROWN_BYTES = 4096
"""Of 1,800 calls of as many shapes: two bytes a call, where an entry of a cache would take a hundred."""

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT TESTED: the numbers of calls are x86-64's")


def run(package, kind, what):
    command = [sys.executable, "-m", "tests.runtime.preloaded", Path(package.__file__).parent, kind, what]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["exchange", "capsules"])
def test_products_open_no_file_and_hold_nothing_of_a_shape(package, kind):
    found = run(package, kind, "preloaded")
    assert (found["refused"], found["events"], found["opens"]) == (None, [], False)
    assert found["grown"] <= MAX_GROWN_BYTES


def test_without_preload_the_first_product_would_open_files(package):
    found = run(package, "exchange", "cold")
    assert found["refused"] is not None
    assert found["events"]
