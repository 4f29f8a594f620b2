"""Kernels that somebody else exported from CuTe DSL by `export_to_c` become objects of the store.

An exported object has the device code and the host code that makes descriptors and launches, so that neither the source
nor its compiler is needed. What it takes is in the header beside it. A launcher that is made from the header calls it
with our operands, and the two are linked to one object, which exports what the store expects.

Source of the header's form: what nvidia-cutlass-dsl 4.8.1 writes, and "Ahead-of-Time Compilation" of its documentation.
"""

from __future__ import annotations

import io
import re
import string
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aot.compile.binary import COMPILER, check_binary, compile_launcher, kernels_in, prototype, values
from aot.core.errors import CompileError, PackageError
from aot.core.process import run
from aot.families import Binary

if TYPE_CHECKING:
    from aot.core.candidate import KernelKey
    from aot.core.target import Target

RUNTIME_SYMBOLS = frozenset(
    {
        *("_cudaLibraryLoadData", "_cudaLibraryGetKernel", "_cudaLaunchKernelEx", "_cudaGetDevice"),
        *("_cudaDeviceGetAttribute", "_cudaFuncSetAttribute", "_cudaKernelSetAttributeForDevice"),
        *("_cuKernelGetAttribute", "_GLOBAL_OFFSET_TABLE_", "memcpy", "memset"),
    }
)
"""What an object may ask for of the library that it is linked into. Source: templates/src/cuda_entry.cc."""

_TENSOR = re.compile(
    r"typedef struct \{\s*void \*data;\s*(?:(int32_t|int64_t) dynamic_shapes\[(\d+)\];\s*)?"
    r"(?:(int32_t|int64_t) dynamic_strides\[(\d+)\];\s*)?\} (\w+)_Tensor_(\w+)_t;"
)
_WRAPPER = re.compile(r"static inline int32_t \w+?_wrapper\((\w+)_Kernel_Module_t \*module, ([^)]*)\) \{")
_ENTRY = re.compile(r"void (_mlir_\w+?__mlir_ciface_\w+)\(void \*\*args, int32_t num_args\);")
_OPERANDS = ("a", "b", "d")

_TEMPLATE = string.Template("""\
#include "aot_launch.h"

$prototype;
void _mlir_${prefix}_cuda_init(void **arguments);
void _mlir_${prefix}_cuda_load_to_device(void **arguments);
void $entry(void **arguments, int32_t num_arguments);

#include "launcher.c"

void _mlir_${name}_cuda_init(void **arguments) { _mlir_${prefix}_cuda_init(arguments); }

void _mlir_${name}_cuda_load_to_device(void **arguments) { _mlir_${prefix}_cuda_load_to_device(arguments); }

void _mlir_${name}__mlir_ciface_${name}(void **arguments, int32_t num_arguments) {
  *(int32_t *)arguments[num_arguments - 1] = launch($values);
}
""")


@dataclass(frozen=True)
class Tensor:
    """A tensor's descriptor in a header: how many of its extents and strides are dynamic, and their types."""

    name: str
    num_shapes: int
    num_strides: int
    shape_type: str = "int32_t"
    stride_type: str = "int64_t"

    def declared(self, operand: str) -> str:
        """Return the C of the descriptor of one of our matrices, whose rows are its first mode, its columns the second.

        A third mode is that of a batch of one, as an exporter of batches has it.
        """
        extents = (f"{operand}->shape[0]", f"{operand}->shape[1]", "1")[: self.num_shapes]
        rows = f"{operand}->strides[0]"
        strides = (rows, f"{operand}->shape[0] * {rows}")[: self.num_strides]
        members = [f"{self.shape_type} shapes[{self.num_shapes}];"] if extents else []
        members += [f"{self.stride_type} strides[{self.num_strides}];"] if strides else []
        filled = [f"{{{', '.join(x)}}}" for x in (extents, strides) if x]
        text = f"  struct {{ void *data; {' '.join(members)} }} of_{operand} = "
        return f"{text}{{{', '.join([f'{operand}->data', *filled])}}};\n"

    @property
    def limit(self) -> str:
        """Return the largest stride that the descriptor holds, in C; empty where it holds all."""
        return "INT32_MAX" if self.stride_type == "int32_t" and self.num_strides else ""


