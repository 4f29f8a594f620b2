"""The roofline of the bench's JSON: a picture of the stated size, the right figures, and errors that name the field."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.later import Later

pytestmark = pytest.mark.slow

plot = Later("research.bench.plot")
ROOT = Path(__file__).parents[3]
RESULT = ROOT / "research" / "bench" / "results" / "h200_20261126_bench.json"
ROW = {"m": 1024, "n": 1024, "k": 1024, "dtype": "bfloat16", "wheel_us": 10.0, "torch_us": 20.0}
WHOLE = {
    "device": "NVIDIA H200",
    "date": "2026-11-20",
    "torch": "2.11.0",
    "wheel": "0.1.0+h200",
    "clocks_after": "580.159.04, 1410 MHz",
    "tuned": [ROW],
}


def run(result, png):
    command = [sys.executable, ROOT / "research" / "bench" / "plot.py", result, png]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.walk
def test_the_plot_of_the_committed_result_is_a_png_of_the_stated_size(tmp_path):
    png = tmp_path / "roofline.png"
    assert run(RESULT, png).returncode == 0
    content = png.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (1560, 975)
    assert len(content) < 200_000


@pytest.mark.walk
def test_a_result_without_the_fields_is_an_error_that_names_them(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({name: value for name, value in WHOLE.items() if name not in ("device", "wheel")}))
    done = run(path, tmp_path / "roofline.png")
    assert done.returncode == 1
    assert done.stderr == (
        f"plot: {path}: no device, wheel; expected what research/bench/bench.py writes; run it again\n"
    )
    assert not (tmp_path / "roofline.png").exists()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([], "where: got a list; expected the object that research/bench/bench.py writes"),
        (
            WHOLE | {"tuned": [{**ROW, "dtype": "float16"}]},
            "where: no tuned row of bfloat16; run research/bench/bench.py without --dtype float16",
        ),
        (
            WHOLE | {"tuned": [{name: value for name, value in ROW.items() if name != "torch_us"}]},
            "where: no tuned[].torch_us; expected what research/bench/bench.py writes; run it again",
        ),
        (
            WHOLE | {"tuned": None},
            "where: no rows under `tuned`; expected what research/bench/bench.py writes; run it again",
        ),
    ],
)
def test_what_cannot_be_plotted_is_said(result, message):
    with pytest.raises(plot.PlotError) as error:
        plot.check(result, "where")
    assert str(error.value) == message


def test_a_wheel_without_a_target_is_an_error():
    with pytest.raises(plot.PlotError, match=r"^wheel '0\.1\.0\+h900': no target .*h900\.toml; expected a version"):
        plot.limits_of("0.1.0+h900")


def test_limits_are_the_target_s_also_of_a_predicted_wheel():
    assert plot.limits_of("0.1.0+h200") == plot.Limits(7.9e14, 4.3e12)
    assert plot.limits_of("0.1.0+thor.predicted").bandwidth_bytes_per_s < 1e12
    assert plot.limits_of("0.1.0+h200").tflops(100.0) == pytest.approx(430.0)
    assert plot.limits_of("0.1.0+h200").tflops(1000.0) == pytest.approx(790.0)


def test_points_are_flops_a_byte_and_tflops():
    # 2 * 1024^3 flops over 2 * 3 * 1024^2 bytes; 2.147 GFLOP in 10 us
    assert plot.points([ROW], "wheel_us") == ((pytest.approx(1024 / 3), pytest.approx(214.7483648)),)


def test_the_third_contender_is_plotted_where_it_has_times():
    assert [len(x.points) for x in plot.series_of(WHOLE)] == [1, 1]
    rows = [{**ROW, "cublaslt_best_us": None}, {**ROW, "cublaslt_best_us": 9.0}]
    assert [len(x.points) for x in plot.series_of(WHOLE | {"tuned": rows})] == [2, 2, 1]


def test_the_title_has_device_driver_and_date():
    title = plot.draw(WHOLE).axes[0].get_title()
    assert title == "bf16 linear on NVIDIA H200, driver 580.159.04, 2026-11-20"
