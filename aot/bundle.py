"""Make a bundle: a directory with all that measuring needs, to be carried to the device and run there."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.bundle_runner import LIBRARY_FILE
from aot.errors import StoreError
from aot.tuning_set import write_tuning_set

if TYPE_CHECKING:
    from aot.tuning_set import TuningSet

RUNNER_MODULES = (
    "__init__",
    "bundle_runner",
    "candidate",
    "conditions",
    "device",
    "dispatch",
    "errors",
    "gpu",
    "inputs",
    "kernel_library",
    "measure",
    "measurement",
    "numerics",
    "operands",
    "problem",
    "store",
    "store_sql",
    "tuning_set",
    "verify",
    "worker",
)
"""What run.py imports, itself included; tests/unit/test_bundle.py runs it with nothing else of the package there."""

_RUN = '''\
"""Measure this bundle's kernels on this machine's GPU: python run.py --out results.sqlite

Needs Python 3.10 or newer with numpy and cuda-python (`pip install numpy cuda-python`).
Run it again with the same --out to carry on. Then, where aot is: aot import results.sqlite
"""

import sys
from pathlib import Path

from aot.bundle_runner import main

if __name__ == "__main__":
    sys.exit(main([str(Path(__file__).resolve().parent), *sys.argv[1:]]))
'''


@dataclass(frozen=True)
class Bundle:
    """A bundle's directory and its size."""

    directory: Path
    num_bytes: int


def make_bundle(directory: Path, library: Path, tuning: TuningSet) -> Bundle:
    """Write a bundle: the kernel library, kernels.json, problems.json, the runner and the modules that it needs.

    Args:
        directory: where to write; it must not exist, or be a bundle, which is replaced (results in it are kept).
        library: the tuning library, with every kernel of `tuning`.
        tuning: kernels and problems.

    Raises:
        StoreError: the directory is something else, or the set has no kernels or problems.
    """
    if not tuning.kernels or not tuning.problems:
        raise StoreError(f"nothing to bundle: {len(tuning.kernels)} kernels, {len(tuning.problems)} problems")
    if directory.exists() and any(directory.iterdir()) and not (directory / "run.py").is_file():
        raise StoreError(f"{directory} is there and is no bundle; give another directory")
    package = directory / "aot"
    if package.exists():
        shutil.rmtree(package)
    package.mkdir(parents=True)
    for name in RUNNER_MODULES:
        shutil.copyfile(Path(__file__).with_name(f"{name}.py"), package / f"{name}.py")
    shutil.copyfile(library, directory / LIBRARY_FILE)
    write_tuning_set(directory, tuning)
    (directory / "run.py").write_text(_RUN, encoding="utf-8")
    return Bundle(directory, sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()))
