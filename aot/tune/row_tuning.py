"""A tuning of operations on rows: what is measured, the bundle that measures it, and the record it comes to."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.compile.artifact import CompileFailure, RowArtifact
from aot.compile.workplace import Workplace, compile_all, compile_all_rows
from aot.core.dispatch import Column, DispatchTable, Grid, Section
from aot.core.element import ElementType
from aot.core.errors import CompileError, OutputError, StoreError, TargetError
from aot.core.measurement import PROVENANCE_PREDICTED
from aot.core.operation import Operation
from aot.core.scratch import scratch_folder
from aot.core.target import Target, target_names
from aot.core.whole_file import check_output
from aot.kinds.rows.candidate import RowKernelKey
from aot.kinds.rows.dispatch import RowColumn, RowSection, RowStep, RowTable
from aot.kinds.rows.operation import RowFunction, RowOperation, RowProblem
from aot.measure.row_results import read_row_results
from aot.measure.row_tuning_set import (
    ROW_TUNING_SET_VERSION,
    RowTuningSet,
    TunedRowKernel,
    TunedRows,
    write_row_tuning_set,
)
from aot.measure.tuning_set import KERNELS_FILE
from aot.measure.worker_process import LIBRARY_FILE
from aot.package.build import build_library
from aot.package.manifest import Library, device_table
from aot.row_families import row_family_of
from aot.select.row_record import (
    ROW_RECORD_VERSION,
    RowRecord,
    RowRecordHead,
    RowTime,
    read_row_record,
    write_row_record,
)
from aot.select.selector import fallback_key
from aot.space.enumeration import Patterns
from aot.space.row_cost import row_time_us
from aot.space.row_legality import legal_rows, row_fallback
from aot.tune.bundle import Bundle, check_bundle_folder, make_runner

ROWS = (1, 16, 64, 512, 2048, 8192)
COLS = (1024, 2048, 4096, 8192, 16384)
"""Sizes of an operation. Source: hidden and intermediate sizes of public models; tokens of decoding and of prefill."""
HEAD_ROWS = (32, 512, 2048, 16384, 65536)
HEAD_COLS = (64, 128, 256)
"""Those of a rotary embedding: heads of all tokens, and elements of a head."""
PRUNE = 2.0
"""Times the best, by the model, past which a candidate is not measured on a size, as of products."""


@dataclass(frozen=True)
class RowTuningRequest:
    """What to tune: `ratio` leaves a kernel out of a size where the model says that it takes so many times its best."""

    operations: tuple[RowOperation, ...]
    patterns: Patterns
    ratio: float = PRUNE


def row_sizes(operation: RowOperation) -> list[RowProblem]:
    """List the sizes that an operation is measured on."""
    is_rotary = operation.function is RowFunction.ROTARY
    rows, cols = (HEAD_ROWS, HEAD_COLS) if is_rotary else (ROWS, COLS)
    return [RowProblem(operation, m, n) for n in cols for m in rows]


def _near(keys: Sequence[RowKernelKey], problem: RowProblem, target: Target, ratio: float) -> list[RowKernelKey]:
    """List the kernels that take a size and that the model does not think far from its best."""
    times = {key: row_time_us(key, problem, target) for key in keys if _takes(key, problem)}
    best = min(times.values(), default=0.0)
    return [key for key, us in times.items() if us <= ratio * best]


def _takes(key: RowKernelKey, problem: RowProblem) -> bool:
    limits = row_family_of(key.candidate).limits(key.candidate, key.operation)
    # Half of a head is rotated with the other half: a kernel of vectors takes whole ones of each.
    step = 2 if problem.operation.function is RowFunction.ROTARY else 1
    return limits.takes(problem.cols) and problem.cols % (step * limits.cols_multiple) == 0


def row_tuning_keys(request: RowTuningRequest, target: Target) -> dict[RowProblem, list[RowKernelKey]]:
    """Choose the kernels that each size is measured with.

    Raises:
        CompileError: the patterns leave none.
    """
    found: dict[RowProblem, list[RowKernelKey]] = {}
    for operation in request.operations:
        legal = [x for x in legal_rows(operation, target) if request.patterns.keep(x.name)]
        keys = [RowKernelKey(operation, x) for x in legal]
        found |= {problem: _near(keys, problem, target, request.ratio) for problem in row_sizes(operation)}
    if not any(found.values()):
        raise CompileError("the patterns of --kernels leave no kernel of these operations; `aot space` lists products'")
    return {problem: keys for problem, keys in found.items() if keys}


def _library(artifacts: Sequence[RowArtifact], target: Target, workplace: Workplace) -> tuple[Library, dict[str, Path]]:
    """Return what the library is built from: its row kernels, beside the one product that every library has.

    Raises:
        CompileError: the product's kernel does not compile.
    """
    product = fallback_key(Operation.of(ElementType.BFLOAT16), target)
    products, failures = compile_all([product], target, workplace)
    if failures:
        raise CompileError(f"{failures[0].name} does not compile: {failures[0].reason}")
    section = Section(product.operation, (), Grid((1,), (1,), (Column((1,), (0,)),)), 0)
    kernels = tuple(artifact.kernel for artifact in artifacts)
    sections = []
    for operation in dict.fromkeys(kernel.operation for kernel in kernels):
        index = [kernel.key for kernel in kernels].index(RowKernelKey(operation, row_fallback(operation, target)))
        column = RowColumn(1, (RowStep(1, index, 0.0, PROVENANCE_PREDICTED),))
        sections.append(RowSection(operation, (column,), index))
    table = device_table(target, DispatchTable((section,)), RowTable(tuple(sections)))
    library = Library(
        package="aot-tuning",
        version="0",
        arch=target.arch,
        kernels=(products[0].kernel,),
        tables=(table,),
        row_kernels=kernels,
    )
    objects = {artifact.kernel.name: artifact.path for artifact in products}
    return library, objects | {artifact.kernel.name: artifact.path for artifact in artifacts}


def row_tuning_set(
    wanted: Mapping[RowProblem, Sequence[RowKernelKey]], artifacts: Sequence[RowArtifact], target: Target
) -> RowTuningSet:
    """List kernels, in the order of the library's, and sizes with the kernels that they are measured with."""
    kernels = tuple(
        TunedRowKernel(x.kernel.name, x.kernel.operation, x.kernel.candidate, x.kernel.object_sha256, x.kernel.limits)
        for x in artifacts
    )
    places = {x.kernel.key: i for i, x in enumerate(artifacts)}
    sizes = [
        TunedRows(problem.operation, problem.rows, problem.cols, tuple(places[x] for x in keys if x in places))
        for problem, keys in wanted.items()
    ]
    return RowTuningSet(ROW_TUNING_SET_VERSION, target.name, target.arch, kernels, tuple(x for x in sizes if x.kernels))


