"""The command `aot explain`: which kernel a problem gets, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aot.cli.options import (
    ASKED_OF_ANY_KIND,
    OPERATIONS_AXIS,
    RECORDS,
    TARGET,
    Axis,
    Command,
    asked_of_any_kind,
    options,
)
from aot.cli.output import JSON, show
from aot.cli.request import select_others
from aot.cli.selection import (
    MODES,
    RECORDED,
    selection_answering,
    selection_of,
    selection_with,
    told_mode,
    told_options,
)
from aot.compile.workplace import ARTIFACTS
from aot.core.constraints import MAX_EXTENT
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.progress import waiting
from aot.core.target import load_target
from aot.kinds.named_operations import NamedOperations
from aot.kinds.registry import kind_of
from aot.package.tried import tried
from aot.select import pipeline
from aot.select.coverage import coverage
from aot.select.score.explain import Explained, explained
from aot.select.score.explain_steps import ExplainedStep, explained_step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.core.measurement import OperationTimes
    from aot.core.work import AnyKey, AnyOperation, AnyProblem
    from aot.select.selection import Selection


def _asked_problem(values: Mapping[str, Any]) -> AnyProblem:
    """Return the problem that is asked about.

    Raises:
        click.UsageError: several operations are named, or the sizes are not those of the operation's kind.
    """
    found = asked_of_any_kind(values)
    if len(found) != 1:
        raise click.UsageError(f"--operations names {', '.join(x.tag for x in found)}; give one")
    kind, sizes = kind_of(found[0]), values["sizes"]
    if len(sizes) != len(kind.stated_axes):
        axes = " ".join(x.upper() for x in kind.stated_axes)
        raise click.UsageError(f"got {len(sizes)} sizes; expected {axes} of {found[0].tag}")
    return kind.problem(found[0], dict(zip(kind.stated_axes, sizes, strict=True)))


def _selection_of(context: click.Context, operation: AnyOperation) -> Selection:
    """Return the selection that an operation is answered by: the one named, a record's, or what ships."""
    if isinstance(operation, Operation):
        return selection_answering(context, operation)
    values, mode = context.params, told_mode(context.params)
    device = load_target(values["target"])
    if values["selection"]:
        return selection_of(context, mode)
    if mode == RECORDED:
        return select_others((operation,), device, (values["record"],))
    return selection_with(context, device, NamedOperations((operation,)), is_predicted=values["predicted"])


def _kernel_of(selection: Selection, name: str) -> AnyKey:
    return next(x for x in selection.all_kernels if x.name == name)


@click.command(cls=Command, axes=(Axis(MODES, told_mode), OPERATIONS_AXIS))
@options(TARGET, ASKED_OF_ANY_KIND)
@told_options("Explain what the cost model selects for --shapes.")
@click.argument("sizes", metavar="M N K | ROWS COLS", nargs=-1, required=True, type=click.IntRange(1, MAX_EXTENT))
@JSON
@click.pass_context
def explain(context: click.Context, /, **values: Any) -> None:
    """Say which kernel an M by N by K problem gets, or a ROWS by COLS one of an operation on rows, and why.

    From which bucket, at what time, what came second, how much of the roofline is achieved, and what there is
    against bigger tiles. Without --selection, explains the last selection made here, or else what `aot build` ships;
    an operation that it ships where it is named alone, as if it were.
    """
    problem: Any = _asked_problem(values)
    is_product = isinstance(problem, Problem)
    chosen = _selection_of(context, problem.operation)
    device = load_target(chosen.target)
    timed: OperationTimes = {}
    found: Explained | ExplainedStep
    if is_product:
        found = explained(chosen, problem, device, timed)
        with waiting("read the times behind the selection"):  # of the kernel's operation: a kn of one column is kk's
            wanted = {_kernel_of(chosen, found.kernel).operation}
            timed = pipeline.times_behind(chosen, values["record"], RECORDS, wanted)
        found = explained(chosen, problem, device, timed)
    else:
        found = explained_step(chosen, problem, device)
    key = _kernel_of(chosen, found.kernel)
    state, covered = tried(key, chosen, timed, device, ARTIFACTS), coverage(chosen, [problem])
    run = next((x for x in chosen.runs or () if problem.operation in x.operations), None)
    made = "" if run is None else f"\n  made by    {run.text}"
    show(
        lambda: {**vars(found), "state": state.state, "coverage": covered, "run": run},
        lambda: f"{found.text}\n  state      {state.text}{made}\n{covered.text}",
    )
