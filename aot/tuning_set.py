"""What a tuning is to measure, as the two JSON files of a bundle: kernels.json and problems.json."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from aot.candidate import Candidate, KernelKey, SplitK
from aot.dispatch import takes
from aot.errors import CandidateError, StoreError
from aot.operands import is_aligned
from aot.problem import Dtype, Layout, Operation, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KERNELS_FILE = "kernels.json"
PROBLEMS_FILE = "problems.json"
TUNING_SET_VERSION = 2
"""Raised whenever a file's content changes its meaning."""


@dataclass(frozen=True)
class TunedKernel:
    """One kernel of a tuning library."""

    key: KernelKey
    object_sha256: str
    """Digest of the compiled object: a kernel that is compiled anew is measured anew."""
    m_multiple: int = 1
    n_multiple: int = 1
    is_fallback: bool = False
    """Whether it takes operands of any alignment and layout; such a kernel is verified and never timed."""

    @property
    def name(self) -> str:
        """Give the kernel's name in the library."""
        return self.key.name

    @property
    def is_reproducible(self) -> bool:
        """Say whether two runs must give the same bits."""
        return SplitK(self.key.candidate.split_k_mode) is not SplitK.PARALLEL

    def takes(self, problem: Problem) -> bool:
        """Say whether the kernel is to be timed on the problem, with packed operands."""
        if self.is_fallback or problem.operation != self.key.operation or not is_aligned(problem):
            return False
        return takes(problem, self.m_multiple, self.n_multiple)


@dataclass(frozen=True)
class TuningSet:
    """Kernels, in the order to try them, and problems for one target."""

    target: str
    arch: str
    kernels: tuple[TunedKernel, ...]
    problems: tuple[Problem, ...]
    chosen: Mapping[Problem, frozenset[str]] = field(default_factory=dict)
    """Names of the kernels to measure a problem with; a problem that is not in it is measured with all."""

    predicted_us: Mapping[Problem, Mapping[str, float]] = field(default_factory=dict)
    """The cost model's times by problem and kernel's name, of the kernels chosen; what a search is ordered by."""

    def is_wanted(self, kernel: TunedKernel, problem: Problem) -> bool:
        """Say whether a kernel is to be timed on a problem."""
        return kernel.takes(problem) and (problem not in self.chosen or kernel.name in self.chosen[problem])

    def filtered(self, kernels: str | None, problems: str | None) -> TuningSet:
        """Keep what the patterns match (`matches`); no pattern keeps all.

        Raises:
            StoreError: nothing is left.
        """
        left = TuningSet(
            self.target,
            self.arch,
            tuple(kernel for kernel in self.kernels if kernels is None or matches(kernels, kernel.name)),
            tuple(problem for problem in self.problems if problems is None or matches(problems, problem.name)),
            self.chosen,
            self.predicted_us,
        )
        if not left.kernels or not left.problems:
            raise StoreError(
                f"--kernels {kernels!r} and --problems {problems!r} leave {len(left.kernels)} kernels and "
                f"{len(left.problems)} problems; names look like {self.kernels[0].name!r} and "
                f"{self.problems[0].name!r}"
            )
        return left


def matches(pattern: str, name: str) -> bool:
    """Say whether a name contains the pattern, or fits it where it has wildcards (`*`, `?`, `[...]`)."""
    return fnmatchcase(name, pattern) if any(c in pattern for c in "*?[") else pattern in name


def operation_json(operation: Operation) -> dict[str, str]:
    """Give an operation as plain values."""
    return {"dtype": operation.dtype_name, "layout": operation.layout_name}


def operation_from_json(values: dict[str, str]) -> Operation:
    """Make an operation of plain values; KeyError or ValueError when they are not one."""
    return Operation.of(Dtype(values["dtype"]), Layout(values["layout"]))


def _predicted_json(tuning: TuningSet, problem: Problem, index: Mapping[str, int]) -> list[list[float]] | None:
    """Give pairs of a kernel's index and its predicted time."""
    if problem not in tuning.predicted_us:
        return None
    return sorted([index[name], us] for name, us in tuning.predicted_us[problem].items())


def write_tuning_set(directory: Path, tuning: TuningSet) -> None:
    """Write kernels.json and problems.json; equal sets are equal bytes."""
    kernels = [
        {
            "name": kernel.name,
            "operation": operation_json(kernel.key.operation),
            "candidate": kernel.key.candidate.as_json(),
            "object_sha256": kernel.object_sha256,
            "m_multiple": kernel.m_multiple,
            "n_multiple": kernel.n_multiple,
            "is_fallback": kernel.is_fallback,
        }
        for kernel in tuning.kernels
    ]
    index = {kernel.name: i for i, kernel in enumerate(tuning.kernels)}
    problems = [
        {
            "operation": operation_json(problem.operation),
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "kernels": sorted(index[name] for name in tuning.chosen[problem]) if problem in tuning.chosen else None,
            "predicted_us": _predicted_json(tuning, problem, index),
        }
        for problem in tuning.problems
    ]
    head = {"version": TUNING_SET_VERSION, "target": tuning.target, "arch": tuning.arch}
    for name, rows in ((KERNELS_FILE, {"kernels": kernels}), (PROBLEMS_FILE, {"problems": problems})):
        content = {**head, **rows}
        text = json.dumps(content, indent=1, sort_keys=True) + "\n"
        (directory / name).write_text(text, encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {error}; make the bundle again") from error
    version = values.get("version") if isinstance(values, dict) else None
    if version != TUNING_SET_VERSION:
        raise StoreError(f"{path} has version {version!r}, expected {TUNING_SET_VERSION}; make the bundle again")
    return dict(values)


def _kernel(entry: dict[str, Any]) -> TunedKernel:
    return TunedKernel(
        KernelKey(operation_from_json(entry["operation"]), Candidate.from_json(entry["candidate"])),
        entry["object_sha256"],
        entry["m_multiple"],
        entry["n_multiple"],
        entry["is_fallback"],
    )


def _problem(entry: dict[str, Any]) -> Problem:
    return Problem(operation_from_json(entry["operation"]), entry["m"], entry["n"], entry["k"])


def read_tuning_set(directory: Path) -> TuningSet:
    """Read kernels.json and problems.json.

    Raises:
        StoreError: a file is missing, damaged or of another version.
    """
    head, rows = _read(directory / KERNELS_FILE), _read(directory / PROBLEMS_FILE)
    try:
        kernels = tuple(_kernel(entry) for entry in head["kernels"])
        problems = [(_problem(entry), entry["kernels"], entry["predicted_us"]) for entry in rows["problems"]]
        chosen = {
            problem: frozenset(kernels[i].name for i in indices)
            for problem, indices, _ in problems
            if indices is not None
        }
        predicted = {
            problem: {kernels[i].name: float(us) for i, us in pairs}
            for problem, _, pairs in problems
            if pairs is not None
        }
        listed = tuple(problem for problem, _, _ in problems)
        return TuningSet(str(head["target"]), str(head["arch"]), kernels, listed, chosen, predicted)
    except (KeyError, TypeError, ValueError, IndexError, CandidateError) as error:
        raise StoreError(f"{directory}: not a tuning set ({error!r}); make the bundle again") from error
