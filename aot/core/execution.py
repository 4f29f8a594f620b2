"""What the interpreter found of kernels, and which state a kernel has by that: `aot/executions/<target>.json.gz`.

A record is bound to the code by the hash of a kernel's PTX: where a source or the compiler changes the kernel, no
record speaks of it any more. `aot emulate --record` writes these files, and tests execute the kernels again and
compare.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.constraints import Count, Date, Error, KernelName, Positive, Sha256, TargetName, Version, Word
from aot.core.errors import StoreError
from aot.core.json_text import write_json
from aot.core.strict_json import DecodeError, decode_version, parse_json, read_content
from aot.core.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EXECUTIONS_VERSION = 1
"""Raised whenever a field is dropped, changes its meaning, or is added that may not be absent."""

COMMITTED = Path(__file__).parents[1] / "executions"
"""The records that the project ships: a file for each target whose kernels were executed."""

SUFFIX = ".json.gz"
"""What the names of the committed records end with, behind the target's."""

INTERPRETER = Path(__file__).parents[1] / "emulate"


class KernelState(Word):
    """How far a kernel was tried."""

    RUN = "run"
    """It ran on a device that it is for: a time of it, taken there, stands behind a table of the wheel."""
    EXECUTED = "executed"
    """The interpreter executed its PTX, found nothing, and its results were within the bound of `aot verify`."""
    COMPILED = "compiled"
    """It was compiled, and its object was read."""


@dataclass(frozen=True)
class Execution:
    """What the interpreter found of one kernel."""

    kernel: KernelName
    ptx_sha256: Sha256
    """Of the PTX that was executed."""
    interpreter_sha256: Sha256
    """Of the sources of the interpreter: see `interpreter_sha256`."""
    num_cases: Positive
    """Problems, with their operands."""
    num_schedules: Positive
    """Orders in which warps, CTAs and asynchronous units took their turns."""
    num_runs: Positive
    """Executions of a case under a schedule."""
    worst_error: Error
    """The largest error of an element, as a share of the bound that `aot verify` allows it: above 1 it is wrong."""
    num_findings: Count
    """Races, deadlocks, accesses outside, reads of what nobody wrote, and results that are no number."""
    date: Date

    def __post_init__(self) -> None:
        """Refuse numbers that contradict each other (ValueError)."""
        if self.num_runs < max(self.num_cases, self.num_schedules):
            raise ValueError(
                f"{self.num_runs} runs are fewer than {self.num_cases} cases or {self.num_schedules} schedules; "
                "expected a run for each"
            )

    @property
    def is_right(self) -> bool:
        """Say whether every result was within its bound and nothing was found."""
        return self.num_findings == 0 and self.worst_error <= 1


@dataclass(frozen=True)
class _Executions:
    version: Version
    target: TargetName
    executions: tuple[Execution, ...]

    def __post_init__(self) -> None:
        """Refuse an order by which equal records would not be equal bytes, or a kernel that is there twice."""
        names = [x.kernel for x in self.executions]
        if names != sorted(set(names)):
            raise ValueError("executions must ascend by their kernels' names, each kernel once")


def _decoded(content: str | bytes, target: str) -> tuple[Execution, ...]:
    found = decode_version(_Executions, parse_json(content), "version", EXECUTIONS_VERSION)
    if found.target != target:
        raise DecodeError(f"it is of {found.target}; expected {target}")
    return found.executions


def read_executions(path: Path, target: str) -> tuple[Execution, ...]:
    """Read what was found of a target's kernels, ordered by their names.

    Args:
        path: the file.
        target: the name of the target that it must be of.

    Raises:
        StoreError: the file cannot be read, is damaged, or of another version or target.
    """
    try:
        return _decoded(read_content(path), target)
    except DecodeError as error:
        raise StoreError(f"{path}: {error}; write it again with `aot emulate --record`") from error


def write_executions(path: Path, target: str, executions: Iterable[Execution]) -> None:
    """Write what was found of a target's kernels; equal records are equal bytes.

    Args:
        path: the file; it is replaced as a whole, and compressed where its name ends with `.gz`.
        target: the target's name.
        executions: in any order, each kernel once; see `merged`.

    Raises:
        StoreError: they are none that could be read again, such as an error that is no number.
        OutputError: the file cannot be written.
    """
    ordered = sorted(executions, key=lambda x: x.kernel)
    text = write_json({"version": EXECUTIONS_VERSION, "target": target, "executions": ordered})
    try:
        _decoded(text, target)
    except DecodeError as error:
        raise StoreError(f"the executions for {path}: {error}; record what a file can hold") from error
    write_whole(path, gzip.compress(text.encode(), 9, mtime=0) if path.suffix == ".gz" else text)


def merged(known: Sequence[Execution], new: Iterable[Execution]) -> tuple[Execution, ...]:
    """Return what is known, in which a kernel's new execution takes the place of its older one."""
    by_name = {x.kernel: x for x in (*known, *new)}
    return tuple(by_name[name] for name in sorted(by_name))


def executions_path(target: str, folder: Path = COMMITTED) -> Path:
    """Return the file of a target's record."""
    return folder / f"{target}{SUFFIX}"


def committed_executions(folder: Path = COMMITTED) -> tuple[Execution, ...]:
    """Read the records of all targets: a kernel whose PTX is the same for several targets counts for all of them.

    Raises:
        StoreError: as `read_executions`.
    """
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    return tuple(x for path in paths for x in read_executions(path, path.name.removesuffix(SUFFIX)))


def execution_of(name: str, ptx_sha256: str, executions: Iterable[Execution]) -> Execution | None:
    """Return what was found of a kernel with that PTX; None where no record speaks of it.

    Where several do, one that found something comes first, so that nothing found is hidden.
    """
    found = [x for x in executions if (x.kernel, x.ptx_sha256) == (name, ptx_sha256)]
    return min(found, key=lambda x: x.is_right, default=None)


def state_of(execution: Execution | None, *, is_measured: bool) -> KernelState:
    """Return a kernel's state.

    Args:
        execution: what the interpreter found of it, if anything.
        is_measured: whether a time of it was taken on a device that it is for.
    """
    if is_measured:
        return KernelState.RUN
    return KernelState.EXECUTED if execution is not None and execution.is_right else KernelState.COMPILED


def interpreter_sha256(folder: Path = INTERPRETER) -> str:
    """Hash the sources of the interpreter: each file's name and content, in the order of the names."""
    digest = hashlib.sha256()
    for path in sorted(x for x in folder.rglob("*") if x.suffix in (".py", ".cc")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
