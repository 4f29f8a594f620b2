"""Programs that use an unpacked wheel, by CMake and by pkg-config: the installed example, moved, under another name."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from aot.core.target import load_target
from aot.package.build import build_wheel
from tests.objects import small_manifest
from tests.package.test_header import build_driver, check_example

pytestmark = [
    pytest.mark.package,
    pytest.mark.walk,  # a wheel of its own; test_debian.py builds the examples of the one that is there
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the wheel is for x86-64"),
]

CMAKE = [sys.executable, "-m", "cmake"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Unpack a wheel of another name, and make a driver beside it; the folder's name has a space."""
    manifest, objects = small_manifest("h200")
    manifest = replace(manifest, package="robot-gemm", version="2.7.1+h200")
    folder = tmp_path_factory.mktemp("consumers") / "site packages"
    folder.mkdir()
    wheel = build_wheel(manifest, objects, folder.parent, load_target("h200"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def cuda(site):
    """Build a driver that gives addresses beside the wheel; return the folder of CUDA's headers."""
    return build_driver("h200", ["gcc"], site.parent)


def info(site, field):
    code = f"import robot_gemm; print(robot_gemm.info().{field})"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.rstrip("\n")


def run(program, *folders):
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}
    return subprocess.run([program], env=environment, capture_output=True, text=True, check=False)


def test_the_example_is_built_by_cmake(site, cuda, tmp_path):
    build = tmp_path / "build"
    options = [f"-DCUDA_INCLUDE_DIR={cuda}", f"-DCUDA_DRIVER={site.parent / 'libcuda.so'}"]
    options += [f"-Drobot_gemm_DIR={info(site, 'cmake_dir')}"]
    subprocess.run([*CMAKE, "-S", info(site, "examples_dir"), "-B", build, *options], check=True)
    subprocess.run([*CMAKE, "--build", build], check=True)
    for program in ("multiply", "multiply_cxx"):
        check_example(run(build / program, site.parent), "h200")


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="NOT TESTED: this machine has no pkg-config")
def test_the_example_is_built_by_pkg_config(site, cuda, tmp_path):
    environment = {**os.environ, "PKG_CONFIG_PATH": info(site, "pkgconfig_dir")}

    def ask(*options):
        command = ["pkg-config", *options, "robot_gemm"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.rstrip("\n")

    assert ask("--modversion") == "2.7.1+h200"
    flags = [*shlex.split(ask("--cflags", "--libs")), "-isystem", cuda, "-L", site.parent, "-lcuda"]
    for name, *compiler in (("multiply.c", "gcc"), ("multiply.cc", "g++", "-std=c++17", "-fno-exceptions")):
        source = Path(info(site, "examples_dir"), name)
        command = [*compiler, "-Wall", "-Wextra", "-Werror", source, *flags, "-o", "multiply"]
        subprocess.run(command, cwd=tmp_path, check=True)
        check_example(run(tmp_path / "multiply", site.parent, *shlex.split(ask("--variable=libdir"))), "h200")


PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(x LANGUAGES C)
find_package(robot_gemm {asked} REQUIRED)
find_package(robot_gemm REQUIRED)  # once more, as by a project within a project
get_target_property(include robot_gemm::robot_gemm INTERFACE_INCLUDE_DIRECTORIES)
get_target_property(library robot_gemm::robot_gemm IMPORTED_LOCATION)
message(NOTICE "found ${{robot_gemm_VERSION}}|${{include}}|${{library}}")
"""


@pytest.mark.parametrize(("asked", "is_found"), [("2.5", True), ("2.8", False), ("1.0", False)])
def test_cmake_finds_the_version_that_is_asked_for_where_the_wheel_lies(site, tmp_path, asked, is_found):
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(asked=asked))
    prefix = f"-DCMAKE_PREFIX_PATH={site}"
    command = [*CMAKE, "-S", tmp_path, "-B", tmp_path / "build", prefix]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    package = site / "robot_gemm"
    line = f"found 2.7.1|{package}/include|{package}/librobot_gemm.so.1\n"
    assert ((done.returncode == 0), line in done.stderr) == (is_found, is_found), done.stderr
    assert (package / "librobot_gemm.so.1").is_file()
    assert (package / "include" / "aot_gemm.h").is_file()
