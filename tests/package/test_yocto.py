"""The Yocto recipe: what its install task puts where, run over real packages. BitBake itself is not run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aot.package.deb_file import to_bytes
from aot.package.debian import packages_of
from tests.objects import small_wheel

pytestmark = [
    pytest.mark.package,
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="NOT TESTED: this machine has no dpkg-deb"),
]

RECIPE = Path(__file__).parents[2] / "yocto/meta-aot/recipes-aot/aot-gemm/aot-gemm_0.1.0.bb"
EPOCH = 1600000000


def variables():
    """Give what the recipe sets, with one line for each."""
    text = RECIPE.read_text().replace("\\\n", "")
    return dict(re.findall(r'^([A-Za-z_:${}-]+(?:\[noexec\])?) \??= "(.*)"$', text, re.MULTILINE))


def expanded(text, values):
    """Put values in the place of BitBake's names."""
    return re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], text)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Unpack what the recipe fetches, as BitBake does; the files are found by the names that SRC_URI has."""
    folder = tmp_path_factory.mktemp("yocto")
    for package in packages_of(small_wheel("thor"), "Ann Lee <ann@company.com>", EPOCH):
        (folder / package.name).write_bytes(to_bytes(package, EPOCH))
    names = re.findall(r"file://(\S+?);subdir", expanded(variables()["SRC_URI"], {"AOT_VERSION": "0.1.0", "BP": "x"}))
    assert len(names) == 2
    for name in names:
        subprocess.run(["dpkg-deb", "-x", folder / name, folder / "source"], check=True)
    return folder / "source"


@pytest.fixture(scope="module")
def installed(unpacked, tmp_path_factory):
    image = tmp_path_factory.mktemp("image")
    body = re.search(r"^do_install\(\) \{\n(.*?)^\}", RECIPE.read_text(), re.MULTILINE | re.DOTALL)[1]
    values = {"D": str(image), "S": str(unpacked), "libdir": "/usr/lib", "includedir": "/usr/include"}
    values["AOT_LIBDIR"] = variables()["AOT_LIBDIR"]
    subprocess.run(["sh", "-e", "-c", expanded(body, values)], check=True)
    return image


def test_files_lie_where_bitbakes_own_settings_look(installed):
    found = {str(x.relative_to(installed)) for x in installed.rglob("*") if not x.is_dir()}
    assert found == {
        "usr/include/aot_gemm.h",
        "usr/include/aot_gemm.hpp",
        "usr/include/aot_gemm_memory.h",
        "usr/include/aot_gemm_rows.h",
        "usr/include/aot_gemm_view.hpp",
        "usr/lib/libaot_gemm.so",
        "usr/lib/libaot_gemm.so.1",
        "usr/lib/cmake/aot_gemm/aot_gemm-config.cmake",
        "usr/lib/cmake/aot_gemm/aot_gemm-config-version.cmake",
        "usr/lib/pkgconfig/aot_gemm.pc",
    }


def test_the_licences_lie_where_the_recipe_says(unpacked):
    place = variables()["LIC_FILES_CHKSUM"].removeprefix("file://").partition(";")[0]
    assert "NVIDIA" in (unpacked / place).read_text()


def test_cmake_and_pkg_config_find_what_is_installed(installed, tmp_path):
    project = """
cmake_minimum_required(VERSION 3.20)
project(x LANGUAGES NONE)
find_package(aot_gemm REQUIRED)
get_target_property(include aot_gemm::aot_gemm INTERFACE_INCLUDE_DIRECTORIES)
get_target_property(library aot_gemm::aot_gemm IMPORTED_LOCATION)
message(NOTICE "found ${include}|${library}")
"""
    (tmp_path / "CMakeLists.txt").write_text(project)
    command = [sys.executable, "-m", "cmake", "-S", tmp_path, "-B", tmp_path / "build"]
    command += [f"-Daot_gemm_DIR={installed}/usr/lib/cmake/aot_gemm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"found {installed}/usr/include|{installed}/usr/lib/libaot_gemm.so.1\n" in done.stderr, done.stderr
    lines = (installed / "usr/lib/pkgconfig/aot_gemm.pc").read_text().splitlines()
    assert {"prefix=/usr", "libdir=/usr/lib", "includedir=${prefix}/include"} <= set(lines)
