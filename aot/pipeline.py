"""The verbs: tune, select, build, verify. Each takes and gives the plain data between the steps of the road."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from aot import cost, select, space
from aot.artifact import Artifact, CompileFailure
from aot.bundle import Bundle, make_bundle
from aot.bundle_runner import Options, run_bundle
from aot.candidate import Candidate, KernelKey
from aot.compile import compile_kernels, toolchain_versions
from aot.dispatch import DispatchTable, Grid, Row, Section
from aot.errors import CompileError, SelectionError, StoreError
from aot.families import family_of
from aot.manifest import MANIFEST_VERSION, Manifest
from aot.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED, Record
from aot.package import build_library, build_wheel
from aot.problem import Dtype, Layout, Operation, Problem
from aot.record import from_store, merge, read_record, write_record
from aot.selection import SELECTION_VERSION, Regret, Selection
from aot.shape_set import ShapeSet
from aot.shortlist import shortlist, within
from aot.table import Timed, build_section, is_general
from aot.target import Target
from aot.tuning_set import TunedKernel, TuningSet

ARTIFACTS = Path("build/artifacts")
"""The artifact store, below the working directory."""

DEFAULT_PACKAGE = "aot-gemm"

PREDICTED_CANDIDATES = 240
"""Candidates that a predicted selection chooses among: the model's best few on every problem and their kin."""


@dataclass(frozen=True)
class Workplace:
    """Where compiling keeps its results and how it runs."""

    artifacts: Path = ARTIFACTS
    jobs: int | None = None
    progress: bool = True
    verbose: bool = False


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


def tuning_candidates(request: TuningRequest, target: Target, operation: Operation) -> list[Candidate]:
    """Choose the candidates of one operation to measure."""
    legal = space.legal(operation, target, request.patterns)
    if request.candidates:
        return [candidate for candidate in legal if candidate in set(request.candidates)]
    if len(legal) <= request.limit:
        return legal
    return shortlist(legal, request.shapes.problems(operation), target, request.limit)


def fallback_key(dtype: Dtype, target: Target) -> KernelKey:
    """Give the kernel that takes an element type's unaligned problems, whatever their layout."""
    operation = Operation.of(dtype, Layout.KK)
    return KernelKey(operation, space.fallback(operation, target))


def compile_all(
    keys: Sequence[KernelKey], target: Target, workplace: Workplace
) -> tuple[list[Artifact], list[CompileFailure]]:
    """Compile kernels into the workplace's store; see `compile_kernels`."""
    return compile_kernels(keys, target, workplace.artifacts, jobs=workplace.jobs, progress=workplace.progress)


def _library_manifest(artifacts: Sequence[Artifact], target: Target) -> Manifest:
    """Make the manifest of a tuning library: every kernel, and a table with no more than a fallback."""
    row = Row(0, 0, 0.0, PROVENANCE_PREDICTED, 0, 0.0)
    section = Section(artifacts[0].kernel.operation, (), Grid((1,), (1,), (1,), (row,)), 0)
    return Manifest(
        manifest_version=MANIFEST_VERSION,
        package="aot-tuning",
        version="0",
        target=target.name,
        arch=target.arch,
        platform_tag=target.platform_tag,
        provenance=PROVENANCE_PREDICTED,
        record="",
        conditions=(),
        toolchain=toolchain_versions(),
        kernels=tuple(artifact.kernel for artifact in artifacts),
        table=DispatchTable((section,)),
    )


def tuning_set(request: TuningRequest, artifacts: Sequence[Artifact], target: Target) -> TuningSet:
    """List kernels, problems, and which kernels each problem is to be measured with."""
    kernels = tuple(
        TunedKernel(
            artifact.kernel.key,
            artifact.kernel.object_sha256,
            artifact.kernel.m_multiple,
            artifact.kernel.n_multiple,
            family_of(artifact.kernel.candidate).is_fallback,
        )
        for artifact in artifacts
    )
    problems: list[Problem] = []
    chosen: dict[Problem, frozenset[str]] = {}
    for operation in request.operations:
        candidates = [x.key.candidate for x in kernels if x.key.operation == operation and not x.is_fallback]
        for problem in request.shapes.problems(operation):
            problems.append(problem)
            near = within(candidates, problem, target, request.ratio)
            chosen[problem] = frozenset(KernelKey(operation, candidate).name for candidate in near)
    return TuningSet(target.name, target.arch, kernels, tuple(problems), chosen)


def tuning_library(
    request: TuningRequest, target: Target, out_dir: Path, workplace: Workplace
) -> tuple[Path, TuningSet, list[CompileFailure]]:
    """Compile a tuning's kernels and link them into one library.

    Raises:
        CompileError: not one kernel compiled.
    """
    dtypes = dict.fromkeys(operation.dtype for operation in request.operations)
    keys = [fallback_key(dtype, target) for dtype in dtypes]
    for operation in request.operations:
        keys += [KernelKey(operation, candidate) for candidate in tuning_candidates(request, target, operation)]
    artifacts, failures = compile_all(keys, target, workplace)
    if not artifacts:
        raise CompileError(f"none of {len(keys)} kernels compiled; the first: {failures[0].name}: {failures[0].reason}")
    objects = {artifact.kernel.name: artifact.path for artifact in artifacts}
    manifest = _library_manifest(artifacts, target)
    library = build_library(manifest, objects, out_dir, target, verbose=workplace.verbose)
    return library, tuning_set(request, artifacts, target), failures


