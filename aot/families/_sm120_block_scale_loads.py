"""How the CTAs of `sm120_block_scale` bring a part of an operand and its factors, and read them. Imports CUTLASS.

Rows lie in shared memory in units of 16 bytes, each at the place that the three bits above those of a unit in 128 bytes
exchange it to: eight rows that `ldmatrix` reads at once, and eight units that threads write, lie in different banks.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import BFloat16, Int32, Int64, Uint8, Uint16, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import warp
from cutlass.experimental import primitives as prims

from aot.core.factor_atoms import ATOM_BYTES
from aot.core.weight_format import ATOM_COLUMNS, ATOM_ROWS
from aot.families._sm120_block_scale_tile import LINES, PIECE_BYTES, FactorRows

UNITS = 8
"""Units of 16 bytes that fill the 32 banks."""

MATRIX_ROWS = 8
"""Source: PTX ISA, ldmatrix."""


class Cursor(NamedTuple):
    """Where a thread's pieces of an operand's part lie, worked out once for all blocks of k."""

    begin: Int64
    """Address of the thread's first piece, in the first block of k."""
    step: Int64
    """Bytes from a piece to the thread's next."""
    inner: Int32
    """Bytes from the beginning of a row to the piece."""
    length: Int32
    """Bytes of a row."""
    num_left: Int32
    """Rows of the operand from the first piece's on."""
    factors: Int64
    """Address of the operand's first atom."""
    first_row: Int32
    """The part's first row of the operand."""
    num_rows: Int32
    """Rows of the operand."""


