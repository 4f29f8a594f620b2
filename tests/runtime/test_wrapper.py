"""The C++ wrapper, aot_gemm.hpp: what it asks of the library, and what it gives back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from aot.core.target import load_target
from aot.package.build import read_templates
from tests import native
from tests.compiling import some
from tests.equivalence import programs
from tests.package.userland import aarch64_emulator
from tests.runtime import host

PROGRAM = Path(__file__).with_name("wrapper.cc")
NO_EXCEPTIONS = ["-fno-exceptions", "-fno-rtti"]
FLAGS = ["-O1", "-Wall", "-Wextra", "-Werror", "-pedantic"]


def build(manifest, directory, compiler, *options):
    """Build the program with the library over the recorder in it; return its path.

    The options are the program's, which has the wrapper: the library is compiled as other tests compile it, once.
    """
    words = host.library_sources(manifest, directory)
    includes = [Path(x[2:]) for x in words if isinstance(x, str)]
    sources, flags = [x for x in words if not isinstance(x, str)], [x for x in host.FLAGS if x != "-shared"]
    if compiler != native.GCC:
        sources, flags = native.in_groups(sources, directory), programs.FLAGS
        includes.append(host.RECORDER.parent)
    library = [native.object_of(x, compiler, flags, includes) for x in sources]
    flags, links = [*FLAGS, *options], ["-Wl,-s", "-pthread"]
    return native.link([*library, PROGRAM], directory / "wrapper", compiler, flags, links, includes)


def lines(program, *emulator):
    done = subprocess.run([*emulator, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def said(manifest, tmp_path_factory):
    return lines(build(manifest, tmp_path_factory.mktemp("wrapper"), native.GCC, "-std=c++17"))


def test_views_flags_stream_and_device_reach_the_kernel(said, manifest, library):
    names = {x.name for x in manifest.kernels}
    assert said[0] == "extents: 64 4096 4096"
    assert said[1].removeprefix("kernel: ") in names
    operands = "a 10000000000 (64, 4096) b 20000000000 (4096, 4096) d 30000000000 (64, 4096)"
    launched = [x for x in said if x.startswith("launched: " + operands)]
    assert [x.split()[-1] for x in launched[:3]] == ["0", "0", "3"]
    assert all(" stream 50 " in x for x in launched)
    early = [re.search(r"early (-?\d)", x)[1] for x in launched[:3]]
    problem = host.problem(64, 4096, 4096)
    kernel = manifest.kernels[library.select(problem)[1].kernel]
    assert early == (["0", "1", "0"] if "prefetch_b" in kernel.signature else ["-1"] * 3)


def after(said, line, count=1):
    index = said.index(line)
    return said[index + 1 : index + 1 + count]


def test_a_transposed_b_and_a_column_major_d_are_stated(said):
    (launched,) = after(said, "transposed: fine")
    # D's transpose is computed: what is A (64, 128) is B as it lies.
    assert "a 20000000000 (64, 128) b 10000000000 (8, 128) d 30000000000 (64, 8)" in launched


def test_a_bias_is_stated_or_missed(said):
    (missed,) = (x for x in said if x.startswith("without bias: "))
    assert missed.startswith("without bias: error 4 the bias of 64 elements has the stride 0; expected 1")
    assert after(said, "with bias: fine")[0].startswith("launched: a 10000000000 (16, 64)")


def test_what_needs_no_problem_is_there(said):
    assert {"synchronize: fine", "preload: fine", "abi: fine"} <= set(said)
    assert next(x for x in said if x.startswith("table: ")).startswith("table: h200, ")
    assert "choices: 64 digits" in said


def test_a_workspace_grows_moves_and_is_freed(said):
    needed = next(x for x in said if x.startswith("needed: ")).split()[1]
    assert int(needed) > 0
    assert after(said, "grows: fine") == [f"held: {needed}"]
    assert after(said, "again: fine") == [f"held: {needed}"]
    assert {f"moved: 1 1 {needed}", "assigned: 0", "freed: 0", "asked: 1"} <= set(said)
    launched = after(said, "freed: 0", 2)
    floats = int(needed) // 4
    assert all(f"workspace {floats} 700000 stream 50" in x for x in launched)
    assert f"workspace {floats} 700000 stream 50" in after(said, "asked: 1")[0]
    assert f"out of memory: error 8 there is no memory for a workspace of {needed} bytes" in said


def test_exceptions_end_at_the_wrapper(said):
    thrown = [x for x in said if x.startswith("throws: ")]
    given_null = next(x for x in said if x.startswith("null: "))
    assert thrown[0] == given_null.replace("null: ", "throws: ")
    assert thrown[0].startswith("throws: error 8 ")
    assert thrown[1].startswith("throws: error 8 there is no memory for a workspace of ")
    assert len(thrown) == 2


@pytest.mark.parametrize(
    "line",
    [
        r"tag: error 2 there is no operation \"bf17\" in this library; it has bf16, .*",
        r"k: error 3 A is \(4, 64\), B \(64, 32\) and D \(4, 64\); expected D \(4, 64\) and one k; .*",
        r"d: error 3 A is \(4, 64\), B \(32, 64\) and D \(32, 4\); expected D \(4, 32\) and one k; .*",
        r"odd: error 3 B has 33 rows; expected an even number with a gate",
        r"gated: 16",
        r"stride: error 4 .*",
        r"cuda: error 7 launching kernel .* failed on device 0: recorded error \(CUDA error 719\)",
        r"too small: error 8 .*",
    ],
)
def test_errors_are_values_with_the_librarys_text(said, line):
    assert [x for x in said if re.fullmatch(line, x)], said


@pytest.mark.parametrize(
    "line",
    [
        "stack: 3 groups, offsets 60 1, b 20000000000 step 32768, separate 0, index 0 of 0, steps 128 7, factors 0 0",
        "separate: 3 groups, offsets 60 1, b 0 step 0, separate 1, index 0 of 0, steps 0 0, factors 0 0",
        "apart: 3 groups, offsets 60 1, b 0 step 0, separate 1, index 0 of 0, steps 128 0, factors 0 1",
        "gathered: 3 groups, offsets 60 1, b 20000000000 step 0, separate 0, index 70 of 9, steps 0 0, factors 0 0",
    ],
)
def test_groups_are_stated(said, line):
    assert line in said


def without_throwing(said):
    return [x for x in said if not x.startswith("throws: ")]


@pytest.mark.parametrize("standard", some(["c++17", "c++20", "c++23"], 2))
def test_every_standard_and_no_exceptions_are_served(manifest, said, tmp_path, standard):
    program = build(manifest, tmp_path, native.GCC, f"-std={standard}", *NO_EXCEPTIONS)
    assert lines(program) == without_throwing(said)


@pytest.mark.walk
@pytest.mark.parametrize("target", ["thor"])
def test_the_wheels_compiler_builds_the_same(manifest, said, tmp_path, target):
    device = load_target(target)
    emulator = aarch64_emulator() if device.machine == "aarch64" else []
    program = build(manifest, tmp_path, native.zig(device), "-std=c++17", *NO_EXCEPTIONS)
    assert lines(program, *emulator) == without_throwing(said)


def test_the_headers_stand_by_themselves(tmp_path):
    for name in ("aot_gemm.h", "aot_gemm_rows.h", "aot_gemm.hpp", "aot_gemm_view.hpp"):
        (tmp_path / name).write_bytes(read_templates()[f"include/{name}"])
    for number in (1, 2):  # included in two files of a program, it defines nothing twice
        (tmp_path / f"{number}.cc").write_text(f'#include "aot_gemm.hpp"\nint f{number}() {{ return AOT_GEMM_OK; }}\n')
    (tmp_path / "main.cc").write_text("int f1();\nint f2();\nint main() { return f1() + f2(); }\n")
    command = ["g++", "-std=c++17", *FLAGS, "1.cc", "2.cc", "main.cc", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 0
