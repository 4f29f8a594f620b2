"""Which kernels one kernel of several widths can stand for: see `aot.families.sm90_one_tile`. Pure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from aot.core.candidate import Accepted, KernelKey
from aot.families.sm90_one_tile import FAMILY
from aot.space.legality import check

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aot.core.candidate import Candidate
    from aot.core.operation import Operation
    from aot.core.target import Target


MAX_TILES = 4
"""Tiles of a cluster up to which a kernel of several widths is as fast as those that it stands for. Source: on an
H200 15 kernels of four widths took 1.005 times as long in the median of their 60 tiles, that of 4x2 tiles 1.02 to 1.04
times (research/log/2026-11-24-widths.md)."""


@cache
def of_widths(candidate: Candidate, operation: Operation, target: Target) -> tuple[Candidate, int] | None:
    """Return the kernel of several widths that computes a candidate's tiles, and how many groups of 8 it is wider.

    None where there is none: the kernel is of another family, or of an operation, or of tiles, that none is built for.
    """
    if candidate.family != FAMILY.name or candidate.gemm.schedule or candidate.gemm.num_stages:
        return None
    if candidate.gemm.cluster_m * candidate.gemm.cluster_n > MAX_TILES:
        return None
    wide, num_narrower = FAMILY.of_widths(candidate)
    return (wide, num_narrower) if isinstance(check(wide, operation, target), Accepted) else None


def shared(keys: Iterable[KernelKey], target: Target) -> Mapping[KernelKey, tuple[KernelKey, int]]:
    """Return the kernels of which one of several widths computes two or more, each with what `of_widths` says."""
    users: dict[KernelKey, dict[KernelKey, int]] = {}
    for key in keys:
        found = of_widths(key.candidate, key.operation, target)
        if found is not None:
            users.setdefault(KernelKey(key.operation, found[0]), {})[key] = found[1]
    several = (x for x in users.items() if len(x[1]) > 1)
    return {key: (wide, num_narrower) for wide, group in several for key, num_narrower in group.items()}
