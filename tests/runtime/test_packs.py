"""Packs over the recorder: how functions without kernels find one, which answers, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aot.package.build import read_templates, write
from aot.package.file_set import FileSet
from aot.package.pack import render_api, render_pack
from aot.package.render import library_name
from tests.golden.manifest import golden_manifest
from tests.runtime import host

ROOT = Path(__file__).parents[2]
OURS, OTHERS, MINE = "aot-gemm-sm90a", "aot-gemm-sm110a", "zz-gemm"
"""A pack for the recorder's GPU, one for another, and one of a user, which by its name would come last."""

PRODUCT = """
import ctypes, sys
import aot_gemm
from tests.runtime.tensors import FakeTensor
out = FakeTensor((7, 17))
assert aot_gemm.linear(FakeTensor((7, 65)), FakeTensor((17, 65)), out=out) is out
for path in sys.argv[1:]:
    print(path.rsplit("/", 1)[1], ctypes.CDLL(path).recorder_num_fake())
print(aot_gemm.info().package, aot_gemm.plan(16, 4096, 4096).kernel)
print(aot_gemm.check().num_files)
"""


def manifest_of(name, arch="sm_90a"):
    return replace(golden_manifest(), package=name, arch=arch)


def python_of(files):
    """Return the Python part of a rendered project."""
    found = FileSet()
    for path, content in files.items():
        if path.startswith("python/"):
            found.add(path.removeprefix("python/"), content)
    return found


def distribute(site, name, version, entry_points=""):
    """Write the metadata of a distribution."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "entry_points.txt").write_text(entry_points)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Give the folders of three packs' files."""
    folders = {}
    for name, arch in ((OURS, "sm_90a"), (OTHERS, "sm_110a"), (MINE, "sm_90a")):
        manifest, folder = manifest_of(name, arch), tmp_path_factory.mktemp(name)
        library = host.compile_library(manifest, folder / "project", binding=True)
        write(python_of(render_pack(manifest, "aot-gemm", read_templates())), folder / "pack")
        shutil.copy(library, folder / "pack" / manifest.module / library_name(manifest))
        host.record_build(folder / "pack" / manifest.module)
        folders[name] = folder / "pack" / manifest.module
    return folders


@pytest.fixture
def site(tmp_path):
    """Give a folder of packages in which the functions alone are installed."""
    write(python_of(render_api("aot-gemm", "0.1.0", read_templates())), tmp_path / "site")
    distribute(tmp_path / "site", "aot-gemm", "0.1.0")
    return tmp_path / "site"


def install(site, folder, version="0.1.0+x"):
    """Install a pack; return where."""
    name = folder.name.replace("_", "-")
    distribute(site, name, version, f"[aot_gemm.packs]\n{name} = {folder.name}\n")
    return Path(shutil.copytree(folder, site / folder.name))


def run(site, *words, also=()):
    environment = {"PYTHONPATH": ":".join(map(str, (site, *also, ROOT, *sys.path[1:]))), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=site)


def product(site, *folders):
    """Compute a product; return the lines that it prints of the packs in some folders."""
    libraries = [next(folder.glob("lib*.so.*")) for folder in folders]
    done = run(site, "-c", PRODUCT, *libraries)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_product_is_computed_by_the_pack_for_the_gpu(site, built):
    ours, others = install(site, built[OURS]), install(site, built[OTHERS])
    first, second, told, num_files = product(site, ours, others)
    assert (first, second) == ("libaot_gemm_sm90a.so.1 1", "libaot_gemm_sm110a.so.1 0")
    assert told.split()[0] == OURS
    records = [json.loads((x / "_build.json").read_text()) for x in (site / "aot_gemm", ours, others)]
    assert int(num_files) == sum(map(len, records))


def test_a_users_pack_goes_before_ours(site, built):
    ours, mine = install(site, built[OURS]), install(site, built[MINE])
    first, second, told, _ = product(site, ours, mine)
    assert (first, second) == ("libaot_gemm_sm90a.so.1 0", "libzz_gemm.so.1 1")
    assert told.split()[0] == MINE


