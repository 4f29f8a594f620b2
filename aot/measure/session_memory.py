"""The device memory of a session: what is allocated once, for all problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.kinds.trials import trial_of
from aot.measure.bench import Operands, ProblemBench, Workspace, separator_us
from aot.measure.gpu import OutOfMemoryError
from aot.measure.inputs import RandomPools
from aot.measure.protocol import num_sets, operand_set, set_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from aot.core.work import AnyProblem
    from aot.measure.gpu import Kernels
    from aot.measure.session import Session


class SessionMemory:
    """Random numbers of each element type, the buffer that flushes L2, and room for operands and workspaces."""

    def __init__(self, session: Session, problems: Sequence[AnyProblem], rng: np.random.Generator) -> None:
        self._session, self._rng = session, rng
        self._gpu, self._plan = session.gpu, session.plan
        # No more random numbers than the largest problem can be filled with, twice over for the offset.
        num_elements = min(session.source_elements, max(map(self.arena_bytes, problems)))
        self._pools = RandomPools(self._gpu, rng, num_elements)
        for problem in {problem.operation: problem for problem in problems}.values():
            self._make_pools(problem)
        self._flush = self._gpu.alloc(self._plan.flush_bytes) if self._plan.flush_bytes else 0
        self._separator_us = 0.0
        if not self._plan.flush_bytes:
            self._separator_us = separator_us(self._gpu, self._plan)
            session.store.add_separator_time(session.run, self._separator_us)

    def _make_pools(self, problem: AnyProblem) -> None:
        """Draw what a problem's operands hold, before the arena takes the memory that is left."""
        trial = trial_of(problem.operation)
        for argument, placed in sorted(operand_set(problem).placed.items(), key=lambda x: str(x[0])):
            content = None if placed.is_written else trial.content(problem.operation, argument)
            if content is not None:
                self._pools.of(content)

    def arena_bytes(self, problem: AnyProblem) -> int:
        """Count the bytes of a problem's operands, in as many copies as exceed L2."""
        return num_sets(problem, self._gpu.l2_bytes, self._plan) * set_bytes(problem)

    def reserve_arena(self, problems: Sequence[AnyProblem]) -> tuple[int, dict[AnyProblem, OutOfMemoryError]]:
        """Allocate what the largest problem needs that there is memory for.

        Returns:
            The address, and the problems that there is no memory for, each with the error.
        """
        left = list(problems)
        too_large: dict[AnyProblem, OutOfMemoryError] = {}
        while left:
            largest = max(map(self.arena_bytes, left))
            try:
                return self._gpu.alloc(largest), too_large
            except OutOfMemoryError as error:
                too_large |= {x: error for x in left if self.arena_bytes(x) == largest}
                left = [x for x in left if x not in too_large]
        return 0, too_large

    def reserve_workspace(self, sizes: Iterable[int]) -> tuple[Workspace, int | None]:
        """Allocate the largest workspace that can be had of some sizes in bytes.

        Returns:
            The workspace, and the limit in bytes below which it was found; None where the largest could be had.
        """
        limit = None
        for size in sorted(set(sizes) - {0}, reverse=True):
            try:
                return Workspace(self._gpu.alloc(size), size), limit
            except OutOfMemoryError as error:
                self._session.warn(f"kernels that need {size} bytes of workspace are not tried: {error}")
                limit = size - 1
        return Workspace(0, 0), limit

    def bench(self, problem: AnyProblem, arena: int, workspace: Workspace) -> ProblemBench:
        """Return what times kernels on a problem, with operands in an arena of `arena_bytes`."""
        made = Operands(self._gpu, self._pools, arena, problem, self._plan, self._rng)
        return self._bench(self._session.kernels, made, workspace)

    def _bench(self, kernels: Kernels, made: Operands, workspace: Workspace) -> ProblemBench:
        return ProblemBench(
            self._gpu,
            kernels,
            made,
            workspace,
            self._plan,
            flush=self._flush,
            separator_us=self._separator_us,
        )

    def own_bench(self, problem: AnyProblem) -> ProblemBench:
        """Return the same with operands of its own and no workspace, for use at any time.

        Raises:
            OutOfMemoryError: there is no memory for them.
        """
        return self.bench(problem, self._gpu.alloc(self.arena_bytes(problem)), Workspace(0, 0))
