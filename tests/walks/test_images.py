"""The images: every layer's commands executed in an unpacked root file system, for arm64 under emulation, and asked.

This is not a container: what a read-only root would refuse is found as a file that is another afterwards.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess

import pytest

from aot.core.target import load_target
from tests.objects import small_manifest, small_wheel
from tests.package import containerfile, userland
from tests.package.test_images import FILES, context, listing

pytestmark = [
    pytest.mark.package,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="NOT TESTED: the emulator and proot are for x86-64"),
]

DEBIAN = {"h200": "amd64", "thor": "arm64"}


@pytest.fixture(scope="module")
def wheels():
    return {name: small_wheel(name) for name in FILES}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Give for a target an unpacked system with Python, and the words of the emulator that its programs need."""

    def base(target):
        if target == "thor":
            emulator, _, system = userland.aarch64_emulator()
            words = [emulator]
        else:
            number = hashlib.sha256(" ".join(userland.PACKAGES).encode()).hexdigest()[:8]
            try:
                system = userland.fetch_once("amd64", userland.PACKAGES, f"amd64-{number}")
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"NOT TESTED: Debian's packages cannot be fetched: {error}")
            words = []
        root = tmp_path_factory.mktemp("base") / "root"
        shutil.copytree(system, root, symlinks=True)
        (root / "usr/bin/python3").symlink_to("python3.11")
        for name in ("proc", "dev", "tmp"):
            (root / name).mkdir(exist_ok=True)
        return root, words

    return base


@pytest.mark.parametrize("target", FILES)
def test_an_image_answers_as_another_user_and_writes_nothing(bases, wheels, tmp_path, target, capsys):
    base, emulator = bases(target)
    stage, printed = containerfile.execute(context(target, tmp_path, wheels[target]), base, emulator, tmp_path)
    machine = load_target(target).machine
    assert f"installed {wheels[target].name}\n" in printed
    assert re.search(r"/opt/aot/aot_gemm: \d+ files, [\d,]+ bytes, each as it was built\n", printed), printed
    assert stage.user == "65532:65532"
    before = listing(stage.root)
    done = containerfile.run(stage, stage.command, emulator)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    kernel = small_manifest(target)[0].kernels[-1].name
    assert re.fullmatch(rf"aot_gemm 0\.1\.0 on {machine}, imported after [\d.]+ ms", lines[0])
    assert re.fullmatch(rf"first answer after [\d.]+ ms: bf16 16x4096x4096 is computed by {kernel}", lines[1])
    assert re.match(r"no GPU for it after [\d.]+ ms: no usable NVIDIA GPU: ", lines[2])
    assert listing(stage.root) == before
    compiled = [x for x in before if x.startswith("opt/aot/") and x.endswith(".pyc")]
    assert len(compiled) >= sum(x.startswith("opt/aot/aot_gemm/") and x.endswith(".py") for x in before) > 0
    added = before.keys() - listing(base).keys()
    size = sum((stage.root / x).stat().st_size for x in added)
    whole = sum((stage.root / x).stat().st_size for x in before)
    assert all(x.startswith("opt/aot/") for x in added)
    with capsys.disabled():
        print(f"\n{FILES[target]}: {size / 2**20:.2f} MiB over a base of {(whole - size) / 2**20:.1f} MiB; {lines[1]}")


def test_equal_wheels_give_equal_files(bases, wheels, tmp_path):
    base, emulator = bases("h200")
    stages = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        file = context("h200", tmp_path / name, wheels["h200"])
        stages.append(containerfile.execute(file, base, emulator, tmp_path / name)[0])
    first, second = (listing(stage.root / "opt/aot") for stage in stages)
    assert first == second
