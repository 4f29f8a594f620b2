"""The kernels of a session: which can run, launching them with a note in the store, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aot.core.errors import DeviceError, StoreError, VerificationError
from aot.core.measurement import OK, Measurement, Outcome, Status
from aot.kinds.trial import APART
from aot.kinds.trials import trial_of
from aot.measure.gpu import ContextLostError, OutOfMemoryError
from aot.measure.protocol import quartiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.core.measurement import AnyMeasurement
    from aot.core.work import AnyProblem
    from aot.kinds.kind import Tuned
    from aot.kinds.trial import AnyCall
    from aot.measure.session import Session

T = TypeVar("T")


def stated(problem: AnyProblem) -> AnyCall:
    """Return a call of operands that do not exist, at addresses APART: it is asked about, and never launched."""
    trial = trial_of(problem.operation)
    places = {argument: (i + 1) * APART for i, argument in enumerate(trial.timed(problem))}
    return trial.timed_call(problem, places, trial.arrangement(problem.operation))


class SessionKernels:
    """The tuning set's kernels by their number in the library, and what the store holds against each.

    Raises:
        StoreError: the library lacks a kernel of the tuning set.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._store = session, session.store
        index = {name: i for i, name in enumerate(session.kernels.names)}
        missing = [kernel.name for kernel in session.tuning.kernels if kernel.name not in index]
        if missing:
            raise StoreError(f"the library lacks {len(missing)} kernels, first {missing[0]}; make the bundle again")
        self.tuned: dict[int, Tuned] = {index[kernel.name]: kernel for kernel in session.tuning.kernels}
        self.ids = {number: self._store.kernel_id(kernel) for number, kernel in self.tuned.items()}
        self.workspace_limit = session.plan.workspace_limit_bytes
        self._reasons = self._store.quarantined()
        self._unfit: dict[int, Status] = {}
        self._takers: dict[AnyProblem, list[int]] = {}

    def takers(self, problem: AnyProblem) -> list[int]:
        """List the kernels that a problem is to be measured with."""
        if problem not in self._takers:
            is_wanted = self._session.tuning.is_wanted
            self._takers[problem] = [number for number, kernel in self.tuned.items() if is_wanted(kernel, problem)]
        return self._takers[problem]

    def other_orders(self, number: int, problem: AnyProblem, num_ctas: float) -> list[int]:
        """List a kernel in the other orders in which it can take its tiles, those that differ on a problem.

        Args:
            number: the kernel.
            problem: what is computed.
            num_ctas: of more CTAs than this the order is not worth a measurement.
        """
        kernel, count = self.tuned[number], len(self._session.kernels.names)
        found = [number + order * count for order in kernel.other_orders(problem, num_ctas)]
        for other in found:
            if other not in self.tuned:
                self.tuned[other] = kernel.in_order(other // count)
                self.ids[other] = self._store.kernel_id(self.tuned[other])
        return found

    def is_sound(self, number: int) -> bool:
        """Return whether a kernel is not in quarantine; one in another order is not where the kernel is."""
        own = number % len(self._session.kernels.names)
        return self.ids[number] not in self._reasons and self.ids[own] not in self._reasons

    def condemn(self, number: int, reason: str) -> None:
        """Keep a kernel from running that failed on another device; the store that noted it there has the reason."""
        self._reasons.setdefault(self.ids[number], reason)

    def is_fit(self, number: int) -> bool:
        """Return whether the device can run a kernel at all, as far as `check_clusters` found."""
        return number not in self._unfit

    def _attempt(self, number: int, what: str, action: Callable[[], T]) -> T | None:
        """Do something with a kernel; when it fails, quarantine the kernel and return None.

        Raises:
            ContextLostError: the failure took the context with it.
        """
        try:
            return action()
        except OutOfMemoryError:
            raise
        except (DeviceError, VerificationError) as error:
            reason = f"{what}: {error}"
            self._reasons[self.ids[number]] = reason
            self._store.quarantine(self._session.run, self.ids[number], reason)
            if self._session.gpu.is_lost():
                self._store.clear_in_flight()
                raise ContextLostError(f"{self.tuned[number].name}: {reason}") from error
            return None

    def launch(self, number: int, what: str, action: Callable[[], T]) -> T | None:
        """Do what launches a kernel, with a note in the store for whoever finds this process dead.

        When it fails, quarantine the kernel and return None.

        Raises:
            ContextLostError: the failure took the context with it.
            OutOfMemoryError: device memory was short, for which the kernel is not to blame.
        """
        self._store.set_in_flight(self._session.run, self.ids[number], what)
        outcome = self._attempt(number, what, action)
        self._store.clear_in_flight()
        return outcome

    def check_clusters(self, number: int) -> None:
        """Ask the device whether a cluster of a kernel fits it: on few SMs, or in a MIG slice, it may not."""
        kernel, kernels = self.tuned[number], self._session.kernels
        call = trial_of(kernel.key.operation).cluster_call(kernel)

        def ask() -> int | None:
            bound = kernels.bind(call)
            return kernels.max_active_clusters(number, bound, 1 << 30, kernels.workspace_bytes(number, bound))

        if call is not None and self.is_sound(number) and self.launch(number, "asking for its clusters", ask) == 0:
            self._unfit[number] = Status(Outcome.CLUSTERS, f"0 active clusters of {kernel.name} on this device")

    def need(self, number: int, problem: AnyProblem) -> tuple[int, Status]:
        """Return the workspace bytes of a kernel on a problem, and whether, or why not, it can be tried.

        That it cannot be tried is not held against it.
        """
        kernels, limit = self._session.kernels, self.workspace_limit
        if number in self._unfit:
            return 0, self._unfit[number]
        try:
            need = kernels.workspace_bytes(number, kernels.bind(stated(problem)))
        except DeviceError as error:
            return 0, Status(Outcome.REFUSED, str(error))
        if need > limit:
            return 0, Status(Outcome.WORKSPACE, f"needs {need} bytes, the limit is {limit}")
        return need, OK

    def can_run(self, number: int, problem: AnyProblem, *, is_known: bool) -> bool:
        """Return whether a kernel is to be screened; where it is not, and the store does not know, note why."""
        if self.is_sound(number):
            status = self.need(number, problem)[1]
        else:
            status = Status(Outcome.QUARANTINED, self._reasons[self.ids[number]])
        if status is not OK and not is_known:
            self.add(number, problem, [], 0.0, status)
        return status is OK

    def add(self, number: int, problem: AnyProblem, times_us: list[float], error: float, status: Status = OK) -> None:
        """Store a measurement of one or more times, or of none with its status."""
        low, median, high = quartiles(times_us) if times_us else (0.0, 0.0, 0.0)
        kernel, times = self.tuned[number], (median, low, high, len(times_us))
        measurement: AnyMeasurement = Measurement(kernel.key, problem, *times, error, status, kernel.tile_order)
        self._store.add_measurement(self._session.run, self.ids[number], measurement)

    def add_failure(self, number: int, problem: AnyProblem) -> None:
        """Store that a kernel failed on a problem, with what it was quarantined for."""
        own = number % len(self._session.kernels.names)
        reason = self._reasons.get(self.ids[number]) or self._reasons[self.ids[own]]
        self.add(number, problem, [], 0.0, Status(Outcome.FAILED, reason))
