"""A tuning: what is measured, the bundle that measures it, and the record that its results come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aot.compile.artifact import Artifact, CompileFailure, RowArtifact
from aot.compile.workplace import Workplace, compile_all, compile_all_rows, compile_shipped
from aot.core.candidate import Candidate, KernelKey
from aot.core.dispatch import LOADS, Column, DispatchTable, Grid, Section
from aot.core.element import ElementType
from aot.core.errors import CandidateError, CompileError, DeviceError, ShapeFileError, StoreError, TargetError
from aot.core.measurement import AnyRecord
from aot.core.operands import unaligned_loads
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.scratch import scratch_folder
from aot.core.shape_set import ShapeSet
from aot.core.signature import Argument
from aot.core.target import Target, load_target, target_names
from aot.core.whole_file import check_output
from aot.core.work import AnyProblem
from aot.families import family_of
from aot.kinds.gemm.kind import GEMM
from aot.kinds.gemm.tuned import TunedKernel
from aot.kinds.rows.operation import RowOperation
from aot.kinds.rows.tuned import TunedRowKernel
from aot.measure.options import Options
from aot.measure.preflight import read_machine
from aot.measure.runner import run_bundle
from aot.measure.tuning_set import TuningSet
from aot.package.build import build_library
from aot.package.manifest import Library, device_table
from aot.row_families import row_family_of
from aot.search.strategy import MODEL
from aot.select.coverage import untuned
from aot.select.level import Level, level, levels_apart
from aot.select.record import from_store, merge, read_products, read_record, write_record
from aot.select.row_times import is_journal, read_journal
from aot.select.selector import fallback_key
from aot.select.time_model import TimeModel
from aot.select.times import launched_problems, measured_times, unaligned_problems
from aot.space import cost
from aot.space import enumeration as space
from aot.space.cost import DEFAULTS, Constants
from aot.space.shortlist import shortlist, within
from aot.tune.bundle import Bundle, make_bundle
from aot.tune.remote import check_machine
from aot.tune.row_problems import fallback_table, row_fallbacks, row_tuning_keys


@dataclass(frozen=True)
class TuningRequest:
    """What to tune.

    `limit` is how many candidates of each operation the model may put forward; `ratio` leaves a pair of kernel and
    problem out where the model says that the kernel takes this many times its best.
    """

    shapes: ShapeSet
    operations: tuple[Operation, ...]
    patterns: space.Patterns
    limit: int
    ratio: float
    candidates: tuple[Candidate, ...] = ()
    """If given, what to measure, whatever the model says: the kernels of an earlier selection, say."""
    constants: Constants = DEFAULTS
    """The cost model's, as a calibration found them."""
    learned: TimeModel | None = None
    """If given, each problem is measured with the `per_problem` candidates that this predicts fastest."""
    per_problem: int = 24
    rows: tuple[RowOperation, ...] = ()
    """Operations on rows, whose sizes are those of `aot.tune.row_problems`."""


def tuning_candidates(request: TuningRequest, target: Target, operation: Operation) -> list[Candidate]:
    """Choose the candidates of one operation to measure."""
    problems = launched_problems([operation], request.shapes).get(operation, [])
    unaligned = _unaligned_candidates(request, target, operation)
    try:
        legal = space.legal(operation, target, request.patterns)
    except CandidateError:
        if not unaligned:
            raise
        legal = []  # what --kernels leaves is for problems that are not aligned
    if request.candidates:
        return [x for x in dict.fromkeys((*legal, *unaligned)) if x in set(request.candidates)]
    if not problems:
        return unaligned
    if len(legal) > request.limit:
        legal = shortlist(legal, problems, target, request.limit, request.constants)
    return list(dict.fromkeys((*legal, *unaligned)))


def _unaligned_candidates(request: TuningRequest, target: Target, operation: Operation) -> list[Candidate]:
    """Choose the candidates for the problems that are not aligned, for each number of bytes of a load apart."""
    problems = unaligned_problems([operation], request.shapes).get(operation, [])
    found: dict[Candidate, None] = {}
    for loads in LOADS:
        own = [x for x in problems if unaligned_loads(x) == loads]
        able = space.unaligned(operation, target, loads, request.patterns) if own else []
        few = shortlist(able, own, target, request.limit, request.constants) if able else []
        found |= dict.fromkeys(few)
    return list(found)


