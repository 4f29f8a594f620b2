"""The copy of operands to rows that TMA takes, in front of a Hopper GEMM of their copies. Imports CUTLASS.

TMA asks for rows that begin at multiples of 16 bytes. The kernel here copies the operands that have others to a
workspace, as rows that have. The GEMM is launched behind it in the same call, and finds a copy's beginning, or that of
an operand that needs none.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Boolean, Constexpr, Int32, Int64, Uint16, Uint32, const_expr, cute, range_constexpr

from aot.core.operation import Operation
from aot.core.signature import Signature
from aot.families import Entry
from aot.families._arguments import epilogue_arguments
from aot.families._grid import along_x
from aot.families._skinny_epilogue_kernel import Vectors

ITEM_BYTES = 2
"""Bytes of an element of A and B."""

ALIGN = 8
"""Elements of 16 bytes, of which rows of a copy begin at multiples. Source: CUDA driver API, cuTensorMapEncodeTiled,
globalStrides."""

NUM_WARPS = 8
"""Warps of a CTA of the copy."""

NUM_PAIRS = 8
"""Pairs of elements that a thread copies: as many are under way at once."""

SEGMENT = 32 * 2 * NUM_PAIRS
"""Elements of a row that a warp copies."""


class Rows(NamedTuple):
    """An operand as it lies in memory: products of rows, contiguous along each row."""

    address: Int64
    num_products: Int32
    num_rows: Int32
    length: Int32
    """Elements of a row."""
    product_bytes: Int64
    row_bytes: Int64
    is_copied: Boolean
    """Whether its rows are none that TMA takes."""

    @property
    def copied_length(self) -> Any:
        """Count the elements from a row of the copy to the next."""
        return cute.ceil_div(self.length, ALIGN) * ALIGN

    @property
    def per_row(self) -> Any:
        """Count the segments of a row; of one without elements, one of none."""
        return cutlass.max(cute.ceil_div(self.length, SEGMENT), Int32(1))

    @property
    def num_blocks(self) -> Any:
        """Count the CTAs that copy them: each the same segment of as many rows as it has warps."""
        blocks = Int64(self.per_row) * cute.ceil_div(Int64(self.num_products) * self.num_rows, NUM_WARPS)
        return cutlass.select_(self.is_copied, blocks, Int64(0))


def rows_of(tensor: cute.Tensor, *, is_k_major: bool) -> Rows:
    """See an operand as rows; to be called while tracing.

    Args:
        tensor: (rows of D, k), of a batch with its products in front.
        is_k_major: whether it is contiguous along k.
    """
    is_batch = cute.rank(tensor) == 3
    across, along = (-2, -1) if is_k_major else (-1, -2)
    num_products = Int32(tensor.shape[0]) if is_batch else Int32(1)
    product_bytes = Int64(tensor.stride[0]) * ITEM_BYTES if is_batch else Int64(0)
    row_bytes = Int64(tensor.stride[across]) * ITEM_BYTES
    address: Any = tensor.iterator.toint()
    is_copied = ((address | product_bytes | row_bytes) & (ALIGN * ITEM_BYTES - 1)) != 0
    extents = Int32(tensor.shape[across]), Int32(tensor.shape[along])
    return Rows(address, num_products, *extents, product_bytes, row_bytes, is_copied)


def as_loaded(tensor: cute.Tensor, rows: Rows, copy: Any, *, is_k_major: bool) -> Any:
    """View an operand, or its copy at the address `copy` where there is one, as TMA takes it; while tracing."""
    row = cutlass.select_(rows.is_copied, Int64(rows.copied_length), rows.row_bytes // ITEM_BYTES)
    product = cutlass.select_(
        rows.is_copied, Int64(rows.copied_length) * rows.num_rows, rows.product_bytes // ITEM_BYTES
    )
    row, product = cute.assume(row, divby=ALIGN), cute.assume(product, divby=ALIGN)
    strides = (row, 1) if is_k_major else (1, row)
    if cute.rank(tensor) == 3:
        strides = (product, *strides)
    address = cutlass.select_(rows.is_copied, copy, rows.address)
    start = cute.make_ptr(tensor.element_type, address, cute.AddressSpace.gmem, assumed_align=ALIGN * ITEM_BYTES)
    return cute.make_tensor(start, cute.make_layout(tensor.shape, stride=strides))


@dataclass(frozen=True)
class Realign:
    """The copy of both operands of a product, or of a batch."""

    a_is_k_major: bool
    b_is_k_major: bool

    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, workspace: cute.Tensor, stream: cuda.CUstream
    ) -> tuple[cute.Tensor, cute.Tensor]:
        """Launch the copy, and return the operands as TMA takes them; to be called while tracing.

        A CTA of the copy that has nothing to do, as where no operand is copied, ends at once.
        """
        rows = rows_of(a, is_k_major=self.a_is_k_major), rows_of(b, is_k_major=self.b_is_k_major)
        first = workspace.iterator.toint()
        bytes_of_a = Int64(rows[0].copied_length) * rows[0].num_rows * rows[0].num_products * ITEM_BYTES
        copies = first, first + cutlass.select_(rows[0].is_copied, bytes_of_a, Int64(0))
        num_blocks = cutlass.max(rows[0].num_blocks + rows[1].num_blocks, Int64(1))
        self.kernel(rows, copies).launch(
            grid=along_x(num_blocks),
            block=(32 * NUM_WARPS, 1, 1),
            stream=stream,
            use_pdl=True,
        )
        return (
            as_loaded(a, rows[0], copies[0], is_k_major=self.a_is_k_major),
            as_loaded(b, rows[1], copies[1], is_k_major=self.b_is_k_major),
        )

    @cute.kernel
    def kernel(self, rows: Any, copies: Any) -> None:
        """Copy a segment of a row with each warp: of A with the first CTAs, then of B."""
        block, _, _ = cute.arch.block_idx()
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        blocks_of_a = Int32(rows[0].num_blocks)
        if block < blocks_of_a:
            self._copy_segment(rows[0], copies[0], Uint32(block))
        else:
            self._copy_segment(rows[1], copies[1], Uint32(block - blocks_of_a))

    @cute.jit
    def _copy_segment(self, rows: Rows, copy: Int64, block: Uint32) -> None:
        """Copy a warp's segment, if there is one: pairs of elements, of rows that begin at 4 bytes at once."""
        per_row = Uint32(rows.per_row)
        group = block // per_row
        segment = Int32(block - group * per_row)
        row = group * NUM_WARPS + Uint32(cute.arch.make_warp_uniform(cute.arch.warp_idx()))
        product = row // Uint32(rows.num_rows)
        if rows.is_copied & (product < Uint32(rows.num_products)):
            index = row - product * Uint32(rows.num_rows)
            begin = rows.address + Int64(product) * rows.product_bytes + Int64(index) * rows.row_bytes
            target = copy + Int64(row) * rows.copied_length * ITEM_BYTES
            first = segment * SEGMENT + 2 * cute.arch.lane_idx()
            words = cute.make_rmem_tensor(NUM_PAIRS, Uint32)
            if begin % 4 == 0:
                self._read(words, begin, first, rows.length, True)
            else:
                self._read(words, begin, first, rows.length, False)
            for i in range_constexpr(NUM_PAIRS):
                if first + 64 * i < rows.length:
                    self._view(target, first + 64 * i, Uint32)[0] = words[i]

    @cute.jit
    def _read(self, words: cute.Tensor, begin: Int64, first: Int32, length: Int32, by_words: Constexpr[bool]) -> None:
        """Read a thread's pairs; behind the row's last element is zero."""
        for i in range_constexpr(NUM_PAIRS):
            place = first + 64 * i
            low, high = Uint32(0), Uint32(0)
            if const_expr(by_words):
                if place + 1 < length:
                    low = Uint32(self._view(begin, place, Uint32)[0])
                elif place < length:
                    low = Uint32(self._view(begin, place, Uint16)[0]) & 0xFFFF
            else:
                if place < length:
                    low = Uint32(self._view(begin, place, Uint16)[0]) & 0xFFFF
                if place + 1 < length:
                    high = Uint32(self._view(begin, place + 1, Uint16)[0]) & 0xFFFF
            words[i] = low | high << 16

    def _view(self, address: Int64, place: Int32, element: Any) -> Any:
        """View one `element` at the `place`-th of the elements of 16 bits that begin at an address; while tracing."""
        pointer = cute.make_ptr(
            element, address + Int64(place) * ITEM_BYTES, cute.AddressSpace.gmem, assumed_align=element.width // 8
        )
        return cute.make_tensor(pointer, cute.make_layout(1))


def realigned_entry(gemm: Any, signature: Signature, operation: Operation, *, has_vectors: bool) -> Entry:
    """Make the entry of a configured GEMM of `sm90_cluster_split_k`, behind the copy.

    Args:
        gemm: what launches it while tracing: called with A, B, D, the bias or `Vectors`, that B is not constant, and
            the stream.
        signature: the entry's arguments.
        operation: element types, layout and epilogue.
        has_vectors: whether it takes `Vectors`.
    """
    realign = Realign(operation.a.is_k_major, operation.b.is_k_major)

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        _scale_a: None,
        _scale_b: None,
        bias: cute.Tensor | None,
        residual: cute.Tensor | None,
        _scale_d: None,
        workspace: cute.Tensor,
        _prefetch_b: None,
        _tile_order: None,
        stream: cuda.CUstream,
    ) -> None:
        loaded_a, loaded_b = realign(a, b, workspace, stream)
        vectors = Vectors(None, None, bias, residual, None, None) if const_expr(has_vectors) else bias
        gemm(loaded_a, loaded_b, d, vectors, Int32(0), stream)

    return Entry(entry, epilogue_arguments(signature, operation, stores=1, loads=ITEM_BYTES))
