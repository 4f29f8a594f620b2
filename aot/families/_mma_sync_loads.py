"""How the CTAs of `mma_sync` bring a part of an operand to shared memory, and read it as matrices. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Constexpr, Int32, Int64, Uint32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import warp
from cutlass.experimental import primitives as prims

from aot.families._mma_sync_tile import ITEM_BYTES, PAD

SEGMENT = 8
"""Rows of a matrix that `ldmatrix` reads, and elements of each. Source: PTX ISA, ldmatrix."""

SEGMENT_BYTES = SEGMENT * ITEM_BYTES


@dataclass(frozen=True)
class Side:
    """An operand's part in a CTA's tile: `extent` of its rows by a block of k."""

    extent: int
    block_k: int
    is_k_major: bool
    loads: int
    num_threads: int

    @property
    def row_length(self) -> int:
        """Elements that are neighbours in memory: along k, or along the operand's rows."""
        return self.block_k if self.is_k_major else self.extent

    @property
    def piece(self) -> int:
        """Elements of a copy."""
        return self.loads // ITEM_BYTES

    @property
    def num_pieces(self) -> int:
        """Copies of the whole part."""
        return self.extent * self.block_k // self.piece

    @property
    def num_turns(self) -> int:
        """Copies of a thread, at most."""
        return -(-self.num_pieces // self.num_threads)

    @property
    def layout(self) -> Any:
        """Lay (row, k) out in shared memory."""
        stride = (self.row_length + PAD, 1) if self.is_k_major else (1, self.row_length + PAD)
        return cute.make_layout((self.extent, self.block_k), stride=stride)

    @cute.jit
    def place(self, thread: Int32, turn: Constexpr[int]) -> Any:
        """Return (row, k, whether there is one) of a thread's piece, whose first element is meant."""
        index = thread + turn * self.num_threads
        inner = index % (self.row_length // self.piece) * self.piece
        outer = index // (self.row_length // self.piece)
        row, k = (outer, inner) if const_expr(self.is_k_major) else (inner, outer)
        return row, k, index < self.num_pieces

    @cute.jit
    def num_left(self, source: cute.Tensor, first_row: Int32, first_k: Int32, row: Int32, k: Int32) -> Int32:
        """Count the elements of a piece that lie inside the operand, from (first_row + row, first_k + k) on."""
        rows, depth = cute.size(source, mode=[0]) - first_row - row, cute.size(source, mode=[1]) - first_k - k
        along, across = (depth, rows) if const_expr(self.is_k_major) else (rows, depth)
        left = cutlass.max(cutlass.min(Int32(along), Int32(self.piece)), Int32(0))
        return Int32(cutlass.select_(across > 0, left, Int32(0)))

    @cute.jit
    def copy(self, source: cute.Tensor, stage: cute.Tensor, first_row: Int32, first_k: Int32, thread: Int32) -> None:
        """Copy the part asynchronously, in pieces of 4 bytes or more."""
        for turn in range_constexpr(self.num_turns):
            row, k, is_there = self.place(thread, turn)
            if is_there:
                left = self.num_left(source, first_row, first_k, row, k)
                offset = cute.crd2idx((first_row + row, first_k + k), source.layout)
                address = source.iterator + cutlass.select_(left > 0, Int64(offset), Int64(0))
                target = stage.iterator + cute.crd2idx((row, k), stage.layout)
                modifier = prims.LoadCacheModifier.CG if self.loads == 16 else prims.LoadCacheModifier.CA
                prims.cp_async_shared_global(
                    target.to_llvm_ptr(), address.to_llvm_ptr(), self.loads, modifier, cp_size=left * ITEM_BYTES
                )

    @property
    def is_shifted(self) -> bool:
        """Whether rows may begin at any element, so that they are copied from an aligned address in front of them."""
        return self.loads == ITEM_BYTES

    @property
    def num_windows(self) -> int:
        """Copies of 16 bytes of the whole part where rows are shifted: each row has one more than it has pieces."""
        return self.extent * self.block_k // SEGMENT // self.per_row * (self.per_row + 1)

    @property
    def per_row(self) -> int:
        """Pieces of 16 bytes of a row."""
        return self.row_length // SEGMENT

    @cute.jit
    def row_address(self, source: cute.Tensor, first_row: Int32, first_k: Int32, outer: Int32) -> Any:
        """Return the address of a row of the part, as it lies in memory, in bytes."""
        row, k = (outer, Int32(0)) if const_expr(self.is_k_major) else (Int32(0), outer)
        return (source.iterator + cute.crd2idx((first_row + row, first_k + k), source.layout)).toint()

    @cute.jit
    def copy_shifted(
        self, source: cute.Tensor, stage: cute.Tensor, first_row: Int32, first_k: Int32, thread: Int32
    ) -> None:
        """Copy the part asynchronously in pieces of 16 bytes, each row from the aligned address in front of it on.

        What lies in front of a row in its first piece is of the row before; `aligned` leaves it out. In front of the
        operand's first element nothing is read: there the elements of a piece are loaded one by one.
        """
        start = source.iterator.toint()
        for turn in range_constexpr(-(-self.num_windows // self.num_threads)):
            index = thread + turn * self.num_threads
            inner, outer = index % (self.per_row + 1), index // (self.per_row + 1)
            row, k = (outer, Int32(0)) if const_expr(self.is_k_major) else (Int32(0), outer)
            rows, depth = cute.size(source, mode=[0]) - first_row, cute.size(source, mode=[1]) - first_k
            along, across = (depth, rows - row) if const_expr(self.is_k_major) else (rows, depth - k)
            begin = self.row_address(source, first_row, first_k, outer)
            address = begin - begin % SEGMENT_BYTES + inner * SEGMENT_BYTES
            left = cutlass.min(begin + Int64(along) * ITEM_BYTES - address, Int64(SEGMENT_BYTES))
            is_inside = (along > 0) & (across > 0) & (left > 0)
            num_bytes = Int32(cutlass.select_(is_inside, left, Int64(0)))
            offset = outer * (self.row_length + PAD) + inner * SEGMENT
            if index < self.num_windows:
                target = stage.iterator + offset
                if address >= start:
                    piece = cute.make_ptr(source.element_type, address, cute.AddressSpace.gmem, assumed_align=16)
                    prims.cp_async_shared_global(
                        target.to_llvm_ptr(), piece.to_llvm_ptr(), 16, prims.LoadCacheModifier.CG, cp_size=num_bytes
                    )
                else:
                    self._copy_front(source, target, address, num_bytes)

    @cute.jit
    def _copy_front(self, source: cute.Tensor, target: Any, address: Int64, num_bytes: Int32) -> None:
        """Copy the piece in which an operand begins, of which `num_bytes` lie in front of the end of its row."""
        start = source.iterator.toint()
        values = cute.make_tensor(target, cute.make_layout(SEGMENT))
        for e in range_constexpr(SEGMENT):
            place = address + e * ITEM_BYTES
            value = source.element_type(0)
            if place >= start and e * ITEM_BYTES < num_bytes:
                one = cute.make_ptr(source.element_type, place, cute.AddressSpace.gmem, assumed_align=ITEM_BYTES)
                value = cute.make_tensor(one, cute.make_layout(1))[0]
            values[e] = value

    @cute.jit
    def aligned(self, source: cute.Tensor, stage: cute.Tensor, first_row: Int32, first_k: Int32, thread: Int32) -> Any:
        """Read a thread's pieces of a shifted part, moved to where its rows begin, as 32-bit words (4, turns)."""
        words = cute.make_rmem_tensor((4, self.num_pieces_of_16 // self.num_threads + 1), Uint32)
        for turn in range_constexpr(-(-self.num_pieces_of_16 // self.num_threads)):
            index = thread + turn * self.num_threads
            if index < self.num_pieces_of_16:
                inner, outer = index % self.per_row, index // self.per_row
                two = cute.make_rmem_tensor((4, 2), Uint32)
                for half in range_constexpr(2):
                    offset = outer * (self.row_length + PAD) + (inner + half) * SEGMENT
                    cute.autovec_copy(_words(stage, offset), two[None, half])
                begin = self.row_address(source, first_row, first_k, outer)
                shift = Int32(begin % SEGMENT_BYTES) // ITEM_BYTES
                found = _shifted([two[i % 4, i // 4] for i in range(8)], shift)
                for i in range_constexpr(4):
                    words[i, turn] = found[i]
        return words

    @property
    def num_pieces_of_16(self) -> int:
        """Pieces of 16 bytes of the whole part."""
        return self.extent * self.block_k // SEGMENT

    @cute.jit
    def write(self, words: cute.Tensor, stage: cute.Tensor, thread: Int32) -> None:
        """Write a thread's pieces to where they belong, once all threads have read theirs."""
        for turn in range_constexpr(-(-self.num_pieces_of_16 // self.num_threads)):
            index = thread + turn * self.num_threads
            if index < self.num_pieces_of_16:
                inner, outer = index % self.per_row, index // self.per_row
                offset = outer * (self.row_length + PAD) + inner * SEGMENT
                cute.autovec_copy(words[None, turn], _words(stage, offset))

    @cute.jit
    def matrices(self, stage: cute.Tensor, row: Int32, k: Int32, rows_first: Constexpr[bool]) -> Any:
        """Read 16 rows by 16 of k as four matrices of 8 by 8, two elements of each a lane.

        Args:
            stage: the part in shared memory.
            row: the first row.
            k: the first of k.
            rows_first: whether the second matrix has the next rows, as `mma` has A, or the next of k, as it has B.
        """
        lane = cute.arch.lane_idx()
        second, third = lane // SEGMENT % 2 * SEGMENT, lane // (2 * SEGMENT) * SEGMENT
        of_rows, of_k = (second, third) if const_expr(rows_first) else (third, second)
        line = lane % SEGMENT
        if const_expr(self.is_k_major):
            of_rows += line
        else:
            of_k += line
        operation = warp.LdMatrix8x8x16bOp(transpose=not self.is_k_major, num_matrices=4)
        address = stage.iterator + cute.assume(cute.crd2idx((row + of_rows, k + of_k), stage.layout), divby=SEGMENT)
        found = cute.make_rmem_tensor(4 * 2, stage.element_type)
        cute.copy(
            cute.make_copy_atom(operation, stage.element_type),
            cute.make_tensor(address.align(SEGMENT * ITEM_BYTES), cute.make_layout(4 * 2)),
            found,
        )
        return found


def _words(stage: cute.Tensor, offset: Int32) -> Any:
    """View 16 bytes of a stage as four 32-bit words."""
    start = stage.iterator + cute.assume(offset, divby=SEGMENT)
    pointer = cute.recast_ptr(start.align(SEGMENT_BYTES), dtype=Uint32)
    return cute.make_tensor(pointer, cute.make_layout(4))


def _shifted(words: list[Any], shift: Int32) -> list[Any]:
    """Take the 8 elements from the `shift`-th on, of 0 to 7, out of 16 in 8 words."""
    for step in (2, 1):  # words
        is_far = shift // 2 // step % 2 == 1
        words = [
            cutlass.select_(is_far, words[i + step], words[i]) if i + step < len(words) else words[i]
            for i in range(len(words))
        ]
    is_odd = shift % 2 == 1
    return [cutlass.select_(is_odd, (words[i] >> 16 & 0xFFFF) | words[i + 1] << 16, words[i]) for i in range(4)]
