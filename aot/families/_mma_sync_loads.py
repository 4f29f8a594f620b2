"""How the CTAs of `mma_sync` bring a part of an operand to shared memory, and read it as matrices. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import Constexpr, Int32, Int64, Uint32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import warp
from cutlass.experimental import primitives as prims

from aot.families._mma_sync_tile import ITEM_BYTES, PAD

SEGMENT = 8
"""Rows of a matrix that `ldmatrix` reads, and elements of each. Source: PTX ISA, ldmatrix."""

SEGMENT_BYTES = SEGMENT * ITEM_BYTES


class Cursor(NamedTuple):
    """Where a thread's pieces of an operand's part lie, which is worked out once; tensors of one mode, the turns."""

    addresses: Any
    """Int64, of the first block of k, in bytes."""
    ends: Any
    """Int64, behind the last element of the rows, in bytes: of the first block where rows lie along m or n."""
    offsets: Any
    """Int32, in a stage, in elements."""
    steps: Any
    """Int32, of k in a block; None where a row has all of a block's."""
    shifts: Any
    """Int32, elements from an aligned address to the row's first, of the pieces that `Side.aligned` moves; or None."""


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
    def num_rows(self) -> int:
        """Rows, as they lie in memory."""
        return self.extent if self.is_k_major else self.block_k

    @property
    def is_shifted(self) -> bool:
        """Whether rows may begin at any element, so that they are copied from an aligned address in front of them."""
        return self.loads == ITEM_BYTES

    @property
    def piece_bytes(self) -> int:
        """Bytes of a copy."""
        return SEGMENT_BYTES if self.is_shifted else self.loads

    @property
    def per_row(self) -> int:
        """Copies of a row: one more than it has pieces where it may begin inside of one."""
        return self.row_length * ITEM_BYTES // self.piece_bytes + (1 if self.is_shifted else 0)

    @property
    def num_pieces(self) -> int:
        """Copies of the whole part."""
        return self.num_rows * self.per_row

    @property
    def num_segments(self) -> int:
        """Pieces of 16 bytes that a shifted part is moved by."""
        return self.extent * self.block_k // SEGMENT

    @property
    def layout(self) -> Any:
        """Lay (row, k) out in shared memory."""
        stride = (self.row_length + PAD, 1) if self.is_k_major else (1, self.row_length + PAD)
        return cute.make_layout((self.extent, self.block_k), stride=stride)

    def num_turns(self, count: int) -> int:
        """Return how many of so many pieces a thread has at most."""
        return -(-count // self.num_threads)

    @cute.jit
    def row_address(self, source: cute.Tensor, first_row: Int32, outer: Int32) -> Any:
        """Return the address of a row of the first block, as it lies in memory, in bytes."""
        row, k = (outer, Int32(0)) if const_expr(self.is_k_major) else (Int32(0), outer)
        return (source.iterator + cute.crd2idx((first_row + row, k), source.layout)).toint()

    @cute.jit
    def start(self, source: cute.Tensor, first_row: Int32, thread: Int32) -> Any:
        """Work out where a thread's pieces lie."""
        turns = self.num_turns(self.num_pieces)
        addresses, ends = cute.make_rmem_tensor(turns, Int64), cute.make_rmem_tensor(turns, Int64)
        offsets, steps = cute.make_rmem_tensor(turns, Int32), cute.make_rmem_tensor(turns, Int32)
        rows, depth = cute.size(source, mode=[0]) - first_row, cute.size(source, mode=[1])
        for turn in range_constexpr(turns):
            index = thread + turn * self.num_threads
            inner, outer = index % self.per_row, index // self.per_row
            begin = self.row_address(source, first_row, outer)
            address = begin - begin % self.piece_bytes if const_expr(self.is_shifted) else begin
            length = depth if const_expr(self.is_k_major) else rows
            if const_expr(self.is_k_major):
                length = cutlass.select_(outer < rows, length, 0)
            length = cutlass.max(Int32(length), Int32(0))
            addresses[turn] = address + inner * self.piece_bytes
            # A row that is not there ends where its first piece begins, so that no byte of it is read.
            ends[turn] = cutlass.select_(length > 0, begin + Int64(length) * ITEM_BYTES, address)
            offsets[turn] = outer * (self.row_length + PAD) + inner * (self.piece_bytes // ITEM_BYTES)
            steps[turn] = outer
        shifts = None
        if const_expr(self.is_shifted):
            shifts = cute.make_rmem_tensor(self.num_turns(self.num_segments), Int32)
            for turn in range_constexpr(self.num_turns(self.num_segments)):
                outer = (thread + turn * self.num_threads) // (self.row_length // SEGMENT)
                shifts[turn] = Int32(self.row_address(source, first_row, outer) % SEGMENT_BYTES) // ITEM_BYTES
        return Cursor(addresses, ends, offsets, None if const_expr(self.is_k_major) else steps, shifts)

    @cute.jit
    def copy(self, cursor: Cursor, source: cute.Tensor, stage: cute.Tensor, block: Int32, thread: Int32) -> None:
        """Copy a block of k asynchronously: the bytes of each piece that the operand has, and zeros behind them.

        Where rows are shifted, what lies in front of one in its first piece is of the row before; `aligned` leaves it
        out. In front of the operand's first element nothing is read: such a piece is loaded element by element.
        """
        start = source.iterator.toint()
        stride = 1 if const_expr(self.is_k_major) else source.stride[1]
        far = Int64(block) * (Int64(stride) * (self.block_k * ITEM_BYTES))
        for turn in range_constexpr(self.num_turns(self.num_pieces)):
            address, end = cursor.addresses[turn] + far, cursor.ends[turn]
            if const_expr(cursor.steps is not None):
                is_there = cursor.steps[turn] + block * self.block_k < cute.size(source, mode=[1])
                end = cutlass.select_(is_there, end + far, address)
            left = cutlass.max(cutlass.min(end - address, Int64(self.piece_bytes)), Int64(0))
            if thread + turn * self.num_threads < self.num_pieces:
                target = stage.iterator + cute.assume(cursor.offsets[turn], divby=self.piece_bytes // ITEM_BYTES)
                if const_expr(self.is_shifted):
                    if address >= start:
                        self._copy_piece(source, target, address, Int32(left))
                    else:
                        self._copy_front(source, target, address, Int32(left))
                else:
                    self._copy_piece(source, target, cutlass.select_(left > 0, address, start), Int32(left))

    def _copy_piece(self, source: cute.Tensor, target: Any, address: Any, num_bytes: Int32) -> None:
        """Copy a piece asynchronously, whose first `num_bytes` bytes are there; to be called while tracing."""
        size = self.piece_bytes
        piece = cute.make_ptr(source.element_type, address, cute.AddressSpace.gmem, assumed_align=size)
        modifier = prims.LoadCacheModifier.CG if size == SEGMENT_BYTES else prims.LoadCacheModifier.CA
        prims.cp_async_shared_global(target.to_llvm_ptr(), piece.to_llvm_ptr(), size, modifier, cp_size=num_bytes)

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
    def aligned(self, cursor: Cursor, stage: cute.Tensor, thread: Int32) -> Any:
        """Read a thread's segments of a shifted part, moved to where its rows begin, as 32-bit words (4, turns)."""
        turns = self.num_turns(self.num_segments)
        words = cute.make_rmem_tensor((4, turns), Uint32)
        for turn in range_constexpr(turns):
            index = thread + turn * self.num_threads
            if index < self.num_segments:
                two = cute.make_rmem_tensor((4, 2), Uint32)
                for half in range_constexpr(2):
                    cute.autovec_copy(_words(stage, self._segment(index) + half * SEGMENT), two[None, half])
                found = _shifted([two[i % 4, i // 4] for i in range(8)], cursor.shifts[turn])
                for i in range_constexpr(4):
                    words[i, turn] = found[i]
        return words

    def _segment(self, index: Int32) -> Any:
        """Return where a segment belongs in a stage, in elements."""
        per_row = self.row_length // SEGMENT
        return index // per_row * (self.row_length + PAD) + index % per_row * SEGMENT

    @cute.jit
    def write(self, words: cute.Tensor, stage: cute.Tensor, thread: Int32) -> None:
        """Write a thread's segments to where they belong, once all threads have read theirs."""
        for turn in range_constexpr(self.num_turns(self.num_segments)):
            index = thread + turn * self.num_threads
            if index < self.num_segments:
                cute.autovec_copy(words[None, turn], _words(stage, self._segment(index)))

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
