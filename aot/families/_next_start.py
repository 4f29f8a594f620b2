"""When a kernel lets the next one of its stream start. Imports CUTLASS.

By programmatic dependent launch the next kernel's CTAs take the places that are free while this one's still run, and
wait there for its end. That hides their start. But where the CTAs of both do not fit the device together, and neither
fills it alone, the next ones take what is left over, and a row of such kernels reads memory more slowly: on an H200,
2026-11-24, kernels that fill 53 to 80% of the device took up to 1.35 times as long as started behind each other's end.
It is taken that their CTAs crowd into some of the GPCs, which was not measured (research/log/2026-11-24-next-start.md).
So every second of them is started behind an end: one whose CTAs have waited for the kernel in front does not let the
next start early.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Int64, cute, select_

from aot.core.feature import Feature
from aot.core.target import Target

AT_ONCE = 0
"""As soon as this kernel has seen the end of the one in front."""
AFTER_LOADS = 1
"""When each CTA has issued its last load of B."""
UNLESS_EARLY = 2
"""As soon as that, if this kernel was not itself started early: else when each CTA has ended."""

EARLY_CYCLES = 1000
"""Clock cycles that a CTA has waited for the end of the kernel in front if it was started early: half a microsecond.
One that is started behind that end does not wait."""

BESIDE = 50
"""Percent of the device up to which two kernels' CTAs fit it together."""

FULL = 88
"""Percent of the device from which on CTAs do not crowd. A kernel of S percent takes FULL - S percent longer where they
do: 35 at 53, 27 at 61, 18 at 70, 8 at 80. Source: seven kernels of four families on an H200, 2026-11-24
(research/log/2026-11-24-next-start.md)."""

LARGE_CLUSTER = 4
"""CTAs of a cluster from which on an early start is after the loads, not at once. Source: likewise; with a constant
weight at once took up to 1.1 times as long."""

GAIN_US = 1.0
"""What an early start of the next kernel saves, which waits for this one. Source: likewise, 0.5 to 1.0."""

GAIN_OF_CONSTANT_US = 2.5
"""The same where it loads its weight at once, since nothing writes that. Source: likewise, 1.2 to 3."""


@dataclass(frozen=True)
class Places:
    """What of a kernel a device has room for, and how fast its memory is."""

    num_ctas: int
    """CTAs that it holds at once, in whole clusters."""
    ctas_of_cluster: int
    bytes_per_us: int
    can_crowd: bool
    """Whether kernels in a row were seen to slow each other so: on Hopper, and not looked for elsewhere."""

    @staticmethod
    def of(target: Target, ctas_of_cluster: int, blocks_per_sm: int = 1) -> "Places":
        """Count the places of a kernel's CTAs."""
        count = target.num_clusters(ctas_of_cluster) * ctas_of_cluster * blocks_per_sm
        can_crowd = Feature.WGMMA in target.features
        return Places(count, ctas_of_cluster, round(target.bandwidth_bytes_per_s / 1e6), can_crowd)


def next_start(places: Places, num_ctas: Any, num_bytes: Any, prefetch_b: Any, later: int = AFTER_LOADS) -> Any:
    """Return when the next kernel may start, Int32; to be called while tracing, on the host.

    Args:
        places: of the device.
        num_ctas: CTAs of the launch, or of all its tiles where a CTA takes one after the other, Int64.
        num_bytes: of A and B, Int64.
        prefetch_b: whether B is constant, Int32.
        later: what stands for AFTER_LOADS in a kernel that does not tell when its loads are issued.
    """
    if not places.can_crowd:
        return Int32(AT_ONCE)
    share = Int64(num_ctas) * 100 // places.num_ctas
    of_last = Int64(select_(share < 100, share, share % 100))
    of_last_bytes = num_bytes * of_last // Int64(select_(share < 1, Int64(1), share))
    gain_us = select_(prefetch_b == 0, Int64(round(100 * GAIN_US)), Int64(round(100 * GAIN_OF_CONSTANT_US)))
    loss = of_last_bytes * (FULL - of_last) // places.bytes_per_us
    is_crowded = (of_last > BESIDE) & (loss > gain_us)
    crowded = select_(share < 100, Int32(UNLESS_EARLY), Int32(later))
    is_late = share <= BESIDE if places.ctas_of_cluster < LARGE_CLUSTER else share >= 0
    free = select_(is_late, Int32(later), Int32(AT_ONCE))
    return Int32(select_(is_crowded, crowded, free))


def num_ctas(counts: Any, of_cluster: int) -> Any:
    """Count the CTAs of so many products and clusters along each side; to be called while tracing."""
    found = Int64(of_cluster)
    for count in counts:
        found = found * Int64(count)
    return found


def num_bytes(*operands: Any) -> Any:
    """Count the bytes of operands; to be called while tracing."""
    found = Int64(0)
    for operand in operands:
        found = found + Int64(cute.size(operand)) * int(operand.element_type.width) // 8
    return found


@cute.jit
def clock(next_one: Int32) -> Int32:
    """Read the clock, where `await_front` asks for it: that delays a short kernel."""
    found = Int32(0)
    if next_one == UNLESS_EARLY:
        found = cute.arch.clock()
    return found


@cute.jit
def await_front(next_one: Int32, before: Int32) -> None:
    """Wait for the end of the kernel in front, and let the next one start where it may start now.

    Args:
        next_one: of `next_start`.
        before: the clock before this warp began to wait.
    """
    cute.arch.griddepcontrol_wait()
    starts = next_one == AT_ONCE
    if next_one == UNLESS_EARLY:
        starts = cute.arch.clock() - before < EARLY_CYCLES
    if starts:
        cute.arch.griddepcontrol_launch_dependents()
