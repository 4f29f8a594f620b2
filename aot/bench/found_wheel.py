"""The wheel that is measured: a file, or a package that is installed; compared with its hashes before it is loaded."""

from __future__ import annotations

import hashlib
import importlib.util
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.errors import PackageError
from aot.core.json_text import json_line
from aot.core.scratch import scratch_folder
from aot.core.strict_json import DecodeError, parse_json
from aot.package.wheel_archive import read_wheel
from aot.package.wheel_check import check_build, functions_alone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RECORD = "_build.json"
_AGAIN = "build or install it again"


@dataclass(frozen=True)
class FoundWheel:
    """A wheel's library on the disk, and what tells the wheel from others."""

    library: Path
    package: str
    sha256: str
    tables_sha256: str


def _module_of(files: Mapping[str, bytes], where: Path) -> str:
    """Return the folder of the package among a wheel's files."""
    found = [name.partition("/")[0] for name in files if name.count("/") == 1 and name.endswith(f"/{RECORD}")]
    if len(found) != 1:
        raise PackageError(f"{where}: it has {len(found)} files {RECORD}, expected 1 of a wheel of ours; {_AGAIN}")
    return found[0]


def _library_of(files: Mapping[str, bytes], module: str, where: Path) -> str:
    """Return the path of the library: that with a version in its name, which `-l` finds through another file."""
    found = [name for name in files if name.startswith(f"{module}/lib{module}.so.")]
    if functions_alone(files) is not None:
        raise PackageError(
            f"{where}: it has the functions of packs and no kernels; expected a pack's wheel, or the folder of one "
            f"that is installed; `python -m {module}` lists them"
        )
    if len(found) != 1:
        raise PackageError(f"{where}: it has {len(found)} files lib{module}.so.*, expected 1; {_AGAIN}")
    return found[0]


def _found(files: Mapping[str, bytes], module: str, where: Path, library: Path) -> FoundWheel:
    """Compare a package's files with its record, and read what tells it from others.

    Raises:
        PackageError: a file is damaged or missing.
    """
    check_build(where, files, module)
    try:
        manifest = parse_json(files.get(f"{module}/manifest.json", b""))
        package, tables = str(manifest["package"]), manifest["tables"]
    except (DecodeError, KeyError, TypeError) as error:
        raise PackageError(f"{where}: manifest.json cannot be read: {error!s:.200}; {_AGAIN}") from error
    record = hashlib.sha256(files[f"{module}/{RECORD}"]).hexdigest()
    return FoundWheel(library, package, record, hashlib.sha256(json_line(tables).encode()).hexdigest())


def _files_of(folder: Path) -> dict[str, bytes]:
    paths = [x for x in sorted(folder.rglob("*")) if x.is_file() and "__pycache__" not in x.parts]
    return {f"{folder.name}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in paths}


def installed_folder(module: str) -> Path:
    """Return the folder of a package that this Python would import, without importing it.

    Raises:
        PackageError: there is none.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise PackageError(f"no package {module} is installed here; install the wheel, or give its path")
    return Path(spec.origin).parent


@contextmanager
def found_wheel(path: Path) -> Iterator[FoundWheel]:
    """Find the library of a wheel's file, unpacked for as long as the block lasts, or of an installed package's folder.

    Raises:
        PackageError: it is no wheel of ours, or damaged.
    """
    if path.is_dir():
        files = _files_of(path)
        name = _library_of(files, path.name, path)
        yield _found(files, path.name, path, path.parent / name)
        return
    files = read_wheel(path)
    module = _module_of(files, path)
    name = _library_of(files, module, path)
    with scratch_folder("aot-bench-") as scratch:
        library = scratch / Path(name).name
        library.write_bytes(files[name])
        yield _found(files, module, path, library)
