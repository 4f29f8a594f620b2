"""What executing kernels showed: by case and by kernel, and the files that keep it for a command that is run again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aot.core.constraints import Count, Error, FamilyName, KernelName, Label, Positive, Seconds, Sha256, Text, Version
from aot.core.json_text import write_json
from aot.core.strict_json import DecodeError, decode_version, parse_json, read_content
from aot.core.whole_file import write_whole

RESULT_VERSION = 1
"""Raised whenever a field is added without a default, dropped, or changes its meaning."""


@dataclass(frozen=True)
class FoundFinding:
    """One kind of fault or note, at one place of a kernel."""

    kind: Label
    where: Text
    """Line and text of the instruction."""
    text: Text
    """What the first occurrence was."""
    schedule: Label
    """The schedule that it was seen under first."""
    count: Positive
    is_fault: bool
    """Whether the kernel is wrong for it; else it is a note."""


@dataclass(frozen=True)
class CaseResult:
    """What a kernel did on one case, under several schedules."""

    case: Text
    num_runs: Count
    """Executions that came to an end."""
    relative_error: Error
    """Of the results that are right, in the Frobenius norm; 0 of operations on rows, which have none."""
    share_of_bound: Error
    """The largest error of an element that is right, by what verifying allows it: up to 1."""
    fault: Text
    """What is wrong with a result, or why an execution could not go on; empty where nothing is."""
    schedule: Label
    """The last schedule: that of the fault, if there is one."""
    findings: tuple[FoundFinding, ...]
    num_instructions: Count
    """Warp instructions of all executions."""
    seconds: Seconds
    """That interpreting them took."""
    counts: dict[Label, Count]
    """Operations of each kind, and executions of each instruction form where these are counted."""
    bytes_moved: dict[Label, Count]
    """Bytes by kind of access, and conflicts of shared memory's banks, where these are counted."""

    @property
    def num_faults(self) -> int:
        """Count what is wrong: the result, and each finding that is no note."""
        return bool(self.fault) + sum(x.is_fault for x in self.findings)

    @property
    def is_right(self) -> bool:
        """Say whether every result is right and nothing was found but notes."""
        return self.num_faults == 0


@dataclass(frozen=True)
class KernelResult:
    """What a kernel did on all its cases."""

    version: Version
    name: KernelName
    family: FamilyName
    operation: Label
    ptx_sha256: Sha256
    error: Text
    """Why it could not be executed: an instruction that the interpreter does not know, say. Else empty."""
    num_schedules: Positive
    cases: tuple[CaseResult, ...]
    left_out: tuple[Text, ...]
    """Cases that would take more warp instructions than the limit, by what smaller ones took."""

    @property
    def num_right(self) -> int:
        """Count the cases that are right."""
        return sum(case.is_right for case in self.cases)

    @property
    def is_right(self) -> bool:
        """Say whether it was executed, and right on every case."""
        return not self.error and bool(self.cases) and self.num_right == len(self.cases)

    @property
    def num_faults(self) -> int:
        """Count what is wrong in all cases."""
        return bool(self.error) + sum(case.num_faults for case in self.cases)

    @property
    def worst_share(self) -> float:
        """Return the largest error of a right element, by what verifying allows it."""
        return max((case.share_of_bound for case in self.cases), default=0.0)

    @property
    def num_runs(self) -> int:
        """Count the executions that came to an end."""
        return sum(case.num_runs for case in self.cases)

    @property
    def num_instructions(self) -> int:
        """Count the warp instructions of all cases."""
        return sum(case.num_instructions for case in self.cases)

    @property
    def seconds(self) -> float:
        """Return how long interpreting all cases took."""
        return sum(case.seconds for case in self.cases)


def write_result(path: Path, result: KernelResult) -> None:
    """Keep a kernel's result in a file.

    Raises:
        OutputError: the file cannot be written.
    """
    write_whole(path, write_json(result))


def read_result(path: Path) -> KernelResult | None:
    """Return what a file keeps; None where there is none, or it is damaged, so that the kernel is executed again."""
    try:
        return decode_version(KernelResult, parse_json(read_content(path)), "version", RESULT_VERSION)
    except DecodeError:
        return None
