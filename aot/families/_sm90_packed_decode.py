"""How codes of a packed weight become A of `wgmma` in registers, beside x as TMA brings it. Imports CUTLASS.

Packing gives lane t of four the elements 8 t to 8 t + 7 of each 32 along k, so that `weight_only` reads x by 16 bytes.
`wgmma` reads x from shared memory in its own order: there lane t has the elements 2 t and 2 t + 1 of each 8. Packed
words have them too, in other lanes' places: word t / 2 of what packing gives lane T of four, for T from 0 to 3, has in
one half of its codes this lane's elements of the T-th 8. So a lane reads four words of each 32 elements and takes half
of the codes in each, two registers. Which half it is depends on the lane, and is brought to one place by rotating.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Uint32, cute

from aot.core.weight_format import NVFP4, Code
from aot.families._weight_only_decode import Decoder, constant, pair, times

_TURNS_BF16 = ((0, 6), (3, 26), (3, 27), (3, 21))
_TURNS_F16 = ((29, 3), (0, 6), (0, 23), (0, 24), (3, 21))
"""By how many bits a word of e2m1 is rotated to the right for each part of a lane's two registers, in even and in odd
lanes: `aot.core.weight_packing.E2M1_BITS`, brought to where bfloat16 and float16 have a sign, the lowest bits of the
exponent and the highest of the fraction."""


def _turned(word: Any, count: Any) -> Any:
    """Rotate a word to the right by a number of bits that differs between lanes."""
    text = "shf.r.wrap.b32 {$w0}, {$r0}, {$r0}, {$r1};"
    return Uint32(cute.arch.inline_ptx(text, write_only_types=[Int32], read_only_args=[Int32(word), Int32(count)]))


@dataclass(frozen=True)
class QuadDecoder(Decoder):
    """Turns half of the codes of a word into two registers, of the upper and of the lower row of a lane."""

    def turns(self, lane: Any) -> list[Any]:
        """Return by how much a lane rotates its words; to be called while tracing, once."""
        if self.form.code is Code.INT4:
            counts: tuple[tuple[int, int], ...] = ((0, 4),)
        elif self.form.code is Code.E2M1:
            counts = _TURNS_BF16 if self.is_bf16 else _TURNS_F16
        else:
            counts = ()
        return [Int32(even + (odd - even) * (lane & 1)) for even, odd in counts]

    def registers(self, word: Any, turns: list[Any], masks: Any) -> list[Any]:
        """Return the registers of a lane's two rows, Int32; to be called while tracing.

        Args:
            word: as it was packed.
            turns: what `turns` returned.
            masks: what `masks` returned.
        """
        packed = Uint32(word)
        if self.form.code is Code.INT8:
            return self._int8(packed, masks)
        if self.form.code is Code.E4M3:
            return self._e4m3(packed)
        if self.form.code is Code.E2M1:
            return self._halves_of_e2m1(packed, turns)
        turned, number = _turned(packed, turns[0]), pair(0x4200 if self.is_bf16 else 0x5C00)
        return [Int32(x & masks[0] | number) for x in (turned, turned >> 8 | turned << 24)]

    def _halves_of_e2m1(self, word: Any, turns: list[Any]) -> list[Any]:
        """Put codes where `Decoder` does, which has all four registers of a word."""
        turned = [_turned(word, x) for x in turns]
        if self.is_bf16:
            masks: tuple[tuple[int, ...], ...] = ((0x81C0,), (0x00C0, 0x0100, 0x8000))
        else:
            masks = ((0x0E00, 0x8000), (0x0600, 0x0800, 0x8000))
        found = []
        for of_row in masks:
            bits = Uint32(0)
            for mask in of_row:
                bits = bits | turned.pop(0) & pair(mask)
            found.append(Int32(bits))
        return self._enlarged(found)

    def less_offset(self, registers: list[Any], zeros: Any) -> list[Any]:
        """Take 8, or a lane's two zero points in the lowest bytes of a word, from codes of int4; this is exact."""
        if self.form.code is not Code.INT4:
            return registers
        add = cute.arch.add_packed_bf16x2 if self.is_bf16 else cute.arch.add_packed_f16x2
        number = 0xC200 if self.is_bf16 else 0xDC00  # -32 and -256, of which bit 2 is worth 1
        if zeros is None:
            return [add(x, constant(pair(number + 0x20))) for x in registers]
        points = [Uint32(cute.arch.prmt(Int32(zeros), Int32(0), 0x4040 + 0x0101 * i)) << 2 for i in range(2)]
        return [add(x, Int32(y | pair(number))) for x, y in zip(registers, points, strict=True)]

    def times_factors(self, registers: list[Any], factors: Any) -> list[Any]:
        """Multiply the registers of a lane's two rows by their group's factors, if these multiply operands."""
        if factors is None:
            return registers
        return [times(x, y, self.name) for x, y in zip(registers, factors, strict=True)]

    def operand_factors(self, word: Any, index: Any) -> Any:
        """Return the factors by which a lane's two rows of 32 elements are multiplied, as pairs of equal numbers.

        Args:
            word: of the factors: of nvfp4 those of 16 elements of either 32 of 64, of mxfp4 those of both 32.
            index: which 32 of these.
        """
        if self.form is NVFP4:
            return self.block_factors([word])[index]
        return self.powers(word, index)
