"""The GEMM of `sm90_cluster_split_k` of FP8 operands with scale factors. Imports CUTLASS and quack.

A stage holds 128 elements of k in the bytes of 64 of 16 bits, and all that moves stages stays as it is.

Hopper's tensor cores keep 14 bits or so of FP8's sums. So a stage is multiplied into registers of its own, which are
added to a thread's sums in float32, unless all may stay in the tensor cores' accumulator (`Types.is_fast`). Meanwhile
the tensor cores have another warpgroup's stage, where there is one. Two sets of such registers that take turns would
keep one warpgroup's busy too, but ptxas 13.4 either waits for each instruction, or copies a set for every two stages.

Factors and bias are read to shared memory while the first stages are on their way, so that nothing waits for them at
the end.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Constexpr, Float32, Int32, const_expr, cute, range_constexpr
from quack import sm90_utils as quack_sm90

from aot.families._epilogue import Terms, finish_sum
from aot.families._sm90_split_epilogue import EpilogueSplitGemmSm90
from aot.families._sm90_split_loads import barriers
from aot.families._sm90_split_tile import GROUP, MMA_M
from aot.families._waits import await_phase

RUN = 2
"""Neighbouring columns of a row of which a thread holds sums. Source: PTX ISA, wgmma, registers of the accumulator."""


@dataclass(frozen=True)
class ScaledSplitGemmSm90(EpilogueSplitGemmSm90):
    """The kernel of one candidate."""

    operands: tuple[Any, Any]
    """CUTLASS's types of the operands of the tile's rows and columns."""

    @property
    def multiplied(self) -> tuple[Any, Any]:
        """CUTLASS's types of the operands of the tile's rows and columns."""
        return self.operands

    def multiply(self, mma: Any, stages: Any, storage: Any, warp: Any, rank: Any, num_k_blocks: Any) -> Any:
        """Multiply the CTA's blocks of k and return a thread's sums, zero where there are no blocks."""
        run = self._multiply_promoted if self.operation.types.is_promoted else super().multiply
        return run(mma, stages, storage, warp, rank, num_k_blocks)

    @cute.jit
    def _multiply_promoted(
        self, mma: cute.TiledMma, stages: Any, storage: Any, warp: Int32, rank: Int32, num_k_blocks: Int32
    ) -> Any:
        """Multiply each block into registers of its own, and release its stage before these are added to the sums.

        A stage is released only where it is loaded again, as in `SplitGemmSm90.multiply`.
        """
        tile = self.tile
        full, _, _ = barriers(storage, tile)
        partial, fragments_r, fragments_c = self.fragments(mma, stages, warp)
        sums = cute.make_rmem_tensor(partial.layout, Float32)
        sums.fill(0.0)
        stage, phase = Int32(0), Int32(0)
        for k_block in cutlass.range(rank, num_k_blocks, tile.splits, unroll=1):
            await_phase(full + stage, phase)
            quack_sm90.gemm_w_idx(mma, partial, fragments_r, fragments_c, True, stage, stage, wg_wait=0)
            if k_block + tile.num_stages * tile.splits < num_k_blocks:
                self.release(storage, stage, rank)
            sums.store(sums.load() + partial.load())
            stage += 1
            if stage == tile.num_stages:
                stage = Int32(0)
                phase ^= 1
        return sums

    def fetch(self, vectors: Any, storage: Any, warp: Any, rank: Any, place: Any) -> Any:
        """Keep factors and bias in shared memory, and read the rest, while the first stages are on their way."""
        chunks = super().fetch(vectors, storage, warp, rank, place)
        scale_d = None if vectors.scale_d is None else vectors.scale_d[0]
        factors = storage.factors.get_tensor(cute.make_layout(self.tile.num_factors))
        self._keep(factors, vectors, rank, place)
        return factors, chunks, scale_d, vectors.linear_first

    def prefetch_bias(self, bias: Any, first: Any, corner: Any) -> None:
        """Leave the bias to `fetch`."""

    @cute.jit
    def _keep(self, factors: cute.Tensor, vectors: Any, rank: Int32, place: Any) -> None:
        """Write the factors of the rows, those of the columns, and the bias of what the CTA stores to shared memory.

        The multiplying threads read them all before they write any, and then wait for each other.
        """
        tile = self.tile
        rows, columns = (place[0] * tile.rows, tile.rows), (place[1] * tile.columns + rank * tile.side, tile.side)
        if const_expr(self.swap_ab):
            parts = ((vectors.scale_b, *rows), (vectors.scale_a, *columns), (vectors.bias, *rows))
        else:
            parts = ((vectors.scale_a, *rows), (vectors.scale_b, *columns), (vectors.bias, *columns))
        read = [self._read(*part) for part in parts]
        thread, _, _ = cute.arch.thread_idx()
        first = 0
        for values, (_, _, count) in zip(read, parts, strict=True):
            for i in range_constexpr(cute.size(values)):
                position = thread + i * tile.num_multiplying
                if position < count:
                    factors[first + position] = values[i]
            first += count
        cute.arch.barrier(barrier_id=1, number_of_threads=tile.num_multiplying)

    @cute.jit
    def _read(self, vector: cute.Tensor, start: Int32, count: Constexpr[int]) -> Any:
        """Read a thread's part of `count` elements of a vector, zero where it ends before them."""
        thread, _, _ = cute.arch.thread_idx()
        num_threads = self.tile.num_multiplying
        values = cute.make_rmem_tensor(-(-count // num_threads), Float32)
        values.fill(0.0)
        for i in range_constexpr(cute.size(values)):
            position = thread + i * num_threads
            if position < count and start + position < cute.size(vector):
                values[i] = vector[start + position].to(Float32)
        return values

    def fetch_late(self, fetched: Any, vectors: Any, first: Any, origin: Any) -> Any:
        """Read nothing more."""
        del vectors, first, origin
        return fetched

    @cute.jit
    def complete(self, own: cute.Tensor, fetched: Any, memory: Any, warp: Int32) -> Any:
        """Return what is to be rounded of a thread's sums."""
        tile, (factors, chunks, scale_d, linear_first) = self.tile, fetched
        lane = cute.arch.lane_idx()
        row, column = self.row(warp, (0, 0)) + lane // 4, lane % 4 * 2
        bias = tile.rows + tile.side
        for v in range_constexpr(tile.num_vectors):
            for e in range_constexpr(4):
                r = row + v // tile.share * MMA_M * tile.num_warpgroups + e // 2 * 8
                c = column + v % tile.share * GROUP + e % 2
                scales = factors[r], factors[tile.rows + c]
                scale_a, scale_b = scales[::-1] if self.swap_ab else scales
                own[e, v] = finish_sum(own[e, v], Terms(scale_a, scale_b, factors[bias + (r if self.swap_ab else c)]))
        results = self.finish_all(own, chunks, memory, warp, linear_first)
        if const_expr(scale_d is not None):
            results.store(results.load() * scale_d)
        return results

    def store(self, results: Any, memory: Any, warp: Any, first: Any, origin: Any, d: Any) -> None:
        """Round and store a warp's results: elements of 32 bits from the registers, since they fill whole sectors."""
        if self.element.width == Float32.width:
            self._store_registers(results, first, origin, d)
        else:
            super().store(results, memory, warp, first, origin, d)

    @cute.jit
    def _store_registers(self, results: cute.Tensor, first: Int32, origin: Any, d: cute.Tensor) -> None:
        """Store a thread's results, where they lie in D: pairs of a row, or single ones of the transpose's columns."""
        tile = self.tile
        lane = cute.arch.lane_idx()
        size = 1 if const_expr(self.swap_ab) else RUN
        layout = cute.make_layout((size, d.shape[1] // size, d.shape[0]), stride=(1, size, d.stride[0]))
        target = cute.make_tensor(d.iterator, layout)
        for v in range_constexpr(tile.num_vectors):
            group = first + v % tile.share
            for i in range_constexpr(4 // size):
                e = i * size
                row = origin[0] + v // tile.share * MMA_M * tile.num_warpgroups + lane // 4 + e // 2 * 8
                column = origin[1] + group * GROUP + lane % 4 * 2 + e % 2
                m, n = (column, row) if const_expr(self.swap_ab) else (row, column)
                if group < tile.num_groups and m < d.shape[0] and n < d.shape[1]:
                    run = cute.make_rmem_tensor(size, self.element)
                    for x in range_constexpr(size):
                        run[x] = results[e + x, v].to(self.element)
                    cute.autovec_copy(run, target[None, n // size, m])
