"""Check a finished wheel: that it is what its manifest says, and on a GPU, that its kernels are right."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aot.compile.object_file import ELF_MAGIC, cubin_sm, cubins
from aot.compile.tuned import tuned_kernel
from aot.core.errors import AotError, DeviceError, PackageError, VerificationError
from aot.core.target import load_target
from aot.package.manifest import Manifest, from_json
from aot.package.render import capability, library_name
from aot.package.states import states_text
from aot.package.wheel_archive import read_wheel
from aot.package.wheel_file import inspect_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aot.kinds.kind import Tuned
    from aot.measure.device import DeviceProperties
    from aot.measure.gpu import Gpu
    from aot.measure.verify import Verifier


SEED = 0
"""Of the inputs that kernels are checked with."""

_AGAIN = "build or download it again"


def read_wheel_manifest(wheel: Path) -> Manifest:
    """Read the manifest inside a wheel.

    Raises:
        PackageError: the file is no wheel of this toolchain.
        ManifestError: its manifest is damaged or of another version.
    """
    return _find_manifest(wheel, read_wheel(wheel))


def _find_manifest(wheel: Path, files: Mapping[str, bytes]) -> Manifest:
    names = [name for name in files if name.endswith("/manifest.json") and name.count("/") == 1]
    if functions_alone(files) is not None:
        raise PackageError(
            f"{wheel.name}: it has the functions of packs and no kernels; expected a pack's wheel, which has them"
        )
    if len(names) != 1:
        raise PackageError(
            f"{wheel.name}: it has {len(names)} manifests; expected a wheel that `aot build` made, whole"
        )
    try:
        return from_json(files[names[0]].decode(), f"{wheel.name}: {names[0]}")
    except UnicodeDecodeError as error:
        raise PackageError(f"{wheel.name}: {names[0]} is not UTF-8: {error}; {_AGAIN}") from error


def functions_alone(files: Mapping[str, bytes]) -> str | None:
    """Return the folder of a package that has functions for packs, and no kernels; None where these files are of none.

    Args:
        files: content by path, which starts with the package's folder.
    """
    own = [name.partition("/")[0] for name in files if name.endswith("/_build.json") and name.count("/") == 1]
    if len(own) != 1 or f"{own[0]}/_packs.py" not in files:
        return None
    is_whole = any(name == f"{own[0]}/manifest.json" or name.startswith(f"{own[0]}/lib") for name in files)
    return None if is_whole else own[0]


def _check_record(wheel: Path, files: Mapping[str, bytes]) -> None:
    """Compare every file of a wheel with its RECORD: hash and size."""
    records = [name for name in files if name.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        raise PackageError(f"{wheel.name} has {len(records)} RECORD files, expected 1; {_AGAIN}")
    try:
        rows = list(csv.reader(files[records[0]].decode().splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise PackageError(f"{wheel.name}: {records[0]} cannot be read: {error}; {_AGAIN}") from error
    recorded = {row[0]: row[1:] for row in rows if row}
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        expected = ["", ""] if name == records[0] else [f"sha256={digest}", str(len(content))]
        if recorded.get(name) != expected:
            text = (
                f"{wheel.name}: {name} has {' '.join(expected)}, RECORD says {' '.join(recorded.get(name, ['none']))}"
            )
            raise PackageError(f"{text}; {_AGAIN}")
    missing = sorted(set(recorded) - set(files))
    if missing:
        raise PackageError(f"{wheel.name} lacks {', '.join(missing)}, which RECORD names; {_AGAIN}")


def check_build(wheel: Path, files: Mapping[str, bytes], module: str) -> int:
    """Compare every file of the package with what `_build.json` has for the installed package to check itself by.

    Args:
        wheel: the wheel, or the installed package's folder.
        files: content by path, which starts with the package's folder.
        module: that folder's name.

    Returns:
        How many files were compared.

    Raises:
        PackageError: a file is missing or another one.
    """
    own = f"{module}/_build.json"
    expected = {
        name.removeprefix(f"{module}/"): {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
        if name.startswith(f"{module}/") and name != own
    }
    try:
        found = json.loads(files.get(own, b"").decode())
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{wheel.name}: {own} cannot be read: {error}; {_AGAIN}") from error
    if not isinstance(found, dict):
        raise PackageError(f"{wheel.name}: {own} holds a {type(found).__name__}, expected an object; {_AGAIN}")
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name):
            raise PackageError(
                f"{wheel.name}: {own} says {found.get(name)!a:.160} of {name}, which is {expected.get(name)}; {_AGAIN}"
            )
    return len(expected)


def _check_code(wheel: Path, files: Mapping[str, bytes], manifest: Manifest) -> int:
    """Compare the kernels in a wheel's libraries with the manifest: their names, and the device code of each.

    What an object's hash is of is linked and stripped; its hash was compared with the manifest's before.
    """
    folder = f"{manifest.module}/lib"
    libraries = [x for name, x in files.items() if name.startswith(folder) and x.startswith(ELF_MAGIC)]
    missing = [x.name for x in manifest.all_kernels if not any(x.name.encode() + b"\0" in y for y in libraries)]
    if missing:
        raise PackageError(f"{wheel.name}: its library does not name kernel {missing[0]} of its manifest; {_AGAIN}")
    images = [image for content in libraries for image in cubins(content)]
    major, minor = capability(manifest.arch)
    others = sorted({cubin_sm(image) for image in images} - {10 * major + minor})
    if others or len(images) != len(manifest.with_objects):
        raise PackageError(
            f"{wheel.name}: its library has {len(images)} device images, for sm {others or 10 * major + minor}; "
            f"expected {len(manifest.with_objects)} for {manifest.arch}; {_AGAIN}"
        )
    return len(images)


def check_wheel(wheel: Path) -> Iterator[str]:
    """Check the archive, hashes, tag, libraries, symbols, kernels and sizes; give a line for each thing found right.

    Of a wheel with functions for packs, which has no kernels, the archive and the hashes.

    Raises:
        PackageError: something is not as the manifest says.
        ManifestError: the manifest is damaged or of another version.
    """
    files = read_wheel(wheel)
    yield f"archive: {len(files)} files, each header as the build writes it"
    _check_record(wheel, files)
    functions = functions_alone(files)
    if functions is not None:
        yield f"functions: {functions}, for packs of kernels; it has none of its own"
        num_files = check_build(wheel, files, functions)
        yield f"hashes: {len(files)} files as RECORD says, {num_files} as the installed package will check them"
        return
    manifest = _find_manifest(wheel, files)
    tables = ", ".join(f"{table.target} {table.called}" for table in manifest.tables)
    yield f"manifest: {manifest.package} {manifest.version}, {len(manifest.all_kernels)} kernels; tables: {tables}"
    yield f"states: {states_text(manifest)}"
    num_files = check_build(wheel, files, manifest.module)
    yield f"hashes: {len(files)} files as RECORD says, {num_files} as the installed package will check them"
    try:
        inspect_wheel(wheel, manifest, load_target(manifest.tables[0].target))
        yield f"libraries: {manifest.platform_tag}, needs, symbols and versions as expected"
        yield f"kernels: {_check_code(wheel, files, manifest)} device images for {manifest.arch}, and their names"
    except AotError:
        raise
    except Exception as error:  # the ELF reader has no base of what it raises
        raise PackageError(f"{wheel.name}: a library cannot be read: {error!r:.200}; {_AGAIN}") from error


@contextmanager
def on_device(wheel: Path) -> Iterator[tuple[Manifest, DeviceProperties, Path]]:
    """Give a wheel's manifest, this machine's device, and the wheel's library in a folder of its own.

    Raises:
        DeviceError: there is no GPU of the wheel's architecture.
    """
    from aot.measure.device import read_properties

    manifest = read_wheel_manifest(wheel)
    properties = read_properties()
    expected = load_target(manifest.tables[0].target).compute_capability
    if properties.compute_capability != expected:
        text = f"the wheel is for compute capability {expected}, {properties.name} has {properties.compute_capability}"
        raise DeviceError(f"{text}; verify it on its target")
    with tempfile.TemporaryDirectory(prefix="aot-verify-") as scratch:
        with zipfile.ZipFile(wheel) as archive:
            library = Path(archive.extract(f"{manifest.module}/{library_name(manifest)}", scratch))
        yield manifest, properties, library


def check_kernels(wheel: Path) -> Iterator[str]:
    """Run every kernel of a wheel on this machine's GPU over edge shapes, poisoned output and guards.

    Raises:
        DeviceError: there is no GPU of the wheel's architecture.
        VerificationError: a kernel's result is wrong; the message names every such kernel.
    """
    import numpy as np

    from aot.measure.device import CudaGpu
    from aot.measure.kernel_library import KernelLibrary
    from aot.measure.verify import Verifier

    with on_device(wheel) as (manifest, properties, library):
        gpu, tuned = CudaGpu(properties), tuple(map(tuned_kernel, manifest.all_kernels))
        yield from verified(Verifier(gpu, KernelLibrary(library), np.random.default_rng(SEED)), gpu, tuned)


def verified(verifier: Verifier, gpu: Gpu, kernels: Sequence[Tuned]) -> Iterator[str]:
    """Run kernels over their edge cases; give a line for each that is right.

    Raises:
        VerificationError: some are wrong, or could not be launched; the message names every one, and how many were not
            run since one of them took the GPU's context with it.
        OutOfMemoryError: there is too little memory.
    """
    from aot.measure.gpu import OutOfMemoryError

    failures: list[str] = []
    for index, kernel in enumerate(kernels):
        try:
            yield f"{kernel.name}: {right_text(verifier.verify(kernel, index))}"
        except OutOfMemoryError:
            raise
        except (DeviceError, VerificationError) as error:
            failures.append(f"{kernel.name}: {error}")
            if gpu.is_lost():
                refuse_wrong(failures, {f"not run, after {kernel.name}": len(kernels) - index - 1}, len(kernels))
    verifier.close()
    refuse_wrong(failures, {}, len(kernels))


def refuse_wrong(failures: Sequence[str], not_run: Mapping[str, int], num_kernels: int) -> None:
    """Raise what names every kernel that is wrong, and says how many were not run and why, if some are.

    Raises:
        VerificationError: some are.
    """
    texts = [f"{len(failures)} of {num_kernels} kernels are wrong: {'; '.join(failures)}"] if failures else []
    texts += [f"{count} of {num_kernels} kernels: {reason}" for reason, count in not_run.items() if count]
    if texts:
        raise VerificationError("; ".join(texts))


def right_text(relative_error: float) -> str:
    """Say that a kernel is right, and how far from exact."""
    return f"relative error {relative_error:.1e}" if relative_error else "right in all cases"
