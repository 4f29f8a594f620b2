"""Verify and time row kernels, one process at a time: resumable, with what runs noted before it does.

`rows-graph-cold-l2-v1`, for a GPU with memory of its own: one graph holds the launches of one kernel, each on the next
of sets of operands that together exceed the L2 cache. `rows-events-flushed-l2-v1`, for an integrated GPU: each launch
between two events, after a write that clears the cache. A time is the median of rounds, in which a size's kernels take
turns. Norms are timed with their weights and biases, and scales are found, not given. A rotary embedding's rows are
heads of tokens, and whole heads are rotated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from aot.core.element import ElementType
from aot.core.errors import DeviceError, VerificationError
from aot.core.numerics import bits_type, encode
from aot.kinds.rows.operation import RowFunction
from aot.kinds.rows.signature import RowArgument
from aot.measure.gpu import ContextLostError, OutOfMemoryError
from aot.measure.protocol import TimingPlan, middle_mean
from aot.measure.row_library import tensor_of
from aot.measure.row_results import RowTimed, RowVerified
from aot.measure.row_verify import RowVerifier
from aot.measure.session import StoppedError

if TYPE_CHECKING:
    from aot.core.numerics import Bits
    from aot.kinds.rows.operation import RowProblem
    from aot.measure.gpu import Gpu, Handle
    from aot.measure.row_library import RowsProblemStruct
    from aot.measure.row_results import RowResults
    from aot.measure.row_tuning_set import RowTuningSet, TunedRowKernel, TunedRows
    from aot.measure.row_verify import RowKernels

PROTOCOL, FLUSH_PROTOCOL = "rows-graph-cold-l2-v1", "rows-events-flushed-l2-v1"
"""Versions of the protocols; times of different protocols are not compared."""
ALIGNMENT = 256
"""Bytes that each operand is aligned to, as cudaMalloc aligns."""
HEADS = (32, 8, 1)
"""Heads of a token, of a rotary embedding: the first that divides the rows. An assumption: as many models have."""
RANDOM_ELEMENTS = 1 << 16
"""Random values that operands are filled with, over and over."""


@dataclass
class RowSession:
    """What one process measures with."""

    gpu: Gpu
    kernels: RowKernels
    tuning: RowTuningSet
    results: RowResults
    rng: np.random.Generator
    plan: TimingPlan = field(default_factory=TimingPlan)
    report: Callable[[int, int, str], None] = lambda _done, _total, _what: None
    """Called often with the steps done, the steps in all, and what is being done."""
    stop: Callable[[], bool] = lambda: False
    """Asked between measurements whether to end."""
    warn: Callable[[str], None] = lambda _text: None


def protocol_of(plan: TimingPlan) -> str:
    """Return the name of the protocol that a plan times rows by."""
    return FLUSH_PROTOCOL if plan.flush_bytes else PROTOCOL


class _Sets:
    """Operands of a size on the device, in as many sets as exceed the L2."""

    def __init__(self, session: RowSession, problem: RowProblem) -> None:
        """Allocate and fill them.

        Raises:
            OutOfMemoryError: there is too little memory.
        """
        self._session, self._problem = session, problem
        self._gpu = session.gpu
        self._held: list[int] = []
        plan = session.plan
        needed = -(-plan.l2_multiple * self._gpu.l2_bytes // problem.num_bytes)
        count = 1 if plan.flush_bytes else max(2, min(needed, plan.max_launches))
        try:
            self.flush = self._alloc(plan.flush_bytes) if plan.flush_bytes else 0
            self.problems = [self._place() for _ in range(count)]
        except BaseException:
            self.free()
            raise

    def _alloc(self, num_bytes: int) -> int:
        address = self._gpu.alloc(-(-num_bytes // ALIGNMENT) * ALIGNMENT)
        self._held.append(address)
        return address

    def _operand(self, element: ElementType, rows: int, cols: int, *, drawn: bool = True) -> int:
        address = self._alloc(element.size_of(rows * cols))
        if drawn:
            drawn_values = self._session.rng.standard_normal(min(rows * cols, RANDOM_ELEMENTS), np.float32)
            bits: Bits = np.resize(encode(element, drawn_values), rows * cols).astype(bits_type(element))
            self._gpu.upload(address, bits)
        return address

    def _place(self) -> RowsProblemStruct:
        operation, rows, cols = self._problem.operation, self._problem.rows, self._problem.cols
        found = self._session.kernels.problem(operation)
        found.rows, found.cols, found.eps = rows, cols, 1e-5
        x, width = operation.x, operation.num_columns_of_x(cols)
        addresses = {
            RowArgument.X: self._operand(x, rows, width),
            RowArgument.Y: self._operand(operation.y, rows, cols, drawn=False),
        }
        if operation.function is RowFunction.ROTARY:
            self._place_heads(found, addresses)
            return found
        strides = {RowArgument.X: width, RowArgument.Y: cols}
        if operation.is_norm:
            addresses[RowArgument.WEIGHT] = self._operand(x, 1, cols)
        if operation.has_bias:
            addresses[RowArgument.BIAS] = self._operand(x, 1, cols)
        if operation.is_quantized:
            shape = operation.shape_of_scales(rows, cols)
            addresses[RowArgument.SCALE] = self._operand(ElementType.FLOAT32, *shape, drawn=False)
            strides[RowArgument.SCALE] = shape[1]
        for argument, address in addresses.items():
            setattr(found, argument.value, tensor_of(address, strides.get(argument, cols), 1))
        return found

    def _place_heads(self, found: RowsProblemStruct, addresses: dict[RowArgument, int]) -> None:
        element, rows, cols = self._problem.operation.x, self._problem.rows, self._problem.cols
        heads = next(x for x in HEADS if rows % x == 0)
        found.rows = found.positions = rows // heads
        found.heads, found.rotary_dim = heads, cols
        for argument, address in addresses.items():
            setattr(found, argument.value, tensor_of(address, heads * cols, cols, 1))
        for argument in (RowArgument.COS, RowArgument.SIN):
            address = self._operand(element, rows // heads, cols // 2)
            setattr(found, argument.value, tensor_of(address, cols // 2, 1))

    def free(self) -> None:
        """Give the memory back."""
        for address in self._held:
            self._gpu.free(address)


class RowWorker:
    """Measures a tuning of row operations in this process."""

    def __init__(self, session: RowSession) -> None:
        """Take what to measure with."""
        self._session, self._results = session, session.results
        self._gpu, self._kernels = session.gpu, session.tuning.kernels
        self._verifier = RowVerifier(session.gpu, session.kernels, session.rng)
        self._todo = {size: [i for i in size.kernels if not self._is_timed(size, i)] for size in session.tuning.sizes}
        used = {i for size in session.tuning.sizes for i in size.kernels}
        self._total = len(used) + sum(len(size.kernels) for size in session.tuning.sizes)
        self._done = self._total - sum(map(len, self._todo.values()))
        self._done -= sum(self._kernels[i].identity not in self._results.verified for i in used)

    def _is_timed(self, size: TunedRows, index: int) -> bool:
        return (self._kernels[index].identity, size.rows, size.cols) in self._results.times

    def _step(self, what: str, count: int = 1) -> None:
        """Count and report steps.

        Raises:
            StoppedError: the session's `stop` said so.
        """
        self._done += count
        self._session.report(self._done, self._total, what)
        if self._session.stop():
            raise StoppedError

    def run(self) -> None:
        """Verify every kernel that is to be timed and was not verified, then time what is not timed.

        Raises:
            StoppedError: the run is to end.
            ContextLostError: a kernel took the device's context with it; it is quarantined.
        """
        self._step("resuming", 0)
        for index in sorted({i for indices in self._todo.values() for i in indices}):
            self._verify(index, self._kernels[index])
        for size, indices in self._todo.items():
            left = [i for i in indices if self._kernels[i].identity not in self._results.quarantined]
            if left:
                self._time(size, left)
        self._results.clear_in_flight()

    def _blame(self, kernel: TunedRowKernel, what: str, error: DeviceError | VerificationError) -> None:
        """Quarantine a kernel.

        Raises:
            ContextLostError: the device cannot be used on by this process.
        """
        self._results.quarantine(0, kernel.identity, f"{what}: {error}")
        self._results.clear_in_flight()
        self._session.warn(f"quarantined {kernel.name}: {what}: {error}")
        if self._gpu.is_lost():
            raise ContextLostError(f"{kernel.name}: {what}: {error}") from error

    def _verify(self, index: int, kernel: TunedRowKernel) -> None:
        if kernel.identity in self._results.verified or kernel.identity in self._results.quarantined:
            return
        self._results.start(kernel.identity, f"verifying {kernel.name}")
        try:
            self._verifier.verify(kernel.operation, kernel.limits, index)
        except OutOfMemoryError:
            raise
        except (DeviceError, VerificationError) as error:
            self._blame(kernel, "verifying", error)
        else:
            self._results.add(RowVerified(kernel.identity))
        self._step(f"verified {kernel.name}")

    def _time(self, size: TunedRows, indices: list[int]) -> None:
        name = size.problem.name
        try:
            sets = _Sets(self._session, size.problem)
        except OutOfMemoryError as error:
            self._session.warn(f"{name} is left out: {error}")
            self._step(name, len(indices))
            return
        rounds: dict[int, Callable[[], float]] = {}
        graphs: list[Handle] = []
        try:
            for index in indices:
                kernel = self._kernels[index]
                self._results.start(kernel.identity, f"measuring {name}")
                try:
                    rounds[index] = self._prepared(sets, index, graphs)
                except DeviceError as error:
                    self._blame(kernel, f"measuring {name}", error)
                self._session.report(self._done, self._total, name)
            self._results.clear_in_flight()
            self._finish(size, self._in_turns(rounds))
            self._step(name, len(indices))
        finally:
            for graph in graphs:
                self._gpu.destroy(graph)
            sets.free()

    def _prepared(self, sets: _Sets, index: int, graphs: list[Handle]) -> Callable[[], float]:
        """Launch a kernel once, and return what times a round of it, in microseconds a launch."""
        gpu, plan, problems = self._gpu, self._session.plan, sets.problems

        def launch(number: int) -> None:
            self._session.kernels.launch(index, problems[number % len(problems)], gpu.stream)

        launch(0)
        gpu.synchronize()
        if plan.flush_bytes:
            launched = partial(gpu.flushed_us, launch, plan.min_flushed, sets.flush, plan.flush_bytes)
            return lambda: middle_mean(launched())
        rough = max(gpu.time_us(lambda: launch(1)), 1.0)
        count = max(len(problems), min(plan.max_launches, int(plan.graph_us // rough)))

        def launch_all() -> None:
            for number in range(count):
                launch(number)

        graph = gpu.capture(launch_all)
        graphs.append(graph)
        return lambda: gpu.replay_us(graph) / count

    def _in_turns(self, rounds: dict[int, Callable[[], float]]) -> dict[int, list[float]]:
        times: dict[int, list[float]] = {index: [] for index in rounds}
        for _ in range(self._session.plan.final_rounds):
            for index in self._session.rng.permutation(sorted(rounds)).tolist():
                times[index].append(rounds[index]())
            self._session.report(self._done, self._total, "rounds")
        return times

    def _finish(self, size: TunedRows, times: dict[int, list[float]]) -> None:
        for index, found in times.items():
            kernel = self._kernels[index]
            us = round(median(found), 3)
            self._results.add(RowTimed(kernel.identity, kernel.operation, kernel.candidate, size.rows, size.cols, us))
