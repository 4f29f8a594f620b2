"""What workers say of themselves, and which of them fit."""

import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest

from aot.core.target import load_target
from aot.fleet import announcement
from aot.fleet.announcement import (
    Announcement,
    Role,
    chosen_kind,
    compiles_unlike,
    kind_of_device,
    measures_unlike,
    of_compiler,
    of_device,
    text_of,
)
from aot.measure.conditions import Clock
from aot.measure.preflight import read_machine

H200 = load_target("h200")
MACHINE = replace(
    read_machine(with_gpu=False),
    machine="x86_64",
    gpu="NVIDIA H200",
    compute_capability=(9, 0),
    num_sms=132,
    power_mode="700 W",
    clocks=[Clock("gpu", 1, 2, 3)],
)


@pytest.mark.parametrize("found", [of_compiler(), of_device(MACHINE, "user@thor:aot-tuning/fleet")])
def test_an_announcement_travels_as_plain_values(found):
    assert Announcement.from_json(json.loads(json.dumps(found.as_json()))) == found


@pytest.mark.parametrize("values", [{}, {"protocol": 2}, {**of_compiler().as_json(), "role": "aot-cooks"}])
def test_another_is_refused(values):
    with pytest.raises((ValueError, KeyError, TypeError)):
        Announcement.from_json(values)


def test_a_compiler_has_the_same_toolchain(monkeypatch):
    found = of_compiler()
    assert compiles_unlike(found) == ""
    older = replace(found, toolchain={**found.toolchain, "quack-kernels": "0.1"})
    own = found.toolchain["quack-kernels"]
    assert compiles_unlike(older) == (
        f"has quack-kernels 0.1, this machine {own}; the same versions compile the same objects"
    )
    monkeypatch.setattr(announcement, "toolchain", dict)
    assert compiles_unlike(found).startswith("has aot-kernels ")


def test_a_worker_that_measures_needs_no_compiler(monkeypatch):
    """Nor to be installed: a host with a GPU may run a checkout beside a driver and Dask alone."""

    def nothing(name):
        raise PackageNotFoundError(name)

    with monkeypatch.context() as patch:
        patch.setattr(announcement, "version", nothing)
        device, compiler = of_device(MACHINE), of_compiler()
    assert device.toolchain == {}
    assert measures_unlike(device, H200) == ""
    lacking = min(of_compiler().toolchain)
    assert compiles_unlike(compiler).startswith(f"has {lacking} of no version, for it is not installed, this machine ")


def test_a_device_is_of_the_targets_architecture():
    assert measures_unlike(of_device(MACHINE), H200) == ""
    thor = replace(MACHINE, gpu="NVIDIA Thor", machine="aarch64", compute_capability=(11, 0))
    assert measures_unlike(of_device(thor), H200) == (
        "has NVIDIA Thor on aarch64, compute capability (11, 0); target h200 is (9, 0) on x86_64"
    )
    assert measures_unlike(of_device(replace(MACHINE, gpu_error="no driver")), H200) == "has no usable GPU: no driver"
    assert of_device(MACHINE).role == Role.MEASURES


def test_all_times_are_of_one_kind_of_device():
    whole = kind_of_device(MACHINE)
    limited = kind_of_device(replace(MACHINE, power_mode="500 W"))
    part = kind_of_device(replace(MACHINE, gpu="NVIDIA H200 MIG 1g.18gb", num_sms=16, mig="1g.18gb"))
    assert len({whole, limited, part}) == 3
    assert chosen_kind([limited, whole, whole], None) == whole
    assert chosen_kind([whole, limited], None) == limited  # by name, so that every client chooses alike
    assert chosen_kind([whole], part) == part
    assert chosen_kind([], None) is None
    assert text_of(part) == "NVIDIA H200 MIG 1g.18gb, 16 SMs, power mode 700 W, MIG 1g.18gb"
