from __future__ import annotations

import itertools
import random

import pytest

from tests.unit.emulate.numbers import (
    INTEGERS,
    integer,
    integer_edges,
    pairs,
    width,
    wrapped,
)
from tests.unit.emulate.snippets import Operand, compute


def triples(kind, count=200):
    draw = random.Random(5)
    edges = integer_edges(kind)
    return [[draw.choice(edges) if draw.random() < 0.6 else draw.getrandbits(width(kind)) for _ in range(count)]
            for _ in range(3)]  # fmt: skip


def check_binary(form, kind, function, *, to=None):
    a, b = pairs(kind)
    found = compute(form, to or kind, Operand(kind, a), Operand(kind, b))
    for x, y, got in zip(a, b, found, strict=True):
        expected = wrapped(function(integer(x, kind), integer(y, kind)), to or kind)
        assert got == expected, f"{form} of {x:#x} and {y:#x}: {got:#x}, expected {expected:#x}"


@pytest.mark.parametrize("kind", INTEGERS)
def test_sums_and_products_wrap(kind):
    check_binary(f"add.{kind}", kind, lambda x, y: x + y)
    check_binary(f"sub.{kind}", kind, lambda x, y: x - y)
    check_binary(f"mul.lo.{kind}", kind, lambda x, y: x * y)
    check_binary(f"min.{kind}", kind, min)
    check_binary(f"max.{kind}", kind, max)


@pytest.mark.parametrize("kind", INTEGERS)
def test_the_upper_half_of_a_product(kind):
    check_binary(f"mul.hi.{kind}", kind, lambda x, y: (x * y) >> width(kind))


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32"])
def test_a_product_of_twice_the_bits(kind):
    check_binary(f"mul.wide.{kind}", kind, lambda x, y: x * y, to=f"{kind[0]}{2 * width(kind)}")


@pytest.mark.parametrize("kind", INTEGERS)
def test_division_is_towards_zero(kind):
    """By zero it is undefined: all ones, as an H100 gives."""

    def quotient(x, y):
        return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else -1

    check_binary(f"div.{kind}", kind, quotient)
    check_binary(f"rem.{kind}", kind, lambda x, y: x - y * quotient(x, y) if y else -1)


@pytest.mark.parametrize("kind", INTEGERS)
def test_multiply_add(kind):
    a, b, c = triples(kind)
    found = compute(f"mad.lo.{kind}", kind, Operand(kind, a), Operand(kind, b), Operand(kind, c))
    assert found == [wrapped(x * y + z, kind) for x, y, z in zip(a, b, c, strict=True)]


@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_multiply_add_of_twice_the_bits(kind):
    (a, b, _), (c, _, _) = triples(kind), triples("u64")
    found = compute(f"mad.wide.{kind}", "b64", Operand(kind, a), Operand(kind, b), Operand("b64", c))
    expected = [wrapped(integer(x, kind) * integer(y, kind) + z, "b64") for x, y, z in zip(a, b, c, strict=True)]
    assert found == expected


@pytest.mark.parametrize("kind", ["b16", "b32", "b64"])
def test_logic(kind):
    check_binary(f"and.{kind}", kind, lambda x, y: x & y)
    check_binary(f"or.{kind}", kind, lambda x, y: x | y)
    check_binary(f"xor.{kind}", kind, lambda x, y: x ^ y)
    edges = integer_edges(kind)
    assert compute(f"not.{kind}", kind, Operand(kind, edges)) == [wrapped(~x, kind) for x in edges]


def test_logic_of_predicates():
    a, b = [0, 0, 1, 1], [0, 1, 0, 1]
    operands = Operand("pred", a), Operand("pred", b)
    assert compute("and.pred", "pred", *operands) == [0, 0, 0, 1]
    assert compute("or.pred", "pred", *operands) == [0, 1, 1, 1]
    assert compute("xor.pred", "pred", *operands) == [0, 1, 1, 0]
    assert compute("not.pred", "pred", operands[0]) == [1, 1, 0, 0]
    assert compute("mov.pred", "pred", operands[0]) == a


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_negation(kind):
    edges = integer_edges(kind)
    assert compute(f"neg.{kind}", kind, Operand(kind, edges)) == [wrapped(-x, kind) for x in edges]


@pytest.mark.parametrize("kind", ["s32", "s64"])
def test_absolute_value(kind):
    edges = integer_edges(kind)
    expected = [wrapped(abs(integer(x, kind)), kind) for x in edges]
    assert compute(f"abs.{kind}", kind, Operand(kind, edges)) == expected


@pytest.mark.parametrize("kind", ["b32", "b64"])
def test_counts_of_bits(kind):
    edges = integer_edges(kind)
    operand = Operand(kind, edges)
    assert compute(f"popc.{kind}", "b32", operand) == [f"{x:b}".count("1") for x in edges]
    leading = [len(f"{x:0{width(kind)}b}") - len(f"{x:0{width(kind)}b}".lstrip("0")) for x in edges]
    assert compute(f"clz.{kind}", "b32", operand) == leading


