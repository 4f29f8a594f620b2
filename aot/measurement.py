"""What was measured, under which conditions."""

from __future__ import annotations

from dataclasses import dataclass

from aot.candidate import KernelKey
from aot.problem import Problem

PROVENANCE_MEASURED = "measured"
PROVENANCE_PREDICTED = "predicted"


@dataclass(frozen=True)
class Conditions:
    """The device and its state during a tuning: what makes two sets of times comparable.

    Clocks are in MHz as read just after load; `None` where the device does not answer (a Jetson's `nvidia-smi`).
    """

    device: str
    arch: str
    num_sms: int
    driver: str
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_mode: str | None
    """Jetson: what `nvpmodel -q` says; a discrete GPU: its enforced power limit in watts."""
    date: str
    """ISO date of the start of the tuning."""
    protocol: str
    """Version of the timing protocol, such as `graph-cold-l2-pdl-v1`; times of different protocols are not compared."""


@dataclass(frozen=True)
class Measurement:
    """Time of one kernel on one problem: what one launch takes inside a CUDA graph with a cold L2.

    `median_us` is the median over rounds; `low_us` and `high_us` the quartiles; `status` is `ok`, or the reason why
    there is no time (the three times are then 0).
    """

    kernel: KernelKey
    problem: Problem
    median_us: float
    low_us: float
    high_us: float
    num_rounds: int
    relative_error: float
    """Frobenius norm of the error over that of the float64 reference, on the rows checked."""
    status: str = "ok"

    @property
    def ok(self) -> bool:
        """Say whether the kernel gave the right result and a time."""
        return self.status == "ok"


@dataclass(frozen=True)
class Record:
    """A committed set of measurements of one device."""

    target: str
    conditions: tuple[Conditions, ...]
    measurements: tuple[Measurement, ...]
