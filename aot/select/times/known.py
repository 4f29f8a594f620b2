"""Times by operation, problem and candidate: measured ones from a record, predicted ones from the cost model. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.core.alignment import as_launched, is_aligned, section_loads
from aot.core.candidate import Accepted, Candidate, KernelKey
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.progress import quietly
from aot.core.tile_order import HEURISTIC
from aot.families import is_for_rows
from aot.select.times.inputs import is_general
from aot.space import cost
from aot.space import enumeration as space
from aot.space.cost import DEFAULTS, Constants
from aot.space.legality import check
from aot.space.shortlist import shortlist

if TYPE_CHECKING:
    from aot.core.measurement import OperationTimes, ProductRecord, Record, Times, TimesOf
    from aot.core.shape_set import ShapeSet
    from aot.core.target import Target
    from aot.core.work import AnyOperation, K, P
    from aot.select.times.model import Model
    from aot.space.enumeration import Patterns

PREDICTED_CANDIDATES = 240
"""Candidates that a predicted selection chooses among: the model's best few on every problem and their kin."""

PREDICTED_GROUPS = (8, 64)
"""Numbers of groups, or products of a batch, that a table is predicted for where nobody names one. Of one group few
rows are few tiles, which the model cuts narrow so that they fill the device; many groups fill it by themselves. Source:
an H200's gathered products of FP8 blocks took twice as long as with wide tiles
(research/log/2026-11-29-fp8-experts.md). Of batches no such time was taken."""

_Growing = dict[Operation, dict[Problem, dict[Candidate, float]]]
"""Times while they are filled in."""


def measured_times(record: Record[P, K]) -> Mapping[Any, TimesOf[P]]:
    """Arrange a record's sound measurements by operation and problem: of kernels in their own order of tiles."""
    times: dict[AnyOperation, dict[P, dict[Candidate, float]]] = {}
    for item in record.measurements:
        if item.ok and item.tile_order == HEURISTIC:
            rows = times.setdefault(item.problem.operation, {})
            rows.setdefault(item.problem, {})[item.kernel.candidate] = item.median_us
    return times


def spreads(record: Record[P, K]) -> Mapping[Any, TimesOf[P]]:
    """Return the relative half-distance of the quartiles of a record's sound measurements that had several rounds."""
    found: dict[AnyOperation, dict[P, dict[Candidate, float]]] = {}
    for item in record.measurements:
        if item.ok and item.num_rounds > 1 and item.tile_order == HEURISTIC:
            rows = found.setdefault(item.problem.operation, {})
            spread = (item.high_us - item.low_us) / (2 * item.median_us)
            rows.setdefault(item.problem, {})[item.kernel.candidate] = spread
    return found


def _is_legal(key: KernelKey, target: Target) -> bool:
    """Say whether the space still has a kernel: a record keeps what was measured before a rule refused it."""
    return isinstance(check(key.candidate, key.operation, target), Accepted)


def legal_part(record: ProductRecord, patterns: Patterns, target: Target) -> ProductRecord:
    """Keep what a record says of kernels that the patterns and the space keep."""
    legal = {key: _is_legal(key, target) for key in {item.kernel for item in record.measurements}}
    kept = [x for x in record.measurements if patterns.keep(x.kernel.candidate.name) and legal[x.kernel]]
    return replace(record, measurements=tuple(kept))


def aligned(times: OperationTimes) -> OperationTimes:
    """Leave out what no tuned kernel takes: the fallback answers it, which was not timed, whatever a table says."""
    kept = {operation: {x: row for x, row in rows.items() if is_aligned(x)} for operation, rows in times.items()}
    return {operation: rows for operation, rows in kept.items() if rows}


def split(times: OperationTimes, unseen: frozenset[tuple[int, int, int]]) -> tuple[OperationTimes, OperationTimes]:
    """Part times into those to select by and those to hold out.

    Args:
        times: microseconds by operation, problem and candidate.
        unseen: (n, k, m) of the problems to hold out.
    """
    inside: dict[Operation, dict[Problem, Mapping[Candidate, float]]] = {}
    outside: dict[Operation, dict[Problem, Mapping[Candidate, float]]] = {}
    for operation, rows in times.items():
        for problem, row in rows.items():
            part = outside if (problem.n, problem.k, problem.m) in unseen else inside
            part.setdefault(operation, {})[problem] = row
    return inside, outside


def with_imputed_times(times: OperationTimes) -> OperationTimes:
    """Impute times of the same sizes from equivalent operations where a kernel was not timed in this one.

    bf16 and fp16 are of one size and run at one rate, so that what differs is noise and power: at an H200's power limit
    fp16 takes some percent longer. So another operation's times of a problem are levelled first, by the median ratio of
    the kernels that both were timed with there. An imputed time helps to choose kernels; a row that rests on one is
    called predicted. `Operation.equivalents` states whose times may be taken; what was timed in those alone is imputed
    as a whole.
    """
    filled: _Growing = {}
    for operation, rows in times.items():
        others = [x for x in reversed(operation.equivalents) if x in times]
        filled[operation] = {}
        asked: dict[Problem, Mapping[Candidate, float]] = {
            problem: {} for other in others for x in times[other] if (problem := _same_sizes(x, operation))
        }
        for problem, row in {**asked, **rows}.items():
            same = [(other, _same_sizes(problem, other)) for other in others]
            kin = [_levelled(times[other].get(x, {}), row) for other, x in same if x]
            filled[operation][problem] = {**{c: t for found in kin for c, t in found.items()}, **row}
    return filled


