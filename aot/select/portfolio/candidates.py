"""The kernels that an operation's are chosen among: any that was timed, or those of another one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.candidate import Accepted, Candidate
from aot.core.measurement import Times
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.families import family_of
from aot.select.portfolio.choose import Portfolio
from aot.select.portfolio.objective import Basis, KnownTimes, Objective
from aot.space.legality import check

if TYPE_CHECKING:
    from aot.core.target import Target


@dataclass(frozen=True)
class Chosen:
    """One operation's portfolio, and the times it was chosen by."""

    operation: Operation
    basis: Basis
    portfolio: Portfolio[Problem]
    times: Times
    beside: Times
    like: Operation | None
    """The operation chosen before it whose kernels and grid it has."""


def within(filled: Times, candidates: Collection[Candidate]) -> Times:
    """Keep the times of some candidates, and the problems that one of them was timed on."""
    kept = {problem: {x: row[x] for x in row if x in candidates} for problem, row in filled.items()}
    return {problem: row for problem, row in kept.items() if row}


@dataclass(frozen=True)
class Pool:
    """The kernels that an operation's are chosen among, where those of another operation bound them."""

    like: Chosen | None
    """What was chosen before it, of which it takes every kernel."""
    candidates: tuple[Candidate, ...]
    """Empty where any kernel with a time may be chosen."""


def pool_of(
    operation: Operation, filled: Times, measured: KnownTimes, objective: Objective, found: Sequence[Chosen]
) -> Pool:
    """Find what bounds an operation: a twin, one imputed from the same times, or the operation without its epilogue.

    The last is the one that was chosen before it, or else the earlier selection's.
    """
    imputed = measured.basis_of(operation) is Basis.IMPUTED
    plain = next((x.portfolio.candidates for x in found if x.operation is operation.plain), ())
    if not plain and imputed and operation.plain is not operation and objective.incumbent:
        known = (x.candidate for x in objective.incumbent.kernels if x.operation is operation.plain)
        plain = tuple(x for x in known if not family_of(x).is_fallback)
    able = frozenset(plain or (x for row in filled.values() for x in row))
    for x in found:
        is_kin = imputed and x.basis is Basis.IMPUTED and x.operation.plain is operation.plain is not x.operation
        same_sizes = (x.operation.gate is None) == (operation.gate is None)
        if x.operation in operation.twins or (is_kin and same_sizes and able >= set(x.portfolio.candidates)):
            return Pool(x, x.portfolio.candidates)
    return Pool(None, plain)


def legal(candidates: Collection[Candidate], operation: Operation, target: Target) -> frozenset[Candidate]:
    """Keep the candidates that may be built for an operation: they were timed in another."""
    return frozenset(x for x in candidates if isinstance(check(x, operation, target), Accepted))
