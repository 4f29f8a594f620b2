"""The least time that a problem can take on a target: its work at the rate of the slower of tensor cores and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aot.core.problem import Problem
    from aot.core.target import Target


@dataclass(frozen=True)
class Roofline:
    """A time in microseconds, and what sets it: `compute` or `memory`.

    No launch is in it, no ramp and no second reading of an operand, so that small problems stay far from it. The rates
    are what the target's file gives, measured or published; a kernel may exceed a rate that was measured low.
    """

    time_us: float
    bound: str


def roofline(problem: Problem, target: Target) -> Roofline:
    """Return a problem's roofline with a cold L2: each operand moves once, each multiplication runs at the full rate.

    Source: S. Williams et al., Roofline, CACM 52(4), 2009.
    """
    compute_us = problem.flops / target.peak_flops_per_s(problem.operation) * 1e6
    memory_us = problem.num_bytes / target.bandwidth_bytes_per_s * 1e6
    return Roofline(compute_us, "compute") if compute_us > memory_us else Roofline(memory_us, "memory")
