from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from aot.core.errors import DependencyError, OutputError, PackageError
from aot.core.process import run
from aot.core.target import load_target
from aot.package import build as package
from aot.package import wheel_file
from aot.package.file_set import FileSet
from tests.golden.manifest import golden_manifest

H200 = load_target("h200")


def test_write_writes_the_tree(tmp_path):
    files = FileSet()
    files.add("a/b/c.txt", b"1")
    package.write(files, tmp_path)
    assert (tmp_path / "a/b/c.txt").read_bytes() == b"1"


def test_a_move_leaves_nothing_partial(tmp_path):
    source = tmp_path / "x.whl"
    source.write_bytes(b"wheel")
    assert package._move_into(source, tmp_path / "dist").read_bytes() == b"wheel"
    with pytest.raises(OutputError, match=r"cannot write .*/absent: No such file or directory; give another folder"):
        package._move_into(tmp_path / "absent", tmp_path / "dist")
    assert [x.name for x in (tmp_path / "dist").iterdir()] == ["x.whl"]


def test_objects_must_be_those_of_the_manifest(tmp_path):
    manifest = golden_manifest()
    with pytest.raises(PackageError, match=f"no object for kernel {manifest.kernels[0].name}"):
        package._write_project(FileSet(), manifest.kernels, {}, H200, tmp_path / "one", sorted)
    path = tmp_path / "x.o"
    path.write_bytes(b"other")
    objects = {x.name: path for x in manifest.kernels}
    with pytest.raises(PackageError, match=r"has sha256 [0-9a-f]{64}; the manifest says 0{64}"):
        package._write_project(FileSet(), manifest.kernels, objects, H200, tmp_path / "two", sorted)


def test_objects_are_linked_in_the_order_that_is_given(tmp_path):
    kernels, objects = [], {}
    for kernel in golden_manifest().kernels:
        objects[kernel.name] = tmp_path / f"{kernel.name}.of"
        objects[kernel.name].write_bytes(kernel.name.encode())
        kernels.append(replace(kernel, object_sha256=hashlib.sha256(kernel.name.encode()).hexdigest()))
    assert len(kernels) > 1

    def reversed_order(contents):
        assert contents == {x: path.read_bytes() for x, path in objects.items()}
        return sorted(contents, reverse=True)

    package._write_project(FileSet(), kernels, objects, H200, tmp_path, reversed_order)
    names = (tmp_path / "objects/order.txt").read_text().split()
    assert names == sorted((f"{x.name}.o" for x in kernels), reverse=True)
    assert {x.name for x in (tmp_path / "objects").glob("*.o")} == {*names}


def test_the_target_must_be_the_manifests():
    message = "the manifest is for sm_90a on manylinux_2_28_x86_64, target thor is sm_110a on manylinux_2_28_aarch64"
    with pytest.raises(PackageError, match=re.escape(message)):
        package._check_target(golden_manifest(), load_target("thor"))


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_the_modes_of_a_project_do_not_depend_on_the_caller(tmp_path, umask):
    files = FileSet()
    files.add("a/b.txt", b"1")
    before = os.umask(umask)
    try:
        package.write(files, tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "a/b.txt").stat().st_mode & 0o777 == 0o644


def test_a_folder_that_is_read_only_is_an_error(tmp_path):
    source = tmp_path / "x.whl"
    source.write_bytes(b"wheel")
    with pytest.raises(OutputError, match=r"cannot write /proc/dist/x.whl: No such file or directory"):
        package._move_into(source, Path("/proc/dist"))


@pytest.mark.parametrize("name", ["ninja", "ziglang"])
def test_a_tool_that_is_missing_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    find = {"ninja": package._ninja, "ziglang": lambda: package._toolchain_file(H200)}[name]
    with pytest.raises(DependencyError, match=f"{name}.*`make setup` installs what is missing"):
        find()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("h200", ["x86_64-linux-gnu.2.28", "-mcpu=x86_64_v2"]),
        ("thor", ["aarch64-linux-gnu.2.28", "-mcpu=generic"]),
    ],
)
def test_whatever_is_linked_is_stripped_and_needs_no_cpp_library(target, words):
    text = package._toolchain_file(load_target(target))
    assert re.findall(r"CMAKE_(\w+)_LINKER_FLAGS_INIT (.*)\)", text) == [(x, "-nostdlib++") for x in ("EXE", "SHARED")]
    (compiler,) = re.findall(r"CMAKE_CXX_COMPILER (.*)\)", text)
    machine, cpu = words
    assert f"set(CMAKE_CXX_COMPILER_TARGET {machine})\n" in text
    assert shlex.split(compiler)[1:] == ["c++", cpu, "-Wl,-s"]


def test_ninjas_steps_are_counted(capsys):
    with package._progress("link 3 kernels", shown=True) as see:
        for line in ("-- Configuring\n", "[1/4] Building\n", "noise\n", "[3/4] Building\n"):
            see(line)
    assert "| 4/4 [" in capsys.readouterr().err
    with package._progress("link 3 kernels", shown=False) as see:
        see("[1/4] Building\n")
    assert capsys.readouterr().err == ""


