"""Real wheels of both targets: built, inspected, installed where nothing else is, and asked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pip
import pytest
from deflate import deflate_compress
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

from aot.compile.object_file import cubins
from aot.core.errors import PackageError
from aot.core.target import load_target
from aot.package.build import build_library, build_wheel, read_templates
from aot.package.contents import licence_of
from aot.package.link_order import link_order
from aot.package.render import library_name
from tests.compiling import EVERY
from tests.objects import small_manifest, small_wheel
from tests.package.userland import aarch64_python

pytestmark = pytest.mark.package

MAX_WRITTEN_BYTES = 2 << 20
MAX_THREAD_BYTES = 16 << 10
"""What docs/safety.md says that the library holds: of the process, and of each thread that calls it."""

ASK = """
import sys, time
start = time.perf_counter()
import aot_gemm
took = time.perf_counter() - start
assert "libaot_gemm" not in open("/proc/self/maps").read()
plan = aot_gemm.plan(16, 4096, 4096)
print(plan.tier, plan.bucket, plan.kernel, plan.time_us, sep="|")
print(aot_gemm.explain(16, 4096, 4096))
print(aot_gemm.info())
print(aot_gemm.check())
try:
    aot_gemm.preload()
except aot_gemm.NoGpuError as error:
    print("NoGpuError:", error)
from aot_gemm import _library
print(sorted(name for name in ("linear", "matmul") if _library.binding()[name] is not None))
print(f"import {took * 1e3:.1f} ms")
"""


@pytest.fixture(scope="module", params=["h200", "thor"])
def target(request):
    return load_target(request.param)


@pytest.fixture(scope="module")
def wheels():
    """Give a target's wheel, which is built at most once."""
    return lambda target: small_wheel(target.name)


def read_elf(wheel, name):
    with zipfile.ZipFile(wheel) as archive:
        return ELFFile(BytesIO(archive.read(f"aot_gemm/{name}")))


def test_members_are_as_small_as_libdeflate_makes_them_and_kernels_in_the_order_of_likeness(wheels, target):
    manifest, objects = small_manifest(target.name)
    with zipfile.ZipFile(wheels(target)) as archive:
        found = {x.filename: (x.compress_size, archive.read(x)) for x in archive.infolist()}
    library = f"aot_gemm/{library_name(manifest)}"
    for name in (library, "aot_gemm/manifest.json"):
        size, content = found[name]
        assert size == len(deflate_compress(content, 12))
    contents = {x.name: objects[x.name].read_bytes() for x in manifest.with_objects}
    assert len(contents) > 1
    images = [image for name in link_order(contents) for image in cubins(contents[name])]
    # What lies between an image and the next counts as the first one's.
    assert all(x.startswith(y) for x, y in zip(cubins(found[library][1]), images, strict=True))


def tags(elf, name):
    attribute = {"DT_NEEDED": "needed", "DT_RUNPATH": "runpath", "DT_SONAME": "soname"}[name]
    return {vars(tag)[attribute] for tag in elf.get_section_by_name(".dynamic").iter_tags(name)}


def check_answers(text, target):
    manifest, _ = small_manifest(target.name)
    lines = text.splitlines()
    assert lines[0] == f"tuned|(16, 4096, 4096)|{manifest.kernels[-1].name}|9.0"
    assert lines[1] == f"bfloat16 m 16 n 4096 k 4096, layout kk, on {target.arch}, by the table of {target.name}"
    assert "  time       9.00 us for this problem, measured on NVIDIA H200, 2026-11-20" in lines
    assert f"aot-gemm 0.1.0: {len(manifest.kernels)} kernels for {target.arch} (target {target.name})" in lines
    assert any(re.fullmatch(r"/.*/aot_gemm: [0-9]+ files, [0-9,]+ bytes, each as it was built", x) for x in lines)
    assert any(x.startswith("NoGpuError: no usable NVIDIA GPU: ") and f"a {target.arch} GPU" in x for x in lines)
    assert "['linear', 'matmul']" in lines


def test_tag_machine_and_size(wheels, target):
    wheel = wheels(target)
    assert wheel.name == f"aot_gemm-0.1.0-py3-none-{target.platform_tag}.whl"
    assert wheel.stat().st_size < 1_000_000
    machine = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[target.machine]
    assert read_elf(wheel, "libaot_gemm.so.1")["e_machine"] == machine


