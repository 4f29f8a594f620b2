"""Families of row kernels: one module each, found by being here. A module offers one `FAMILY`.

A family states its space, its own limits and its arithmetic of resources without importing CUTLASS; only `entry`
imports what it compiles. Adding a family is adding a module and its tests.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Protocol

from aot.core.errors import CandidateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.candidate import Rejected, Resources
    from aot.core.target import Target
    from aot.families import Entry
    from aot.kinds.rows.candidate import RowCandidate, RowLimits
    from aot.kinds.rows.operation import RowOperation


class RowFamily(Protocol):
    """One family of row kernels. Methods but `entry` are pure."""

    name: str
    """Prefix of its candidates' names."""
    archs: tuple[str, ...]
    """Architectures that it compiles for, such as `sm_90a`."""
    is_fallback: bool
    """Whether it takes any size, address and stride, and is therefore kept out of tuning."""

    def candidates(self, operation: RowOperation) -> Iterator[RowCandidate]:
        """Enumerate the family's space for an operation, legal or not; none if it does not compute it."""

    def check(self, candidate: RowCandidate, operation: RowOperation) -> Rejected | None:
        """Say why the family cannot build a candidate, apart from the limits that `row_legality` knows."""

    def registers(self, candidate: RowCandidate, operation: RowOperation) -> int:
        """Estimate the registers of a thread."""

    def resources(self, candidate: RowCandidate, operation: RowOperation) -> Resources:
        """Count what one CTA takes."""

    def limits(self, candidate: RowCandidate, operation: RowOperation) -> RowLimits:
        """Say what the kernel asks of a problem."""

    def num_reads(self, candidate: RowCandidate, operation: RowOperation) -> int:
        """Count how often the kernel reads X."""

    def entry(self, candidate: RowCandidate, operation: RowOperation) -> Entry:
        """Build the function to compile. Imports the kernel's library."""


@cache
def row_families() -> dict[str, RowFamily]:
    """Find the families by their modules; names that start with an underscore hold what families share."""
    found: dict[str, RowFamily] = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            family: RowFamily = importlib.import_module(f"{__name__}.{module.name}").FAMILY
            found[family.name] = family
    return found


def row_family_of(candidate: RowCandidate) -> RowFamily:
    """Return a candidate's family.

    Raises:
        CandidateError: there is none of that name.
    """
    try:
        return row_families()[candidate.family]
    except KeyError:
        known = ", ".join(sorted(row_families()))
        raise CandidateError(f"no family of row kernels {candidate.family!r}; there are: {known}") from None


def row_families_for(target: Target) -> list[RowFamily]:
    """List the families that compile for a target's architecture, by name."""
    return [family for _, family in sorted(row_families().items()) if target.arch in family.archs]
