"""The header through a C compiler; the example linked to the library and run, on x86-64 and on AArch64."""

from __future__ import annotations

import re
import subprocess
import zipfile

import pytest

from aot.core.target import load_target
from aot.package.build import read_templates
from aot.package.toolchain import fetch_toolchain
from tests import native
from tests.objects import small_manifest, small_wheel
from tests.package.userland import aarch64_emulator

pytestmark = pytest.mark.package


def test_the_headers_are_plain_c(tmp_path):
    for name in ("aot_gemm.h", "aot_gemm_rows.h", "aot_gemm_tuning.h"):
        (tmp_path / name).write_bytes(read_templates()[f"include/{name}"])
    source = (
        "int f(void) { return (int)sizeof(aot_gemm_problem_t); }\nuint64_t g(void) { return AOT_GEMM_B_CONSTANT; }\n"
    )
    (tmp_path / "x.c").write_text(f'#include "aot_gemm_tuning.h"\n{source}')
    # Products and operations on rows come by either header.
    both = (
        "int f(aot_rows_problem_t* x) { return aot_rows_launch(x, 0); }\nint g(aot_gemm_problem_t* x) { return !x; }\n"
    )
    for name in ("aot_gemm", "aot_gemm_rows"):
        (tmp_path / f"{name}.c").write_text(f'#include "{name}.h"\n{both}')
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-c"]
    for compiler, standard in (("gcc", "c99"), ("g++", "c++11")):
        language = ["-x", "c++"] if compiler == "g++" else []
        command = [compiler, f"-std={standard}", *strict, *language, "x.c", "aot_gemm.c", "aot_gemm_rows.c"]
        subprocess.run(command, check=True, cwd=tmp_path)


DRIVER = """
#include <cuda.h>
#include <stddef.h>
CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = NULL;
  return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) { return context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS; }
CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  static CUdeviceptr next = 4096;
  *address = next;
  next += (bytes + 4095) / 4096 * 4096;
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) { return address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
CUresult cuMemsetD8(CUdeviceptr address, unsigned char value, size_t count) {
  return address && count && !value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error ? "an error" : "no error";
  return CUDA_SUCCESS;
}
"""
"""A driver that gives addresses and no more: the example comes as far as the library's own look for a GPU."""


def build_driver(target_name, compiler, folder):
    """Build the driver as libcuda.so in a folder; return the folder of CUDA's headers."""
    cuda = fetch_toolchain(load_target(target_name)).cuda_dir / "include"
    (folder / "driver.c").write_text(DRIVER)
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", f"-isystem{cuda}", "-shared", "-fPIC"]
    # Stripped, as the wheels are: else zig builds its compiler's runtime anew, which takes 20 s.
    command = [*compiler, *strict, "driver.c", "-Wl,-soname,libcuda.so.1,-s", "-o", "libcuda.so.1"]
    native.run(command, cwd=folder)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return cuda


def _link_and_run(target_name, compiler, emulator, folder):
    """Compile the example with all warnings, and run it; return the finished process."""
    with zipfile.ZipFile(small_wheel(target_name)) as archive:
        archive.extractall(folder)
    cuda = build_driver(target_name, compiler, folder)
    strict = [*compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", f"-isystem{cuda}", "-Wl,-s"]
    package = folder / "aot_gemm"
    libraries = ["-L", package, "-l:libaot_gemm.so.1", f"-Wl,-rpath,{package}:{folder}", "-L", ".", "-lcuda"]
    source, headers = package / "examples" / "multiply.c", package / "include"
    native.run([*strict, source, "-I", headers, *libraries, "-o", "multiply"], cwd=folder)
    return subprocess.run([*emulator, folder / "multiply"], capture_output=True, text=True, check=False)


def check_example(done, target_name):
    manifest, _ = small_manifest(target_name)
    assert done.stdout == f"kernel {manifest.kernels[-1].name}\n"
    assert re.match(r"error \d+: no usable NVIDIA GPU: .*a sm_\d+a GPU", done.stderr), done.stderr
    assert done.returncode == 1


def test_the_example_links_and_runs_on_aarch64(tmp_path):
    emulator = aarch64_emulator()
    check_example(_link_and_run("thor", native.zig(load_target("thor"), "cc"), emulator, tmp_path), "thor")
