"""The family `column_warps`, whose kernels are CUDA C++ that nvcc compiles: an example of a kernel that exists already.

D = A @ B^T in bf16, a warp for every column of a few rows of D, both operands contiguous along k. The kernel is in
`product.cu`, and would be the same in a program that nvcc builds whole. `entry` has nvcc make a cubin and its PTX on
the build host, which needs no GPU but a C++ compiler that nvcc knows, and says in C how the kernel is launched.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from aot.core.candidate import Candidate, Resources
from aot.core.constraints import Range
from aot.core.errors import CompileError
from aot.core.knobs import GemmKnobs, Knobs
from aot.core.operation import Layout, Operation
from aot.core.target import Target
from aot.core.types import BF16
from aot.families import Binary, Defaults

NVCC = "nvidia-cuda-nvcc"
LANES = 32
LOAD_BYTES = 16
"""What a lane loads at once, of B and of each row of A."""
SOURCE = Path(__file__).with_name("product.cu")

LAUNCHER = """\
static int32_t launch(const aot_matrix_t *a, const aot_matrix_t *b, const aot_matrix_t *d, aot_stream_t stream) {{
  int32_t m = a->shape[0], n = b->shape[0], k = a->shape[1];
  int64_t lda = a->strides[0], ldb = b->strides[0], ldd = d->strides[0];
  void *of_a = a->data, *of_b = b->data, *of_d = d->data;
  void *parameters[] = {{&of_a, &of_b, &of_d, &m, &n, &k, &lda, &ldb, &ldd}};
  const int64_t blocks = aot_ceil_div(n, {warps}) * aot_ceil_div(m, {rows});
  const aot_launch_t how = {{.grid = {{aot_blocks(blocks)}}, .stream = stream}};
  return aot_launch(&how, parameters);
}}
"""


@dataclass(frozen=True)
class ColumnWarpsKnobs(Knobs):
    """What can be set of a kernel. A candidate's name is made of it: `column_warps_rows4_warps4`."""

    rows: Annotated[int, Range(1, 16)]
    """Of D, that a block computes."""
    warps: Annotated[int, Range(1, 16)]
    """Of a block, each for a column of D."""


class ColumnWarps(Defaults):
    """The family."""

    name = "column_warps"
    knobs = ColumnWarpsKnobs
    compilers = (NVCC, "ziglang")
    types = (BF16,)
    layouts = (Layout.KK,)
    peak_share = 0.02
    """An assumption: it multiplies by FMAs, and reads A again for every column."""

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate the space."""
        del operation, target
        for rows in (1, 2, 4, 8):
            for warps in (2, 4, 8):
                yield Candidate(self.name, ColumnWarpsKnobs(rows, warps))

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count what a block takes: no shared memory. A stage is what is under way at once, for the cost model."""
        del operation, target
        knobs = ColumnWarpsKnobs.of(candidate)
        return Resources(0, LOAD_BYTES * LANES * knobs.warps * (1 + knobs.rows), LANES * knobs.warps, 1)

    def tiling(self, candidate: Candidate) -> GemmKnobs:
        """Describe a block's part of D to the cost model, in the words that it knows."""
        knobs = ColumnWarpsKnobs.of(candidate)
        return GemmKnobs(knobs.rows, knobs.warps, use_tma_store=False)

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Binary:
        """Compile the kernel."""
        del operation
        knobs = ColumnWarpsKnobs.of(candidate)
        image, ptx = _compile(knobs, target)
        return Binary(
            image=image,
            symbol=self.name,
            launcher=LAUNCHER.format(rows=knobs.rows, warps=knobs.warps),
            num_threads=LANES * knobs.warps,
            ptx=ptx.decode(),
        )


@cache
def _nvcc() -> Path:
    """Find the nvcc of the distribution on whose version the kernels depend, not whichever one is first in PATH."""
    try:
        found = [x for x in files(NVCC) or () if x.name == "nvcc"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise CompileError(f"column_warps: {NVCC} is not installed here; pip install '{NVCC}>=13.0.88,<14'")
    return Path(str(found[0].locate()))


def _compile(knobs: ColumnWarpsKnobs, target: Target) -> tuple[bytes, bytes]:
    """Have nvcc compile the kernel for an architecture; return the cubin and the PTX that it was assembled from."""
    with TemporaryDirectory() as folder:
        image = Path(folder) / "product.cubin"
        words = [_nvcc(), f"-arch={target.arch}", "-std=c++17", f"-DROWS={knobs.rows}", f"-DWARPS={knobs.warps}"]
        done = subprocess.run(
            [*words, "-cubin", "--keep", f"--keep-dir={folder}", "-o", image, SOURCE],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise CompileError(f"column_warps: nvcc ended with {done.returncode}: {done.stderr[-2000:].strip()}")
        (ptx,) = Path(folder).glob("*.ptx")
        return image.read_bytes(), ptx.read_bytes()


FAMILY = ColumnWarps()
