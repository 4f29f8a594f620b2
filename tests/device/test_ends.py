"""How a process ends, forks or forgets the wheel while the GPU works; what `tests/device/ends.py` has, side by side.

Each program has to end in time, with its exit code, and to write nothing of a fault to its standard error.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")
pytest.importorskip("aot_gemm")

from tests.device.ends import ALONE, COMPILE, HEAD, INTERRUPTED, PROGRAMS, RUN, WITHOUT

SECONDS = 180
"""More than any of them takes: that of AOTInductor compiles."""
AT_ONCE = 6
TORCH_FAILS = 77
"""Exit code of a program that torch itself does not survive."""

FAULT = re.compile("Traceback|Exception ignored|Fatal|terminate called|Segmentation|double free|corrupt", re.IGNORECASE)


def run(program, folder, code=0):
    """Run a program in a process of its own."""
    command = [sys.executable, "-c", f"{HEAD}\n{program}", str(folder)]
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    if done.returncode == TORCH_FAILS:
        pytest.skip(f"torch alone fails: {done.stdout[-200:]}")
    told = f"exit code {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == code, told
    assert not FAULT.search(done.stderr), told


@pytest.fixture(scope="module")
def running(request, tmp_path_factory):
    """Begin the programs of all tests that were asked for, and return what is to come by name."""
    asked = [item.callspec.params["name"] for item in request.session.items if "running" in item.fixturenames]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            name: pool.submit(
                run, PROGRAMS[name], tmp_path_factory.mktemp("ends"), -2 * (PROGRAMS[name] is INTERRUPTED)
            )
            for name in asked
        }


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_process_comes_to_its_end(running, name):
    running[name].result()


def test_aotinductor_in_processes_of_their_own(tmp_path):
    """One exports and compiles; one loads it on each GPU; torch tells the one without the wheel's operators so.

    torch 2.11.0+cu130 on an H200's host, 2026-11-29, ends a process that loads a package of torch alone, by SIGSEGV.
    """
    run(ALONE, tmp_path)
    run(COMPILE, tmp_path)
    run(RUN, tmp_path)
    run(WITHOUT, tmp_path)
