"""The timing protocols: what one launch takes with a cold L2.

`graph-cold-l2-pdl-v2`, for a GPU with memory of its own: one graph holds L launches of one kernel, each on the next of
S sets of A, B and D that together exceed the L2 cache three times over; the time is a replay's, between events, over L.
Kernels that use programmatic dependent launch overlap a launch's start with the end of the one before it, as they do in
use: the times are throughput times, which is why the protocol's name says `pdl`. Where arithmetic bounds a problem the
GPU meets its power limit, and which kernel is best depends on whether it has: such problems are timed both ways, in
rounds without a pause and in rounds that rest before each replay, and a kernel's time is the geometric mean of the two
(aot.measure.rounds). Version 1 knew the first way only; where memory bounds a problem the two versions are one.

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

import time
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from aot.core.errors import VerificationError
from aot.core.numerics import EXPONENT, POISON, compare, decode, reference
from aot.core.operands import GemmCall, Matrix, matrices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from aot.core.numerics import Bits
    from aot.core.problem import Problem
    from aot.measure.gpu import Gpu, Handle, Kernels
    from aot.measure.inputs import RandomPool, Tiling

PROTOCOL = "graph-cold-l2-pdl-v2"
FLUSH_PROTOCOL = "events-flushed-l2-v1"
"""Versions of the protocols; times of different protocols are not compared."""

MIN_FLUSH_BYTES = 64 << 20
"""Least that a flush writes."""

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
    graph_us: float = 1000.0
    """Time that one replay should take: 2000 times the 0.5 us that events resolve. Source: CUDA runtime API,
    cudaEventElapsedTime."""
    max_launches: int = 200
    """Most launches, and most sets, of a graph: capturing one costs the host about 10 us."""
    rough_only_us: float = 500.0
    """A single launch this long is timed well without a graph, to 2% at 10 us of launch time."""
    rough_only_ratio: float = 3.0
    """A kernel this much slower than the best so far, and that long, is not worth a graph."""
    keep_ratio: float = 1.25
    """Kernels within this ratio of the best screening time get the final rounds."""
    min_survivors: int = 8
    """Kernels that get them in any case."""
    final_rounds: int = 7
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
    sample_elements: int = 1 << 22
    """Elements of B that the sampled reference reads: about 0.2 s of host time with numpy on one core."""

    @property
    def protocol(self) -> str:
        """Return the protocol's name."""
        return FLUSH_PROTOCOL if self.flush_bytes else PROTOCOL


def plan_for(l2_bytes: int, *, integrated: bool) -> TimingPlan:
    """Choose the protocol of a device."""
    if not integrated:
        return TimingPlan(reference_tolerance=POWER_LIMITED_TOLERANCE)
    return TimingPlan(l2_multiple=0, flush_bytes=max(MIN_FLUSH_BYTES, 2 * l2_bytes))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // SET_ALIGNMENT) * SET_ALIGNMENT


def _starts(problem: Problem) -> list[int]:
    """List where A, B, D and the bias, if there is one, start in a set of operands, in bytes; the last is its size."""
    operation = problem.operation
    elements = (operation.a.element, operation.b.element, operation.d)
    sizes = [element.size_of(x.num_elements) for element, x in zip(elements, matrices(problem), strict=True)]
    sizes += [operation.d.size_of(problem.n)] if operation.has_bias else []
    return list(accumulate(map(_aligned, sizes), initial=0))


def set_bytes(problem: Problem) -> int:
    """Count the bytes of one set of operands, each aligned."""
    return _starts(problem)[-1]