@dataclass(frozen=True)
class Header:
    """What a header says of an exported function."""

    prefix: str
    entry: str
    """The function of the object that launches."""
    tensors: tuple[Tensor, ...]

    @staticmethod
    def parse(text: str, name: str = "the header") -> Header:
        """Read a header of a plain product: three tensors in the order A, B, D, then the stream.

        Raises:
            CompileError: it is no header of `export_to_c`, or its function takes something else.
        """
        wrapper, entry = _WRAPPER.search(text), _ENTRY.search(text)
        if wrapper is None or entry is None:
            raise CompileError(f"{name} has no wrapper of an exported function; expected what `export_to_c` writes")
        prefix, parameters = wrapper[1], [x.strip() for x in wrapper[2].split(",")]
        known = {
            found[6]: Tensor(
                found[6], int(found[2] or 0), int(found[4] or 0), found[1] or "int32_t", found[3] or "int64_t"
            )
            for found in _TENSOR.finditer(text)
            if found[5] == prefix
        }
        names = [re.fullmatch(rf"{prefix}_Tensor_(\w+)_t \*\w+", x) for x in parameters[:-1]]
        tensors = [known[x[1]] for x in names if x and x[1] in known]
        takes_stream = parameters[-1].startswith("cudaStream_t ")
        if not takes_stream or len(tensors) != len(_OPERANDS) or len(names) != len(_OPERANDS):
            raise CompileError(
                f"{name}: {prefix} takes ({', '.join(parameters)}); expected the tensors A, B and D, then a stream; "
                "give an Exported a launcher of your own for another function"
            )
        most = next((x for x in tensors if x.num_shapes > 3 or x.num_strides > 2), None)
        if most is not None:
            raise CompileError(
                f"{name}: tensor {most.name} has {most.num_shapes} extents and {most.num_strides} strides that are "
                "dynamic; expected at most 3 and 2, rows being contiguous"
            )
        return Header(prefix, entry[1], tuple(tensors))

    def launcher(self) -> str:
        """Return the C of a launcher of A, B and D, whose rows are contiguous."""
        pairs = list(zip(_OPERANDS, self.tensors, strict=True))
        limits = [f"{x}->strides[0] > {tensor.limit}" for x, tensor in pairs if tensor.limit]
        refused = f"  if ({' || '.join(limits)}) return 1;  // cudaErrorInvalidValue\n" if limits else ""
        matrices = ", ".join(f"const aot_matrix_t *{x}" for x in _OPERANDS)
        return (
            f"static int32_t launch({matrices}, aot_stream_t stream) {{\n{refused}"
            + "".join(tensor.declared(x) for x, tensor in pairs)
            + "  int32_t status = 0;\n  void *arguments[] = {&of_a, &of_b, &of_d, &stream, &status};\n"
            + f"  {self.entry}(arguments, 5);\n  return status;\n}}\n"
        )


@dataclass(frozen=True)
class Exported(Binary):
    """A kernel that somebody else exported: a family's `entry` returns it, as it would a `Binary`.

    `ziglang` is among the family's `compilers`, as with any `Binary`; it links, too.
    """

    content: bytes = field(default=b"", repr=False)
    """The object, for the target's host."""
    header: Header = field(default=Header("", "", ()))

    @staticmethod
    def of(
        content: bytes, header: str, num_threads: int, smem_bytes: int = 0, ptx: str = "", name: str = ""
    ) -> Exported:
        """Take an object and the header beside it.

        Args:
            content: the object.
            header: the header's text.
            num_threads: of a block.
            smem_bytes: dynamic shared memory of a block, as the exporter asks for it.
            ptx: what `--keep-ptx` left, which the interpreter executes; empty where nobody has it.
            name: of the files, for errors.

        Raises:
            CompileError: the object has no device code; or as `Header.parse`.
        """
        from aot.compile.object_file import cubins  # needs pyelftools, which other commands do without

        found, images = Header.parse(header, name or "the header"), cubins(content)
        names = [x for image in images for x in kernels_in(image)]
        if not names:
            raise CompileError(f"{name or 'the object'} has no device code; expected an object of `export_to_c`")
        return Exported(images[0], names[0], found.launcher(), num_threads, smem_bytes, ptx, content, found)


def _check_symbols(exported: Exported, key: KernelKey) -> None:
    """Refuse an object that is not the header's, or asks for what no library of ours has (CompileError)."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    tables = [x for x in ELFFile(io.BytesIO(exported.content)).iter_sections() if isinstance(x, SymbolTableSection)]
    symbols = [(x.name, x["st_shndx"] == "SHN_UNDEF") for table in tables for x in table.iter_symbols() if x.name]
    defined = {name for name, is_undefined in symbols if not is_undefined}
    if exported.header.entry not in defined:
        raise CompileError(f"{key.name}: its object does not define {exported.header.entry}, which its header declares")
    unknown = sorted({name for name, is_undefined in symbols if is_undefined} - RUNTIME_SYMBOLS)
    if unknown:
        raise CompileError(
            f"{key.name}: its object asks for {', '.join(unknown)}, which a wheel's library has not; export it by the "
            "version of nvidia-cutlass-dsl that is installed here"
        )


def write_exported(exported: Exported, key: KernelKey, target: Target, out: Path) -> None:
    """Link an exported object with its launcher. Of equal kernels all bytes are equal.

    Args:
        exported: the kernel.
        key: what it computes.
        target: the device, and the host that the object is for.
        out: the object's file.

    Raises:
        CompileError: as `aot.compile.binary.check_binary`; the object is not the header's, is for another host, or asks
            for symbols that no library has; or the launcher does not compile.
    """
    check_binary(exported, key, target)
    _check_symbols(exported, key)
    header = exported.header
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        folder = Path(scratch)
        theirs, ours = folder / "theirs.o", folder / "ours.o"
        theirs.write_bytes(exported.content)
        names = {"name": key.name, "prefix": header.prefix, "entry": header.entry}
        text = _TEMPLATE.substitute(names, prototype=prototype(key), values=values(key))
        compile_launcher(exported.launcher, text, key, target, folder, ours)
        command = [sys.executable, "-m", COMPILER, "ld.lld", "-r", str(ours), str(theirs), "-o", str(out)]
        try:
            run(command, "linking the launcher with the exported object")
        except PackageError as error:
            raise CompileError(f"{key.name}: its object is not linked with its launcher: {error}") from error
