"""What was measured, under which conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias

from aot.core.candidate import Candidate, KernelKey
from aot.core.constraints import Arch, Count, Date, Error, Index, Label, Microseconds, Positive, Protocol, Word
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.strict_json import DecodeError, shown
from aot.core.tile_order import HEURISTIC
from aot.core.work import AnyKey, AnyProblem, K, K_co, P, P_co


class Provenance(Word):
    """Where a time comes from."""

    MEASURED = "measured"
    PREDICTED = "predicted"


PROVENANCE_MEASURED = Provenance.MEASURED
PROVENANCE_PREDICTED = Provenance.PREDICTED

TimesOf: TypeAlias = Mapping[P, Mapping[Candidate, float]]
"""Microseconds of one operation by problem and candidate, measured or predicted; of problems of any kind."""

Times: TypeAlias = TimesOf[Problem]
"""The same of products."""

OperationTimes = Mapping[Operation, Times]
"""The same of several operations; empty where there is no record."""


CONDITIONS_KEY = ("device", "arch", "num_sms", "mig", "power_mode", "protocol")
"""The conditions by which measurements are kept apart."""
CONDITIONS_KEY_TEXT = "device, arch, SMs, MIG profile, power mode, protocol"


def mig_profile(device: str) -> str | None:
    """Return the profile of a MIG slice from the name that CUDA has for it, such as `NVIDIA H200 MIG 1g.18gb`.

    Source: NVIDIA Multi-Instance GPU user guide, device names.
    """
    return device.partition(" MIG ")[2] or None


@dataclass(frozen=True)
class Conditions:
    """The device and its state during a tuning: what makes two sets of times comparable.

    Clocks are in MHz as read just after load; `None` where the device does not answer (a Jetson's `nvidia-smi`).
    """

    device: Label
    arch: Arch
    num_sms: Positive
    driver: Label
    sm_clock_mhz: Count | None
    memory_clock_mhz: Count | None
    power_mode: Label | None
    """Jetson: what `nvpmodel -q` says; a discrete GPU: its enforced power limit in watts."""
    date: Date
    """ISO date of the start of the tuning."""
    protocol: Protocol
    """Version of the timing protocol, such as `graph-cold-l2-pdl-v1`; times of different protocols are not compared."""
    mig: Label | None = None
    """Profile of the MIG slice, such as `1g.18gb`; None: the whole GPU."""

    @property
    def key(self) -> tuple[str | int | None, ...]:
        """Return what has to be equal for times to be comparable, in the order of CONDITIONS_KEY."""
        return tuple(getattr(self, name) for name in CONDITIONS_KEY)


class Outcome(Word):
    """How measuring a kernel on a problem ended."""

    OK = "ok"
    WORKSPACE = "workspace too small"
    """The kernel needs more workspace than there is, or than the limit."""
    MEMORY = "memory too small"
    """The problem's operands do not fit into the device's memory."""
    CLUSTERS = "no room for a cluster"
    REFUSED = "refused"
    """The kernel library does not take the problem."""
    NOT_TRIED = "not tried"
    """One of the four above, in what was recorded before 2026-11-22."""
    FAILED = "failed"
    """The kernel gave a wrong result on this problem, or its launch failed."""
    QUARANTINED = "quarantined"
    """The kernel failed before, on an edge shape or on another problem."""


@dataclass(frozen=True)
class Status:
    """An outcome, and why there is no time; the reason of `ok` is empty."""

    outcome: Outcome
    reason: str = ""

    def __str__(self) -> str:
        """Return the text that stores and records hold: `ok`, or outcome, colon and reason."""
        return f"{self.outcome}: {self.reason}" if self.reason else self.outcome.value

    @staticmethod
    def of(text: str) -> Status:
        """Read the text of a status.

        Raises:
            DecodeError: it starts with no outcome, or gives a reason for `ok`.
        """
        if text == Outcome.OK:
            return OK
        head, _, reason = text.partition(":")
        if head not in set(Outcome) - {Outcome.OK}:
            known = ", ".join(Outcome)
            raise DecodeError(f"expected one of {known}, and but for ok a reason behind a colon, got {shown(text)}")
        return Status(Outcome(head), reason.strip())


OK = Status(Outcome.OK)


@dataclass(frozen=True)
class Measurement(Generic[P_co, K_co]):
    """Time of one kernel on one problem: what one launch takes inside a CUDA graph with a cold L2.

    `median_us` is the median over rounds; `low_us` and `high_us` the quartiles; all three are 0 where the status is
    another than `ok`.
    """

    kernel: K_co
    problem: P_co
    median_us: float
    low_us: float
    high_us: float
    num_rounds: int
    relative_error: float
    """Frobenius norm of the error over that of the float64 reference, on the rows checked."""
    status: Status = OK
    tile_order: int = HEURISTIC
    """The order in which the kernel took its tiles, of aot.core.tile_order."""

    @property
    def timed(self) -> tuple[P_co, K_co, int]:
        """Return what was measured, of which a record has one time."""
        return self.problem, self.kernel, self.tile_order

    @property
    def place(self) -> tuple[str, P_co, K_co, int]:
        """Return what measurements of several kinds are sorted by."""
        return self.problem.operation.kind, *self.timed

    @property
    def ok(self) -> bool:
        """Say whether the kernel gave the right result and a time."""
        return self.status.outcome is Outcome.OK


def _check_ascending(median_us: float, low_us: float, high_us: float) -> None:
    """Refuse times that are not above 0, and a median that is not between its quartiles (DecodeError)."""
    if not 0 < low_us <= median_us <= high_us:
        raise DecodeError(f"the times {low_us}, {median_us}, {high_us} do not ascend from above 0")


@dataclass(frozen=True)
class TimedRow:
    """What a row of a record and one of a store have alike; `kernel` is the number of one that stands elsewhere."""

    kernel: Index
    median_us: Microseconds
    low_us: Microseconds
    high_us: Microseconds
    num_rounds: Count
    relative_error: Error

    def measurement(self, key: K, problem: P, status: str, tile_order: int) -> Measurement[P, K]:
        """Return the measurement of the row's kernel on a problem, with its tiles in an order.

        Raises:
            DecodeError: the status is none, or it is `ok` and median and quartiles do not ascend from above 0.
        """
        try:
            outcome = Status.of(status)
        except DecodeError as error:
            raise error.inside("status") from None
        times = (self.median_us, self.low_us, self.high_us, self.num_rounds, self.relative_error)
        found = Measurement(key, problem, *times, outcome, tile_order)
        if found.ok:
            _check_ascending(self.median_us, self.low_us, self.high_us)
        return found


@dataclass(frozen=True)
class LibraryTime(Generic[P_co]):
    """Time of a library's own product on one problem, by the same protocol and in the same rounds as the kernels'."""

    library: str
    """Name and version, such as `torch 2.11.0+cu130`; behind them the calls, where they are others than torch.mm or
    torch.addmm of 16-bit operands: `torch 2.11.0+cu130 _scaled_mm + silu`."""
    problem: P_co
    median_us: float
    low_us: float
    high_us: float
    num_rounds: int


@dataclass(frozen=True)
class LibraryRow:
    """A library's time as a row of a record or of a store has it, beside the problem."""

    library: Label
    median_us: Microseconds
    low_us: Microseconds
    high_us: Microseconds
    num_rounds: Positive

    def time(self, problem: P) -> LibraryTime[P]:
        """Return the time on a problem.

        Raises:
            DecodeError: median and quartiles do not ascend from above 0.
        """
        _check_ascending(self.median_us, self.low_us, self.high_us)
        return LibraryTime(self.library, problem, self.median_us, self.low_us, self.high_us, self.num_rounds)


@dataclass(frozen=True)
class Record(Generic[P_co, K_co]):
    """A committed set of measurements of one device."""

    target: str
    conditions: tuple[Conditions, ...]
    measurements: tuple[Measurement[P_co, K_co], ...]
    library_times: tuple[LibraryTime[P_co], ...] = ()
    """Of each problem at most one."""


AnyMeasurement: TypeAlias = Measurement[AnyProblem, AnyKey]
AnyLibraryTime: TypeAlias = LibraryTime[AnyProblem]
AnyRecord: TypeAlias = Record[AnyProblem, AnyKey]
"""Those of any kinds, several of them in one record."""

ProductRecord: TypeAlias = Record[Problem, KernelKey]
"""What a record has of products."""


def reference_times(record: Record[P, K]) -> dict[P, float]:
    """Return what torch's own product takes by problem, in microseconds; of a problem without such a time, nothing."""
    return {item.problem: item.median_us for item in record.library_times}
