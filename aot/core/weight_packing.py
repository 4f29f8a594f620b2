"""The layout in which kernels read narrow weights: written once, and read back bit for bit.

A packed weight is a matrix of bytes: a row for each `TILE_ROWS` rows of the weight, in which its blocks of `BLOCK_K`
elements along k follow each other. A block has the codes, then the factors of its groups, then their zero points. Rows
and elements that fill the last tile and block are zeros.

A lane of a warp reads codes 16 bytes at once. They are the fragments that it holds of a matrix A of `mma.m16n8k16`: of
four of them where codes have 4 bits, of two where they have 8. Which k of the instruction stands for which of memory is
ours to choose, as long as x has the same order: lane `t` of four holds 8 neighbouring elements of each 32, so that it
reads x by 16 bytes too. Element 32 j + 8 t + 4 h + 2 p + e of a block is e of pair p of step h of the j-th 32.

Of the layout in rows none of this holds: see `WeightLayout.ROWS`. Rows are a whole number of atoms long, 64 elements
of NVFP4 and 128 of MXFP4, and the atoms of 128 rows of the weight take 16 rows of the bytes, or 8.

Source of the fragments: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": a lane g = lane / 4,
t = lane % 4 holds of A the pairs (row g, pair 0), (row g + 8, pair 0), (row g, pair 1), (row g + 8, pair 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aot.core.errors import FormatError
from aot.core.factor_atoms import pack_factors, unpack_factors
from aot.core.weight_format import (
    BLOCK_K,
    E4M3_NAN,
    E8M0_NAN,
    MAX_ZERO,
    TILE_ROWS,
    Code,
    PackedLayout,
    WeightFormat,
    WeightParts,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits = NDArray[Any]

CODE_BYTES = 16
"""That a lane reads at once."""

INT4_STARTS = (2, 10, 6, 14)
"""The lowest bit, in a word, of the code of the first element of each fragment register; the second element's lies 16
higher, and bits past 31 begin again at 0. Rotated by 0 or 8 bits a code is at bits 2 to 5 or 6 to 9, where it can be
the fraction of a float16; by 0, 8, 4 or 12 at bits 2 to 5, where it can be that of a bfloat16."""

E2M1_BITS = ((6, 7, 8, 15), (9, 10, 11, 18), (12, 13, 14, 21), (0, 1, 3, 4))
"""The places of the four bits of a code, the lowest first, likewise. The first three registers are the word rotated by
0, 3 and 6 bits: of a bfloat16 bit 6 is the first of the fraction, 7 and 8 the lowest of the exponent, 15 the sign.
Source: IEEE 754-2019, section 3.4, with 8 bits of exponent."""

_PLACES = {
    Code.INT4: tuple(tuple(start + i for i in range(4)) for start in INT4_STARTS),
    Code.E2M1: E2M1_BITS,
}


def pack(form: WeightFormat, parts: WeightParts) -> NDArray[np.uint8]:
    """Pack a weight.

    Returns:
        The packed bytes, of `PackedLayout.shape`.

    Raises:
        FormatError: extents, types or codes that the format has not.
    """
    n, k = parts.codes.shape
    form.check(n, k)
    _check_codes(form, parts.codes)
    _check_factors(form, parts.factors, (n, form.num_groups(k)))
    _check_zeros(form, parts.zeros, (n, form.num_groups(k)))
    if form.in_rows:
        return _pack_rows(form, parts)
    tiles, blocks = -(-n // TILE_ROWS), -(-k // BLOCK_K)
    padded = parts.codes
    if padded.shape != (tiles * TILE_ROWS, blocks * BLOCK_K):
        padded = np.full((tiles * TILE_ROWS, blocks * BLOCK_K), form.code.zero, np.uint8)
        padded[:n, :k] = parts.codes
    packed = [_pack_codes(form, padded, tiles, blocks)]
    for of_groups in (parts.factors, parts.zeros):
        if of_groups is not None:
            held = np.zeros((tiles * TILE_ROWS, form.num_groups(blocks * BLOCK_K)), of_groups.dtype)
            held[:n, : of_groups.shape[1]] = of_groups
            packed.append(_pack_factors(form, held, tiles, blocks))
    return np.concatenate(packed, axis=2).reshape(tiles, -1)


def unpack(form: WeightFormat, packed: NDArray[np.uint8], n: int, k: int) -> WeightParts:
    """Return what a weight of (n, k) was packed from.

    Raises:
        FormatError: the bytes are not those of such a weight.
    """
    layout = PackedLayout(form)
    form.check(n, k)
    if packed.dtype != np.uint8 or packed.shape != layout.shape(n, k):
        text = f"uint8 of {layout.shape(n, k)}, as a {form.name} weight of {n} x {k} has"
        raise FormatError(f"packed bytes are {packed.dtype} of {packed.shape}; expected {text}")
    if form.in_rows:
        return _unpack_rows(form, packed, n, k)
    blocks = packed.reshape(len(packed), -1, layout.block_bytes)
    codes, factors, zeros = np.split(blocks, np.cumsum((layout.code_bytes, layout.factor_bytes)), axis=2)

    def of_groups(held: Bits, bits: int) -> Bits | None:
        return _unpack_factors(form, held, bits)[:n, : form.num_groups(k)] if held.shape[2] else None

    return WeightParts(_unpack_codes(form, codes)[:n, :k], of_groups(factors, form.factor_bits), of_groups(zeros, 8))


def _pack_rows(form: WeightFormat, parts: WeightParts) -> NDArray[np.uint8]:
    """Return rows of codes, the first of two in the lower half of its byte, and atoms behind them."""
    (n, k), layout = parts.codes.shape, PackedLayout(form)
    assert parts.factors is not None  # noqa: S101 - as was checked
    packed = np.zeros(layout.shape(n, k), np.uint8)
    packed[:n, : k // 2] = parts.codes[:, ::2] | parts.codes[:, 1::2] << 4
    packed[layout.first_atom_row(n) :] = pack_factors(parts.factors).reshape(-1, packed.shape[1])
    return packed


def _unpack_rows(form: WeightFormat, packed: NDArray[np.uint8], n: int, k: int) -> WeightParts:
    atoms = packed[PackedLayout(form).first_atom_row(n) :].reshape(-1)
    return WeightParts(unpack_pairs(packed[:n], k), unpack_factors(atoms, n, form.num_groups(k)))


def unpack_pairs(held: NDArray[np.uint8], k: int) -> NDArray[np.uint8]:
    """Return the first k codes of 4 bits of rows, whose bytes have two each, the first in the lower half."""
    pairs = held[:, : k // 2]
    codes = np.empty((len(pairs), k), np.uint8)
    codes[:, ::2], codes[:, 1::2] = pairs & 15, pairs >> 4
    return codes


def _check_codes(form: WeightFormat, codes: Bits) -> None:
    last = (1 << form.code.bits) - 1
    if codes.dtype != np.uint8 or (codes.size and int(codes.max()) > last):
        highest = int(codes.max()) if codes.size else 0
        raise FormatError(f"codes of {form.name} are {codes.dtype} up to {highest}; expected uint8 up to {last}")
    if form.code is Code.E4M3 and ((codes & E4M3_NAN) == E4M3_NAN).any():
        raise FormatError(f"a code of {form.name} is NaN; replace it: packed weights have numbers alone")


def _check_shape(name: str, found: Bits | None, bits: int, shape: tuple[int, int]) -> None:
    expected = np.dtype(f"u{bits // 8}"), shape
    if found is None or (found.dtype, found.shape) != expected:
        got = "none" if found is None else f"{found.dtype} of {found.shape}"
        raise FormatError(f"{name} are {got}; expected {expected[0]} of {expected[1]}")


def _check_factors(form: WeightFormat, factors: Bits | None, shape: tuple[int, int]) -> None:
    if not form.group:
        if factors is not None:
            raise FormatError(f"{form.name} has no factors of groups, got some of {factors.shape}; give them beside it")
        return
    _check_shape(f"factors of {form.name}", factors, form.factor_bits, shape)
    if form.is_nvfp4 and (factors >= 0x7F).any():  # type: ignore[operator, union-attr]
        raise FormatError(
            f"a factor of {form.name} is negative or NaN; expected e4m3 from 0 to 0x7e: give the codes the signs"
        )
    if form.is_mxfp4 and (factors == E8M0_NAN).any():  # type: ignore[union-attr]
        raise FormatError(f"a factor of {form.name} is NaN, the code 255; expected codes from 0 to 254")


def _check_zeros(form: WeightFormat, zeros: Bits | None, shape: tuple[int, int]) -> None:
    if not form.has_zeros:
        if zeros is not None:
            raise FormatError(f"{form.name} has no zero points, got some of {zeros.shape}; use {form.name}z")
        return
    _check_shape(f"zero points of {form.name}", zeros, 8, shape)
    if (zeros > MAX_ZERO).any():  # type: ignore[operator, union-attr]
        raise FormatError(f"a zero point of {form.name} is {int(zeros.max())}; expected 0 to {MAX_ZERO}")  # type: ignore[union-attr]


def _split(padded: Bits, tiles: int, blocks: int) -> Bits:
    """View codes as (tile, row / 8, row % 8, block, 32 of k, t, h, p, e)."""
    return padded.reshape(tiles, 2, 8, blocks, BLOCK_K // 32, 4, 2, 2, 2)


def _pack_codes(form: WeightFormat, padded: Bits, tiles: int, blocks: int) -> NDArray[np.uint8]:
    """Return codes as bytes, (tile, block, bytes)."""
    split = _split(padded, tiles, blocks)
    if form.code.bits == 8:  # (tile, block, 32 of k, g, t; h, p, e, row / 8)
        return np.ascontiguousarray(split.transpose(0, 3, 4, 2, 5, 6, 7, 8, 1)).reshape(tiles, blocks, -1)
    # (register, element; tile, block, 64 of k, g, t; 32 of them, h): the first two are combined to words
    ordered = split.reshape(tiles, 2, 8, blocks, 2, 2, 4, 2, 2, 2).transpose(8, 1, 9, 0, 3, 4, 2, 6, 5, 7)
    words = np.zeros(ordered.shape[3:], np.uint32)
    for register, of_register in enumerate(ordered.reshape(4, 2, *words.shape)):
        for element, of_element in enumerate(of_register):
            words |= _placed(form.code, register, element)[of_element]
    return words.view(np.uint8).reshape(tiles, blocks, -1)


def place(code: Code, register: int, element: int, bit: int) -> int:
    """Return where in a word a bit of a code is: of the first or second element of a register of a fragment."""
    return (_PLACES[code][register][bit] + 16 * element) % 32


def _placed(code: Code, register: int, element: int) -> NDArray[np.uint32]:
    """Return each code's bits at their places in a word."""
    codes, placed = np.arange(16, dtype=np.uint32), np.zeros(16, np.uint32)
    for i in range(4):
        placed |= (codes >> i & 1) << place(code, register, element, i)
    return placed


