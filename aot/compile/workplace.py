"""Where kernels are compiled to, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.compile.artifact import Artifact, CompileFailure, RowArtifact
from aot.compile.compiler import compile_any, compile_kernels, compile_row_kernels
from aot.compile.kinds import AnyKey
from aot.core.candidate import KernelKey
from aot.core.errors import REPAIR, DependencyError
from aot.core.row_candidate import RowKernelKey
from aot.core.target import Target

ARTIFACTS = Path("build/artifacts")
"""The artifact store, below the working directory."""


@dataclass(frozen=True)
class Workplace:
    """Where compiling keeps its results and how it runs."""

    artifacts: Path = ARTIFACTS
    jobs: int | None = None
    progress: bool = True
    verbose: bool = False


def compile_all(
    keys: Sequence[KernelKey], target: Target, workplace: Workplace
) -> tuple[list[Artifact], list[CompileFailure]]:
    """Compile kernels into the workplace's store; see `compile_kernels`.

    Raises:
        DependencyError: a compiler's package is not installed.
    """
    try:
        return compile_kernels(keys, target, workplace.artifacts, jobs=workplace.jobs, progress=workplace.progress)
    except ImportError as error:
        raise DependencyError(f"cannot compile: {error}; {REPAIR}") from error


def compile_all_rows(
    keys: Sequence[RowKernelKey], target: Target, workplace: Workplace
) -> tuple[list[RowArtifact], list[CompileFailure]]:
    """Compile kernels of row operations into the workplace's store; see `compile_row_kernels`.

    Raises:
        DependencyError: a compiler's package is not installed.
    """
    try:
        return compile_row_kernels(keys, target, workplace.artifacts, jobs=workplace.jobs, progress=workplace.progress)
    except ImportError as error:
        raise DependencyError(f"cannot compile: {error}; {REPAIR}") from error


def compile_all_kinds(
    keys: Sequence[AnyKey], target: Target, workplace: Workplace
) -> list[Artifact | RowArtifact | CompileFailure]:
    """Compile kernels of both kinds, in their order, into the workplace's store; see `compile_any`.

    Raises:
        DependencyError: a compiler's package is not installed.
    """
    try:
        return compile_any(keys, target, workplace.artifacts, jobs=workplace.jobs, progress=workplace.progress)
    except ImportError as error:
        raise DependencyError(f"cannot compile: {error}; {REPAIR}") from error
