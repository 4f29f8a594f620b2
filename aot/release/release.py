"""Put a release together: wheels, bills of materials, licences, provenance, checksums."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distribution, version
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.errors import OutputError, PackageError
from aot.core.process import run
from aot.core.scratch import scratch_folder
from aot.package.build import SOURCE_DATE_EPOCH
from aot.package.contents import Component, components, licence_of
from aot.package.deb_file import to_bytes
from aot.package.debian import packages_of
from aot.package.toolchain import CUDA_HEADERS, CUDA_RUNTIME, LINKERS, fetch_toolchain
from aot.package.wheel import BuiltWheel
from aot.release import sbom
from aot.release.provenance import BUILDER, Parameters, statement
from aot.release.source import Source, export

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.target import Target

SUMS = "SHA256SUMS"
PROVENANCE = "provenance.intoto.jsonl"
LICENCES = "licenses"
TOOLCHAIN = "aot-kernels"
_PINNED = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([A-Za-z0-9.!+]+)$")


@dataclass(frozen=True)
class KernelWheel:
    """A wheel of kernels in a release, and what it was made from."""

    built: BuiltWheel
    target: Target
    """The first of its tables', of whose host it is."""
    inputs: Mapping[str, Path]
    """By their names, the files that decide what is in it: selections and records."""
    selections: Mapping[str, str]
    """By target, the hash of the selection that its table was made from."""


def build_toolchain_wheel(directory: Path, *, verbose: bool = False) -> Path:
    """Build the wheel of this toolchain from the files of the commit.

    Raises:
        PackageError: git or the build fails.
    """
    with scratch_folder("aot-release-") as scratch:
        source, out = scratch / "source", scratch / "dist"
        source.mkdir()
        export(source)
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
        env = os.environ | {"SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, "PYTHONHASHSEED": "0"}
        run(command, "building the toolchain's wheel", env=env, verbose=verbose)
        (wheel,) = out.iterdir()
        return Path(shutil.copyfile(wheel, directory / wheel.name))


def build_debs(wheel: Path, maintainer: str, directory: Path) -> list[Path]:
    """Make the Debian packages of a wheel's C library, whose files have the same date as the wheel's.

    Raises:
        PackageError: the wheel is damaged, or the maintainer is none.
    """
    epoch, made = int(SOURCE_DATE_EPOCH), []
    for package in packages_of(wheel, maintainer, epoch):
        path = directory / package.name
        path.write_bytes(to_bytes(package, epoch))
        made.append(path)
    return made


def _requirements() -> list[tuple[str, str]]:
    """List the name and version of each package that the toolchain is installed with."""
    found = (_PINNED.match(x.partition(";")[0].strip()) for x in distribution(TOOLCHAIN).requires or ())
    return sorted({(x[1], x[2]) for x in found if x})


def _write_bill(wheel: Path, text: str) -> Path:
    path = wheel.with_name(f"{wheel.name.removesuffix('.whl')}.cdx.json")
    path.write_text(text, encoding="utf-8")
    return path


def _kernel_bill(wheel: KernelWheel, found: Sequence[Component], source: Source) -> Path:
    manifest, path = wheel.built.manifest, wheel.built.path
    licence, entries = licence_of(manifest.families, manifest.functions), sbom.inside(found)
    text = sbom.bill(manifest.package, manifest.version, path.read_bytes(), licence, entries, source.date)
    return _write_bill(path, text)


def _toolchain_bill(wheel: Path, source: Source) -> Path:
    metadata = distribution(TOOLCHAIN).metadata
    entries = [sbom.requirement(*x) for x in _requirements()]
    licence = metadata["License-Expression"] or ""
    text = sbom.bill(TOOLCHAIN, version(TOOLCHAIN), wheel.read_bytes(), licence, entries, source.date)
    return _write_bill(wheel, text)


def _versions(wheels: Sequence[KernelWheel]) -> dict[str, str]:
    """Return the versions of the packages that compile and link, or are linked in."""
    found = {name: version(name) for name in LINKERS}
    found |= dict(x.split("==") for x in (CUDA_RUNTIME, CUDA_HEADERS))
    for wheel in wheels:
        found |= wheel.built.manifest.toolchain
    return found


def _write_sums(folder: Path) -> None:
    """Write the checksums of every file of a release but their own, as `sha256sum --check` reads them."""
    paths = sorted(x for x in folder.rglob("*") if x.is_file() and x.name != SUMS)
    rows = [f"{hashlib.sha256(x.read_bytes()).hexdigest()}  {x.relative_to(folder).as_posix()}\n" for x in paths]
    (folder / SUMS).write_text("".join(rows), encoding="utf-8")


def assemble(
    folder: Path,
    wheels: Sequence[KernelWheel],
    toolchain_wheel: Path,
    extras: Sequence[Path],
    parameters: Parameters,
    source: Source,
    builder: str = BUILDER,
) -> None:
    """Write what goes with the wheels of a release, which are in its folder already.

    Args:
        folder: where the release is.
        wheels: those of kernels.
        toolchain_wheel: that of this toolchain.
        extras: other files that belong to it, such as Debian packages; they are copied.
        parameters: what was asked for.
        source: the commit.
        builder: URI of who built.
    """
    files = [toolchain_wheel, _toolchain_bill(toolchain_wheel, source)]
    (folder / LICENCES).mkdir()
    for wheel in wheels:
        manifest = wheel.built.manifest
        found = components(manifest.families, fetch_toolchain(wheel.target).cuda_dir, manifest.functions)
        files += [wheel.built.path, _kernel_bill(wheel, found, source)]
        for component in found:
            (folder / LICENCES / component.file).write_bytes(component.text)
    for path in extras:
        if (folder / path.name).exists():
            raise PackageError(f"two files of the release are called {path.name}; expected one; leave one out")
        files.append(Path(shutil.copyfile(path, folder / path.name)))
    inputs = {name: path for wheel in wheels for name, path in wheel.inputs.items()}
    tools = {"python": platform.python_version(), TOOLCHAIN: version(TOOLCHAIN)}
    text = statement(files, parameters, source, inputs, _versions(wheels), tools, builder)
    (folder / PROVENANCE).write_text(text, encoding="utf-8")
    _write_sums(folder)


def put(scratch: Path, folder: Path) -> None:
    """Put a release where it belongs, in the place of an earlier one.

    Raises:
        OutputError: the folder holds something else, or cannot be written.
    """
    check_place(folder)
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(scratch, folder, copy_function=shutil.copyfile)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror}; give another folder") from error


def check_place(folder: Path) -> Path:
    """Return a folder that a release may be put into.

    Raises:
        OutputError: it holds something else than an earlier release, which would be removed.
    """
    is_release = (folder / SUMS).is_file()
    if folder.exists() and not is_release and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} holds other things than a release; give an empty folder, or remove it")
    return folder
