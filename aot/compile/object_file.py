"""The second gate: reads a compiled object and refuses what would fail on the device."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from aot.core.errors import CompileError

if TYPE_CHECKING:
    from aot.core.target import Target

OVER_LIMIT_MARKER = b"exceeds current GPU arch"
"""Text that the DSL compiles into an object whose shared memory cannot be launched. Source: found by trying
nvidia-cutlass-dsl 4.8.1, 2026-11-20: in 3 of 3 objects too large, in 0 of 3 that fit."""

ELF_MAGIC = b"\x7fELF"
EI_OSABI, CUDA_12_ABI = 7, 0x33
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")


@dataclass(frozen=True)
class ObjectReport:
    """What an object says of itself. Registers and spills are the largest of its kernels'."""

    sha256: str
    num_bytes: int
    entry_symbol: str
    init_symbol: str
    load_symbol: str
    registers: int
    spill_bytes: int


def cubins(content: bytes) -> list[bytes]:
    """Find the device code inside a host object: ELF images for CUDA in its read-only data."""
    found = []
    for section in ELFFile(io.BytesIO(content)).iter_sections():
        data = section.data() if section["sh_type"] != "SHT_NOBITS" else b""
        start = data.find(ELF_MAGIC)
        while start >= 0:
            end = data.find(ELF_MAGIC, start + 4)
            found.append(data[start : end if end >= 0 else len(data)])
            start = end
    return found


def cubin_sm(cubin: bytes) -> int:
    """Return the architecture number of a cubin, such as 90.

    Source: e_flags, bits 8 to 15 as CUDA 13 writes them; where EI_OSABI is 0x33, as CUDA 12 writes it, bits 0 to 7.
    Found with ptxas 13.1 and 12.8, of sm_80, sm_90a and sm_110a, 2026-11-27.
    """
    header = ELFFile(io.BytesIO(cubin)).header
    if header["e_machine"] != "EM_CUDA":
        raise CompileError(f"device code is for machine {header['e_machine']}, expected EM_CUDA")
    return int(header["e_flags"]) >> (0 if cubin[EI_OSABI] == CUDA_12_ABI else 8) & 0xFF


def _usage(cubin: bytes) -> list[tuple[int, int]]:
    """Return (registers, stack and local bytes) of each kernel of a cubin, by cuobjdump.

    Raises:
        CompileError: it cannot read the cubin.
        OSError: it does not run on this machine, or was killed, for which no candidate is to blame.
    """
    import nvidia.cu13

    tool = Path(next(iter(nvidia.cu13.__path__))) / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        raise OSError(f"{tool} was killed by signal {-done.returncode}")
    if done.returncode and subprocess.run([str(tool), "--version"], capture_output=True, check=False).returncode:
        raise OSError(f"{tool} does not run on this machine, its AArch64 build needs glibc 2.38: {done.stderr.strip()}")
    rows = _USAGE.findall(done.stdout)
    if done.returncode or not rows:
        raise CompileError(f"cuobjdump -res-usage failed with {done.returncode}: {done.stdout}{done.stderr}")
    return [(int(registers), int(stack) + int(local)) for registers, stack, local in rows]


def _symbol(names: list[str], prefix: str, what: str) -> str:
    found = [name for name in names if name.startswith(prefix)]
    if len(found) != 1:
        raise CompileError(f"the object has {len(found)} symbols for its {what} ({prefix}*), expected 1: {found}")
    return found[0]


def inspect(path: Path, kernel_name: str, target: Target, num_threads: int) -> ObjectReport:
    """Read an object and refuse it if it cannot run.

    Args:
        path: the object that `export_to_c` wrote.
        kernel_name: the prefix it was exported with.
        target: the device and host it is for.
        num_threads: threads of a block, whose registers must fit an SM.

    Raises:
        CompileError: wrong host machine or architecture, shared memory over the limit, or registers that do not fit.
    """
    content = path.read_bytes()
    host = ELFFile(io.BytesIO(content))
    machine = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}.get(host["e_machine"], host["e_machine"])
    if machine != target.machine:
        raise CompileError(f"{path.name} is for {machine}, expected {target.machine}; compile it again")
    if OVER_LIMIT_MARKER in content:
        limit = target.smem_bytes_per_block
        raise CompileError(f"{path.name}: shared memory over {limit:,} bytes; legality should have rejected it")
    images = cubins(content)
    expected = target.compute_capability[0] * 10 + target.compute_capability[1]
    numbers = {cubin_sm(image) for image in images}
    if numbers != {expected}:
        raise CompileError(f"{path.name} holds device code for sm {sorted(numbers)}, expected {expected}")
    usage = [row for image in images for row in _usage(image)]
    registers = max(row[0] for row in usage)
    if registers * num_threads > target.registers_per_sm:
        text = f"{registers} registers x {num_threads} threads; an SM has {target.registers_per_sm}"
        raise CompileError(f"{path.name} needs {text}")
    symbols = host.get_section_by_name(".symtab")
    if not isinstance(symbols, SymbolTableSection):
        raise CompileError(f"{path.name} has no symbol table; compile it again")
    names = [symbol.name for symbol in symbols.iter_symbols()]
    return ObjectReport(
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        entry_symbol=_symbol(names, f"_mlir_{kernel_name}__mlir_ciface_", "entry"),
        init_symbol=_symbol(names, f"_mlir_{kernel_name}_cuda_init", "initialisation"),
        load_symbol=_symbol(names, f"_mlir_{kernel_name}_cuda_load_to_device", "loading"),
        registers=registers,
        spill_bytes=max(row[1] for row in usage),
    )
