"""Several libraries in one process: each package and each program calls its own, whatever was loaded first.

Each library has a recorder of its own here, so that the one that launched is known by what it recorded.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aot.core.dispatch import look_up
from aot.core.problem import Problem
from tests.golden.manifest import golden_manifest
from tests.runtime import host

ROOT = Path(__file__).parents[2]
SHAPE = (16, 4096, 4096)
PACKAGES = """
import ctypes, os, sys
from tests.runtime.exchange import Framework
from tests.runtime.host import Library

libraries = {}
if sys.argv[1]:
    libraries["first"] = Library(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
elif "LD_PRELOAD" in os.environ:
    libraries["first"] = Library(None)
packages = []
for folder in sys.argv[2:]:
    directory, name = os.path.split(folder)
    sys.path.insert(0, directory)
    packages.append(__import__(name))
    libraries[name] = Library(packages[-1]._library.LIBRARY)
m, n, k = 16, 4096, 4096
for package in packages:
    for library in libraries.values():
        library.c.recorder_reset()
    info = package.info()
    print(package.__name__, info.version, package._library.library().aot_gemm_version().decode(), len(info.kernels))
    framework = Framework()
    package.linear(framework.Tensor((m, k)), framework.Tensor((n, k)))
    print(package.plan(m, n, k).kernel)
    print({name: [x.kernel for x in library.fake_launches()] for name, library in libraries.items()})
"""
PROGRAM = """
#include <stdio.h>
#include "aot_gemm.h"
int main(void) { printf("%s %d\\n", aot_gemm_version(), (int)aot_gemm_num_kernels()); }
"""


def run(*arguments, **variables):
    command = [sys.executable, "-c", PACKAGES, *map(str, arguments)]
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def exported(manifest, directory):
    """Render a library and return the flag of its symbols' versions, by which the recorder is exported too."""
    host.library_sources(manifest, directory)
    script = (directory / "src" / "library.map").read_text()
    assert "  local: *;" in script
    path = directory / "exported.map"
    path.write_text(script.replace("  local: *;", "  recorder_*; local: *;"))
    return f"-Wl,--version-script={path}"


@pytest.fixture(scope="session")
def other_manifest():
    """Make another package, with a table of its own."""
    return replace(golden_manifest(), package="other-gemm", version="9.8.7")


@pytest.fixture(scope="session")
def other_folder(other_manifest, tmp_path_factory):
    directory = tmp_path_factory.mktemp("other")
    return host.compile_installed(other_manifest, directory, flags=[exported(other_manifest, directory)])


def lines_of(manifest, *others):
    """Give what the script prints of a package beside other libraries, by the table itself."""
    section = manifest.tables[0].table.sections[0]
    multiples = tuple((x.m_multiple, x.n_multiple) for x in manifest.kernels)
    kernel = look_up(section, Problem(section.operation, *SHAPE), multiples).kernel
    launches = {name: [] for name in others}
    yield f"{manifest.module} {manifest.version} {manifest.version} {len(manifest.kernels)}"
    yield manifest.kernels[kernel].name
    yield launches | {manifest.module: [kernel]}


def check(lines, expected):
    assert [ast.literal_eval(x) if x.startswith("{") else x for x in lines] == list(expected)


@pytest.mark.parametrize("turned", [False, True])
def test_two_packages_go_to_their_own_libraries(package, manifest, other_folder, other_manifest, turned):
    folders, manifests = [Path(package.__file__).parent, other_folder], [manifest, other_manifest]
    if turned:
        folders.reverse()
        manifests.reverse()
    names = [x.module for x in manifests]
    assert sorted(names) == ["aot_gemm", "other_gemm"]
    expected = [line for x in manifests for line in lines_of(x, *names)]
    kernels = {line for line in expected if isinstance(line, str) and line.startswith("bf16")}
    assert len(kernels) == 2
    check(run("", *folders), expected)


@pytest.mark.parametrize("preloaded", [False, True])
def test_a_package_calls_its_own_library_whatever_was_loaded_first(package, manifest, golden_path, preloaded):
    """The first one has the same SONAME and symbols, all global, and other content."""
    own = Path(package._library.LIBRARY)
    assert golden_path.name == own.name
    assert golden_path.read_bytes() != own.read_bytes()
    folder = Path(package.__file__).parent
    lines = run("", folder, LD_PRELOAD=str(golden_path)) if preloaded else run(golden_path, folder)
    check(lines, lines_of(manifest, "first"))


def test_a_program_calls_the_library_that_it_was_linked_with(other_folder, other_manifest, tmp_path):
    """Symbols have the version of their package, so that a library of another package is no stand-in."""
    manifest = replace(golden_manifest(), version="0.0.1")
    stranger = host.compile_library(manifest, tmp_path, flags=[exported(manifest, tmp_path)])
    (tmp_path / "program.c").write_text(PROGRAM)
    library = other_folder / "libother_gemm.so.1"
    links = [library, f"-Wl,-rpath,{other_folder}", f"-I{other_folder}/include", f"-I{tmp_path}/include"]
    subprocess.run(["gcc", tmp_path / "program.c", *links, "-o", tmp_path / "program"], check=True)
    for variables in ({}, {"LD_PRELOAD": str(stranger)}):
        done = subprocess.run([tmp_path / "program"], env=variables, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["9.8.7", str(len(other_manifest.kernels))]
