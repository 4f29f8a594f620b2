"""Kernels that another compiler made become objects of the store: their device code, and C that loads and launches it.

The object exports what one of CuTe DSL does, so that nothing behind the store knows the difference.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import string
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.constraints import one_line
from aot.core.errors import CompileError, PackageError
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.core.process import run
from aot.core.signature import Argument
from aot.families import compilers_of, family_of, signature

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

    from aot.core.candidate import KernelKey
    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Binary

HEADER = Path(__file__).with_name("aot_launch.h")
COMPILER = "ziglang"
"""The distribution that compiles launchers."""

RESERVED_SMEM_BYTES = 1024
"""Shared memory that CUDA keeps of each block from sm_90 on, beside what a block may have; a cubin's section of static
shared memory has it inside. Source: CUDA C++ Programming Guide, "Compute Capability 9.0"; and ptxas 12.8 and 13.1, of
kernels without static shared memory, 2026-11-27."""

_IMAGE, _LAUNCHER, _SOURCE = "image.cubin", "launcher.c", "kernel.c"
_FLAGS = ("-std=c11", "-O2", "-g0", "-fPIC", "-Wall", "-Wno-c23-extensions", "-Werror=undefined-internal")

_TEMPLATE = string.Template("""\
#define AOT_NUM_THREADS $num_threads
#define AOT_SMEM_BYTES $smem_bytes
#include "aot_launch.h"

$prototype;

#include "launcher.c"

static const unsigned char aot_image[] __attribute__((aligned(64), section(".rodata.aot_image"))) = {
#embed "image.cubin"
};

void _mlir_${name}_cuda_init(void **arguments) {
  *(int32_t *)arguments[1] = _cudaLibraryLoadData(*(void ***)arguments[0], aot_image, NULL, NULL, 0, NULL, NULL, 0);
}

void _mlir_${name}_cuda_load_to_device(void **arguments) {
  void *library = **(void ***)arguments[0];
  const int32_t device = *(const int32_t *)arguments[1];
  int32_t error = aot_kernel == NULL ? _cudaLibraryGetKernel(&aot_kernel, library, "$symbol") : 0;
  if (error == 0) error = _cudaKernelSetAttributeForDevice(aot_kernel, AOT_DYNAMIC_SMEM, AOT_SMEM_BYTES, device);
  *(int32_t *)arguments[2] = error;
}

void _mlir_${name}__mlir_ciface_${name}(void **arguments, int32_t num_arguments) {
  *(int32_t *)arguments[num_arguments - 1] = launch($values);
}
""")
"""What `load` and `call_entry` of templates/src/runtime.cc call."""

_OF_RANK = {2: "aot_matrix_t", 3: "aot_stack_t", 4: "aot_gate_stack_t"}
_VECTORS = {
    Argument.SCALE_A: "aot_factors_t",
    Argument.SCALE_B: "aot_factors_t",
    Argument.B_OF_GROUPS: "aot_addresses_t",
    Argument.SCALE_B_OF_GROUPS: "aot_addresses_t",
}
_ADDRESSES = (Argument.B_OF_GROUPS, Argument.SCALE_B_OF_GROUPS)
_NUMBERS = (Argument.PREFETCH_B, Argument.TILE_ORDER)


@cache
def launcher_sha256() -> str:
    """Hash what of ours an object depends on, beside the kernel and its compilers."""
    files = HEADER, Path(__file__), Path(__file__).with_name("exported.py")
    return hashlib.sha256(b"".join(x.read_bytes() for x in files)).hexdigest()


def _rank(argument: Argument, operation: Operation) -> int:
    """Count the modes of an argument, as `launch` of templates/src/runtime.cc passes it."""
    is_batched, of_groups = operation.grouping is Grouping.BATCHED, operation.grouping.groups_rows
    of_rows = of_groups + (operation.gate is not None)
    is_block, in_atoms = (operation.types.factors is x for x in (FactorLayout.BLOCK, FactorLayout.ATOMS))
    ranks = {
        Argument.A: 2 + is_batched,
        Argument.B: 2 + is_batched + of_rows,
        Argument.D: 2 + (is_batched or operation.grouping is Grouping.K_GROUPED),
        Argument.SCALE_A: 1 + is_block,
        Argument.SCALE_B: 2 + of_groups if is_block else 1 if in_atoms else 1 + of_rows,
        Argument.BIAS: 1 + of_rows,
        Argument.RESIDUAL: 2,
    }
    return ranks.get(argument, 1)


def _type(argument: Argument, operation: Operation) -> str:
    """Return the C type by which a launcher takes an argument."""
    if argument is Argument.STREAM:
        return "aot_stream_t "
    if argument in _NUMBERS:
        return "int32_t "
    in_atoms = operation.types.factors is FactorLayout.ATOMS
    vectors = {} if in_atoms and argument not in _ADDRESSES else _VECTORS
    name = _OF_RANK.get(_rank(argument, operation)) or vectors.get(argument, "aot_vector_t")
    return f"const {name} *"


def prototype(key: KernelKey) -> str:
    """Return the C declaration of what a kernel's launcher defines."""
    parameters = ", ".join(f"{_type(x, key.operation)}{x.value}" for x in signature(key))
    return f"static int32_t launch({parameters})"


def values(key: KernelKey) -> str:
    """Return the C of what `launch` is called with: each argument comes as a pointer to its value."""
    casts = {Argument.STREAM: "*(void *const *)"} | dict.fromkeys(_NUMBERS, "*(const int32_t *)")
    return ", ".join(f"{casts.get(x, '')}arguments[{i}]" for i, x in enumerate(signature(key)))


