"""The kernel of `weight_only`: few rows of x times a packed weight. Imports CUTLASS.

It computes the transpose: rows of the weight are the 16-wide side of `mma.sync` m16n8k16, rows of x the 8-wide. A CTA
has some rows of the weight and all of k, so that it stores D itself. Its warps take blocks of k in turn, each with a
ring of stages of its own, which no other warp waits for: a lane asks for the weight by bulk copies, all lanes for x by
`cp.async`, and both arrive at the stage's barrier. The codes become operands in registers. Groups' factors multiply
the sums of a group in float32, those of nvfp4 the operands, which is exact. In the end the warps' sums are added in
shared memory. With a gate half of a CTA's rows are of one weight and half of another (`_weight_only_store.py`).

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass, field
from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Constexpr, Float32, Int32, Int64, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import warp
from cutlass.experimental import primitives as prims
from cutlass.memory import SmemAllocator

from aot.core.epilogue import Step
from aot.core.weight_format import BLOCK_K, TILE_ROWS
from aot.families._grid import along_x
from aot.families._packed_operands import added_of, weights_of
from aot.families._waits import await_phase
from aot.families._weight_only_decode import Decoder, constant, pair
from aot.families._weight_only_reads import StageReader
from aot.families._weight_only_rows import (
    TILES_OF_ATOM,
    load_block,
    prefetch_descriptors,
    view_weight,
    x_place,
)
from aot.families._weight_only_store import WarpSums
from aot.families._weight_only_tile import ALIGN_BYTES, MMA_N, X_BYTES, X_PIECE, X_TURN, Tile

ARRIVALS = 33
"""At a stage's barrier: each lane's, when its copies of x are complete, and that of who asks for the weight."""
SHORT_GROUP = 2
"""Steps of a group up to which its sums begin with what the offset takes. Longer ones would begin late: the offset's
products wait for each other."""


@dataclass(frozen=True)
class WeightOnlyGemm:
    """The kernel of one candidate."""

    element: Any
    """CUTLASS's type of x and D."""
    tile: Tile
    is_dependent: bool
    """Whether the chip can start it before the kernel in front of it ends: then it waits for that end."""
    gate: Step | None = field(default=None, repr=False)
    """Which the name of a kernel, that is of what is printed of this, need not say."""

    @property
    def decoder(self) -> Decoder:
        """Return what makes operands of codes."""
        return Decoder(self.tile.form, self.element)

    @property
    def of_sums(self) -> WarpSums:
        """Return what makes D of sums."""
        return WarpSums(self.element, self.tile, self.decoder.exponent, self.gate)

    @property
    def adds_offset(self) -> bool:
        """Say whether the codes' offset is taken by one more instruction with a constant A, for all tiles at once.

        With 16 rows of x that would be two more for each step, and taking it from the operands costs less.
        Source: H100, 2026-11-26, arithmetic alone: 23 to 27 bytes of the weight a clock with 8 rows, 19 to 20 with 16.
        """
        return self.tile.form.has_zeros or (self.decoder.offsets is not None and self.tile.column_tiles == 1)

    @property
    def has_groups(self) -> bool:
        """Say whether sums of a group are multiplied by a float32 factor."""
        return self.tile.form.group > 0 and not self.tile.scales_operands

    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        added: tuple[Any, cute.Tensor],
        prefetch_b: Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Launch a CTA for each of so many rows of the weight; to be called while tracing.

        Args:
            a: x (m, k).
            b: the packed weight, bytes; with a gate two of them, at any step.
            d: D (m, n).
            added: float32 factors (n), of stride 1 or 0, or None; and a bias (n), or of 0 elements; with a gate (2, n).
            prefetch_b: whether B may be read before the kernel in front has ended.
            stream: where the kernel is launched.
        """
        tile = self.tile
        row_tiles, column_tiles = self._ctas_of_rows(d.shape[1]), cute.ceil_div(d.shape[0], tile.columns)
        extents = Int32(d.shape[0]), Int32(d.shape[1]), Int32(a.shape[1])
        strides = Int64(a.stride[0]), Int64(d.stride[0])
        weights, (scale_b, bias) = weights_of(b, self.gate), added
        if const_expr(tile.form.in_rows):
            weights = tuple(view_weight(x, extents[1], extents[2], tile) for x in weights)
        packed = weights[0] if self.gate is None else weights
        others = added_of(scale_b, bias, is_stack=self.gate is not None)
        self.kernel(a.iterator, packed, d.iterator, extents, strides, others, prefetch_b).launch(
            grid=along_x(row_tiles, column_tiles),
            block=(tile.num_threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=tile.blocks_per_sm,
            preferred_smem_carveout=100,  # left out, the compiler asks a GPU how much there is
            use_pdl=self.is_dependent,
        )

    def _weights(self, packed: Any) -> tuple[Any, ...]:
        """Return the weights of a CTA's tiles, which have as many each, of what the kernel is given."""
        return (packed,) if self.gate is None else packed

    def _ctas_of_rows(self, n: Any) -> Any:
        """Count the CTAs that the columns of D take: in rows the weight's tiles are those of whole atoms."""
        columns = self.of_sums.columns_of_d
        if self.tile.form.in_rows:
            tiles = cute.ceil_div(n, TILE_ROWS * TILES_OF_ATOM) * TILES_OF_ATOM
            return cute.ceil_div(tiles, columns // TILE_ROWS)
        return cute.ceil_div(n, columns)

    @cute.kernel
    def kernel(
        self,
        x: Any,
        packed: Any,
        d: Any,
        extents: Any,
        strides: Any,
        added: Any,
        prefetch_b: Int32,
    ) -> None:
        """Compute the columns of D of some rows of the weight: see the module."""
        tile = self.tile
        m, n, k = extents
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        columns_of_d = const_expr(self.of_sums.columns_of_d)
        first_row, first_column = block * columns_of_d, Int32(0)
        if m > tile.columns:  # a division would delay the first load
            row_tiles = self._ctas_of_rows(n)
            first_row, first_column = block % row_tiles * columns_of_d, block // row_tiles * tile.columns
        rows_of_x = cutlass.min(m - first_column, tile.columns)
        place = first_row, first_column, rows_of_x, n
        self._compute((x, strides[0], k), packed, (d, strides[1]), place, added, prefetch_b, (thread, warp_index))

    @cute.jit
    def _compute(
        self, x: Any, packed: Any, d: Any, place: Any, added: Any, prefetch_b: Int32, threads: tuple[Int32, Int32]
    ) -> None:
        """Compute the columns of D of some rows of a weight, and of some rows of x.

        Args:
            x: where it lies, its step and the length of a row, and what else `_rows_of_x` reads.
            packed: where the weight lies, or what loads it.
            d: where D lies, and its step.
            place: the first column and row of D, its rows of this CTA, and its columns.
            added: what `added_of` returned.
            prefetch_b: whether the weight may be read before the kernel in front has ended.
            threads: the thread and its warp.
        """
        tile, (thread, warp_index), (first_row, _, _, n) = self.tile, threads, place
        memory = SmemAllocator().allocate(tile.smem_bytes, ALIGN_BYTES)
        barriers = cute.recast_ptr(memory, dtype=Int64) + warp_index * tile.num_stages
        ring = memory + (tile.barrier_bytes + warp_index * tile.ring_bytes)
        if const_expr(tile.form.in_rows):  # noqa: SIM102 - known while tracing, the next is not
            if warp_index == 0:
                prefetch_descriptors(self._weights(packed))
        with cute.arch.elect_one():
            for s in range_constexpr(tile.num_stages):
                cute.arch.mbarrier_init(barriers + s, ARRIVALS)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_warp()
        x_rows = self._rows_of_x(x, place)
        num_blocks = cute.ceil_div(x[2], BLOCK_K)
        weight = (packed, first_row // TILE_ROWS, cute.ceil_div(n, TILE_ROWS), num_blocks)
        masks = self.decoder.masks(n)
        sums = self._multiply(x_rows, weight, ring, barriers, warp_index, prefetch_b, masks)
        self.of_sums.write(sums, ring)
        cute.arch.sync_threads()
        self.of_sums.store(memory + tile.barrier_bytes, d[0], place, d[1], added, thread)

    @cute.jit
    def _multiply(
        self, x: Any, weight: Any, ring: Any, barriers: Any, warp_index: Int32, prefetch_b: Int32, masks: Any
    ) -> Any:
        """Load and multiply a warp's stages of k, from the first on in steps of the warps; return its sums."""
        tile = self.tile
        sums = cute.make_rmem_tensor(((2, 2), 1, tile.column_tiles, tile.tiles), Float32)
        sums.fill(0.0)
        chunks = cute.ceil_div(weight[3], tile.blocks)
        self._begin(x, weight, ring, barriers, warp_index, prefetch_b, chunks)
        stage, phase = Int32(0), Int32(0)
        for chunk in cutlass.range(warp_index, chunks, tile.num_warps, unroll=1):
            await_phase(barriers + stage, phase)
            here = ring + stage * tile.stage_bytes
            for i in range_constexpr(tile.blocks):
                self._multiply_block_of(sums, here, i, x[2], masks, weight[3] - chunk * tile.blocks)
            cute.arch.sync_warp()
            following = chunk + tile.num_stages * tile.num_warps
            if following < chunks:
                self._load_weight(weight, following, here, barriers + stage)
                self._load_x(x, following, here, barriers + stage)
            stage += 1
            if stage == tile.num_stages:
                stage = Int32(0)
                phase ^= 1
        cute.arch.sync_warp()
        return sums

    @cute.jit
    def _begin(
        self, x: Any, weight: Any, ring: Any, barriers: Any, warp_index: Int32, prefetch_b: Int32, chunks: Int32
    ) -> None:
        """Ask for a warp's first stages: for the weight, which may be constant, before x is there."""
        tile = self.tile
        num_first = cutlass.min(tile.num_stages, cute.ceil_div(cutlass.max(chunks - warp_index, 0), tile.num_warps))
        if const_expr(self.is_dependent):  # noqa: SIM102 - known while tracing, the next is not
            if prefetch_b == 0:
                cute.arch.griddepcontrol_wait()
        for s in cutlass.range(num_first, unroll=1):
            self._load_weight(weight, warp_index + s * tile.num_warps, ring + s * tile.stage_bytes, barriers + s)
        if const_expr(self.is_dependent):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        for s in cutlass.range(num_first, unroll=1):
            self._load_x(x, warp_index + s * tile.num_warps, ring + s * tile.stage_bytes, barriers + s)

    @cute.jit
    def _load_weight(self, weight: Any, chunk: Int32, stage: Any, barrier: Any) -> None:
        """Ask for a stage of the weight: the blocks that each tile of rows has. Tiles too many are the last."""
        tile = self.tile
        packed, first, count, num_blocks = weight
        size = tile.layout.block_bytes
        weights, num_bytes = self._weights(packed), Int32(tile.blocks * size)
        of_each = const_expr(tile.tiles // len(weights))
        if const_expr(tile.blocks > 1):
            num_bytes = cutlass.min(num_blocks - chunk * tile.blocks, tile.blocks) * size
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, num_bytes * tile.tiles)
            if const_expr(not tile.form.in_rows):
                for i in range_constexpr(tile.tiles):
                    row = cutlass.min(first + i % of_each, count - 1)
                    source = weights[i // of_each] + (Int64(row) * num_blocks + chunk * tile.blocks) * size
                    target = stage + i * tile.copy_bytes
                    prims.cp_async_bulk_shared_cluster_global(
                        target.to_llvm_ptr(), source.to_llvm_ptr(), barrier.to_llvm_ptr(), num_bytes
                    )
        if const_expr(tile.form.in_rows):
            for index in range_constexpr(tile.blocks):
                self._load_rows(weight, chunk * tile.blocks + index, index, stage, barrier)

    @cute.jit
    def _load_rows(self, weight: Any, block: Int32, index: Constexpr[int], stage: Any, barrier: Any) -> None:
        """Ask for a block of k of a weight in rows, if there is one: zeros stand for tiles too many."""
        target = stage + index * self.tile.block_bytes
        weights = self._weights(weight[0])
        if const_expr(index == 0):  # noqa: SIM114 - known while tracing, the next is not
            load_block(weights, self.tile, (weight[1], block), target, barrier)
        elif block < weight[3]:
            load_block(weights, self.tile, (weight[1], block), target, barrier)

    @cute.jit
    def _load_x(self, x: Any, chunk: Int32, stage: Any, barrier: Any) -> None:
        """Copy a stage of x, of what lies behind k zeros."""
        tile = self.tile
        start, stride, rows, *_ = x
        target, first = stage + tile.weight_bytes, chunk * (tile.blocks * BLOCK_K)
        lane = cute.arch.lane_idx()
        for i in cutlass.range(cute.ceil_div(rows * tile.x_pieces, 32), unroll=1):
            piece = lane + i * 32
            row, inner = piece // tile.x_pieces, piece % tile.x_pieces
            at = first + inner * X_PIECE
            if row < rows:
                source_row, end = self._row_of_x(x, row)
                source = start + (Int64(source_row) * stride + at)
                turned = inner ^ (row & 1) * X_TURN
                if const_expr(tile.form.in_rows):
                    turned = x_place(inner, row)
                place = target + (row * tile.x_row_bytes + turned * (X_PIECE * X_BYTES))
                count = cutlass.select_(at < end, Int32(X_PIECE * X_BYTES), Int32(0))
                prims.cp_async_shared_global(
                    place.to_llvm_ptr(),
                    source.to_llvm_ptr(),
                    X_PIECE * X_BYTES,
                    prims.LoadCacheModifier.CG,
                    cp_size=count,
                )
        cute.arch.cp_async_mbarrier_arrive_noinc(barrier)

    def _rows_of_x(self, x: Any, place: Any) -> Any:
        """Return where a CTA's rows of x lie, their step, how many there are, and their length; while tracing."""
        start, stride, k = x
        return start + Int64(place[1]) * stride, stride, place[2], k

    def _row_of_x(self, x: Any, row: Int32) -> tuple[Any, Any]:
        """Return which row of x a CTA's is, and its length, 0 of one that there is not; to be called while tracing."""
        return row, x[3]

    @cute.jit
    def _multiply_block_of(
        self, sums: cute.Tensor, stage: Any, index: Constexpr[int], rows: Int32, masks: Any, count: Int32
    ) -> None:
        """Multiply a block of a stage, if the stage has it: all have one."""
        if const_expr(index == 0):  # noqa: SIM114 - known while tracing, the next is not
            self._multiply_block(sums, stage, index, rows, masks)
        elif index < count:
            self._multiply_block(sums, stage, index, rows, masks)

    def _multiply_block(self, sums: cute.Tensor, stage: Any, index: int, rows: Int32, masks: Any) -> None:
        """Add the product of a block of 128 along k to a warp's sums; to be called while tracing."""
        tile, decoder = self.tile, self.decoder
        reader = StageReader(tile, decoder)
        x = reader.x_of_block(stage, index, rows)
        factors = [reader.factors(stage + reader.block(i, index)) for i in range(tile.tiles)]
        zeros = [reader.zero_points(stage + reader.block(i, index)) for i in range(tile.tiles)]
        codes: list[dict[Any, Any]] = [{} for _ in range(tile.tiles)]
        per_group = tile.form.group // 16 if self.has_groups else BLOCK_K // 16
        for group in range(BLOCK_K // 16 // per_group):
            steps = range(group * per_group, (group + 1) * per_group)
            offset = self._offset(x[steps.start : steps.stop]) if self.has_groups else None
            is_first = per_group <= SHORT_GROUP and not tile.form.has_zeros
            start, later = (offset, None) if is_first else (None, offset)
            for i in range(tile.tiles):
                total: Any = sums[None, None, None, i]
                found = total if not self.has_groups else self._sums(start)
                for step in steps:
                    registers = reader.registers(stage, reader.block(i, index), step, (codes[i], masks))
                    if tile.scales_operands:
                        registers = decoder.scaled(registers, factors[i][step * len(factors[i]) * 16 // BLOCK_K])
                    elif decoder.offsets is not None and not self.adds_offset:
                        registers = decoder.without_offset(registers)
                    self._mma(found, registers, x[step])
                if self.has_groups:
                    points = zeros[i][group] if tile.form.has_zeros else (1.0, 1.0)
                    self._add_scaled(total, found, (later, points), factors[i][group])

    def _offset(self, x: list[list[Any]]) -> Any:
        """Return what the offset of all codes of a group takes of its sums, where an instruction says that; or None."""
        offsets = self.decoder.offsets
        if offsets is None or not self.adds_offset:
            return None
        found = self._sums(None)
        negative = [constant(pair(x | 0x8000)) for x in offsets]
        for words in x:
            self._mma(found, negative, words)
        return found

    def _sums(self, start: Any) -> Any:
        """Return sums to add to: zeros, or a copy of others."""
        found = cute.make_rmem_tensor(((2, 2), 1, self.tile.column_tiles), Float32)
        if start is None:
            found.fill(0.0)
        else:
            found.store(start.load())
        return found

    def _mma(self, sums: cute.Tensor, registers: list[Any], x: list[Any]) -> None:
        """Multiply 16 rows of the weight and all columns by 16 of k, and add to sums ((2, 2), 1, columns)."""
        mma = cute.make_mma_atom(warp.MmaF16BF16Op(self.element, Float32, (TILE_ROWS, MMA_N, 16)))
        left = cute.make_rmem_tensor(((2, 2, 2), 1), self.element)
        right = cute.make_rmem_tensor(((2, 2), self.tile.column_tiles), self.element)
        left_words = cute.make_tensor(cute.recast_ptr(left.iterator, dtype=Int32), cute.make_layout(4))
        right_words = cute.make_tensor(
            cute.recast_ptr(right.iterator, dtype=Int32), cute.make_layout((2, self.tile.column_tiles))
        )
        for i in range(4):
            left_words[i] = registers[i]
        for j in range(self.tile.column_tiles):
            for i in range(2):
                right_words[i, j] = x[j][i]
        cute.gemm(mma, sums, left, right, sums)

    def _add_scaled(self, total: cute.Tensor, found: cute.Tensor, offset: Any, factors: list[Any]) -> None:
        """Add a group's sums, and what their offset takes, times the factors of a lane's two rows.

        `offset` is what the offset takes, or None, and how often it is to be taken for each row.
        """
        taken, points = offset
        for j in range(self.tile.column_tiles):
            for v in range(4):
                at = (v % 2, v // 2), 0, j
                value = found[at]
                if taken is not None:
                    value = value + taken[at] * points[v // 2] if self.tile.form.has_zeros else value + taken[at]
                total[at] = total[at] + value * factors[v // 2]
