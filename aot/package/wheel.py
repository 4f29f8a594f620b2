"""From selections to a wheel: their kernels compiled, its manifest, its build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aot.compile.artifact import AnyKernel, Artifact, CompileFailure
from aot.compile.compiler import toolchain_versions, versions_of
from aot.compile.workplace import Workplace, compile_all, compile_shipped
from aot.core.candidate import KernelKey
from aot.core.captured import captured_losses
from aot.core.errors import CompileError, PackageError
from aot.core.execution import Execution, committed_executions
from aot.core.grouping import Grouping
from aot.core.kernel import Kernel
from aot.core.measurement import PROVENANCE_PREDICTED, OperationTimes
from aot.core.target import Target
from aot.core.whole_file import write_whole
from aot.core.work import AnyKey
from aot.families import compilers_of, family_of
from aot.kinds.rows.kernel import RowKernel
from aot.package.build import build_api, build_wheel
from aot.package.distribution import wheel_version as version_of
from aot.package.manifest import MANIFEST_VERSION, ElementBits, Manifest, WheelTable, device_table
from aot.package.pack import ANSWERS, PackFor, lock_text
from aot.package.states import executions_of, measured_kernels, measured_steps, with_states
from aot.select.coverage import Coverage
from aot.select.join import renumbered, renumbered_steps
from aot.select.score.invariance import has_one_order
from aot.select.score.tiles import tile_notes
from aot.select.selection import Selection
from aot.space.widths import shared

DEFAULT_PACKAGE = "aot-gemm"


@dataclass(frozen=True)
class TableSource:
    """What one table of a wheel is made from."""

    selection: Selection
    target: Target
    timed: OperationTimes | None = None
    """The measured times behind the selection, by which bigger tiles are compared."""
    coverage: Coverage | None = None
    """How the selection answers what it was made for, where it does not say so itself."""


def shared_kernels(sources: Sequence[TableSource]) -> dict[KernelKey, Target]:
    """List the kernels of several selections, each once, with the target that it is compiled for.

    A kernel launches at most as many CTAs as its target holds at once. Where targets differ in their SMs, one whose
    CTAs wait for each other is compiled for the fewest, since all must be resident; any other for the most. Kernels of
    one object are compiled for one target.
    """
    users: dict[KernelKey, list[Target]] = {}
    for source in sources:
        for key in source.selection.kernels:
            users.setdefault(key, []).append(source.target)

    of_wide = {key: wide for key, (wide, _) in shared(users, sources[0].target).items()}
    of_object: dict[KernelKey, list[Target]] = {}
    for key, targets in users.items():
        of_object.setdefault(of_wide.get(key, key), []).extend(targets)

    def built_for(key: KernelKey) -> Target:
        waits = family_of(key.candidate).workspace(key.candidate).waits
        return (min if waits else max)(of_object[of_wide.get(key, key)], key=lambda target: target.num_sms)

    return {key: built_for(key) for key in users}


def _wheel_table(
    source: TableSource, numbers: Mapping[KernelKey, int], other_numbers: Mapping[AnyKey, int]
) -> WheelTable:
    """Return the tables of a device over the kernels of the whole wheel.

    What the cost model chose has regrets against the model's own times, which are none.
    """
    selection, target = source.selection, source.target
    is_predicted = selection.provenance == PROVENANCE_PREDICTED
    table = renumbered(selection.table, lambda index: numbers[selection.kernels[index]]).shortened
    calls = {key.operation.call: key.operation for key in numbers}
    kernels = selection.others.kernels
    stepped = renumbered_steps(selection.others.table, lambda index: other_numbers[kernels[index]])
    return WheelTable(
        **vars(device_table(target, table, stepped)),
        provenance=selection.provenance,
        record=selection.record,
        conditions=selection.conditions,
        regrets=() if is_predicted else tuple(x for x in selection.regrets if x.is_known),
        heldout=selection.heldout,
        coverage=source.coverage or selection.coverage,
        peak_flops_per_s={call: target.peak_flops_per_s(operation) for call, operation in calls.items()},
        bandwidth_bytes_per_s=target.bandwidth_bytes_per_s,
        bigger_tiles=tile_notes(selection, target, source.timed or {}),
        captured=captured_losses(target.name),
    )


def _measured(sources: Sequence[TableSource]) -> set[AnyKey]:
    """Return the kernels of which a time was taken on the device of one of the tables."""
    found: set[AnyKey] = set()
    for x in sources:
        found |= measured_kernels(x.selection.table, x.selection.kernels, x.timed or {})
        found |= measured_steps(x.selection.others.table, x.selection.others.kernels)
    return found


def manifest_of(
    sources: Sequence[TableSource],
    artifacts: Sequence[Artifact[AnyKernel]],
    package: str,
    wheel_version: str,
    *,
    batch_invariant: bool = False,
    executions: Sequence[Execution] = (),
) -> Manifest:
    """Make the manifest of a wheel. The local part of its version says what its tables are: see distribution.

    Args:
        sources: what each table is made from; all of one architecture and host.
        artifacts: the kernels of all, each once: products as `shared_kernels` lists them, then the others.
        package: name of the distribution.
        wheel_version: the version's public part.
        batch_invariant: whether every call is to be batch-invariant.
        executions: what the interpreter found of any kernels, by which theirs have states.
    """
    every = with_states([x.kernel for x in artifacts], _measured(sources), executions)
    kernels = tuple(x for x in every if isinstance(x, Kernel))
    row_kernels = tuple(x for x in every if isinstance(x, RowKernel))
    numbers = {kernel.key: number for number, kernel in enumerate(kernels)}
    other_numbers: dict[AnyKey, int] = {kernel.key: number for number, kernel in enumerate(row_kernels)}
    target = sources[0].target
    compilers = sorted({name for kernel in every for name in compilers_of(kernel.candidate)})
    return Manifest(
        manifest_version=MANIFEST_VERSION,
        package=package,
        version=version_of(
            wheel_version,
            *(source.selection for source in sources),
            coverages=[x.coverage or x.selection.coverage for x in sources],
        ),
        arch=target.arch,
        platform_tag=target.platform_tag,
        element_bits={kernel.operation.call: ElementBits.of(kernel.operation) for kernel in kernels},
        toolchain=toolchain_versions() | versions_of(tuple(compilers)),
        kernels=kernels,
        row_kernels=row_kernels,
        tables=tuple(_wheel_table(source, numbers, other_numbers) for source in sources),
        batch_invariant=batch_invariant or None,
        executions=tuple(executions_of(every, executions)),
    )


def toolchain_version() -> str:
    """Return the version of this toolchain, which its wheels carry."""
    return version("aot-kernels")


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel and the manifest it was made from."""

    path: Path
    manifest: Manifest
    api: Path | None = None
    """Of a pack, the wheel with the functions."""
    lock: Path | None = None
    """Of a pack, the file that pins both by their hashes, which pip takes with --require-hashes."""


