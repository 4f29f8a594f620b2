import re

import numpy as np
import pytest

from aot.core.errors import FormatError
from aot.core.weight_format import E4M3, FORMATS, INT4_G32, INT4_G128, INT8, MXFP4, NVFP4, Code
from aot.core.weight_packing import BLOCK_K, PackedLayout, pack, unpack

IDS = [x.name for x in FORMATS]
BLOCK_BYTES = {
    "int4g32": 1152,
    "int4g64": 1088,
    "int4g128": 1056,
    "nvfp4": 1152,
    "mxfp4": 1088,
    "int8": 2048,
    "e4m3": 2048,
}


def weight(form, n, k, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << form.code.bits, (n, k)).astype(np.uint8)
    if form.code is Code.E4M3:
        codes[(codes & 0x7F) == 0x7F] = 0
    if not form.group:
        return codes, None
    limit = {NVFP4: 0x7F, MXFP4: 0xFF}.get(form, 1 << 16)
    return codes, rng.integers(0, limit, (n, k // form.group)).astype(f"u{form.factor_bits // 8}")


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_unpacking_gives_back_what_was_packed(form):
    for n, k in ((16, BLOCK_K), (1, form.quantum), (37, 5 * form.quantum), (300, 9 * form.quantum)):
        codes, factors = weight(form, n, k)
        packed = pack(form, codes, factors)
        assert packed.shape == PackedLayout(form).shape(n, k)
        found = unpack(form, packed, n, k)
        assert np.array_equal(found[0], codes)
        assert factors is None or (found[1].dtype == factors.dtype and np.array_equal(found[1], factors))


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_a_block_has_its_codes_and_factors_and_nothing_else(form):
    layout = PackedLayout(form)
    assert layout.block_bytes == BLOCK_BYTES[form.name]
    assert layout.block_bytes % 16 == 0
    assert layout.shape(17, BLOCK_K + form.quantum) == (2, 2 * layout.block_bytes)


def test_every_code_of_every_format_has_bits_of_its_own():
    """One code that differs changes its own bits of the packed bytes, as many as it has, and no others."""
    for form in (INT4_G128, NVFP4, INT8):
        codes, factors = weight(form, 16, BLOCK_K)
        codes[:] = 0
        base, seen = pack(form, codes, factors), np.zeros(PackedLayout(form).shape(16, BLOCK_K), np.uint8)
        for row, column in np.ndindex(16, BLOCK_K):
            codes[row, column] = (1 << form.code.bits) - 1
            changed = pack(form, codes, factors) ^ base
            assert not (seen & changed).any()
            seen |= changed
            codes[row, column] = 0
        assert (seen[:, : PackedLayout(form).code_bytes] == 0xFF).all()
        assert not seen[:, PackedLayout(form).code_bytes :].any()


@pytest.mark.parametrize("form", [INT4_G128, MXFP4, INT8], ids=["int4g128", "mxfp4", "int8"])
def test_a_lane_s_16_bytes_are_its_fragments_of_a(form):
    """By the fragments of the PTX ISA, from a lane's side: rows g and g + 8, two pairs of a step."""
    codes, factors = weight(form, 16, BLOCK_K)
    packed = pack(form, codes, factors)[0]
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
    ("form", "codes", "factors", "text"),
    [
        (INT8, np.zeros((1, 16), np.int8), None, "codes of int8 are int8 up to 0; expected uint8 up to 255"),
        (MXFP4, np.full((1, 32), 16, np.uint8), np.zeros((1, 1), np.uint8), "uint8 up to 16; expected uint8 up to 15"),
        (E4M3, np.full((1, 16), 0x7F, np.uint8), None, "a code of e4m3 is NaN"),
        (INT8, np.zeros((1, 16), np.uint8), np.zeros((1, 1), np.uint8), "int8 has no factors of groups"),
        (NVFP4, np.zeros((1, 16), np.uint8), None, "factors of nvfp4 are none; expected uint8 of (1, 1)"),
        (NVFP4, np.zeros((1, 16), np.uint8), np.full((1, 1), 0x80, np.uint8), "a factor of nvfp4 is negative or NaN"),
        (NVFP4, np.zeros((1, 16), np.uint8), np.full((1, 1), 0x7F, np.uint8), "a factor of nvfp4 is negative or NaN"),
        (MXFP4, np.zeros((1, 32), np.uint8), np.full((1, 1), 255, np.uint8), "a factor of mxfp4 is NaN"),
        (
            INT4_G32,
            np.zeros((2, 64), np.uint8),
            np.zeros((2, 1), np.uint16),
            "uint16 of (2, 1); expected uint16 of (2, 2)",
        ),
        (INT4_G32, np.zeros((2, 48), np.uint8), np.zeros((2, 1), np.uint16), "k a multiple of 32"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(form, codes, factors, text):
    with pytest.raises(FormatError, match=re.escape(text)):
        pack(form, codes, factors)


def test_bytes_of_another_weight_are_refused():
    packed = pack(INT8, np.zeros((16, 128), np.uint8))
    with pytest.raises(
        FormatError, match=re.escape("packed bytes are uint8 of (1, 2048); expected uint8 of (2, 2048)")
    ):
        unpack(INT8, packed, 17, 128)
