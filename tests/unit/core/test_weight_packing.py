import re
from dataclasses import astuple

import numpy as np
import pytest

from aot.core import numerics
from aot.core.errors import FormatError
from aot.core.weight_format import (
    BLOCK_K,
    E4M3,
    FORMATS,
    INT4_G32,
    INT4_G32_ZEROS,
    INT4_G128,
    INT8,
    MAX_ZERO,
    MXFP4,
    MXFP4_ROWS,
    NVFP4,
    NVFP4_ROWS,
    Code,
    PackedLayout,
    WeightParts,
)
from aot.core.weight_packing import pack, unpack

IDS = [x.name for x in FORMATS]
BLOCK_BYTES = {
    "int4g32": 1152,
    "int4g64": 1088,
    "int4g128": 1056,
    "int4g32z": 1216,
    "int4g64z": 1120,
    "int4g128z": 1072,
    "nvfp4": 1152,
    "nvfp4rows": 1152,
    "mxfp4": 1088,
    "mxfp4rows": 1088,
    "int8": 2048,
    "e4m3": 2048,
}


def weight(form, n, k, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << form.code.bits, (n, k)).astype(np.uint8)
    if form.code is Code.E4M3:
        codes[(codes & 0x7F) == 0x7F] = 0
    if not form.group:
        return WeightParts(codes)
    limit, shape = {"nvfp4": 0x7F, "mxfp4": 0xFF}.get(form.elements, 1 << 16), (n, k // form.group)
    factors = rng.integers(0, limit, shape).astype(f"u{form.factor_bits // 8}")
    zeros = rng.integers(0, MAX_ZERO + 1, shape).astype(np.uint8) if form.has_zeros else None
    return WeightParts(codes, factors, zeros)


def filled(count, value):
    """Return a row of equal bytes."""
    return np.full((1, count), value, np.uint8)


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_unpacking_gives_back_what_was_packed(form):
    for n, k in ((16, BLOCK_K), (1, form.quantum), (37, 5 * form.quantum), (300, 9 * form.quantum)):
        parts = weight(form, n, k)
        packed = pack(form, parts)
        assert packed.shape == PackedLayout(form).shape(n, k)
        found = unpack(form, packed, n, k)
        for expected, got in zip(astuple(parts), astuple(found), strict=True):
            if expected is None:
                assert got is None
            else:
                assert got.dtype == expected.dtype
                assert np.array_equal(got, expected)


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_a_block_has_its_codes_and_factors_and_nothing_else(form):
    layout = PackedLayout(form)
    assert layout.block_bytes == BLOCK_BYTES[form.name]
    assert layout.block_bytes % 16 == 0
    if not form.in_rows:
        assert layout.shape(17, BLOCK_K + form.quantum) == (2, 2 * layout.block_bytes)


@pytest.mark.parametrize(("n", "k"), [(1, 32), (16, 64), (17, 160), (130, 288), (300, 192)])
@pytest.mark.parametrize("form", [NVFP4_ROWS, MXFP4_ROWS], ids=lambda x: x.name)
def test_rows_are_those_of_a_block_scaled_product_and_atoms_stand_behind_whole_tiles(form, n, k):
    group, run = form.group, 4 * form.group
    tile = 16 if form is NVFP4_ROWS else 32
    parts, (first, row_bytes) = weight(form, n, k), (-(-n // tile) * tile, -(-k // run) * run // 2)
    packed = pack(form, parts)
    assert packed.shape == (first + 1024 // run * -(-n // 128), row_bytes)
    assert np.array_equal(packed[:n, : k // 2], numerics.pack(parts.codes))
    assert not packed[n:first].any()
    assert not packed[:n, k // 2 :].any()
    atoms = packed[first:].reshape(-1)
    for row, block in ((0, 0), (n - 1, k // group - 1), (n // 2, k // group // 2)):
        at = (row // 128 * -(-k // run) + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4
        assert atoms[at] == parts.factors[row, block]
    assert np.count_nonzero(atoms) == np.count_nonzero(parts.factors)
    assert packed.strides[0] % 16 == packed[:first].nbytes % 16 == 0


@pytest.mark.slow
def test_every_code_of_every_format_has_bits_of_its_own():
    """One code that differs changes its own bits of the packed bytes, as many as it has, and no others."""
    for form in (INT4_G128, NVFP4, INT8):
        parts = weight(form, 16, BLOCK_K)
        codes = parts.codes
        codes[:] = 0
        base, seen = pack(form, parts), np.zeros(PackedLayout(form).shape(16, BLOCK_K), np.uint8)
        for row, column in np.ndindex(16, BLOCK_K):
            codes[row, column] = (1 << form.code.bits) - 1
            changed = pack(form, parts) ^ base
            assert not (seen & changed).any()
            seen |= changed
            codes[row, column] = 0
        assert (seen[:, : PackedLayout(form).code_bytes] == 0xFF).all()
        assert not seen[:, PackedLayout(form).code_bytes :].any()


@pytest.mark.parametrize("form", [INT4_G128, MXFP4, INT8], ids=["int4g128", "mxfp4", "int8"])
def test_a_lane_s_16_bytes_are_its_fragments_of_a(form):
    """By the fragments of the PTX ISA, from a lane's side: rows g and g + 8, two pairs of a step."""
    parts = weight(form, 16, BLOCK_K)
    codes, packed = parts.codes, pack(form, parts)[0]
    per_load = 128 // form.code.bits
    for load in range(BLOCK_K * 16 // 32 // per_load):
        for lane in range(32):
            start = (load * 32 + lane) * 16
            held = int.from_bytes(packed[start : start + 16].tobytes(), "little")
            g, t = lane // 4, lane % 4
            expected = []
            for step in range(per_load // 8):
                k = load * per_load * 2 + step // 2 * 32 + t * 8 + step % 2 * 4
                expected += [codes[row, k + pair + e] for pair in (0, 2) for row in (g, g + 8) for e in (0, 1)]
            assert sorted(_codes(form, held)) == sorted(expected)
            assert _codes(form, held) == expected


def _codes(form, held):
    """Return a lane's codes in the order (step, pair, row, element), as the kernel's instructions take them apart."""
    found = []
    if form.code.bits == 8:
        for word in range(4):
            value = held >> 32 * word & 0xFFFFFFFF
            found += [value >> 8 * byte & 0xFF for byte in (0, 2, 1, 3)]
        return found
    for step in range(4):
        value = held >> 32 * step & 0xFFFFFFFF
        rotated = [(value >> r | value << (32 - r)) & 0xFFFFFFFF for r in range(16)]
        if form.code is Code.INT4:
            for r in (0, 8, 4, 12):
                found += [rotated[r] >> at & 15 for at in (2, 18)]
            continue
        for r in (0, 3, 6):
            found += [rotated[r] >> (6 + at) & 7 | rotated[r] >> (15 + at) << 3 & 8 for at in (0, 16)]
        found += [value >> at & 3 | value >> (at + 3) << 2 & 4 | value >> (at + 4) << 3 & 8 for at in (0, 16)]
    return found


@pytest.mark.parametrize(
    ("form", "parts", "text"),
    [
        (INT8, (np.zeros((1, 16), np.int8),), "codes of int8 are int8 up to 0; expected uint8 up to 255"),
        (MXFP4, (filled(32, 16), filled(1, 0)), "uint8 up to 16; expected uint8 up to 15"),
        (E4M3, (filled(16, 0x7F),), "a code of e4m3 is NaN"),
        (INT8, (filled(16, 0), filled(1, 0)), "int8 has no factors of groups"),
        (NVFP4, (filled(16, 0),), "factors of nvfp4 are none; expected uint8 of (1, 1)"),
        (NVFP4, (filled(16, 0), filled(1, 0x80)), "a factor of nvfp4 is negative or NaN"),
        (NVFP4, (filled(16, 0), filled(1, 0x7F)), "a factor of nvfp4 is negative or NaN"),
        (MXFP4, (filled(32, 0), filled(1, 255)), "a factor of mxfp4 is NaN"),
        (INT4_G32, (filled(64, 0), np.zeros((1, 1), np.uint16)), "uint16 of (1, 1); expected uint16 of (1, 2)"),
        (INT4_G32, (filled(48, 0), np.zeros((1, 1), np.uint16)), "k a multiple of 32"),
        (
            INT4_G32,
            (filled(32, 0), np.zeros((1, 1), np.uint16), filled(1, 8)),
            "has no zero points, got some of (1, 1)",
        ),
        (INT4_G32_ZEROS, (filled(32, 0), np.zeros((1, 1), np.uint16)), "zero points of int4g32z are none"),
        (INT4_G32_ZEROS, (filled(32, 0), np.zeros((1, 1), np.uint16), filled(1, 17)), "is 17; expected 0 to 16"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(form, parts, text):
    with pytest.raises(FormatError, match=re.escape(text)):
        pack(form, WeightParts(*parts))


def test_bytes_of_another_weight_are_refused():
    packed = pack(INT8, WeightParts(np.zeros((16, 128), np.uint8)))
    with pytest.raises(
        FormatError, match=re.escape("packed bytes are uint8 of (1, 2048); expected uint8 of (2, 2048)")
    ):
        unpack(INT8, packed, 17, 128)