def _static_smem(elf: ELFFile, symbol: str, sm: int) -> int:
    section = elf.get_section_by_name(f".nv.shared.{symbol}")
    reserved = RESERVED_SMEM_BYTES if sm >= 90 else 0
    return max(int(section["sh_size"]) - reserved, 0) if section else 0


def kernels_in(image: bytes) -> list[str]:
    """List the kernels of a cubin."""
    from elftools.elf.elffile import ELFFile  # which commands that compile nothing do without
    from elftools.elf.sections import SymbolTableSection

    elf = ELFFile(io.BytesIO(image))
    tables = [x for x in elf.iter_sections() if isinstance(x, SymbolTableSection)]
    names = {x.name for table in tables for x in table.iter_symbols() if x["st_info"]["type"] == "STT_FUNC"}
    return sorted(x for x in names if elf.get_section_by_name(f".text.{x}"))


def check_binary(binary: Binary, key: KernelKey, target: Target) -> None:
    """Refuse what could not be loaded or launched, or is not what its family says.

    Raises:
        CompileError: the image is no cubin, is of another architecture or has no such kernel; it takes other threads or
            more shared memory than the family counts; or the family does not say what compiles the launcher.
    """
    from elftools.elf.elffile import ELFFile

    from aot.compile.object_file import ELF_MAGIC, cubin_sm

    family, compilers = family_of(key.candidate), compilers_of(key.candidate)
    if COMPILER not in compilers:
        text = f"{key.name} is a Binary, whose launcher {COMPILER} compiles; expected it among the `compilers` of"
        raise CompileError(f"{text} {family.name}, got {', '.join(compilers) or 'none'}")
    if not binary.image.startswith(ELF_MAGIC):
        text = f"{key.name}: its image begins with {binary.image[:4]!r}; expected a cubin, {ELF_MAGIC!r}"
        raise CompileError(f"{text}: nvcc -cubin makes one")
    sm, major = cubin_sm(binary.image), target.compute_capability[0]
    expected = major * 10 + target.compute_capability[1]
    if sm != expected:
        raise CompileError(f"{key.name}: its image is for sm_{sm}, expected sm_{expected} ({target.arch})")
    elf = ELFFile(io.BytesIO(binary.image))
    kernels = kernels_in(binary.image)
    if binary.symbol not in kernels:
        text = f"{key.name}: its image has no kernel {binary.symbol!r}; it has: {', '.join(kernels) or 'none'}"
        raise CompileError(text)
    resources = family.resources(key.candidate, key.operation, target)
    if binary.num_threads != resources.num_threads:
        text = f"{key.name} is launched with {binary.num_threads} threads a block; {family.name} counts"
        raise CompileError(f"{text} {resources.num_threads}; count as many")
    static = _static_smem(elf, binary.symbol, sm)
    if binary.smem_bytes + static > resources.smem_bytes:
        text = f"{key.name} takes {binary.smem_bytes:,} bytes of dynamic and {static:,} of static shared memory"
        raise CompileError(f"{text}; {family.name} counts {resources.smem_bytes:,}; count as many at least")


def compile_launcher(launcher: str, text: str, key: KernelKey, target: Target, folder: Path, out: Path) -> None:
    """Compile a launcher, in a folder, with the C that includes it.

    Raises:
        CompileError: the launcher does not compile, or defines no `launch` of the kernel's arguments.
    """
    (folder / _LAUNCHER).write_text(launcher, encoding="utf-8")
    (folder / _SOURCE).write_text(text, encoding="utf-8")
    machine = ("-target", f"{target.machine}-linux-gnu.{target.glibc}", f"-mcpu={target.host_cpu.replace('-', '_')}")
    includes = (f"-I{HEADER.parent}", f"-I{folder}", f"--embed-dir={folder}")
    command = [sys.executable, "-m", COMPILER, "cc", *machine, *_FLAGS, *includes]
    caches = {f"ZIG_{x}_CACHE_DIR": str(folder / "zig") for x in ("GLOBAL", "LOCAL")}
    try:
        run([*command, "-c", str(folder / _SOURCE), "-o", str(out)], "compiling the launcher", env=os.environ | caches)
    except PackageError as error:
        found = re.findall(r"^\s*(?:\S*/)?([^\s/]+:\d+:\d+: error: .*)$", str(error), re.MULTILINE)
        told = "; ".join(found[:3]) or one_line(str(error), 300)
        text = f"{key.name}: its launcher does not compile: {told}; expected it to define `{prototype(key)}`"
        raise CompileError(text) from error


def write_binary(binary: Binary, key: KernelKey, target: Target, out: Path) -> None:
    """Write the object of a kernel that another compiler made. Of equal kernels all bytes are equal.

    Args:
        binary: the kernel.
        key: what it computes.
        target: the device, and the host that the object is for.
        out: the object's file.

    Raises:
        CompileError: as `check_binary`; or the launcher does not compile.
    """
    check_binary(binary, key, target)
    numbers = {"num_threads": binary.num_threads, "smem_bytes": binary.smem_bytes}
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        folder = Path(scratch)
        (folder / _IMAGE).write_bytes(binary.image)
        text = _TEMPLATE.substitute(
            numbers, name=key.name, symbol=binary.symbol, prototype=prototype(key), values=values(key)
        )
        compile_launcher(binary.launcher, text, key, target, folder, out)
