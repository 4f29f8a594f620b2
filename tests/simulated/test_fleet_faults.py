"""The bench of a fleet's faults, with worker processes over a simulated device: one is killed, and one stopped."""

from __future__ import annotations

import os

import pytest

from research.bench import fleet_faults
from research.bench.fleet import times_of
from tests.compiling import EVERY
from tests.simulated.machines import H200
from tests.simulated.test_fleet import bundle  # noqa: F401 - a fixture

pytest.importorskip("distributed", reason="NOT TESTED BY A FLEET: install aot-kernels[fleet]")
pytestmark = pytest.mark.parametrize("machine", [H200], indirect=True, ids=["h200"])

GPUS = ("0", "1", "2")
LINGER_US = 500


@pytest.mark.skipif(not EVERY, reason="`make walk` waits until a stopped worker is given up")
def test_lost_workers_leave_the_record_as_it_is(bundle, device, tmp_path, monkeypatch):  # noqa: F811
    device.describe(noise=0.0, linger_us=LINGER_US)
    libraries = [str(device._driver.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(libraries))
    monkeypatch.setenv("AOT_SIMULATED_DEVICE", str(device.file))
    monkeypatch.setenv("PATH", f"{device.bin}:{os.environ['PATH']}")
    calm, first = fleet_faults.measure(bundle.directory, GPUS, tmp_path / "calm")
    losses = fleet_faults.losses_of(1, 1, calm.wall_s)
    lossy, second = fleet_faults.measure(bundle.directory, GPUS, tmp_path / "lossy", losses)
    assert fleet_faults.outcomes(first) == fleet_faults.outcomes(second)
    assert times_of(first) == times_of(second)
    assert fleet_faults.untold(losses, GPUS, lossy.said) == []
    assert set(calm.parts_s) == set(lossy.parts_s) == {"begin", "verify", "measure"}
