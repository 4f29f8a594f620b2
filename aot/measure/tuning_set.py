"""What a tuning is to measure, as the two JSON files of a bundle: kernels.json and problems.json."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from aot.core.constraints import Arch, Form, Index, KernelName, Label, Microseconds, TargetName, Text, Version
from aot.core.errors import StoreError
from aot.core.json_text import plain_json
from aot.core.strict_json import DecodeError, decode, decode_version, parse_json, read_content, shown
from aot.core.work import AnyProblem, in_order
from aot.kinds.registry import KINDS, Catalogued, kind_named, kind_of

if TYPE_CHECKING:
    from pathlib import Path

    from aot.kinds.kind import Tuned

T = TypeVar("T")

KERNELS_FILE = "kernels.json"
PROBLEMS_FILE = "problems.json"
REPLAY_US, LAUNCHES, FLOPS_A_MICROSECOND = 1000.0, 4, 5e8
"""For each kernel of a problem the host's part and a short replay, and the launches of a long one; and what is computed
in a microsecond where no time is predicted. Only the ratio of two problems' costs matters (`TuningSet.shard`)."""
TUNING_SET_VERSION = 4
"""Raised whenever a file's content changes its meaning."""


@dataclass(frozen=True)
class TuningSet:
    """Kernels, in the order to try them, and problems for one target."""

    target: str
    arch: str
    kernels: tuple[Tuned, ...]
    problems: tuple[AnyProblem, ...]
    chosen: Mapping[AnyProblem, frozenset[str]] = field(default_factory=dict)
    """Names of the kernels to measure a problem with; a problem that is not in it is measured with all."""

    predicted_us: Mapping[AnyProblem, Mapping[str, float]] = field(default_factory=dict)
    """The cost model's times by problem and kernel's name, of the kernels chosen; what a search is ordered by."""
    predicted_by: str | None = None
    """What those of products are predicted by, as `TuningRequest.predicted_by` says it; None where there are none."""

    def is_wanted(self, kernel: Tuned, problem: AnyProblem) -> bool:
        """Say whether a kernel is to be timed on a problem."""
        return kernel.takes(problem) and (problem not in self.chosen or kernel.name in self.chosen[problem])

    def filtered(self, kernels: str | None, problems: str | None) -> TuningSet:
        """Keep what the patterns match (`matches`); no pattern keeps all.

        Raises:
            StoreError: nothing is left.
        """
        left = replace(
            self,
            kernels=tuple(kernel for kernel in self.kernels if kernels is None or matches(kernels, kernel.name)),
            problems=tuple(x for x in self.problems if problems is None or matches(problems, x.name)),
        )
        if not left.kernels or not left.problems:
            raise StoreError(
                f"--kernels {kernels!r} and --problems {problems!r} leave {len(left.kernels)} kernels and "
                f"{len(left.problems)} problems; names look like {self.kernels[0].name!r} and "
                f"{self.problems[0].name!r}"
            )
        return left

    def cost(self, problem: AnyProblem) -> float:
        """Return about how long measuring a problem takes, in microseconds for each of its kernels' replays."""
        num_kernels = sum(self.is_wanted(kernel, problem) for kernel in self.kernels)
        predicted = self.predicted_us.get(problem)
        launch_us = min(predicted.values()) if predicted else problem.flops / FLOPS_A_MICROSECOND
        return num_kernels * (REPLAY_US + LAUNCHES * launch_us)

    def shard(self, number: int, count: int) -> TuningSet:
        """Keep one of `count` parts of the problems, of about equal cost, and the kernels that it measures.

        The problems are dealt from the costliest down, each to the part with the least cost so far, so that the parts
        of equal sets are equal, wherever they are made.

        Args:
            number: of the part, from 1.
            count: of the parts.

        Raises:
            StoreError: the part has no problems.
        """
        costs = {problem: self.cost(problem) for problem in self.problems}
        loads = [(0.0, part) for part in range(count)]
        mine = set()
        for problem in sorted(self.problems, key=lambda x: (-costs[x], in_order(x))):
            load, part = heapq.heappop(loads)
            heapq.heappush(loads, (load + costs[problem], part))
            if part == number - 1:
                mine.add(problem)
        if not mine:
            raise StoreError(f"shard {number}/{count} of {len(self.problems)} problems has none; give fewer shards")
        problems = tuple(problem for problem in self.problems if problem in mine)
        kernels = (x for x in self.kernels if x.is_fallback or any(self.is_wanted(x, problem) for problem in problems))
        return replace(self, kernels=tuple(kernels), problems=problems)


def matches(pattern: str, name: str) -> bool:
    """Say whether a name contains the pattern, or fits it where it has wildcards (`*`, `?`, `[...]`)."""
    return fnmatchcase(name, pattern) if any(c in pattern for c in "*?[") else pattern in name


Plain: TypeAlias = Annotated[Any, Form(Any, lambda value: value)]
"""What is decoded later, by the kind that stands beside it."""


@dataclass(frozen=True)
class _Kernel:
    name: KernelName
    kind: Annotated[str, Form(Label, kind_named)]
    kernel: Plain