def _library(artifacts: Sequence[Artifact], rows: Sequence[RowArtifact], target: Target) -> Library:
    """Return what a tuning library is built from: every kernel, and tables with no more than fallbacks."""
    section = Section(artifacts[0].kernel.operation, (), Grid((1,), (1,), (Column((1,), (0,)),)), 0)
    return Library(
        package="aot-tuning",
        version="0",
        arch=target.arch,
        kernels=tuple(artifact.kernel for artifact in artifacts),
        tables=(device_table(target, DispatchTable((section,)), fallback_table(rows, target)),),
        row_kernels=tuple(artifact.kernel for artifact in rows),
    )


def _promising(
    request: TuningRequest, candidates: Sequence[Candidate], problem: Problem, target: Target
) -> dict[Candidate, float]:
    """Choose the candidates to measure a problem with; return their predicted times in microseconds."""
    if request.learned is None:
        near = within(candidates, problem, target, request.ratio, request.constants)
        times = cost.estimate(near, [problem], target, request.constants).total_us[0].tolist()
        return dict(zip(near, times, strict=True))
    times = request.learned.times_us(candidates, [problem])[0].tolist()
    ranked = sorted(zip(times, candidates, strict=True))[: request.per_problem]
    return {candidate: us for us, candidate in ranked}


def _suits(candidate: Candidate, loads: int, target: Target) -> bool:
    """Say whether a candidate is to be timed on a problem whose section is of `loads` bytes, 0 of an aligned one."""
    return space.takes_loads(candidate, loads) if loads else space.is_for_aligned(candidate, target)


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


def tuning_set(
    request: TuningRequest, artifacts: Sequence[Artifact], target: Target, rows: Sequence[RowArtifact] = ()
) -> TuningSet:
    """List kernels, in the order of the library's, problems, and which kernels each is to be measured with."""
    products, on_rows = _products_set(request, artifacts, target), _rows_set(request, rows, target)
    return replace(
        products,
        kernels=(*products.kernels, *on_rows.kernels),
        problems=(*products.problems, *on_rows.problems),
        chosen={**products.chosen, **on_rows.chosen},
        predicted_us={**products.predicted_us, **on_rows.predicted_us},
    )


def _rows_set(request: TuningRequest, artifacts: Sequence[RowArtifact], target: Target) -> TuningSet:
    """Return the part of operations on rows."""
    kernels = tuple(
        TunedRowKernel(
            x.kernel.key, x.kernel.object_sha256, x.kernel.limits, row_family_of(x.kernel.candidate).is_fallback
        )
        for x in artifacts
    )
    there = {kernel.key for kernel in kernels}
    wanted = row_tuning_keys(request.rows, request.patterns, request.ratio, target)
    predicted: dict[AnyProblem, dict[str, float]] = {
        problem: {key.name: round(us, 4) for key, us in keys.items() if key in there}
        for problem, keys in wanted.items()
    }
    chosen = {problem: frozenset(times) for problem, times in predicted.items()}
    return TuningSet(target.name, target.arch, kernels, tuple(predicted), chosen, predicted)


def _products_set(request: TuningRequest, artifacts: Sequence[Artifact], target: Target) -> TuningSet:
    """Return the part of products."""
    kernels = tuple(
        TunedKernel(
            artifact.kernel.key,
            artifact.kernel.object_sha256,
            artifact.kernel.m_multiple,
            artifact.kernel.n_multiple,
            family_of(artifact.kernel.candidate).is_fallback,
            Argument.TILE_ORDER in artifact.kernel.signature,
            artifact.kernel.load_alignment,
            artifact.kernel.store_alignment,
        )
        for artifact in artifacts
    )
    problems: list[Problem] = []
    chosen: dict[AnyProblem, frozenset[str]] = {}
    predicted: dict[AnyProblem, dict[str, float]] = {}
    aligned = launched_problems(request.operations, request.shapes)
    unaligned = unaligned_problems(request.operations, request.shapes)
    for operation in dict.fromkeys((*aligned, *unaligned)):
        launched = [*aligned.get(operation, []), *unaligned.get(operation, [])]
        candidates = [x.key.candidate for x in kernels if x.key.operation == operation and not x.is_fallback]
        problems += launched
        for problem in launched:
            loads = unaligned_loads(problem)
            able = [x for x in candidates if _suits(x, loads, target)]
            times = _promising(request, able, problem, target) if able else {}
            predicted[problem] = {KernelKey(operation, x).name: round(us, 4) for x, us in times.items()}
            chosen[problem] = frozenset(predicted[problem])
    return TuningSet(target.name, target.arch, kernels, tuple(problems), chosen, predicted)


