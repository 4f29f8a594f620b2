"""The kernel of `mma_sync`: loads of any alignment, `ldmatrix` and `mma.sync`. Imports CUTLASS.

A CTA multiplies a tile of D, of a batch that of one product. Its threads copy a block of k of both operands into a
stage, in pieces of as many bytes as the operands' rows begin at multiples of; bytes of a piece that lie behind an
extent are not read, and are zero. They are copied asynchronously, a ring of stages ahead of the multiplication. Rows
that begin at any element are copied in pieces of 16 bytes from the aligned address in front of each, and moved in
shared memory before they are multiplied: that takes fewer loads than by elements, and as many bytes are under way.
Where warps share k, each takes every second, fourth or eighth step; where the CTAs of a cluster do, each takes every so
many blocks. The sums pass through shared memory, where those of the warps along k, and of the CTAs, are added up in
order, and from where lanes next to each other store elements next to each other.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Constexpr, Float32, Int32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import warp
from cutlass.memory import SmemAllocator

from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.signature import Signature
from aot.families import Entry
from aot.families._arguments import cutlass_type, epilogue_arguments
from aot.families._epilogue_registers import paired
from aot.families._epilogue_steps import EpilogueOperands, finish
from aot.families._grid import along_x
from aot.families._mma_sync_loads import SEGMENT, Side
from aot.families._mma_sync_tile import MMA_K, MMA_M, MMA_N, SUM_PAD, Tile

GROUP = 8
"""Tiles along m that lie next to each other in the order of CTAs, so that CTAs of a wave share tiles of B in L2: an
assumption, as quack's schedulers have it."""


