"""The space of candidates: enumeration of every family, legality, and the user's include and exclude patterns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING

from aot.core.candidate import Accepted, Candidate, Reason, Rejected, Verdict
from aot.core.dispatch import LOADS
from aot.core.errors import CandidateError
from aot.core.operation import Operation
from aot.core.target import load_target, target_names
from aot.families import all_families_for, families_of, family_of
from aot.space.kinds import space_of
from aot.space.legality import check, unbuilt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aot.core.target import Target
    from aot.core.work import AnyOperation


@dataclass(frozen=True)
class Patterns:
    """Include and exclude patterns on candidate names, in shell style: `sm100_*,-*256x256*`.

    A name is kept if some include matches (or there is none) and no exclude does.
    """

    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> Patterns:
        """Read comma-separated patterns; a leading `-` excludes.

        Raises:
            CandidateError: a pattern is empty.
        """
        parts = [part.strip() for part in text.split(",")] if text else []
        if any(part in ("", "-") for part in parts):
            raise CandidateError(f"empty pattern in {text!r}; write for example 'sm100_*,-*256x256*'")
        includes = tuple(part for part in parts if not part.startswith("-"))
        return Patterns(includes, tuple(part[1:] for part in parts if part.startswith("-")))

    def keep(self, name: str) -> bool:
        """Say whether a name is kept."""
        included = not self.includes or any(fnmatchcase(name, pattern) for pattern in self.includes)
        return included and not any(fnmatchcase(name, pattern) for pattern in self.excludes)


def judge(
    operation: AnyOperation, target: Target, patterns: Patterns, *, only_able: bool = False
) -> Iterator[tuple[Candidate, Verdict]]:
    """Return every candidate of every family for the target, with its verdict; fallback families are not tuned.

    Args:
        operation: what the candidates are to compute.
        target: what they are to run on.
        patterns: which names are kept.
        only_able: whether to leave out families that build no kernel of the operation, all of whose candidates are
            rejected.
    """
    keeps_all = patterns == Patterns()  # names of thousands of candidates are not made then
    for family in space_of(operation).families(operation, target):
        if family.is_fallback or (only_able and unbuilt(family, operation)):
            continue
        for candidate in family.candidates(operation, target):
            if keeps_all or patterns.keep(candidate.name):
                yield candidate, check(candidate, operation, target)
            else:
                yield candidate, Rejected(Reason.PATTERN, f"{candidate.name} is excluded by --kernels")


def legal(operation: AnyOperation, target: Target, patterns: Patterns | None = None) -> list[Candidate]:
    """List the candidates that may be compiled for aligned problems, in the families' order.

    Raises:
        CandidateError: none is left.
    """
    pairs = judge(operation, target, patterns or Patterns(), only_able=True)
    is_timed = space_of(operation).is_timed
    found = [x for x, verdict in pairs if isinstance(verdict, Accepted) and is_timed(x, target)]
    if not found:
        hint = f"see `aot space --target {target.name} --explain`"
        raise CandidateError(f"no candidate of {operation.tag} on {target.name} is left; {hint}")
    return found


def unaligned(operation: Operation, target: Target, loads: int, patterns: Patterns | None = None) -> list[Candidate]:
    """List the candidates that may be compiled for operands that are not aligned; may be empty.

    Those that load fewer bytes at once than the operands give are left out, but for those that take any operands: these
    load 16 bytes and move what they loaded.

    Args:
        operation: what is computed.
        target: the device.
        loads: what `aot.core.dispatch.Section.loads` is: bytes of which A and B are multiples.
        patterns: which names are kept.
    """
    patterns = patterns or Patterns()
    families = [x for x in families_of(operation, target) if not x.is_fallback and not unbuilt(x, operation)]
    every = (x for family in families for x in family.candidates(operation, target))
    able = (x for x in every if takes_loads(x, loads) and family_of(x).alignment(x).loads in (loads, LOADS[0]))
    return [x for x in able if patterns.keep(x.name) and isinstance(check(x, operation, target), Accepted)]


def takes_loads(candidate: Candidate, loads: int) -> bool:
    """Say whether a kernel takes the operands of a section for what is not aligned."""
    asked = family_of(candidate).alignment(candidate)
    return asked.loads <= loads and asked.stores == 1


def fallback(operation: AnyOperation, target: Target) -> Candidate:
    """Return the candidate that takes what no other does.

    Raises:
        CandidateError: no fallback family compiles for the target, or none that computes the operation.
    """
    families = [x for x in all_families_for(target, operation.kind) if x.is_fallback]
    if not families:
        raise CandidateError(
            f"no fallback family of the kind {operation.kind} compiles for {target.arch}; a table without one is not "
            "total"
        )
    candidates = [next(iter(x.candidates(operation, target))) for x in families]
    verdicts = [check(candidate, operation, target) for candidate in candidates]
    for candidate, verdict in zip(candidates, verdicts, strict=True):
        if isinstance(verdict, Accepted):
            return candidate
    refused = next(x.message for x in verdicts if isinstance(x, Rejected))
    able = [x for x in target_names() if target.lacks(operation.needs) and not load_target(x).lacks(operation.needs)]
    others = f"; targets that have it: {', '.join(able)}" if able else ""
    raise CandidateError(f"no kernel computes every {operation.tag}, so that no table can have it: {refused}{others}")


def check_total(operations: Iterable[AnyOperation], target: Target) -> None:
    """Refuse operations of which no kernel computes all problems: before files are read and kernels are chosen.

    Raises:
        CandidateError: the first of them, with the targets that compute it.
    """
    for operation in operations:
        fallback(operation.layouts[0] if isinstance(operation, Operation) else operation, target)


@cache
def has_tuned_kernels(operation: AnyOperation, target: Target, patterns: Patterns | None = None) -> bool:
    """Say whether any kernel but the fallback, of those that patterns leave, computes an operation on a target."""
    pairs = judge(operation, target, patterns or Patterns(), only_able=True)
    return any(isinstance(verdict, Accepted) for _, verdict in pairs)


@dataclass(frozen=True)
class FamilyCensus:
    """How one family's candidates fared: counts, and for each reason one example with its figures."""

    family: str
    num_accepted: int
    num_rejected: dict[Reason, int]
    examples: dict[Reason, str]


def census(operation: AnyOperation, target: Target, patterns: Patterns) -> list[FamilyCensus]:
    """Count verdicts by family and reason."""
    accepted: Counter[str] = Counter()
    rejected: dict[str, Counter[Reason]] = {}
    examples: dict[str, dict[Reason, str]] = {}
    for candidate, verdict in judge(operation, target, patterns):
        rejected.setdefault(candidate.family, Counter())
        if isinstance(verdict, Accepted):
            accepted[candidate.family] += 1
        else:
            rejected[candidate.family][verdict.reason] += 1
            examples.setdefault(candidate.family, {}).setdefault(verdict.reason, verdict.message)
    return [FamilyCensus(name, accepted[name], dict(rejected[name]), examples.get(name, {})) for name in rejected]
