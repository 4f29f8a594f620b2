"""`aot explain` of operations on rows, and of what is selected for it, as users meet it."""

import json

import pytest

from aot.cli import explain as command
from aot.cli import selection as module
from aot.core.errors import SelectionError
from aot.core.target import load_target
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.problem import RowProblem
from aot.select.score.explain_steps import explained_step
from aot.select.selection import write_selection
from aot.select.table.stepped import SteppedTimes, select_stepped
from aot.space.enumeration import legal
from tests.unit.invoked import aot, succeed
from tests.unit.selections import PLAIN, SELECTION
from tests.unit.twins import BF16, problem_of

H200, GATE = load_target("h200"), row_operation("bf16_silu_mul")
LEGAL = {x.name: x for x in legal(GATE, H200)}
WIDE, OTHER = LEGAL["row_registers_256x1_v8x2"], LEGAL["row_registers_128x1_v8x4"]
TIMES = {RowProblem(GATE, rows, 4096): {WIDE: us, OTHER: 2 * us} for rows, us in ((16, 3.0), (64, 4.0), (512, 8.0))}


@pytest.fixture(scope="module")
def selection():
    return select_stepped((GATE,), H200, SteppedTimes({GATE: TIMES}), with_heldout=False)


def test_a_measured_step_tells_kernel_bucket_time_and_roofline(selection):
    found = explained_step(selection, RowProblem(GATE, 60, 4096), H200)
    assert found.kernel == f"bf16_silu_mul_{WIDE.name}"
    assert (found.tier, found.time_us, found.provenance) == ("grid", 4.0, "measured")
    least = RowProblem(GATE, 60, 4096).num_bytes / H200.bandwidth_bytes_per_s * 1e6
    assert found.roofline_us == pytest.approx(least)
    assert "\n  from       column of cols <= 4096, rows 33 to 64, " in found.text
    assert "\n  time       4.00 us measured for rows 64\n  roofline   0.34 us for this problem, by memory" in found.text
    assert found.text.endswith("% of the roofline of rows 64, 0.37 us")


def test_what_has_no_time_or_no_tuned_kernel_says_so(selection):
    found = explained_step(selection, RowProblem(GATE, 60, 4000), H200)
    assert (found.tier, found.time_us) == ("grid", None)
    assert "time       none of this problem: the step's is of rows 64 cols 4096" in found.text
    found = explained_step(selection, RowProblem(GATE, 60, 4001), H200)
    assert (found.tier, "_row_scalar_" in found.kernel) == ("fallback", True)
    assert "fallback   the table's kernel here takes no 4001 columns; the table has no time" in found.text
    norm = RowProblem(row_operation("bf16_rms_norm"), 1, 1)
    with pytest.raises(SelectionError, match="no table for bf16_rms_norm; select one: aot select --target h200"):
        explained_step(selection, norm, H200)


def test_the_command_takes_rows_and_columns(selection, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_selection(tmp_path / "s.json", selection)
    words = ["explain", "--selection", "s.json", "--operations", "bf16_silu_mul"]
    text = succeed(*words, "64", "4096")
    assert text.startswith(f"bf16_silu_mul rows 64 cols 4096\n  kernel     bf16_silu_mul_{WIDE.name}\n")
    assert "\n  state      run: a time of it was taken on the device" in text
    found = json.loads(succeed(*words, "64", "4096", "--json"))
    assert (found["time_us"], found["state"], found["tier"]) == (4.0, "run", "grid")
    assert (found["coverage"]["num_measured"], text.splitlines()[-1]) == (1, "1 problem: 1 measured")
    refused = aot(*words, "64", "4096", "8")
    assert (refused.exit_code, "got 3 sizes; expected ROWS COLS of bf16_silu_mul" in refused.stderr) == (2, True)
    refused = aot("explain", "--selection", "s.json", "64", "4096")
    assert (refused.exit_code, "got 2 sizes; expected M N K of bf16_kk" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("target", "operation", "asked"),
    [
        ("thor", "fp16_kk", ["bf16_kk", "fp16_kk"]),
        ("orin", "fp16_kk_bias", ["bf16_kk", "fp16_kk", "bf16_kk_bias", "fp16_kk_bias"]),
        ("thor", "nvfp4_bf16_kk_bias", ["nvfp4_bf16_kk", "nvfp4_bf16_kk_bias"]),
        pytest.param("thor", "mxfp8mxfp4_bf16_kk", ["mxfp8mxfp4_bf16_kk"], marks=pytest.mark.walk),
        pytest.param("h100", "fp32_kk", ["fp32_kk"], marks=pytest.mark.slow),
    ],
)
def test_what_answers_is_selected_alone(monkeypatch, tmp_path, target, operation, asked):
    requests = []

    def select(request):
        requests.append(request)
        raise SelectionError("asked for")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "select", select)
    found = aot("explain", "--target", target, "--operations", operation, "16", "4096", "4096")
    assert [[x.tag for x in request.operations] for request in requests] == [asked]
    says = f"{operation}: as in a wheel of aot build --target {target} --operations {operation}\n"
    assert (says in found.stderr) == (asked == [operation])


def test_a_product_that_is_read_as_another_has_the_state_of_that_ones_kernel(tmp_path, monkeypatch):
    """One row is the same memory in both layouts; the times are those of the kernel's operation."""
    monkeypatch.chdir(tmp_path)
    write_selection(tmp_path / "s.json", SELECTION)
    timed = {BF16: {problem_of(1, 4096, 4096): {PLAIN: 20.0}}}
    monkeypatch.setattr(command.pipeline, "times_behind", lambda *given: {x: timed[x] for x in given[3] if x in timed})
    text = succeed("explain", "--selection", "s.json", "--operations", "bf16_mk", "1", "4096", "4096")
    assert f"\n  kernel     bf16_kk_{PLAIN.name}\n" in text
    assert "\n  read as    bf16_kk m1 n4096 k4096, which is the same memory" in text
    assert "\n  state      run: a time of it was taken on the device" in text
