"""The kernels that are executed: compiled for this machine as the host, in one library over the recorder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.compile.workplace import Workplace, compile_all, compile_shipped
from aot.core.candidate import KernelKey
from aot.core.element import ElementType
from aot.core.errors import CompileError
from aot.core.operation import Operation
from aot.emulate.build import build_host_library, emulated_library
from aot.kinds.rows.candidate import RowKernelKey
from aot.select.selector import fallback_key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aot.compile.artifact import Artifact, CompileFailure
    from aot.core.kernel import Kernel
    from aot.core.target import Target
    from aot.core.work import AnyKey
    from aot.kinds.rows.kernel import RowKernel


@dataclass(frozen=True)
class EmulatedSet:
    """Compiled kernels, and the library over the recorder that launches them."""

    target: Target
    """What they are compiled for: its device, with this machine as the host."""
    products: tuple[Artifact[Kernel], ...]
    """In the order of the library's. A library has at least one, whether it was asked for or not."""
    rows: tuple[Artifact[RowKernel], ...]
    names: tuple[str, ...]
    """The kernels that were asked for, products first."""
    library: Path
    failures: tuple[CompileFailure, ...] = ()
    """Those that did not compile."""


def compile_emulated(keys: Sequence[AnyKey], target: Target, out_dir: Path, workplace: Workplace) -> EmulatedSet:
    """Compile kernels and link them with the recorder.

    Args:
        keys: products and operations on rows; each must be legal on the target.
        target: of `emulated_target`.
        out_dir: where the library is put.
        workplace: where kernels are compiled to.

    Raises:
        CompileError: none compiled, or a key is not legal.
        PackageError: the library cannot be built.
    """
    wanted = [key for key in keys if isinstance(key, KernelKey)]
    products, failures = compile_shipped(wanted, target, workplace) if wanted else ([], [])
    row_keys = [key for key in keys if isinstance(key, RowKernelKey)]
    rows, row_failures = compile_all(row_keys, target, workplace) if row_keys else ([], [])
    failures = [*failures, *row_failures]
    names = (*(x.kernel.name for x in products), *(x.kernel.name for x in rows))
    if not names:
        first = f"; the first: {failures[0].name}: {failures[0].reason}" if failures else ""
        raise CompileError(f"none of {len(keys)} kernels compiled{first}; see `aot space --target {target.name}`")
    if not products:
        products, lost = compile_shipped([fallback_key(Operation.of(ElementType.BFLOAT16), target)], target, workplace)
        if lost:
            raise CompileError(f"{lost[0].name}, which every library has, does not compile: {lost[0].reason}")
    library = emulated_library(products, rows, target)
    objects = {x.kernel.name: x.path for x in products} | {x.kernel.name: x.path for x in rows}
    path = build_host_library(library, objects, target, out_dir)
    return EmulatedSet(target, tuple(products), tuple(rows), names, path, tuple(failures))
