"""`aot tune --rows` and `aot import` of what it measures: operations on rows, such as norms and quantisation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot.cli.options import ROW_RECORDS, is_given, means_nothing
from aot.cli.output import show, tell
from aot.compile.workplace import Workplace
from aot.core.errors import OperationError
from aot.core.progress import waiting
from aot.core.target import load_target
from aot.kinds.named_operations import all_named_operations
from aot.kinds.rows.operation import RowOperation
from aot.space.enumeration import Patterns
from aot.tune.row_tuning import (
    RowTuningRequest,
    check_row_bundle_folder,
    import_row_results,
    make_row_bundle,
)
from aot.tune.tuning import check_this_machine, measure_here

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.compile.artifact import CompileFailure
    from aot.tune.bundle import Bundle

ROWS = "with --rows"
TAKEN = {"target", "rows", "kernels", "jobs", "verbose", "prune", "bundle", "budget_seconds", "as_json"}
"""The options of `aot tune` that mean something for operations on rows."""


@dataclass(frozen=True)
class RowOptions:
    """What `aot tune --rows` is asked for."""

    target: str
    row_operations: str
    kernels: str
    jobs: int | None
    verbose: bool
    prune: float | None
    bundle: Path | None
    budget_seconds: float | None


def check_options(context: click.Context) -> None:
    """Refuse the options that mean something for products alone.

    Raises:
        click.UsageError: one was given.
    """
    for parameter in context.command.params:
        if parameter.name not in TAKEN and is_given(context, parameter.name or ""):
            raise click.UsageError(means_nothing(parameter.opts[-1], ROWS, ["without --rows"]), context)


def _operations(text: str) -> tuple[RowOperation, ...]:
    """List the operations on rows that a text names.

    Raises:
        OperationError: it names none.
    """
    found = all_named_operations(text).rows
    if not found:
        raise OperationError(f"--rows {text!r} names products alone; write for example '*_rms_norm,bf16_silu_mul'")
    return found


def bundle_facts(bundle: Bundle, failures: Sequence[CompileFailure]) -> dict[str, object]:
    """Return what `--json` says of a bundle: where it is, its bytes, and which kernels did not compile."""
    not_compiled = {failure.name: failure.reason for failure in failures}
    return {"bundle": bundle.directory, "num_bytes": bundle.num_bytes, "not_compiled": not_compiled}


def tune_rows(asked: RowOptions) -> int:
    """Compile the kernels of row operations and measure them here, or make a bundle; return the exit code."""
    device = load_target(asked.target)
    directory = check_row_bundle_folder(asked.bundle or Path("build/tuning") / device.name / "rows")
    request = RowTuningRequest(_operations(asked.row_operations), Patterns.parse(asked.kernels))
    if asked.prune:
        request = RowTuningRequest(request.operations, request.patterns, asked.prune)
    if not asked.bundle:
        check_this_machine(device, lambda text: click.echo(text, err=True))
    bundle, failures = make_row_bundle(request, device, directory, Workplace(jobs=asked.jobs, verbose=asked.verbose))
    for failure in failures:
        click.echo(f"not compiled: {failure.name}: {failure.reason}", err=True)
    tell(f"{bundle.directory}: {bundle.num_bytes / 2**20:.1f} MiB")
    facts = bundle_facts(bundle, failures)
    if asked.bundle:
        command = f"python {directory.name}/run.py --out rows.jsonl"
        show(lambda: {"command": command, **facts}, lambda: f"on the device: {command}")
        return 0
    results = directory / "results.jsonl"
    code = measure_here(directory, results, asked.budget_seconds)
    if code == 0:
        show(lambda: {"results": results, **facts}, lambda: f"measured into {results}; next: aot import {results}")
    return code


def import_rows(results: Sequence[Path], record: Path | None) -> None:
    """Merge results into a record of row operations, and say what it holds."""
    with waiting("merge the results into the record"):
        written = import_row_results(results, record, ROW_RECORDS)
    head, counts = written.record.head, written.record.by_operation
    facts = {
        "path": written.path,
        "target": head.target,
        "device": head.conditions.device,
        "protocol": head.conditions.protocol,
        "times": len(written.record.times),
        "sizes": {operation.tag: len(sizes) for operation, sizes in counts.items()},
    }
    lines = [f"{operation.tag}: {len(sizes)} sizes" for operation, sizes in counts.items()]
    show(lambda: facts, lambda: "\n".join([f"{head.conditions.device}, {len(written.record.times)} times", *lines]))
    tell(f"wrote {written.path}; next: aot build --target {head.target} --operations default,'*_rms_norm'")
