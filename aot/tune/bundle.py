"""Make a bundle: a directory with all that measuring needs, to be carried to the device and run there."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from aot.compile.sources import files_of_package
from aot.core.errors import OutputError, PackageError, StoreError
from aot.core.process import run
from aot.core.scratch import scratch_folder
from aot.core.whole_file import check_folder
from aot.kinds.rows.catalogue import GROUP, outside_entries
from aot.measure.tuning_set import write_tuning_set
from aot.measure.worker_process import LIBRARY_FILE

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from aot.measure.tuning_set import TuningSet

RUNNER_PACKAGES = ("core", "kinds", "search", "measure")
"""What travels to the device; pyproject.toml states that they import no other package of `aot`."""

OUTSIDE = "outside"
"""Folder of a bundle's `aot` with the packages of operations that are not ours; run.py looks there."""
RUNNER = ("aot", "run.py")
"""Entries of a bundle that are no tuning's own."""
SITE = "site"
"""Folder of a bundle with the packages that the device lacks; run.py looks there last."""

_RUN = '''\
"""Measure this bundle's kernels on this machine's GPU: python run.py --out results.sqlite

Needs Python 3.10 or newer, numpy (`pip install numpy`, unless site/ beside this file has it) and the driver.
Run it again with the same --out to carry on. Then, where aot is: aot import results.sqlite
"""

import signal
import sys
from pathlib import Path

if sys.version_info < (3, 10):
    sys.exit(f"error: {sys.executable} is Python {sys.version.split()[0]}; Python 3.10 or newer is needed")
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until main() sees to it, Ctrl-C ends without a traceback
sys.path += [str(Path(__file__).resolve().parent / x) for x in ("aot/outside", "site")]

from aot.measure.runner import main

if __name__ == "__main__":
    sys.exit(main([str(Path(__file__).resolve().parent), *sys.argv[1:]]))
'''


@dataclass(frozen=True)
class Bundle:
    """A bundle's directory and its size."""

    directory: Path
    num_bytes: int


def make_runner(directory: Path) -> None:
    """Write what of a bundle is no tuning's own: run.py, the modules that it needs, and operations of other packages.

    Raises:
        CompileError: such a package has no files.
        OperationError: two functions of operations have one name.
    """
    package = directory / "aot"
    if package.exists():
        shutil.rmtree(package)
    source = Path(__file__).parents[1]
    for name in RUNNER_PACKAGES:
        shutil.copytree(source / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(source / "__init__.py", package / "__init__.py")
    for entry in outside_entries().values():
        _carry(entry, package / OUTSIDE)
    (directory / "run.py").write_text(_RUN, encoding="utf-8")


def _carry(entry: EntryPoint, folder: Path) -> None:
    """Copy the package of an entry point, with what an installed distribution is found by."""
    top = entry.module.partition(".")[0]
    files = files_of_package(top, f"the entry point {entry.name}")
    is_module = len(files) == 1 and f"{top}.py" in files
    for name, path in files.items():
        to = folder / name if is_module else folder / top / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    about = folder / f"{top}-0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    metadata = entry.dist.read_text("METADATA") if entry.dist else None
    (about / "METADATA").write_text(metadata or f"Metadata-Version: 2.1\nName: {top}\nVersion: 0\n", encoding="utf-8")
    with (about / "entry_points.txt").open("a", encoding="utf-8") as listed:
        listed.write(f"[{GROUP}]\n{entry.name} = {entry.value}\n")


def check_bundle_folder(directory: Path) -> Path:
    """Find out whether a bundle may be written into a folder, before its library is made; return its path.

    Raises:
        OutputError: it cannot be written.
        StoreError: it is there and is no bundle.
    """
    check_folder(directory)
    if directory.exists() and any(directory.iterdir()) and not (directory / "run.py").is_file():
        raise StoreError(f"{directory} is there and is no bundle; give another directory")
    return directory


def make_bundle(directory: Path, library: Path, tuning: TuningSet) -> Bundle:
    """Write a bundle: the kernel library, kernels.json, problems.json, the runner and the modules that it needs.

    Args:
        directory: where to write; it must not exist, or be a bundle, which is replaced (results in it are kept).
        library: the tuning library, with every kernel of `tuning`.
        tuning: kernels and problems.

    Raises:
        OutputError: the directory cannot be written.
        StoreError: the directory is something else, or the set has no kernels or problems.
    """
    if not tuning.kernels or not tuning.problems:
        raise StoreError(f"nothing to bundle: {len(tuning.kernels)} kernels, {len(tuning.problems)} problems")
    check_bundle_folder(directory)
    try:
        make_runner(directory)
        shutil.copyfile(library, directory / LIBRARY_FILE)
        write_tuning_set(directory, tuning)
    except OSError as error:
        raise OutputError(f"cannot write the bundle {directory}: {error}; free disk, or give another folder") from error
    return Bundle(directory, sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()))


def add_numpy(directory: Path, python: str, machine: str, glibc: str, *, verbose: bool = False) -> None:
    """Put numpy for a device's Python into a bundle, from pip's index: the version that this toolchain uses.

    Args:
        directory: the bundle.
        python: the device's Python, such as `3.12.3`.
        machine: as `uname -m` prints it there.
        glibc: the device's, such as `2.39`.
        verbose: echo the command to standard error.

    Raises:
        PackageError: there is none for such a device, or no index.
    """
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(int(glibc.split(".")[1]), 16, -1)]
    short = ".".join(python.split(".")[:2])
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--python-version", short]
    platforms = [word for tag in [*tags, f"manylinux2014_{machine}"] for word in ("--platform", tag)]
    with scratch_folder("aot-numpy-") as scratch:
        command = [sys.executable, "-m", "pip", "download", *options, *platforms, "--dest", str(scratch)]
        env = os.environ | {"TMPDIR": str(scratch)}
        try:
            run([*command, f"numpy=={version('numpy')}"], "fetching numpy for the device", env=env, verbose=verbose)
        except PackageError as error:
            advice = f"install numpy on the device: {machine}, Python {python}, glibc {glibc}"
            raise PackageError(f"{error}\n  next: check pip's index and the network, or {advice}") from error
        for wheel in scratch.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(directory / SITE)