def check_one_host(targets: Sequence[Target]) -> None:
    """Refuse targets that no one wheel can be for.

    Raises:
        PackageError: two are of different architectures or hosts, or one is there twice.
    """
    first = targets[0]
    for target in targets[1:]:
        if (target.arch, target.platform_tag) != (first.arch, first.platform_tag):
            raise PackageError(
                f"{first.name} is {first.arch} on {first.platform_tag}, {target.name} is {target.arch} on "
                f"{target.platform_tag}; a wheel is for one architecture and one host; build a wheel for each"
            )
    names = [target.name for target in targets]
    if len(set(names)) != len(names):
        raise PackageError(f"the target {max(names, key=names.count)} is given twice; expected each once")


def _compiled(sources: Sequence[TableSource], workplace: Workplace) -> list[Artifact[Any]]:
    """Compile the kernels of all selections: products in the order of `shared_kernels`, then the others, each once.

    Nothing of a device but its architecture is in the others.
    """
    kernels = shared_kernels(sources)
    found: dict[AnyKey, Artifact[Any]] = {}
    for target in dict.fromkeys(kernels.values()):
        keys = [key for key, built_for in kernels.items() if built_for == target]
        found |= {x.kernel.key: x for x in _whole(*compile_shipped(keys, target, workplace))}
    others: list[AnyKey] = list(dict.fromkeys(key for source in sources for key in source.selection.others.kernels))
    found |= {x.kernel.key: x for x in _whole(*compile_all(others, sources[0].target, workplace))} if others else {}
    return [found[key] for key in (*kernels, *others)]


