"""Packs over the recorder: how functions without kernels find one, which answers, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aot.core.element import ElementType
from aot.core.operation import Operation
from aot.package.build import read_templates, write
from aot.package.file_set import FileSet
from aot.package.pack import PackFor, render_api, render_pack
from aot.package.render import library_name
from tests.golden.manifest import golden_manifest
from tests.runtime import host
from tests.runtime.rows import with_rows

ROOT = Path(__file__).parents[2]
OURS, OTHERS, MINE = "aot-gemm-sm90a", "aot-gemm-sm110a", "zz-gemm"
WIDE, HALF = "aot-gemm-sm90a-wide", "aot-gemm-sm90a-half"
"""Packs for the recorder's GPU, for another, and of a user, which by its name would come last; one of more operations,
and one of float16 alone.

The others have products of bfloat16 alone, whose tables have sizes such as 16 x 4096 x 4096."""

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

CALLS = """
import ctypes, sys
import pytest
import aot_gemm
from tests.runtime.exchange import Framework
from tests.runtime.tensors import FLOAT16, install_cupy

framework, cupy = Framework(), install_cupy(pytest.MonkeyPatch(), 0x8880)
libraries = {path.split("/")[-2]: ctypes.CDLL(path) for path in sys.argv[1:]}

def linear(tensor, m, n, k, **options):
    aot_gemm.linear(tensor((m, k), **options), tensor((n, k), **options), out=tensor((m, n), **options))

CALLS = {
    "an untuned size": lambda tensor: linear(tensor, 7, 17, 65),
    "a tuned size": lambda tensor: linear(tensor, 16, 4096, 4096),
    "another n": lambda tensor: linear(tensor, 16, 8192, 4096),
    "float16": lambda tensor: linear(tensor, 7, 16, 64, dtype=FLOAT16),
    "rms_norm": lambda tensor: aot_gemm.rms_norm(tensor((4, 64)), tensor((64,)), eps=1e-5, out=tensor((4, 64))),
}
PLANS = {
    "an untuned size": lambda: aot_gemm.plan(7, 17, 65),
    "a tuned size": lambda: aot_gemm.plan(16, 4096, 4096),
    "another n": lambda: aot_gemm.plan(16, 8192, 4096),
    "float16": lambda: aot_gemm.plan(7, 16, 64, "float16"),
    "rms_norm": lambda: aot_gemm.plan_rows("rms_norm", 4, 64),
}
for name, call in CALLS.items():
    for tensor in (cupy.ndarray, framework.Tensor):
        for library in libraries.values():
            library.recorder_reset()
        try:
            call(tensor)
        except aot_gemm.UnsupportedError as error:
            print(name, "| refused:", error)
            continue
        by = [x for x, library in libraries.items() if library.recorder_num_fake() or library.recorder_num_rows()]
        print(name, "|", *by, "|", PLANS[name]().pack)
print(*aot_gemm.info().packs)
aot_gemm.preload()
"""

TWO_GPUS = """
import ctypes, sys
import pytest
from tests.runtime.exchange import Framework
from tests.runtime.tensors import CUDA, FLOAT16, install_cupy

framework, cupy = Framework(), install_cupy(pytest.MonkeyPatch(), 0x8880)
libraries = {path.split("/")[-2]: ctypes.CDLL(path) for path in sys.argv[1:]}
for library in libraries.values():
    library.recorder_set_capability_of(1, 11, 0, 3)
    library.recorder_set_capability_of(2, 8, 0, 3)

import aot_gemm

def linear(tensor, gpu, **options):
    options |= {"device": (CUDA, gpu)}
    aot_gemm.linear(tensor((7, 64), **options), tensor((16, 64), **options), out=tensor((7, 16), **options))

for gpu in (0, 1, 0, 2):
    for tensor in (cupy.ndarray, framework.Tensor):
        for dtype in ({}, {"dtype": FLOAT16}):
            for library in libraries.values():
                library.recorder_reset()
            try:
                linear(tensor, gpu, **dtype)
            except aot_gemm.AotGemmError as error:
                print(gpu, *dtype, "|", type(error).__name__, error)
                continue
            print(gpu, *dtype, "|", *(x for x, library in libraries.items() if library.recorder_num_fake()))
info = aot_gemm.info()
print("info |", info.package, info.arch, *info.packs)
print("plan |", aot_gemm.plan(16, 4096, 4096).pack)
for gpu in (0, 1):
    aot_gemm.preload(gpu)
    print("loaded", gpu, "|", *(x.folder.directory.split("/")[-1] for x in aot_gemm._library.here(gpu)))
try:
    aot_gemm.preload(2)
except aot_gemm.ArchitectureError as error:
    print("preload | refused:", error)
