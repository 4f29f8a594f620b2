"""How the codes of packed weights turn into floats in registers."""

import pytest

from aot.core.weight_format import Code
from aot.core.weight_packing import place
from aot.families._sm90_packed_decode import _TURNS_BF16, _TURNS_F16

pytestmark = pytest.mark.slow


def turned(code_bits, lane_is_odd, row, turns, masks):
    """Return where the parts of a register have the four bits of its first element, by which bits of it they are."""
    found = {}
    register = 2 * lane_is_odd + row
    for count, mask in zip(turns, masks, strict=True):
        for bit in range(4):
            at = (place(code_bits, register, 0, bit) - count[lane_is_odd]) % 32
            if at < 16 and mask >> at & 1:
                found[bit] = at
    return found


@pytest.mark.parametrize(
    ("turns", "masks", "places"),
    [
        (_TURNS_BF16, ((0x81C0,), (0x00C0, 0x0100, 0x8000)), {0: 6, 1: 7, 2: 8, 3: 15}),
        (_TURNS_F16, ((0x0E00, 0x8000), (0x0600, 0x0800, 0x8000)), {0: 9, 1: 10, 2: 11, 3: 15}),
    ],
    ids=["bfloat16", "float16"],
)
@pytest.mark.parametrize("lane_is_odd", [0, 1])
def test_both_halves_of_a_word_turn_to_the_places_of_a_float(turns, masks, places, lane_is_odd):
    """The lowest bit of e2m1 is the first of a float's fraction, the next two the lowest of its exponent."""
    first = len(masks[0])
    for row, parts in enumerate((turns[:first], turns[first:])):
        assert turned(Code.E2M1, lane_is_odd, row, parts, masks[row]) == places
