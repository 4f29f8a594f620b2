"""Real wheels of functions and of a pack: built, installed by their lock where nothing else is, and asked."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import replace

import pytest

from aot.core.target import load_target
from aot.package.build import build_api, build_wheel
from aot.package.pack import PackFor, lock_text
from aot.package.wheel_check import check_wheel
from tests.objects import small_manifest

ASK = """
import aot_gemm
from aot_gemm import _library
print(aot_gemm.check())
print(sorted(name for name in ("linear", "matmul") if _library.binding()[name] is not None))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="NOT TESTED: the pack is for x86-64")
def test_a_pack_and_its_functions_are_installed_by_their_lock(tmp_path):
    manifest, objects = small_manifest("h200")
    manifest = replace(manifest, package="aot-gemm-sm90a")
    wheels = tmp_path / "wheels"
    pack = build_wheel(manifest, objects, wheels, load_target("h200"), pack=PackFor("aot-gemm"))
    api = build_api("aot-gemm", "0.1.0", wheels)
    assert api.name == "aot_gemm-0.1.0-py3-none-any.whl"
    assert any(x.startswith("libraries: manylinux_2_28_x86_64") for x in check_wheel(pack))
    lock = tmp_path / "pack.lock"
    lock.write_text(lock_text([api, pack]))
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = ["install", "-q", "--no-index", "--find-links", wheels, "--require-hashes", "-r", lock]
    subprocess.run([python, "-m", "pip", *install], check=True)
    done = subprocess.run([python, "-m", "aot_gemm", "16", "4096", "4096"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second, *rest = done.stdout.splitlines()
    assert first == "aot-gemm 0.1.0"
    assert second.startswith(f"aot-gemm-sm90a {manifest.version} for sm_90a in ")
    assert "answers queries: no usable NVIDIA GPU" in second or second.endswith(": answers here")
    assert manifest.kernels[-1].name in "\n".join(rest)
    done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "['linear', 'matmul']"
    api.write_bytes(api.read_bytes() + b"\0")
    again = [sys.executable, "-m", "pip", *install, "--target", tmp_path / "again"]
    refused = subprocess.run(again, capture_output=True, text=True, check=False)
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in refused.stderr
