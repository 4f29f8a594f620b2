import json
from dataclasses import replace

import pytest

from aot.measure import preflight
from aot.measure.conditions import Clock
from aot.measure.preflight import Machine, read_machine, warnings

LOCKED = [Clock("emc", 4266, 4266, 4266), Clock("gpu-gpc-0", 1575, 1575, 1575)]
THOR = Machine("aarch64", "3.12.3", "2.39", True, "R38 (release), REVISION: 2.0", "7.0-b1", "MAXN", LOCKED, 14, 0.1,
               "NVIDIA Thor", (11, 0), 20, True, "CUDA 13.0", "")  # fmt: skip
SLICE = "the MIG slice 1g.24gb. The record is keyed by its profile"
KEYED = "a MIG slice or a power mode? The record is keyed by"


def test_json_and_back():
    assert Machine.from_json(json.loads(json.dumps(THOR.as_json()))) == THOR


def test_a_quiet_thor_needs_no_warning():
    assert warnings(THOR, 20) == []
    assert THOR.describe() == [
        "aarch64, Python 3.12.3, glibc 2.39",
        "NVIDIA Thor: compute capability 11.0, 20 SMs, CUDA 13.0",
        "R38 (release), REVISION: 2.0; JetPack 7.0-b1",
        "power mode MAXN",
        "emc 4266 MHz (4266 to 4266), gpu-gpc-0 1575 MHz (1575 to 1575)",
    ]


def test_a_slice_is_named():
    assert replace(THOR, mig="1g.24gb").describe()[2] == "MIG slice 1g.24gb"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"clocks": [Clock("gpu-gpc-0", 1575, 315, 1575)]},
            "clocks are not locked (gpu-gpc-0 315 to 1575 MHz); lock them with: sudo jetson_clocks",
        ),
        ({"power_mode": None}, "nvpmodel does not tell the power mode, which records are keyed by; see `nvpmodel -q`"),
        ({"tegra_release": "R36 (release)"}, "R36 (release): older than JetPack 7 (R38), which Thor's kernels need"),
        ({"busy_cpus": 3.2}, "3.2 of 14 CPUs are busy; they share the memory: stop what runs"),
        (
            {"num_sms": 6},
            f"NVIDIA Thor has 6 SMs here, the target has 20: {KEYED} 6 SMs and power mode MAXN",
        ),
        (
            {"num_sms": 6, "mig": "1g.24gb"},
            f"NVIDIA Thor has 6 SMs here, the target has 20: {SLICE}, 6 SMs and power mode MAXN",
        ),
    ],
)
def test_what_to_mind(change, expected):
    assert warnings(replace(THOR, **change), 20) == [expected]


def test_a_server_is_not_held_to_a_jetsons_rules():
    server = replace(THOR, tegra_release="", clocks=[], power_mode=None, busy_cpus=9.0, num_sms=132)
    assert warnings(server) == []


def test_this_machine_answers(monkeypatch):
    monkeypatch.setattr(preflight, "LOOK_S", 0.05)
    machine = read_machine(with_gpu=False)
    assert machine.has_numpy
    assert machine.gpu == ""
    assert machine.glibc.startswith("2.")
