"""The decoder of TMA descriptors against the driver's encoder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.equivalence import driver_maps
from tests.equivalence.descriptor import NUM_BYTES, TensorMap, decode

DRIVER_MAPS = Path(__file__).with_name("driver_maps.jsonl")
DTYPES = {driver_maps.FP16: "float16", driver_maps.BF16: "bfloat16"}


def answers():
    return [json.loads(line) for line in DRIVER_MAPS.read_text().splitlines()]


def content(answer):
    return bytes.fromhex(answer["map"])


def test_the_drivers_maps_decode_to_what_it_was_asked_for():
    for answer in answers():
        assert decode(content(answer)) == TensorMap(
            dtype=DTYPES[answer["dtype"]],
            address=answer["address"],
            extents=tuple(answer["dims"]),
            strides=tuple(answer["strides"]),
            box=tuple(answer["box"]),
            element_strides=tuple(answer["element_strides"]),
            interleave=answer["interleave"],
            swizzle=answer["swizzle"],
            l2_promotion=answer["l2_promotion"],
            nan_fill=bool(answer["oob_fill"]),
            bit_1=False,
            bit_21=False,
        )


def test_the_drivers_maps_are_those_of_the_script():
    cases = driver_maps.cases()
    assert [{k: v for k, v in answer.items() if k != "map"} for answer in answers()] == cases
    for name in driver_maps.BASE:
        assert len({json.dumps(case[name]) for case in cases}) > 1, name


def test_every_bit_means_something_or_is_refused():
    whole = content(answers()[0])
    seen = {decode(whole)}
    refused = 0
    for bit in range(NUM_BYTES * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            seen.add(decode(bytes(flipped)))
        except ValueError:
            refused += 1
    assert len(seen) + refused == NUM_BYTES * 8 + 1


def test_the_two_bits_of_cute_dsl_are_told_apart():
    plain = decode(content(answers()[0]))
    word = bytearray(content(answers()[0]))
    word[8] |= 1 << 1
    word[10] |= 1 << 5
    assert decode(bytes(word)) == replace(plain, bit_1=True, bit_21=True)


@pytest.mark.parametrize(
    ("byte", "bit", "text"),
    [
        (9, 1, r"element type is 14; expected one of \{0: 'uint8', 1: 'uint16', 2: 'uint32', "),
        (8, 0, r"bits \[64\] are set; no field has them"),
        (16, 0, r"modes past the 1 of the tensor hold \[16, 0, 0\]; expected 0"),
        (40, 1, r"modes past the 2 of the tensor hold \[3, 1, 1\]; expected 1"),
    ],
)
def test_what_is_no_map_of_ours_is_refused(byte, bit, text):
    damaged = bytearray(content(answers()[0]))
    damaged[byte] |= 1 << bit
    with pytest.raises(ValueError, match=text):
        decode(bytes(damaged))
    with pytest.raises(ValueError, match="3 bytes; expected 64"):
        decode(b"abc")