def _whole(artifacts: Sequence[Artifact[Any]], failures: Sequence[CompileFailure]) -> Sequence[Artifact[Any]]:
    """Return what compiling made of selected kernels.

    Raises:
        CompileError: one does not compile.
    """
    if failures:
        first = failures[0]
        text = f"{len(failures)} selected kernels do not compile; the first: {first.name}: {first.reason}"
        raise CompileError(
            f"{text}; leave it out with `aot select --kernels='-...'`, or its operation with `aot build --operations`"
        )
    return artifacts


def _check_invariant(sources: Sequence[TableSource]) -> None:
    """Refuse selections that have an operation without a batch-invariant table, or groups without one order of sums.

    Raises:
        PackageError: there is such an operation.
    """
    for source in sources:
        sections = source.selection.table.sections
        invariant = {x.operation for x in sections if x.batch_invariant}
        dense = {x.operation for x in sections if x.operation.grouping is Grouping.DENSE}
        missing = min(dense - invariant, default=None)
        if missing is not None:
            raise PackageError(
                f"--batch-invariant: the selection of {source.target.name} has no such table of {missing.tag}; make "
                "one with `aot select --batch-invariant`, and give it with --selection"
            )
        grouped = {x.operation for x in sections if x.operation.grouping.has_offsets}
        own = {x: [y for y in sections if y.operation == x] for x in grouped}
        free = grouped - invariant
        mixed = min((x for x in free if not has_one_order(own[x], source.selection.kernels)), default=None)
        if mixed is not None:
            raise PackageError(
                f"--batch-invariant: kernels of {mixed.tag} in the selection of {source.target.name} add up k in more "
                "than one order; make one with `aot select --batch-invariant`, and give it with --selection, or leave "
                "the operation out with `aot build --operations`"
            )


def make_wheel(
    sources: Sequence[TableSource],
    dist_dir: Path,
    workplace: Workplace,
    *,
    package: str,
    wheel_version: str,
    batch_invariant: bool = False,
    pack: str | None = None,
    pack_answers: str = ANSWERS[0],
) -> BuiltWheel:
    """Compile the kernels of one or several selections and build their wheel.

    Args:
        sources: what each table is made from.
        dist_dir: where to put the wheel.
        workplace: how it is built.
        package: name of the distribution.
        wheel_version: the version's public part.
        batch_invariant: whether every call of it is to be batch-invariant.
        pack: name of a pack that is to hold the kernels, while `package` holds the functions; None: one wheel has both.
        pack_answers: of `aot.package.pack.ANSWERS`, what the pack answers for beside others.

    Raises:
        CompileError: a selected kernel does not compile.
        ManifestError: a table cannot have a kernel as it is built for the others; the message says which.
        PackageError: the selections are not for one wheel, the build failed, or the wheel is not what it must be.
        StoreError: a record of executions is damaged.
    """
    check_one_host([source.target for source in sources])
    if batch_invariant:
        _check_invariant(sources)
    artifacts = _compiled(sources, workplace)
    manifest = manifest_of(
        sources,
        artifacts,
        pack or package,
        wheel_version,
        batch_invariant=batch_invariant,
        executions=committed_executions(),
    )
    objects = {artifact.kernel.name: artifact.path for artifact in artifacts}
    target = sources[0].target
    verbose, of = workplace.verbose, None if pack is None else PackFor(package, pack_answers)
    wheel = build_wheel(manifest, objects, dist_dir, target, pack=of, verbose=verbose, progress=workplace.progress)
    if pack is None:
        return BuiltWheel(wheel, manifest)
    api, lock = build_api(package, wheel_version, dist_dir, verbose=verbose), dist_dir / f"{pack}.lock"
    write_whole(lock, lock_text([api, wheel]))
    return BuiltWheel(wheel, manifest, api, lock)
