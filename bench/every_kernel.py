"""Run every kernel of the installed wheel and check the results: what compute-sanitizer watches.

    compute-sanitizer --tool memcheck python bench/every_kernel.py
    for i in $(seq 14); do
      compute-sanitizer --tool racecheck --kernel-name kns=kernel_cutlass python bench/every_kernel.py --part $i/14 &
    done; wait

from the repository's root, with the wheel and numpy installed and the root on PYTHONPATH. Products have three
shapes, which are small; most tiles lie partly outside. Operations on rows have the edge sizes of `aot verify`. Operands
are allocated to the byte, so that memcheck sees what is read beside them. What racecheck reports, and why:
docs/log/2026-11-21-sanitizer.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which bench.py would be found as `bench`
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from aot.core.errors import DeviceError, VerificationError
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.row_candidate import RowLimits
from aot.core.row_operation import RowOperation
from aot.measure.device import CudaGpu, read_properties
from aot.measure.edge_shapes import ARRANGEMENTS, EdgeShape, rounded
from aot.measure.kernel_library import KernelLibrary, operation_of
from aot.measure.row_library import RowLibrary
from aot.measure.row_verify import RowVerifier
from aot.measure.verify import Verifier
from bench.dispatched import library_of

ROW_OPERATIONS = {x.value: x for x in RowOperation}
SHAPES = ((40, 264, 392), (304, 1032, 648), (8, 2056, 520))
"""(m, n, k), rounded up to what the operation's types need."""


def cases(operation: Operation) -> list[EdgeShape]:
    """Return the three problems of an operation, what a caller may choose in turns."""
    return [
        EdgeShape(rounded(Problem(operation, *shape)), 0, 0, arrangement=ARRANGEMENTS[i])
        for i, shape in enumerate(SHAPES)
    ]


def fault(verifier: Verifier, kernel: int, case: EdgeShape) -> str:
    """Run a kernel and say what is wrong; nothing where all is well."""
    try:
        verifier.run_once(case, kernel, promises=True)
    except (DeviceError, VerificationError) as error:
        return str(error)
    return ""


def row_kernels(library: Path) -> list[dict[str, Any]]:
    """Return what a wheel's manifest says of its kernels of operations on rows, by their index in the library."""
    manifest = json.loads((library.parent / "manifest.json").read_text(encoding="utf-8"))
    return list(manifest.get("row_kernels", ()))


def row_fault(verifier: RowVerifier, index: int, kernel: dict[str, Any]) -> str:
    """Run a kernel of an operation on rows and say what is wrong; nothing where all is well."""
    try:
        verifier.verify(ROW_OPERATIONS[kernel["operation"]], RowLimits(**kernel["limits"]), index)
    except (DeviceError, VerificationError) as error:
        return str(error)
    return ""


def _part(text: str) -> tuple[int, int]:
    """Read I/N; raise ValueError, which argparse reports, for anything else than 1 <= I <= N."""
    part, num_parts = (int(number) for number in text.split("/"))
    if not 1 <= part <= num_parts:
        raise ValueError(text)
    return part, num_parts


def main() -> int:
    """Run from the command line; 1 if a kernel failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kernels", default="", help="only kernels whose name contains this")
    parser.add_argument("--package", default="aot_gemm", help="name of the wheel's package (aot_gemm)")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="I/N", help="only the I-th of N parts, from 1 on")
    values = parser.parse_args()
    try:
        path = library_of(values.package)
        library, gpu = KernelLibrary(path), CudaGpu(read_properties())
    except DeviceError as error:
        parser.error(str(error))
    verifier = Verifier(gpu, library, np.random.default_rng(0), num_guards=0)
    part, num_parts = values.part
    chosen = [i for i, name in enumerate(library.names) if values.kernels in name][part - 1 :: num_parts]
    rows = [x for x in enumerate(row_kernels(path)) if values.kernels in x[1]["name"]][part - 1 :: num_parts]
    num_faults = 0
    for kernel in chosen:
        for case in cases(operation_of(library.names[kernel])):
            text = fault(verifier, kernel, case)
            num_faults += bool(text)
            print(f"{library.names[kernel]} {case}: {text or 'right'}", flush=True)
    on_rows = RowVerifier(gpu, RowLibrary(path), np.random.default_rng(0))
    for index, kernel in rows:
        text = row_fault(on_rows, index, kernel)
        num_faults += bool(text)
        print(f"{kernel['name']}: {text or 'right'}", flush=True)
    print(f"{len(chosen)} kernels at {len(SHAPES)} shapes each, {len(rows)} of rows: {num_faults} failed")
    return 1 if num_faults or not (chosen or rows) else 0


if __name__ == "__main__":
    sys.exit(main())
