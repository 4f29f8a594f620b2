"""What the interpreter sees: each mutant of a kernel is executed until something shows it, or nothing does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aot.core.errors import VerificationError
from aot.emulate.code import DeviceCode
from aot.emulate.execute import ExecutionOptions, Executor
from aot.emulate.gpu import LIMIT
from aot.emulate.mutants import Change, Mutant, mutants
from aot.emulate.schedule import Mode, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aot.emulate.kernels import EmulatedSet
    from aot.emulate.results import KernelResult

MODES = (
    Mode.RANDOM,
    Mode.LAZY,
    Mode.EAGER,
    Mode.HOLD_PRODUCTS,
    Mode.HOLD_LOADS,
    Mode.HOLD_STORES,
    Mode.STRICT,
    Mode.HOLD_FRONT,
)
"""What a mutant of the order is tried under, until one shows it."""

ENDLESS = 3
"""A mutant that executes so many times as many instructions as the right kernel is taken for endless."""

STRUCTURAL = frozenset(
    {
        Change.START,
        Change.LEADING,
        Change.STRIDE,
        Change.SWIZZLE,
        Change.MAJOR,
        Change.TRANSPOSED,
        Change.COORDINATE,
        Change.BOX_ADDRESS,
    }
)
"""Changes that a wrong result shows, whatever the schedule: they are tried under the first one alone."""


@dataclass(frozen=True)
class Sighting:
    """What became of a mutant."""

    change: Change
    line: int
    text: str
    """The instruction, as it was."""
    shown_by: str
    """What showed it; empty where nothing did."""
    is_reached: bool
    """Whether the instruction was executed at all."""


@dataclass(frozen=True)
class Sight:
    """What became of all mutants of a kernel."""

    kernel: str
    sightings: tuple[Sighting, ...]

    def counts(self) -> dict[Change, tuple[int, int]]:
        """Count found and made mutants by what was changed, those apart whose instruction was never executed."""
        made = Counter(x.change for x in self.sightings if x.is_reached)
        found = Counter(x.change for x in self.sightings if x.is_reached and x.shown_by)
        return {change: (found[change], made[change]) for change in Change if made[change]}

    @property
    def missed(self) -> tuple[Sighting, ...]:
        """List the mutants that nothing showed."""
        return tuple(x for x in self.sightings if x.is_reached and not x.shown_by)


def schedules(num_seeds: int) -> tuple[Schedule, ...]:
    """Return the schedules that a mutant is tried under: all modes, so many times, each with a seed of its own."""
    return tuple(Schedule(mode, seed) for seed, mode in enumerate(MODES * num_seeds))


def _shown(result: KernelResult, notes: frozenset[tuple[str, str]]) -> str:
    """Return what is wrong in a result, or a note that the right kernel does not have; empty where there is nothing."""
    if result.error:
        return result.error
    for case in result.cases:
        if case.fault:
            return case.fault
        for finding in case.findings:
            if finding.is_fault or (finding.kind, finding.where) not in notes:
                return f"{finding.kind}: {finding.text}"
    return ""


def _code_of(kernels: EmulatedSet, name: str) -> DeviceCode:
    codes = [*map(DeviceCode.of, kernels.products), *map(DeviceCode.of, kernels.rows)]
    return next(x for x in codes if x.name == name)


class _Observer:
    """Executes a kernel's mutants."""

    def __init__(
        self, kernels: EmulatedSet, name: str, problems: Sequence[tuple[int, ...]], tried: Sequence[Schedule]
    ) -> None:
        self._set, self._name, self._problems, self._limit = kernels, name, problems, LIMIT
        self._schedules = tried
        self._code = _code_of(kernels, name)
        self._notes: frozenset[tuple[str, str]] = frozenset()
        self._executed: set[int] = set()
        self._look()

    def _execute(self, code: DeviceCode, schedule: Schedule, problem: tuple[int, ...]) -> KernelResult:
        options = ExecutionOptions((schedule,), problem, limit=self._limit)
        return Executor(self._set, options, codes={self._name: code}).execute(self._name)

    def _look(self) -> None:
        """Execute the right kernel: what notes it has, and which of its lines are executed."""

        def see(_: object, instruction: object) -> None:
            self._executed.add(instruction.line)  # type: ignore[attr-defined]

        notes: set[tuple[str, str]] = set()
        most = 0
        for problem in self._problems:
            for schedule in self._schedules:
                options = ExecutionOptions((schedule,), problem)
                trace = see if schedule is self._schedules[0] else None
                result = Executor(self._set, options, trace, {self._name: self._code}).execute(self._name)
                shown = _shown(result, frozenset((y.kind, y.where) for x in result.cases for y in x.findings))
                if shown:
                    raise VerificationError(
                        f"{self._name} is not right by itself: {shown}; execute it without --mutants"
                    )
                most = max(most, result.num_instructions)
                notes |= {(y.kind, y.where) for x in result.cases for y in x.findings}
        self._notes, self._limit = frozenset(notes), ENDLESS * most

    def kernels(self) -> Iterator[Mutant]:
        """Make the mutants of all kernels of the module."""
        for kernel in self._code.kernels.values():
            yield from mutants(kernel)

    def sight(self, mutant: Mutant) -> Sighting:
        """Execute a mutant until something shows it."""
        is_reached = mutant.line in self._executed
        shown = ""
        code = replace(self._code, mutant=mutant.kernel)
        tried = self._schedules[:1] if mutant.change in STRUCTURAL else self._schedules
        for schedule in tried if is_reached else ():
            for problem in self._problems:
                shown = shown or _shown(self._execute(code, schedule, problem), self._notes)
            if shown:
                break
        return Sighting(mutant.change, mutant.line, mutant.text, shown, is_reached)


def num_mutants(kernels: EmulatedSet, name: str) -> int:
    """Count the mutants that `sight` executes."""
    return sum(1 for kernel in _code_of(kernels, name).kernels.values() for _ in mutants(kernel))


def sight(
    kernels: EmulatedSet, name: str, problems: Sequence[tuple[int, ...]], num_seeds: int = 1
) -> Iterator[Sighting]:
    """Execute all mutants of a kernel of a set, one after the other.

    Args:
        kernels: the set.
        name: the kernel.
        problems: extents that each mutant is executed on, (m, n, k) or (rows, cols): k should turn the ring of stages
            twice, and several tiles a CTA should be there.
        num_seeds: schedules of each mode that a mutant of the order is tried under.

    Raises:
        VerificationError: the kernel is not right by itself.
    """
    observer = _Observer(kernels, name, problems, schedules(num_seeds))
    for mutant in observer.kernels():
        yield observer.sight(mutant)
