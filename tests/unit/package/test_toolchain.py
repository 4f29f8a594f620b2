"""What is linked against is fetched once for each machine, or found where it is installed."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from aot.core.errors import PackageError
from aot.core.process import run
from aot.core.target import load_target
from aot.package import toolchain

H200 = load_target("h200")


@pytest.mark.slow
def test_a_failed_download_says_what_to_do_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        PackageError, match=r"(?s)fetching nvidia-cuda-runtime.*failed with exit code 1.*next: check pip's index"
    ):
        toolchain.fetch_toolchain(H200, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cached_toolchain_needs_no_network(tmp_path, monkeypatch):
    name = "+".join(x.replace("==", "-") for x in (toolchain.CUDA_RUNTIME, toolchain.CUDA_HEADERS))
    (tmp_path / f"{name}-{H200.machine}").mkdir()
    monkeypatch.setattr(toolchain, "run", lambda *_, **__: pytest.fail("ran a command"))
    found = toolchain.fetch_toolchain(H200, tmp_path)
    assert found.cuda_dir.parts[-2:] == ("nvidia", "cu13")


def test_dlpacks_header_is_found_without_importing_anything():
    code = "import sys; from aot.package import toolchain; print(toolchain.dlpack_dir(), 'tvm_ffi' in sys.modules)"
    path, imported = run([sys.executable, "-c", code], "looking").split()
    assert (Path(path, "dlpack", "dlpack.h").is_file(), imported) == (True, "False")


@pytest.mark.parametrize("spec", [None, ModuleSpec("tvm_ffi", None, is_package=True)])
def test_without_dlpacks_header_there_is_no_toolchain(monkeypatch, spec):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    with pytest.raises(PackageError, match=r"no dlpack/dlpack.h in \[\]; expected that of apache-tvm-ffi; install aot"):
        toolchain.dlpack_dir()
