"""Launch one part of a wheel's kernels: the program that a sanitizer watches; `tests.device.sanitize` starts it.

It needs numpy and the driver, and no torch, whose start would take longer than the launches. What it prints are lines
of JSON behind MARK; the sanitizer's own lines come between them, on the same pipe.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.core.errors import DeviceError, VerificationError
from aot.measure.device import CudaGpu, read_properties
from aot.measure.kernel_library import KernelLibrary
from aot.measure.verify import Verifier
from tests.device.sanitize_cases import Case, ShippedKernel
from tests.device.sanitize_control import launch_control

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "@case "
"""What a line of ours begins with."""

LOST = 3
"""Exit code after a fault that leaves the context unusable: another process does the rest."""


def say(**values: Any) -> None:
    """Print one line for the parent."""
    print(MARK + json.dumps(values), flush=True)


def in_turns(kernels: list[ShippedKernel]) -> Iterator[tuple[ShippedKernel, Case]]:
    """List the cases of kernels, turn by turn."""
    cases = [(kernel, case) for kernel in kernels for case in kernel.cases()]
    return iter(sorted(cases, key=lambda x: x[1].turn))


class Runner:
    """Runs cases on a device, with operands that are allocated to the byte."""

    def __init__(self, gpu: Any, kernels: Any) -> None:
        self._gpu, self._names = gpu, list(kernels.names)
        self._verifier = Verifier(gpu, kernels, np.random.default_rng(0), num_guards=0)

    def fault(self, kernel: ShippedKernel, case: Case) -> str:
        """Run a case and say what is wrong with its results; nothing where all is well."""
        try:
            index = self._names.index(kernel.name)
            if case.shape:
                self._verifier.run_each(case.shape, index + len(self._names) * case.order, case.promises)
            for rows in case.rows:
                self._verifier.run_once(rows, index)
        except (DeviceError, VerificationError) as error:
            return str(error)
        finally:
            if not self._gpu.is_lost():
                self._verifier.close()  # the next case's workspace is to be as large as it needs, and no larger
        return ""


def work(gpu: Any, runner: Runner, kernels: list[ShippedKernel], done: set[tuple[str, str]], deadline: float) -> int:
    """Run the cases that are not done; return an exit code."""
    for kernel, case in in_turns(kernels):
        if (kernel.digest, case.name) in done:
            continue
        if time.time() > deadline:
            break
        say(begin=kernel.name, case=case.name)
        started = time.perf_counter()
        fault = runner.fault(kernel, case)
        say(end=kernel.name, seconds=round(time.perf_counter() - started, 3), fault=fault)
        if fault and gpu.is_lost():
            return LOST
    say(ended=True)
    return 0


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("plan", type=Path, help="JSON file of the parent's: kernels, done, library, deadline")
    parser.add_argument("--control", default="", metavar="TOOL", help="launch the fault that a tool is to find instead")
    values = parser.parse_args()
    gpu = CudaGpu(read_properties())
    if values.control:
        launch_control(gpu, values.control)
        return 0
    plan = json.loads(values.plan.read_text(encoding="utf-8"))
    library = Path(plan["library"])
    kernels = [ShippedKernel(**x) for x in plan["kernels"]]
    done = {(digest, case) for digest, case in plan["done"]}
    return work(gpu, Runner(gpu, KernelLibrary(library)), kernels, done, plan["deadline"])


if __name__ == "__main__":
    sys.exit(main())
