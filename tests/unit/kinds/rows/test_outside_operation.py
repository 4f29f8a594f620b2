"""An operation on rows of another package all the way: catalogue, space, interpreter, tuning, table, wheel, call.

No kernel is in the package: those of our families compute it. The tuning runs over twins of a GPU and of kernels, which
compute in float64 on the host; the wheel's package runs over the recorder.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile

import pytest
from click.testing import CliRunner

from aot.cli.main import main
from aot.core.errors import StoreError
from aot.core.target import load_target
from aot.kinds.registry import all_operations
from aot.kinds.rows.candidate import RowKernelKey, RowLimits
from aot.kinds.rows.catalogue import OWN_ROW_OPERATIONS, row_operation, row_operations
from aot.kinds.rows.problem import RowProblem
from aot.kinds.rows.signature import RowFlag
from aot.kinds.rows.tuned import TunedRowKernel
from aot.measure.protocol import TimingPlan
from aot.measure.session import Session
from aot.measure.store import open_store
from aot.measure.tuning_set import TuningSet
from aot.measure.worker import Worker
from aot.package.wheel_check import read_wheel_manifest
from aot.select import pipeline
from aot.select.times.record import read_record
from aot.space.enumeration import legal
from aot.tune.bundle import make_bundle
from tests.compiling import EVERY
from tests.emulated import share_kept
from tests.example_family import example_family, forget_families
from tests.runtime import host
from tests.runtime.exchange import Framework
from tests.runtime.rows import Rows
from tests.unit.invoked import coarse_grid, one_unaligned
from tests.unit.twins import CONDITIONS, TwinGpu, TwinKernels

pytestmark = pytest.mark.slow
H200 = load_target("h200")
OWN, NARROW = "bf16_relu2_mul", "bf16_e4m3_relu2_mul"
FASTEST = "row_registers_128x1_v8x2"
COLS = 1024


@pytest.fixture(scope="module", autouse=True)
def _example():
    with example_family("rows_operation", "relu2_mul"):
        yield


def aot(*words):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    share_kept(tmp_path, monkeypatch)


def tuning():
    """Return what `aot tune` would measure of it: two kernels and the fallback on two sizes."""
    operation, kernels = row_operation(OWN), []
    for candidate in legal(operation, H200):
        if candidate.name in (FASTEST, "row_registers_256x1_v8x1"):
            key = RowKernelKey(operation, candidate)
            kernels.append(TunedRowKernel(key, "ab".ljust(64, "0"), RowLimits(16, 8), is_fallback=False))
    return TuningSet(
        "h200", "sm_90a", tuple(kernels), (RowProblem(operation, 16, COLS), RowProblem(operation, 64, COLS))
    )


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Measure over twins, on which FASTEST takes half the other's time; return the record's path."""
    folder, found = tmp_path_factory.mktemp("measured"), tuning()
    gpu = TwinGpu(l2_bytes=1 << 14)
    times = {x.name: 5.0 if FASTEST in x.name else 10.0 for x in found.kernels}
    with open_store(folder / "results.sqlite") as store:
        run = store.add_run("h200", 1, CONDITIONS)
        kernels = TwinKernels(gpu, list(found.kernels), times, {})
        plan = TimingPlan(max_launches=20, reference_rounds=3)
        Worker(Session(gpu, kernels, found, store, run, 1, plan, source_elements=1 << 12)).run()
        assert store.quarantined() == {}
    aot("import", folder / "results.sqlite", "--record", folder / "record.jsonl.gz")
    return folder / "record.jsonl.gz"


def test_its_lines_are_behind_ours_and_our_families_compute_them():
    assert [x.tag for x in row_operations()[len(OWN_ROW_OPERATIONS) :]] == [OWN, "fp16_relu2_mul", NARROW]
    assert OWN in all_operations()
    text = aot("space", "--target", "h200", "--operations", f"{OWN},{NARROW}")
    assert "row_registers" in text
    assert "row_looped" in text
    assert aot("space", "--target", "h200", "--operations", "*_relu2_mul") != text  # a pattern names them too


@pytest.mark.parametrize(("tag", "kernel"), [(OWN, FASTEST), *([(NARROW, "row_looped_256x1_v8x1")] if EVERY else [])])
def test_the_interpreter_finds_its_kernels_right(workplace, tag, kernel):
    words = ["--target", "h200", "--operations", tag, "--legal", "--kernels", kernel, "--problem", "3,264"]
    assert "1 of 1 kernels are right" in aot("emulate", *words)


