"""Build the library's own host code for this machine, with a recorder in the place of CUDA: no GPU, no CUDA toolkit.

The runtime's sources do not depend on the kernels, so that their object is compiled once and kept; for each set of
kernels only the generated tables are compiled, and linked with the kernels' objects.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.dispatch import Column, DispatchTable, Grid, Section
from aot.core.errors import PackageError, TargetError
from aot.core.process import run
from aot.core.scratch import scratch_folder
from aot.core.target import Target, load_target, target_names
from aot.kinds.rows.dispatch import fallback_table
from aot.package.build import NO_CXX_LIBRARY, ZIG_CACHE, read_templates, write
from aot.package.compile_once import texts
from aot.package.manifest import Library, device_table
from aot.package.render import render_library
from aot.package.toolchain import TOOLCHAIN_CACHE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.compile.artifact import Artifact
    from aot.core.kernel import Kernel
    from aot.kinds.rows.kernel import RowKernel

HOST_CACHE = Path("build/emulate")
"""Where compiled objects of the runtime are kept, below the working directory."""

RECORDER = Path(__file__).with_name("recorder.cc")

_FLAGS = (
    *("-std=c++17", "-O1", "-fPIC", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra"),
    *("-fvisibility=default", "-D_LIBCPP_REMOVE_TRANSITIVE_INCLUDES"),
)
_REPLACED = ("cuda_entry.cc", "graph_edge.cc", "spread.cc")
"""The runtime's sources that call CUDA, whose place the recorder takes."""
_CORE = re.compile(r"^set\(CORE\s(.*?)\)$", re.MULTILINE | re.DOTALL)
"""How the project's CMakeLists.txt lists the sources that are the same for all kernels."""
_OF_ITS_OWN = ("devices.cc", "kernels.cc", "table.cc")
"""What differs with the library. The first is of the core, and knows the library's hash by a header."""


def emulated_target(target: Target, num_sms: int | None = None) -> Target:
    """Return a target as its kernels are compiled for the interpreter: its device, with this machine as the host.

    Device code does not depend on the host; tests/unit/compile/test_compiler.py compares the PTX of both.

    Args:
        target: the target.
        num_sms: streaming multiprocessors of the device, if other than the target's: of few, persistent CTAs take many
            tiles each.

    Raises:
        TargetError: no target has a host of this machine's architecture.
    """
    machine = platform.machine()
    hosts = [x for x in map(load_target, target_names()) if x.machine == machine]
    if not hosts:
        raise TargetError(f"this machine is {machine}, for which no target compiles host code; use x86_64 or aarch64")
    host = target if target.machine == machine else hosts[0]
    found = replace(target, host_triple=host.host_triple, host_cpu=host.host_cpu, glibc=host.glibc)
    if num_sms is None or num_sms == target.num_sms:
        return found
    fewer = tuple((size, min(count, num_sms // size)) for size, count in target.active_clusters)
    return replace(found, num_sms=num_sms, active_clusters=fewer)


def emulated_library(
    products: Sequence[Artifact[Kernel]], rows: Sequence[Artifact[RowKernel]], target: Target
) -> Library:
    """Return what a library of kernels is rendered from; it is called by a kernel's index, so that any table will do.

    Args:
        products: kernels of products, at least one: every library has some.
        rows: kernels of row operations.
        target: what they are compiled for.
    """
    sections = []
    for operation in dict.fromkeys(x.kernel.operation for x in products):
        index = [x.kernel.operation for x in products].index(operation)
        sections.append(Section(operation, (), Grid((1,), (1,), (Column((1,), (index,)),)), index))
    return Library(
        package="aot-emulated",
        version="0",
        arch=target.arch,
        kernels=tuple(x.kernel for x in products),
        tables=(
            device_table(target, DispatchTable(tuple(sections)), fallback_table([x.kernel.operation for x in rows])),
        ),
        row_kernels=tuple(x.kernel for x in rows),
    )


def _compiler(target: Target) -> list[str]:
    cpu = target.host_cpu.replace("-", "_")
    machine = ["-target", f"{target.machine}-linux-gnu.{target.glibc}", f"-mcpu={cpu}"]
    return [sys.executable, "-m", "ziglang", "c++", *machine]


def _environment(cache: Path) -> dict[str, str]:
    """Return the environment of the compiler, which keeps what it builds of the C library beside the toolchain."""
    folders = {
        "ZIG_GLOBAL_CACHE_DIR": str((TOOLCHAIN_CACHE / ZIG_CACHE).resolve()),
        "ZIG_LOCAL_CACHE_DIR": str((cache / ZIG_CACHE).resolve()),
    }
    return folders | os.environ


@cache
def _compiler_version() -> str:
    return run([sys.executable, "-m", "ziglang", "version"], "asking the compiler for its version").strip()


def _compile(source: Path, includes: Sequence[Path], out: Path, target: Target, cache: Path) -> None:
    options = [*_FLAGS, *(f"-I{x}" for x in includes), "-c", str(source), "-o", str(out)]
    run([*_compiler(target), *options], f"compiling {source.name}", env=_environment(cache))


def _kept_object(source: Path, includes: Sequence[Path], target: Target, cache: Path) -> Path:
    """Compile a source, unless one of the same text, headers and compiler is kept; return its object."""
    parts = [_compiler_version(), *_compiler(target)[2:], *_FLAGS, *texts(source, includes)]
    kept = cache / f"{source.stem}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}.o"
    if not kept.exists():
        with scratch_folder(".compiling-", cache) as scratch:
            made = scratch / "made.o"
            _compile(source, includes, made, target, cache)
            made.replace(kept)
    return kept


def _core_sources(project: Path) -> list[Path]:
    """List the runtime's sources that are the same for all libraries, without those that the recorder replaces."""
    found = _CORE.search((project / "CMakeLists.txt").read_text(encoding="utf-8"))
    if found is None:
        raise PackageError("templates/CMakeLists.txt.j2 has no list CORE; expected set(CORE ...) with the sources")
    return [project / x for x in found[1].split() if Path(x).name not in {*_REPLACED, *_OF_ITS_OWN}]


def build_host_library(
    library: Library, objects: Mapping[str, Path], target: Target, out_dir: Path, *, cache: Path = HOST_CACHE
) -> Path:
    """Build a library over the recorder, which this process can load.

    Args:
        library: kernels and tables.
        objects: each kernel's object file, by the kernel's name, compiled for this machine as the host.
        target: the target, with this machine as the host.
        out_dir: where the library is put.
        cache: where objects of the runtime are kept.

    Returns:
        The path of the library.

    Raises:
        PackageError: it cannot be compiled or linked.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with scratch_folder("aot-emulate-") as project:
        write(render_library(library, read_templates()), project)
        includes = [project / "include", project / "src"]
        core = project / "core.cc"
        core.write_text("".join(f"{x.read_text(encoding='utf-8')}\n" for x in _core_sources(project)), encoding="utf-8")
        files = [_kept_object(x, includes, target, cache) for x in (core, RECORDER)]
        for name in _OF_ITS_OWN:
            files.append(project / f"{name}.o")
            _compile(project / "src" / name, includes, files[-1], target, cache)
        files += [objects[x.name] for x in library.with_objects]
        out = out_dir / f"lib{library.module}.so"
        out_dir.mkdir(parents=True, exist_ok=True)
        links = ["-shared", "-Wl,-Bsymbolic", "-Wl,-s", NO_CXX_LIBRARY, *map(str, files), "-o", str(out)]
        run([*_compiler(target), *links], "linking the kernels with the recorder", env=_environment(cache))
    return out
