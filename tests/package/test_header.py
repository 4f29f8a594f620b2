"""The header and the example, through a C compiler."""

from __future__ import annotations

import subprocess

import pytest

from aot.package import fetch_toolchain, read_templates
from aot.target import load_target

pytestmark = pytest.mark.package


def test_the_header_is_plain_c(tmp_path):
    (tmp_path / "aot_gemm.h").write_bytes(read_templates()["include/aot_gemm.h"])
    (tmp_path / "x.c").write_text('#include "aot_gemm.h"\nint f(void) { return (int)sizeof(aot_gemm_problem_t); }\n')
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-c"]
    for compiler, standard in (("gcc", "c99"), ("g++", "c++11")):
        language = ["-x", "c++"] if compiler == "g++" else []
        command = [compiler, f"-std={standard}", *strict, *language, "x.c", "-o", "x.o"]
        subprocess.run(command, check=True, cwd=tmp_path)


def test_the_example_compiles(tmp_path):
    templates = read_templates()
    (tmp_path / "aot_gemm.h").write_bytes(templates["include/aot_gemm.h"])
    (tmp_path / "multiply.c").write_bytes(templates["examples/multiply.c"])
    cuda = fetch_toolchain(load_target("h200")).cuda_dir / "include"
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", f"-isystem{cuda}", "-c", "multiply.c", "-o", "x.o"]
    subprocess.run(command, check=True, cwd=tmp_path)