def test_order_and_place_of_bits():
    edges = integer_edges("u32")
    reversed_ = [sum((x >> i & 1) << (31 - i) for i in range(32)) for x in edges]
    assert compute("brev.b32", "b32", Operand("b32", edges)) == reversed_
    highest = [max((i for i in range(32) if x >> i & 1), default=0xFFFFFFFF) for x in edges]
    assert compute("bfind.u32", "b32", Operand("u32", edges)) == highest


@pytest.mark.parametrize("kind", ["b16", "b32", "b64"])
def test_left_shifts_past_the_width_give_zero(kind):
    rows = list(
        itertools.product(integer_edges(kind), [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 2**31, 2**32 - 1])
    )
    found = compute(f"shl.{kind}", kind, Operand(kind, [x for x, _ in rows]), Operand("u32", [n for _, n in rows]))
    assert found == [wrapped(x << n, kind) if n < 64 else 0 for x, n in rows]


@pytest.mark.parametrize("kind", ["b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64"])
def test_right_shifts_past_the_width_give_zeros_or_signs(kind):
    rows = list(
        itertools.product(integer_edges(kind), [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 2**31, 2**32 - 1])
    )
    found = compute(f"shr.{kind}", kind, Operand(kind, [x for x, _ in rows]), Operand("u32", [n for _, n in rows]))
    assert found == [wrapped(integer(x, kind) >> min(n, 64), kind) for x, n in rows]


@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shifts(mode):
    counts = [0, 1, 5, 31, 32, 33, 63, 64, 2**32 - 1]
    rows = list(itertools.product([0x12345678, 0x80000001, 0xFFFFFFFF], [0x9ABCDEF0, 1, 0], counts))
    low, high, by = zip(*rows, strict=True)
    operands = Operand("b32", low), Operand("b32", high), Operand("b32", by)
    amount = (lambda n: n % 32) if mode == "wrap" else (lambda n: min(n, 32))
    left = [((h << 32 | x) << amount(n)) >> 32 & 0xFFFFFFFF for x, h, n in rows]
    assert compute(f"shf.l.{mode}.b32", "b32", *operands) == left
    right = [(h << 32 | x) >> amount(n) & 0xFFFFFFFF for x, h, n in rows]
    assert compute(f"shf.r.{mode}.b32", "b32", *operands) == right


@pytest.mark.parametrize("table", [0x00, 0x80, 0xFE, 0x96, 0xCA, 0xE8, 0x3C, 0x01, 0xFF])
def test_logic_of_three_by_its_table(table):
    """PTX ISA, lop3: the table is what the function gives for 0xF0, 0xCC and 0xAA."""
    a, b, c = triples("u32", 64)
    expected = []
    for x, y, z in zip(a, b, c, strict=True):
        bits = [table >> ((x >> i & 1) << 2 | (y >> i & 1) << 1 | (z >> i & 1)) & 1 for i in range(32)]
        expected.append(sum(bit << i for i, bit in enumerate(bits)))
    operands = Operand("b32", a), Operand("b32", b), Operand("b32", c)
    assert compute("lop3.b32", "b32", *operands, tail=f", {table:#x}") == expected
    known = {0x80: lambda x, y, z: x & y & z, 0xFE: lambda x, y, z: x | y | z, 0x96: lambda x, y, z: x ^ y ^ z,
             0xCA: lambda x, y, z: (x & y) | (~x & z)}  # fmt: skip
    if table in known:
        assert expected == [known[table](x, y, z) & 0xFFFFFFFF for x, y, z in zip(a, b, c, strict=True)]


STARTS, LENGTHS = [0, 1, 16, 31, 32, 40, 64, 200, 256, 257], [0, 1, 8, 31, 32, 33, 255, 256]
FIELDS = list(itertools.product([0xFFFFFFFF, 0x12345678], STARTS, LENGTHS))
"""Words, and the starts and lengths of fields in them."""


def test_fields_of_bits():
    a, start, length = zip(*FIELDS, strict=True)
    found = compute("bfe.u32", "b32", Operand("u32", a), Operand("u32", start), Operand("u32", length))
    for (x, s, n), got in zip(FIELDS, found, strict=True):
        bits = [x >> (i + s % 256) & 1 for i in range(min(n % 256, 32)) if i + s % 256 < 32]
        assert got == sum(bit << i for i, bit in enumerate(bits))


def test_signed_fields_of_bits():
    """As the PTX ISA states it, bit by bit."""
    a, start, length = zip(*FIELDS, strict=True)
    found = compute("bfe.s32", "b32", Operand("u32", a), Operand("u32", start), Operand("u32", length))
    for (x, *field), got in zip(FIELDS, found, strict=True):
        s, n = (value % 256 for value in field)
        sign = x >> min(s + n - 1, 31) & 1 if n else 0
        bits = [x >> (s + i) & 1 if i < n and s + i <= 31 else sign for i in range(32)]
        assert got == sum(bit << i for i, bit in enumerate(bits)), (hex(x), s, n)