def make_row_bundle(
    request: RowTuningRequest, target: Target, directory: Path, workplace: Workplace
) -> tuple[Bundle, list[CompileFailure]]:
    """Make the directory that measures a tuning of row operations: its library, sizes and runner.

    Raises:
        CompileError: the patterns leave no kernel, or a fallback does not compile.
        StoreError: the directory holds something else.
        OutputError: the directory cannot be written.
    """
    check_row_bundle_folder(directory)
    wanted = row_tuning_keys(request, target)
    fallbacks = [RowKernelKey(x, row_fallback(x, target)) for x in dict.fromkeys(x.operation for x in wanted)]
    keys = list(dict.fromkeys([*fallbacks, *(key for found in wanted.values() for key in found)]))
    artifacts, failures = compile_all_rows(keys, target, workplace)
    lost = [failure for failure in failures if failure.name in {key.name for key in fallbacks}]
    if lost:
        raise CompileError(f"{lost[0].name} does not compile: {lost[0].reason}")
    library, objects = _library(artifacts, target, workplace)
    with scratch_folder("aot-bundle-") as scratch:
        path = build_library(library, objects, scratch, target, verbose=workplace.verbose, progress=workplace.progress)
        try:
            make_runner(directory)
            shutil.copyfile(path, directory / LIBRARY_FILE)
            write_row_tuning_set(directory, row_tuning_set(wanted, artifacts, target))
        except OSError as error:
            raise OutputError(f"cannot write the bundle {directory}: {error}; free disk, or give another") from error
    num_bytes = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return Bundle(directory, num_bytes), failures


def check_row_bundle_folder(directory: Path) -> Path:
    """Find out whether a bundle of row operations may be written into a folder; return its path.

    Raises:
        OutputError: it cannot be written.
        StoreError: it is there and is no bundle, or one of products.
    """
    check_bundle_folder(directory)
    if (directory / KERNELS_FILE).exists():
        raise StoreError(f"{directory} is a bundle of products; give another directory")
    return directory


@dataclass(frozen=True)
class ImportedRows:
    """A record of row operations that was written, and where."""

    record: RowRecord
    path: Path


def import_row_results(results: Sequence[Path], record: Path | None, records: Path) -> ImportedRows:
    """Merge results, and the record if it is there, into the record; of several times the last counts.

    Args:
        results: journals of tunings.
        record: the record to write; by default the one of the results' target among `records`.
        records: the folder of the targets' records of row operations.

    Raises:
        StoreError: a file cannot be read or holds no run, or they are of several targets, devices or protocols.
        TargetError: they are of a target that there is not.
    """
    found = [(str(path), read_row_results(path)) for path in results]
    empty = [where for where, x in found if not x.runs]
    if empty:
        raise StoreError(f"{empty[0]} holds no run; measure into it first")
    head = RowRecordHead(ROW_RECORD_VERSION, found[-1][1].runs[-1].target, found[-1][1].runs[-1].conditions)
    if head.target not in target_names():
        there = ", ".join(target_names())
        raise TargetError(f"{results[-1]} was measured for the target {head.target!r}; there are: {there}")
    path = check_output(record or records / f"{head.target}.jsonl.gz")
    heads = [(where, (x.runs[0].target, *x.runs[0].conditions.key)) for where, x in found]
    times: dict[tuple[object, ...], RowTime] = {}
    if path.exists():
        known = read_row_record(path)
        heads.insert(0, (str(path), (known.head.target, *known.head.conditions.key)))
        times = {(x.operation, x.candidate, x.rows, x.cols): x for x in known.times}
    other = [(where, key) for where, key in heads if key != heads[0][1]]
    if other:
        raise StoreError(
            f"{other[0][0]} is of {', '.join(map(str, other[0][1]))}, {heads[0][0]} of "
            f"{', '.join(map(str, heads[0][1]))}; times of different devices do not mix: give another --record"
        )
    for _, one in found:
        for x in one.times.values():
            if x.kernel not in one.quarantined:
                times[x.operation, x.candidate, x.rows, x.cols] = RowTime(
                    x.operation, x.candidate, x.rows, x.cols, x.median_us
                )
    merged = RowRecord(head, tuple(times[key] for key in sorted(times, key=_order)))
    write_row_record(path, merged)
    return ImportedRows(merged, path)


def _order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    operation, candidate, rows, cols = key
    return operation.position, cols, rows, candidate
