"""What a kernel's launch must be, derived from its candidate and the problem alone: no code of `aot` or of CuTe DSL.

A kernel sees a product of its own: with `swap_ab` the transpose of the problem's, so that its M runs along n. Its M, N
and K and its operands X (M, K), Y (N, K) and Z (M, N) are written large here; the problem's m, n, k, a, b and d small.
`families/` holds how each family launches, in a module of the family's name.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from importlib import import_module
from math import ceil

from tests.equivalence.descriptor import TensorMap

ELEMENT_BYTES = 2
STEP = 8
"""Elements in 16 bytes."""
SWIZZLES = {64: 3, 32: 2, 16: 1}
"""Elements in a swizzled row of shared memory, and the swizzle of that width: 128, 64 and 32 bytes. Source: PTX ISA."""
L2_128_BYTES = 2
LARGE_BYTES = 128 * 1024
"""From here on a descriptor has its bit 21: see `descriptor`."""
COOPERATIVE, CLUSTER, PROGRAMMATIC = 2, 4, 6  # cudaLaunchAttributeID


@dataclass(frozen=True)
class Expected:
    """A launch, its shared memory apart, with descriptors decoded."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    stream: int
    attributes: dict[int, tuple[int, ...]]
    parameters: tuple[TensorMap | bytes, ...]


@dataclass(frozen=True)
class Matrix:
    """An operand as the kernel sees it: (rows, columns), one of the two contiguous."""

    address: int
    rows: int
    columns: int
    leading: int
    row_major: bool

    @property
    def transposed(self):
        return Matrix(self.address, self.columns, self.rows, self.leading, not self.row_major)

    @property
    def num_bytes(self):
        """Give the bytes from the first element to the last."""
        outer, inner = (self.rows, self.columns) if self.row_major else (self.columns, self.rows)
        return ((outer - 1) * self.leading + inner) * ELEMENT_BYTES

    @property
    def shape(self):
        return struct.pack("<2i", self.rows, self.columns)

    def tensor_map(self, dtype, box):
        """Describe the matrix for boxes of (contiguous, other) elements."""
        return TensorMap(
            dtype=dtype,
            address=self.address,
            extents=(self.columns, self.rows) if self.row_major else (self.rows, self.columns),
            strides=(self.leading * ELEMENT_BYTES,),
            box=box,
            element_strides=(1, 1),
            interleave=0,
            swizzle=SWIZZLES[box[0]],
            l2_promotion=L2_128_BYTES,
            nan_fill=False,
            bit_1=True,
            bit_21=self.num_bytes >= LARGE_BYTES,
        )


@dataclass(frozen=True)
class Product:
    """What the kernel computes: Z = X Y^T."""

    dtype: str
    x: Matrix
    y: Matrix
    z: Matrix


def _matrix(operand, rows, columns, row_major):
    outer, inner = (rows, columns) if row_major else (columns, rows)
    stated = operand.strides[0 if row_major else 1]
    # The stride of a single run is never used: the runtime passes what the run's own length would be, aligned.
    return Matrix(operand.address, rows, columns, stated if outer > 1 else ceil(inner / STEP) * STEP, row_major)


def product_of(kernel, case):
    """Undo what the caller may have done, a column-major D, and do what the kernel does, the swap."""
    if case.n > 1 and case.d.strides[1] != 1:
        case = case.exchanged
    layout = kernel.operation.layout
    a = _matrix(case.a, case.m, case.k, layout.a_k_major)
    b = _matrix(case.b, case.n, case.k, layout.b_k_major)
    d = _matrix(case.d, case.m, case.n, row_major=True)
    operands = (b, a, d.transposed) if kernel.candidate.gemm.swap_ab else (a, b, d)
    return Product(kernel.operation.element.value, *operands)


def ints(*values):
    """Give 32-bit parameters."""
    return tuple(struct.pack("<I", x) for x in values)


def attributes(*, cluster=None, programmatic=0):
    """Give the launch attributes: no cooperative grid, and clusters where the kernel has them."""
    found = {COOPERATIVE: (0,), PROGRAMMATIC: (programmatic,)}
    return found if cluster is None else {**found, CLUSTER: (*cluster, 1)}


def expected(kernel, case, num_sms):
    """Derive the launch of a kernel for a problem.

    Args:
        kernel: the manifest's entry; of it, candidate and operation.
        case: the problem as the C API was given it.
        num_sms: multiprocessors that the kernel was compiled for: a static schedule's grid has that many CTAs.
    """
    return import_module(f"tests.equivalence.families.{kernel.candidate.family}").launch(kernel, case, num_sms)
