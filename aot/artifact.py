"""A compiled kernel: an object file in the content-addressed store, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aot.manifest import ManifestKernel


@dataclass(frozen=True)
class Artifact:
    """One object file and the manifest's entry for it."""

    kernel: ManifestKernel
    path: Path


@dataclass(frozen=True)
class CompileFailure:
    """A candidate that did not compile, or whose object the second gate refused: a result with its reason."""

    name: str
    reason: str
