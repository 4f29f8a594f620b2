"""One bundle and one simulated driver of a machine for all tests here; devices are made by each test."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from aot.cli.main import main
from aot.core.candidate import Candidate, KernelKey
from aot.measure.tuning_set import TuningSet, read_tuning_set
from aot.tune import bundle
from tests.compiling import EVERY, STORE, compile_kernels
from tests.objects import BF16
from tests.simulated import device as simulated
from tests.simulated.machines import H200, THOR
from tests.simulated.runner import make_runner
from tests.simulated.sshd import Sshd
from tests.unit.accepted import named

SHAPES = """
version = 1
dtypes = ["bfloat16"]
layouts = ["kk"]
m = {m}

[[model]]
name = "small"
description = "what an emulated CPU multiplies in time"
weights = [{{ name = "w", n = 136, k = 72 }}, {{ name = "v", n = 264, k = 40 }}]
"""


def write_shapes(path, m):
    """Write a shape file of problems with these m; return its path."""
    path.write_text(SHAPES.format(m=m))
    return path


@dataclass(frozen=True)
class Tuning:
    directory: Path
    shapes: Path
    set: TuningSet

    @property
    def names(self) -> dict[Candidate, str]:
        return {x.key.candidate: x.name for x in self.set.kernels if not x.is_fallback}

    def name_of(self, candidate: str) -> str:
        (name,) = [x.name for x in self.set.kernels if x.key.candidate.name == candidate]
        return name


def tune(machine, *words):
    """Run `aot tune` for a machine with a library over the simulated driver."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aot.tune.tuning.build_library", simulated.build_library)
        if machine.is_emulated:
            patch.setattr("aot.tune.bundle.make_runner", make_runner)
        kernels = ["--kernels", ",".join(machine.candidates), "--prune", "1000"]
        return CliRunner().invoke(main, ["tune", "--target", machine.target.name, *kernels, *map(str, words)])


@pytest.fixture(scope="session", params=[H200, THOR] if EVERY else [H200], ids=lambda x: x.target.name)
def machine(request):
    """Give the machine of a test: the one whose programs run as they are, and with EVERY the Thor too.

    What a test proves of processes, stores and links is the same on both. A test of a Thor's own says so:
    `pytest.mark.parametrize("machine", [THOR], indirect=True)`.
    """
    return request.param


@pytest.fixture(scope="session")
def driver(machine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    sources = [simulated.HERE / "libcuda.cc"]
    return simulated.compile_shared(sources, folder / "libcuda.so.1", machine.target, "-Wl,-soname,libcuda.so.1")


@pytest.fixture(scope="session")
def tuning(machine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuning")
    shapes = write_shapes(folder / "small.toml", [8, 96, 200])
    keys = [KernelKey(BF16, named(name)) for name in machine.candidates]
    compile_kernels(keys, machine.target)
    done = tune(machine, "--shapes", shapes, "--bundle", folder / "bundle")
    assert done.exit_code == 0, done.output
    assert "not compiled" not in done.output
    if machine.is_emulated:  # it has Python alone
        bundle.add_numpy(folder / "bundle", "3.11.2", machine.target.machine, "2.36")
    return Tuning(folder / "bundle", shapes, read_tuning_set(folder / "bundle"))


@pytest.fixture
def device(tmp_path, machine, driver, tuning):
    return simulated.make_device(tmp_path / "device", driver, machine, tuning)


@pytest.fixture
def sshd(device, tmp_path, monkeypatch):
    server = Sshd(tmp_path / "ssh", device.environment["PATH"])
    monkeypatch.setenv("PATH", f"{server.bin}:{os.environ['PATH']}")
    yield server
    server.drop()


@pytest.fixture
def words(sshd, tuning, tmp_path, monkeypatch):
    """Give the words of `aot tune --on`, to be run in tmp_path; the folder on the device is tmp_path / "there"."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "artifacts").symlink_to(STORE)
    found = ["--on", f"{sshd.url}{tmp_path}/there", "--shapes", tuning.shapes]
    return [*map(str, found), "--record", str(tmp_path / "record.jsonl.gz")]
