import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

from aot.core.errors import DependencyError, DeviceError, OutputError, StoreError
from aot.measure.tuning_set import TuningSet, read_tuning_set
from aot.tune.bundle import make_bundle
from tests.unit.twins import kernel_of, problem_of

pytestmark = pytest.mark.slow

TUNING = TuningSet("h200", "sm_90a", (kernel_of(64),), (problem_of(1, 64, 64),))

LIST_MODULES = """
import sys
sys.path[:0] = [{directory!r}]
sys.path.append({packages!r})
import aot.measure.background, aot.measure.runner, aot.measure.worker_process
loaded = sorted(name for name in sys.modules if name == "aot" or name.startswith("aot."))
assert all(sys.modules[name].__file__.startswith({directory!r}) for name in loaded), loaded
wrong = sorted({{"click", "tqdm", "torch", "cutlass", "tomllib", "jinja2"}} & set(sys.modules))
print(wrong)
"""


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(b"no ELF")
    return path


def test_bundle_is_self_contained(tmp_path, library):
    bundle = make_bundle(tmp_path / "bundle", library, TUNING)
    assert read_tuning_set(bundle.directory) == TUNING
    assert (bundle.directory / "kernels.so").read_bytes() == b"no ELF"
    assert bundle.num_bytes == sum(path.stat().st_size for path in bundle.directory.rglob("*") if path.is_file())
    packages = sysconfig.get_path("purelib")
    script = LIST_MODULES.format(directory=str(bundle.directory), packages=packages)
    # -S leaves out .pth files, by which an editable install of aot would put itself first.
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stderr == ""
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="shows the error of a machine without a GPU")
def test_run_without_a_gpu_says_so(tmp_path, library):
    make_bundle(tmp_path / "bundle", library, TUNING)
    # Another package of the name in the working directory must not be taken.
    (tmp_path / "aot").mkdir()
    (tmp_path / "aot" / "__init__.py").write_text("raise SystemExit('wrong package')")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "bundle/run.py", "--out", "r.sqlite", "--budget-seconds", "5"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert "error: no usable NVIDIA driver: " in done.stderr
    assert done.returncode == DeviceError.exit_code


def test_run_without_numpy_says_so_and_leaves_nothing(tmp_path, library):
    make_bundle(tmp_path / "bundle", library, TUNING)
    (tmp_path / "out").mkdir()
    # -S: no packages at all, as on a device that nothing was installed on.
    command = [sys.executable, "-S", "bundle/run.py", "--out", "out/r.sqlite"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == DependencyError.exit_code
    assert done.stderr == (
        f"\nerror: {sys.executable} cannot import numpy: No module named 'numpy'; install it (pip install numpy), or "
        "unpack its wheel into site/ beside run.py\n"
    )
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("out", ["file/r.sqlite", "folder", "/proc/r.sqlite"])
def test_results_that_cannot_be_written_are_an_error(tmp_path, library, out):
    make_bundle(tmp_path / "bundle", library, TUNING)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    command = [sys.executable, "bundle/run.py", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode in (OutputError.exit_code, StoreError.exit_code), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("\nerror: ")


def test_bundle_is_replaced_and_results_in_it_are_kept(tmp_path, library):
    make_bundle(tmp_path / "bundle", library, TUNING)
    (tmp_path / "bundle" / "results.sqlite").write_bytes(b"kept")
    (tmp_path / "bundle" / "aot" / "stale.py").write_text("")
    make_bundle(tmp_path / "bundle", library, TUNING)
    assert (tmp_path / "bundle" / "results.sqlite").read_bytes() == b"kept"
    assert not (tmp_path / "bundle" / "aot" / "stale.py").exists()


def test_other_directories_are_left_alone(tmp_path, library):
    with pytest.raises(StoreError, match="is there and is no bundle"):
        make_bundle(tmp_path, library, TUNING)
    with pytest.raises(StoreError, match="nothing to bundle: 0 kernels, 1 problems"):
        make_bundle(tmp_path / "new", library, TuningSet("h200", "sm_90a", (), TUNING.problems))
