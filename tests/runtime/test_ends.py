"""A process ends while threads of it launch: Python ends such threads by unwinding them, through frames of ours too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, sys, threading, time
from pathlib import Path
from tests.runtime.preloaded import tensors_of
sys.path.insert(0, str(Path(sys.argv[1]).parent))
package = importlib.import_module(Path(sys.argv[1]).name)
framework, tensor = tensors_of(sys.argv[2])
package.preload()
def forever():
    x, weight, out = tensor((8, 64)), tensor((32, 64)), tensor((8, 32))
    while True:
        package.linear(x, weight, out=out)
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
"""


@pytest.mark.parametrize("kind", ["exchange", "capsules"])
def test_daemon_threads_that_launch_do_not_abort_the_process(package, kind):
    command = [sys.executable, "-c", PROGRAM, Path(package.__file__).parent, kind]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
