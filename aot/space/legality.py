"""The only statement of what is legal: whether a candidate fits a target, decided before anything is compiled.

This is the answer to CUTLASS's build failure "SMEM usage exceeded capacity" (cutlass issue 2784): a kernel that cannot
fit is found by arithmetic, explained in bytes, and left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Accepted, Candidate, Reason, Rejected, Resources, Verdict
from aot.core.knobs import SplitK
from aot.families import family_of, tiling_of

if TYPE_CHECKING:
    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Family


def _smem(candidate: Candidate, resources: Resources, target: Target) -> Rejected | None:
    limit = target.smem_bytes_per_block
    if resources.smem_bytes <= limit:
        return None
    fixed = resources.smem_bytes - resources.num_stages * resources.stage_bytes
    fit = max(limit - fixed, 0) // resources.stage_bytes
    fits = {0: "no stage fits; take a smaller tile", 1: "1 stage fits; take a smaller tile"}.get(
        fit, f"{fit} stages fit"
    )
    text = (
        f"{candidate.name} needs {resources.smem_bytes:,} bytes of shared memory with {resources.num_stages} stages "
        f"of {resources.stage_bytes:,}; {target.arch} gives {limit:,} a block; {fits}"
    )
    return Rejected(Reason.SMEM, text)


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
    tiling = tiling_of(candidate)
    cluster, clusters = (
        (tiling.cluster_m, tiling.cluster_n),
        (*target.clusters, *family_of(candidate).own_clusters),
    )
    if cluster not in clusters:
        allowed = ", ".join(f"{m}x{n}" for m, n in clusters)
        text = f"{candidate.name}: cluster {cluster[0]}x{cluster[1]} is not one of {target.name}'s: {allowed}"
        return Rejected(Reason.CLUSTER, text)
    return None


_NO_SPLIT, *_SPLITS = (mode.value for mode in SplitK)


def _split_k(candidate: Candidate) -> Rejected | None:
    """Refuse a split without a mode and a mode without a split: the workspace would not be the kernel's."""
    tiling = tiling_of(candidate)
    is_split = tiling.split_k_mode != _NO_SPLIT
    is_known = not is_split or tiling.split_k_mode in _SPLITS
    if is_known and tiling.split_k >= 1 and is_split == (tiling.split_k > 1):
        needs_none = tiling.split_k_mode == SplitK.CLUSTER
        if needs_none and family_of(candidate).workspace(candidate).mode != SplitK.NONE:
            text = f"{candidate.name}: {candidate.family} splits k through a workspace, not within a cluster"
            return Rejected(Reason.COMBINATION, text)
        return None
    text = f"{candidate.name}: split_k {tiling.split_k} in mode '{tiling.split_k_mode}'"
    return Rejected(Reason.COMBINATION, f"{text}; 1 goes with {_NO_SPLIT}, 2 and more with {', '.join(_SPLITS)}")


def unbuilt(family: Family, operation: Operation) -> Reason | None:
    """Say what of an operation a family has no code for, whatever the candidate is; None where it has all."""
    if operation.types not in family.types:
        return Reason.TYPES
    if operation.epilogue not in family.epilogues:
        return Reason.EPILOGUE
    return None if operation.grouping in family.groupings else Reason.GROUPING


def _refuse_unbuilt(candidate: Candidate, operation: Operation, family: Family, reason: Reason) -> Rejected:
    kind, built, needed = {
        Reason.TYPES: ("types", [x.tag for x in family.types], operation.types.tag),
        Reason.EPILOGUE: ("epilogues", [str(x) for x in family.epilogues], str(operation.epilogue)),
        Reason.GROUPING: ("groupings", [x.value for x in family.groupings], operation.grouping.value),
    }[reason]
    text = f"{candidate.name}: {family.name} builds the {kind} {', '.join(built)}, {operation.tag} needs {needed}"
    return Rejected(reason, text)


def check(candidate: Candidate, operation: Operation, target: Target) -> Verdict:
    """Decide whether a candidate may be compiled for an operation on a target.

    Returns:
        Accepted with the resources of one CTA, or Rejected with the first reason found and its figures.

    Raises:
        CandidateError: there is no such family.
    """
    family = family_of(candidate)
    for needing, needs in ((family.name, family.needs), (operation.tag, operation.types.needs)):
        lacked = target.lacks(needs)
        if lacked:
            text = f"{candidate.name}: {needing} needs {', '.join(lacked)}, which {target.name} ({target.arch}) has not"
            return Rejected(Reason.FEATURE, text)
    missing = unbuilt(family, operation)
    if missing:
        return _refuse_unbuilt(candidate, operation, family, missing)
    wrong = _split_k(candidate)
    if wrong:
        return wrong
    resources = family.resources(candidate, operation, target)
    rejected = (
        _smem(candidate, resources, target)
        or family.check(candidate, operation, target)
        or _limits(candidate, resources, target)
    )
    return rejected or Accepted(resources)
