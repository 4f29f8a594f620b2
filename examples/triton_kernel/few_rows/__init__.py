"""The family `few_rows`, whose kernels Triton compiles: an example of kernels that another compiler makes.

D = A @ B^T in bf16, a block for every 16 rows of D, both operands contiguous along k. `entry` has Triton compile a
kernel ahead of time to a cubin, on the build host, which needs no GPU, and says in C how it is launched. The cubin is
what a wheel has: neither Triton nor Python is needed where it runs.

Triton is imported by `entry` alone: commands that compile nothing ask for the space of a family too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from aot.core.candidate import Candidate, Reason, Rejected, Resources
from aot.core.constraints import Range
from aot.core.feature import Feature
from aot.core.knobs import GemmKnobs, Knobs
from aot.core.operation import Layout, Operation
from aot.core.target import Target
from aot.core.types import BF16
from aot.families import Binary, Defaults

ROWS = 16
"""Of D, that a block computes: those of an mma.sync."""
WARPS = 4

LAUNCHER = """\
static int32_t launch(const aot_matrix_t *a, const aot_matrix_t *b, const aot_matrix_t *d, aot_stream_t stream) {{
  int32_t m = a->shape[0], n = b->shape[0], k = a->shape[1];
  int64_t lda = a->strides[0], ldb = b->strides[0], ldd = d->strides[0];
  void *of_a = a->data, *of_b = b->data, *of_d = d->data;
  void *no_scratch = NULL;  // Triton passes the addresses of two more buffers, which this kernel does not have
  void *parameters[] = {{&of_a, &of_b, &of_d, &m, &n, &k, &lda, &ldb, &ldd, &no_scratch, &no_scratch}};
  const int64_t blocks = aot_ceil_div(m, {rows}) * aot_ceil_div(n, {columns});
  const aot_launch_t how = {{.grid = {{aot_blocks(blocks)}}, .stream = stream}};
  return aot_launch(&how, parameters);
}}
"""


@dataclass(frozen=True)
class FewRowsKnobs(Knobs):
    """What can be set of a kernel. A candidate's name is made of it: `few_rows_columns64_depth64_stages4`."""

    columns: Annotated[int, Range(32, 256)]
    """Of D, that a block computes."""
    depth: Annotated[int, Range(32, 256)]
    """Of A and B along k, that a step loads."""
    stages: Annotated[int, Range(2, 8)]
    """Steps whose loads are under way, and the one that is multiplied."""


class FewRows(Defaults):
    """The family."""

    name = "few_rows"
    knobs = FewRowsKnobs
    compilers = ("triton", "ziglang")
    needs = (Feature.CP_ASYNC, Feature.MMA_SYNC)
    types = (BF16,)
    layouts = (Layout.KK,)
    peak_share = 0.3
    """An assumption: mma.sync's rate, and a tile of 16 rows that reads B for them alone."""

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate the space."""
        del operation, target
        for columns in (32, 64, 128):
            for depth in (64, 128):
                for stages in (3, 4, 5):
                    yield Candidate(self.name, FewRowsKnobs(columns, depth, stages))

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Say what it cannot do: tiles that are no powers of two."""
        del operation, target
        knobs = FewRowsKnobs.of(candidate)
        if knobs.columns & knobs.columns - 1 or knobs.depth & knobs.depth - 1:
            text = f"Triton's tiles are powers of two, got {knobs.columns} columns and a depth of {knobs.depth}"
            return Rejected(Reason.COMBINATION, text)
        return None

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count what a block takes, as Triton lays it out: the tiles that are under way, in 2 bytes an element.

        The compile stage compares it with what Triton then asks for.
        """
        del operation, target
        knobs = FewRowsKnobs.of(candidate)
        stage_bytes, under_way = 2 * (ROWS + knobs.columns) * knobs.depth, knobs.stages - 1
        return Resources(under_way * stage_bytes, stage_bytes, 32 * WARPS, under_way)

    def tiling(self, candidate: Candidate) -> GemmKnobs:
        """Describe a block's part of D to the cost model, in the words that it knows."""
        return GemmKnobs(ROWS, FewRowsKnobs.of(candidate).columns, use_tma_store=False)

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Binary:
        """Compile the kernel."""
        del operation
        knobs = FewRowsKnobs.of(candidate)
        compiled = _compile(knobs, target)
        return Binary(
            image=compiled.asm["cubin"],
            symbol=compiled.metadata.name,
            launcher=LAUNCHER.format(rows=ROWS, columns=knobs.columns),
            num_threads=32 * compiled.metadata.num_warps,
            smem_bytes=compiled.metadata.shared,
            ptx=compiled.asm["ptx"],
        )


def _compile(knobs: FewRowsKnobs, target: Target) -> Any:
    """Have Triton compile the kernel, by the compiler beneath its JIT, which takes an architecture and no device."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    @triton.jit
    def product(
        a: tl.tensor, b: tl.tensor, d: tl.tensor,
        m: tl.tensor, n: tl.tensor, k: tl.tensor, lda: tl.tensor, ldb: tl.tensor, ldd: tl.tensor,
        rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr,
    ) -> None:  # fmt: skip
        blocks = tl.cdiv(n, columns)
        row = (tl.program_id(0) // blocks).to(tl.int64) * rows + tl.arange(0, rows)
        column = (tl.program_id(0) % blocks).to(tl.int64) * columns + tl.arange(0, columns)
        along_k = tl.arange(0, depth)
        of_a = a + row[:, None] * lda + along_k[None, :]
        of_b = b + column[None, :] * ldb + along_k[:, None]
        is_row, is_column = row[:, None] < m, column[None, :] < n
        sums = tl.zeros((rows, columns), tl.float32)
        for _ in range(k // depth):
            sums = tl.dot(tl.load(of_a, is_row, 0.0), tl.load(of_b, is_column, 0.0), sums)
            of_a += depth
            of_b += depth
        left = k % depth
        if left > 0:
            last_a = tl.load(of_a, is_row & (along_k[None, :] < left), 0.0)
            last_b = tl.load(of_b, is_column & (along_k[:, None] < left), 0.0)
            sums = tl.dot(last_a, last_b, sums)
        tl.store(d + row[:, None] * ldd + column[None, :], sums.to(tl.bfloat16), is_row & is_column)

    tiles = {"rows": ROWS, "columns": knobs.columns, "depth": knobs.depth}
    types = dict.fromkeys("abd", "*bf16") | dict.fromkeys("mnk", "i32") | dict.fromkeys(("lda", "ldb", "ldd"), "i64")
    # Addresses are multiples of 16 bytes, and leading strides of as many elements: `Alignment()` of `Defaults`.
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(3)} | {(i,): [["tt.divisibility", 8]] for i in (6, 7, 8)}
    source = ASTSource(product, types | dict.fromkeys(tiles, "constexpr"), tiles, aligned)
    major, minor = target.compute_capability
    options = {"num_warps": WARPS, "num_stages": knobs.stages}
    with TemporaryDirectory() as cache, triton.knobs.cache.scope(), triton.knobs.compilation.scope():
        triton.knobs.cache.dir = cache
        triton.knobs.compilation.disable_line_info = True  # lines have paths, by which equal kernels would differ
        return triton.compile(source, GPUTarget("cuda", 10 * major + minor, 32), options)


FAMILY = FewRows()
