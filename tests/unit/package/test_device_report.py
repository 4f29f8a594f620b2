"""The report of a wheel on a device: what its kernels gave, and times that become a record."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from aot.cli.main import main
from aot.compile.tuned import tuned_kernel
from aot.core.errors import StoreError, VerificationError
from aot.core.measurement import Conditions
from aot.core.target import load_target
from aot.kinds.gemm import edge_shapes
from aot.kinds.rows.catalogue import row_operation
from aot.measure.conditions import DeviceState
from aot.measure.protocol import TimingPlan
from aot.measure.verify import Verifier
from aot.package import device_report
from aot.package.device_report import (
    REPORT_VERSION,
    CheckedKernel,
    DeviceReport,
    is_report,
    measured,
    read_report,
    target_of,
    timed_problems,
)
from aot.package.wheel_check import verified
from aot.select.times.record import read_record
from tests.golden.manifest import golden_manifest
from tests.unit.row_twins import row_kernel_of
from tests.unit.twins import TwinGpu, TwinKernels

MANIFEST = golden_manifest()
CONDITIONS = Conditions(
    "NVIDIA H200", "sm_90a", 132, "580.159", 1980, 3201, "700 W", "2026-11-28", "graph-cold-l2-mixed-v3"
)
WRONG, SPLIT = (MANIFEST.kernels[i].name for i in (2, 3))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(edge_shapes, "ALIGNED_SHAPES", edge_shapes.ALIGNED_SHAPES[:2])
    monkeypatch.setattr(device_report, "ROWS", (1, 16))
    monkeypatch.setattr(device_report, "WIDTHS", (64, 32))


def report(faults=None, *, is_whole=True, tell=None):
    kernels = list(map(tuned_kernel, MANIFEST.all_kernels))
    gpu, said = TwinGpu(l2_bytes=1 << 12), []
    twins = TwinKernels(gpu, kernels, {x.name: 5.0 + i for i, x in enumerate(kernels)}, faults or {})
    plan = TimingPlan(max_launches=8, reference_rounds=0)
    read = lambda: DeviceState("580.159", 1755, 3201, "700 W")  # noqa: E731
    checked, record = measured(MANIFEST, "h200", (gpu, twins, plan), CONDITIONS, read, tell or said.append)
    if tell is not None:
        return DeviceReport(REPORT_VERSION, "x.whl", "0" * 64, "h200", CONDITIONS, checked, record)
    assert said[-1].startswith(said[-1].split(" of ")[1].split(":")[0]) == is_whole  # all steps were done
    return DeviceReport(REPORT_VERSION, "x.whl", "0" * 64, "h200", CONDITIONS, checked, record)


def written(folder, found, name="report.json"):
    (folder / name).write_text(found.text())
    return folder / name


def test_a_report_has_each_kernel_and_becomes_a_record(tmp_path):
    found = report({WRONG: ("wrong", 0)})
    assert [x.name for x in found.kernels] == [x.name for x in MANIFEST.all_kernels]
    (fault,) = found.faults
    assert fault.name == WRONG
    assert "wrong result on" in fault.fault
    assert all(0 <= x.relative_error <= 2**-8 for x in found.kernels if x.name != WRONG)
    assert found.summary.startswith("NVIDIA H200, 700 W; 4 of 5 kernels right, 1 wrong; ")
    path = written(tmp_path, found)
    assert is_report(path)
    assert read_report(path) == found
    done = CliRunner().invoke(main, ["import", str(path), "--record", str(tmp_path / "mine.jsonl.gz")])
    assert done.exit_code == 0, done.output
    assert f"wrong on that device, and without times here: {path}: {WRONG}: verifying: wrong result on" in done.output
    record = read_record(tmp_path / "mine.jsonl.gz")
    assert record.target == "h200"
    assert record.conditions[0].sm_clock_mhz == 1755  # as it was after the load
    split = next(x for x in MANIFEST.kernels if x.candidate.gemm.split_k > 1)
    times = {(x.kernel.candidate, x.problem.m): x.median_us for x in record.measurements if x.ok}
    assert times[split.candidate, 1] == pytest.approx(8.0, rel=0.1)
    assert WRONG not in {x.kernel.name for x in record.measurements if x.ok}


def test_each_operation_has_the_first_width_that_a_kernel_takes(monkeypatch):
    monkeypatch.setattr(device_report, "WIDTHS", (4096, 128))
    rows = [row_kernel_of(row_operation(x)) for x in ("bf16_rms_norm", "bf16_rotary")]
    names = [x.name for x in timed_problems([*map(tuned_kernel, MANIFEST.all_kernels), *rows])]
    assert "bf16_kk m1 n4096 k4096" in names
    assert "bf16_rms_norm rows 16 cols 128" in names  # 4096 is more than this one takes
    assert not [x for x in names if x.startswith("bf16_kn")]  # whose only kernel is the fallback


def test_the_target_is_the_one_with_as_many_sms():
    two = replace(MANIFEST, tables=(MANIFEST.tables[0], replace(MANIFEST.tables[0], target="h100")))
    assert load_target("h100").num_sms == load_target("h200").num_sms
    assert target_of(two, 132) == "h200"
    thors = replace(MANIFEST, tables=tuple(replace(MANIFEST.tables[0], target=x) for x in ("thor", "thor_6sm")))
    assert (target_of(thors, 6), target_of(thors, 20), target_of(thors, 7)) == ("thor_6sm", "thor", "thor")


def test_a_report_without_times_is_no_record(tmp_path):
    bare = replace(report(), record=())
    with pytest.raises(StoreError, match=r"has no times \(.*\); expected some"):
        read_report(written(tmp_path, bare)).times("r.json")


def test_damage_is_refused(tmp_path):
    found = report()
    path = written(tmp_path, found)
    for old, new in (('"version":1', '"version":2'), ('"wheel_sha256":"0', '"wheel_sha256":"G'), ('"x.whl"', "7")):
        text = found.text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(StoreError, match="make it again by `aot verify WHEEL --device --report FILE`"):
            read_report(path)
    other = replace(
        found, record=tuple(json.loads(json.dumps(found.record).replace('"target": "h200"', '"target": "nono"')))
    )
    path.write_text(other.text())
    with pytest.raises(StoreError, match="its record, line 1"):
        read_report(path).times("r.json")


def test_a_kernel_that_was_not_run_says_why():
    assert device_report._checked("x", None, "", "").fault.startswith("the device cannot run it")
    assert device_report._checked("x", 0.0, "", "") == CheckedKernel("x", 0.0)


def test_every_wrong_kernel_is_named_without_a_report_too_and_what_was_not_run_is_counted():
    kernels = list(map(tuned_kernel, MANIFEST.all_kernels))
    gpu = TwinGpu(l2_bytes=1 << 12)
    faults = {kernels[1].name: ("wrong", 0), kernels[2].name: ("lost", 0)}
    twins = TwinKernels(gpu, kernels, dict.fromkeys((x.name for x in kernels), 5.0), faults)
    right, said = verified(Verifier(gpu, twins, np.random.default_rng(0)), gpu, kernels), []
    with pytest.raises(VerificationError) as caught:
        said.extend(right)
    assert [x.partition(":")[0] for x in said] == [kernels[0].name]
    text = str(caught.value)
    assert text.startswith(f"2 of 5 kernels are wrong: {kernels[1].name}: wrong result on ")
    assert f"; {kernels[2].name}: launch refused" in text
    assert text.endswith(f"; 2 of 5 kernels: not run, after {kernels[2].name}")


def test_what_is_known_is_told_where_a_kernel_takes_the_context_with_it():
    found = report({WRONG: ("lost", 0)}, is_whole=False)
    first, then = (x for x in found.kernels if x.name == WRONG), (x for x in found.kernels if x.name == SPLIT)
    assert "launch refused" in next(first).fault
    assert next(then).fault.startswith(f"not run, after {WRONG}: ")
    assert found.kernels[0].fault == ""
    assert found.record == ()
    ((reason, count),) = found.not_run.items()
    assert (reason, len(found.wrong)) == (next(x.fault for x in found.kernels if x.name == SPLIT), 1)
    assert f"1 wrong, {count} not run" in found.summary
    with pytest.raises(StoreError, match=rf"has no times \(NVIDIA H200, .*; {WRONG}: verifying: launch refused"):
        found.times("r.json")


def test_what_is_known_is_told_where_the_command_is_interrupted():
    def interrupt(text):
        if text.startswith("3 of "):
            raise KeyboardInterrupt

    found = report(tell=interrupt)
    assert [x.was_run for x in found.kernels] == [True, True, True, False, False]
    assert found.not_run == {"not run, after the command was interrupted": 2}


def test_a_device_needs_few_packages():
    """Those that docs/thor.md has installed on a Thor, and what these need."""
    modules = "cli.build package.device_report package.wheel_check measure.device measure.kernel_library measure.worker"
    code = f"import sys, {', '.join(f'aot.{x}' for x in modules.split())}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    known = {"aot", "click", "elftools", "jinja2", "markupsafe", "numpy", "packaging", "threadpoolctl", "tqdm"}
    theirs = {x.partition(".")[0] for x in loaded} - {*sys.stdlib_module_names, "__main__", "__mp_main__"}
    assert {x for x in theirs if not x.startswith("_")} - {"nvidia_cutlass_dsl", "sitecustomize"} == known


def test_report_is_of_a_device():
    done = CliRunner().invoke(main, ["verify", str(Path(__file__)), "--report", "r.json"])
    assert done.exit_code == 2
    assert "give --device too" in done.output