def test_the_build_environment_has_no_flags_of_the_caller(monkeypatch, tmp_path):
    monkeypatch.setenv("CXXFLAGS", "-O0")
    monkeypatch.setenv("SKBUILD_CMAKE_ARGS", "-DX=Y")
    environment = package._environment(H200.platform_tag, tmp_path / "cache", tmp_path / "scratch")
    assert not {"CXXFLAGS", "SKBUILD_CMAKE_ARGS"} & set(environment)
    assert environment["_PYTHON_HOST_PLATFORM"] == "manylinux_2_28_x86_64"


@pytest.mark.parametrize("given", [{}, {"ZIG_GLOBAL_CACHE_DIR": ""}, {"ZIG_GLOBAL_CACHE_DIR": "/zig"}])
def test_zigs_cache_is_below_ours_unless_it_is_given(monkeypatch, tmp_path, given):
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment = package._environment(H200.platform_tag, tmp_path / "cache", tmp_path / "scratch")
    expected = given.get("ZIG_GLOBAL_CACHE_DIR") or str(tmp_path / "cache" / "zig")
    assert environment["ZIG_GLOBAL_CACHE_DIR"] == expected
    assert environment["ZIG_LOCAL_CACHE_DIR"] == str(tmp_path / "scratch" / "zig")


def wheel_of(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_a_wheel_of_another_tag_is_refused(tmp_path):
    wheel = wheel_of(tmp_path / "aot_gemm-0.1.0-py3-none-linux_x86_64.whl", {})
    message = "py3-none-linux_x86_64.whl; expected aot_gemm-0.1.0-py3-none-manylinux_2_28_x86_64.whl"
    with pytest.raises(PackageError, match=message):
        package.inspect_wheel(wheel, golden_manifest(), H200)


def test_a_wheel_without_its_library_is_refused(tmp_path):
    wheel = wheel_of(tmp_path / "aot_gemm-0.1.0-py3-none-manylinux_2_28_x86_64.whl", {"aot_gemm/x": b""})
    with pytest.raises(PackageError, match=r"has no libaot_gemm\.so\.1; expected it in aot_gemm/"):
        package.inspect_wheel(wheel, golden_manifest(), H200)


@pytest.fixture(scope="module")
def host_library(tmp_path_factory):
    """Build a small library with the host's compiler: one function, and a call into libc of a known version."""
    directory = tmp_path_factory.mktemp("elf")
    source = directory / "x.c"
    source.write_text(
        "#include <stdlib.h>\nvoid *aot_gemm_f(void) { return malloc(1); }\nint other(void) { return 1; }\n"
    )
    library = directory / "libx.so.1"
    links = ["-Wl,-soname,libx.so.1", "-Wl,--no-as-needed", "-lm"]
    run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library), *links], "compiling")
    return library.read_bytes()


def test_a_library_is_refused_for_its_machine(host_library):
    with pytest.raises(PackageError, match=r"libx\.so\.1 is for EM_X86_64; expected EM_AARCH64"):
        package.inspect_library("libx.so.1", host_library, load_target("thor"))


def test_a_library_is_refused_for_what_it_exports(host_library, monkeypatch):
    with pytest.raises(
        PackageError, match=r"libx\.so\.1 exports 2 symbols, \['other'\] among them; expected aot_gemm_\*"
    ):
        package.inspect_library("libx.so.1", host_library, H200)
    monkeypatch.setattr(wheel_file, "_EXPORT_PREFIXES", ("",))
    package.inspect_library("libx.so.1", host_library, H200)


def test_a_library_is_refused_for_its_soname(host_library, monkeypatch):
    monkeypatch.setattr(wheel_file, "_EXPORT_PREFIXES", ("",))
    with pytest.raises(PackageError, match=r"liby\.so\.1 has the SONAME \['libx.so.1'\]; expected \['liby.so.1'\]"):
        package.inspect_library("liby.so.1", host_library, H200)


def test_a_library_is_refused_for_what_it_needs(host_library, monkeypatch):
    monkeypatch.setattr(wheel_file, "_EXPORT_PREFIXES", ("",))
    monkeypatch.setattr(wheel_file, "_LIBC_FAMILY", {"libc.so.6"})
    with pytest.raises(PackageError, match=r"libx\.so\.1 needs .*; remove libm\.so\.6"):
        package.inspect_library("libx.so.1", host_library, H200)


def test_a_library_is_refused_for_its_glibc(host_library, monkeypatch):
    monkeypatch.setattr(wheel_file, "_EXPORT_PREFIXES", ("",))
    with pytest.raises(PackageError, match=r"libx\.so\.1 needs GLIBC_2\.2\.5; expected GLIBC_2\.2 or older"):
        package.inspect_library("libx.so.1", host_library, replace(H200, glibc="2.2"))
