"""The GEMM of `cluster_split_k` with more of an epilogue than a bias, and for e4m3 operands. Imports CUTLASS.

What the epilogue reads besides the sums is read behind the first loads, since its way from memory would delay the end:
vectors to shared memory, the elements of a residual to the registers of the threads that store those of D, or to L2
where the sums need the registers.

Of e4m3 a stage holds 128 elements of k in the bytes of 64 of 16 bits, and all that moves stages stays as it is. What is
multiplied is float16, to which every e4m3 value converts exactly, and so do the products to float32, in which they are
added up: the sums are those of a promoted accumulator or better.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from cutlass import Constexpr, Float16, Float32, Int8, Int16, Int32, const_expr, cute, range_constexpr
from cutlass._mlir.dialects import llvm, nvvm
from cutlass._mlir.extras import types as mlir_types

from aot.core.operation import Operation
from aot.families._epilogue import Terms, finish, finish_gate, finish_sum
from aot.families._epilogue_registers import Registers, halves
from aot.families._skinny_kernel import SplitGemm

MAX_EARLY_ELEMENTS = 16
"""Elements of a residual that a thread has registers for beside up to 128 sums. Source: with 28 and 32, kernels of 128
threads spill on sm_90a; none of those with 16 does, nvidia-cutlass-dsl 4.8.1, 2026-11-22."""

SECTOR_ELEMENTS = 16
"""Elements of 16 bits in 32 bytes, which L2 loads at once. Source: CUDA C++ Programming Guide, sectors of 32 bytes."""


class Vectors(NamedTuple):
    """What an epilogue reads besides the sums, None where it has none of it; with a gate n is ((2, n))."""

    scale_a: Any
    """Factors (m)."""
    scale_b: Any
    """Factors (n)."""
    bias: Any
    """The bias (n), or of no elements."""
    residual: Any
    """The residual (m, n)."""
    scale_d: Any = None
    """The factor of D (1)."""
    linear_first: Any = None
    """With a gate, Int32 of 1 where the linear half is in front."""


@dataclass(frozen=True)
class EpilogueSplitGemm(SplitGemm):
    """The kernel of one candidate, of operands of 16 bits."""

    operation: Operation

    @property
    def num_halves(self) -> int:
        """Rows of B that make a column of D, which lie side by side: 2 with a gate."""
        return self.operation.num_rows_of_b(1)

    @cute.jit
    def _fetch(self, vectors: Any, share: Any) -> Any:
        """Read the vectors of the CTA's share of a tile, a thread its part, and a thread's elements of the residual.

        Returns:
            Factors of the weight's rows, their bias, factors of x's rows, and a thread's elements of the residual; each
            is None where there is none, the last also where it is read later.
        """
        tile = self.tile
        factors_b, factors_a, residual = None, None, None
        if const_expr(vectors.scale_b is not None):
            factors_b = self._read(vectors.scale_b, share[1], tile.share)
            factors_a = self._read(vectors.scale_a, share[0], tile.columns)
        if const_expr(vectors.residual is not None):
            if const_expr(self.has_registers):
                residual = self._read_residual(vectors.residual, share)
            else:
                self._prefetch_residual(vectors.residual, share)
        return factors_b, self._read(vectors.bias, share[1], tile.share), factors_a, residual

    @cute.jit
    def _read(self, vector: cute.Tensor, first: Int32, count: Constexpr[int]) -> Any:
        """Read a thread's part of `count` elements from the first on, zero where the vector has none."""
        thread, _, _ = cute.arch.thread_idx()
        num_threads = self.tile.num_threads
        values = cute.make_rmem_tensor(-(-count // num_threads), Float32)
        values.fill(0.0)
        for i in range_constexpr(-(-count // num_threads)):
            position = thread + i * num_threads
            if position < count and first + position < cute.size(vector):
                values[i] = Float32(vector[first + position])
        return values

    @property
    def has_registers(self) -> bool:
        """Say whether a thread's elements of a residual fit its registers beside the sums."""
        return self.num_elements <= MAX_EARLY_ELEMENTS

    @cute.jit
    def _read_residual(self, residual: cute.Tensor, origin: Any) -> Any:
        """Read a thread's elements of the residual, where they lie inside."""
        thread, _, _ = cute.arch.thread_idx()
        values = cute.make_rmem_tensor(self.num_elements, residual.element_type)
        for e in range_constexpr(self.num_elements):
            row, column = self._place(thread, e)
            m, n = origin[0] + column, origin[1] + row
            if column < self.tile.columns and m < residual.shape[0] and n < residual.shape[1]:
                values[e] = residual[m, n]
        return values

    @cute.jit
    def _prefetch_residual(self, residual: cute.Tensor, origin: Any) -> None:
        """Prefetch the CTA's share of the residual to L2, a thread every so many sectors."""
        thread, _, _ = cute.arch.thread_idx()
        columns, num_threads = self.tile.columns, self.tile.num_threads
        num_sectors = -(-self.tile.share // SECTOR_ELEMENTS) * columns
        for i in range_constexpr(-(-num_sectors // num_threads)):
            sector = thread + i * num_threads
            m, n = origin[0] + sector % columns, origin[1] + sector // columns * SECTOR_ELEMENTS
            if m < residual.shape[0] and n < residual.shape[1]:
                address = (residual.iterator + cute.crd2idx((m, n), residual.layout)).toint()
                cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[address])

    @cute.jit
    def _keep(self, fetched: Any, storage: Any, vectors: Any, origin: Any) -> Any:
        """Write the vectors that `_fetch` has read to shared memory, before the CTA's threads meet.

        Returns:
            A thread's elements of the residual, or None where there is none.
        """
        share = self.tile.share
        first = 0
        for values, count in zip(fetched[:3], (share, share, self.tile.columns), strict=True):
            if const_expr(values is not None):
                self._write(values, storage, first, count)
                first += count
        residual = fetched[3]
        if const_expr(vectors.residual is not None and not self.has_registers):
            residual = self._read_residual(vectors.residual, origin)
        return residual

    @cute.jit
    def _write(self, values: cute.Tensor, storage: Any, first: Constexpr[int], count: Constexpr[int]) -> None:
        """Write a thread's part of `count` elements to shared memory, from the first on."""
        thread, _, _ = cute.arch.thread_idx()
        factors = self._factors(storage)
        for i in range_constexpr(cute.size(values)):
            position = thread + i * self.tile.num_threads
            if position < count:
                factors[first + position] = values[i]

    def _finish(self, sums: Any, e: int, kept: Any, storage: Any, place: Any, n: Int32, vectors: Any) -> Any:
        """Return an element of D before it is rounded."""
        del n
        row, column = place
        totals = [
            finish_sum(value, self._terms(storage, self.num_halves * row + half, column))
            for half, value in enumerate(sums)
        ]
        if self.operation.gate is not None:
            gate, linear = halves(tuple(totals), vectors.linear_first)
            return finish_gate(self.operation.gate, gate, linear, Registers())
        added = kept[e].to(Float32) if self.operation.has_residual else None
        return finish(self.operation, totals[0], Registers(), added)

    def _terms(self, storage: Any, row: Int32, column: Int32) -> Terms:
        """Return the terms of a sum by its row of the weight and of x in the CTA's share: here the bias alone."""
        del column
        return Terms(bias=self._factors(storage)[row])

    def _factors(self, storage: Any) -> Any:
        """View what `_keep` writes: factors of the weight's rows, their bias, factors of x's rows."""
        return storage.factors.get_tensor(cute.make_layout(self.tile.num_factors))


@dataclass(frozen=True)
class ScaledSplitGemm(EpilogueSplitGemm):
    """The kernel of one candidate, of operands of 8 bits with scale factors."""

    num_steps = 4

    @property
    def multiplied(self) -> Any:
        """CUTLASS's type of the factors that MMA instructions take."""
        return Float16

    def _unpack(self, words: Any, step: int) -> tuple[Any, Any]:
        """Return the two words of factors that an MMA instruction takes of a chunk: a word of e4m3 makes them."""
        word = words[step]
        return _widen(word.to(Int16), self.element), _widen((word >> 16).to(Int16), self.element)

    def _terms(self, storage: Any, row: Int32, column: Int32) -> Terms:
        """Return the terms of a sum by its row of the weight and of x in the CTA's share."""
        share, factors = self.tile.share, self._factors(storage)
        return Terms(factors[2 * share + column], factors[row], factors[share + row])


def _widen(pair: Int16, element: Any) -> Int32:
    """Convert two elements of 8 bits to two float16, each in a register: exact, a NaN stays one."""
    bytes_type, halves_type = mlir_types.vector(2, Int8.mlir_type), mlir_types.vector(2, Float16.mlir_type)
    halves = nvvm.convert_f8x2_to_f16x2(halves_type, llvm.bitcast(bytes_type, pair.ir_value()), element.mlir_type)
    return Int32(llvm.bitcast(Int32.mlir_type, halves))