@dataclass(frozen=True)
class Part:
    """An operand's part in a CTA's tile: rows by the bytes of a stage, and the factors of these rows."""

    factors: FactorRows
    row_bytes: int
    """Bytes of a row in a stage."""
    word_bytes: int
    """Bytes of a row that a word of four factors serves."""
    start: int
    """Byte of a stage at which the rows begin."""
    factors_start: int
    """Byte of a stage at which the factors begin."""
    num_threads: int

    @property
    def per_row(self) -> int:
        """Pieces of a row."""
        return self.row_bytes // PIECE_BYTES

    @property
    def num_pieces(self) -> int:
        """Pieces of the part in a stage."""
        return self.factors.extent * self.per_row

    def cursor(self, operand: Any, first_row: Int32, thread: Int32) -> Cursor:
        """Work out where a thread's pieces lie; to be called while tracing.

        Args:
            operand: its rows as bytes, (rows, bytes of k), and the bytes of its atoms.
            first_row: its row that the part begins with.
            thread: number of the thread in the CTA.
        """
        rows, factors = operand
        stride, inner = Int64(rows.stride[0]), thread % self.per_row * PIECE_BYTES
        row = first_row + thread // self.per_row
        return Cursor(
            begin=rows.iterator.toint() + stride * row + inner,
            step=stride * (self.num_threads // self.per_row),
            inner=inner,
            length=Int32(rows.shape[1]),
            num_left=Int32(rows.shape[0]) - row,
            factors=factors.iterator.toint(),
            first_row=first_row,
            num_rows=Int32(rows.shape[0]),
        )

    @cute.jit
    def copy(self, cursor: Cursor, stage: Any, block: Int32, thread: Int32) -> None:
        """Copy a block of k asynchronously: what the operand has of each piece, and zeros behind it.

        Rows that the operand does not have are zeros.
        """
        left = cursor.length - block * self.row_bytes - cursor.inner
        left = cutlass.max(cutlass.min(left, Int32(PIECE_BYTES)), Int32(0))
        begin, place = cursor.begin + Int64(block * self.row_bytes), _swizzled(thread) * PIECE_BYTES
        for turn in range_constexpr(-(-self.num_pieces // self.num_threads)):
            index = turn * self.num_threads
            num_bytes = cutlass.select_(index // self.per_row < cursor.num_left, left, Int32(0))
            target, address = stage + (self.start + index * PIECE_BYTES + place), begin + cursor.step * turn
            if const_expr(index + self.num_threads <= self.num_pieces):
                _copy_piece(target, address, PIECE_BYTES, num_bytes)
            else:  # noqa: PLR5501 - this is Python's, the next the kernel's
                if thread < self.num_pieces - index:
                    _copy_piece(target, address, PIECE_BYTES, num_bytes)

    @cute.jit
    def copy_factors(self, cursor: Cursor, stage: Any, block: Int32, thread: Int32) -> None:
        """Copy the factors of a block of k asynchronously: of each line of an atom the words of the part's rows.

        Atoms that the operand does not have are zeros: the elements beside them are zeros too.
        """
        held = self.factors
        size = held.words * ATOM_COLUMNS
        num_along = cute.ceil_div(cursor.length, self.word_bytes)
        first_atom = block // max(self.word_bytes // self.row_bytes, 1) * held.atoms
        inside = cursor.first_row % LINES * (ATOM_BYTES // LINES) + cursor.first_row % ATOM_ROWS // LINES * ATOM_COLUMNS
        for turn in range_constexpr(-(-held.num_copies // self.num_threads)):
            index = thread + turn * self.num_threads
            line, atom = index % held.lines, first_atom + index // held.lines % held.atoms
            down = cursor.first_row // ATOM_ROWS + index // (held.lines * held.atoms)
            is_there = (atom < num_along) & (down * ATOM_ROWS < cursor.num_rows)
            address = cursor.factors + (Int64(down) * num_along + atom) * ATOM_BYTES
            target = stage + (self.factors_start + index * size)
            if index < held.num_copies:
                num_bytes = cutlass.select_(is_there, Int32(size), Int32(0))
                _copy_piece(target, address + inside + line * (ATOM_BYTES // LINES), size, num_bytes)

    def matrices(self, stage: Any, row: Any, index: int, step: Any, *, rows_first: bool) -> list[Any]:
        """Read 16 rows by 32 bytes as four matrices of 8 rows by 16 bytes, a word of each a lane; while tracing.

        Args:
            stage: where the stage begins.
            row: the first of a warp's rows.
            index: which 16 of them, at a constant distance: 16 rows of a stage are whole turns of the exchange.
            step: along k, of 32 bytes.
            rows_first: whether the second matrix has the next rows, as `mma` has A, or the next bytes, as it has B.
        """
        lane = cute.arch.lane_idx()
        second, third = lane // MATRIX_ROWS % 2, lane // (2 * MATRIX_ROWS)
        of_rows, of_k = (second, third) if rows_first else (third, second)
        unit = (row + of_rows * MATRIX_ROWS + lane % MATRIX_ROWS) * self.per_row + step * 2 + of_k
        place = cute.assume(_swizzled(unit) * PIECE_BYTES, divby=PIECE_BYTES)
        start = stage + place + (self.start + index * 2 * MATRIX_ROWS * self.row_bytes)
        address = cute.recast_ptr(start, dtype=BFloat16).align(PIECE_BYTES)
        found = cute.make_rmem_tensor(MATRIX_ROWS, BFloat16)
        atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), BFloat16)
        cute.copy(atom, cute.make_tensor(address, cute.make_layout(MATRIX_ROWS)), found)
        words = cute.make_tensor(cute.recast_ptr(found.iterator, dtype=Int32), cute.make_layout(4))
        return [words[i] for i in range(4)]

    def widened(self, stage: Any, row: Any, step: Any) -> list[Any]:
        """Read 8 rows by 32 elements of 4 bits as `mma` has B of bytes, two words a lane; to be called while tracing.

        An element has bits 2 to 5 of its byte. Source: PTX ISA, mma, .kind::mxf8f6f4.

        Args:
            stage: where the stage begins.
            row: the first row.
            step: along k, of 16 bytes.
        """
        lane = cute.arch.lane_idx()
        unit = (row + lane // 4) * self.per_row + step
        place = self.start + _swizzled(unit) * PIECE_BYTES + lane % 4 * 2
        found = []
        for half in range(2):
            source = stage + cute.assume(place + half * (PIECE_BYTES // 2), divby=2)
            four = cute.make_tensor(cute.recast_ptr(source, dtype=Uint16).align(2), cute.make_layout(1))[0]
            pairs = Int32(four)  # whose upper half is that of a signed number
            pairs = pairs & 0xFF | pairs << 8 & 0xFF0000
            found.append((pairs << 2 | pairs << 6) & 0x3C3C3C3C)
        return found

    def word(self, stage: Any, row: Any, atom: Any) -> Any:
        """Read the factors of a row, four along k; to be called while tracing."""
        words = cute.recast_ptr((stage + self.factors_start).align(ATOM_COLUMNS), dtype=Int32)
        return cute.make_tensor(words, cute.make_layout(1 << 20))[self.factors.word_of(row, atom)]


def _swizzled(unit: Any) -> Any:
    """Return where a unit of 16 bytes lies, of a part that begins at a multiple of 128 bytes; while tracing."""
    return unit ^ unit >> 3 & UNITS - 1


def _copy_piece(target: Any, address: Any, size: int, num_bytes: Any) -> None:
    """Copy the first `num_bytes` of a piece of `size` asynchronously, and zeros behind them; called while tracing."""
    source = cute.make_ptr(Uint8, address, cute.AddressSpace.gmem, assumed_align=size)
    modifier = prims.LoadCacheModifier.CG if size == PIECE_BYTES else prims.LoadCacheModifier.CA
    prims.cp_async_shared_global(target.to_llvm_ptr(), source.to_llvm_ptr(), size, modifier, cp_size=num_bytes)
