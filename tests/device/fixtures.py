"""Record what a Hopper GPU computes, for the interpreter of aot.emulate to be held against.

On a machine with the GPU: python -m tests.device.fixtures LIBRARY --out FILE

LIBRARY is a folder that `fixture_library` made. FILE is written after each kernel; a kernel that ends this process, or
never ends, is recorded with its error, and the program starts itself again behind it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.constraints import one_line
from aot.core.errors import AotError, DeviceError
from aot.measure.device import CudaGpu, read_properties
from aot.measure.kernel_library import KernelLibrary
from tests.device.fixture_cases import ProductCase, RunProduct, RunRows, product_cases, row_cases
from tests.device.fixture_file import (
    FIXTURE_VERSION,
    KERNELS_FILE,
    LIBRARY_FILE,
    Content,
    Fixture,
    ListedProduct,
    RecordedArray,
    RecordedCase,
    RecordedKernel,
    checksum,
    read_fixture,
    read_kernels,
    write_document,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.core.numerics import Bits
    from aot.kinds.rows.call import RowCase
    from tests.device.fixture_file import KernelList, ListedRows

NUM_GUARDS = 2048
"""Elements of poison around each operand."""
KERNEL_S = 30.0
"""Seconds after which a kernel is taken for one that never ends."""
MAX_KEPT = 1500
"""Elements of exact operands' D that are kept, where an epilogue's approximations may differ."""
ENDED = "the process ended while it ran"


def is_kept(case: ProductCase | RowCase, num_elements: int) -> bool:
    """Say whether what a kernel wrote is recorded itself, beside its checksum."""
    if not isinstance(case, ProductCase) or case.content is Content.RANDOM:
        return True
    operation = case.shape.problem.operation
    return num_elements <= MAX_KEPT and (operation.activation is not None or operation.gate is not None)


def _recorded(run: RunProduct | RunRows, case: ProductCase | RowCase) -> RecordedCase:
    written: Mapping[str, Bits] = run.written
    num_elements = sum(x.size for x in written.values())
    content = case.content if isinstance(case, ProductCase) else Content.RANDOM
    arrays = tuple(RecordedArray.of(*x) for x in written.items()) if is_kept(case, num_elements) else ()
    fault = one_line(run.compare(written).fault)
    return RecordedCase(one_line(str(case)), content, num_elements, checksum(written), fault, arrays)


@dataclass(frozen=True)
class Recorder:
    """Launches the kernels of a library on the GPU.

    Args:
        gpu: the device.
        listed: the kernels.
        kernels: the library's, products first.
    """

    gpu: CudaGpu
    listed: KernelList
    kernels: KernelLibrary

    def run(self, place: int) -> RecordedKernel:
        """Run a kernel on its cases, up to the first that fails."""
        kernel = all_kernels(self.listed)[place]
        error, found = "", []
        try:
            if isinstance(kernel, ListedProduct):
                for case in product_cases(kernel.tuned):
                    run = RunProduct(self.gpu, self.kernels, kernel.tuned, place, case, NUM_GUARDS)
                    found.append(_recorded(run, case))
            else:
                for row_case in row_cases(kernel):
                    run_rows = RunRows(self.gpu, self.kernels, kernel, place, row_case, NUM_GUARDS)
                    found.append(_recorded(run_rows, row_case))
        except AotError as caught:
            error = one_line(str(caught))
        return RecordedKernel(kernel.key.name, error, tuple(found))


def all_kernels(listed: KernelList) -> tuple[ListedProduct | ListedRows, ...]:
    """Return the kernels of products, then those of operations on rows."""
    return (*listed.products, *listed.rows)


def _open(folder: Path, out: Path) -> tuple[Fixture, Recorder]:
    """Open the device and the library, and what was recorded so far.

    Raises:
        DeviceError: there is no GPU, or the file is of other kernels.
    """
    properties = read_properties()
    listed = read_kernels(folder / KERNELS_FILE)
    date = dt.datetime.now(dt.UTC).date().isoformat()
    fixture = Fixture(FIXTURE_VERSION, properties.name, properties.driver_version, date, listed, ())
    if out.exists():
        fixture = read_fixture(out)
        if fixture.listed != listed:
            raise DeviceError(f"{out} is of other kernels than {folder}; give another --out, or remove it")
    library = folder / LIBRARY_FILE
    kernels = KernelLibrary(library)
    names = [x.key.name for x in all_kernels(listed)]
    if list(kernels.names) != names:
        raise DeviceError(f"{library} has {len(kernels.names)} kernels, not those {len(names)} that are listed")
    return fixture, Recorder(CudaGpu(properties), listed, kernels)


def _again() -> None:
    """Start this program again in the place of this process, whose GPU context ends with it."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tests.device.fixtures", *sys.argv[1:]])


def _run_all(fixture: Fixture, recorder: Recorder, out: Path) -> Fixture:
    kernels = all_kernels(recorder.listed)
    for place in range(len(fixture.kernels), len(kernels)):
        start, name = time.perf_counter(), kernels[place].key.name
        lost = RecordedKernel(name, ENDED, ())
        write_document(out, replace(fixture, kernels=(*fixture.kernels, lost)))
        watch = threading.Timer(KERNEL_S, _again)
        watch.start()
        try:
            found = recorder.run(place)
        finally:
            watch.cancel()
        fixture = replace(fixture, kernels=(*fixture.kernels, found))
        write_document(out, fixture)
        state = found.error or "; ".join(x.fault for x in found.cases if x.fault) or "right"
        print(f"{place + 1}/{len(kernels)} {name}: {len(found.cases)} cases in ", end="")
        print(f"{time.perf_counter() - start:.2f} s: {state:.300}", flush=True)
        if recorder.gpu.is_lost():
            print("the context is lost: starting again", flush=True)
            _again()
    return fixture


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path, metavar="LIBRARY")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    asked = parser.parse_args()
    fixture = _run_all(*_open(asked.library, asked.out), asked.out)
    cases = [x for kernel in fixture.kernels for x in kernel.cases]
    errors = Counter(bool(x.error) for x in fixture.kernels)
    wrong = sum(bool(x.fault) for x in cases)
    print(
        f"{fixture.device}, {fixture.driver}: {len(fixture.kernels)} kernels, {errors[True]} with errors, "
        f"{len(cases)} cases, {wrong} wrong, {asked.out.stat().st_size:,} bytes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
