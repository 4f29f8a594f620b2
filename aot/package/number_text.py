"""Whole numbers as text: a table of a wheel has hundreds of thousands, most of them small.

Most are one character, so that a compressor sees one symbol for each, and reading JSON is copying. Lists of decimal
numbers are a quarter larger in a wheel. Source: the grids of the committed selection of an H200, deflated, 2026-11-23.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from aot.core.constraints import Grammar
from aot.core.dispatch import NS_PER_US, WHEEL_DIGITS, rounded_up
from aot.core.strict_json import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable

DIGITS = "".join(chr(x) for x in range(0x21, 0x7F) if chr(x) not in '"\\')
"""What ASCII has of printable characters that JSON writes as they are, without the space."""
NUM_LAST = 64
"""The first so many digits end a number. The others, whose number is their base, stand before: high ones first."""
MAX_DIGITS = 12
"""Enough for a time of 1e12 us in nanoseconds, with a sign."""

_NUM_HIGH = len(DIGITS) - NUM_LAST
_VALUES = bytes(DIGITS.find(chr(x)) % 256 for x in range(256))
"""By the character."""

Numbers = Annotated[str, Grammar(r"[!#-\[\]-~]*", "numbers in the digits of aot.package.number_text", max_length=10**6)]


def _number_text(number: int) -> str:
    if number < 0:
        raise DecodeError(f"{number} is below 0; expected edges that ascend, and no other such number")
    high, last = divmod(number, NUM_LAST)
    text = DIGITS[last]
    while high:
        high, digit = divmod(high, _NUM_HIGH)
        text = DIGITS[NUM_LAST + digit] + text
    return text


_TEXTS = tuple(map(_number_text, range(4096)))
"""Of the first numbers, which nearly all are of: looking one up takes a tenth of making it."""


def number_text(numbers: Iterable[int]) -> str:
    """Write numbers, one after the other.

    Raises:
        DecodeError: one is below 0.
    """
    return "".join([_TEXTS[x] if 0 <= x < len(_TEXTS) else _number_text(x) for x in numbers])


def read_numbers(text: Numbers) -> list[int]:
    """Read the numbers of a text.

    Raises:
        DecodeError: a number starts with a digit that is nothing, does not end, or has more than `MAX_DIGITS` digits.
    """
    values = text.encode().translate(_VALUES)
    if max(values, default=0) < NUM_LAST:
        return list(values)
    found, high, num_digits = [], 0, 0
    for value in values:
        num_digits += 1
        if value < NUM_LAST:
            found.append(high * NUM_LAST + value)
            high = num_digits = 0
            continue
        high = high * _NUM_HIGH + value - NUM_LAST
        if high == 0 or num_digits > MAX_DIGITS:
            raise DecodeError(
                f"number {len(found)} starts with {DIGITS[NUM_LAST]!r}, or has more than {MAX_DIGITS} digits"
            )
    if num_digits:
        raise DecodeError(f"number {len(found)} ends with {text[-1]!r}, a digit that another follows")
    return found


_FIRST_OF_DIGITS: int = 10 ** (WHEEL_DIGITS - 1)
_NUM_OF_DIGITS = 9 * _FIRST_OF_DIGITS
"""Numbers of `WHEEL_DIGITS` digits."""


def time_number(time_us: float) -> int:
    """Return which of the times that wheels have a time is: 0, 1, 2, ... nanoseconds, of three digits each.

    Times that are alike in the same measure are as many numbers apart, long ones and short ones: so the numbers of
    neighbours differ by less than their nanoseconds do, and take two thirds of these' bytes in a wheel. Source: the
    ladders of the committed selection of an H200, deflated, 2026-11-29.

    Raises:
        DecodeError: it is none of them.
    """
    ns, tens = round(time_us * NS_PER_US), 0
    if ns / NS_PER_US != time_us or rounded_up(time_us) != time_us:
        raise DecodeError(
            f"the time {time_us!r} us is no whole number of nanoseconds in {WHEEL_DIGITS} digits; round it"
        )
    while ns >= _FIRST_OF_DIGITS + _NUM_OF_DIGITS:
        ns, tens = ns // 10, tens + 1
    return ns + _NUM_OF_DIGITS * tens


def time_of(number: int) -> float:
    """Return the time in microseconds that `time_number` was given.

    Raises:
        DecodeError: it is longer than any time.
    """
    tens = max(0, (number - _FIRST_OF_DIGITS) // _NUM_OF_DIGITS)
    if tens > MAX_DIGITS:
        raise DecodeError(f"{number} is the number of a time of {tens} more digits; expected at most {MAX_DIGITS}")
    ns: int = (number - _NUM_OF_DIGITS * tens) * 10**tens
    return ns / NS_PER_US


def signed(number: int) -> int:
    """Return the number of at least 0 that stands for a number of any sign: 0, 1, 2, 3, 4 for 0, -1, 1, -2, 2."""
    return 2 * number if number >= 0 else -2 * number - 1


def unsigned(number: int) -> int:
    """Return the number that `signed` was given."""
    return -(number + 1) // 2 if number % 2 else number // 2
