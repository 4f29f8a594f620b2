"""A tuning: what is measured, the bundle that measures it, and the record that its results come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aot.compile.artifact import AnyKernel, Artifact, CompileFailure
from aot.compile.tuned import tuned_kernel
from aot.compile.workplace import Workplace, compile_all, compile_shipped
from aot.core.candidate import Candidate, KernelKey
from aot.core.dispatch import Column, DispatchTable, Grid, Section
from aot.core.element import ElementType
from aot.core.errors import CompileError, DeviceError, ShapeFileError, StoreError, TargetError
from aot.core.kernel import Kernel
from aot.core.measurement import AnyRecord
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.scratch import scratch_folder
from aot.core.target import Target, load_target, target_names
from aot.core.whole_file import check_output, writing_alone
from aot.core.work import AnyProblem
from aot.kinds.gemm.kind import GEMM
from aot.kinds.rows.dispatch import fallback_table
from aot.kinds.rows.kernel import RowKernel
from aot.measure.options import Options
from aot.measure.preflight import read_machine
from aot.measure.runner import run_bundle
from aot.measure.tuning_set import TuningSet
from aot.package.build import build_library
from aot.package.device_report import is_report, read_report
from aot.package.manifest import Library, device_table
from aot.search.strategy import MODEL
from aot.select.coverage import untuned
from aot.select.selector import fallback_key
from aot.select.times.known import measured_times
from aot.select.times.levels import Level, level, levels_apart
from aot.select.times.model import TimeModel
from aot.select.times.record import from_store, merge, read_products, read_record, write_record
from aot.space.enumeration import fallback
from aot.tune.bundle import Bundle, make_bundle
from aot.tune.kinds import TUNINGS, TuningRequest, key_of, tuning_keys
from aot.tune.remote import check_machine


def _library(artifacts: Sequence[Artifact[AnyKernel]], target: Target) -> Library:
    """Return what a tuning library is built from: every kernel, and tables with no more than fallbacks."""
    kernels = [x.kernel for x in artifacts]
    products = tuple(x for x in kernels if isinstance(x, Kernel))
    rows = tuple(x for x in kernels if isinstance(x, RowKernel))
    section = Section(products[0].operation, (), Grid((1,), (1,), (Column((1,), (0,)),)), 0)
    return Library(
        package="aot-tuning",
        version="0",
        arch=target.arch,
        kernels=products,
        tables=(device_table(target, DispatchTable((section,)), fallback_table([x.operation for x in rows])),),
        row_kernels=rows,
    )


def learn(paths: Sequence[Path], target: Target) -> TimeModel:
    """Learn from the times of records and of result stores, of any protocol: ranking candidates needs no more.

    Raises:
        StoreError: a file cannot be read, or is of another architecture.
    """
    times: dict[Operation, dict[Problem, dict[Candidate, float]]] = {}
    for path in paths:
        record = GEMM.part(from_store(path)) if path.suffix == ".sqlite" else read_products(path)
        if load_target(record.target).arch != target.arch:
            raise StoreError(f"{path} is of {record.target}; expected times of {target.arch}, as {target.name} is")
        for operation, rows in measured_times(record).items():
            for problem, row in rows.items():
                times.setdefault(operation, {}).setdefault(problem, {}).update(row)
    if not times:
        raise StoreError(f"{', '.join(map(str, paths))}: there are no times to learn from; give others")
    return TimeModel.fit(times, target)


def tuning_set(request: TuningRequest, artifacts: Sequence[Artifact[AnyKernel]], target: Target) -> TuningSet:
    """List kernels, in the order of the library's, problems, and which kernels each is to be measured with."""
    kernels = tuple(tuned_kernel(x.kernel) for x in artifacts)
    predicted: dict[AnyProblem, dict[str, float]] = {}
    for name, operations in request.by_kind.items():
        tuning = TUNINGS[name]
        for operation, problems in tuning.problems(request, operations).items():
            own = {x.key.candidate: x.key.name for x in kernels if x.key.operation == operation and not x.is_fallback}
            for problem in problems:
                times = tuning.promising(request, list(own), problem, target)
                predicted[problem] = {own[candidate]: round(us, 4) for candidate, us in times.items()}
    chosen = {problem: frozenset(times) for problem, times in predicted.items()}
    predicted_by = request.predicted_by if GEMM.name in request.by_kind else None
    return TuningSet(target.name, target.arch, kernels, tuple(predicted), chosen, predicted, predicted_by)


def check_problems(request: TuningRequest) -> list[str]:
    """Find the problems that no tuned kernel takes, before anything is compiled; return a line for each reason.

    Raises:
        ShapeFileError: there are no others.
    """
    of_shapes = [x for x in request.operations if isinstance(x, Operation)]
    asked = sum(len(request.shapes.problems(operation)) for operation in of_shapes)
    reasons = untuned(of_shapes, request.shapes)
    lines = [f"{count} of {asked} problems are not tuned: {reason}" for reason, count in reasons.items()]
    if sum(reasons.values()) == asked and len(of_shapes) == len(request.operations):
        raise ShapeFileError(
            f"there is nothing to tune: {'; '.join(lines)}; every wheel computes them with its general kernel, which "
            "is not timed; pad the extents, or add problems to --shapes"
        )
    return lines


