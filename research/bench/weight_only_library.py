"""Build the kernels of `weight_only` that the bench times, as one library: no GPU is needed.

    PYTHONPATH=. python -m research.bench.weight_only_library --out build/weight_only

from the repository's root. It writes libweight_only.so, which takes CUDA from what the process has loaded, such as
torch's, and kernels.json, which says what each of its kernels is. `research.bench.weight_only` times them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ARCH = "sm_90a"
HOST = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v2"
LIBRARY, INDEX = "libweight_only.so", "kernels.json"

FEW = {
    2: ((8, 3, 2), (8, 5, 1), (16, 2, 1)),
    3: ((8, 3, 1), (16, 2, 1)),
    4: ((8, 2, 1), (8, 4, 1), (16, 2, 1)),
    5: ((8, 2, 1), (8, 3, 1)),
    7: ((4, 3, 1), (8, 2, 1)),
}
"""Warps, stages and blocks of k in a stage to try for up to 8 rows of x, by tiles of rows of the weight."""
MORE = {
    2: ((8, 2, 1), (8, 3, 1), (12, 2, 1)),
    3: ((8, 2, 1), (12, 2, 1)),
    4: ((8, 2, 1), (12, 2, 1)),
    5: ((4, 2, 1), (8, 2, 1)),
    7: ((4, 2, 1), (8, 2, 1)),
}
"""The same for up to 16."""
COLUMNS = {1: FEW, 4: FEW, 16: MORE}
SCALED = ("nvfp4", "nvfp4rows", "int8", "e4m3")
"""Formats with a float32 factor beside those of groups."""
FORMATS = (
    ("int4g128", "bfloat16"),
    ("int4g128", "float16"),
    ("nvfp4", "bfloat16"),
    ("nvfp4", "float16"),
    ("nvfp4rows", "bfloat16"),
    ("nvfp4rows", "float16"),
    ("mxfp4", "bfloat16"),
    ("int4g32", "bfloat16"),
    ("int8", "bfloat16"),
    ("e4m3", "bfloat16"),
)
SMEM_BYTES = 227 * 1024
"""Of a CTA at most. Source: CUDA C++ Programming Guide, compute capability 9.0."""


@dataclass(frozen=True)
class Variant:
    """A kernel of the library."""

    form: str
    element: str
    tiles: int
    columns: int
    warps: int
    stages: int
    blocks: int

    @property
    def name(self) -> str:
        """Return the prefix of its functions."""
        sizes = f"t{self.tiles}_m{self.columns}_w{self.warps}_s{self.stages}_b{self.blocks}"
        return f"weight_only_{self.form}_{self.element}_{sizes}"


def variants() -> list[Variant]:
    """List what is built, as far as it fits a CTA."""
    from aot.core.weight_format import format_named
    from aot.families._weight_only_tile import Tile

    return [
        Variant(form, element, tiles, columns, *choice)
        for form, element in FORMATS
        for columns, choices in COLUMNS.items()
        for tiles, found in choices.items()
        for choice in found
        if Tile(format_named(form), tiles, columns, *choice).smem_bytes <= SMEM_BYTES
    ]


def compile_variant(variant: Variant, folder: Path) -> Path:
    """Compile a kernel to an object."""
    import cutlass
    from cutlass import cute

    from aot.core.weight_format import format_named
    from aot.families._weight_only_entry import weight_only_entry
    from aot.families._weight_only_tile import Tile

    tile = Tile(
        format_named(variant.form), variant.tiles, variant.columns, variant.warps, variant.stages, variant.blocks
    )
    element = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[variant.element]
    entry, arguments = weight_only_entry(tile, element, is_scaled=variant.form in SCALED, is_dependent=True)
    options = f"--gpu-arch {ARCH} --host-target '{HOST}'"
    compiled = cute.compile(entry, *arguments, options=options)
    compiled.export_to_c(file_path=str(folder), file_name=variant.name, function_prefix=variant.name)
    return folder / f"{variant.name}.o"


_PRELUDE = """// Launches the kernels by number. CUDA's functions are those of the process, declared here.
#include <cstdint>

// Source: driver_types.h, cudaLaunchConfig_t and cudaLaunchAttribute.
struct Attribute { int id; char padding[4]; int value[16]; };
struct Config { uint32_t grid[3], block[3]; uint64_t smem_bytes; void* stream; Attribute* attributes; unsigned count; };

