"""Check a finished wheel: that it is what its manifest says, and on a GPU, that its kernels are right."""

from __future__ import annotations

import base64
import csv
import hashlib
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from aot.errors import DeviceError, PackageError, VerificationError
from aot.families import family_of
from aot.manifest import Manifest, from_json
from aot.package import inspect_wheel
from aot.target import load_target
from aot.tuning_set import TunedKernel

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED = 0
"""Of the inputs that kernels are checked with."""

_UNREADABLE = (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, UnicodeDecodeError)
"""What zipfile raises over a damaged archive. Source: bits flipped in one, thousands of times."""


def read_wheel_manifest(wheel: Path) -> Manifest:
    """Read the manifest inside a wheel.

    Raises:
        PackageError: the file is no wheel of this toolchain.
        ManifestError: its manifest is damaged or of another version.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            damaged = archive.testzip()
            names = [name for name in archive.namelist() if name.endswith("/manifest.json") and name.count("/") == 1]
            if damaged or len(names) != 1:
                found = f"{damaged} is damaged" if damaged else f"it has {len(names)} manifests"
                raise PackageError(f"{wheel.name}: {found}; expected a wheel that `aot build` made, whole")
            return from_json(archive.read(names[0]).decode(), f"{wheel.name}: {names[0]}")
    except _UNREADABLE as error:
        raise PackageError(f"{wheel.name} is not a wheel: {error}; build or download it again") from error


def _check_hashes(wheel: Path) -> int:
    """Compare every file of a wheel with its RECORD, as pip does; give their number."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        records = [name for name in names if name.endswith(".dist-info/RECORD")]
        if len(records) != 1:
            raise PackageError(f"{wheel.name} has {len(records)} RECORD files, expected 1; build or download it again")
        rows = csv.reader(archive.read(records[0]).decode().splitlines())
        recorded = {row[0]: row[1] for row in rows if len(row) == 3}
        for name in names:
            digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).decode().rstrip("=")
            if name != records[0] and recorded.get(name) != f"sha256={digest}":
                text = f"{wheel.name}: {name} has sha256={digest}, RECORD says {recorded.get(name)}"
                raise PackageError(f"{text}; build or download it again")
        missing = sorted(set(recorded) - set(names))
        if missing:
            raise PackageError(
                f"{wheel.name} lacks {', '.join(missing)}, which RECORD names; build or download it again"
            )
        return len(names)


def check_wheel(wheel: Path) -> Iterator[str]:
    """Check hashes, tag, libraries, symbols and sizes; give a line for each thing found right.

    Raises:
        PackageError: something is not as the manifest says.
    """
    manifest = read_wheel_manifest(wheel)
    yield f"manifest: {manifest.package} {manifest.version}, {len(manifest.kernels)} kernels, {manifest.provenance}"
    yield f"hashes: {_check_hashes(wheel)} files as RECORD says"
    inspect_wheel(wheel, manifest, load_target(manifest.target))
    yield f"libraries: {manifest.platform_tag}, needs, symbols and versions as expected"


def check_kernels(wheel: Path) -> Iterator[str]:
    """Run every kernel of a wheel on this machine's GPU over edge shapes, poisoned output and guards.

    Raises:
        DeviceError: there is no GPU of the wheel's architecture.
        VerificationError: a kernel's result is wrong; the message names every such kernel.
    """
    import numpy as np

    from aot.device import CudaGpu, read_properties
    from aot.kernel_library import KernelLibrary
    from aot.verify import Verifier

    manifest = read_wheel_manifest(wheel)
    properties = read_properties()
    expected = load_target(manifest.target).compute_capability
    if properties.compute_capability != expected:
        text = f"the wheel is for compute capability {expected}, {properties.name} has {properties.compute_capability}"
        raise DeviceError(f"{text}; verify it on its target")
    failures = []
    with tempfile.TemporaryDirectory(prefix="aot-verify-") as scratch:
        name = f"{manifest.module}/lib{manifest.module}.so"
        with zipfile.ZipFile(wheel) as archive:
            library = Path(archive.extract(name, scratch))
        kernels = KernelLibrary(library)
        verifier = Verifier(CudaGpu(properties), kernels, np.random.default_rng(SEED))
        for index, kernel in enumerate(manifest.kernels):
            tuned = TunedKernel(
                kernel.key,
                kernel.object_sha256,
                kernel.m_multiple,
                kernel.n_multiple,
                family_of(kernel.candidate).is_fallback,
            )
            try:
                yield f"{kernel.name}: relative error {verifier.verify(tuned, index):.1e}"
            except VerificationError as error:
                failures.append(f"{kernel.name}: {error}")
        verifier.close()
    if failures:
        raise VerificationError(f"{len(failures)} of {len(manifest.kernels)} kernels are wrong: {'; '.join(failures)}")
