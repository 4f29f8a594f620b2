"""Whether a row candidate fits a target, decided before anything is compiled, and the space of those that do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Accepted, Reason, Rejected, Verdict
from aot.core.errors import CandidateError
from aot.row_families import row_families_for, row_family_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.target import Target
    from aot.kinds.rows.candidate import RowCandidate
    from aot.kinds.rows.operation import RowOperation

MAX_REGISTERS = 255
"""Registers that a thread may have. Source: CUDA C++ Programming Guide, technical specifications."""


def _limits(candidate: RowCandidate, operation: RowOperation, target: Target) -> Rejected | None:
    family = row_family_of(candidate)
    used = family.resources(candidate, operation)
    if used.num_threads > target.max_threads_per_block:
        text = f"{candidate.name} needs {used.num_threads} threads; {target.arch} takes {target.max_threads_per_block}"
        return Rejected(Reason.THREADS, f"{text} a block; take fewer rows a CTA")
    if used.smem_bytes > target.smem_bytes_per_block:
        text = f"{candidate.name} needs {used.smem_bytes:,} bytes of shared memory; {target.arch} gives"
        return Rejected(Reason.SMEM, f"{text} {target.smem_bytes_per_block:,} a block; take fewer threads")
    registers = family.registers(candidate, operation)
    most = target.registers_per_sm // used.num_threads
    most = min(most, MAX_REGISTERS)
    if registers > most:
        text = f"{candidate.name} needs about {registers} registers a thread for {operation.tag}; {target.arch} gives"
        return Rejected(Reason.REGISTERS, f"{text} {most} to each of {used.num_threads}; take fewer vectors a thread")
    return None


def check_row(candidate: RowCandidate, operation: RowOperation, target: Target) -> Verdict:
    """Decide whether a candidate may be compiled for a row operation on a target.

    Returns:
        Accepted with the resources of one CTA, or Rejected with the first reason found and its figures.

    Raises:
        CandidateError: there is no such family.
    """
    family = row_family_of(candidate)
    if target.arch not in family.archs:
        text = f"{candidate.name}: {family.name} is for {', '.join(family.archs)}, {target.name} is {target.arch}"
        return Rejected(Reason.ARCHITECTURE, text)
    if next(iter(family.candidates(operation)), None) is None:
        return Rejected(Reason.COMBINATION, f"{candidate.name}: {family.name} computes no {operation.tag}")
    rejected = family.check(candidate, operation) or _limits(candidate, operation, target)
    return rejected or Accepted(family.resources(candidate, operation))


def judge_rows(operation: RowOperation, target: Target) -> Iterator[tuple[RowCandidate, Verdict]]:
    """Return every candidate of every family for the target, with its verdict; fallback families are not tuned."""
    for family in row_families_for(target):
        if not family.is_fallback:
            for candidate in family.candidates(operation):
                yield candidate, check_row(candidate, operation, target)


def legal_rows(operation: RowOperation, target: Target) -> list[RowCandidate]:
    """List the candidates that may be compiled, in the families' order."""
    return [candidate for candidate, verdict in judge_rows(operation, target) if isinstance(verdict, Accepted)]


def row_fallback(operation: RowOperation, target: Target) -> RowCandidate:
    """Return the candidate that takes what no other does.

    Raises:
        CandidateError: no fallback family compiles for the target.
    """
    for family in row_families_for(target):
        if family.is_fallback:
            return next(iter(family.candidates(operation)))
    raise CandidateError(f"no fallback of row operations compiles for {target.arch}; a table without one is not total")