def tuning_library(
    request: TuningRequest, target: Target, out_dir: Path, workplace: Workplace
) -> tuple[Path, TuningSet, list[CompileFailure]]:
    """Compile a tuning's kernels and link them into one library, which has at least one product.

    Raises:
        CompileError: a fallback did not compile.
    """
    has_products = GEMM.name in request.by_kind
    needed = () if has_products else (fallback_key(Operation.of(ElementType.BFLOAT16), target),)
    fallbacks = [key_of(x, fallback(x, target)) for x in request.operations]
    keys = list(dict.fromkeys([*needed, *fallbacks, *tuning_keys(request, target)]))
    # Kernels of a selection, which are products, are measured as they ship.
    shipped = [x for x in keys if isinstance(x, KernelKey)] if request.candidates else []
    artifacts, failures = compile_shipped(shipped, target, workplace) if shipped else ([], [])
    rest = [x for x in keys if x not in set(shipped)]
    more, lost = compile_all(rest, target, workplace) if rest else ([], [])
    failures = [*failures, *lost]
    reasons = {x.name: x.reason for x in failures}
    failed = next((x.name for x in (*needed, *fallbacks) if x.name in reasons), None)
    if failed:
        raise CompileError(f"{failed}, which every library has, does not compile: {reasons[failed]}")
    every = sorted([*artifacts, *more], key=lambda x: not isinstance(x.kernel, Kernel))
    objects = {x.kernel.name: x.path for x in every}
    library = _library(every, target)
    path = build_library(library, objects, out_dir, target, verbose=workplace.verbose, progress=workplace.progress)
    return path, tuning_set(request, every, target), failures


def make_tuning_bundle(
    request: TuningRequest, target: Target, directory: Path, workplace: Workplace
) -> tuple[Bundle, list[CompileFailure]]:
    """Make the directory that measures a tuning: its library, problems and runner.

    Raises:
        CompileError: not one kernel compiled.
        StoreError: the directory holds something else.
    """
    with scratch_folder("aot-bundle-") as scratch:
        library, tuning, failures = tuning_library(request, target, scratch, workplace)
        return make_bundle(directory, library, tuning), failures


def check_this_machine(target: Target, say: Callable[[str], None]) -> None:
    """Compare this machine with the target, before anything is compiled for it; say what it is and what to mind.

    Raises:
        DeviceError: it has no GPU, or another than the target's.
    """
    try:
        check_machine(read_machine(), target, say)
    except DeviceError as error:
        raise DeviceError(f"{error}; or measure elsewhere: --on ssh://user@host, or --bundle DIR") from error


def measure_here(
    directory: Path,
    results: Path,
    budget_s: float | None,
    strategy: str = MODEL,
    search_budget: float = 1.0,
    *,
    has_reference: bool = True,
) -> int:
    """Measure a bundle on this machine's GPU; give the runner's exit code."""
    options = Options(directory, results, budget_s=budget_s, strategy=strategy, search_budget=search_budget)
    return run_bundle(replace(options, has_reference=has_reference))


@dataclass(frozen=True)
class Imported:
    """A record that was written, where, and what each run's times were multiplied with, if they were."""

    record: AnyRecord
    path: Path
    levels: tuple[Level, ...] = ()
    apart: tuple[Level, ...] = ()
    """What would put those runs to one level that were not, and whose times differ."""
    faults: tuple[str, ...] = ()
    """Kernels that reports say are wrong, and in which report."""


def import_results(
    results: Sequence[Path], record: Path | None, records: Path, *, is_levelled: bool = False
) -> Imported:
    """Merge result stores, and the record if it is there, into the record.

    Args:
        results: the stores, or reports of `aot verify`.
        record: the record to write; by default the one of the stores' target among `records`.
        records: the folder of the targets' records.
        is_levelled: whether the stores' times are first put to the level of the record, or else of the first store.

    Raises:
        StoreError: a store cannot be read, they are not of one target, device and protocol, or have too little in
            common to be put to one level.
        TargetError: the stores are of a target that there is not.
    """
    reports = {path: read_report(path) for path in results if is_report(path)}
    found = [reports[path].times(str(path)) if path in reports else from_store(path) for path in results]
    target = found[0].target
    if target not in target_names():
        known = ", ".join(target_names())
        raise TargetError(f"{results[0]} was measured for the target {target!r}; there are: {known}; see `aot targets`")
    path = check_output(record or records / f"{target}.jsonl.gz")
    with writing_alone(path):
        named = [(str(path), read_record(path))] if path.exists() else []
        named += zip(map(str, results), found, strict=True)
        merged, levels = level(named) if is_levelled else (merge([x for _, x in named]), [])
        apart = [] if is_levelled else levels_apart(named)
        write_record(path, merged)
    faults = tuple(f"{path}: {x}" for path, report in reports.items() for x in report.wrong)
    return Imported(merged, path, tuple(levels), tuple(apart), faults)
