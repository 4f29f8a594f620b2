"""Debian packages of real wheels: read by Debian's own tools, and used by programs that know nothing of Python."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from aot.package.deb_file import to_bytes
from aot.package.debian import packages_of
from tests.objects import small_wheel
from tests.package.test_header import build_driver, check_example

pytestmark = [
    pytest.mark.package,
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="NOT TESTED: this machine has no dpkg-deb"),
]

EPOCH = 1600000000
MAINTAINER = "Ann Lee <ann@company.com>"
TRIPLETS = {"h200": "x86_64-linux-gnu", "thor": "aarch64-linux-gnu"}
CMAKE = [sys.executable, "-m", "cmake"]


@pytest.fixture(scope="module")
def wheels():
    return {name: small_wheel(name) for name in TRIPLETS}


@pytest.fixture(scope="module")
def debs(wheels, tmp_path_factory):
    """Give the packages of each target's wheel."""
    folder = tmp_path_factory.mktemp("debs")
    found = {}
    for target, wheel in wheels.items():
        found[target] = []
        for package in packages_of(wheel, MAINTAINER, EPOCH):
            path = folder / package.name
            path.write_bytes(to_bytes(package, EPOCH))
            found[target].append(path)
    return found


@pytest.fixture(scope="module")
def systems(debs, tmp_path_factory):
    """Unpack the packages of each target into a root of its own."""
    roots = {}
    for target, paths in debs.items():
        roots[target] = tmp_path_factory.mktemp("root")
        for path in paths:
            subprocess.run(["dpkg-deb", "-x", path, roots[target]], check=True)
    return roots


def ask(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout.rstrip("\n")


@pytest.mark.parametrize(("target", "architecture"), [("h200", "amd64"), ("thor", "arm64")])
def test_fields_are_as_dpkg_reads_them(debs, target, architecture):
    library, development = debs[target]
    assert library.name == f"libaot-gemm1_0.1.0_{architecture}.deb"
    fields = ["Package", "Source", "Version", "Architecture", "Maintainer", "Multi-Arch", "Depends"]
    read = [ask("dpkg-deb", "--field", library, field) for field in fields]
    assert read == ["libaot-gemm1", "aot-gemm", "0.1.0", architecture, MAINTAINER, "same", "libc6 (>= 2.28)"]
    assert ask("dpkg-deb", "--field", development, "Depends") == "libaot-gemm1 (= 0.1.0)"


@pytest.mark.parametrize("target", TRIPLETS)
def test_the_library_is_that_of_the_wheel(wheels, systems, target):
    with zipfile.ZipFile(wheels[target]) as archive:
        expected = archive.read("aot_gemm/libaot_gemm.so.1")
    folder = systems[target] / "usr/lib" / TRIPLETS[target]
    assert (folder / "libaot_gemm.so.1").read_bytes() == expected
    assert (folder / "libaot_gemm.so").readlink() == Path("libaot_gemm.so.1")


def test_equal_wheels_give_equal_packages(wheels, debs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    before = os.umask(0o077)
    try:
        again = tmp_path / wheels["thor"].name
        shutil.copyfile(wheels["thor"], again)
        built = [to_bytes(x, EPOCH) for x in packages_of(again, MAINTAINER, EPOCH)]
    finally:
        os.umask(before)
    assert built == [path.read_bytes() for path in debs["thor"]]


@pytest.mark.skipif(shutil.which("lintian") is None, reason="NOT TESTED: this machine has no lintian")
def test_lintian_finds_nothing(debs):
    paths = [path for pair in debs.values() for path in pair]
    command = ["lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, re.findall(r"^[EW]: .*", done.stdout, re.MULTILINE)) == (0, []), done.stdout + done.stderr


def run(program, *folders):
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}
    return subprocess.run([program], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.walk
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="NOT TESTED: the packages are for x86-64")
def test_the_examples_are_built_by_cmake_of_the_systems_library(systems, tmp_path):
    root = systems["h200"]
    cuda = build_driver("h200", ["gcc"], tmp_path)
    examples = root / "usr/share/doc/libaot-gemm-dev/examples"
    assert sorted(x.name for x in examples.iterdir()) == ["CMakeLists.txt", "multiply.c", "multiply.cc"]
    # What a program finds in /usr, where it lies in a root of its own.
    options = [
        f"-DCUDA_INCLUDE_DIR={cuda}",
        f"-DCUDA_DRIVER={tmp_path / 'libcuda.so'}",
        f"-DCMAKE_FIND_ROOT_PATH={root}",
    ]
    options += ["-DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu"]
    subprocess.run([*CMAKE, "-S", examples, "-B", tmp_path / "build", *options], check=True)
    subprocess.run([*CMAKE, "--build", tmp_path / "build"], check=True)
    for program in ("multiply", "multiply_cxx"):
        check_example(run(tmp_path / "build" / program, tmp_path), "h200")


def flags_of(root, triplet):
    """Ask pkg-config for the flags of a root's library."""
    if shutil.which("pkg-config") is None:
        pytest.skip("NOT TESTED: this machine has no pkg-config")
    environment = {
        **os.environ,
        "PKG_CONFIG_SYSROOT_DIR": str(root),
        "PKG_CONFIG_LIBDIR": str(root / "usr/lib" / triplet / "pkgconfig"),
        "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1",
        "PKG_CONFIG_ALLOW_SYSTEM_LIBS": "1",
    }
    return shlex.split(ask("pkg-config", "--cflags", "--libs", "aot_gemm", env=environment))


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="NOT TESTED: the packages are for x86-64")
def test_the_examples_are_built_by_pkg_config(systems, tmp_path):
    root = systems["h200"]
    cuda = build_driver("h200", ["gcc"], tmp_path)
    flags = flags_of(root, TRIPLETS["h200"])
    assert flags == [f"-I{root}/usr/include", f"-L{root}/usr/lib/x86_64-linux-gnu", "-laot_gemm"]
    for name, *compiler in (("multiply.c", "gcc"), ("multiply.cc", "g++", "-std=c++17")):
        source = root / "usr/share/doc/libaot-gemm-dev/examples" / name
        command = [*compiler, "-Werror", source, *flags, "-isystem", cuda, f"-L{tmp_path}", "-lcuda", "-o", "multiply"]
        subprocess.run(command, cwd=tmp_path, check=True)
        check_example(run(tmp_path / "multiply", tmp_path, root / "usr/lib/x86_64-linux-gnu"), "h200")
