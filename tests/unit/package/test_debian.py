"""Names, versions and licences of Debian packages. tests/package makes them of real wheels."""

import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from aot.core.errors import PackageError
from aot.package import debian
from aot.package.debian import check_maintainer, debian_version
from tests.golden.manifest import golden_manifest

WHEEL = Path("x.whl")
APACHE = (Path(__file__).parents[3] / "LICENSE").read_bytes()


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.1.0+h200.1.measured.20261122.h688da49e12cf", "0.1.0+h200.1.measured.20261122.h688da49e12cf"),
        ("1.2rc1+thor.0.predicted.h0", "1.2~rc1+thor.0.predicted.h0"),
        ("1.2.dev3", "1.2~~dev3"),
        ("1.2a1", "1.2~a1"),
        ("2.0.post1", "2.0.post1"),
    ],
)
def test_versions_are_debians(version, expected):
    assert debian_version(version) == expected


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="NOT TESTED: this machine has no dpkg")
def test_versions_sort_as_those_of_pep_440():
    versions = ["1.2.dev1", "1.2a1.dev2", "1.2a1", "1.2b1", "1.2rc1", "1.2", "1.2+h200.1", "1.2.post1", "1.10"]
    ours = [debian_version(x) for x in versions]
    for older, newer in pairwise(ours):
        assert subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=False).returncode == 0


@pytest.mark.parametrize("text", ["Ann Lee <ann@company.com>", "ACME Robots <robots@acme.example.org>"])
def test_a_maintainer_has_a_name_and_an_address(text):
    assert check_maintainer(text) == text


@pytest.mark.parametrize(
    "text",
    [
        " <>",
        "",
        "Ann Lee",
        "<ann@company.com>",
        "Ann <ann>",
        "Ann <a@b> <c@d>",
        "Ann\nX: y <a@b.c>",
        "Ann <a@b\n.c>",
        "Ann\x1b <a@b.c>",
        "A" * 300 + " <a@b.c>",
        "Ann, Lee <a@b.c>",
    ],
)
def test_other_maintainers_are_refused(text):
    with pytest.raises(PackageError, match=r"the maintainer is .*; expected a name and an address, .* DEBEMAIL"):
        check_maintainer(text)


def test_names_follow_from_the_manifest():
    manifest = replace(golden_manifest(), package="robot-gemm", platform_tag="manylinux_2_28_aarch64")
    names = debian._names(WHEEL, manifest)
    assert (names.library, names.development) == ("librobot-gemm1", "librobot-gemm-dev")
    assert (names.architecture, names.folder, names.glibc) == ("arm64", "usr/lib/aarch64-linux-gnu", "2.28")
    named = debian._names(WHEEL, replace(manifest, package="gemm2", platform_tag="manylinux_2_17_x86_64"))
    assert (named.library, named.architecture, named.glibc) == ("libgemm2-1", "amd64", "2.17")


def test_another_platform_is_refused():
    with pytest.raises(PackageError, match=r"x.whl is for win_amd64; expected manylinux of x86_64 or aarch64"):
        debian._names(WHEEL, replace(golden_manifest(), platform_tag="win_amd64"))


def test_every_licence_goes_along():
    files = {
        "x-1.dist-info/licenses/B.txt": b"Copyright B. GNU Lesser General Public License\n",
        "x-1.dist-info/licenses/A.txt": b"Copyright 2026 A\n\n" + APACHE + b"\nA's own words\n",
        "x/other.txt": b"not one\n",
    }
    text = debian._copyright(WHEEL, files).decode()
    assert "under these licences: A, B.\n" in text
    assert "Copyright B. GNU Lesser General Public License\n" in text
    assert "Copyright 2026 A\n" in text
    assert "A's own words\n" in text
    assert "not one" not in text
    assert "TERMS AND CONDITIONS" not in text  # which every Debian system has
    assert text.count("/usr/share/common-licenses/Apache-2.0.\n") == 1
    assert text.endswith("/usr/share/common-licenses/LGPL-2.1.\n")


def test_a_wheel_without_licences_is_refused():
    with pytest.raises(PackageError, match=r"x.whl has no licences in its metadata, which must go along"):
        debian._copyright(WHEEL, {"x/other.txt": b""})
