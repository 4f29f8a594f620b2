"""Where kernels are compiled to, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aot.compile.artifact import Artifact, CompileFailure
from aot.compile.compiler import THIS_MACHINE, Compilers, compile_kernels
from aot.core.candidate import KernelKey
from aot.core.errors import REPAIR, DependencyError
from aot.core.kernel import Kernel
from aot.core.target import Target
from aot.core.work import AnyKey
from aot.space.widths import shared

ARTIFACTS = Path("build/artifacts")
"""The artifact store, below the working directory."""


@dataclass(frozen=True)
class Workplace:
    """Where compiling keeps its results and how it runs."""

    artifacts: Path = ARTIFACTS
    compilers: Compilers = THIS_MACHINE
    progress: bool = True
    verbose: bool = False


def compile_each(keys: Sequence[AnyKey], target: Target, workplace: Workplace) -> list[Artifact[Any] | CompileFailure]:
    """Compile kernels into the workplace's store; see `compile_kernels`.

    Raises:
        DependencyError: a compiler's package is not installed.
    """
    try:
        return compile_kernels(
            keys, target, workplace.artifacts, compilers=workplace.compilers, progress=workplace.progress
        )
    except ImportError as error:
        raise DependencyError(f"cannot compile: {error}; {REPAIR}") from error


def compile_all(
    keys: Sequence[AnyKey], target: Target, workplace: Workplace
) -> tuple[list[Artifact[Any]], list[CompileFailure]]:
    """Compile kernels as `compile_each`; return the artifacts, in the order of their keys, and the failures."""
    results = compile_each(keys, target, workplace)
    artifacts = [x for x in results if isinstance(x, Artifact)]
    return artifacts, [x for x in results if isinstance(x, CompileFailure)]


def compile_shipped(
    keys: Sequence[KernelKey], target: Target, workplace: Workplace
) -> tuple[list[Artifact[Kernel]], list[CompileFailure]]:
    """Compile kernels that ship together: those of one kernel of several widths share its object.

    Returns:
        As `compile_all`; of those that share an object each is described by its own name, candidate and width.

    Raises:
        DependencyError: a compiler's package is not installed.
    """
    of_wide = shared(keys, target)
    built = {key: of_wide.get(key, (key, 0)) for key in keys}
    artifacts, failures = compile_all(list(dict.fromkeys(key for key, _ in built.values())), target, workplace)
    found = {artifact.kernel.key: artifact for artifact in artifacts}
    shipped = [_as_kernel(found[own], key, num_narrower) for key, (own, num_narrower) in built.items() if own in found]
    return shipped, failures


def _as_kernel(artifact: Artifact[Kernel], key: KernelKey, num_narrower: int) -> Artifact[Kernel]:
    """Describe an object as the kernel of one of its widths."""
    kernel = replace(artifact.kernel, name=key.name, candidate=key.candidate, num_narrower=num_narrower or None)
    return replace(artifact, kernel=kernel)
