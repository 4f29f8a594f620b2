"""One bundle and one simulated driver for all tests here; devices are made by each test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from aot.cli.main import main
from aot.core.candidate import Candidate, KernelKey
from aot.core.target import load_target
from aot.measure.tuning_set import TuningSet, read_tuning_set
from aot.tune import bundle
from tests.compiling import compile_kernels
from tests.objects import BF16
from tests.simulated import device as simulated
from tests.simulated.runner import make_runner
from tests.unit.accepted import named

CANDIDATES = (
    "sm100_persistent_64x32_c1x1_static",
    "sm100_persistent_128x128_c1x1_static_swap",
    "sm100_persistent_128x128_c1x1_clc",
    "sm100_persistent_128x128_c2x1_static",
    "sm100_persistent_128x128_c1x2_clc",
    "sm100_persistent_128x128_c2x1_clc_2cta",
    "sm100_persistent_128x128_c1x2_static",
)
SHAPES = """
version = 1
dtypes = ["bfloat16"]
layouts = ["kk"]
m = [8, 96, 200]

[[model]]
name = "small"
description = "what an emulated CPU multiplies in time"
weights = [{ name = "w", n = 136, k = 72 }, { name = "v", n = 264, k = 40 }]
"""
TARGET = load_target("thor")


@dataclass(frozen=True)
class Tuning:
    """The bundle of a tuning."""

    directory: Path
    shapes: Path
    set: TuningSet

    @property
    def names(self) -> dict[Candidate, str]:
        return {x.key.candidate: x.name for x in self.set.kernels if not x.is_fallback}

    def name_of(self, candidate: str) -> str:
        (name,) = [x.name for x in self.set.kernels if x.key.candidate.name == candidate]
        return name


def tune(*words):
    """Run `aot tune` for a Thor with a library over the simulated driver."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aot.tune.tuning.build_library", simulated.build_library)
        patch.setattr("aot.tune.bundle.make_runner", make_runner)
        kernels = ["--kernels", ",".join(CANDIDATES), "--prune", "1000"]
        return CliRunner().invoke(main, ["tune", "--target", "thor", *kernels, *map(str, words)])


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    sources = [simulated.HERE / "libcuda.cc"]
    return simulated.compile_shared(sources, folder / "libcuda.so.1", TARGET, "-Wl,-soname,libcuda.so.1")


@pytest.fixture(scope="session")
def tuning(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuning")
    shapes = folder / "small.toml"
    shapes.write_text(SHAPES)
    compile_kernels([KernelKey(BF16, named(name, TARGET.name)) for name in CANDIDATES], TARGET)
    done = tune("--shapes", shapes, "--bundle", folder / "bundle")
    assert done.exit_code == 0, done.output
    assert "not compiled" not in done.output
    bundle.add_numpy(folder / "bundle", "3.11.2", "aarch64", "2.36")
    return Tuning(folder / "bundle", shapes, read_tuning_set(folder / "bundle"))


@pytest.fixture
def device(tmp_path, driver, tuning):
    found = simulated.SimulatedDevice(tmp_path / "device", driver)
    found.times = found.set_times(list(tuning.set.problems), list(tuning.names), TARGET, tuning.names)
    found.describe()
    return found
