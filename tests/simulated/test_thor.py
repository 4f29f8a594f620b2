"""A Thor's own: AArch64 host code and Python under emulation, and a Jetson's facts, over the simulated driver."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import click
import pytest

from aot.core.errors import DeviceError
from aot.select.times.record import read_record
from tests.compiling import STORE
from tests.simulated.conftest import tune, write_shapes
from tests.simulated.machines import THOR
from tests.simulated.test_tuning import check_conditions
from tests.unit.invoked import succeed

pytestmark = pytest.mark.parametrize("machine", [THOR], indirect=True, ids=["thor"])
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
    folder, here = tmp_path_factory.mktemp("site"), Path(click.__file__).parents[1]
    found = [*PURE, *(path.name for name in COMPILERS for path in here.glob(f"{name}-*.dist-info"))]
    for name in found:
        (folder / name).symlink_to(here / name)
    return f"{ROOT}:{folder}:{tuning.directory}/site"


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
    done = subprocess.run(["make", "-n", "tune"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith(".venv/bin/aot ")]
    return [words[1:] for words in lines]


@pytest.mark.walk
def test_make_tune_measures_this_machine_and_makes_its_record(device, tuning, aot, tmp_path, monkeypatch):
    measure, bring_home = make_tune()
    assert (measure[0], bring_home[0]) == ("tune", "import")
    candidates = {THOR.sound[0]}  # each is verified on edge shapes, which takes qemu seconds
    kernels = ["--kernels", ",".join(sorted(candidates)), "--prune", "1000"]
    shapes = write_shapes(tmp_path / "few.toml", [96])
    done = aot(*measure, "--shapes", shapes, *kernels, "--jobs", "1")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "NVIDIA Thor: compute capability 11.0, 20 SMs, CUDA 13.0" in done.stderr
    assert "not compiled" not in done.stderr
    assert done.stdout.endswith(
        "measured into build/tuning/thor/results.sqlite; next: aot import " + bring_home[1] + "\n"
    )
    monkeypatch.chdir(
        tmp_path
    )  # by this machine's Python: nothing of it asks for a device, and qemu takes 6 s to import it
    succeed(*bring_home, "--record", "thor.jsonl.gz")
    record = read_record(tmp_path / "thor.jsonl.gz")
    (conditions,) = record.conditions
    assert record.target == "thor"
    check_conditions(THOR, conditions)
    pairs = {(item.kernel.candidate.name, item.problem) for item in record.measurements if item.ok}
    assert pairs == {(name, problem) for name in candidates for problem in tuning.set.problems if problem.m == 96}
    for item in record.measurements:
        assert item.median_us == pytest.approx(device.times[item.kernel.name, item.problem], rel=0.02)


@pytest.mark.walk
def test_the_device_is_checked_before_anything_is_compiled(device, sshd, words, tmp_path):
    device.set_clocks(gpu=(315, 1575))
    device._lines[2] = "sms 6"
    device._lines[1] = "capability 10 0"
    device.describe()
    done = tune(THOR, *words)
    assert done.exit_code == DeviceError.exit_code, done.output
    assert "aarch64, Python 3.11" in done.output
    assert "NVIDIA Thor: compute capability 10.0, 6 SMs, CUDA 13.0" in done.output
    assert "R38 (release), REVISION: 2.0" in done.output
    assert "power mode MAXN" in done.output
    assert "31b0000.emc 4266 MHz (4266 to 4266), gpu-gpc-0 1575 MHz (315 to 1575)" in done.output
    expected = "has compute capability (10, 0); target thor is (11, 0) on aarch64; give the device's own --target"
    assert expected in done.output
    assert not Path("build", "tuning").exists()


@pytest.mark.walk
def test_a_slice_with_free_clocks_is_tuned_from_afar(device, tuning, sshd, words, tmp_path):
    device.set_clocks(gpu=(315, 1575))
    device._lines[0], device._lines[2] = "name NVIDIA Thor MIG 1g.24gb", "sms 6"
    device.describe()
    shapes = write_shapes(tmp_path / "few.toml", [8])
    done = tune(THOR, *words, "--shapes", shapes, "--kernels", THOR.sound[0])
    assert done.exit_code == 0, done.output
    assert "clocks are not locked (gpu-gpc-0 315 to 1575 MHz); lock them with: sudo jetson_clocks" in done.output
    cause = "the MIG slice 1g.24gb. The record is keyed by its profile, 6 SMs and power mode MAXN"
    assert f"has 6 SMs here, the target has 20: {cause}" in done.output
    # Nothing but Python was there: numpy came along.
    assert list((tmp_path / "there" / "site" / "numpy").rglob("*-aarch64-linux-gnu.so"))
    record = read_record(tmp_path / "record.jsonl.gz")
    (conditions,) = record.conditions
    assert (conditions.device, conditions.mig, conditions.num_sms) == ("NVIDIA Thor MIG 1g.24gb", "1g.24gb", 6)
    assert {item.problem for item in record.measurements} == {x for x in tuning.set.problems if x.m == 8}
    for item in record.measurements:
        assert (item.ok, item.num_rounds) == (True, 7)
        assert item.median_us == pytest.approx(device.times[item.kernel.name, item.problem], rel=0.02)