def _unpack_codes(form: WeightFormat, packed: Bits) -> NDArray[np.uint8]:
    tiles, blocks = packed.shape[:2]
    if form.code.bits == 8:
        found = packed.reshape(tiles, blocks, 4, 8, 4, 2, 2, 2, 2).transpose(0, 8, 3, 1, 2, 4, 5, 6, 7)
        return np.ascontiguousarray(found).reshape(tiles * TILE_ROWS, blocks * BLOCK_K)
    words = np.ascontiguousarray(packed).view(np.uint32).reshape(tiles, blocks, 2, 8, 4, 2, 2)
    codes = np.empty((4, 2, *words.shape), np.uint8)
    for register in range(4):
        for element in range(2):
            bits = ((words >> place(form.code, register, element, i) & 1) << i for i in range(4))
            codes[register, element] = np.bitwise_or.reduce(list(bits))
    # (p, row / 8, e; tile, block, 64 of k, g, t; 32 of them, h)
    found = codes.reshape(2, 2, 2, *words.shape).transpose(3, 1, 6, 4, 5, 8, 7, 9, 0, 2)
    return np.ascontiguousarray(found).reshape(tiles * TILE_ROWS, blocks * BLOCK_K)


def _pack_factors(form: WeightFormat, held: Bits, tiles: int, blocks: int) -> NDArray[np.uint8]:
    """Return factors as bytes, (tile, block, bytes): those that a lane uses lie next to each other."""
    groups = form.num_groups(BLOCK_K)
    split = held.reshape(tiles, 2, 8, blocks, groups)
    if form.is_nvfp4:  # lanes t 0 and 1 hold the first half of each 32, 2 and 3 the other: (g, t / 2; 64, row, 32)
        ordered = split.reshape(tiles, 2, 8, blocks, 2, 2, 2).transpose(0, 3, 2, 6, 4, 1, 5)
    else:  # (g; group, row / 8)
        ordered = split.transpose(0, 3, 2, 4, 1)
    return np.ascontiguousarray(ordered).view(np.uint8).reshape(tiles, blocks, -1)


def _unpack_factors(form: WeightFormat, packed: Bits, bits: int) -> Bits:
    tiles, blocks = packed.shape[:2]
    groups = form.num_groups(BLOCK_K)
    words = np.ascontiguousarray(packed).view(f"u{bits // 8}")
    if form.is_nvfp4:
        found = words.reshape(tiles, blocks, 8, 2, 2, 2, 2).transpose(0, 5, 2, 1, 4, 6, 3)
    else:
        found = words.reshape(tiles, blocks, 8, groups, 2).transpose(0, 4, 2, 1, 3)
    return np.ascontiguousarray(found).reshape(tiles * TILE_ROWS, blocks * groups)