def _same_sizes(problem: Problem, operation: Operation) -> Problem | None:
    """Return the problem of another operation that multiplies as many rows of A and of B, or None where there is none.

    With a gate D has half as many columns as B has rows.
    """
    n, odd = divmod(problem.operation.num_rows_of_b(problem.n), operation.num_rows_of_b(1))
    found = replace(problem, operation=operation, n=n)
    return None if odd or (n != problem.n and not is_aligned(found)) else found


def _levelled(times: Mapping[Candidate, float], row: Mapping[Candidate, float]) -> dict[Candidate, float]:
    """Scale times so that those of the candidates in `row` too agree with it, in the median."""
    common = times.keys() & row.keys()
    ratio = median(row[candidate] / times[candidate] for candidate in common) if common else 1.0
    return {candidate: time * ratio for candidate, time in times.items()}


@lru_cache(maxsize=8)
def _predicted_candidates(
    operation: Operation, target: Target, patterns: space.Patterns, constants: Constants
) -> tuple[Candidate, ...]:
    """Choose the candidates for a predicted table.

    Only those that take every shape without a workspace: of the others' narrower use, nothing measured speaks.
    """
    sizes = product((1, 16, 64, 128, 256, 512, 2048), (1024, 4096, 8192))
    problems = [x for m, n in sizes for x in _of_groups(Problem(operation, m, n, n))]
    legal = [x for x in space.legal(operation, target, patterns) if is_general(x)]
    return tuple(shortlist(legal, problems, target, PREDICTED_CANDIDATES, constants))


def launched_problems(operations: Sequence[Operation], shapes: ShapeSet) -> dict[Operation, list[Problem]]:
    """List the problems that tables of some operations are asked for when a shape set is computed, by operation.

    What only the fallback computes is left out.
    """
    found: dict[Operation, set[Problem]] = {}
    for operation in operations:
        for problem in shapes.problems(operation):
            launched = as_launched(problem, operations)
            if launched is not None:
                found.setdefault(launched.operation, set()).add(launched)
    return {x: sorted(found[x], key=lambda y: (y.n, y.k, y.m)) for x in operations if x in found}


def unaligned_problems(operations: Sequence[Operation], shapes: ShapeSet) -> dict[Operation, list[Problem]]:
    """List the problems of a shape set that sections for what is not aligned answer, by operation."""
    found = {x: [y for y in shapes.problems(x) if section_loads(y, operations)] for x in operations}
    return {operation: problems for operation, problems in found.items() if problems}


def _of_groups(problem: Problem) -> list[Problem]:
    """Return a problem of as many groups or products as are usual, where it is of one because nobody said how many."""
    is_told = problem.num_groups > 1 or problem.operation.grouping is Grouping.DENSE
    return [problem] if is_told else [replace(problem, num_groups=x) for x in PREDICTED_GROUPS]


def predicted_times(
    shapes: ShapeSet,
    target: Target,
    patterns: space.Patterns,
    constants: Constants = DEFAULTS,
    *,
    operations: Sequence[Operation] | None = None,
    at: Callable[[str], None] = quietly,
) -> OperationTimes:
    """Predict the times of the model's best candidates on a shape set.

    Args:
        shapes: the problems.
        target: the device.
        patterns: which candidates there are.
        constants: the cost model's.
        operations: what is asked for; by default the shape set's operations.
        at: told of each operation.

    Raises:
        CandidateError: no candidate is left for an operation that is asked for.
    """
    asked = shapes.operations if operations is None else tuple(operations)
    times: _Growing = {}
    for operation, launched in launched_problems(asked, shapes).items():
        problems = [x for problem in launched for x in _of_groups(problem)]
        at(f"{operation.tag}: predicting times")
        candidates = _predicted_candidates(operation, target, patterns, constants)
        rows = cost.estimate(candidates, problems, target, constants).total_us.tolist()
        times[operation] = {
            problem: dict(zip(candidates, row, strict=True)) for problem, row in zip(problems, rows, strict=True)
        }
    return times


UNTRIED = 1.01
"""A learned time of a kernel that a search left out is at least the best measured time times this: the search took the
kernel for no faster, so that a lower one is the model's error."""

BEYOND = 1000.0
"""What stands for the time of a kernel on more rows than it is for, over the best one's: it is not chosen there."""


def learned_where_missing(times: Times, model: Model, more: Sequence[Candidate] = ()) -> Times:
    """Return each problem the times of all candidates: learned ones where a search, or a shortlist, left them out."""
    candidates = sorted({*more, *(candidate for row in times.values() for candidate in row)})
    problems = sorted(times)
    least = UNTRIED * np.array([[min(times[problem].values())] for problem in problems])
    learned = np.maximum(model.times_us(candidates, problems), least).tolist()
    rows = [{**dict(zip(candidates, row, strict=True)), **times[p]} for p, row in zip(problems, learned, strict=True)]
    return {p: within_rows(p, row) for p, row in zip(problems, rows, strict=True)}


def within_rows(problem: Problem, row: Mapping[Candidate, float]) -> dict[Candidate, float]:
    """Return the times of a problem; a kernel that is for fewer rows of A gets one that is never chosen."""
    best = min((us for x, us in row.items() if is_for_rows(x, problem.m)), default=0.0)
    return {x: us if is_for_rows(x, problem.m) else max(us, BEYOND * best) for x, us in row.items()}
