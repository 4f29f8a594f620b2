"""What a tuning is to measure, as the two JSON files of a bundle: kernels.json and problems.json."""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from aot.core.candidate import Candidate, KernelKey
from aot.core.constraints import Arch, Extent, Index, KernelName, Microseconds, Sha256, TargetName, Version
from aot.core.dispatch import ALIGNMENT_BYTES, takes
from aot.core.errors import StoreError
from aot.core.knobs import SplitK, split_mode
from aot.core.operands import unaligned_loads
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.strict_json import DecodeError, decode_version, parse_json, read_content
from aot.core.tile_order import HEURISTIC, order_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

T = TypeVar("T")

KERNELS_FILE = "kernels.json"
PROBLEMS_FILE = "problems.json"
REPLAY_US, LAUNCHES, FLOPS_A_MICROSECOND = 1000.0, 4, 5e8
"""For each kernel of a problem the host's part and a short replay, and the launches of a long one; and what is computed
in a microsecond where no time is predicted. Only the ratio of two problems' costs matters (`TuningSet.shard`)."""
TUNING_SET_VERSION = 3
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
    orders_tiles: bool = False
    """Whether it takes its tiles in an order that it is told."""
    load_alignment: int = ALIGNMENT_BYTES
    """Bytes of which addresses and leading strides of A and B are multiples."""
    store_alignment: int = ALIGNMENT_BYTES
    """The same of D and of what the epilogue reads; 1 of a kernel that takes any."""
    tile_order: int = HEURISTIC
    """The order in which it takes them."""

    @cached_property
    def name(self) -> str:
        """Return the kernel's name in the library; of another order, with that behind it."""
        return f"{self.key.name} {order_name(self.tile_order)}".rstrip()

    @property
    def is_reproducible(self) -> bool:
        """Say whether two runs must give the same bits."""
        return split_mode(self.key.candidate.knobs) is not SplitK.PARALLEL

    def takes(self, problem: Problem) -> bool:
        """Say whether the kernel is to be timed on the problem, with packed operands."""
        if self.is_fallback or problem.operation != self.key.operation:
            return False
        loads = unaligned_loads(problem)
        if loads and (self.load_alignment > loads or self.store_alignment > 1):
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

    def _cost(self, problem: Problem) -> float:
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
        costs = {problem: self._cost(problem) for problem in self.problems}
        loads = [(0.0, part) for part in range(count)]
        mine = set()
        for problem in sorted(self.problems, key=lambda x: (-costs[x], x)):
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


@dataclass(frozen=True)
class _Kernel:
    name: KernelName
    operation: Operation
    candidate: Candidate
    object_sha256: Sha256
    m_multiple: Extent
    n_multiple: Extent
    is_fallback: bool
    orders_tiles: bool | None = None
    load_alignment: Extent | None = None
    store_alignment: Extent | None = None

    @property
    def kernel(self) -> TunedKernel:
        key = KernelKey(self.operation, self.candidate)
        return TunedKernel(
            key,
            self.object_sha256,
            self.m_multiple,
            self.n_multiple,
            self.is_fallback,
            bool(self.orders_tiles),
            self.load_alignment or ALIGNMENT_BYTES,
            self.store_alignment or ALIGNMENT_BYTES,
        )


@dataclass(frozen=True)
class _Problem:
    operation: Operation
    m: Extent
    n: Extent
    k: Extent
    kernels: tuple[Index, ...] | None
    predicted_us: tuple[tuple[Index, Microseconds], ...] | None
    num_groups: Extent | None = None

    @property
    def problem(self) -> Problem:
        return Problem(self.operation, self.m, self.n, self.k, self.num_groups or 1)


@dataclass(frozen=True)
class _Kernels:
    version: Version
    target: TargetName
    arch: Arch
    kernels: tuple[_Kernel, ...]


@dataclass(frozen=True)
class _Problems:
    version: Version
    target: TargetName
    arch: Arch
    problems: tuple[_Problem, ...]


def _predicted_json(tuning: TuningSet, problem: Problem, index: Mapping[str, int]) -> list[list[float]] | None:
    """Return pairs of a kernel's index and its predicted time."""
    if problem not in tuning.predicted_us:
        return None
    return sorted([index[name], us] for name, us in tuning.predicted_us[problem].items())


def write_tuning_set(directory: Path, tuning: TuningSet) -> None:
    """Write kernels.json and problems.json; equal sets are equal bytes."""
    kernels = [
        {
            "name": kernel.name,
            "operation": kernel.key.operation,
            "candidate": kernel.key.candidate.as_json(),
            "object_sha256": kernel.object_sha256,
            "m_multiple": kernel.m_multiple,
            "n_multiple": kernel.n_multiple,
            "is_fallback": kernel.is_fallback,
            "orders_tiles": kernel.orders_tiles,
            "load_alignment": kernel.load_alignment,
            "store_alignment": kernel.store_alignment,
        }
        for kernel in tuning.kernels
    ]
    index = {kernel.name: i for i, kernel in enumerate(tuning.kernels)}
    problems = [
        {
            "operation": problem.operation,
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "num_groups": problem.num_groups,
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


def _read(kind: type[T], path: Path) -> T:
    try:
        return decode_version(kind, parse_json(read_content(path)), "version", TUNING_SET_VERSION)
    except DecodeError as error:
        raise StoreError(f"cannot read {path}: {error}; make the bundle again") from error


def _fault(head: _Kernels, rows: _Problems) -> str:
    """Say what keeps two files from being one tuning set; empty if nothing does."""
    if (head.target, head.arch) != (rows.target, rows.arch):
        return f"{KERNELS_FILE} is for {head.target}, {head.arch}, {PROBLEMS_FILE} for {rows.target}, {rows.arch}"
    names = [entry.kernel.name for entry in head.kernels]
    renamed = next((entry.name for entry, name in zip(head.kernels, names, strict=True) if entry.name != name), "")
    if renamed or len(set(names)) != len(names):
        return f"{KERNELS_FILE}: {renamed or max(names, key=names.count)} is not the name of one kernel"
    if len({entry.problem for entry in rows.problems}) != len(rows.problems):
        return f"{PROBLEMS_FILE}: a problem is there twice"
    used = {i for entry in rows.problems for i in (*(entry.kernels or ()), *(i for i, _ in entry.predicted_us or ()))}
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
    kernels = tuple(entry.kernel for entry in head.kernels)
    chosen, predicted = {}, {}
    for entry in rows.problems:
        if entry.kernels is not None:
            chosen[entry.problem] = frozenset(kernels[i].name for i in entry.kernels)
        if entry.predicted_us is not None:
            predicted[entry.problem] = {kernels[i].name: us for i, us in entry.predicted_us}
    return TuningSet(
        head.target, head.arch, kernels, tuple(entry.problem for entry in rows.problems), chosen, predicted
    )
