"""Compile the kernels of `fixture_kernels` and link them into the library that `fixtures` launches on a GPU.

Needs the toolchain and no GPU: python -m tests.device.fixture_library FOLDER [--jobs N]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aot.compile.compiler import Processes
from aot.compile.tuned import tuned_kernel
from aot.compile.workplace import Workplace, compile_all, compile_shipped
from aot.core.candidate import KernelKey
from aot.core.scratch import scratch_folder
from aot.core.target import load_target
from aot.emulate.build import emulated_library
from aot.package.build import build_library
from aot.space.widths import shared
from tests.device.fixture_file import (
    FIXTURE_VERSION,
    KERNELS_FILE,
    LIBRARY_FILE,
    KernelList,
    ListedProduct,
    ListedRows,
    write_document,
)
from tests.device.fixture_kernels import product_keys, row_keys

if TYPE_CHECKING:
    from aot.compile.artifact import Artifact
    from aot.core.kernel import Kernel
    from aot.kinds.rows.kernel import RowKernel

TARGET = "h200"


def _listed(artifact: Artifact[Kernel], widest: KernelKey | None) -> ListedProduct:
    kernel, tuned = artifact.kernel, tuned_kernel(artifact.kernel)
    return ListedProduct(
        kernel.operation,
        kernel.candidate,
        kernel.ptx_sha256,
        kernel.m_multiple,
        kernel.n_multiple,
        tuned.is_fallback,
        kernel.orders_tiles,
        widest and widest.candidate,
        kernel.num_narrower,
    )


def _listed_rows(artifact: Artifact[RowKernel]) -> ListedRows:
    kernel = artifact.kernel
    return ListedRows(kernel.operation, kernel.candidate, kernel.ptx_sha256, kernel.limits)


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    target, workplace = load_target(TARGET), Workplace(compilers=Processes(asked.jobs))
    keys = product_keys(target)
    of_wide = shared(keys, target)
    rows, lost_rows = compile_all(row_keys(target), target, workplace)
    products, lost = compile_shipped(keys, target, workplace)
    objects = {x.kernel.name: x.path for x in (*products, *rows)}
    asked.folder.mkdir(parents=True, exist_ok=True)
    with scratch_folder("aot-fixtures-") as scratch:
        library = emulated_library(products, rows, target)
        path = build_library(library, objects, scratch, target)
        (asked.folder / LIBRARY_FILE).write_bytes(path.read_bytes())
    listed = KernelList(
        FIXTURE_VERSION,
        tuple(_listed(x, of_wide.get(x.kernel.key, (None,))[0]) for x in products),
        tuple(map(_listed_rows, rows)),
    )
    write_document(asked.folder / KERNELS_FILE, listed)
    for failure in (*lost, *lost_rows):
        print(f"{failure.name} does not compile: {failure.reason}")
    print(f"{len(products)} kernels of products and {len(rows)} of operations on rows are in {asked.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