LICENCES = {
    "aot": b"Apache License",
    "NVIDIA-CUTLASS-DSL": b"NVIDIA Software License Agreement",
    "NVIDIA-CUDA-Runtime": b"NVIDIA",
    "DLPack": b"Apache License",
    "zig": b"The MIT License (Expat)",
    "glibc": b"GNU C Library",
}
"""What stands near the start of each licence that every wheel carries."""
OF_TARGET = {
    "h200": {"quack": b"Apache License"},
    "thor": {"NVIDIA-CUTLASS": b"SPDX-License-Identifier: BSD-3-Clause"},
}
"""By target, those of the libraries that its kernels are made of."""


def test_the_licences_of_all_that_is_inside_go_along(wheels, target):
    expected = LICENCES | OF_TARGET[target.name]
    with zipfile.ZipFile(wheels(target)) as archive:
        folder = f"{wheels(target).name.split('-py3')[0]}.dist-info/licenses/licenses/"
        texts = {x.removeprefix(folder): archive.read(x) for x in archive.namelist() if x.startswith(folder)}
        metadata = archive.read(folder.replace("licenses/licenses/", "METADATA")).decode()
    assert set(texts) == {f"{name}.txt" for name in expected}
    assert [name for name, head in expected.items() if head not in texts[f"{name}.txt"][:400]] == []
    families = {kernel.candidate.family for kernel in small_manifest(target.name)[0].kernels}
    assert f"License-Expression: {licence_of(families)}\n" in metadata
    assert sorted(re.findall("^License-File: (.*)$", metadata, re.MULTILINE)) == sorted(f"licenses/{x}" for x in texts)


def test_the_examples_go_along(wheels, target):
    with zipfile.ZipFile(wheels(target)) as archive:
        example, layer = (archive.read(f"aot_gemm/examples/{name}") for name in ("multiply.c", "moe.py"))
        lists = archive.read("aot_gemm/examples/CMakeLists.txt").decode()
        record = json.loads(archive.read("aot_gemm/_build.json"))
    templates = read_templates()
    assert (example, layer) == (templates["examples/multiply.c"], templates["python/aot_gemm/examples/moe.py"])
    assert record["examples/moe.py"]["num_bytes"] == len(layer)
    assert "find_package(aot_gemm REQUIRED)" in lists


def test_the_library_needs_libc_alone_and_is_named_by_package_and_abi(wheels, target):
    library = read_elf(wheels(target), "libaot_gemm.so.1")
    assert tags(library, "DT_SONAME") == {"libaot_gemm.so.1"}
    assert all(re.match(r"(lib(c|dl|rt|pthread|m)\.so\.\d|ld-linux-)", x) for x in tags(library, "DT_NEEDED"))
    assert tags(library, "DT_RUNPATH") == set()
    versions = library.get_section_by_name(".gnu.version_d").iter_versions()
    assert {x.name for _, names in versions for x in names} == {"libaot_gemm.so.1", "aot_gemm_1"}


def test_the_library_asks_python_for_what_is_declared_and_exports_its_api(wheels, target):
    header = read_templates()["src/python_api.h"].decode()
    names = {False: set(), True: set()}
    for symbol in read_elf(wheels(target), "libaot_gemm.so.1").get_section_by_name(".dynsym").iter_symbols():
        names[symbol["st_shndx"] != "SHN_UNDEF"].add(symbol.name)
    asked = {x for x in names[False] if re.match("_?Py", x)}
    assert asked == set(re.findall(r"^AOT_GEMM_OF_PYTHON .*?(\w+)[(;]", header, re.MULTILINE))
    headers = [read_templates()[f"include/aot_gemm{name}.h"].decode() for name in ("", "_rows", "_memory", "_tuning")]
    functions = [set(re.findall(r"^AOT_GEMM_API .*?(aot_(?:gemm|rows)_\w+)\(", x, re.MULTILINE)) for x in headers]
    api, tuning = set().union(*functions[:-1]), functions[-1]
    assert {"aot_gemm_launch", "aot_gemm_abi_version"} < api
    assert "aot_gemm_launch_kernel" in tuning - api
    xla = set(re.findall(r"(aot_gemm_xla_\w+)\(", read_templates()["src/xla_call.cc"].decode()))
    assert xla >= {"aot_gemm_xla_linear", "aot_gemm_xla_matmul"}
    assert names[True] - {"aot_gemm_1"} == api | tuning | xla | {"aot_gemm_python_bind"}


