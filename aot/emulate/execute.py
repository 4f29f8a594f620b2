"""Execute kernels on the cases that `aot verify` runs on a device, each under several schedules.

Operands, references, bounds and poison are those of `aot.measure.verify`. No guards lie around an operand: its buffer
begins with its first element and ends with its last, and any access outside is a fault.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.compile.tuned import tuned_kernel
from aot.core.constraints import one_line
from aot.core.errors import AotError, CompileError, DeviceError, VerificationError
from aot.core.tile_order import NUM_ORDERS, order_name
from aot.emulate.code import DeviceCode
from aot.emulate.faults import Fault, Finding, FindingKind, UnknownInstructionError
from aot.emulate.gpu import LIMIT, EmulatedGpu
from aot.emulate.host import EmulatedKernels
from aot.emulate.results import RESULT_VERSION, CaseResult, FoundFinding, KernelResult
from aot.emulate.schedule import Schedule
from aot.emulate.work import product_work, row_work
from aot.kinds.gemm.edge_shapes import edge_shapes, shape_of
from aot.kinds.rows.call import RowCase, row_cases
from aot.measure.verify import Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aot.compile.artifact import AnyKernel, Artifact
    from aot.core.comparison import Comparison
    from aot.core.kernel import Kernel
    from aot.emulate.gpu import Execution
    from aot.emulate.kernels import EmulatedSet
    from aot.emulate.running import Trace
    from aot.kinds.rows.kernel import RowKernel

SEED = 0
"""Of the operands."""

MAX_INSTRUCTIONS = 60_000
"""Warp instructions of one execution, by estimate, past which a case is left out: half a second."""

READS_B, STARTS_NEXT = re.compile(r"reads b( of part \d+)?"), "lets the next kernel start"
"""What the machine says of two accesses before the kernel in front has ended."""
_LINE = re.compile(r"line (\d+):")


@dataclass(frozen=True)
class ExecutionOptions:
    """How kernels are executed."""

    schedules: tuple[Schedule, ...] = (Schedule(),)
    problem: tuple[int, ...] | None = None
    """Extents to execute instead of verify's cases: (m, n, k), of operations on rows (rows, cols)."""
    max_instructions: int = MAX_INSTRUCTIONS
    limit: int = LIMIT
    """Warp instructions past which an execution is taken for endless."""
    counts: bool = False
    """Whether instruction forms, bytes and bank conflicts are counted, which takes time."""


@dataclass(frozen=True)
class _Case:
    """A case of a kernel: how it is called, what it would take, and how it is run."""

    name: str
    work: float
    """In units that are proportional to a kernel's instructions."""
    run: Callable[[], Comparison]
    is_promised: tuple[bool, ...]
    """Of each run, whether it is promised that B is constant."""


def schedule_name(schedule: Schedule) -> str:
    """Return the text of messages, by which a run can be repeated."""
    return f"{schedule.mode} {schedule.seed}"


