"""How codes of a packed weight become the operands of `mma`, in registers. Imports CUTLASS.

An instruction takes pairs of 16-bit floats. No chip before sm_100 converts codes of 4 bits, and none converts them as
fast as bits are moved: a code is put where a float has its fraction, or its exponent and fraction, beside bits that are
constant. What comes out is the code's value, times a power of two that the sums are multiplied by in the end, or plus a
number that is taken again.

Source of all constants: IEEE 754-2019, section 3.4: float16 has 10 bits of fraction and 5 of exponent, whose bias is
15; bfloat16 has 7 and 8, and 127.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import BFloat16, Float16, Float32, Int32, Uint32, cute

from aot.core.weight_format import Code, WeightFormat
from aot.core.weight_packing import CODE_BYTES


def pair(value: int) -> int:
    """Return two equal 16-bit numbers in a word."""
    return value << 16 | value


def constant(word: int) -> Any:
    """Make a register of constant bits; to be called while tracing.

    Instructions on pairs of floats take no constants as operands, and the compiler would make this one of a number.
    """
    return cute.arch.inline_ptx(f"mov.b32 {{$w0}}, {word:#x};", write_only_types=[Int32])


def _rotated(word: Any, count: int) -> Any:
    """Rotate a word to the right."""
    return word if count == 0 else (word >> count) | (word << (32 - count))


def _moved(word: Any, count: int) -> Any:
    """Shift a word to the right, or where the count is negative to the left."""
    if count == 0:
        return word
    return word >> count if count > 0 else word << -count


def times(a: Any, b: Any, name: str) -> Any:
    """Multiply pairs, rounded once: what is multiplied here has no more bits than fit; to be called while tracing."""
    text = f"mul.rn.{name}x2 {{$w0}}, {{$r0}}, {{$r1}};"
    return cute.arch.inline_ptx(text, write_only_types=[Int32], read_only_args=[Int32(a), Int32(b)])


@dataclass(frozen=True)
class Decoder:
    """Turns the codes of one format into operands of one type."""

    form: WeightFormat
    element: Any
    """CUTLASS's type of x, Float16 or BFloat16."""

    @property
    def is_bf16(self) -> bool:
        """Say whether operands are bfloat16."""
        return self.element is BFloat16

    @property
    def name(self) -> str:
        """Return PTX's name of the type."""
        return "bf16" if self.is_bf16 else "f16"

    @property
    def exponent(self) -> int:
        """Return the power of two that the sums are to be multiplied by."""
        if self.form.is_nvfp4:
            return 7
        if self.form.code is Code.E2M1:
            return 0 if self.is_bf16 else 14
        return 8 if self.form.code is Code.E4M3 and not self.is_bf16 else 0

    @property
    def steps_per_load(self) -> int:
        """Return the instructions that 16 bytes of codes serve."""
        return 64 // self.form.code.bits // 4

    @property
    def offsets(self) -> tuple[int, int, int, int] | None:
        """Return what operands of each register are too large by, as bits of a float; None where they are not.

        With zero points it is another number for each row and group, times what is returned: 1.
        """
        if self.form.code is not Code.INT4:
            return None
        if self.form.has_zeros:
            return (0x3F80 if self.is_bf16 else 0x3C00,) * 4
        return (0x4220 if self.is_bf16 else 0x4E00,) * 4  # 32 + 8, 16 + 8

    def masks(self, unknown: Any) -> Any:
        """Return masks that the assembler does not know; to be called while tracing, once.

        `x & mask | number` is one instruction where a register has the mask: it takes one constant at most, and of two
        that are known one would be moved to a register each time.

        Args:
            unknown: a number that is not negative.
        """
        masks = {Code.INT4: (0x003C, 0x03C0), Code.INT8: (0x007F, 0x0080)}.get(self.form.code, ())
        zero = Uint32(unknown >> 31)
        return [Uint32(pair(x)) + zero for x in masks]

    def operands(self, words: Any, step: int, masks: Any) -> list[Any]:
        """Return the four registers of an instruction, Int32; to be called while tracing.

        Args:
            words: 16 bytes of codes, as four words.
            step: which of the instructions that they serve.
            masks: what `masks` returned.
        """
        if self.form.code.bits == 8:
            pairs = [Uint32(words[2 * step + i]) for i in range(2)]
            decoded = [self._int8(x, masks) if self.form.code is Code.INT8 else self._e4m3(x) for x in pairs]
            return [*decoded[0], *decoded[1]]
        word = Uint32(words[step])
        return self._int4(word, masks) if self.form.code is Code.INT4 else self._e2m1(word)

    def without_offset(self, registers: list[Any]) -> list[Any]:
        """Take the codes' offset from operands, which is exact; of formats that have one."""
        add = cute.arch.add_packed_bf16x2 if self.is_bf16 else cute.arch.add_packed_f16x2
        offsets = self.offsets
        assert offsets is not None  # noqa: S101 - asked by the caller
        return [add(x, constant(pair(y | 0x8000))) for x, y in zip(registers, offsets, strict=True)]

    def _int4(self, word: Any, masks: Any) -> list[Any]:
        """Put codes into the fraction of 32, of float16 into that of 16, whose bits 2 and 6 are worth 1.

        In float16 256 would save two rotations, but sums of codes beside 256 are off by a twentieth of a unit of D's
        last place. Source: H200, 2026-11-28: 1 of 5,000 elements was then rounded to the wrong side.
        """
        if self.is_bf16:
            return [Int32(_rotated(word, count) & masks[0] | pair(0x4200)) for count in (0, 8, 4, 12)]
        return [Int32(_rotated(word, count) & masks[1] | pair(0x4C00)) for count in (28, 4, 0, 8)]

    def _e2m1(self, word: Any) -> list[Any]:
        """Put codes where a float has its sign, the lowest bits of its exponent and the highest of its fraction.

        The value is then less by the difference of the biases, which are 1 and 127 or 15; where the exponent is 0 too.
        """
        if self.is_bf16:
            found = [Uint32(_rotated(word, count) & pair(0x81C0)) for count in (0, 3, 6)]
            last = word << 6 & pair(0x00C0) | word << 5 & pair(0x0100) | word << 11 & pair(0x8000)
        else:
            turned = [_rotated(word, count) for count in (0, 3, 6)]
            moved = word << 3, word, turned[1]
            found = [x & pair(0x0E00) | y & pair(0x8000) for x, y in zip(moved, turned, strict=True)]
            last = word << 9 & pair(0x0600) | word << 8 & pair(0x0800) | word << 11 & pair(0x8000)
        return self._enlarged([*found, last])

    def _enlarged(self, registers: list[Any]) -> list[Any]:
        """Multiply codes of mxfp4 in bfloat16 by 2^126: there are subnormal numbers, but sums of them have no bits."""
        if self.is_bf16 and self.form.is_mxfp4:
            return [times(x, constant(pair(0x7E80)), self.name) for x in registers]
        return [Int32(x) for x in registers]

    @property
    def words_apart(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return which words of x, two elements each, the registers of `apart` go with.

        The lower halves of the first two words go with the first register, the upper ones with the second, and those
        of the other two with the other two.
        """
        return ((0, 2), (1, 3)) if self.is_bf16 else ((0, 1), (2, 3))

    def apart(self, word: Any) -> list[Any]:
        """Return four registers of the eight e2m1 in a word that has them in order, two in each.

        Their order is not `_e2m1`'s. A bfloat16 has 6 bits between its sign and the rest of a code, where the product
        of a code that stands alone and two powers of two has nothing else. All of a float16 that a code says is in its
        upper byte: four codes at once are brought to bytes, and these to halves. Elements i and i + 4 share a
        register of bfloat16, i and i + 2 one of float16.
        """
        word = Uint32(word)
        if self.is_bf16:
            halves = word, word >> 8
            alone = [x & pair(mask) for x in halves for mask in (0x000F, 0x00F0)]
            return self._enlarged([x * y & pair(0x81C0) for x, y in zip(alone, (0x1040, 0x0104) * 2, strict=True)])
        signs, rest = pair(0x8080), pair(0x0E0E)
        of_bytes = word << 1 & rest | word << 4 & signs, word >> 3 & rest | word & signs
        return [Int32(cute.arch.prmt(x, 0, chosen)) for chosen in (0x1404, 0x3424) for x in of_bytes]

    def _int8(self, word: Any, masks: Any) -> list[Any]:
        """Add -128, or -256 where the sign is set, to 128 + the lower bits; of float16 with 1024 for the first 128."""
        low, high = (0x4300, 0xC300) if self.is_bf16 else (0x6400, 0xE400)
        add = cute.arch.add_packed_bf16x2 if self.is_bf16 else cute.arch.add_packed_f16x2
        return [add(Int32(x & masks[0] | pair(low)), Int32(x & masks[1] | pair(high))) for x in (word, word >> 8)]

    def _e4m3(self, word: Any) -> list[Any]:
        """Put codes where a float has them: less by 2^(15 - 7), or by 2^(127 - 7), which is multiplied at once."""
        mask, up = (0x07F0, 4) if self.is_bf16 else (0x3F80, 7)
        found = [
            Int32(_moved(word, place - up) & pair(mask) | _moved(word, place - 8) & pair(0x8000)) for place in (0, 8)
        ]
        return [times(x, constant(pair(0x7B80)), self.name) for x in found] if self.is_bf16 else found

    def block_factors(self, words: Any) -> list[list[Any]]:
        """Return the factors of a lane's two rows in each 32 elements of a block of nvfp4, as pairs of equal ones.

        They are 2^7 times as large as float16, and 2^119 times as bfloat16, whose codes are less by 2^14 and 2^126.
        """
        found = []
        for word in (Uint32(x) for x in words):
            for moved in (word << 4, word >> 4) if self.is_bf16 else (word << 7, word >> 1):
                if self.is_bf16:
                    both = Int32(moved & pair(0x07F0))
                    for factor in (0x7B80, 0x7B00):  # 2^120, by which the codes are less, and 2^119
                        both = times(both, constant(pair(factor)), self.name)
                else:
                    both = times(Int32(moved & pair(0x3F80)), constant(pair(0x7800)), self.name)  # 2^15
                found.append([Int32(cute.arch.prmt(both, both, chosen)) for chosen in (0x1010, 0x3232)])
        return found

    def powers(self, word: Any, index: Any) -> list[Any]:
        """Return the bfloat16 factors of a lane's two rows, of mxfp4, as pairs of equal ones; 2^-127 is 0.

        Args:
            word: bytes of factors, those of the two rows next to each other.
            index: which two of the word.
        """
        chosen = [0x4040 + 0x0101 * (2 * index + i) for i in range(2)]
        return [Int32(Uint32(cute.arch.prmt(Int32(word), Int32(0), x)) << 7) for x in chosen]

    def scaled(self, registers: list[Any], factors: list[Any]) -> list[Any]:
        """Multiply the operands of an instruction by the factors of a lane's two rows: the products are exact."""
        return [times(x, factors[i % 2], self.name) for i, x in enumerate(registers)]

    def zero_points(self, word: Any) -> list[Any]:
        """Return what the operands of a lane's two rows are too large by, float32, of the zero points in a word.

        A byte below the exponent of 2^23 is the float32 that is larger by 2^23.
        """
        large, number = 2.0**23, 32.0 if self.is_bf16 else 16.0
        bytes_of_word = (Int32(cute.arch.prmt(word, 0x4B000000, 0x7540 | i)) for i in range(4))
        found = [_float(x) + (number - large) for x in bytes_of_word]
        return [found[:2], found[2:]]

    def group_factors(self, words: Any) -> list[list[Any]]:
        """Return the float32 factors of a lane's two rows in each group of a block."""
        found = []
        for word in (Uint32(x) for x in words):
            if self.form.is_mxfp4:  # the exponent of a float32; the code 0 becomes 0, where 2^-127 is meant
                bits = [word << 23, word << 15, word << 7, word >> 1]
                values = [_float(x & 0x7F800000) for x in bits]
                found += [values[:2], values[2:]]
            elif self.is_bf16:
                found.append([_float(word << 16), _float(word & 0xFFFF0000)])
            else:
                found.append(_halves(word))
        return found


def words_at(start: Any, count: int = CODE_BYTES // 4) -> Any:
    """Read 4, 8 or 16 bytes of shared memory as words, at once; to be called while tracing."""
    found = cute.make_rmem_tensor(count, Int32)
    pointer = cute.make_ptr(Int32, start.toint(), cute.AddressSpace.smem, assumed_align=4 * count)
    cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(count)), found)
    return found


def _float(word: Any) -> Any:
    """Return the float32 of a word's bits."""
    return Int32(word).bitcast(Float32)


def _halves(word: Any) -> list[Any]:
    """Return the float32 values of the two float16 in a word."""
    held = cute.make_rmem_tensor(1, Int32)
    held[0] = Int32(word)
    both = cute.make_tensor(cute.recast_ptr(held.iterator, dtype=Float16), cute.make_layout(2))
    return [both[i].to(Float32) for i in range(2)]
