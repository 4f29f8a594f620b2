"""What a build says of a wheel's kernels: how far each was tried, and what computes batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from aot.compile.artifact import AnyKernel
from aot.core.candidate import KernelKey
from aot.core.dispatch import DispatchTable
from aot.core.execution import Execution, KernelState, execution_of, state_of
from aot.core.grouping import Grouping
from aot.core.measurement import OperationTimes, Provenance
from aot.core.operation import Operation
from aot.core.work import AnyKey
from aot.kinds.rows.dispatch import RowTable
from aot.package.manifest import Manifest


def measured_kernels(table: DispatchTable, kernels: Sequence[KernelKey], timed: OperationTimes) -> set[KernelKey]:
    """Return the kernels of products of which a time was taken on the table's device.

    A row with a measured time has measured times of both its kernels: beside one stands no predicted one. A grid holds
    no times, and the times of a row's general kernel are not told.

    Args:
        table: the device's.
        kernels: by the index that the table uses.
        timed: the measured times behind the table, where they are at hand.
    """
    rows = (row for section in table.sections for ladder in section.ladders for row in ladder.rows)
    found = {kernels[x] for row in rows if row.provenance == Provenance.MEASURED for x in (row.kernel, row.runner_up)}
    return found | {
        KernelKey(operation, candidate)
        for operation, times in timed.items()
        for row in times.values()
        for candidate in row
    }


def measured_steps(table: RowTable, kernels: Sequence[AnyKey]) -> set[AnyKey]:
    """Return the kernels of which a table of steps has a time that was taken on its device."""
    steps = (step for section in table.sections for column in section.columns for step in column.steps)
    return {kernels[step.kernel] for step in steps if step.provenance == Provenance.MEASURED}


def with_states(
    kernels: Iterable[AnyKernel], measured: Collection[AnyKey], executions: Sequence[Execution]
) -> tuple[AnyKernel, ...]:
    """Say of kernels how far they were tried.

    Args:
        kernels: as they were compiled.
        measured: those that ran on a device that they are for.
        executions: what the interpreter found of any kernels.
    """
    by_name: dict[str, list[Execution]] = {}
    for execution in executions:
        by_name.setdefault(execution.kernel, []).append(execution)

    def stated(kernel: AnyKernel) -> AnyKernel:
        found = execution_of(kernel.name, kernel.ptx_sha256, by_name.get(kernel.name, ()))
        return replace(kernel, state=state_of(found, is_measured=kernel.key in measured))

    return tuple(stated(kernel) for kernel in kernels)


def executions_of(kernels: Iterable[AnyKernel], executions: Sequence[Execution]) -> Iterator[Execution]:
    """List what the interpreter found of kernels, in their order."""
    for kernel in kernels:
        found = execution_of(kernel.name, kernel.ptx_sha256, executions)
        if found is not None:
            yield found


_TEXTS = {
    KernelState.RUN: "ran on the device",
    KernelState.EXECUTED: "executed in the interpreter",
    KernelState.COMPILED: "compiled only",
}


def execution_text(execution: Execution) -> str:
    """Say what the interpreter found of a kernel."""
    faults = f"{execution.num_findings} faults found, " if execution.num_findings else ""
    return (
        f"{_TEXTS[KernelState.EXECUTED]} on {execution.date}, {execution.num_runs} runs of {execution.num_cases} cases "
        f"in {execution.num_schedules} orders, {faults}worst error {execution.worst_error:.0%} of what is allowed"
    )


def states_text(manifest: Manifest) -> str:
    """Say in a line how many kernels of a wheel have which state, and name those in which the interpreter found faults.

    Such as `66 of 66 kernels executed in the interpreter`, or `616 of 616 kernels ran on the device (610 executed in
    the interpreter too)`.
    """
    kernels = manifest.all_kernels
    counts = Counter(kernel.state for kernel in kernels)
    right = {x.kernel for x in manifest.executions if x.is_right}
    num_both = sum(kernel.state is KernelState.RUN and kernel.name in right for kernel in kernels)
    parts = [f"{counts[state]} {text}" for state, text in _TEXTS.items() if counts[state]]
    if num_both:
        parts[0] += f" ({num_both} {_TEXTS[KernelState.EXECUTED]} too)"
    text = ", ".join(parts).replace(" ", f" of {len(kernels)} kernels ", 1)
    wrong = [x.kernel for x in manifest.executions if not x.is_right]
    return f"{text}; wrong in the interpreter: {', '.join(wrong)}" if wrong else text


def state_variables(manifest: Manifest) -> dict[str, object]:
    """Return what a wheel's README is rendered by: how far its kernels were tried, and whether any was executed."""
    return {
        "states": states_text(manifest),
        "has_executed": any(kernel.state is KernelState.EXECUTED for kernel in manifest.all_kernels),
    }


def batches_texts(manifest: Manifest) -> list[str]:
    """Say what computes batches in a wheel that has no kernels for them, and of one that has these alone."""
    operations = {x.operation for x in manifest.kernels}
    default = {x.types for x in operations if x in (Operation.BF16_KK, Operation.FP16_KK)}
    plain = {x.types for x in operations if x.grouping is Grouping.DENSE and not x.epilogue.steps}
    batched = {x.types: x for x in operations if x.grouping is Grouping.BATCHED}
    notes = []
    if default - batched.keys():
        what = (
            "no kernels for matmul of batches: torch computes those of its tensors, of others' each product is a launch"
        )
        notes.append(f"{what}; --operations default,attention has some")
    single = [batched[x].dense for x in batched.keys() - plain]
    wanting = ",".join(sorted(x.layouts[0].tag for x in single if x is not None))
    if wanting:
        notes.append(
            "by this wheel alone matmul refuses all batches, for it looks for kernels of one product first, and there "
            f"are none; --operations {wanting} beside them makes some"
        )
    return notes
