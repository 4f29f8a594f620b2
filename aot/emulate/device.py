"""What all warps of a run share."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.emulate.faults import Finding, FindingKind
from aot.emulate.operations import Operations

if TYPE_CHECKING:
    from aot.emulate.memory import GlobalMemory
    from aot.emulate.order import Knowledge
    from aot.emulate.schedule import Schedule


@dataclass(frozen=True)
class Report:
    """What a run showed beside the results in memory."""

    findings: tuple[Finding, ...]
    num_instructions: int
    """Of warps."""
    counts: Mapping[str, int]
    """Executions of each instruction form, if they are counted, and operations of each kind."""
    bytes_moved: Mapping[str, int]
    """By kind of operation, and the conflicts of shared memory's banks as `bank conflicts`, if they are counted."""


class Device:
    """Global memory, the asynchronous operations, and what is found and counted.

    Args:
        memory: what launches read and write.
        schedule: the adversary.
        resident: clusters that run at once.
        counts: whether executions of each form, bytes and bank conflicts are counted, which takes time.
    """

    def __init__(self, memory: GlobalMemory, schedule: Schedule, *, resident: int, counts: bool) -> None:
        self.memory, self.resident, self.counts_forms = memory, resident, counts
        self.rng = random.Random(schedule.seed)  # noqa: S311 - draws schedules, no secrets
        self.counts: Counter[str] = Counter()
        self.bytes_moved: Counter[str] = Counter()
        self.num_instructions = 0
        self.operations = Operations(schedule.held, self.rng, self.counts)
        self.told: dict[int, Knowledge] = {}
        """What strong stores have told, by place: see units/atomics.py."""
        self._findings: dict[tuple[FindingKind, str], list[object]] = {}

    def report(self, kind: FindingKind, where: str, text: str) -> None:
        """Take note of a finding; those of one kind and place are counted."""
        found = self._findings.setdefault((kind, where), [text, 0])
        found[1] += 1  # type: ignore[operator]

    def found(self) -> Report:
        """Return what was found so far: of a run that a fault has ended, too."""
        findings = [Finding(kind, where, str(x[0]), int(x[1])) for (kind, where), x in self._findings.items()]  # type: ignore[call-overload]
        return Report(tuple(findings), self.num_instructions, dict(self.counts), dict(self.bytes_moved))
