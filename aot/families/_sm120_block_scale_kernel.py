"""The kernel of `sm120_block_scale`: `cp.async`, `ldmatrix`, and `mma.sync` with scale factors. Imports CUTLASS.

A CTA multiplies a tile of D. Its threads copy a block of k of both operands, and their factors, into a stage, a ring
of stages ahead of the multiplication. A warp reads its rows by `ldmatrix`, and of each row the word of four factors
that an atom has, which is a register of the instruction: lanes hold it as thread-id 0 selects it. Which of its bytes an
instruction takes is a constant where a warp has all steps of k; else the word is moved.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import BFloat16, Float32, Int32, Int64, Uint8, const_expr, cute, range_constexpr
from cutlass.memory import SmemAllocator

from aot.core.element import BYTE_BITS
from aot.core.formats import Operand
from aot.core.operation import Operation
from aot.core.signature import Signature
from aot.families import Entry
from aot.families._arguments import epilogue_arguments
from aot.families._epilogue_registers import in_turns
from aot.families._epilogue_steps import EpilogueOperands
from aot.families._mma_sync_kernel import MmaSyncGemm
from aot.families._mma_sync_store import Store
from aot.families._mma_sync_tile import MMA_M, MMA_N
from aot.families._sm120_block_scale_loads import Part
from aot.families._sm120_block_scale_tile import PIECE_BYTES, STEP_BYTES, BlockScaledTile

SMEM_ALIGNMENT = 128
"""Bytes, over which rows are swizzled."""


class BlockScaledGemm(MmaSyncGemm):
    """The kernel of one candidate: `MmaSyncGemm` with other operands, whose order of tiles and warps it has."""

    tile: BlockScaledTile

    @property
    def parts(self) -> tuple[Part, Part]:
        """Describe the parts of A and of B."""
        tile, (a, b, factors_a, factors_b) = self.tile, self.tile.starts
        rows, columns = tile.factor_rows
        narrowing = tile.row_bytes // tile.b_row_bytes
        return (
            Part(rows, tile.row_bytes, tile.word_bytes, a, factors_a, tile.num_threads),
            Part(columns, tile.b_row_bytes, tile.word_bytes // narrowing, b, factors_b, tile.num_threads),
        )

    def __call__(self, a: Any, b: Any, d: cute.Tensor, vectors: Any, stream: cuda.CUstream) -> None:
        """Launch a CTA for each tile of D; to be called while tracing.

        Args:
            a: A's rows as bytes, (m, bytes of k), and the bytes of its atoms.
            b: those of B's n rows; with a gate of 2 n, in turns.
            d: D (m, n).
            vectors: `EpilogueOperands`.
            stream: where the kernel is launched.
        """
        operands = a, b, d, vectors.bias, vectors.residual, vectors.scale_d
        self.kernel(*operands).launch(**self.launch_options(d), stream=stream)

    @cute.kernel
    def kernel(self, a: Any, b: Any, d: cute.Tensor, bias: Any, residual: Any, scale_d: Any = None) -> None:
        """Compute a tile of D: see the module."""
        tile = self.tile
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        tile_m, tile_n = self._place(block, d)
        memory = cute.recast_ptr(SmemAllocator().allocate(tile.smem_bytes, SMEM_ALIGNMENT), dtype=Uint8)
        if const_expr(self.is_dependent):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        sums = self._sums_of_tile((a, b), memory, (tile_m * tile.rows, tile_n * tile.columns), thread)
        store = Store(tile, self.operation)
        floats = cute.recast_ptr(memory.align(SMEM_ALIGNMENT), dtype=Float32)
        store.write_sums(sums, floats, self._warp())
        cute.arch.sync_threads()
        operands = EpilogueOperands(bias=bias, residual=residual, scale_d=scale_d)
        store.store([floats], d, operands, (tile_m * tile.rows, tile_n * (tile.columns // self.num_halves)), thread)

    @cute.jit
    def _sums_of_tile(self, operands: Any, memory: Any, origin: Any, thread: Int32) -> Any:
        """Multiply the tile whose first row of A and of B is `origin`, and return the sums of a thread's warp.

        One barrier a turn orders all of it: what a turn overwrites was read in the turn before.
        """
        tile = self.tile
        sums = cute.make_rmem_tensor(((2, 2), tile.warp_rows // MMA_M, tile.warp_columns // MMA_N), Float32)
        sums.fill(0.0)
        num_blocks = cute.ceil_div(operands[0][0].shape[1], tile.row_bytes)
        cursors = [self.parts[i].cursor(operands[i], origin[i], thread) for i in range(2)]
        ahead, of_warp = tile.num_stages - 1, self._warp()
        for block in cutlass.range(ahead, unroll=1):
            self._bring_stage(cursors, memory, block, num_blocks, thread)
        for block in cutlass.range(num_blocks, unroll=1):
            cute.arch.cp_async_wait_group(ahead - 1)
            cute.arch.sync_threads()
            self._bring_stage(cursors, memory, block + ahead, num_blocks, thread)
            self._multiply_block(sums, self._stage_of(memory, block), block, of_warp)
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        return sums

    def _stage_of(self, memory: Any, block: Any) -> Any:
        """Return where the stage of a block of k begins; to be called while tracing."""
        tile = self.tile
        return memory + cute.assume(block % tile.num_stages * tile.stage_bytes, divby=PIECE_BYTES)

    @cute.jit
    def _bring_stage(self, cursors: Any, memory: Any, block: Int32, num_blocks: Int32, thread: Int32) -> None:
        """Bring a block of k of both operands into its stage, asynchronously, if there is one."""
        if block < num_blocks:
            stage = self._stage_of(memory, block)
            for side in range_constexpr(2):
                self.parts[side].copy(cursors[side], stage, block, thread)
                self.parts[side].copy_factors(cursors[side], stage, block, thread)
        cute.arch.cp_async_commit_group()

    def _multiply_block(self, sums: cute.Tensor, stage: Any, block: Any, of_warp: Any) -> None:
        """Add the product of a stage's steps of k that are the warp's to its sums; to be called while tracing."""
        tile, (part_a, part_b) = self.tile, self.parts
        along_m, along_n, along_k = of_warp
        lane = cute.arch.lane_idx()
        row, column = along_m * tile.warp_rows, along_n * tile.warp_columns
        num_rows, num_columns = tile.warp_rows // MMA_M, tile.warp_columns // MMA_N
        row_of_lane, column_of_lane = row + lane // 4 + lane % 2 * (MMA_M // 2), column + lane // 4
        words: tuple[list[Any], list[Any]] = ([], [])
        for turn in range(tile.row_bytes // STEP_BYTES // tile.warps[2]):
            step = turn if tile.warps[2] == 1 else turn * tile.warps[2] + along_k
            if tile.warps[2] > 1 or turn % tile.instruction.steps_per_word == 0:
                atom = step // tile.instruction.steps_per_word
                words = (
                    [part_a.word(stage, row_of_lane + i * MMA_M, atom) for i in range(num_rows)],
                    [part_b.word(stage, column_of_lane + j * MMA_N, atom) for j in range(num_columns)],
                )
            byte, moved = self._selected(words, block, step)
            rows = [part_a.matrices(stage, row, i, step, rows_first=True) for i in range(num_rows)]
            columns = self._columns(part_b, stage, column, num_columns, step)
            for i, of_a in enumerate(rows):
                for j, of_b in enumerate(columns):
                    self._add(sums, (i, j), [*of_a, *of_b], (moved[0][i], moved[1][j]), byte)

    def _selected(self, words: Any, block: Int32, step: Any) -> tuple[int, Any]:
        """Return the byte-id of a step along k, and the words that it is of; to be called while tracing."""
        tile, instruction = self.tile, self.tile.instruction
        if instruction.steps_per_word == 1:
            return 0, words
        steps = tile.row_bytes // STEP_BYTES
        if isinstance(step, int) and steps % instruction.steps_per_word == 0:
            return instruction.byte_of(step), words
        bits = (block * steps + step) % instruction.steps_per_word * (instruction.num_factors * BYTE_BITS)
        return 0, tuple([x >> bits for x in side] for side in words)

    def _columns(self, part: Part, stage: Any, column: Any, num_columns: int, step: Any) -> list[list[Any]]:
        """Return the words of B of each 8 columns; to be called while tracing."""
        if self.tile.is_padded:
            return [part.widened(stage, column + j * MMA_N, step) for j in range(num_columns)]
        found = [part.matrices(stage, column, i, step, rows_first=False) for i in range(num_columns // 2)]
        return [four[i : i + 2] for four in found for i in (0, 2)]

    def _add(self, sums: cute.Tensor, at: tuple[int, int], fragments: list[Any], words: Any, byte: int) -> None:
        """Add the product of 16 rows and 8 columns to their sums; to be called while tracing."""
        places = [((e % 2, e // 2), *at) for e in range(4)]
        a, b, c = ([f"{{$r{i}}}" for i in x] for x in (range(4), range(4, 6), range(6, 10)))
        vectors = (f"{{{', '.join(x)}}}" for x in ([f"{{$w{e}}}" for e in range(4)], a, b, c))
        selector = f"{{{byte}, 0}}"
        text = f"{self.tile.instruction.opcode} {', '.join(vectors)}, {{$r10}}, {selector}, {{$r11}}, {selector};"
        found = cute.arch.inline_ptx(
            text,
            write_only_types=[Float32] * 4,
            read_only_args=[*fragments, *(sums[x] for x in places), *words],
        )
        for place, value in zip(places, found, strict=True):
            sums[place] = value


def _as_bytes(operand: Any, form: Operand) -> Any:
    """View an operand's rows as bytes, whatever its elements are; to be called while tracing."""
    rows, k = operand.shape
    stride = Int64(operand.stride[0]) * form.element.bits // BYTE_BITS
    layout = cute.make_layout((rows, k * form.element.bits // BYTE_BITS), stride=(stride, 1))
    return cute.make_tensor(cute.recast_ptr(operand.iterator, dtype=Uint8), layout)


def block_scale_entry(
    tile: BlockScaledTile, operation: Operation, signature: Signature, *, is_dependent: bool
) -> Entry:
    """Make the entry of a candidate.

    Args:
        tile: the candidate's.
        operation: element types, factors and epilogue.
        signature: the entry's arguments.
        is_dependent: whether the chip has programmatic dependent launch.
    """
    gemm = BlockScaledGemm(BFloat16, tile, operation, is_dependent)
    has_gate = operation.gate is not None

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_a: cute.Tensor,
        scale_b: cute.Tensor,
        bias: cute.Tensor | None,
        residual: cute.Tensor | None,
        scale_d: cute.Tensor | None,
        _workspace: None,
        _prefetch_b: None,
        _tile_order: None,
        stream: cuda.CUstream,
    ) -> None:
        rows_of_b = in_turns(b) if const_expr(has_gate) else b
        left, right = (_as_bytes(a, operation.a), scale_a), (_as_bytes(rows_of_b, operation.b), scale_b)
        gemm(left, right, d, EpilogueOperands(bias=bias, residual=residual, scale_d=scale_d), stream)

    return Entry(entry, epilogue_arguments(signature, operation, stores=1))