IN_A_BUNDLE = """
import sys
sys.path[:0] = [{bundle!r}]
sys.path += [{bundle!r} + "/aot/outside", {packages!r}]
from pathlib import Path
import numpy as np
from aot.kinds.rows.reference import RowParameters, row_reference
from aot.kinds.rows.signature import RowArgument
from aot.measure.tuning_set import read_tuning_set
tuning = read_tuning_set(Path({bundle!r}))
operation = tuning.problems[0].operation
found = row_reference(operation, {{RowArgument.X: np.array([[-2.0, 3.0, 5.0, 7.0]])}}, RowParameters())
print(operation.tag, found.values.values.tolist(), sys.modules["relu2_mul"].__file__)
"""


def test_a_bundle_carries_it_to_the_device(tmp_path):
    """There neither the package nor `aot` is installed."""
    (tmp_path / "lib.so").write_bytes(b"no ELF")
    folder = str(make_bundle(tmp_path / "bundle", tmp_path / "lib.so", tuning()).directory)
    script = IN_A_BUNDLE.format(bundle=folder, packages=sysconfig.get_path("purelib"))
    command = [sys.executable, "-S", "-E", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stderr == ""
    assert done.stdout.split(" ", 1) == [OWN, f"[[0.0, 63.0]] {folder}/aot/outside/relu2_mul/__init__.py\n"]


def test_where_it_is_not_installed_what_has_its_times_says_so(record):
    assert {x.problem.operation for x in read_record(record).measurements} == {OWN}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.path", [x for x in sys.path if not x.endswith(".example")])
        forget_families()
        with pytest.raises(StoreError, match=f"got '{OWN}'; that of another package is known where it is installed"):
            read_record(record)
    forget_families()


@pytest.mark.walk
def test_the_table_takes_the_fastest_and_a_wheel_has_it_with_its_licence(record, workplace, tmp_path, monkeypatch):
    coarse_grid(monkeypatch)
    one_unaligned(monkeypatch)
    monkeypatch.setattr(pipeline, "committed_selection", lambda _: None)  # it takes seconds to read
    # Of products the kernel that other tests have compiled.
    few = ("--max-kernels", 1, "--kernels", "sm90_quack_128x256_c2x1_cooperative,row_*")
    words = ("--target", "h200", "--record", record, "--operations", f"bf16_kk,{OWN}", "--no-curve", *few)
    aot("select", *words, "-o", tmp_path / "own.json")
    named = ("--package", "relu2-gemm")  # another test of this process may have imported aot_gemm
    aot("build", "--target", "h200", "--selection", tmp_path / "own.json", "--dist", tmp_path / "dist", *named)
    (wheel,) = (tmp_path / "dist").iterdir()
    manifest = read_wheel_manifest(wheel)
    (section,) = manifest.tables[0].row_table.sections
    chosen = {manifest.row_kernels[x.kernel].name for y in section.columns if y.cols == COLS for x in y.steps}
    assert f"{OWN}_{FASTEST}" in chosen
    with zipfile.ZipFile(wheel) as archive:
        (licence,) = [x for x in archive.namelist() if x.endswith("/licenses/relu2-mul.txt")]
        assert "Apache License" in archive.read(licence).decode()
    package = host.compile_package(manifest, tmp_path)
    plan = package.plan_rows("relu2_mul", 16, COLS)
    assert (plan.kernel, plan.provenance, plan.time_us) == (f"{OWN}_{FASTEST}", "measured", 5.0)
    assert "relu2_mul of bfloat16, rows 16 cols 1024" in package.explain_rows("relu2_mul", 16, COLS)
    _call(package, manifest)


def _call(package, manifest):
    rows = Rows(host.Library(package._library.LIBRARY))
    y = package.rows("relu2_mul", Framework().Tensor((2, 3, 2 * COLS)), interleaved=True)
    assert y.shape == (2, 3, COLS)
    (got,) = rows.launches()
    assert manifest.row_kernels[got.kernel].name == f"{OWN}_{FASTEST}"
    assert (*got.x.shape, *got.y.shape, got.flags) == (6, 2 * COLS, 6, COLS, RowFlag.IS_INTERLEAVED)
    known = "expected one of 'rms_norm', 'layer_norm', 'silu_mul', 'gelu_tanh_mul', 'quantize', 'relu2_mul'"
    with pytest.raises(package.UnsupportedError, match=f"rows: function is 'relu3_mul'; {known}"):
        package.rows("relu3_mul", None)
