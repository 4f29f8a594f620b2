"""A compiled kernel: an object file in the content-addressed store, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

from aot.core.constraints import Form, Seconds, Text
from aot.core.kernel import Kernel
from aot.core.strict_json import decode, parse_json, read_content
from aot.kinds.registry import read_kernel
from aot.kinds.rows.kernel import RowKernel

PTX_NAME = "kernel.ptx"
"""How the store calls the file of a kernel's PTX, beside its object."""


AnyKernel: TypeAlias = Kernel | RowKernel
"""A compiled kernel of any kind."""
N_co = TypeVar("N_co", bound=AnyKernel, covariant=True)


@dataclass(frozen=True)
class Artifact(Generic[N_co]):
    """One object file and the manifest's entry for it."""

    kernel: N_co
    path: Path
    cpu_s: float = field(default=0.0, compare=False)
    """What compiling took, in seconds of CPU time."""

    @property
    def ptx_path(self) -> Path:
        """Return the file of the PTX that the object's device code was assembled from."""
        return self.path.with_name(PTX_NAME)


@dataclass(frozen=True)
class CompileFailure:
    """A candidate that did not compile, or whose object the second gate refused: a result with its reason."""

    name: str
    reason: str
    cpu_s: float = field(default=0.0, compare=False)
    """What it took to fail, in seconds of CPU time."""


@dataclass(frozen=True)
class StoredResult:
    """The file beside an object in the store: what became of compiling one kernel."""

    seconds: Seconds
    kernel: Annotated[AnyKernel, Form(Any, read_kernel)] | None = None
    failure: Text | None = None

    def __post_init__(self) -> None:
        """Refuse what is neither an artifact nor a failure, or both (ValueError)."""
        if (self.kernel is None) == (self.failure is None):
            raise ValueError("expected a kernel or a failure")


def read_result(path: Path) -> StoredResult:
    """Read the result of compiling one kernel.

    Raises:
        DecodeError: the file cannot be read, or is none.
    """
    return decode(StoredResult, parse_json(read_content(path)))
