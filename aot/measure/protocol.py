"""The timing protocols: what one launch takes with a cold L2.

`graph-cold-l2-mixed-v3`, for a GPU with memory of its own: one graph holds L launches of one kernel, each on the next
of S sets of A, B and D that together exceed the L2 cache three times over. Every second launch stands behind a
separator, a small kernel that takes no part in programmatic dependent launch (aot.measure.separator). The time is a
replay's, between events, less what the separators take in a graph of their own, over L. So half of the launches may
overlap their start with the end of the one before, as they do back to back, and half may not, as they cannot behind a
model's norms and activations. Nothing is promised of B, as a caller promises nothing by default. Where arithmetic
bounds a problem the GPU meets its power limit, and which kernel is best depends on whether it has: such problems are
timed both ways, in rounds without a pause and in rounds that rest before each replay, and a kernel's time is the
geometric mean of the two (aot.measure.rounds).

`graph-cold-l2-pdl-v2`, which records until 2026-11-21 are of, had no separators and promised that B is constant;
version 1 knew no rests either.

`events-flushed-l2-v1`, for an integrated GPU: each launch between two events of its own, after a write of at least
64 MiB and twice the L2. There the CPU's traffic passes the same memory and sets of operands would be held against it; a
write clears the cache whatever else goes on, needs no third copy of the operands in the shared memory, and lasts long
enough (0.25 ms at 273 GB/s) for the host, which is slower there, to queue the launch. The flush lies outside the events
and is not subtracted from anything. No kernel precedes a launch, so that nothing overlaps: the times are those of a
launch alone, some microseconds more than the graph's, and the two are not compared. A round's time is the mean of the
middle half of its launches: events resolve 0.5 us, which a median would round short kernels to, and a mean would take
in what the CPU's interrupts disturb.

Every kernel is screened once; those near the best are timed again in interleaved rounds, in an order shuffled anew for
each round, so that drift of clocks and temperature falls on all alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from aot.kinds.trial import SampleLimits
from aot.kinds.trials import trial_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.core.work import AnyProblem
    from aot.kinds.trial import AnyArgument, Placed

PROTOCOL = "graph-cold-l2-mixed-v3"
FLUSH_PROTOCOL = "events-flushed-l2-v1"
"""Versions of the protocols; times of different protocols are not compared."""

MIN_FLUSH_BYTES = 64 << 20
"""Least that a flush writes."""

FLUSHED_US = 1000.0
"""Time that the launches of one round of FLUSH_PROTOCOL take in all."""

SET_ALIGNMENT = 256
"""Bytes that each operand of a set is aligned to, as cudaMalloc aligns."""


POWER_LIMITED_TOLERANCE = 0.5
"""`TimingPlan.reference_tolerance` of a discrete GPU, whose clock follows its power limit. Source: on an H200,
2026-11-20, a reference kernel of 79 us took up to 105 us after a problem that had driven the card to its limit
(m 2048, n 28672, k 4096); a throttled clock of 1.2 GHz or less still shows."""


@dataclass(frozen=True)
class TimingPlan:
    """The protocol's numbers."""

    l2_multiple: int = 3
    """Bytes of all sets over the L2's: an operand is evicted before its set's turn comes again."""
    graph_us: float = 400.0
    """Time that one replay should take: 800 times the 0.5 us that events resolve. Source: CUDA runtime API,
    cudaEventElapsedTime."""
    long_replay_us: float = 2000.0
    """A replay this long is timed without one before it, whose place in the queue hides about 10 us of host time, and
    in half of the rounds: it is a mean over that time by itself."""
    max_launches: int = 200
    """Most launches, and most sets, of a graph: capturing one costs the host about 10 us."""
    rough_only_us: float = 500.0
    """A single launch this long is timed well without a graph, to 2% at 10 us of launch time."""
    rough_only_ratio: float = 1.3
    """A kernel this much slower than the best so far, and that long, is not worth a graph."""
    launches_per_separator: int = 2
    """Launches of a graph from one separator to the next; those right behind one cannot start early."""
    separator_graphs: tuple[int, int] = (100, 300)
    """Separators of the two graphs whose difference tells what one more costs."""
    separator_rounds: int = 9
    """Replays of each, whose median counts."""
    keep_ratio: float = 1.15
    """Kernels within this ratio of the best screening time get the final rounds."""
    min_survivors: int = 4
    """Kernels that get them in any case."""
    final_rounds: int = 7
    ordered_kernels: int = 3
    ordered_ratio: float = 1.10
    """Of the best kernels this many, within this ratio of the best, are screened in other orders of their tiles too."""
    ordered_waves: float = 3.0
    """Waves of tiles up to which they are. Source: an H200, 2026-11-22 (research/log/2026-11-22-one-wave.md): one wave
    of small tiles gains up to 17% by another order, more waves at most 2%."""
    intense_flop_per_byte: float = 192.0
    """FLOP per byte from which a problem is timed both ways. Source: on an H200, 2026-11-21, n 4096, k 4096, kernels
    take the same rested or not at m 128 and 256 (123 and 228 FLOP per byte), some 2% less when rested at m 512, up to
    9% less at 1024; n 8192, k 8192 shows 0 to 9% at m 256 (241)."""
    unrested_rounds: int = 4
    rested_rounds: int = 4
    """Of a problem that is timed both ways, in place of `final_rounds`."""
    flush_bytes: int = 0
    """What is written before each launch, by a plan of FLUSH_PROTOCOL; 0: launches rotate over sets, in a graph."""
    min_flushed: int = 12
    max_flushed: int = 60
    """Launches of a round of FLUSH_PROTOCOL: `graph_us` in all, within these."""
    reference_rounds: int = 3
    """Replays of the reference kernel between two problems (aot.measure.throttling), whose median is compared; with 0
    there is no reference kernel."""
    reference_tolerance: float = 0.15
    """Change of the reference kernel's time from which on the device runs at another speed; `plan_for` allows a
    discrete GPU more."""
    max_repeats: int = 2
    """How often a problem is measured again because the device changed its speed meanwhile."""
    settle_s: float = 20.0
    """How long to wait for the device to come back to its speed before that."""
    workspace_limit_bytes: int = 1 << 30
    """A kernel that needs more workspace on a problem is not tried on it."""
    sample_rows: int = 16
    sample_columns: int = 1024
    sample_elements: int = 1 << 20
    """Elements of B that the sampled reference reads: about 10 ms of host time with numpy on one core."""

    @property
    def sample(self) -> SampleLimits:
        """Return how much of a result is looked at."""
        return SampleLimits(self.sample_rows, self.sample_columns, self.sample_elements)

    @property
    def protocol(self) -> str:
        """Return the protocol's name."""
        return FLUSH_PROTOCOL if self.flush_bytes else PROTOCOL


