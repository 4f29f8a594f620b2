"""One problem on the device: its operands, the sample that results are checked against, and what times its kernels."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.comparison import Check
from aot.core.errors import VerificationError
from aot.core.grouping import Grouping
from aot.core.numerics import bits_type, is_bad, poison_byte, unit_roundoff
from aot.core.operands import Arrangement, GemmCall, Tensor, operands
from aot.core.reference import needed, reference
from aot.core.signature import Argument
from aot.measure.baselines import Agreement
from aot.measure.group_inputs import POSITIONS, TIMED_SIZES, draw_ends, draw_index, place
from aot.measure.protocol import middle_mean, num_launches, num_sets, operand_set, quartiles, timed_arrangement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from aot.core.numerics import Bits
    from aot.core.operands import Matrix
    from aot.core.problem import Problem
    from aot.measure.gpu import Gpu, Handle, Kernels
    from aot.measure.inputs import RandomPools, Tiling
    from aot.measure.protocol import TimingPlan

NEAR, LEAST_ROUNDOFF = 8, 2.0**-8
"""Roundings of D's type that the errors of a library's product may amount to, and the least that a rounding is taken
for: a library may round the sum and what each step of an epilogue gives, and need not promote FP8's sums. What this
finds is a baseline of other operands or another formula, whose errors are as large as D."""


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
    """Some rows of D, and some of their columns with a float64 reference, computed once for all kernels.

    Of a batch they are of one product.
    """

    def __init__(
        self,
        problem: Problem,
        tilings: Mapping[Argument, Tiling],
        arrangement: Arrangement,
        plan: TimingPlan,
        rng: np.random.Generator,
    ) -> None:
        """Take a sample of the first set, whose operands are tiled so."""
        self._problem = problem
        self._num_columns = problem.n
        self.rows = _pick(rng, problem.m, plan.sample_rows)
        self.columns = _pick(rng, problem.n, max(2, min(plan.sample_columns, plan.sample_elements // problem.k)))
        places = operands(problem, 0, arrangement)
        operation = problem.operation
        self._group = int(rng.integers(problem.num_groups))
        of_a, first_k = self.rows, 0
        self._first = self._group * places[Argument.D].group_stride
        if operation.grouping.groups_rows:  # in the first set all are of even sizes, m
            of_a = of_a + self._group * problem.m
            self._first = self._group * problem.m * problem.n
        if operation.grouping is Grouping.GATHERED:
            of_a = tilings[Argument.INDEX].values(of_a).astype(np.int64)
        if operation.grouping is Grouping.K_GROUPED:
            first_k = self._group * problem.k
        indices = needed(problem, of_a, self.columns, arrangement)
        if operation.grouping is Grouping.K_GROUPED:
            indices |= {x: (indices[x][0], indices[x][1] + first_k) for x in (Argument.A, Argument.B)}
        values: dict[Argument, NDArray[np.float64]] = {
            x: tilings[x].values(where.positions(*indices[x], self._group if where.num_groups > 1 else 0))
            for x, where in places.items()
            if x not in (Argument.D, *POSITIONS)
        }
        self._check = Check(operation, reference(operation, values))
        self._bits: Bits = np.empty((len(self.rows), problem.n), bits_type(operation.d))

    def _read(self, gpu: Gpu, d: int) -> Bits:
        """Read the rows of a D (m, n) at an address, and return the sampled columns.

        Raises:
            VerificationError: an element of the rows is not written or not finite.
        """
        dtype = self._problem.operation.d
        for i, row in enumerate(self.rows.tolist()):
            gpu.download(d + dtype.size_of(self._first + row * self._num_columns), self._bits[i])
        num_bad = int(is_bad(dtype, self._bits).sum())
        if num_bad:
            raise VerificationError(f"{num_bad} of {self._bits.size} sampled elements are not written or not finite")
        sampled: Bits = self._bits[:, self.columns]
        return sampled

    def check(self, gpu: Gpu, d: int) -> float:
        """Read the rows of a D (m, n) at an address and give the relative error.

        Raises:
            VerificationError: an element of the rows is not written or not finite, or a sampled one is wrong.
        """
        outcome = self._check.compare(self._read(gpu, d))
        if outcome.fault:
            raise VerificationError(f"wrong result on sampled rows: {outcome.fault}")
        return outcome.relative_error

    def check_near(self, gpu: Gpu, d: int) -> float:
        """Do the same for what rounds between its steps too: all errors together keep NEAR roundings of D's type.

        Raises:
            VerificationError: an element of the rows is not written or not finite, or they are wrong.
        """
        relative = self._check.compare(self._read(gpu, d)).relative_error
        bound = NEAR * max(unit_roundoff(self._problem.operation.d), LEAST_ROUNDOFF)
        if not relative <= bound:
            raise VerificationError(f"wrong result on sampled rows: relative error {relative:.2e}, bound {bound:.2e}")
        return relative


class Operands:
    """The operands of a problem on the device, in as many sets as exceed L2, and the sample of their first product."""

    def __init__(
        self, gpu: Gpu, pools: RandomPools, arena: int, problem: Problem, plan: TimingPlan, rng: np.random.Generator
    ) -> None:
        """Fill an arena, an address with room for the sets, with random numbers."""
        self._gpu, self.problem, self._plan, self._rng = gpu, problem, plan, rng
        layout, self._sets = operand_set(problem), []
        self._tilings: list[dict[Argument, Tiling]] = []
        for i in range(num_sets(problem, gpu.l2_bytes, plan)):
            places = {x: arena + i * layout.num_bytes + start for x, start in layout.starts.items()}
            self._sets.append(places)
            inputs = {x: matrix.num_elements for x, matrix in layout.matrices.items() if x is not Argument.D}
            tilings = {
                x: pools.of(problem.operation, x).tile(places[x], inputs[x]) for x in inputs if x not in POSITIONS
            }
            self._tilings.append(tilings | self._place_positions(i, places, layout.matrices))
        self._arrange(timed_arrangement(problem.operation))

    def _place_positions(
        self, number: int, places: Mapping[Argument, int], matrices: Mapping[Argument, Matrix]
    ) -> dict[Argument, Tiling]:
        """Write where the groups of a set end, and an index of random rows, where a problem has them."""
        found, groups = {}, self.problem.num_groups
        if Argument.OFFSETS in matrices:
            is_of_rows = self.problem.operation.grouping.groups_rows
            extent = (self.problem.m if is_of_rows else self.problem.k) * groups
            ends = draw_ends(TIMED_SIZES[number % len(TIMED_SIZES)], groups, extent, self._rng)
            found[Argument.OFFSETS] = place(self._gpu, places[Argument.OFFSETS], ends)
        if Argument.INDEX in matrices:
            rows, height = matrices[Argument.INDEX].num_rows, matrices[Argument.A].num_rows
            index = draw_index(rows, height, self._rng, has_missing=False)
            found[Argument.INDEX] = place(self._gpu, places[Argument.INDEX], index)
        return found

    def _arrange(self, arrangement: Arrangement) -> None:
        self.arrangement = arrangement
        placed = operands(self.problem, 0, arrangement)
        self.calls = [
            GemmCall(self.problem, {x: Tensor(places[x], matrix) for x, matrix in placed.items()})
            for places in self._sets
        ]
        self.sample = Sample(self.problem, self._tilings[0], arrangement, self._plan, self._rng)

    def arranged(self, arrangement: Arrangement) -> Operands:
        """Return the same memory read in another way, such as with one factor for all rows."""
        if arrangement == self.arrangement:
            return self
        other = copy(self)
        other._arrange(arrangement)  # noqa: SLF001
        return other

    def run(self, multiply: Callable[[], None]) -> int:
        """Let something compute the first product over a poisoned D; return D's address.

        Raises:
            DeviceError: the launch failed.
        """
        tensor, dtype = self.calls[0].tensors[Argument.D], self.problem.operation.d
        d = tensor.address
        self._gpu.fill(d, poison_byte(dtype), dtype.size_of(tensor.matrix.num_elements))
        multiply()
        self._gpu.synchronize()
        return d

    def check(self, multiply: Callable[[], None]) -> float:
        """Let something compute the first product over a poisoned D; give the relative error of the sampled rows.

        Raises:
            VerificationError: the result is wrong or incomplete.
            DeviceError: the launch failed.
        """
        return self.sample.check(self._gpu, self.run(multiply))


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

    def beside(self, kernels: Kernels, arrangement: Arrangement) -> ProblemBench:
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
        """Run a kernel once over a poisoned D and give the relative error of the sampled rows.

        Raises:
            VerificationError: the result is wrong or incomplete.
            DeviceError: the launch failed.
        """
        return self._operands.check(lambda: self._launch(kernel, 1))

    def check_baseline(self, agreement: Agreement) -> None:
        """Run a library's only kernel once over a poisoned D, and look at its result as far as it agrees.

        Raises:
            VerificationError: the result is wrong or incomplete.
            DeviceError: the launch failed.
        """
        d = self._operands.run(lambda: self._launch(0, 1))
        if agreement is Agreement.EXACT:
            self._operands.sample.check(self._gpu, d)
        elif agreement is Agreement.NEAR:
            self._operands.sample.check_near(self._gpu, d)

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
        is late with the second of two short replays, the device waits between the events.

        Args:
            kernel: index in the library.
            best_us: best screening time so far. A kernel that a single launch shows to be far slower, and long enough
                for that to be a measurement, gets that launch's time.

        Raises:
            DeviceError: a launch failed.
        """
        rough_us = self._rough_us[kernel] = self._gpu.time_us(lambda: self._launch(kernel, 1, 1))
        far = best_us is not None and rough_us > self._plan.rough_only_ratio * best_us
        if far and rough_us > self._plan.rough_only_us:
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
