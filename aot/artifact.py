"""A compiled kernel: an object file in the content-addressed store, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aot.manifest import ManifestKernel


@dataclass(frozen=True)
class Artifact:
    """One object file and the manifest's entry for it."""

    kernel: ManifestKernel
    path: Path
    cpu_s: float = field(default=0.0, compare=False)
    """What compiling took, in seconds of CPU time."""


@dataclass(frozen=True)
class CompileFailure:
    """A candidate that did not compile, or whose object the second gate refused: a result with its reason."""

    name: str
    reason: str
    cpu_s: float = field(default=0.0, compare=False)
    """What it took to fail, in seconds of CPU time."""