def make_tuning_bundle(
    request: TuningRequest, target: Target, directory: Path, workplace: Workplace
) -> tuple[Bundle, list[CompileFailure]]:
    """Make the directory that measures a tuning: its library, problems and runner.

    Raises:
        CompileError: not one kernel compiled.
        StoreError: the directory holds something else.
    """
    with tempfile.TemporaryDirectory(prefix="aot-bundle-") as scratch:
        library, tuning, failures = tuning_library(request, target, Path(scratch), workplace)
        return make_bundle(directory, library, tuning), failures


def measure(directory: Path, results: Path, budget_s: float | None) -> int:
    """Measure a bundle on this machine's GPU; give the runner's exit code."""
    return run_bundle(Options(directory, results, budget_s=budget_s))


def import_results(results: Sequence[Path], record: Path | None, records: Path) -> tuple[Record, Path]:
    """Merge result stores, and the record if it is there, into the record; give it and its path.

    Raises:
        StoreError: a store cannot be read, or they are not of one target, device and protocol.
    """
    found = [from_store(path) for path in results]
    path = record or records / f"{found[0].target}.jsonl.gz"
    merged = merge([*([read_record(path)] if path.exists() else []), *found])
    write_record(path, merged)
    return merged, path


def default_record(target: Target, records: Path) -> Path | None:
    """Give the committed record of a target, or None."""
    path = records / f"{target.name}.jsonl.gz"
    return path if path.exists() else None


Times = Mapping[Problem, Mapping[Candidate, float]]


def measured_times(record: Record) -> dict[Operation, dict[Problem, dict[Candidate, float]]]:
    """Arrange a record's sound measurements by operation and problem."""
    times: dict[Operation, dict[Problem, dict[Candidate, float]]] = {}
    for item in record.measurements:
        if item.ok:
            rows = times.setdefault(item.problem.operation, {})
            rows.setdefault(item.problem, {})[item.kernel.candidate] = item.median_us
    return times


def with_stand_ins(times: Mapping[Operation, Times]) -> dict[Operation, dict[Problem, dict[Candidate, float]]]:
    """Let times of the same sizes in another element type stand in where a kernel was not timed in this one.

    The types are of one size and run at one rate, so that what differs is noise and power. A stand-in helps to choose
    kernels; a row that rests on one is called predicted.
    """
    filled: dict[Operation, dict[Problem, dict[Candidate, float]]] = {}
    for operation, rows in times.items():
        others = [x for x in times if x != operation and x.layout is operation.layout]
        filled[operation] = {}
        for problem, row in rows.items():
            kin = [times[other].get(replace(problem, operation=other), {}) for other in others]
            filled[operation][problem] = {**{c: t for found in kin for c, t in found.items()}, **row}
    return filled


@lru_cache(maxsize=8)
def _predicted_candidates(layout: Layout, target: Target, patterns: space.Patterns) -> tuple[Candidate, ...]:
    """Choose the candidates for a predicted table; the model sees element types of one size alike.

    Only those that take every shape without a workspace: of the others' narrower use, nothing measured speaks.
    """
    operation = Operation.of(Dtype.BFLOAT16, layout)
    problems = [Problem(operation, m, n, n) for m in (1, 16, 64, 128, 256, 512, 2048) for n in (1024, 4096, 8192)]
    legal = [candidate for candidate in space.legal(operation, target, patterns) if is_general(candidate)]
    return tuple(shortlist(legal, problems, target, PREDICTED_CANDIDATES))


def predicted_times(
    shapes: ShapeSet, target: Target, patterns: space.Patterns
) -> dict[Operation, dict[Problem, dict[Candidate, float]]]:
    """Predict the times of the model's best candidates on a shape set, for each of its element types and any layout."""
    times: dict[Operation, dict[Problem, dict[Candidate, float]]] = {}
    for dtype in shapes.dtypes:
        for layout in Layout:
            operation = Operation.of(dtype, layout)
            candidates = _predicted_candidates(layout, target, patterns)
            problems = shapes.problems(operation)
            rows = cost.estimate(candidates, problems, target).total_us.tolist()
            times[operation] = {
                problem: dict(zip(candidates, row, strict=True)) for problem, row in zip(problems, rows, strict=True)
            }
    return times


@dataclass(frozen=True)
class SelectionLimits:
    """How many kernels an operation may have: linear's layout, and each of the others."""

    max_kernels: int = 32
    max_layout_kernels: int = 8

    def of(self, operation: Operation) -> int:
        """Give the limit of one operation."""
        return self.max_kernels if operation.layout is Layout.KK else self.max_layout_kernels


