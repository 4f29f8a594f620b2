"""The only statement of what is legal: whether a candidate fits a target, decided before anything is compiled.

This is the answer to CUTLASS's build failure "SMEM usage exceeded capacity" (cutlass issue 2784): a kernel that cannot
fit is found by arithmetic, explained in bytes, and left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Accepted, Candidate, Reason, Rejected, Resources, Verdict
from aot.core.errors import CandidateError
from aot.families import any_family_of, check_knobs
from aot.space.kinds import space_of

if TYPE_CHECKING:
    from aot.core.target import Target
    from aot.core.work import AnyOperation
    from aot.families import Family

MAX_REGISTERS = 255
"""Registers that a thread may have. Source: CUDA C++ Programming Guide, technical specifications."""


def _smem(candidate: Candidate, resources: Resources, target: Target) -> Rejected | None:
    limit = target.smem_bytes_per_block
    if resources.smem_bytes <= limit:
        return None
    text = f"{candidate.name} needs {resources.smem_bytes:,} bytes of shared memory"
    gives = f"{target.arch} gives {limit:,} a block"
    if not resources.num_stages:
        return Rejected(Reason.SMEM, f"{text}; {gives}; take fewer threads")
    fixed = resources.smem_bytes - resources.num_stages * resources.stage_bytes
    fit = max(limit - fixed, 0) // resources.stage_bytes
    fits = {0: "no stage fits; take a smaller tile", 1: "1 stage fits; take a smaller tile"}.get(
        fit, f"{fit} stages fit"
    )
    return Rejected(
        Reason.SMEM, f"{text} with {resources.num_stages} stages of {resources.stage_bytes:,}; {gives}; {fits}"
    )


def _limits(candidate: Candidate, resources: Resources, target: Target) -> Rejected | None:
    if resources.tmem_columns > target.tmem_columns:
        text = (
            f"{candidate.name} needs {resources.tmem_columns} columns of tensor memory; "
            f"{target.arch} has {target.tmem_columns}; take a smaller tile_n"
        )
        return Rejected(Reason.TMEM, text)
    if resources.num_threads > target.max_threads_per_block:
        text = (
            f"{candidate.name} needs {resources.num_threads} threads; "
            f"{target.arch} takes {target.max_threads_per_block} a block"
        )
        return Rejected(Reason.THREADS, text)
    most = min(target.registers_per_sm // resources.num_threads, MAX_REGISTERS)
    if resources.registers > most:
        text = (
            f"{candidate.name} needs about {resources.registers} registers a thread; "
            f"{target.arch} gives {most} to each of {resources.num_threads}"
        )
        return Rejected(Reason.REGISTERS, text)
    return None


def unbuilt(family: Family, operation: AnyOperation) -> Reason | None:
    """Say what of an operation a family has no code for, whatever the candidate is; None where it has all."""
    return space_of(operation).unbuilt(family, operation)


def check(candidate: Candidate, operation: AnyOperation, target: Target) -> Verdict:
    """Decide whether a candidate may be compiled for an operation on a target.

    Returns:
        Accepted with the resources of one CTA, or Rejected with the first reason found and its figures.

    Raises:
        CandidateError: there is no such family.
    """
    family, space = any_family_of(candidate), space_of(operation)
    if family.kind != operation.kind:
        text = f"{candidate.name}: {family.name} is of the kind {family.kind}, {operation.tag} of {operation.kind}"
        return Rejected(Reason.OPERATION, text)
    for needing, needs in ((family.name, family.needs), (operation.tag, operation.needs)):
        lacked = target.lacks(needs)
        if lacked:
            text = f"{candidate.name}: {needing} needs {', '.join(lacked)}, which {target.name} ({target.arch}) has not"
            return Rejected(Reason.FEATURE, text)
    missing = space.unbuilt(family, operation)
    if missing:
        return Rejected(missing, f"{candidate.name}: {space.unbuilt_text(family, operation, missing)}")
    wrong = space.inconsistency(candidate)
    if wrong:
        return wrong
    resources = family.resources(candidate, operation, target)
    rejected = (
        _smem(candidate, resources, target)
        or family.check(candidate, operation, target)
        or _limits(candidate, resources, target)
        or space.excess(candidate, target)
    )
    return rejected or Accepted(resources)


def check_recorded(candidate: Candidate, target: Target) -> None:
    """Refuse a candidate that cannot have been measured on a target.

    Raises:
        CandidateError: there is no such family, the candidate has knobs of another, or the target lacks what the family
            needs.
    """
    check_knobs(candidate)
    lacked = target.lacks(any_family_of(candidate).needs)
    if lacked:
        raise CandidateError(f"has kernels of {candidate.family}, which needs {lacked[0]}; {target.name} has it not")