"""


def manifest_of(name, arch="sm_90a"):
    if name == HALF:
        return replace(host.random_manifest(2, [Operation.of(ElementType.FLOAT16)]), package=name, arch=arch)
    if name == WIDE:
        return replace(with_rows(host.random_manifest()), package=name, arch=arch)
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
    for name, arch in ((OURS, "sm_90a"), (OTHERS, "sm_110a"), (MINE, "sm_90a"), (WIDE, "sm_90a"), (HALF, "sm_90a")):
        manifest, folder = manifest_of(name, arch), tmp_path_factory.mktemp(name)
        library = host.compile_library(manifest, folder / "project", binding=True)
        write(python_of(render_pack(manifest, PackFor("aot-gemm"), read_templates())), folder / "pack")
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
    assert lines[3].endswith(": answers here, for what the ones before it do not")
    assert lines[4] == f"bfloat16 m 16 n 4096 k 4096, layout kk, on sm_90a, by the table of h200 of {MINE}"


def calls(site, *folders):
    """Make some calls; return which folder's library launched each, and which pack was planned, by the call's name."""
    libraries = [next(folder.glob("lib*.so.*")) for folder in folders]
    done = run(site, "-c", CALLS, *libraries)
    assert done.returncode == 0, done.stderr
    *lines, packs = done.stdout.splitlines()
    found = {}
    for line in lines:
        name, *rest = line.split(" | ")
        assert found.setdefault(name, rest) == rest  # of both ways that tensors are handed over
    return found, packs.split()


def by(pack):
    return [pack.replace("-", "_"), pack]


def test_what_one_pack_has_no_kernels_for_is_computed_by_the_next(site, built):
    found, packs = calls(site, install(site, built[MINE]), install(site, built[OTHERS]), install(site, built[WIDE]))
    assert packs == [MINE, WIDE]
    mine = ("an untuned size", "a tuned size", "another n")
    assert found == dict.fromkeys(mine, by(MINE)) | {"float16": by(WIDE), "rms_norm": by(WIDE)}


def test_a_pack_that_answers_for_tuned_sizes_leaves_the_others_to_the_next(site, built):
    mine, wide = install(site, built[MINE]), install(site, built[WIDE])
    change(mine, "pack.json", answers="tuned")
    found, packs = calls(site, mine, wide)
    assert packs == [MINE, WIDE]
    others = ("an untuned size", "another n", "float16", "rms_norm")
    assert found == dict.fromkeys(others, by(WIDE)) | {"a tuned size": by(MINE)}
    done = run(site, "-m", "aot_gemm")
    assert done.stdout.splitlines()[1].endswith(": answers here for tuned sizes")


def test_a_pack_that_answers_for_tuned_sizes_has_the_rest_too_where_no_other_does(site, built):
    mine, half = install(site, built[MINE]), install(site, built[HALF])
    change(mine, "pack.json", answers="tuned")
    found, packs = calls(site, mine, half)
    assert packs == [MINE, HALF]
    (refused,) = found.pop("rms_norm")
    assert refused.startswith("refused: rms_norm: this wheel has no kernels for bf16_rms_norm; of rms_norm it has none")
    assert found == dict.fromkeys(found, by(MINE)) | {"float16": by(HALF)}


def test_each_gpu_of_two_architectures_is_served_by_the_packs_for_its_own(site, built):
    """In one process: `aot-gemm-sm90a-half` has float16 for the first GPU, and nobody for the second or the third."""
    ours, others, half = (install(site, built[x]) for x in (OURS, OTHERS, HALF))
    done = run(site, "-c", TWO_GPUS, *(next(x.glob("lib*.so.*")) for x in (ours, others, half)))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    of = dict.fromkeys(lines[:8])
    assert list(of)[:2] == ["0 | aot_gemm_sm90a", "0 dtype | aot_gemm_sm90a_half"]
    assert list(of)[2] == "1 | aot_gemm_sm110a"
    assert list(of)[3].startswith("1 dtype | UnsupportedError linear: this wheel has no kernels for fp16")
    assert len(of) == 4  # of both ways that tensors are handed over
    assert lines[8:12] == ["0 | aot_gemm_sm90a", "0 dtype | aot_gemm_sm90a_half"] * 2
    assert all("ArchitectureError device 2 has compute capability 8.0; these kernels are" in x for x in lines[12:16])
    assert lines[16:20] == [
        f"info | {OURS} sm_90a {OURS} {HALF} {OTHERS}",
        f"plan | {OURS}",
        "loaded 0 | aot_gemm_sm90a aot_gemm_sm90a_half",
        "loaded 1 | aot_gemm_sm110a",
    ]
    assert lines[20].startswith("preload | refused: device 2 has compute capability 8.0; these kernels are sm_90a")


def test_the_hash_of_choices_is_of_all_packs_in_their_order(site, built):
    ask = "import aot_gemm; print(aot_gemm.info().choices_sha256)"
    install(site, built[OURS])
    alone = run(site, "-c", ask).stdout
    mine = install(site, built[MINE])
    both = run(site, "-c", ask).stdout
    assert run(site, "-c", ask).stdout == both
    change(mine, "pack.json", answers="tuned")
    limited = run(site, "-c", ask).stdout
    assert len({alone, both, limited}) == 3
    assert all(len(x) == 65 for x in (alone, both, limited))


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
