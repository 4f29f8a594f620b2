"""Operands of products, where CuTe DSL laid them out, and where the descriptors that it made of them say they are."""

from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.faults import Fault
from aot.emulate.layouts.errors import UnsupportedLayoutError
from aot.emulate.layouts.matrix_descriptor import (
    Major,
    MatrixUnit,
    core_matrix_rows,
    decode_matrix_descriptor,
    operand_addresses,
)
from aot.emulate.layouts.swizzle import Swizzle
from tests.unit.emulate.layouts.cute_layout import parse
from tests.unit.emulate.layouts.ptx_constants import operands_of_products

pytestmark = pytest.mark.slow

SHARED = 1024
BITS = {"bf16": 16, "f16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}


def check(product, unit):
    """Compare each operand of each step along k; return how many were compared."""
    found = operands_of_products(product["ptx"], SHARED)
    assert len(found) == product["num_steps"]
    start = SHARED
    for index, operand in enumerate("ab"):
        layout, bits = parse(product["layouts"][index]), BITS[product[operand]]
        rows = (product["m"], product["n"])[index] // product["group"]
        num_k = 256 // bits
        for step, (_, arguments) in enumerate(found):
            descriptor = arguments[1 + index]
            if unit is MatrixUnit.TCGEN05:
                expected = [
                    [layout.address(start, bits, (r, k), 0, step, 0) for k in range(num_k)] for r in range(rows)
                ]
            else:
                expected = [
                    [layout.address(start, bits, r, step * num_k + k, 0) for k in range(num_k)] for r in range(rows)
                ]
            major = Major[product[f"{operand}_major"]]
            got = operand_addresses(descriptor, unit, rows, bits, major)
            assert np.array_equal(got, expected), (product["layouts"][index], step, hex(descriptor))
        start += -(-product["bytes"][index] // 1024) * 1024


def kinds(products):
    return {
        (parse(text).swizzle, p[f"{x}_major"]) for p in products for x, text in zip("ab", p["layouts"], strict=True)
    }


def test_operands_of_tcgen05_lie_where_cute_dsl_put_them(sm110):
    for product in sm110["products"]:
        check(product, MatrixUnit.TCGEN05)
    assert (
        len(kinds(sm110["products"])) == 4 + 4 + 1
    )  # none, 32, 64 and 128 bytes of both majors, and atoms of 32 bytes


def test_operands_of_wgmma_lie_where_cute_dsl_put_them(sm90):
    for product in sm90["products"]:
        check(product, MatrixUnit.WGMMA)
    assert len(kinds(sm90["products"])) == 3 + 2


def test_packed_operands_of_4_bits_lie_where_cute_dsl_put_them(sm110):
    for product in sm110["scaled"]:
        found = operands_of_products(product["ptx"], SHARED)
        assert len(found) == product["num_steps"] == 4
        start, bits = SHARED, product["bits"]
        num_k = 256 // bits
        for index, layout in enumerate(map(parse, product["layouts"])):
            rows = 128 if index == 0 else 128 // product["group"]
            for step, (_, arguments) in enumerate(found):
                got = operand_addresses(arguments[1 + index], MatrixUnit.TCGEN05, rows, bits)
                expected = [
                    [layout.address(start, bits, (r, k), 0, step, 0) for k in range(0, num_k, max(8 // bits, 1))]
                    for r in range(rows)
                ]
                assert np.array_equal(got, expected), (product["kind"], index, step)
            start += -(-product["bytes"][index] // 1024) * 1024
    assert {x["bits"] for x in sm110["scaled"]} == {4, 8}


def test_factors_are_copied_row_by_row(sm110):
    """tcgen05.cp moves row r of 16 bytes to lane r: factors then lie where CuTe DSL's product looks for them."""
    value = 1 << 46 | 8 << 32 | 1 << 16 | SHARED >> 4
    rows = core_matrix_rows(value, 32)
    places = {int(row) + byte: (lane, byte) for lane, row in enumerate(rows) for byte in range(16)}
    for name in ("nvfp4", "mxfp4"):
        smem, tmem = (parse(text) for text in sm110["layouts"][f"factors {name} a"])
        num_factors = smem.shape[0][1][1]
        block = smem.shape[0][1][0]
        for r in range(128):
            for j in range(num_factors):
                coordinate = ((r, j * block), 0, 0)
                lane, byte = places[SHARED + smem(*coordinate)]
                # Bytes of tensor memory: a lane is 2^16 columns of four bytes.
                assert tmem(*coordinate) == (lane << 18) + byte, (name, r, j)


@pytest.mark.parametrize(
    ("value", "unit", "error", "text"),
    [
        (2 << 61, MatrixUnit.TCGEN05, Fault, "bits 46-48 are 0; expected 1"),
        (3 << 61 | 1 << 46, MatrixUnit.TCGEN05, Fault, "swizzle code 3"),
        (1 << 46 | 1 << 52, MatrixUnit.TCGEN05, UnsupportedLayoutError, "absolute leading offset"),
        (1 << 46 | 1 << 50, MatrixUnit.TCGEN05, UnsupportedLayoutError, "base offset 2"),
        (1 << 46 | 1 << 15, MatrixUnit.TCGEN05, UnsupportedLayoutError, "bits 0x8000 belong to no known field"),
        (1 << 46, MatrixUnit.WGMMA, UnsupportedLayoutError, "bits 0x400000000000 belong"),
    ],
)
def test_unknown_descriptors_are_refused(value, unit, error, text):
    with pytest.raises(error, match=text):
        decode_matrix_descriptor(value, unit)


def test_the_swizzles_of_both_units_have_their_own_codes():
    assert [decode_matrix_descriptor(x << 62, MatrixUnit.WGMMA).swizzle for x in range(4)] == [
        Swizzle.NONE,
        Swizzle.B128,
        Swizzle.B64,
        Swizzle.B32,
    ]
    assert decode_matrix_descriptor(6 << 61 | 1 << 46, MatrixUnit.TCGEN05).swizzle is Swizzle.B32


def test_combinations_that_the_hardware_lacks_are_refused():
    atoms = 1 << 61 | 1 << 46
    with pytest.raises(Fault, match="32-byte atoms with a K-major operand of 32 bits"):
        operand_addresses(atoms, MatrixUnit.TCGEN05, 64, 32, Major.K)
    with pytest.raises(Fault, match="an MN-major operand of 4 bits"):
        operand_addresses(1 << 46, MatrixUnit.TCGEN05, 64, 4, Major.MN)
