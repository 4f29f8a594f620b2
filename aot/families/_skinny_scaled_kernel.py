"""The GEMM of `cluster_split_k` for e4m3 operands with vectors of scale factors. Imports CUTLASS.

A stage holds 128 e4m3 elements of k in the bytes of 64 of 16 bits, and all that moves stages stays as it is. What is
multiplied is float16, to which every e4m3 value converts exactly, and so do the products to float32, in which they are
added up: the sums are those of a promoted accumulator or better.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Constexpr, Float16, Float32, Int8, Int16, Int32, cute, range_constexpr
from cutlass._mlir.dialects import llvm, nvvm
from cutlass._mlir.extras import types as mlir_types

from aot.core.operation import Operation
from aot.families._epilogue import Terms, finish_sum
from aot.families._epilogue_steps import FUNCTIONS
from aot.families._skinny_kernel import SplitGemm


@dataclass(frozen=True)
class ScaledSplitGemm(SplitGemm):
    """The kernel of one candidate, of operands of 8 bits with scale factors."""

    operation: Operation

    num_steps = 4

    @property
    def multiplied(self) -> Any:
        """CUTLASS's type of the factors that MMA instructions take."""
        return Float16

    def _unpack(self, words: Any, step: int) -> tuple[Any, Any]:
        """Return the two words of factors that an MMA instruction takes of a chunk: a word of e4m3 makes them."""
        word = words[step]
        return _widen(word.to(Int16), self.element), _widen((word >> 16).to(Int16), self.element)

    @cute.jit
    def _fetch(self, vectors: Any, share: Any) -> Any:
        """Read the factors and the bias of the CTA's share of a tile, a thread its part, behind the first loads.

        They are needed when all is added up, and their way from memory would then delay the end.
        """
        scale_a, scale_b, bias = vectors
        tile = self.tile
        return (
            self._read(scale_b, share[1], tile.share),
            self._read(bias, share[1], tile.share),
            self._read(scale_a, share[0], tile.columns),
        )

    @cute.jit
    def _read(self, vector: cute.Tensor, first: Int32, count: Constexpr[int]) -> Any:
        """Read a thread's part of `count` elements from the first on, zero where the vector has none."""
        thread, _, _ = cute.arch.thread_idx()
        num_threads = self.tile.num_threads
        values = cute.make_rmem_tensor(-(-count // num_threads), Float32)
        values.fill(0.0)
        for i in range_constexpr(-(-count // num_threads)):
            position = thread + i * num_threads
            if position < count and first + position < vector.shape[0]:
                values[i] = Float32(vector[first + position])
        return values

    @cute.jit
    def _keep(self, fetched: Any, storage: Any) -> None:
        """Write what `_fetch` has read to shared memory, before the CTA's threads meet."""
        share = self.tile.share
        self._write(fetched[0], storage, 0, share)
        self._write(fetched[1], storage, share, share)
        self._write(fetched[2], storage, 2 * share, self.tile.columns)

    @cute.jit
    def _write(self, values: cute.Tensor, storage: Any, first: Constexpr[int], count: Constexpr[int]) -> None:
        """Write a thread's part of `count` elements to shared memory, from the first on."""
        thread, _, _ = cute.arch.thread_idx()
        factors = self._factors(storage)
        for i in range_constexpr(cute.size(values)):
            position = thread + i * self.tile.num_threads
            if position < count:
                factors[first + position] = values[i]

    def _finish(self, value: Float32, storage: Any, place: Any, n: Int32, vectors: Any) -> Any:
        """Return an element of D before it is rounded, of the sum at a row and column of the CTA's share."""
        del n, vectors
        (row, column), share, factors = place, self.tile.share, self._factors(storage)
        terms = Terms(factors[2 * share + column], factors[row], factors[share + row])
        total = finish_sum(value, terms)
        return total if self.operation.activation is None else FUNCTIONS[self.operation.activation](total)

    def _factors(self, storage: Any) -> Any:
        """View what `_keep` writes: factors of the weight's rows, their bias, factors of x's rows."""
        return storage.factors.get_tensor(cute.make_layout(self.tile.num_factors))


def _widen(pair: Int16, element: Any) -> Int32:
    """Convert two elements of 8 bits to two float16, each in a register: exact, a NaN stays one."""
    bytes_type, halves_type = mlir_types.vector(2, Int8.mlir_type), mlir_types.vector(2, Float16.mlir_type)
    halves = nvvm.convert_f8x2_to_f16x2(halves_type, llvm.bitcast(bytes_type, pair.ir_value()), element.mlir_type)
    return Int32(llvm.bitcast(Int32.mlir_type, halves))