class Executor:
    """Executes the kernels of a set, on one emulated device.

    Args:
        kernels: what is executed.
        options: how.
        trace: called before each instruction of each warp.
        codes: device code to execute in the place of a kernel's own, by the kernel's name.
    """

    def __init__(
        self,
        kernels: EmulatedSet,
        options: ExecutionOptions,
        trace: Trace | None = None,
        codes: Mapping[str, DeviceCode] = MappingProxyType({}),
    ) -> None:
        self._set, self._options = kernels, options
        self._gpu = EmulatedGpu(kernels.target.l2_bytes, limit=options.limit, counts=options.counts, trace=trace)
        target, gpu = kernels.target, self._gpu
        artifacts: list[Artifact[AnyKernel]] = [*kernels.products, *kernels.rows]
        found = [codes.get(x.kernel.name) or DeviceCode.of(x) for x in artifacts]
        self._kernels = EmulatedKernels(kernels.library, found, gpu, target)
        self._begin()

    def _begin(self) -> None:
        """Draw operands anew, so that a kernel's results depend on no other kernel that was executed before it."""
        self._verifier = Verifier(self._gpu, self._kernels, np.random.default_rng(SEED), num_guards=0)

    def execute(self, name: str) -> KernelResult:
        """Execute a kernel of the set by its name, on the cases that do not take too long."""
        self._begin()
        for index, artifact in enumerate(self._set.products):
            if artifact.kernel.name == name:
                return self._result(artifact, self._product_cases(artifact, index))
        for index, row in enumerate(self._set.rows, len(self._set.products)):
            if row.kernel.name == name:
                return self._result(row, self._row_cases(row, index))
        raise AotError(f"no kernel {name} in the set; expected one of {', '.join(self._set.names)}")

    def _product_cases(self, artifact: Artifact[Kernel], index: int) -> list[_Case]:
        tuned: Any = tuned_kernel(artifact.kernel)
        schedules = self._options.schedules
        if self._options.problem is None:
            shapes = edge_shapes(tuned)
        else:
            m, n, k = self._options.problem
            shapes = [shape_of(tuned, (m, n, k))]
        found = []
        for number, shape in enumerate(shapes):
            order = number % NUM_ORDERS if tuned.orders_tiles else 0
            promises = tuple(bool((number + i) % 2) for i in range(len(schedules)))
            run = partial(
                self._verifier.run_each,
                shape,
                index + order * len(self._kernels.names),
                promises,
                is_reproducible=tuned.is_reproducible,
            )
            name = f"{shape}, tiles in order {order_name(order)}" if order else str(shape)
            found.append(_Case(name, product_work(artifact.kernel.candidate, shape), run, promises))
        return found

    def _row_cases(self, artifact: Artifact[RowKernel], index: int) -> list[_Case]:
        operation, limits = artifact.kernel.operation, artifact.kernel.limits
        if self._options.problem is None:
            cases = list(row_cases(operation, limits))
        else:
            rows, cols = self._options.problem
            cases = [RowCase(operation, rows, cols, is_full=True)]
        promises = (False,) * len(self._options.schedules)
        verify = partial(self._verifier.run_each, index=index, promises=promises, is_reproducible=True)
        return [_Case(str(x), row_work(x), partial(verify, x), promises) for x in cases]

    def _result(self, artifact: Artifact[AnyKernel], cases: list[_Case]) -> KernelResult:
        kernel, limit = artifact.kernel, self._options.max_instructions
        results: list[CaseResult] = []
        left_out: list[str] = []
        error, rate = "", 0.0
        for case in sorted(cases, key=lambda x: x.work):
            if rate * case.work > limit and self._options.problem is None:
                left_out.append(case.name)
                continue
            try:
                results.append(self._run(case))
            except (UnknownInstructionError, CompileError) as unknown:
                error = one_line(str(unknown))
                break
            except Exception as failure:  # noqa: BLE001 - the interpreter's own, which is no fault of the kernel
                place = traceback.extract_tb(failure.__traceback__)[-1]
                error = one_line(
                    f"the interpreter failed on {case.name}: {type(failure).__name__}: {failure}, in {place.name} of "
                    f"{Path(place.filename).name}, line {place.lineno}; please report it"
                )
                break
            if results[-1].num_runs:
                # By the largest case so far: what is done once for each CTA weighs most in small ones.
                rate = results[-1].num_instructions / results[-1].num_runs / case.work
        return KernelResult(
            RESULT_VERSION,
            kernel.name,
            kernel.candidate.family,
            kernel.operation.tag,
            kernel.ptx_sha256 or "",
            error,
            len(self._options.schedules),
            tuple(results),
            tuple(left_out),
        )

    def _run(self, case: _Case) -> CaseResult:
        gpu = self._gpu
        gpu.forget()
        gpu.use(self._options.schedules)
        error, share, fault = 0.0, 0.0, ""
        try:
            outcome = case.run()
            error, share = outcome.relative_error, outcome.share_of_bound
        except (Fault, VerificationError, DeviceError) as caught:
            fault = one_line(str(caught))
        finally:
            self._verifier.close()  # the next case's workspace is to be as large as it needs, and no larger
        executions = list(gpu.executions)
        counts: Counter[str] = Counter()
        bytes_moved: Counter[str] = Counter()
        for execution in executions:
            counts.update(execution.report.counts)
            bytes_moved.update(execution.report.bytes_moved)
        return CaseResult(
            one_line(case.name),
            sum(x.is_complete for x in executions),
            error,
            share,
            fault,
            schedule_name(gpu.schedule),
            tuple(_findings(executions, case.is_promised)),
            sum(x.report.num_instructions for x in executions),
            round(sum(x.seconds for x in executions), 3),
            dict(counts),
            dict(bytes_moved),
        )


def is_allowed(finding: Finding, execution: Execution, *, is_promised: bool) -> bool:
    """Say whether a kernel may do what it did before the kernel in front of it had ended (docs/safety.md).

    It may read B where it is promised that nothing writes it meanwhile. A kernel that is launched in front of another
    by the same call may let that one start, which waits for both.
    """
    line = _LINE.match(finding.where)
    is_last = line is None or int(line[1]) in execution.last_lines
    if READS_B.fullmatch(finding.text):
        return is_promised
    return finding.text == STARTS_NEXT and not is_last


def _findings(executions: Sequence[Execution], promises: Sequence[bool]) -> Iterator[FoundFinding]:
    """List what the executions of a case found, each kind and place once, with what it was the first time."""
    found: dict[tuple[str, str, bool], FoundFinding] = {}
    for execution, is_promised in zip(executions, promises, strict=False):
        for x in execution.report.findings:
            is_early = x.kind is FindingKind.EARLY and not is_allowed(x, execution, is_promised=is_promised)
            key = x.kind.value, one_line(x.where), x.kind.is_fault or is_early
            count = x.count + (found[key].count if key in found else 0)
            text, schedule = one_line(x.text), schedule_name(execution.schedule)
            if key in found:
                text, schedule = found[key].text, found[key].schedule
            found[key] = FoundFinding(key[0], key[1], text, schedule, count, key[2])
    return iter(found.values())