def select_kernels(
    times: Mapping[Operation, Times],
    target: Target,
    limits: SelectionLimits,
    *,
    record: Record | None,
    record_name: str,
) -> Selection:
    """Choose each operation's kernels and build its section.

    Args:
        times: microseconds by operation, problem and candidate.
        target: the device that the times are of.
        limits: kernels to ship.
        record: where the times were measured; None if they are predicted.
        record_name: the record's name, or the cost model's.

    Raises:
        SelectionError: there are no times, or no kernel takes every shape.
    """
    if not times:
        raise SelectionError(f"{record_name} has no usable times; tune first")
    provenance = PROVENANCE_PREDICTED if record is None else PROVENANCE_MEASURED
    kernels: list[KernelKey] = [fallback_key(dtype, target) for dtype in sorted({x.dtype for x in times}, key=_code)]
    fallbacks = {key.operation.dtype: index for index, key in enumerate(kernels)}
    sections, regrets = [], []
    filled = with_stand_ins(times)
    for operation in sorted(times, key=lambda x: (_code(x.dtype), x.layout.code)):
        rows = times[operation]
        portfolio = select.choose(filled[operation], limits.of(operation), is_general=is_general)
        indices = {candidate: len(kernels) + i for i, candidate in enumerate(portfolio.candidates)}
        kernels += [KernelKey(operation, candidate) for candidate in portfolio.candidates]
        fallback = fallbacks[operation.dtype]
        timed = Timed(rows, filled[operation], provenance)
        sections.append(build_section(operation, portfolio, timed, indices, fallback, target))
        regrets.append(
            Regret(
                operation, len(rows), len(indices), round(portfolio.mean_regret, 5), round(portfolio.worst_regret, 5)
            )
        )
    return Selection(
        SELECTION_VERSION,
        target.name,
        provenance,
        record_name,
        () if record is None else record.conditions,
        tuple(regrets),
        tuple(kernels),
        DispatchTable(tuple(sections)),
    )


def select_measured(path: Path, target: Target, limits: SelectionLimits, kernels: str) -> Selection:
    """Select from a record.

    Args:
        path: the record's file.
        target: what it must be of.
        limits: kernels to ship.
        kernels: include and exclude patterns on candidate names.

    Raises:
        StoreError: the record cannot be read, or is another target's.
    """
    record = read_record(path)
    if record.target != target.name:
        raise StoreError(f"{path} is a record of {record.target}, not of {target.name}; give --target {record.target}")
    patterns = space.Patterns.parse(kernels)
    kept = [item for item in record.measurements if patterns.keep(item.kernel.candidate.name)]
    times = measured_times(replace(record, measurements=tuple(kept)))
    name = path.name.removesuffix(".jsonl.gz")
    return select_kernels(times, target, limits, record=record, record_name=name)


def select_predicted(shapes: ShapeSet, target: Target, limits: SelectionLimits, kernels: str) -> Selection:
    """Select by the cost model, for want of a record."""
    times = predicted_times(shapes, target, space.Patterns.parse(kernels))
    return select_kernels(times, target, limits, record=None, record_name=cost.NAME)


def _code(dtype: Dtype) -> int:
    return dtype.code


def manifest_of(
    selection: Selection, artifacts: Sequence[Artifact], target: Target, package: str, wheel_version: str
) -> Manifest:
    """Make the manifest of a wheel. A version with a predicted table says so in its local part."""
    local = f"{target.name}.{selection.provenance}" if selection.provenance == PROVENANCE_PREDICTED else target.name
    return Manifest(
        manifest_version=MANIFEST_VERSION,
        package=package,
        version=f"{wheel_version}+{local}",
        target=target.name,
        arch=target.arch,
        platform_tag=target.platform_tag,
        provenance=selection.provenance,
        record=selection.record,
        conditions=selection.conditions,
        toolchain=toolchain_versions(),
        kernels=tuple(artifact.kernel for artifact in artifacts),
        table=selection.table,
    )


def toolchain_version() -> str:
    """Give the version of this toolchain, which its wheels carry."""
    return version("aot-kernels")


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel and the manifest it was made from."""

    path: Path
    manifest: Manifest


def build(
    selection: Selection, target: Target, dist_dir: Path, workplace: Workplace, *, package: str, wheel_version: str
) -> BuiltWheel:
    """Compile a selection's kernels and build its wheel.

    Raises:
        CompileError: a selected kernel does not compile.
        PackageError: the build failed, or the wheel is not what it must be.
    """
    artifacts, failures = compile_all(selection.kernels, target, workplace)
    if failures:
        first = failures[0]
        text = f"{len(failures)} selected kernels do not compile; the first: {first.name}: {first.reason}"
        raise CompileError(f"{text}; leave it out with `aot select --kernels='-...'`")
    manifest = manifest_of(selection, artifacts, target, package, wheel_version)
    objects = {artifact.kernel.name: artifact.path for artifact in artifacts}
    return BuiltWheel(build_wheel(manifest, objects, dist_dir, target, verbose=workplace.verbose), manifest)