@dataclass(frozen=True)
class MmaSyncGemm:
    """The kernel of one candidate."""

    element: Any
    """CUTLASS's type of A and B."""
    tile: Tile
    operation: Operation
    is_dependent: bool
    """Whether the chip can start it before the kernel in front of it ends: then it waits for that end."""

    @property
    def sides(self) -> tuple[Side, Side]:
        """Describe the parts of A and of B."""
        tile = self.tile
        shared = tile.loads, tile.num_threads
        return (
            Side(tile.rows, tile.block_k, tile.a_is_k_major, *shared),
            Side(tile.columns, tile.block_k, tile.b_is_k_major, *shared),
        )

    @property
    def num_halves(self) -> int:
        """Rows of B that make a column of D, which lie side by side: 2 with a gate."""
        return self.operation.num_rows_of_b(1)

    @property
    def is_batched(self) -> bool:
        """Say whether a launch computes a batch."""
        return self.operation.grouping is Grouping.BATCHED

    def _num_tiles(self, d: cute.Tensor) -> tuple[Any, Any]:
        """Count the tiles of a D, or of each D of a batch, along m and n; to be called while tracing."""
        m, n = d.shape[-2:]
        return cute.ceil_div(m, self.tile.rows), cute.ceil_div(n * self.num_halves, self.tile.columns)

    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, vectors: Any, stream: cuda.CUstream) -> None:
        """Launch a CTA for each tile of D, of all products; to be called while tracing.

        Args:
            a: A (m, k); of a batch each of the three has its products in front.
            b: B (n, k); with a gate ((2, n), k).
            d: D (m, n).
            vectors: `EpilogueOperands`.
            stream: where the kernel is launched.
        """
        tile = self.tile
        num_products = (d.shape[0],) if const_expr(self.is_batched) else ()
        self.kernel(a, b, d, vectors.bias, vectors.residual).launch(
            grid=along_x(*self._num_tiles(d), tile.splits, *num_products),
            block=(tile.num_threads, 1, 1),
            **({"cluster": (tile.splits, 1, 1)} if tile.splits > 1 else {}),
            stream=stream,
            min_blocks_per_mp=tile.num_blocks_per_sm,
            preferred_smem_carveout=100,  # left out, the compiler asks a GPU how much there is
            use_pdl=self.is_dependent,
        )

    @cute.kernel
    def kernel(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        bias: Any,
        residual: Any,
    ) -> None:
        """Compute a tile of D: see the module."""
        tile = self.tile
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rank, block = block % tile.splits, block // tile.splits
        if const_expr(self.is_batched):
            tiles_m, tiles_n = self._num_tiles(d)
            product, block = block // (tiles_m * tiles_n), block % (tiles_m * tiles_n)
            a, b, d = a[product, None, None], b[product, None, None], d[product, None, None]
        tile_m, tile_n = self._place(block, d)
        memory = SmemAllocator().allocate(tile.smem_bytes, 16)
        if const_expr(self.is_dependent):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        sums = self._multiply(a, b, memory, (tile_m * tile.rows, tile_n * tile.columns), thread, rank)
        floats = cute.recast_ptr(memory, dtype=Float32)
        self._write_sums(sums, cute.make_tensor(floats, self._parts))
        parts = [cute.make_tensor(floats, self._parts)]
        if const_expr(tile.splits > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            parts = [cute.arch.map_dsmem_ptr(floats, r).toint() for r in range(tile.splits)]
        else:
            cute.arch.sync_threads()
        operands = EpilogueOperands(bias=bias, residual=residual)
        first = tile_m * tile.rows, tile_n * (tile.columns // self.num_halves)
        self._store(parts, d, operands, first, rank * tile.num_threads + thread)
        if const_expr(tile.splits > 1):  # others read this CTA's sums
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()

    @property
    def _parts(self) -> Any:
        """Lay the sums out in shared memory: (row, column, warp along k)."""
        tile = self.tile
        row = tile.columns + SUM_PAD
        return cute.make_layout((tile.rows, tile.columns, tile.warps[2]), stride=(row, 1, tile.rows * row))

    @cute.jit
    def _place(self, block: Int32, d: cute.Tensor) -> Any:
        """Return the tile of a CTA: `GROUP` tiles along m lie side by side, then those of the next n."""
        tiles_m, tiles_n = self._num_tiles(d)
        group = block // (GROUP * tiles_n)
        width = cutlass.min(tiles_m - group * GROUP, GROUP)
        inside = block - group * GROUP * tiles_n
        return group * GROUP + inside % width, inside // width

    @cute.jit
    def _stage(self, memory: Any, stage: Int32, side: Constexpr[int]) -> Any:
        """View an operand's part of a stage."""
        tile = self.tile
        per_stage = tile.elements_of_a + tile.elements_of_b
        elements = cute.recast_ptr(memory, dtype=self.element)
        offset = stage * per_stage + side * tile.elements_of_a
        start = elements + cute.assume(offset, divby=SEGMENT)
        return cute.make_tensor(start, self.sides[side].layout)

    @cute.jit
    def _multiply(self, a: cute.Tensor, b: cute.Tensor, memory: Any, origin: Any, thread: Int32, rank: Int32) -> Any:
        """Multiply the tile whose first row of A and of B is `origin`, and return the sums of a thread's warp."""
        tile = self.tile
        sums = cute.make_rmem_tensor(((2, 2), tile.warp_rows // MMA_M, tile.warp_columns // MMA_N), Float32)
        sums.fill(0.0)
        num_blocks = cute.ceil_div(cute.size(a, mode=[1]), tile.block_k)
        num_own = cute.ceil_div(cutlass.max(num_blocks - rank, 0), tile.splits)
        operands = a, b
        cursors = [self.sides[side].cursors(operands[side], origin[side], thread) for side in range(2)]
        ahead = tile.num_stages - 1
        for s in range_constexpr(ahead):
            self._bring(cursors, operands, memory, Int32(s), rank + s * tile.splits)
        for i in cutlass.range(num_own, unroll=1):
            cute.arch.cp_async_wait_group(ahead - 1)
            cute.arch.sync_threads()
            slot, free = i % tile.num_stages, (i + ahead) % tile.num_stages
            self._bring(cursors, operands, memory, free, rank + (i + ahead) * tile.splits)
            if const_expr(self.sides[0].is_shifted):
                self._align_stage(cursors, operands, memory, slot)
            self._multiply_stage(sums, memory, slot)
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        return sums

    @cute.jit
    def _bring(self, cursors: Any, operands: Any, memory: Any, slot: Int32, block: Int32) -> None:
        """Bring a block of k of both operands into a stage, asynchronously."""
        for side in range_constexpr(2):
            self.sides[side].copy(cursors[side], operands[side], self._stage(memory, slot, side), block)
        cute.arch.cp_async_commit_group()

    @cute.jit
    def _align_stage(self, cursors: Any, operands: Any, memory: Any, slot: Int32) -> None:
        """Move the rows of a stage to where `ldmatrix` reads them."""
        stages = [self._stage(memory, slot, side) for side in range(2)]
        moved = [self.sides[side].aligned(cursors[side], operands[side], stages[side]) for side in range(2)]
        cute.arch.sync_threads()
        for side in range_constexpr(2):
            self.sides[side].write(moved[side], cursors[side], stages[side])
        cute.arch.sync_threads()

    @cute.jit
    def _multiply_stage(self, sums: cute.Tensor, memory: Any, slot: Int32) -> None:
        """Add the product of a stage's steps of k that are the warp's to its sums."""
        tile = self.tile
        side_a, side_b = self.sides
        along_m, along_n, along_k = self._warp()
        stage_a, stage_b = self._stage(memory, slot, 0), self._stage(memory, slot, 1)
        mma = cute.make_mma_atom(warp.MmaF16BF16Op(self.element, Float32, (MMA_M, MMA_N, MMA_K)))
        rows, columns = tile.warp_rows // MMA_M, tile.warp_columns // MMA_N
        first_row, first_column = along_m * tile.warp_rows, along_n * tile.warp_columns
        for step in range_constexpr(tile.block_k // MMA_K // tile.warps[2]):
            k = (step * tile.warps[2] + along_k) * MMA_K
            fragments_a = cute.make_rmem_tensor(((2, 2, 2), rows), self.element)
            fragments_b = cute.make_rmem_tensor(((2, 2), columns), self.element)
            for i in range_constexpr(rows):
                found = side_a.matrices(stage_a, first_row + i * MMA_M, k, True)
                for e in range_constexpr(8):
                    fragments_a[(e % 2, e // 2 % 2, e // 4), i] = found[e]
            for j in range_constexpr(columns // 2):
                found = side_b.matrices(stage_b, first_column + j * 2 * MMA_N, k, False)
                for e in range_constexpr(8):
                    fragments_b[(e % 2, e // 2 % 2), 2 * j + e // 4] = found[e]
            cute.gemm(mma, sums, fragments_a, fragments_b, sums)

    def _warp(self) -> tuple[Int32, Int32, Int32]:
        """Return a thread's warp among those along m, n and k."""
        tile = self.tile
        number = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        return (
            number % tile.warps[0],
            number // tile.warps[0] % tile.warps[1],
            number // (tile.warps[0] * tile.warps[1]),
        )

    @cute.jit
    def _write_sums(self, sums: cute.Tensor, parts: cute.Tensor) -> None:
        """Write a warp's sums to shared memory. Source: PTX ISA, mma.m16n8k16, registers of the accumulator."""
        tile = self.tile
        lane = cute.arch.lane_idx()
        along_m, along_n, along_k = self._warp()
        for i in range_constexpr(tile.warp_rows // MMA_M):
            for j in range_constexpr(tile.warp_columns // MMA_N):
                for v in range_constexpr(4):
                    row = along_m * tile.warp_rows + i * MMA_M + lane // 4 + v // 2 * 8
                    column = along_n * tile.warp_columns + j * MMA_N + lane % 4 * 2 + v % 2
                    parts[row, column, along_k] = sums[(v % 2, v // 2), i, j]

    @cute.jit
    def _store(
        self, parts: Any, d: cute.Tensor, operands: Constexpr[EpilogueOperands], first: Any, thread: Int32
    ) -> None:
        """Add up the parts of the sums, finish them, and store the tile of D from `first`, (m, n), on.

        Args:
            parts: the sums of each CTA of the cluster.
            d: D.
            operands: what the epilogue reads.
            first: the tile's first row and column of D.
            thread: number of the thread among those of the cluster.
        """
        tile = self.tile
        columns = tile.columns // self.num_halves
        num_threads = tile.num_threads * tile.splits
        for turn in cutlass.range(-(-tile.rows * columns // num_threads), unroll=4):
            index = thread + turn * num_threads
            row, column = index // columns, index % columns
            m, n = first[0] + row, first[1] + column
            if index < tile.rows * columns and m < d.shape[0] and n < d.shape[1]:
                totals = [self._total(parts, row, column * self.num_halves + half) for half in range(self.num_halves)]
                d[m, n] = finish(tuple(totals), m, n, operands, self.operation).to(d.element_type)

    def _part(self, of_cta: Any, place: Any) -> Any:
        """Return a part of a sum: of this CTA's, a tensor, or of one of the cluster's, by the address of its parts."""
        if self.tile.splits == 1:
            return of_cta[place]
        return _part_of(Int32(of_cta) + cute.crd2idx(place, self._parts) * (Float32.width // 8))

    def _total(self, parts: Any, row: Int32, column: Int32) -> Any:
        """Add up the parts of a sum in order; to be called while tracing."""
        every = [self._part(of_cta, (row, column, p)) for of_cta in parts for p in range(self.tile.warps[2])]
        total = every[0]
        for part in every[1:]:
            total = total + part
        return total


def _part_of(address: Any) -> Any:
    """Load a float of another CTA's shared memory, by its address among those of the cluster."""
    return cute.arch.inline_ptx(
        "ld.shared::cluster.f32 {$w0}, [{$r0}];", write_only_types=[Float32], read_only_args=[address]
    )


def mma_sync_entry(tile: Tile, operation: Operation, signature: Signature, *, is_dependent: bool) -> Entry:
    """Make the entry of a candidate.

    Args:
        tile: the candidate's.
        operation: element types, layout and epilogue.
        signature: the entry's arguments.
        is_dependent: whether the chip has programmatic dependent launch.
    """
    gemm = MmaSyncGemm(cutlass_type(operation.a.element), tile, operation, is_dependent)
    has_gate = operation.gate is not None

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
        _workspace: None,
        _prefetch_b: None,
        _tile_order: None,
        stream: cuda.CUstream,
    ) -> None:
        rows_of_b = paired(b) if const_expr(has_gate) else b
        gemm(a, rows_of_b, d, EpilogueOperands(bias=bias, residual=residual), stream)

    return Entry(entry, epilogue_arguments(signature, operation, stores=1, loads=tile.loads))
