"""Hopper kernels of a packed weight times many rows of x. Imports CUTLASS and quack.

They compute the transpose of D: the rows of a tile are rows of the weight, its columns rows of x. One warp loads codes
and factors by TMA as they were packed, another x. The multiplying warps read codes from shared memory and bring them to
A of `wgmma` in registers, while the tensor cores have the 64 elements of k before. All that surrounds this is that of
`SplitGemmSm90`, where the CTAs of a cluster share k, or of `OneTileGemmSm90`.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, Uint16, Uint32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import warpgroup
from quack import sm90_utils as quack_sm90

from aot.core.tile_order import HEURISTIC
from aot.core.weight_format import BLOCK_K, NVFP4
from aot.families._packed_operands import packed_entry
from aot.families._sm90_one_tile_kernel import OneTileGemmSm90
from aot.families._sm90_packed_decode import QuadDecoder
from aot.families._sm90_packed_loads import PackedLoadsSm90
from aot.families._sm90_packed_tile import LINE_BYTES, promotes
from aot.families._sm90_split_loads import barriers
from aot.families._sm90_split_tile import GROUP, WARPGROUP
from aot.families._waits import await_phase
from aot.families._weight_only_decode import words_at

PART_K = 64
"""Elements along k that are decoded at once, while as many before are multiplied."""

FIRST_TURN = 5
"""The named barrier of the first warpgroup's turns, beside which is that of the second's; 1 to 4 are those of the
kernels that this one derives from."""

MULTIPLYING_REGISTERS = 232
"""Of a thread, where two warpgroups multiply."""


@dataclass(frozen=True)
class PackedRowsSm90(PackedLoadsSm90):
    """What the kernels have in common."""

    @property
    def decoder(self) -> QuadDecoder:
        """Return what makes operands of codes."""
        return QuadDecoder(self.tile.form, self.element)

    @property
    def is_promoted(self) -> bool:
        """Say whether sums of a group are multiplied by its factor in float32."""
        return promotes(self.tile.form, is_bf16=self.decoder.is_bf16)

    @property
    def part_k(self) -> int:
        """Return the elements along k that are decoded at once: no more than a promoted group."""
        return min(PART_K, self.tile.form.group) if self.is_promoted else PART_K

    @cute.jit
    def multiply(
        self, mma: cute.TiledMma, stages: Any, storage: Any, warp: Int32, rank: Int32, num_k_blocks: Int32
    ) -> Any:
        """Multiply the CTA's blocks of k and return a thread's sums, zero where there are no blocks.

        Codes are decoded one part ahead of the multiplication, in two sets of registers that take turns. A stage is
        released where it is loaded again alone, as in `SplitGemmSm90.multiply`.
        """
        tile = self.tile
        if const_expr(tile.moves_registers):
            cute.arch.setmaxregister_increase(MULTIPLYING_REGISTERS)
        full, _, _ = barriers(storage, tile)
        groups = cute.make_layout(tile.num_warpgroups, stride=WARPGROUP)
        part = mma.get_slice(groups(cute.arch.make_warp_uniform(warp // 4)))
        partial, _, x = quack_sm90.partition_fragment_ABC(part, (tile.rows, tile.columns, BLOCK_K), None, stages[1])
        sums = partial
        if const_expr(self.is_promoted):
            sums = cute.make_rmem_tensor(partial.layout, Float32)
        sums.fill(0.0)
        operands = [cute.make_rmem_tensor((4, tile.num_steps, self.part_k // 16), Int32) for _ in range(2)]
        source = self._source(storage, warp, num_k_blocks)
        count = cute.ceil_div(cutlass.max(num_k_blocks - rank, 0), tile.splits)
        stage, phase = Int32(0), Int32(0)
        if count > 0:
            await_phase(full, phase)
            self._decode(operands[0], source, stage, 0)
            group = cute.arch.make_warp_uniform(warp // 4)
            if const_expr(tile.in_turns):  # noqa: SIM102 - known while tracing, the next is not
                if group == 1:
                    self._end_turn(group)
            for i in cutlass.range(count - 1, unroll=1):
                following, next_phase = stage + 1, phase
                if following == tile.num_stages:
                    following = Int32(0)
                    next_phase = phase ^ 1
                previous = stage - 1
                if stage == 0:
                    previous = Int32(tile.num_stages - 1)
                product, ring = (mma, partial, sums, operands, x), (storage, rank, count, group)
                self._multiply_block(product, source, ring, (i, stage, previous), following, next_phase)
                stage, phase = following, next_phase
            self._multiply_last((mma, partial, sums, operands, x), source, stage, group)
            warpgroup.wait_group(0)
        return sums

    def _source(self, storage: Any, warp: Any, unknown: Any) -> Any:
        """Return where a lane finds codes, factors and zero points in the first stage, and how it turns its codes.

        The codes' four addresses are those of lane T's words, for T from 0 to 3.
        """
        tile, decoder = self.tile, self.decoder
        lane = cute.arch.lane_idx()
        line, t = lane // 4, lane % 4
        word = t * 4 if tile.form.code.bits == 8 else t // 2 * 4
        start = storage.rows.data_ptr() + (warp * tile.layout.code_bytes + line * LINE_BYTES + word)
        codes = [start + (Int32(i) ^ line // 2) * 16 for i in range(4)]
        groups = storage.groups.data_ptr() + warp * tile.block_group_bytes if tile.group_bytes else None
        return codes, groups, decoder.turns(lane), decoder.masks(unknown)

    def _groups_of(self, source: Any, stage: Any, step: int) -> Any:
        """Return where the factors of a lane's warp begin in a stage, for one of its steps of rows."""
        tile = self.tile
        return source[1] + (stage * tile.group_bytes + 4 * tile.num_warpgroups * step * tile.block_group_bytes)

    def _decode(self, operands: cute.Tensor, source: Any, stage: Any, part: int) -> None:
        """Bring the codes of a part of a stage to operands, (registers, steps of rows, steps of k); while tracing."""
        tile, decoder = self.tile, self.decoder
        codes, _, turns, masks = source
        steps = self.part_k // 16
        # 32 elements of 8 rows: 8 bits each, or 4 beside those of the next 32.
        for i in range(tile.num_steps):
            at = stage * tile.code_bytes + 4 * tile.num_warpgroups * i * tile.layout.code_bytes
            for step in range(steps):
                k32, half = divmod(part * steps + step, 2)
                inside = k32 * 512 if tile.form.code.bits == 8 else k32 // 2 * 512 + k32 % 2 * 8
                zeros, factors = self._zero_points(source, stage, i, k32), self._factors(source, stage, i, k32, half)
                for p in range(2):
                    word = words_at(codes[2 * half + p] + (at + inside), 1)[0]
                    found = decoder.less_offset(decoder.registers(word, turns, masks), zeros)
                    found = decoder.times_factors(found, factors)
                    for row in range(2):
                        operands[2 * p + row, i, step] = found[row]

    def _factors(self, source: Any, stage: Any, i: int, k32: int, half: int) -> Any:
        """Return the factors of a lane's two rows of 16 elements, where they multiply the operands; or None."""
        tile, line = self.tile, cute.arch.lane_idx() // 4
        if self.is_promoted or not tile.form.group:
            return None
        start = self._groups_of(source, stage, i)
        if tile.form is NVFP4:
            word = words_at(start + (line * 16 + (half * 2 + k32 // 2) * 4), 1)[0]
        else:
            word = words_at(start + (line * 8 + k32 // 2 * 4), 1)[0]
        return self.decoder.operand_factors(word, k32 % 2)

    def _zero_points(self, source: Any, stage: Any, i: int, k32: int) -> Any:
        """Return the zero points of a lane's two rows in the lowest bytes of a word, where there are some; or None."""
        tile, line = self.tile, cute.arch.lane_idx() // 4
        if not tile.form.has_zeros:
            return None
        groups = tile.form.num_groups(BLOCK_K)
        place = tile.layout.factor_bytes + line * (2 * groups) + k32 * 32 // tile.form.group * 2
        start = self._groups_of(source, stage, i) + place
        pointer = cute.make_ptr(Uint16, start.toint(), cute.AddressSpace.smem, assumed_align=2)
        return Uint32(cute.make_tensor(pointer, cute.make_layout(1))[0])

    def _group_factors(self, source: Any, stage: Any, i: int, group: int) -> Any:
        """Return the float32 factors of a lane's two rows in a group of a block."""
        tile, line = self.tile, cute.arch.lane_idx() // 4
        groups, per_word = tile.form.num_groups(BLOCK_K), 16 // tile.form.factor_bits
        place = (line * groups + group) // per_word if per_word == 1 else line * (groups // 2) + group // 2
        word = words_at(self._groups_of(source, stage, i) + place * 4, 1)[0]
        return self.decoder.group_factors([word])[group % per_word]

    def _issue(self, mma: Any, sums: Any, operands: Any, x: Any, stage: Any, part: int, *, zero: bool) -> None:
        """Issue the products of a part of a stage, as a group; to be called while tracing."""
        tile, steps = self.tile, self.part_k // 16
        layout = cute.make_layout(((2, 2, 2), tile.num_steps, steps), stride=((1, 2, 4), 8, 8 * tile.num_steps))
        a = cute.make_tensor(cute.recast_ptr(operands.iterator, dtype=self.element), layout)
        warpgroup.fence()
        atom = cute.make_mma_atom(mma.op)
        atom.set(warpgroup.Field.ACCUMULATE, not zero)
        for step in range(steps):
            cute.gemm(atom, sums, a[None, None, step], x[None, None, part * steps + step, stage], sums)
            atom.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()

    @cute.jit
    def _multiply_block(self, product: Any, source: Any, ring: Any, place: Any, following: Int32, phase: Int32) -> None:
        """Multiply a stage, of which the first part is decoded, and decode the first part of the stage that follows."""
        mma, partial, sums, operands, x = product
        storage, rank, count, group = ring
        index, stage, previous = place
        num_parts = const_expr(BLOCK_K // self.part_k)
        self._begin_turn(group)
        for part in range_constexpr(num_parts):
            self._issue(mma, partial, operands[part % 2], x, stage, part, zero=self._is_first(part))
            if const_expr(part == num_parts - 1):
                self._end_turn(group)
                await_phase(barriers(storage, self.tile)[0] + following, phase)
            warpgroup.wait_group(1)
            if const_expr(part == 0 and not self.is_promoted):  # noqa: SIM102 - likewise
                if index > 0 and index - 1 + self.tile.num_stages < count:
                    cute.arch.sync_warp()
                    self.release(storage, previous, rank)
            self._decode_next(operands[(part + 1) % 2], source, stage, following, part, num_parts)
            self._promote_after(partial, sums, source, stage, part)
        if const_expr(self.is_promoted):  # noqa: SIM102 - known while tracing, the next is not
            if index + self.tile.num_stages < count:
                cute.arch.sync_warp()
                self.release(storage, stage, rank)

    def _decode_next(self, operands: Any, source: Any, stage: Any, following: Any, part: int, count: int) -> None:
        """Decode the part behind one of a stage; to be called while tracing."""
        if part == count - 1:
            self._decode(operands, source, following, 0)
        else:
            self._decode(operands, source, stage, part + 1)

    def _begin_turn(self, group: Any) -> None:
        """Wait until the other warpgroup has issued its block, where they take turns; to be called while tracing."""
        if self.tile.in_turns:
            cute.arch.barrier(barrier_id=FIRST_TURN + group, number_of_threads=self.tile.num_multiplying)

    def _end_turn(self, group: Any) -> None:
        """Let the other warpgroup issue its block; to be called while tracing."""
        if self.tile.in_turns:
            cute.arch.barrier_arrive(barrier_id=FIRST_TURN + 1 - group, number_of_threads=self.tile.num_multiplying)

    @cute.jit
    def _multiply_last(self, product: Any, source: Any, stage: Int32, group: Int32) -> None:
        """Multiply the last stage; the second warpgroup's turn is the last."""
        mma, partial, sums, operands, x = product
        num_parts = const_expr(BLOCK_K // self.part_k)
        self._begin_turn(group)
        for part in range_constexpr(num_parts):
            self._issue(mma, partial, operands[part % 2], x, stage, part, zero=self._is_first(part))
            if const_expr(part == num_parts - 1 and self.tile.in_turns):  # noqa: SIM102 - likewise
                if group == 0:
                    self._end_turn(group)
            if const_expr(part < num_parts - 1):
                warpgroup.wait_group(1)
                self._decode(operands[(part + 1) % 2], source, stage, part + 1)
            self._promote_after(partial, sums, source, stage, part)

    def _is_first(self, part: int) -> bool:
        """Say whether a part is the first of a promoted group, whose sums begin at zero."""
        return self.is_promoted and part * self.part_k % self.tile.form.group == 0

    def _promote_after(self, partial: Any, sums: Any, source: Any, stage: Any, part: int) -> None:
        """Add the sums of a promoted group, times its factors, behind its last part; to be called while tracing."""
        tile = self.tile
        if not self.is_promoted or (part + 1) * self.part_k % tile.form.group:
            return
        group = part * self.part_k // tile.form.group
        factors = [self._group_factors(source, stage, i, group) for i in range(tile.num_steps)]
        warpgroup.wait_group(0)
        layout = cute.make_layout((4, tile.num_groups, tile.num_steps))
        found, total = (cute.make_tensor(y.iterator, layout) for y in (partial, sums))
        for i in range(tile.num_steps):
            for j in range(tile.num_groups):
                for e in range(4):
                    total[e, j, i] = total[e, j, i] + found[e, j, i] * factors[i][e // 2]

    @cute.jit
    def fetch_late(self, fetched: Any, vectors: Any, first: Int32, origin: Any) -> Any:
        """Read the float32 factors of the weight's rows, where it has some, and the bias."""
        del fetched
        scale_b, bias = vectors
        pairs, column = const_expr(range(self.num_pairs)), origin[1] + first * GROUP
        factors = None
        if const_expr(scale_b is not None):
            factors = self.load_bias(scale_b, origin[0], column, pairs)
        return factors, self.load_bias(bias, origin[0], column, pairs)

    @cute.jit
    def complete(self, own: cute.Tensor, fetched: Any, memory: Any, warp: Int32) -> Any:
        """Return what is to be rounded of a thread's sums: times the factors of rows, and with the bias."""
        del memory, warp
        factors, offsets = fetched
        for v in range_constexpr(self.tile.num_vectors):
            for e in range_constexpr(4):
                value = own[e, v] * 2.0**self.decoder.exponent
                if const_expr(factors is not None):
                    value = value * factors[e // 2, v // self.tile.share]
                own[e, v] = value + offsets[e // 2, v // self.tile.share]
        return own


@dataclass(frozen=True)
class PackedSplitGemmSm90(PackedRowsSm90):
    """The kernel of one candidate whose k CTAs share."""


@dataclass(frozen=True)
class PackedOneTileGemmSm90(PackedRowsSm90, OneTileGemmSm90):
    """The kernel of one candidate that computes a tile in a CTA."""


def entry_of(gemm: Any, *, is_scaled: bool) -> tuple[Any, tuple[Any, ...]]:
    """Make the entry of a kernel, and its fake arguments."""

    def launch(a: Any, b: Any, d: Any, added: Any, prefetch_b: Any, stream: Any) -> None:
        weight = gemm.view_weight(b, d.shape[1], a.shape[1])
        gemm(a, weight, d, added, prefetch_b, stream, Int32(HEURISTIC))

    return packed_entry(launch, gemm.element, is_scaled=is_scaled)