def test_the_command_says_which_packs_there_are_and_which_kernel_a_product_gets(site, built):
    for name in (OURS, OTHERS, MINE):
        install(site, built[name])
    done = run(site, "-m", "aot_gemm", "16", "4096", "4096")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "aot-gemm 0.1.0"
    assert lines[1].startswith(f"{MINE} 0.1.0+x for sm_90a in ")
    assert lines[1].endswith(": answers here")
    assert f"{OTHERS} 0.1.0+x for sm_110a" in lines[2]
    assert "cannot: device 0 has compute capability 9.0; these kernels are sm_110a" in lines[2]
    assert lines[3].endswith(": stands behind the one that answers")
    assert lines[4].startswith("bfloat16 m 16 n 4096 k 4096")


def test_without_a_pack_the_first_use_says_what_to_install(site):
    done = run(site, "-c", "import aot_gemm; aot_gemm.plan(1, 8, 8)")
    assert (
        "PackError: aot-gemm 0.1.0 holds no kernels, and no pack of them is installed; install the one" in done.stderr
    )
    done = run(site, "-m", "aot_gemm")
    assert (done.returncode, done.stdout.splitlines()[1]) == (0, "no pack of kernels is installed")


def test_where_no_pack_is_for_the_gpu_each_says_why(site, built):
    install(site, built[OTHERS])
    done = run(site, "-c", "import aot_gemm; aot_gemm.preload()")
    assert (
        "ArchitectureError: no pack is for this GPU; install one that is: aot-gemm-sm110a: device 0 has" in done.stderr
    )


def change(folder, name, **values):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    host.record_build(folder)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"runtime": "0123"}, "the pack aot-gemm-sm90a 0.1.0+x has runtime 0123; aot-gemm 0.1.0 needs runtime"),
        ({"abi_version": 2}, "the pack aot-gemm-sm90a 0.1.0+x has abi_version 2; aot-gemm 0.1.0 needs abi_version 1"),
    ],
)
def test_a_pack_of_another_build_is_refused(site, built, values, expected):
    change(install(site, built[OURS]), "pack.json", **values)
    done = run(site, "-c", "import aot_gemm; aot_gemm.info()")
    assert f"PackError: {expected}" in done.stderr
    assert "install both from one, or remove the pack: pip uninstall aot-gemm-sm90a" in done.stderr


def test_a_pack_that_is_installed_twice_is_refused(site, built, tmp_path):
    install(site, built[OURS])
    install(tmp_path / "other", built[OURS], "0.2.0+y")
    done = run(site, "-c", "import aot_gemm; aot_gemm.info()", also=[tmp_path / "other"])
    assert "PackError: the pack aot-gemm-sm90a is installed twice: 0.1.0+x in " in done.stderr
    assert "remove one: pip uninstall aot-gemm-sm90a" in done.stderr


def test_a_damaged_pack_is_named(site, built):
    folder = install(site, built[OURS])
    with next(folder.glob("lib*.so.*")).open("ab") as file:
        file.write(b"\0")
    done = run(site, "-c", "import aot_gemm; aot_gemm.info()")
    assert "CorruptLibraryError: " in done.stderr
    assert "libaot_gemm_sm90a.so.1 has" in done.stderr
    done = run(site, "-c", "import aot_gemm; aot_gemm.check()")
    assert "libaot_gemm_sm90a.so.1 has" in done.stderr


def test_a_pack_without_its_folder_is_refused(site, built):
    shutil.rmtree(install(site, built[OURS]))
    done = run(site, "-c", "import aot_gemm; aot_gemm.info()")
    assert "PackError: the pack aot-gemm-sm90a 0.1.0+x has no folder" in done.stderr


def test_a_whole_wheel_takes_no_pack(package):
    done = run(Path(package.__file__).parents[1], "-m", "aot_gemm")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("kernels in the package itself, ")
