"""Calls the C API and the Python package with random arguments, built with AddressSanitizer and UBSan; needs no GPU.

    python -m tests.fuzz.c_api --calls 500000

The library is built over the recorder of tests/runtime, so that no address is read. The C parts are c_api.cc and
rows_api.cc, the Python part is python_api.py; each makes so many calls. Prints a line for each: calls, seconds,
launches, and how often each status or error came. Exits with 1 and the report where a sanitizer has one, a status is
out of range, a failure has no text, an operation of the catalogue was never launched, or Python raises what is no error
of the package.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from aot.core.operation import Operation
from tests import native
from tests.runtime import host
from tests.runtime.rows import with_rows

ROOT = Path(__file__).parents[2]
SANITIZERS = ["-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


DRIVERS = ("c_api", "rows_api")
"""Programs that call the C API: of products, and of row operations."""
ENOUGH_CALLS = 200_000
"""With as many, each operation is launched."""


class FuzzError(Exception):
    """A run that found something; the text is its report."""


@dataclass(frozen=True)
class Run:
    """What one part did; `outcomes` counts calls by status or error."""

    part: str
    calls: int
    seconds: float
    launches: int
    outcomes: dict[str, int]

    def __str__(self):
        outcomes = ", ".join(f"{name} {count}" for name, count in self.outcomes.items())
        return f"{self.part}: {self.calls} calls, {self.seconds:.1f} s, 0 reports, {self.launches} launches; {outcomes}"


def build(directory, sanitizers=SANITIZERS):
    """Build library, package and driver, with sanitizers or without; gives the package's folder."""
    manifest = with_rows(host.random_manifest(operations=tuple(Operation)))
    folder = host.compile_installed(manifest, directory, flags=sanitizers)
    library = next(folder.glob("lib*.so.*"))
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *sanitizers]
    links, includes = [f"-Wl,-rpath,{folder}"], [directory / "include", directory / "src", Path(__file__).parent]
    for driver in DRIVERS:
        files = [Path(__file__).with_name(f"{driver}.cc"), library]
        native.link(files, directory / driver, native.GCC, flags, links, includes)
    return folder


def _run(command, **variables):
    started = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AOT_GEMM_")}
    done = subprocess.run(
        [str(x) for x in command],
        cwd=ROOT,
        env={**environment, "UBSAN_OPTIONS": "print_stacktrace=1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or done.stderr:
        raise FuzzError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout), time.monotonic() - started


def run_c(directory, calls, seed, driver=DRIVERS[0]):
    """Make calls of the C API: of products, or of row operations.

    Raises:
        FuzzError: something was found.
    """
    counts, seconds = _run([directory / driver, calls, seed])
    outcomes = {f"status {i}": count for i, count in enumerate(counts["statuses"]) if count}
    idle = counts["launches"].count(0)
    if idle and calls >= ENOUGH_CALLS:
        raise FuzzError(f"{idle} operations were never launched: {counts['launches']}")
    return Run(driver, calls, seconds, sum(counts["launches"]), outcomes)


def run_python(folder, calls, seed):
    """Make calls of the Python package, in a Python that AddressSanitizer was loaded into first.

    Raises:
        FuzzError: something was found.
    """
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.python_api", folder, calls, seed]
    # Python itself leaves memory at its end.
    variables = {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    outcomes, seconds = _run(command, **variables)
    launches, idle = outcomes.pop("launches"), outcomes.pop("idle")
    if idle and calls >= ENOUGH_CALLS:
        raise FuzzError(f"never launched from Python: {', '.join(idle)}")
    return Run("Python", calls, seconds, launches, dict(Counter(outcomes)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=500_000, help="calls of each part")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = build(Path(name))
        try:
            for driver in DRIVERS:
                print(run_c(Path(name), options.calls, options.seed, driver), flush=True)
            print(run_python(folder, options.calls, options.seed))
        except FuzzError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