def test_the_library_holds_little_memory_that_is_written(wheels, target):
    """Where CPU and GPU share memory too, this is all that it takes of its own beside its file, and it never grows."""
    library = read_elf(wheels(target), "libaot_gemm.so.1")
    sections = [x for x in library.iter_sections() if x["sh_flags"] & SH_FLAGS.SHF_WRITE]
    num_bytes = {
        is_thread: sum(x["sh_size"] for x in sections if bool(x["sh_flags"] & SH_FLAGS.SHF_TLS) is is_thread)
        for is_thread in (True, False)
    }
    assert 0 < num_bytes[True] <= MAX_THREAD_BYTES
    assert 0 < num_bytes[False] <= MAX_WRITTEN_BYTES


def test_the_wheel_carries_the_headers_of_its_users_alone(wheels, target):
    with zipfile.ZipFile(wheels(target)) as archive:
        headers = [f"aot_gemm/include/{name}.h" for name in ("aot_gemm", "aot_gemm_memory", "aot_gemm_rows")]
        assert [x for x in archive.namelist() if x.endswith(".h")] == headers


@pytest.mark.walk
@pytest.mark.parametrize("name", ["thor", "h200"] if EVERY else ["thor"])
def test_equal_inputs_give_equal_wheels(wheels, name, tmp_path, monkeypatch):
    """All of it is compiled again: the objects that are kept do not count."""
    monkeypatch.setattr("aot.package.build.KEPT_OBJECTS", str(tmp_path / "objects"))
    target = load_target(name)
    manifest, objects = small_manifest(name)
    again = build_wheel(manifest, objects, tmp_path / "dist", target)
    assert again.read_bytes() == wheels(target).read_bytes()


def test_the_wheel_holds_no_path_of_the_build_machine(wheels, target):
    with zipfile.ZipFile(wheels(target)) as archive:
        content = b"".join(archive.read(x) for x in archive.namelist())
    assert str(Path.home() / "x")[:-1].encode() not in content
    assert b"aot-wheel-" not in content
    assert str(Path(__file__).parents[2]).encode() not in content


@pytest.mark.walk
def test_a_bundles_library_loads_on_this_machine(tmp_path):
    manifest, objects = small_manifest("h200")
    library = build_library(manifest, objects, tmp_path, load_target("h200"))
    code = f"import ctypes; print(ctypes.CDLL({str(library)!r}).aot_gemm_num_kernels())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(manifest.kernels)


# No compiler takes a function of the one name, and no linker finds one of the other: that fails when all is compiled.
@pytest.mark.parametrize("name", ["static_assert", "no_such_symbol"] if EVERY else ["static_assert"])
def test_a_failed_build_leaves_nothing(tmp_path, name):
    manifest, objects = small_manifest("h200")
    broken = replace(manifest.kernels[0], entry_symbol=name)
    manifest = replace(manifest, kernels=(broken, *manifest.kernels[1:]))
    with pytest.raises(
        PackageError, match=rf"(?s)building the wheel failed with exit code 1\n  command: .*error: .*{name}"
    ):
        build_wheel(manifest, objects, tmp_path / "dist", load_target("h200"))
    assert not (tmp_path / "dist").exists()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the wheel is for x86-64")
def test_the_x86_wheel_works_where_nothing_else_is(wheels, tmp_path):
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    install = ["install", "-q", "--no-index", "--no-compile", wheels(load_target("h200"))]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True, cwd=tmp_path)
    check_answers(done.stdout, load_target("h200"))


def test_the_aarch64_wheel_works_on_aarch64(wheels, tmp_path):
    """The AArch64 Python's own pip judges the tag and installs; there is no NVIDIA driver."""
    python, target = aarch64_python(), load_target("thor")
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "pip").symlink_to(Path(pip.__file__).parent)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path / "pip")}
    install = ["install", "--no-index", "--no-compile", "--target", tmp_path / "site"]
    subprocess.run([*python, "-m", "pip", *install, wheels(target)], check=True, env=environment)
    environment["PYTHONPATH"] = str(tmp_path / "site")
    done = subprocess.run([*python, "-c", ASK], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    check_answers(done.stdout, target)
