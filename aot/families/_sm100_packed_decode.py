"""How warps turn packed codes into operands of `tcgen05.mma` in swizzled shared memory. Imports CUTLASS.

`tcgen05.mma` reads both operands from shared memory, in rows of 64 elements whose pieces of 16 bytes TMA would have
exchanged. A warp decodes the 16 rows that packing puts together. Of each 32 elements along k a lane holds eight that
follow each other, of two rows: a piece of either. The eight lanes that store at once have two rows: the odd one stores
the other 32 of its 64 elements first, so that no two of their pieces lie in the same banks.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Uint16, Uint32, cute, select_

from aot.core.factor_atoms import ATOM_BYTES, LANES
from aot.core.weight_format import BLOCK_K, TILE_ROWS, Code
from aot.core.weight_packing import CODE_BYTES
from aot.families._sm90_packed_decode import QuadDecoder
from aot.families._sm100_packed_tile import PART_K, ROW_CODE_BYTES, ROWS, PackedTile
from aot.families._tcgen05 import TILE_K_BYTES
from aot.families._weight_only_decode import constant, pair, times, words_at

HALF_K = 32
"""Elements along k of which a lane has a piece of 16 bytes."""
PIECE_BYTES = 16
"""What a swizzle exchanges. Source: PTX ISA, swizzling modes."""
LOAD_BYTES = 32 * CODE_BYTES
"""That a warp reads of codes at once."""


def put_words(start: Any, words: list[Any]) -> None:
    """Write 16 bytes of shared memory at once; to be called while tracing."""
    held = cute.make_rmem_tensor(len(words), Int32)
    for i, word in enumerate(words):
        held[i] = Int32(word)
    pointer = cute.make_ptr(Int32, start.toint(), cute.AddressSpace.smem, assumed_align=4 * len(words))
    cute.autovec_copy(held, cute.make_tensor(pointer, cute.make_layout(len(words))))


@dataclass(frozen=True)
class PartDecoder:
    """Decodes 16 rows and 64 elements along k; to be called while tracing, by a whole warp."""

    tile: PackedTile
    decoder: QuadDecoder

    def decode(self, stage: Any, warp: Any, part: int, target: Any, masks: Any) -> None:
        """Write the operands of a part of a stage.

        Args:
            stage: where it begins in shared memory, as it was packed.
            warp: which 16 rows of it.
            part: which 64 elements along k.
            target: where the first of the 16 rows of the stage of operands begins.
            masks: what `Decoder.masks` returned.
        """
        block = stage + warp * self.tile.layout.block_bytes
        lane = cute.arch.lane_idx()
        row, t = lane // 4, lane % 4
        odd = row & 1
        codes = self._codes(block, part, odd, lane)
        for i in range(PART_K // HALF_K):
            half = odd ^ i  # which 32 of the 64
            k32 = half + part * (PART_K // HALF_K)
            zeros, factors = self._zero_points(block, row, k32), self._factors(block, row, part, half)
            found = []
            for words, step in codes[i]:
                registers = self._less_offset(self.decoder.operands(words, step, masks), zeros)
                found.append(registers if factors is None else self.decoder.scaled(registers, factors))
            piece = (half * (HALF_K // 8) + t) ^ row
            for side in range(2):
                words = [of_step[2 * p + side] for of_step in found for p in range(2)]
                put_words(target + ((row + 8 * side) * TILE_K_BYTES + piece * PIECE_BYTES), words)

    def _codes(self, block: Any, part: int, odd: Any, lane: Any) -> list[list[tuple[Any, int]]]:
        """Read a lane's codes: of either 32 elements, its first ones first, the words and steps of two instructions."""
        start = block + lane * CODE_BYTES
        if self.tile.form.code.bits == 8:
            read = [words_at(start + (odd ^ i) * LOAD_BYTES + part * 2 * LOAD_BYTES) for i in range(2)]
            return [[(words, step) for step in range(2)] for words in read]
        words = words_at(start + part * LOAD_BYTES)
        turned = [select_(odd == 0, words[i], words[(i + 2) % 4]) for i in range(4)]
        return [[(turned, 2 * i + step) for step in range(2)] for i in range(2)]

    def _less_offset(self, registers: list[Any], zeros: Any) -> list[Any]:
        """Take from the operands of int4 what `Decoder` has made them too large by; this is exact."""
        decoder = self.decoder
        if decoder.form.code is not Code.INT4:
            return registers
        add = cute.arch.add_packed_bf16x2 if decoder.is_bf16 else cute.arch.add_packed_f16x2
        if zeros is None:
            taken: list[Any] = [constant(pair(0xC220 if decoder.is_bf16 else 0xCE00))] * 2  # -40, -24
        else:  # -32, whose bit 2 is worth 1, and -16, whose bit 6 is
            number, place = (0xC200, 2) if decoder.is_bf16 else (0xCC00, 6)
            points = [Uint32(cute.arch.prmt(Int32(zeros), Int32(0), 0x4040 + 0x0101 * i)) for i in range(2)]
            taken = [Int32((x << place) + pair(number)) for x in points]
        return [add(x, taken[i % 2]) for i, x in enumerate(registers)]

    def _zero_points(self, block: Any, row: Any, k32: Any) -> Any:
        """Return the zero points of a lane's two rows in the lowest bytes of a word, where there are some; or None."""
        form, layout = self.tile.form, self.tile.layout
        if not form.has_zeros:
            return None
        groups = form.num_groups(BLOCK_K)
        group = k32 * HALF_K // form.group
        start = block + (layout.code_bytes + layout.factor_bytes) + (row * (2 * groups) + group * 2)
        pointer = cute.make_ptr(Uint16, start.toint(), cute.AddressSpace.smem, assumed_align=2)
        return Uint32(cute.make_tensor(pointer, cute.make_layout(1))[0])

    def _factors(self, block: Any, row: Any, part: int, half: Any) -> Any:
        """Return the factors of a lane's two rows of 32 elements, where they multiply the operands; or None."""
        form, layout = self.tile.form, self.tile.layout
        if self.tile.is_promoted or not form.group:
            return None
        start = block + layout.code_bytes
        if form.is_nvfp4:
            lane = cute.arch.lane_idx()
            word = words_at(start + ((row * 2 + lane % 4 // 2) * 8 + part * 4), 1)[0]
            both = self.decoder.block_factors([word])
            return [select_(half == 0, *pair_of) for pair_of in zip(*both, strict=True)]
        word = words_at(start + (row * 8 + part * 4), 1)[0]
        return self.decoder.operand_factors(word, half)


@dataclass(frozen=True)
class RowDecoder:
    """The same of a weight that lies in rows, with its factors in an atom: see `RowLoads`.

    A lane has 16 neighbouring elements of a row, which one factor serves: two pieces. `Decoder.apart` leaves the eight
    codes of a word out of order, two in a register, so that their halves are exchanged.
    """

    tile: PackedTile
    decoder: QuadDecoder

    def decode(self, stage: Any, warp: Any, part: int, target: Any, masks: Any) -> None:
        """Write the operands of a part of a stage, as `PartDecoder.decode`."""
        del masks
        lane = cute.arch.lane_idx()
        row, t = lane // 4, lane % 4
        of_sides = [row + 8 * side for side in range(2)]
        factors = self._factors(stage, [warp * TILE_ROWS + x for x in of_sides], part, t)
        for at, factor in zip(of_sides, factors, strict=True):
            start = stage + ((warp * TILE_ROWS + at) * ROW_CODE_BYTES + part * (PART_K // 2) + t * 8)
            words = words_at(start, 2)
            for i in range(2):
                registers = [times(x, factor, self.decoder.name) for x in self.decoder.apart(words[i])]
                piece = (2 * t + i) ^ row
                put_words(target + (at * TILE_K_BYTES + piece * PIECE_BYTES), self._in_order(registers))

    def _in_order(self, registers: list[Any]) -> list[Any]:
        """Put what `Decoder.apart` returned into order."""
        halves = [
            Int32(cute.arch.prmt(registers[i], registers[i + 1], half)) for i in (0, 2) for half in (0x5410, 0x7632)
        ]
        # Of bfloat16 a register has the elements i and i + 4, of float16 i and i + 2.
        return [halves[i] for i in (0, 2, 1, 3)] if self.decoder.is_bf16 else halves

    def _factors(self, stage: Any, rows: list[Any], part: int, t: Any) -> list[Any]:
        """Return the factors of a lane's 16 elements of two rows, as pairs of equal numbers."""
        start = stage + ROWS * ROW_CODE_BYTES
        start = start if self.tile.form.is_mxfp4 else start + part * ATOM_BYTES
        words = [words_at(start + (x % LANES * 16 + x // LANES * 4), 1)[0] for x in rows]
        if self.tile.form.is_mxfp4:
            place = part * (PART_K // HALF_K) + t // 2
            return list(self.decoder.powers(cute.arch.prmt(words[0], words[1], place + ((place + 4) << 4)), 0))
        both = cute.arch.prmt(words[0], words[1], t + ((t + 4) << 8))
        return list(self.decoder.block_factors([both])[0])
