"""The kernel of `mma_sync`: loads of any alignment, `ldmatrix` and `mma.sync`. Imports CUTLASS.

A CTA multiplies a tile of D, of a batch that of one product. Its threads copy a block of k of both operands into a
stage, in pieces of as many bytes as the operands' rows begin at multiples of; bytes of a piece that lie behind an
extent are not read, and are zero. They are copied asynchronously, a ring of stages ahead of the multiplication. Rows
that begin at any element are copied in pieces of 16 bytes from the aligned address in front of each, and moved to a
second place in shared memory, a block ahead of the multiplication: that takes fewer loads than by elements, and as many
bytes are under way. A kernel may load an operand by 16 bytes, and not move it, where its rows begin at multiples of
them and those of the other do not: it finds out as it begins. Where warps share k, each takes every second, fourth or
eighth step; where the CTAs of a cluster do, each takes every so many blocks. The sums pass through shared memory: see
`_mma_sync_store`.

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
from aot.families._epilogue_steps import EpilogueOperands
from aot.families._grid import along_x
from aot.families._mma_sync_loads import Side
from aot.families._mma_sync_store import Store
from aot.families._mma_sync_tile import MMA_K, MMA_M, MMA_N, Tile
from aot.families._pieces import SEGMENT

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
        shared = tile.loads, tile.num_threads, tile.loads_own
        return (
            Side(tile.rows, tile.block_k, tile.a_is_k_major, *shared, tile.moves_few and tile.a_is_k_major),
            Side(tile.columns, tile.block_k, tile.b_is_k_major, *shared, tile.moves_few and tile.b_is_k_major),
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
        self.kernel(a, b, d, vectors.bias, vectors.residual).launch(**self.launch_options(d), stream=stream)

    def launch_options(self, d: cute.Tensor) -> dict[str, Any]:
        """Say how the kernel is launched, but for the stream; to be called while tracing."""
        tile = self.tile
        num_products = (d.shape[0],) if self.is_batched else ()
        return {
            "grid": along_x(*self._num_tiles(d), tile.splits, *num_products),
            "block": (tile.num_threads, 1, 1),
            **({"cluster": (tile.splits, 1, 1)} if tile.splits > 1 else {}),
            "min_blocks_per_mp": tile.num_blocks_per_sm,
            "preferred_smem_carveout": 100,  # left out, the compiler asks a GPU how much there is
            "use_pdl": self.is_dependent,
        }

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
        store = Store(tile, self.operation)
        floats = cute.recast_ptr(memory, dtype=Float32)
        store.write_sums(sums, floats, self._warp())
        parts = [floats]
        if const_expr(tile.splits > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            parts = [cute.arch.map_dsmem_ptr(floats, r).toint() for r in range(tile.splits)]
        else:
            cute.arch.sync_threads()
        operands = EpilogueOperands(bias=bias, residual=residual)
        first = tile_m * tile.rows, tile_n * (tile.columns // self.num_halves)
        store.store(parts, d, operands, first, rank * tile.num_threads + thread)
        if const_expr(tile.splits > 1):  # others read this CTA's sums
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()

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
        """Multiply the tile whose first row of A and of B is `origin`, and return the sums of a thread's warp.

        A turn of the loop brings a block of k as many ahead as the ring is long, moves the next one where rows begin at
        any element, and multiplies one. One barrier a turn orders all of it: what a turn overwrites was read in the
        turn before.
        """
        tile = self.tile
        sums = cute.make_rmem_tensor(((2, 2), tile.warp_rows // MMA_M, tile.warp_columns // MMA_N), Float32)
        sums.fill(0.0)
        num_blocks = cute.ceil_div(cute.size(a, mode=[1]), tile.block_k)
        num_own = cute.ceil_div(cutlass.max(num_blocks - rank, 0), tile.splits)
        operands = a, b
        wide = [x.is_wide(y) if tile.loads_own else None for x, y in zip(self.sides, operands, strict=True)]
        lines = [self._lines(side, operands[side], origin[side], thread, wide[side]) for side in range(2)]
        ahead = tile.num_ahead
        for block in cutlass.range(ahead, unroll=1):
            self._bring(lines, operands, memory, block, num_own, rank, wide)
        if const_expr(tile.is_shifted):
            cute.arch.cp_async_wait_group(ahead - 1)
            cute.arch.sync_threads()
            self._move(lines, operands, memory, Int32(0), wide)
        for block in cutlass.range(num_own, unroll=1):
            cute.arch.cp_async_wait_group(ahead - (2 if tile.is_shifted else 1))
            cute.arch.sync_threads()
            self._bring(lines, operands, memory, block + ahead, num_own, rank, wide)
            ready = [block % tile.num_ring] * 2
            if const_expr(tile.is_shifted):
                if block + 1 < num_own:  # the first is Python's, the second the kernel's
                    self._move(lines, operands, memory, block + 1, wide)
                moved = tile.num_ring + block % 2
                if const_expr(tile.loads_own):
                    ready = [cutlass.select_(wide[side], ready[side], moved) for side in range(2)]
                else:
                    ready = [moved] * 2
            self._multiply_stage(sums, memory, ready)
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        return sums

    def _lines(self, side: int, source: cute.Tensor, first_row: Int32, thread: Int32, is_wide: Any) -> Any:
        """Return where a thread's pieces of an operand lie; to be called while tracing."""
        if self.tile.loads_own:
            return self.sides[side].own_lines(source, first_row, thread, is_wide)
        return self.sides[side].lines(source, first_row, thread)

    @cute.jit
    def _bring(
        self, lines: Any, operands: Any, memory: Any, block: Int32, num_own: Int32, rank: Int32, wide: Any
    ) -> None:
        """Bring one of the CTA's `num_own` blocks of k of both operands into a stage, asynchronously, if it is one."""
        if block < num_own:
            for side in range_constexpr(2):
                stage = self._stage(memory, block % self.tile.num_ring, side)
                place = rank + block * self.tile.splits
                if const_expr(self.tile.loads_own):
                    self.sides[side].copy_own(lines[side], operands[side], stage, place, wide[side])
                else:
                    self.sides[side].copy(lines[side], operands[side], stage, place)
        cute.arch.cp_async_commit_group()

    @cute.jit
    def _move(self, lines: Any, operands: Any, memory: Any, block: Int32, wide: Any) -> None:
        """Move the rows of a block that is there to where `ldmatrix` reads them, but for an operand that is `wide`."""
        ring = self.tile.num_ring
        for side in range_constexpr(2):
            source = self._stage(memory, block % ring, side)
            target = self._stage(memory, ring + block % 2, side)
            if const_expr(self.tile.loads_own):
                if not wide[side]:
                    self.sides[side].write_moved(lines[side], operands[side], source, target)
            else:
                self.sides[side].write_moved(lines[side], operands[side], source, target)

    @cute.jit
    def _multiply_stage(self, sums: cute.Tensor, memory: Any, slots: Any) -> None:
        """Add the product of the steps of k that are the warp's, of the stages where A and B are, to its sums."""
        tile = self.tile
        side_a, side_b = self.sides
        along_m, along_n, along_k = self._warp()
        stage_a, stage_b = self._stage(memory, slots[0], 0), self._stage(memory, slots[1], 1)
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
