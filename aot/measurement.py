"""What was measured, under which conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aot.candidate import Candidate, KernelKey
from aot.problem import Operation, Problem

PROVENANCE_MEASURED = "measured"
PROVENANCE_PREDICTED = "predicted"

Times = Mapping[Problem, Mapping[Candidate, float]]
"""Microseconds of one operation by problem and candidate, measured or predicted."""

OperationTimes = Mapping[Operation, Times]
"""The same of several operations; empty where there is no record."""


CONDITIONS_KEY = ("device", "arch", "num_sms", "mig", "power_mode", "protocol")
"""The conditions by which measurements are kept apart."""
CONDITIONS_KEY_TEXT = "device, arch, SMs, MIG profile, power mode, protocol"


def mig_profile(device: str) -> str | None:
    """Give the profile of a MIG slice from the name that CUDA has for it, such as `NVIDIA H200 MIG 1g.18gb`.

    Source: NVIDIA Multi-Instance GPU user guide, device names.
    """
    return device.partition(" MIG ")[2] or None


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
    mig: str | None = None
    """Profile of the MIG slice, such as `1g.18gb`; None: the whole GPU."""

    @property
    def key(self) -> tuple[str | int | None, ...]:
        """Give what has to be equal for times to be comparable, in the order of CONDITIONS_KEY."""
        return tuple(getattr(self, name) for name in CONDITIONS_KEY)


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
