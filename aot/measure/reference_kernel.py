"""The reference kernel of a session: the one whose time tells the device's speed (aot.measure.throttling)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.measurement import OK
from aot.core.work import in_order
from aot.measure.gpu import OutOfMemoryError
from aot.measure.protocol import quartiles

if TYPE_CHECKING:
    from aot.measure.bench import ProblemBench
    from aot.measure.session import Session
    from aot.measure.session_kernels import SessionKernels
    from aot.measure.session_memory import SessionMemory

NUM_PAST_TIMES = 9
"""Times of earlier processes, the latest, whose median is what the kernel usually takes."""


class ReferenceKernel:
    """The first sound kernel on the problem of middle size, with operands of its own.

    Where none is sound, or there is no memory for the operands, it has no times.
    """

    def __init__(self, session: Session, kernels: SessionKernels, memory: SessionMemory) -> None:
        self._session, self._kernels = session, kernels
        problems = sorted(session.tuning.problems, key=lambda x: (x.flops, in_order(x)))
        self._problem = problems[len(problems) // 2]
        sound = (
            number
            for number in kernels.takers(self._problem)
            if kernels.is_sound(number) and kernels.need(number, self._problem) == (0, OK)
        )
        self._number = next(sound, None) if session.plan.reference_rounds else None
        self._bench: ProblemBench | None = None
        if self._number is not None:
            try:
                self._bench = memory.own_bench(self._problem)
            except OutOfMemoryError as error:
                session.warn(f"the device's speed is not watched: {error}")

    def usual_us(self) -> float | None:
        """Return what it took in earlier processes, in microseconds; None where there were none."""
        if self._number is None or self._bench is None:
            return None
        past = self._session.store.reference_times(self._kernels.ids[self._number], self._problem)[-NUM_PAST_TIMES:]
        return quartiles(past)[1] if past else None

    def read_us(self) -> float | None:
        """Time it now, in microseconds, and store that; None where it cannot be timed."""
        number, bench = self._number, self._bench
        if number is None or bench is None or not self._kernels.is_sound(number):
            return None
        rounds = range(self._session.plan.reference_rounds)
        us = self._kernels.launch(
            number, "timing the reference kernel", lambda: quartiles([bench.round_us(number) for _ in rounds])[1]
        )
        if us is not None:
            self._session.store.add_reference_time(self._session.run, self._kernels.ids[number], self._problem, us)
        return us
