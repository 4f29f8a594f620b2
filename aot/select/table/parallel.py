"""Work in parts, on all cores where it is much: results in the order of the parts, the same as without."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from aot.compile.process_pool import Died, Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

State = TypeVar("State")
Part = TypeVar("Part")
Result = TypeVar("Result")

MANY = 5_000_000
"""Pairs of a step and a kernel from which on processes are started: a core takes about a minute for so many."""


@dataclass(frozen=True)
class _Told:
    """What a process has been started with."""

    state: object


_TOLD: list[_Told] = []


def _start(state: object) -> None:
    _TOLD.append(_Told(state))


def _do(work: Callable[[State, Part], Result], task: tuple[int, Part]) -> Result:
    state: State = _TOLD[-1].state  # type: ignore[assignment]  # what `_start` was given beside this work
    return work(state, task[1])


def in_parts(
    work: Callable[[State, Part], Result],
    state: State,
    parts: Sequence[Part],
    size: int,
    at: Callable[[int], None],
) -> list[Result]:
    """Do each part of some work.

    An interrupt ends all processes at once. A part whose process fails is done again here, so that its error is told.

    Args:
        work: takes the state and a part; importable by name, as state, parts and results can be pickled.
        state: what all parts need.
        parts: in the order of the results.
        size: how much it is in all, as `MANY` counts.
        at: told how many parts are done.
    """
    num_processes = min(len(os.sched_getaffinity(0)), len(parts))
    if size < MANY or num_processes <= 1:
        found: list[Result] = []
        for part in parts:
            at(len(found))
            found.append(work(state, part))
        return found
    done: dict[int, Result] = {}
    at(0)
    pool: Pool[tuple[int, Part], Result] = Pool(num_processes, _start, (state,), partial(_do, work))
    for (place, part), result in pool.run(list(enumerate(parts))):
        done[place] = work(state, part) if isinstance(result, Died) else result
        at(len(done))
    return [done[place] for place in range(len(parts))]
