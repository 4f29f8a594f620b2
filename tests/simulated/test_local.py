"""`make tune` on the Thor itself: the toolchain's own command under emulation, over the simulated driver."""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import pytest

from aot.core.errors import DeviceError
from aot.select.record import read_record
from tests.compiling import STORE
from tests.simulated.conftest import CANDIDATES

ROOT = Path(__file__).parents[2]
PURE = (
    "click",
    "elftools",
    "jinja2",
    "markupsafe",
    "ninja",
    "nvidia",
    "packaging",
    "threadpoolctl.py",
    "tqdm",
    "ziglang",
)
"""What the command imports that is the same on every machine, or is not run here: markupsafe has a Python twin."""
COMPILERS = ("nvidia_cutlass_dsl", "nvidia_cutlass_operators", "quack_kernels")
"""Asked for their versions: every kernel is in the artifact store, so that nothing is compiled."""


@pytest.fixture(scope="module")
def site(tuning, tmp_path_factory):
    """Make a folder of the packages that the command needs on the device; gives PYTHONPATH."""
    folder, here = tmp_path_factory.mktemp("site"), Path(sysconfig.get_path("purelib"))
    found = [*PURE, *(path.name for name in COMPILERS for path in here.glob(f"{name}-*.dist-info"))]
    for name in found:
        (folder / name).symlink_to(here / name)
    platforms = [word for minor in (17, 27, 28) for word in ("--platform", f"manylinux_2_{minor}_aarch64")]
    options = ["--no-deps", "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp", *platforms]
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", folder / "scipy", *options]
    subprocess.run([*command, f"scipy=={version('scipy')}"], check=True)
    return f"{ROOT}:{folder}:{folder}/scipy:{tuning.directory}/site"


@pytest.fixture
def aot(device, tuning, site, tmp_path):
    """Give what runs the command on the device, in a folder of its own beside the artifact store."""
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "artifacts").symlink_to(STORE)

    def run(*words):
        command = device.command("-m", "tests.simulated.local", tuning.directory / "kernels.so", *words)
        environment = device.environment | {"PYTHONPATH": site}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


def make_tune():
    """Give the commands of `make tune`."""
    done = subprocess.run(["make", "-n", "tune"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith(".venv/bin/aot ")]
    return [words[1:] for words in lines]


def test_make_tune_measures_this_machine_and_makes_its_record(device, tuning, aot, tmp_path):
    measure, bring_home = make_tune()
    assert (measure[0], bring_home[0]) == ("tune", "import")
    kernels = ["--kernels", ",".join(CANDIDATES), "--prune", "1000"]
    done = aot(*measure, "--shapes", tuning.shapes, *kernels, "--jobs", "1")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "NVIDIA Thor: compute capability 11.0, 20 SMs, CUDA 13.0" in done.stderr
    assert "not compiled" not in done.stderr
    assert done.stdout.endswith(
        "measured into build/tuning/thor/results.sqlite; next: aot import " + bring_home[1] + "\n"
    )
    done = aot(*bring_home, "--record", "thor.jsonl.gz")
    assert done.returncode == 0, done.stderr[-4000:]
    record = read_record(tmp_path / "thor.jsonl.gz")
    (conditions,) = record.conditions
    assert (record.target, conditions.device, conditions.num_sms) == ("thor", "NVIDIA Thor", 20)
    pairs = {(item.kernel.candidate.name, item.problem) for item in record.measurements if item.ok}
    assert pairs == {(name, problem) for name in CANDIDATES for problem in tuning.set.problems}
    for item in record.measurements:
        assert item.median_us == pytest.approx(device.times[item.kernel.name, item.problem], rel=0.02)


def test_another_gpu_is_refused_before_anything_is_done(device, aot, tmp_path):
    device._lines[1] = "capability 8 7"
    device.describe()
    done = aot("tune", "--target", "thor")
    assert done.returncode == DeviceError.exit_code
    assert "has compute capability (8, 7); target thor is (11, 0) on aarch64; give the device's own" in done.stderr
    assert not (tmp_path / "build" / "tuning").exists()
