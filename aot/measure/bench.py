"""One problem on the device: its operands, the sample that results are checked against, and what times its kernels."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.core.errors import VerificationError
from aot.core.numerics import poison_byte
from aot.kinds.inputs import Tiling
from aot.kinds.trial import Agreement
from aot.kinds.trials import trial_of
from aot.measure.elements import download_elements
from aot.measure.protocol import middle_mean, num_launches, num_sets, operand_set, quartiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aot.core.comparison import Comparison
    from aot.core.numerics import Bits
    from aot.core.work import AnyProblem
    from aot.kinds.trial import AnyArgument, Sample, Span
    from aot.measure.gpu import Gpu, Handle, Kernels
    from aot.measure.inputs import RandomPools
from aot.measure.protocol import TimingPlan


@dataclass(frozen=True)
class Workspace:
    """Device memory that every kernel may use in turn."""

    address: int
    num_bytes: int


class Operands:
    """The operands of a problem on the device, in as many sets as exceed L2, and the sample of their first results."""

    def __init__(
        self, gpu: Gpu, pools: RandomPools, arena: int, problem: AnyProblem, plan: TimingPlan, rng: np.random.Generator
    ) -> None:
        """Fill an arena, an address with room for the sets, with random numbers."""
        self._gpu, self.problem, self._plan, self._rng = gpu, problem, plan, rng
        self._trial, self._layout = trial_of(problem.operation), operand_set(problem)
        self._sets: list[dict[AnyArgument, int]] = []
        tilings = []
        for i in range(num_sets(problem, gpu.l2_bytes, plan)):
            places = {x: arena + i * self._layout.num_bytes + start for x, start in self._layout.starts.items()}
            self._sets.append(places)
            tilings.append(self._fill(i, places, pools))
        self._first = tilings[0]
        self._arrange(self._trial.arrangement(problem.operation))

    def _fill(self, number: int, places: dict[AnyArgument, int], pools: RandomPools) -> dict[AnyArgument, Tiling]:
        """Fill a set, and tell what is where."""
        found: dict[AnyArgument, Tiling] = {}
        for argument, placed in self._layout.placed.items():
            content = None if placed.is_written else self._trial.content(self.problem.operation, argument)
            if content is not None:
                found[argument] = pools.of(content).tile(places[argument], placed.matrix.num_elements)
        for argument, bits in self._trial.positions(self.problem, number, self._rng).items():
            self._gpu.upload(places[argument], bits)
            found[argument] = Tiling.of(self._layout.placed[argument].element, bits)
        return found

    def _arrange(self, arrangement: Any) -> None:
        self.arrangement = arrangement
        self.calls = [self._trial.timed_call(self.problem, places, arrangement) for places in self._sets]
        self.sample: Sample = self._trial.sample(self.problem, self._first, self._plan.sample, self._rng, arrangement)

    def arranged(self, arrangement: Any) -> Operands:
        """Return the same memory read in another way, such as with one factor for all rows."""
        if arrangement == self.arrangement:
            return self
        other = copy(self)
        other._arrange(arrangement)  # noqa: SLF001
        return other

    def _run(self, launch: Callable[[], None]) -> Comparison:
        """Let something compute the first results over poison; hold the sample against the reference.

        Raises:
            DeviceError: the launch failed.
        """
        places, layout = self._sets[0], self._layout
        for argument, placed in layout.placed.items():
            if placed.is_written:
                num_bytes = placed.element.size_of(placed.matrix.num_elements)
                self._gpu.fill(places[argument], poison_byte(placed.element), num_bytes)
        launch()
        self._gpu.synchronize()
        return self.sample.compare([self._read(span) for span in self.sample.spans])

    def _read(self, span: Span) -> Bits:
        element = self._layout.placed[span.argument].element
        address = self._sets[0][span.argument] + element.size_of(span.start)
        return download_elements(self._gpu, address, element, span.count)

    def check(self, launch: Callable[[], None], agreement: Agreement = Agreement.EXACT) -> float:
        """Let something compute the first results over poison; give the relative error of the sample.

        Args:
            launch: what computes them.
            agreement: how far they are to be right.

        Raises:
            VerificationError: the result is wrong or incomplete.
            DeviceError: the launch failed.
        """
        outcome = self._run(launch)
        relative, near = outcome.relative_error, self.sample.near if agreement is Agreement.NEAR else 0.0
        if agreement is Agreement.EXACT and outcome.fault:
            raise VerificationError(f"wrong result on sampled rows: {outcome.fault}")
        if agreement is Agreement.NEAR and not relative <= near:
            text = outcome.fault if np.isinf(relative) else f"relative error {relative:.2e}, bound {near:.2e}"
            raise VerificationError(f"wrong result on sampled rows: {text}")
        return relative


def separator_us(gpu: Gpu, plan: TimingPlan) -> float:
    """Time what one more separator costs a graph of them, in microseconds."""
    gpu.launch_separator()  # loads it
    gpu.synchronize()

    def launch(count: int) -> None:
        for _ in range(count):
            gpu.launch_separator()

    def median_us(count: int) -> float:
        graph = gpu.capture(lambda: launch(count))
        try:
            return quartiles([gpu.replay_us(graph) for _ in range(plan.separator_rounds)])[1]
        finally:
            gpu.destroy(graph)

    few, many = plan.separator_graphs
    return max(0.0, (median_us(many) - median_us(few)) / (many - few))


class ProblemBench:
    """Times kernels on one problem's operands.

    Args:
        gpu: the device.
        kernels: what is launched.
        operands: of the problem.
        workspace: that the kernels share.
        plan: the protocol's numbers.
        flush: address of what a plan of FLUSH_PROTOCOL writes before each launch.
        separator_us: what a separator costs a graph.
    """

    def __init__(
        self,
        gpu: Gpu,
        kernels: Kernels,
        operands: Operands,
        workspace: Workspace,
        plan: TimingPlan,
        *,
        flush: int = 0,
        separator_us: float = 0.0,
    ) -> None:
        self._gpu, self._kernels, self._operands, self._workspace = gpu, kernels, operands, workspace
        self._plan, self._flush, self._separator_us = plan, flush, separator_us
        self.problem = operands.problem
        self._bound = [kernels.bind(call) for call in operands.calls]
        self._rough_us: dict[int, float] = {}
        self._graphs: dict[int, tuple[Handle, int]] = {}

    @property
    def num_sets(self) -> int:
        """Return the sets of operands, the fewest launches of a graph."""
        return len(self._bound)

    def beside(self, kernels: Kernels, arrangement: Any) -> ProblemBench:
        """Return what times other kernels, which need no workspace, on the same operands, read in another way."""
        own = (self._operands.arranged(arrangement), Workspace(0, 0), self._plan)
        return ProblemBench(self._gpu, kernels, *own, flush=self._flush, separator_us=self._separator_us)

    def workspace_bytes(self, kernel: int) -> int:
        """Return the workspace that a kernel needs."""
        return self._kernels.workspace_bytes(kernel, self._bound[0])

    def _launch(self, kernel: int, count: int, first: int = 0) -> None:
        size, address, stream = self.workspace_bytes(kernel), self._workspace.address, self._gpu.stream
        launch, bound = self._kernels.launch, self._bound
        for i in range(first, first + count):
            launch(kernel, bound[i % len(bound)], address, size, stream)

    def check(self, kernel: int) -> float:
        """Run a kernel once over poison and give the relative error of the sampled rows.

        Raises:
            VerificationError: the result is wrong or incomplete.
            DeviceError: the launch failed.
        """
        return self._operands.check(lambda: self._launch(kernel, 1))

    def check_baseline(self, agreement: Agreement) -> None:
        """Run a library's only kernel once over a poisoned result, and look at that as far as it agrees.

        Raises:
            VerificationError: the result is wrong or incomplete.
            DeviceError: the launch failed.
        """
        self._operands.check(lambda: self._launch(0, 1), agreement)

    def _flushed_us(self, kernel: int) -> float:
        """Time launches that each follow a flush."""
        plan = self._plan
        count = round(min(max(plan.graph_us / self._rough(kernel), plan.min_flushed), plan.max_flushed))

        def launch(i: int) -> None:
            self._launch(kernel, 1, i)

        return middle_mean(self._gpu.flushed_us(launch, count, self._flush, plan.flush_bytes))

    def _rough(self, kernel: int) -> float:
        if kernel not in self._rough_us:
            self._rough_us[kernel] = self._single_us(kernel)
        return max(self._rough_us[kernel], 1.0)

    def _single_us(self, kernel: int) -> float:
        return self._gpu.time_us(lambda: self._launch(kernel, 1, 1))

    def _graph(self, kernel: int) -> tuple[Handle, int]:
        if kernel not in self._graphs:
            count = num_launches(len(self._bound), self._rough(kernel), self._plan)
            self._graphs[kernel] = (self._gpu.capture(lambda: self._launch_separated(kernel, count)), count)
        return self._graphs[kernel]

    def _launch_separated(self, kernel: int, count: int) -> None:
        step = self._plan.launches_per_separator
        for first in range(0, count, step):
            self._gpu.launch_separator()
            self._launch(kernel, min(step, count - first), first)

    def screen_us(self, kernel: int, best_us: float | None) -> float:
        """Time a kernel once, after `check` has loaded it, in microseconds a launch.

        A time that would keep the kernel out of the final rounds is taken twice, and the less counts: where the host
        is late with the second of two short replays, the device waits between the events. Of a single launch too: on
        an H200 one kernel of 4.6 us took 2,090 in one of 11,392.

        Args:
            kernel: index in the library.
            best_us: best screening time so far. A kernel that a single launch shows to be far slower, and long enough
                for that to be a measurement, gets that launch's time.

        Raises:
            DeviceError: a launch failed.
        """
        slow_us = np.inf if best_us is None else max(self._plan.rough_only_ratio * best_us, self._plan.rough_only_us)
        rough_us = self._single_us(kernel)
        if rough_us > slow_us:
            rough_us = min(rough_us, self._single_us(kernel))
        self._rough_us[kernel] = rough_us
        if rough_us > slow_us:
            return rough_us
        us = self.round_us(kernel)
        is_out = best_us is None or us > self._plan.keep_ratio * best_us
        return min(us, self.round_us(kernel)) if is_out else us

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
        num_separators = -(-count // self._plan.launches_per_separator)
        is_long = self._rough(kernel) * count >= self._plan.long_replay_us
        us = self._gpu.replay_us(graph, warms_up=not is_long)
        return (us - num_separators * self._separator_us) / count

    def keep(self, chosen: Sequence[int]) -> None:
        """Free the graphs of all but the kernels chosen."""
        for kernel in sorted(set(self._graphs) - set(chosen)):
            self._gpu.destroy(self._graphs.pop(kernel)[0])

    def close(self) -> None:
        """Free every graph."""
        self.keep(())
