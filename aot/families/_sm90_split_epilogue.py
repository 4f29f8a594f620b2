"""The GEMM of `sm90_cluster_split_k` with more of an epilogue than a bias. Imports CUTLASS and quack.

A residual is read as D is stored, in chunks, and given to the lanes that hold its elements' sums by way of the same
shared memory. It is read before the multiplication, so that its way from memory delays nothing: the family takes no
tile that leaves a thread too few registers for it.

With a gate the two rows of B of an element of D are neighbours: two columns that one thread holds, or, where operands
are exchanged, rows of two threads, which exchange half of their sums.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Constexpr, Float32, Int32, const_expr, cute, range_constexpr

from aot.core.epilogue import Step
from aot.core.operation import Operation
from aot.families._epilogue import finish, finish_gate
from aot.families._epilogue_registers import Registers, halves
from aot.families._skinny_epilogue_kernel import SECTOR_ELEMENTS
from aot.families._sm90_split_kernel import SplitGemmSm90
from aot.families._sm90_split_tile import GROUP


@dataclass(frozen=True)
class EpilogueSplitGemmSm90(SplitGemmSm90):
    """The kernel of one candidate."""

    operation: Operation

    @property
    def num_halves(self) -> int:
        """Rows of B that make a column of D, which lie side by side: 2 with a gate."""
        return self.operation.num_rows_of_b(1)

    @cute.jit
    def fetch(self, vectors: Any, storage: Any, warp: Int32, rank: Int32, place: Any) -> Any:  # noqa: ARG002 - others need it
        """Read a thread's chunks of a residual, and prefetch the bias, before the multiplication."""
        tile = self.tile
        cute.arch.griddepcontrol_wait()
        corner = (place[0] * tile.rows, place[1] * tile.columns)
        first = rank * tile.share
        self.prefetch_bias(vectors.bias, first, corner)
        chunks = None
        if const_expr(vectors.residual is not None):
            origin = (self.row(warp, corner), corner[1])
            chunks = self._read_chunks(vectors.residual, first, origin)
        return chunks

    @cute.jit
    def fetch_late(self, fetched: Any, vectors: Any, first: Int32, origin: Any) -> Any:
        """Read the bias while the other CTAs' sums arrive; where there are none, it is read as it is added."""
        offsets = None
        if const_expr(self.tile.splits > 1):
            offsets = self.load_bias(vectors.bias, origin[0], origin[1] + first * GROUP, range(self.num_pairs))
        return offsets, fetched, vectors, first, origin

    @cute.jit
    def prefetch_bias(self, bias: cute.Tensor, first: Int32, corner: Any) -> None:
        """Prefetch the bias of what the CTA stores to L2, a thread a sector."""
        tile = self.tile
        thread, _, _ = cute.arch.thread_idx()
        start, count = corner[1] + first * GROUP, tile.share * GROUP
        if const_expr(self.swap_ab):
            start, count = corner[0], tile.rows
        position = thread * SECTOR_ELEMENTS
        for half in range_constexpr(self.num_halves):
            n = start + position + half
            if position < count and n < cute.size(bias):
                _prefetch(bias, n)

    @cute.jit
    def _read_chunks(self, residual: cute.Tensor, first: Int32, origin: Any) -> Any:
        """Read a thread's chunks of a residual, (elements of a chunk, turns), zero where they lie outside."""
        lane = cute.arch.lane_idx()
        source = self.chunks_of(residual)
        chunks = cute.make_rmem_tensor((self.chunk_size, self.num_turns), self.element)
        chunks.fill(0.0)
        for q in range_constexpr(self.num_turns):
            index = lane + 32 * q
            inner, v = self.split_number(index)
            group, m, n = self.find_chunk(inner, v, first, origin)
            if self._is_inside(index, group, m, n, residual):
                cute.autovec_copy(source[None, n // self.chunk_size, m], chunks[None, q])
        return chunks

    @cute.jit
    def complete(self, own: cute.Tensor, fetched: Any, memory: Any, warp: Int32) -> Any:
        """Return what is to be rounded of a thread's sums."""
        offsets, chunks, vectors, first, origin = fetched
        if const_expr(offsets is not None):
            self.add_bias(own, offsets, range(self.num_pairs))
        else:
            for i in range_constexpr(self.num_pairs):
                pairs = range(i, i + 1)
                pair = self.load_bias(vectors.bias, origin[0], origin[1] + first * GROUP, pairs)
                self.add_bias(own, pair, pairs)
        return self.finish_all(own, chunks, memory, warp, vectors.linear_first)

    @cute.jit
    def finish_all(self, own: cute.Tensor, chunks: Any, memory: Any, warp: Int32, linear_first: Any) -> Any:
        """Return what is to be rounded of a thread's sums with their bias."""
        if const_expr(self.operation.gate is not None):
            return self._multiply_halves(own, self.operation.gate, linear_first)
        for v in range_constexpr(self.tile.num_vectors):
            for e in range_constexpr(4):
                own[e, v] = finish(self.operation, own[e, v], Registers())
        if const_expr(chunks is not None):
            cute.arch.sync_warp()  # all of the warp's sums are read: their place is free
            self._write_chunks(chunks, memory, warp)
            cute.arch.sync_warp()
            self._add_residual(own, memory, warp)
        return own

    @cute.jit
    def _write_chunks(self, chunks: cute.Tensor, memory: Any, warp: Int32) -> None:
        """Write a thread's chunks of a residual to the warp's part of shared memory, as they lie in D."""
        lane = cute.arch.lane_idx()
        for q in range_constexpr(self.num_turns):
            index = lane + 32 * q
            inner, v = self.split_number(index)
            if index < self.num_chunks:
                cute.autovec_copy(chunks[None, q], self.place_of_chunk(memory, warp, v, inner))

    @cute.jit
    def _add_residual(self, own: cute.Tensor, memory: Any, warp: Int32) -> None:
        """Add the residual's elements in the warp's part of shared memory to what its lanes hold."""
        lane = cute.arch.lane_idx()
        for v in range_constexpr(self.tile.num_vectors):
            for i in range_constexpr(4 // self.run):
                run = cute.make_rmem_tensor(self.run, self.element)
                cute.autovec_copy(self.place_of_run(memory, warp, lane, v, i), run)
                for e in range_constexpr(self.run):
                    own[self.run * i + e, v] += run[e].to(Float32)

    @cute.jit
    def _is_inside(self, index: Int32, group: Int32, m: Int32, n: Int32, matrix: cute.Tensor) -> Any:
        """Say whether a chunk is one of the CTA's share of the tile and of a matrix of D's shape."""
        is_of_tile = index < self.num_chunks and group < self.tile.num_groups
        return is_of_tile and m < matrix.shape[0] and n < matrix.shape[1]

    @cute.jit
    def _multiply_halves(self, own: cute.Tensor, gate_step: Constexpr[Step], linear_first: Int32) -> Any:
        """Return the elements of D of a thread's sums of a gate and of a linear half, (2, vectors)."""
        results = cute.make_rmem_tensor((2, self.tile.num_vectors), Float32)
        is_first = cute.arch.lane_idx() // 4 % 2 == 0
        for v in range_constexpr(self.tile.num_vectors):
            for i in range_constexpr(2):
                first, second = own[2 * i, v], own[2 * i + 1, v]
                if const_expr(self.swap_ab):
                    # The lane of a row of the half in front keeps its upper row, that of a row of the other the lower.
                    kept = cutlass.select_(is_first, own[i, v], own[2 + i, v])
                    sent = cutlass.select_(is_first, own[2 + i, v], own[i, v])
                    taken = cute.arch.shuffle_sync_bfly(sent, 4)
                    first, second = cutlass.select_(is_first, kept, taken), cutlass.select_(is_first, taken, kept)
                gate, linear = halves((first, second), linear_first)
                results[i, v] = finish_gate(gate_step, gate, linear, Registers())
        return results


def _prefetch(tensor: cute.Tensor, place: Any) -> None:
    """Prefetch the sector of an element to L2."""
    address = (tensor.iterator + cute.crd2idx(place, tensor.layout)).toint()
    cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[address])
