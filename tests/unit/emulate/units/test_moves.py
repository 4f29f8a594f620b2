from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from tests.unit.emulate.numbers import (
    INTEGERS,
    float_edges,
    integer,
    is_nan,
    pairs,
    value,
)
from tests.unit.emulate.snippets import Operand, compute, run


def test_bytes_are_chosen_and_their_signs():
    draw = random.Random(1)
    rows = [[draw.getrandbits(32) for _ in range(3)] for _ in range(60)]
    rows += [[0x33221100, 0x77665544, s] for s in (0x7654, 0x3210, 0xFEDC, 0x0, 0xFFFF, 0x5410)]
    rows += [[0xB3A29180, 0xF7E6D5C4, s] for s in (0x7654, 0xBA98, 0xFEDC, 0x8888)]
    a, b, c = zip(*rows, strict=True)
    found = compute("prmt.b32", "b32", Operand("b32", a), Operand("b32", b), Operand("b32", c))
    for (x, y, s), got in zip(rows, found, strict=True):
        source = (x | y << 32).to_bytes(8, "little")
        selectors = [s >> 4 * i & 15 for i in range(4)]
        chosen = [(0xFF if source[k & 7] & 0x80 else 0) if k & 8 else source[k & 7] for k in selectors]
        assert got == int.from_bytes(bytes(chosen), "little")


ORDERED = {"eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y,
           "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y}  # fmt: skip


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("comparison", ORDERED)
def test_comparisons_of_integers(kind, comparison):
    a, b = pairs(kind)
    found = compute(f"setp.{comparison}.{kind}", "pred", Operand(kind, a), Operand(kind, b))
    expected = [ORDERED[comparison](integer(x, kind), integer(y, kind)) for x, y in zip(a, b, strict=True)]
    assert found == expected


@pytest.mark.parametrize("kind", ["u16", "u32", "u64"])
def test_unsigned_names_of_comparisons(kind):
    a, b = pairs(kind)
    for name, same in {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.items():
        found = compute(f"setp.{name}.{kind}", "pred", Operand(kind, a), Operand(kind, b))
        assert found == [ORDERED[same](x, y) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("kind", ["b16", "b32", "b64"])
def test_comparisons_of_bits(kind):
    a, b = pairs(kind)
    assert compute(f"setp.eq.{kind}", "pred", Operand(kind, a), Operand(kind, b)) == [
        x == y for x, y in zip(a, b, strict=True)
    ]
    assert compute(f"setp.ne.{kind}", "pred", Operand(kind, a), Operand(kind, b)) == [
        x != y for x, y in zip(a, b, strict=True)
    ]


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("comparison", ORDERED)
def test_comparisons_of_floats_with_nan(kind, comparison):
    """Ordered comparisons are false where one is NaN, unordered ones true."""
    rows = list(itertools.product(float_edges(kind), repeat=2))
    a, b = zip(*rows, strict=True)
    nan = [is_nan(x, kind) or is_nan(y, kind) for x, y in rows]
    plain = [not n and ORDERED[comparison](value(x, kind), value(y, kind)) for n, (x, y) in zip(nan, rows, strict=True)]
    operands = Operand(kind, a), Operand(kind, b)
    assert compute(f"setp.{comparison}.{kind}", "pred", *operands) == plain
    unordered = compute(f"setp.{comparison}u.{kind}", "pred", *operands)
    assert unordered == [p or n for p, n in zip(plain, nan, strict=True)]


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_numbers_are_told_from_nan(kind):
    rows = list(itertools.product(float_edges(kind), repeat=2))
    a, b = zip(*rows, strict=True)
    nan = [is_nan(x, kind) or is_nan(y, kind) for x, y in rows]
    assert compute(f"setp.nan.{kind}", "pred", Operand(kind, a), Operand(kind, b)) == nan
    assert compute(f"setp.num.{kind}", "pred", Operand(kind, a), Operand(kind, b)) == [not x for x in nan]


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "s32", "u32", "f32", "f64"])
def test_selection(kind):
    found = compute(
        f"selp.{kind}", kind, Operand(kind, [5, 6, 7]), Operand(kind, [1, 2, 3]), Operand("pred", [1, 0, 1])
    )
    assert found == [5, 2, 7]


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64"])
def test_moves(kind):
    edges = [1, 2**15 + 1, 12345]
    assert compute(f"mov.{kind}", kind, Operand(kind, edges)) == edges


def test_registers_are_packed_and_unpacked_from_the_lowest_bits_up():
    body = """
    mov.b32 %r1, 0x44332211; mov.b32 %r2, 0x88776655;
    mov.b64 %rd2, {%r1, %r2};
    mov.b64 {%rs1, %rs2, %rs3, %rs4}, %rd2;
    mov.b32 %r3, {%rs4, %rs2};
    mov.b32 {%rs5, _}, %r3;
    mov.b64 %rd3, {%r3, 7};
    st.global.v2.b64 [%rd0], {%rd2, %rd3};
    cvt.u32.u16 %r4, %rs5; st.global.b32 [%rd0+16], %r4;
    """
    found = run(body, np.zeros(5, np.uint32)).arrays[0]
    assert [hex(x) for x in found] == ["0x44332211", "0x88776655", "0x44338877", "0x7", "0x8877"]