def _tuned(entry: Any) -> Tuned:
    """Decode a kernel (DecodeError)."""
    found = decode(_Kernel, entry)
    try:
        kernel: Tuned = decode(KINDS[found.kind].tuned_type, found.kernel)
    except DecodeError as error:
        raise error.inside("kernel") from error
    if kernel.name != found.name:
        raise DecodeError(f"expected the name of its kernel, {kernel.name}, got {shown(found.name)}", ("name",))
    return kernel


@dataclass(frozen=True)
class _Entry:
    operation: Catalogued
    sizes: Plain
    kernels: tuple[Index, ...] | None
    predicted_us: tuple[tuple[Index, Microseconds], ...] | None


def _problem(entry: Any) -> tuple[AnyProblem, _Entry]:
    """Decode a problem, and what else its entry has (DecodeError)."""
    found = decode(_Entry, entry)
    try:
        return kind_of(found.operation).problem(found.operation, found.sizes), found
    except DecodeError as error:
        raise error.inside("sizes") from error


@dataclass(frozen=True)
class _Kernels:
    version: Version
    target: TargetName
    arch: Arch
    kernels: tuple[Annotated[Any, Form(Any, _tuned)], ...]


@dataclass(frozen=True)
class _Problems:
    version: Version
    target: TargetName
    arch: Arch
    problems: tuple[Annotated[Any, Form(Any, _problem)], ...]
    predicted_by: Text | None = None


def _predicted_json(tuning: TuningSet, problem: AnyProblem, index: Mapping[str, int]) -> list[list[float]] | None:
    """Return pairs of a kernel's index and its predicted time."""
    if problem not in tuning.predicted_us:
        return None
    return sorted([index[name], us] for name, us in tuning.predicted_us[problem].items())


def write_tuning_set(directory: Path, tuning: TuningSet) -> None:
    """Write kernels.json and problems.json; equal sets are equal bytes."""
    kernels = [{"name": x.name, "kind": x.key.operation.kind, "kernel": plain_json(x)} for x in tuning.kernels]
    index = {kernel.name: i for i, kernel in enumerate(tuning.kernels)}
    problems = [
        {
            "operation": problem.operation.tag,
            "sizes": kind_of(problem.operation).sizes(problem),
            "kernels": sorted(index[name] for name in tuning.chosen[problem]) if problem in tuning.chosen else None,
            "predicted_us": _predicted_json(tuning, problem, index),
        }
        for problem in tuning.problems
    ]
    head = {"version": TUNING_SET_VERSION, "target": tuning.target, "arch": tuning.arch}
    of_problems = {"problems": problems, "predicted_by": tuning.predicted_by}
    for name, rows in ((KERNELS_FILE, {"kernels": kernels}), (PROBLEMS_FILE, of_problems)):
        text = json.dumps({**head, **rows}, indent=1, sort_keys=True) + "\n"
        (directory / name).write_text(text, encoding="utf-8")


def _read(kind: type[T], path: Path) -> T:
    try:
        return decode_version(kind, parse_json(read_content(path)), "version", TUNING_SET_VERSION)
    except DecodeError as error:
        raise StoreError(f"cannot read {path}: {error}; make the bundle again") from error


def _fault(head: _Kernels, rows: _Problems) -> str:
    """Say what keeps two files from being one tuning set; empty if nothing does."""
    if (head.target, head.arch) != (rows.target, rows.arch):
        return f"{KERNELS_FILE} is for {head.target}, {head.arch}, {PROBLEMS_FILE} for {rows.target}, {rows.arch}"
    names = [kernel.name for kernel in head.kernels]
    if len(set(names)) != len(names):
        return f"{KERNELS_FILE}: {max(names, key=names.count)} is not the name of one kernel"
    if len({problem for problem, _ in rows.problems}) != len(rows.problems):
        return f"{PROBLEMS_FILE}: a problem is there twice"
    entries = [entry for _, entry in rows.problems]
    used = {i for entry in entries for i in (*(entry.kernels or ()), *(i for i, _ in entry.predicted_us or ()))}
    return f"{PROBLEMS_FILE} names kernel {max(used)} of {len(names)}" if max(used, default=-1) >= len(names) else ""


def read_tuning_set(directory: Path) -> TuningSet:
    """Read kernels.json and problems.json.

    Raises:
        StoreError: a file is missing, damaged or of another version, or they are not of one set.
    """
    head, rows = _read(_Kernels, directory / KERNELS_FILE), _read(_Problems, directory / PROBLEMS_FILE)
    fault = _fault(head, rows)
    if fault:
        raise StoreError(f"{directory} is not a tuning set: {fault}; make the bundle again")
    chosen, predicted, kernels = {}, {}, head.kernels
    for problem, entry in rows.problems:
        if entry.kernels is not None:
            chosen[problem] = frozenset(kernels[i].name for i in entry.kernels)
        if entry.predicted_us is not None:
            predicted[problem] = {kernels[i].name: us for i, us in entry.predicted_us}
    problems = tuple(x for x, _ in rows.problems)
    return TuningSet(head.target, head.arch, kernels, problems, chosen, predicted, rows.predicted_by)
