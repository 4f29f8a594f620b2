import random
import string

import pytest

from aot.core.strict_json import DecodeError
from aot.package.number_text import (
    DIGITS,
    MAX_DIGITS,
    NUM_LAST,
    number_text,
    read_numbers,
    signed,
    time_number,
    time_of,
    unsigned,
)
from tests.packed import wheels_reader

EDGES = [0, 1, 63, 64, 65, 64 * 28 - 1, 64 * 28, 64 * 28 * 28 - 1, 64 * 28 * 28, 4095, 4096, 2**31 - 1, 2 * 10**15]


def test_digits_are_what_json_writes_as_it_is():
    assert len(DIGITS) == len(set(DIGITS)) == 92
    assert set(DIGITS) == set(string.ascii_letters + string.digits + string.punctuation) - set('"\\')


def test_a_number_below_64_is_one_digit():
    assert number_text(range(NUM_LAST)) == DIGITS[:NUM_LAST]
    assert number_text([64, 0, 91, 64 * 29]) == DIGITS[65] + "!!" + DIGITS[65] + DIGITS[27] + DIGITS[65] * 2 + "!"


def test_numbers_are_read_as_they_were_written():
    rng = random.Random(0)
    lists = [[], [0], EDGES, *([rng.choice(EDGES) + rng.randrange(99) for _ in range(50)] for _ in range(100))]
    packed = wheels_reader()
    for numbers in lists:
        text = number_text(numbers)
        assert read_numbers(text) == packed.numbers(text) == numbers


def test_numbers_of_any_sign():
    assert [signed(x) for x in (0, -1, 1, -2, 2)] == [0, 1, 2, 3, 4]
    packed = wheels_reader()
    for number in (*range(-100, 100), 10**15, -(10**15)):
        assert unsigned(signed(number)) == packed._unsigned(signed(number)) == number


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!" + DIGITS[NUM_LAST] + "!", "number 1 starts with 'c', or has more than 12 digits"),
        ("~" * (MAX_DIGITS + 1) + "!", "number 0 starts with 'c', or has more than 12 digits"),
        ("!!~", "number 2 ends with '~', a digit that another follows"),
    ],
)
def test_other_texts_are_refused(text, message):
    with pytest.raises(DecodeError) as caught:
        read_numbers(text)
    assert str(caught.value) == message


def test_times_of_three_digits_are_numbered_in_their_order():
    ns = [*range(1000), *(x * 10**tens for tens in range(1, 12) for x in range(100, 1000))]
    packed = wheels_reader()
    for number, time in enumerate(ns):
        assert time_number(time / 1000) == number
        assert time_of(number) == packed._time_of(number) == time / 1000
    assert time_of(-1) == -0.001
    with pytest.raises(DecodeError, match="the number of a time of 13 more digits; expected at most 12"):
        time_of(100 + 13 * 900)


def test_a_number_below_0_is_not_written():
    with pytest.raises(DecodeError, match="-3 is below 0; expected edges that ascend"):
        number_text([1, -3])
