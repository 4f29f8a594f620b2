"""Times of a library's own product beside a problem's kernels, on the same operands and in the same rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.errors import DeviceError, VerificationError
from aot.core.measurement import LibraryTime
from aot.measure.protocol import quartiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.measure.bench import ProblemBench
    from aot.measure.session import Session

LIBRARY = -1
"""The library's number among a problem's kernels, which count from 0."""


class LibraryBench:
    """The library on one problem; `numbers` is empty, and nothing is stored, where it fails or has nothing.

    Args:
        session: what is measured with.
        bench: the problem's, whose operands the library takes.
    """

    def __init__(self, session: Session, bench: ProblemBench) -> None:
        self._session, self._bench = session, bench
        self._own: ProblemBench | None = None
        self._name = ""
        self.numbers: tuple[int, ...] = ()

    def screen(self) -> None:
        """Check the library's product and time it once, so that all that it loads is there before the rounds.

        Raises:
            DeviceError: it took the context with it.
        """
        library = self._session.library
        baseline = library.baseline(self._bench.problem.operation) if library is not None else None
        if library is None or baseline is None:
            return
        try:
            self._own = self._bench.beside(library, baseline.arrangement)
            self._own.check_baseline(baseline.agreement)
            self._own.screen_us(0, None)
        except (DeviceError, VerificationError) as error:
            self._fail(error)
            return
        self._name = baseline.name(library.names[0])
        self.numbers = (LIBRARY,)

    def _fail(self, error: Exception) -> None:
        """Leave the library out of this problem.

        Raises:
            DeviceError: the context is lost.
        """
        what = f"the library's time on {self._bench.problem.name} is not recorded: {error}"
        if self._session.gpu.is_lost():
            raise DeviceError(f"{what}; it took the GPU's context with it: run again with --no-reference") from error
        self._session.warn(what)
        self.numbers = ()

    def round_us(self, *, rests: bool) -> float | None:
        """Time a round, in microseconds a product; None where it failed."""
        if self._own is None or not self.numbers:
            return None
        try:
            return self._own.round_us(0, rests=rests)
        except DeviceError as error:
            self._fail(error)
            return None

    def store(self, times_us: Sequence[float]) -> None:
        """Store the rounds' quartiles."""
        session = self._session
        if not self.numbers or not times_us:
            return
        low, median, high = quartiles(times_us)
        found = LibraryTime(self._name, self._bench.problem, median, low, high, len(times_us))
        session.store.add_library_time(session.run, found)

    def close(self) -> None:
        """Free its graph."""
        if self._own is not None:
            self._own.close()