def num_sets(problem: Problem, l2_bytes: int, plan: TimingPlan) -> int:
    """Choose S: enough to exceed the L2, at least 2, at most `max_launches`.

    A set under l2_multiple * L2 / max_launches (0.9 MB on an H200) therefore rotates through less than three L2s;
    such a problem is bound by the launch and not by memory.
    """
    needed = -(-plan.l2_multiple * l2_bytes // set_bytes(problem))
    return max(2, min(needed, plan.max_launches))


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


@dataclass(frozen=True)
class Workspace:
    """Device memory that every kernel may use in turn."""

    address: int
    num_bytes: int


def _pick(rng: np.random.Generator, extent: int, count: int) -> NDArray[np.int64]:
    """Choose `count` different indices, sorted, the first and the last among them."""
    if count >= extent:
        return np.arange(extent, dtype=np.int64)
    inner = rng.choice(np.arange(1, extent - 1), max(count - 2, 0), replace=False)
    return np.sort(np.concatenate(([0, extent - 1], inner))).astype(np.int64)


class Sample:
    """Some rows of D, and some of their columns with a float64 reference, computed once for all kernels."""

    def __init__(
        self, problem: Problem, tiling: Tiling, starts: Sequence[int], plan: TimingPlan, rng: np.random.Generator
    ) -> None:
        """Take a sample of the first set, whose operands start at `starts`, in elements: A, B, D and the bias."""
        a, b, _ = matrices(problem)
        self._dtype = problem.operation.d
        self._num_columns = problem.n
        self.rows = _pick(rng, problem.m, plan.sample_rows)
        self.columns = _pick(rng, problem.n, max(2, min(plan.sample_columns, plan.sample_elements // problem.k)))
        steps = np.arange(problem.k, dtype=np.int64)

        def gather(matrix: Matrix, start: int, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
            positions = start + chosen[:, None] * matrix.row_stride + steps * matrix.column_stride
            return decode(self._dtype, tiling.gather(positions))

        bias = None
        if problem.operation.has_bias:
            bias = decode(self._dtype, tiling.gather(starts[3] + self.columns))
        self.expected = reference(gather(a, 0, self.rows), gather(b, starts[1], self.columns), bias)
        self._bits: Bits = np.empty((len(self.rows), problem.n), np.uint16)

    def check(self, gpu: Gpu, d: int) -> float:
        """Read the rows of a D (m, n) at an address and give the relative error.

        Raises:
            VerificationError: an element of the rows is not written or not finite, or a sampled one is wrong.
        """
        for i, row in enumerate(self.rows.tolist()):
            gpu.download(d + self._dtype.size_of(row * self._num_columns), self._bits[i])
        exponent = EXPONENT[self._dtype]
        num_bad = int(((self._bits & exponent) == exponent).sum())
        if num_bad:
            raise VerificationError(f"{num_bad} of {self._bits.size} sampled elements are not written or not finite")
        outcome = compare(self._dtype, self._bits[:, self.columns], self.expected)
        if outcome.fault:
            raise VerificationError(f"wrong result on sampled rows: {outcome.fault}")
        return outcome.relative_error


class ProblemBench:
    """One problem on the device: its sets of operands, the sample that results are held against, and the graphs."""

    def __init__(
        self,
        gpu: Gpu,
        kernels: Kernels,
        *,
        pool: RandomPool,
        arena: int,
        workspace: Workspace,
        problem: Problem,
        plan: TimingPlan,
        rng: np.random.Generator,
        flush: int = 0,
    ) -> None:
        self._flush = flush
        self._gpu, self._kernels, self._workspace, self._plan = gpu, kernels, workspace, plan
        self.problem = problem
        operation = problem.operation
        self._d_bytes = operation.d.size_of(problem.m * problem.n)
        sets, starts = num_sets(problem, gpu.l2_bytes, plan), _starts(problem)
        tiling = pool.tile(arena, sets * starts[-1] // operation.element.num_bytes)
        self._first_d = arena + starts[2]
        self._bound = []
        for i in range(sets):
            a, b, d, *rest = (arena + i * starts[-1] + start for start in starts[:-1])
            self._bound.append(kernels.bind(GemmCall(problem, a, b, d, *matrices(problem), *rest)))
        elements = [start // operation.element.num_bytes for start in starts]
        self._sample = Sample(problem, tiling, elements, plan, rng)
        self._rough_us: dict[int, float] = {}
        self._graphs: dict[int, tuple[Handle, int]] = {}

    def workspace_bytes(self, kernel: int) -> int:
        """Return the workspace that a kernel needs."""
        return self._kernels.workspace_bytes(kernel, self._bound[0])

    def _launch(self, kernel: int, count: int, first: int = 0) -> None:
        size, address, stream = self.workspace_bytes(kernel), self._workspace.address, self._gpu.stream
        launch, bound = self._kernels.launch, self._bound
        for i in range(first, first + count):
            launch(kernel, bound[i % len(bound)], address, size, stream)

    def check(self, kernel: int) -> float:
        """Run a kernel once over a poisoned D and give the relative error of the sampled rows.

        Raises:
            VerificationError: the result is wrong or incomplete.
            DeviceError: the launch failed.
        """
        self._gpu.fill(self._first_d, POISON & 0xFF, self._d_bytes)
        self._launch(kernel, 1)
        self._gpu.synchronize()
        return self._sample.check(self._gpu, self._first_d)

    def _flushed_us(self, kernel: int) -> float:
        """Time launches that each follow a flush."""
        plan = self._plan
        count = round(min(max(plan.graph_us / self._rough(kernel), plan.min_flushed), plan.max_flushed))

        def launch(i: int) -> None:
            self._launch(kernel, 1, i)

        return middle_mean(self._gpu.flushed_us(launch, count, self._flush, plan.flush_bytes))

    def _rough(self, kernel: int) -> float:
        if kernel not in self._rough_us:
            self._rough_us[kernel] = self._gpu.time_us(lambda: self._launch(kernel, 1, 1))
        return max(self._rough_us[kernel], 1.0)

    def _graph(self, kernel: int) -> tuple[Handle, int]:
        if kernel not in self._graphs:
            count = num_launches(len(self._bound), self._rough(kernel), self._plan)
            self._graphs[kernel] = (self._gpu.capture(lambda: self._launch(kernel, count)), count)
        return self._graphs[kernel]

    def screen_us(self, kernel: int, best_us: float | None) -> float:
        """Time a kernel once, after `check` has loaded it, in microseconds a launch.

        Args:
            kernel: index in the library.
            best_us: best screening time so far. A kernel that a single launch shows to be far slower, and long enough
                for that to be a measurement, gets that launch's time.

        Raises:
            DeviceError: a launch failed.
        """
        rough_us = self._rough_us[kernel] = self._gpu.time_us(lambda: self._launch(kernel, 1, 1))
        far = best_us is not None and rough_us > self._plan.rough_only_ratio * best_us
        return rough_us if far and rough_us > self._plan.rough_only_us else self.round_us(kernel)

    def round_us(self, kernel: int, *, rests: bool = False) -> float:
        """Time a kernel once, by flushed launches or by its graph, which is kept; in microseconds a launch.

        Args:
            kernel: index in the library.
            rests: whether the GPU is to rest before the replay, as long as the replay lasts.
        """
        if self._plan.flush_bytes:
            return self._flushed_us(kernel)
        graph, count = self._graph(kernel)
        if rests:
            time.sleep(self._rough(kernel) * count / 1e6)
        return self._gpu.replay_us(graph) / count

    def keep(self, chosen: Sequence[int]) -> None:
        """Free the graphs of all but the kernels chosen."""
        for kernel in sorted(set(self._graphs) - set(chosen)):
            self._gpu.destroy(self._graphs.pop(kernel)[0])

    def close(self) -> None:
        """Free every graph."""
        self.keep(())