def check_problems(request: TuningRequest) -> list[str]:
    """Find the problems that no tuned kernel takes, before anything is compiled; return a line for each reason.

    Raises:
        ShapeFileError: there are no others.
    """
    asked = sum(len(request.shapes.problems(operation)) for operation in request.operations)
    reasons = untuned(request.operations, request.shapes)
    lines = [f"{count} of {asked} problems are not tuned: {reason}" for reason, count in reasons.items()]
    if sum(reasons.values()) == asked and not request.rows:
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
        CompileError: not one kernel of products compiled, or a fallback of operations on rows did not.
    """
    products = request.operations or (Operation.of(ElementType.BFLOAT16),)
    keys = list(dict.fromkeys(fallback_key(operation, target) for operation in products))
    for operation in request.operations:
        keys += [KernelKey(operation, candidate) for candidate in tuning_candidates(request, target, operation)]
    # Kernels of a selection are measured as they ship.
    make = compile_shipped if request.candidates else compile_all
    artifacts, failures = make(keys, target, workplace)
    if not artifacts:
        raise CompileError(f"none of {len(keys)} kernels compiled; the first: {failures[0].name}: {failures[0].reason}")
    rows, lost = _compiled_rows(request, target, workplace)
    objects = {x.kernel.name: x.path for x in artifacts} | {x.kernel.name: x.path for x in rows}
    library = _library(artifacts, rows, target)
    path = build_library(library, objects, out_dir, target, verbose=workplace.verbose, progress=workplace.progress)
    return path, tuning_set(request, artifacts, target, rows), [*failures, *lost]


def _compiled_rows(
    request: TuningRequest, target: Target, workplace: Workplace
) -> tuple[list[RowArtifact], list[CompileFailure]]:
    """Compile the kernels of operations on rows, their fallbacks first.

    Raises:
        CompileError: a fallback does not compile.
    """
    if not request.rows:
        return [], []
    wanted = row_tuning_keys(request.rows, request.patterns, request.ratio, target)
    fallbacks = row_fallbacks(request.rows, target)
    keys = list(dict.fromkeys([*fallbacks, *(key for found in wanted.values() for key in found)]))
    artifacts, failures = compile_all_rows(keys, target, workplace)
    lost = [failure for failure in failures if failure.name in {key.name for key in fallbacks}]
    if lost:
        raise CompileError(f"{lost[0].name} does not compile: {lost[0].reason}")
    return artifacts, failures


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


def import_results(
    results: Sequence[Path], record: Path | None, records: Path, *, is_levelled: bool = False
) -> Imported:
    """Merge result stores, and the record if it is there, into the record.

    Args:
        results: the stores, or journals of operations on rows as they were until 2026-11-27.
        record: the record to write; by default the one of the stores' target among `records`.
        records: the folder of the targets' records.
        is_levelled: whether the stores' times are first put to the level of the record, or else of the first store.

    Raises:
        StoreError: a store cannot be read, they are not of one target, device and protocol, or have too little in
            common to be put to one level.
        TargetError: the stores are of a target that there is not.
    """
    found = [read_journal(path) if is_journal(path) else from_store(path) for path in results]
    target = found[0].target
    if target not in target_names():
        known = ", ".join(target_names())
        raise TargetError(f"{results[0]} was measured for the target {target!r}; there are: {known}; see `aot targets`")
    path = check_output(record or records / f"{target}.jsonl.gz")
    named = [(str(path), read_record(path))] if path.exists() else []
    named += zip(map(str, results), found, strict=True)
    merged, levels = level(named) if is_levelled else (merge([x for _, x in named]), [])
    apart = [] if is_levelled else levels_apart(named)
    write_record(path, merged)
    return Imported(merged, path, tuple(levels), tuple(apart))
