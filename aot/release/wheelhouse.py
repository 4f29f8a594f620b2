"""A folder of wheels from which this toolchain is installed and builds without an index."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from aot.core.process import run
from aot.package.toolchain import CUDA_HEADERS, CUDA_RUNTIME, download
from aot.release.release import TOOLCHAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from aot.core.target import Target


def installed() -> list[str]:
    """List what is installed beside this toolchain, each at its version: what a wheelhouse holds for the build host."""
    found = {canonicalize_name(x.name): x.version for x in distributions()}
    return [f"{name}=={version}" for name, version in sorted(found.items()) if name != TOOLCHAIN]


def fetch_linked(folder: Path, targets: Iterable[Target], *, verbose: bool = False) -> None:
    """Fetch what is linked against, for the machines of these targets.

    Raises:
        PackageError: a download failed.
    """
    hosts = {(target.machine, target.glibc): target for target in targets}
    for target in hosts.values():
        download((CUDA_RUNTIME, CUDA_HEADERS), target, folder, verbose=verbose)


def fill(folder: Path, targets: Iterable[Target], said: Callable[[str], None], *, verbose: bool = False) -> None:
    """Put into a folder what is needed to install this toolchain again and to build for these targets.

    Args:
        folder: where the wheels are put; those that are there are kept.
        targets: whose machines' libraries it has.
        said: called with what is being done.
        verbose: echo the commands to standard error.

    Raises:
        PackageError: a package cannot be had.
    """
    fetch_linked(folder, targets, verbose=verbose)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--wheel-dir", str(folder)]
    packages = installed()
    for number, package in enumerate(packages, start=1):
        said(f"{number} of {len(packages)}: {package}")
        run([*pip, "--find-links", str(folder), package], f"fetching {package}", verbose=verbose)
