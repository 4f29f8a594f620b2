"""The images' programs, run on this machine; `make images` executes each layer in root file systems of both."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.objects import small_manifest, small_wheel
from tests.package import containerfile

pytestmark = [
    pytest.mark.package,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the wheel is for x86-64"),
]

IMAGES = Path(__file__).parents[2] / "images"
FILES = {"h200": "x86_64.Containerfile", "thor": "jetpack7.Containerfile"}


def context(target, folder, *wheels):
    """Copy the images' folder, with wheels in it."""
    copied = folder / "images"
    shutil.copytree(IMAGES, copied, ignore=shutil.ignore_patterns("*.whl"))
    for wheel in wheels:
        shutil.copyfile(wheel, copied / "wheels" / wheel.name)
    return copied / FILES[target]


def listing(root):
    """Give every file of a tree with its hash."""
    return {
        str(x.relative_to(root)): hashlib.sha256(x.read_bytes()).hexdigest()
        for x in root.rglob("*")
        if x.is_file() and not x.is_symlink()
    }


def run(program, *words):
    """Run one of the images' programs as their commands do."""
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, program, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def install(folder, *wheels):
    """Run the command of the first stage, in a folder."""
    folder.mkdir()
    build = context("h200", folder, *wheels).parent
    return run(build / "install.py", build / "wheels", folder / "aot")


def test_what_is_installed_answers_and_writes_nothing(tmp_path):
    done = install(tmp_path / "image", small_wheel("h200"))
    assert done.returncode == 0, done.stderr
    assert f"installed {small_wheel('h200').name}\n" in done.stdout
    assert re.search(r"/aot/aot_gemm: \d+ files, [\d,]+ bytes, each as it was built\n", done.stdout)
    folder = tmp_path / "image" / "aot"
    shutil.copyfile(IMAGES / "answer.py", folder / "answer.py")
    before = listing(folder)
    lines = run(folder / "answer.py").stdout.splitlines()
    assert re.fullmatch(r"aot_gemm 0\.1\.0 on x86_64, imported after [\d.]+ ms", lines[0])
    kernel = small_manifest("h200")[0].kernels[-1].name
    assert re.fullmatch(rf"first answer after [\d.]+ ms: bf16 16x4096x4096 is computed by {kernel}", lines[1])
    assert re.match(r"(no GPU for it|all kernels loaded) after [\d.]+ ms", lines[2])
    assert listing(folder) == before
    compiled = [x for x in before if x.endswith(".pyc")]
    assert len(compiled) >= sum(x.startswith("aot_gemm/") and x.endswith(".py") for x in before) > 0


def test_equal_wheels_give_equal_files(tmp_path):
    found = []
    for _ in range(2):
        assert install(tmp_path / "image", small_wheel("h200")).returncode == 0
        found.append(listing(tmp_path / "image" / "aot"))
        shutil.rmtree(tmp_path / "image")
    assert found[0] == found[1]
    assert found[0]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "wheels; copy one from dist/ to images/wheels/"),
        (["thor"], "aarch64.whl is not for x86_64; copy the wheel for this machine"),
    ],
)
def test_what_is_no_wheel_for_the_machine_is_refused(tmp_path, names, message):
    done = install(tmp_path / "image", *map(small_wheel, names))
    assert done.returncode == 1
    assert message in done.stderr


def test_the_two_images_are_made_alike():
    first, second = (containerfile.instructions(IMAGES / name) for name in FILES.values())
    assert first == second
