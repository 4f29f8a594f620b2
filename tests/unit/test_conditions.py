import pytest

from aot.conditions import DeviceState, make_conditions, parse_devfreq, parse_nvidia_smi, parse_nvpmodel
from aot.device import DeviceProperties
from aot.measurement import Conditions


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


def test_devfreq_gives_the_highest_gpu_clock(tmp_path):
    for name, rate in (("gpu-gpc-0", "1575000000"), ("gpu-nvd-0", "990000000"), ("other", "9990000000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cur_freq").write_text(rate + "\n")
    assert parse_devfreq(tmp_path) == 1575
    assert parse_devfreq(tmp_path / "absent") is None


def test_conditions_join_driver_and_cuda():
    properties = DeviceProperties("NVIDIA H200", (9, 0), 132, 62914560, "CUDA 13.0", "00000000:19:00.0", False)
    state = DeviceState("580.159.04", 1980, 3201, "700 W")
    assert make_conditions(properties, state, "sm_90a", "p1", "2026-11-20") == Conditions(
        "NVIDIA H200", "sm_90a", 132, "580.159.04 (CUDA 13.0)", 1980, 3201, "700 W", "2026-11-20", "p1"
    )
    silent = DeviceState(None, None, None, None)
    assert make_conditions(properties, silent, "sm_90a", "p1", "d").driver == "CUDA 13.0"