def plan_for(l2_bytes: int, *, integrated: bool) -> TimingPlan:
    """Choose the protocol of a device."""
    if not integrated:
        return TimingPlan(reference_tolerance=POWER_LIMITED_TOLERANCE)
    flush_bytes = max(MIN_FLUSH_BYTES, 2 * l2_bytes)
    return TimingPlan(l2_multiple=0, flush_bytes=flush_bytes, graph_us=FLUSHED_US, long_replay_us=math.inf)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // SET_ALIGNMENT) * SET_ALIGNMENT


@dataclass(frozen=True)
class OperandSet:
    """How a problem's operands lie in one set of them."""

    placed: Mapping[AnyArgument, Placed]
    starts: Mapping[AnyArgument, int]
    """In bytes from the set's start, each aligned."""
    num_bytes: int


def operand_set(problem: AnyProblem) -> OperandSet:
    """Lay out a set of a problem's operands, packed."""
    placed = trial_of(problem.operation).timed(problem)
    sizes = [_aligned(x.element.size_of(x.matrix.num_elements)) for x in placed.values()]
    *starts, num_bytes = accumulate(sizes, initial=0)
    return OperandSet(placed, dict(zip(placed, starts, strict=True)), num_bytes)


def set_bytes(problem: AnyProblem) -> int:
    """Count the bytes of one set of operands, each aligned."""
    return operand_set(problem).num_bytes


def num_sets(problem: AnyProblem, l2_bytes: int, plan: TimingPlan) -> int:
    """Choose S: enough to exceed the L2, even, so that a graph is, at least 2, at most `max_launches`.

    A set under l2_multiple * L2 / max_launches (0.9 MB on an H200) therefore rotates through less than three L2s;
    such a problem is bound by the launch and not by memory.
    """
    needed = -(-plan.l2_multiple * l2_bytes // set_bytes(problem))
    return max(2, min(needed + needed % 2, plan.max_launches))


def num_launches(sets: int, rough_us: float, plan: TimingPlan) -> int:
    """Choose L: the least multiple of S that lasts `graph_us`, within `max_launches` where S allows."""
    turns = int(-(-plan.graph_us // (rough_us * sets)))
    return sets * max(1, min(turns, plan.max_launches // sets))


def survivors(times_us: Mapping[int, float], plan: TimingPlan) -> list[int]:
    """Choose who gets the final rounds: all within `keep_ratio` of the best, and `min_survivors` in any case."""
    ranked = sorted(times_us, key=lambda kernel: (times_us[kernel], kernel))
    if not ranked:
        return []
    limit = plan.keep_ratio * times_us[ranked[0]]
    return [kernel for i, kernel in enumerate(ranked) if i < plan.min_survivors or times_us[kernel] <= limit]


def quartiles(times_us: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile, interpolated."""
    low, median, high = np.percentile(np.asarray(times_us), [25, 50, 75])
    return float(low), float(median), float(high)


def middle_mean(times_us: Sequence[float]) -> float:
    """Return the mean of the middle half."""
    ranked = np.sort(np.asarray(times_us, dtype=np.float64))
    quarter = len(ranked) // 4
    return float(ranked[quarter : len(ranked) - quarter].mean())
