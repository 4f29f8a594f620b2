"""The decoder of TMA descriptors against the driver's recorded answers, and against the tests' own decoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aot.emulate.faults import Fault
from aot.emulate.layouts.errors import UnsupportedLayoutError
from aot.emulate.layouts.swizzle import Swizzle
from aot.emulate.layouts.tensor_map import ElementType, decode_tensor_map
from tests.equivalence import descriptor

DRIVER_MAPS = Path(descriptor.__file__).with_name("driver_maps.jsonl")
SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)
TYPES = {"float16": ElementType.F16, "bfloat16": ElementType.BF16}


def contents():
    return [bytes.fromhex(json.loads(line)["map"]).ljust(128, b"\0") for line in DRIVER_MAPS.read_text().splitlines()]


def test_both_decoders_agree_on_what_the_driver_wrote():
    num_decoded = 0
    for content in contents():
        expected = descriptor.decode(content[:64])
        if expected.nan_fill or expected.interleave or set(expected.element_strides) != {1}:
            with pytest.raises(UnsupportedLayoutError):
                decode_tensor_map(content)
            continue
        row_bytes = 2 * expected.box[0]
        if row_bytes % 16 or (expected.swizzle and row_bytes > 16 << expected.swizzle):
            with pytest.raises(Fault):
                decode_tensor_map(content)
            continue
        found = decode_tensor_map(content)
        assert (found.address, found.extents, found.strides, found.box) == (
            expected.address,
            expected.extents,
            expected.strides,
            expected.box,
        )
        assert (found.element, found.swizzle) == (TYPES[expected.dtype], SWIZZLES[expected.swizzle])
        assert found.box_bytes == 2 * found.box[0] * found.num_rows
        num_decoded += 1
    assert num_decoded > 20


def test_what_cute_dsls_host_code_adds_is_ignored_and_what_stands_behind_too():
    plain = contents()[0]
    whole = bytearray(plain)
    whole[8] |= 1 << 1
    whole[10] |= 1 << 5  # bit 21 of the word at byte 8
    whole[64:] = b"\xab" * 64
    assert decode_tensor_map(bytes(whole)) == decode_tensor_map(plain)


def changed(byte, bit):
    whole = bytearray(contents()[0])
    whole[byte] ^= 1 << bit
    return bytes(whole)


@pytest.mark.parametrize(
    ("byte", "bit", "error", "text"),
    [
        (8, 0, UnsupportedLayoutError, r"bits \[64\] are set"),
        (9, 4, UnsupportedLayoutError, "interleave is 2"),
        (9, 7, UnsupportedLayoutError, "NaN fill is 1"),
        (10, 3, None, Swizzle.B128_ATOM_32B),
        (10, 4, UnsupportedLayoutError, "swizzle 3 with atomicity 2"),
        (52, 0, UnsupportedLayoutError, r"element strides are \[2, 1, 1, 1, 1\]"),
        (55, 0, Fault, "expected a multiple of 16"),
        (55, 6, Fault, "inner box has 256 bytes; expected at most the swizzle's 128"),
        (16, 0, UnsupportedLayoutError, "strides past mode 1"),
    ],
)
def test_each_field_is_seen_or_refused(byte, bit, error, text):
    if error is None:
        assert decode_tensor_map(changed(byte, bit)).swizzle is text
        return
    with pytest.raises(error, match=text):
        decode_tensor_map(changed(byte, bit))


def test_a_descriptor_has_128_bytes():
    with pytest.raises(UnsupportedLayoutError, match="64 bytes; expected 128"):
        decode_tensor_map(contents()[0][:64])