extern "C" {
int cudaLibraryLoadData(void**, const void*, void*, void**, unsigned, void*, void**, unsigned);
int cudaLibraryGetKernel(void**, void*, const char*);
int cudaLaunchKernelExC(const void*, const void*, void**);
int cudaGetDevice(int*);
int cudaDeviceGetAttribute(int*, int, int);
int cudaFuncSetAttribute(const void*, int, int);
int cudaKernelSetAttributeForDevice(void*, int, int, int);
int cuKernelGetAttribute(int*, int, void*, int);

int _cudaLibraryLoadData(void** a, const void* b, void* c, void** d, unsigned e, void* f, void** g, unsigned h) {
  return cudaLibraryLoadData(a, b, c, d, e, f, g, h);
}
int _cudaLibraryGetKernel(void** a, void* b, const char* c) { return cudaLibraryGetKernel(a, b, c); }

int is_programmatic = 1;

// Without programmatic launch a kernel starts when the one in front of it has ended.
int _cudaLaunchKernelEx(const Config* config, const void* kernel, void** arguments) {
  constexpr int kProgrammatic = 6;
  for (unsigned i = 0; i < config->count; ++i) {
    if (config->attributes[i].id == kProgrammatic) config->attributes[i].value[0] = is_programmatic;
  }
  return cudaLaunchKernelExC(config, kernel, arguments);
}
int _cudaGetDevice(int* a) { return cudaGetDevice(a); }
int _cudaDeviceGetAttribute(int* a, int b, int c) { return cudaDeviceGetAttribute(a, b, c); }
int _cudaFuncSetAttribute(const void* a, int b, int c) { return cudaFuncSetAttribute(a, b, c); }
int _cudaKernelSetAttributeForDevice(void* a, int b, int c, int d) {
  return cudaKernelSetAttributeForDevice(a, b, c, d);
}
int _cuKernelGetAttribute(int* a, int b, void* c, int d) { return cuKernelGetAttribute(a, b, c, d); }
}

struct Matrix { void* data; int32_t shape[2]; int64_t stride; };
struct Factors { void* data; int32_t shape; int64_t stride; };
struct Bias { void* data; int32_t shape; };
struct Call { Matrix x, weight, d; Factors factors; Bias bias; int32_t is_constant; void* stream; };

namespace {
void* modules[KERNELS];

int load(int kernel, void (*init)(void**), void (*to_device)(void**)) {
  if (modules[kernel] != nullptr) return 0;
  void** module = &modules[kernel];
  int status = 0;
  int device = 0;
  struct { void*** module; int* status; } first = {&module, &status};
  init(reinterpret_cast<void**>(&first));
  if (status != 0) return status;
  struct { void*** module; int* device; int* status; } second = {&module, &device, &status};
  to_device(reinterpret_cast<void**>(&second));
  return status;
}
}  // namespace
"""


def _launcher(built: list[tuple[Variant, str]]) -> str:
    """Return the C++ that launches kernel i, by the names of their entries."""
    lines = [_PRELUDE.replace("KERNELS", str(len(built))), 'extern "C" {']
    for variant, entry in built:
        names = (f"_mlir_{variant.name}_cuda_init", f"_mlir_{variant.name}_cuda_load_to_device")
        lines += [f"void {x}(void**);" for x in names]
        lines.append(f"void {entry}(void**, int32_t);")
    lines += ["", "int weight_only(int kernel, Call* call) {", "  int32_t status = 0;", "  switch (kernel) {"]
    for i, (variant, entry) in enumerate(built):
        init, to_device = f"_mlir_{variant.name}_cuda_init", f"_mlir_{variant.name}_cuda_load_to_device"
        factors = "&call->factors, " if variant.form in SCALED else ""
        arguments = (
            f"&call->x, &call->weight, &call->d, {factors}&call->bias, &call->is_constant, &call->stream, &status"
        )
        count = 8 if factors else 7
        lines += [
            f"    case {i}: {{",
            f"      const int failure = load({i}, {init}, {to_device});",
            "      if (failure != 0) return failure;",
            f"      void* arguments[] = {{{arguments}}};",
            f"      {entry}(arguments, {count});",
            "      return status;",
            "    }",
        ]
    return "\n".join([*lines, "    default: return -1;", "  }", "}", "}", ""])


def _entry_of(header: str) -> str:
    """Return the name of the entry that a header declares."""
    line = next(x for x in header.splitlines() if x.startswith("void _mlir_") and "_mlir_ciface_" in x)
    return line.removeprefix("void ").partition("(")[0]


def main() -> None:
    """Compile and link."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the library")
    parser.add_argument("--only", default="", help="text that is part of the kernels' names, such as nvfp4")
    arguments = parser.parse_args()
    os.environ.setdefault("CUTE_DSL_ARCH", ARCH)
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    built = []
    for variant in (x for x in variants() if arguments.only in x.name):
        path = folder / f"{variant.name}.o"
        if not path.exists():
            compile_variant(variant, folder)
            print(variant.name, flush=True)
        built.append((variant, _entry_of(path.with_suffix(".h").read_text(encoding="utf-8"))))
    source = folder / "launch.cc"
    source.write_text(_launcher(built), encoding="utf-8")
    objects = [str(folder / f"{x.name}.o") for x, _ in built]
    compiler = [sys.executable, "-m", "ziglang", "c++", "-target", "x86_64-linux-gnu.2.28", "-shared", "-O1", "-fPIC"]
    subprocess.run([*compiler, str(source), *objects, "-o", str(folder / LIBRARY)], check=True)
    text = json.dumps([asdict(x) for x, _ in built], indent=1)
    (folder / INDEX).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
