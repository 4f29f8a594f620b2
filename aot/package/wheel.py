"""From a selection to a wheel: its kernels compiled, its manifest, its build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from aot.compile.artifact import Artifact
from aot.compile.compiler import toolchain_versions
from aot.compile.workplace import Workplace, compile_all
from aot.core.errors import CompileError
from aot.core.measurement import PROVENANCE_PREDICTED, OperationTimes
from aot.core.target import Target
from aot.package.build import build_wheel
from aot.package.distribution import wheel_version as version_of
from aot.package.manifest import MANIFEST_VERSION, Manifest
from aot.select.selection import Selection
from aot.select.tiles import tile_notes

DEFAULT_PACKAGE = "aot-gemm"


def manifest_of(
    selection: Selection,
    artifacts: Sequence[Artifact],
    target: Target,
    package: str,
    wheel_version: str,
    timed: OperationTimes | None = None,
) -> Manifest:
    """Make the manifest of a wheel. The local part of its version says what its table is: see aot.package.distribution.

    `timed` are the measured times behind the selection, by which bigger tiles are compared. A predicted selection has
    regrets against the model's own times, which are none.
    """
    is_predicted = selection.provenance == PROVENANCE_PREDICTED
    return Manifest(
        manifest_version=MANIFEST_VERSION,
        package=package,
        version=version_of(wheel_version, selection),
        target=target.name,
        arch=target.arch,
        platform_tag=target.platform_tag,
        provenance=selection.provenance,
        record=selection.record,
        conditions=selection.conditions,
        regrets=() if is_predicted else selection.regrets,
        heldout=selection.heldout,
        flops_per_s=target.flops_per_s,
        bandwidth_bytes_per_s=target.bandwidth_bytes_per_s,
        bigger_tiles=tile_notes(selection, target, timed or {}),
        toolchain=toolchain_versions(),
        kernels=tuple(artifact.kernel for artifact in artifacts),
        table=selection.table,
    )


def toolchain_version() -> str:
    """Return the version of this toolchain, which its wheels carry."""
    return version("aot-kernels")


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel and the manifest it was made from."""

    path: Path
    manifest: Manifest


def make_wheel(
    selection: Selection,
    target: Target,
    dist_dir: Path,
    workplace: Workplace,
    *,
    package: str,
    wheel_version: str,
    timed: OperationTimes | None = None,
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
    manifest = manifest_of(selection, artifacts, target, package, wheel_version, timed)
    objects = {artifact.kernel.name: artifact.path for artifact in artifacts}
    wheel = build_wheel(manifest, objects, dist_dir, target, verbose=workplace.verbose, progress=workplace.progress)
    return BuiltWheel(wheel, manifest)
