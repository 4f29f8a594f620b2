from dataclasses import replace

import pytest

from aot.core.measurement import Conditions
from aot.measure.conditions import (
    CLOCKS_S,
    Clock,
    DeviceState,
    RareClocks,
    highest_mhz,
    make_conditions,
    parse_nvidia_smi,
    parse_nvpmodel,
    read_clocks,
)
from aot.measure.device import DeviceProperties


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("580.159.04, 1980, 3201, 700.00\n", DeviceState("580.159.04", 1980, 3201, "700 W")),
        ("580.00, [N/A], [N/A], [Not Supported]\n", DeviceState("580.00", None, None, None)),
        ("", DeviceState(None, None, None, None)),
        ("No devices were found\n", DeviceState(None, None, None, None)),
    ],
)
def test_nvidia_smi(text, state):
    assert parse_nvidia_smi(text) == state


def test_nvpmodel():
    assert parse_nvpmodel("NV Power Mode: MAXN\n0\n") == "MAXN"
    assert parse_nvpmodel("") is None


def test_devfreq_gives_the_clocks_of_gpu_and_memory(tmp_path):
    rates = {"gpu-gpc-0": (1575, 315, 1575), "gpu-nvd-0": (990, 990, 990), "31b0000.emc": (4266, 4266, 4266)}
    for name, values in {**rates, "other": (9990, 1, 1)}.items():
        (tmp_path / name).mkdir()
        for key, value in zip(("cur", "min", "max"), values, strict=True):
            (tmp_path / name / f"{key}_freq").write_text(f"{value}000000\n")
    (tmp_path / "gpu-broken").mkdir()
    clocks = read_clocks(tmp_path)
    assert clocks == [Clock(name, *rates[name]) for name in ("31b0000.emc", "gpu-gpc-0", "gpu-nvd-0")]
    assert [clock.is_locked for clock in clocks] == [True, False, True]
    assert (highest_mhz(clocks, "gpu"), highest_mhz(clocks, "emc")) == (1575, 4266)
    assert read_clocks(tmp_path / "absent") == []
    assert highest_mhz([], "gpu") is None


def test_conditions_join_driver_and_cuda():
    properties = DeviceProperties("NVIDIA H200", (9, 0), 132, 62914560, "CUDA 13.0", "00000000:19:00.0", False)
    state = DeviceState("580.159.04", 1980, 3201, "700 W")
    assert make_conditions(properties, state, "sm_90a", "p1", "2026-11-20") == Conditions(
        "NVIDIA H200", "sm_90a", 132, "580.159.04 (CUDA 13.0)", 1980, 3201, "700 W", "2026-11-20", "p1"
    )
    mig = make_conditions(replace(properties, name="NVIDIA H200 MIG 1g.18gb"), state, "sm_90a", "p1", "2026-11-20")
    assert (mig.device, mig.mig) == ("NVIDIA H200 MIG 1g.18gb", "1g.18gb")
    silent = DeviceState(None, None, None, None)
    assert make_conditions(properties, silent, "sm_90a", "p1", "d").driver == "CUDA 13.0"


def test_clocks_beside_portions_are_read_after_the_first_and_then_rarely():
    times = iter([0.0, 0.5, 1.0, CLOCKS_S, CLOCKS_S + 1.0, CLOCKS_S + 1.5])
    reads = []

    def read():
        reads.append(DeviceState(None, len(reads), None, None))
        return reads[-1]

    clocks = RareClocks(read, lambda: next(times))
    found = [clocks.read() for _ in range(4)]  # the clock is looked at twice where they are read
    assert [x and x.sm_clock_mhz for x in found] == [0, None, None, 1]
    assert len(reads) == 2
