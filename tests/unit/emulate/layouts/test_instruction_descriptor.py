"""Instruction descriptors, as CuTe DSL's own products have them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from aot.emulate.faults import Fault
from aot.emulate.layouts.errors import UnsupportedLayoutError
from aot.emulate.layouts.instruction_descriptor import (
    Element,
    InstructionDescriptor,
    Kind,
    decode_instruction_descriptor,
)
from aot.emulate.layouts.matrix_descriptor import Major
from tests.unit.emulate.layouts.ptx_constants import operands_of_products

N_OF_64, M_OF_128 = 8 << 17, 8 << 24
DENSE = 1 << 4 | N_OF_64 | M_OF_128


@pytest.mark.slow
def test_the_descriptors_of_cute_dsl_say_what_it_was_asked_for(sm110):
    seen = set()
    for product in sm110["products"]:
        for name, arguments in operands_of_products(product["ptx"], 1024):
            kind = Kind(re.search(r"kind::(\w+)", name)[1])
            assert f"cta_group::{product['group']}" in name
            d = Element.S32 if kind is Kind.I8 else Element.F32
            expected = InstructionDescriptor(
                kind,
                product["m"],
                product["n"],
                Element(product["a"]),
                Element(product["b"]),
                d,
                Major[product["a_major"]],
                Major[product["b_major"]],
            )
            found = decode_instruction_descriptor(arguments[3], kind, product["group"])
            # CuTe DSL may let sums of integers saturate.
            assert replace(found, saturates=False) == expected
            seen.add(kind)
    assert seen == {Kind.F16, Kind.TF32, Kind.F8F6F4, Kind.I8}


def test_the_descriptors_of_block_scaled_products_agree_with_their_addresses(sm110):
    """CuTe DSL writes the byte of a factor into the top bits of its address, and into the descriptor."""
    for product in sm110["scaled"]:
        bytes_seen = []
        for name, arguments in operands_of_products(product["ptx"], 1024):
            kind = Kind(re.search(r"kind::(\w+)", name)[1])
            _, _, _, value, a_factors, b_factors, _ = arguments
            found = decode_instruction_descriptor(value & 2**32 - 1, kind, product["group"])
            assert (found.m, found.n, found.d) == (128 * product["group"], 128, Element.F32)
            assert (found.a_factor_byte, found.b_factor_byte) == (a_factors >> 30 & 3, b_factors >> 30 & 3)
            expected = Element.UE4M3 if product["kind"] == "nvfp4" else Element.UE8M0
            assert (found.factor, found.a) == (expected, Element.E4M3 if product["bits"] == 8 else Element.E2M1)
            bytes_seen.append(found.a_factor_byte)
        assert bytes_seen == {"nvfp4": [0, 0, 0, 0], "mxfp4": [0, 2, 0, 2], "mxfp8": [0, 1, 2, 3]}[product["kind"]]


def test_fields_of_block_scaled_products():
    value = 2 << 4 | 1 << 7 | 1 << 10 | N_OF_64 | 1 << 23 | M_OF_128 | 2 << 29
    assert decode_instruction_descriptor(value, Kind.MXF4, 1) == InstructionDescriptor(
        Kind.MXF4,
        128,
        64,
        Element.E2M1,
        Element.E2M1,
        Element.F32,
        Major.K,
        Major.K,
        factor=Element.UE8M0,
        a_factor_byte=2,
        b_factor_byte=2,
    )
    nvfp4 = decode_instruction_descriptor(1 << 7 | 1 << 10 | N_OF_64 | M_OF_128, Kind.MXF4NVF4, 1)
    assert nvfp4.factor is Element.UE4M3


def test_negation_and_saturation():
    assert decode_instruction_descriptor(DENSE | 1 << 13, Kind.F16, 1).sign == -1
    assert decode_instruction_descriptor(DENSE | 3 << 13, Kind.F16, 1).sign == 1
    assert decode_instruction_descriptor(2 << 4 | 1 << 3 | N_OF_64 | M_OF_128, Kind.I8, 1).saturates


@pytest.mark.parametrize(
    ("value", "kind", "group", "error", "text"),
    [
        (DENSE | 1 << 2, Kind.F16, 1, UnsupportedLayoutError, "bits 0x4 are set"),
        (DENSE | 1 << 30, Kind.F16, 1, UnsupportedLayoutError, "bits 0x40000000 are set"),
        (DENSE | 1 << 3, Kind.F16, 1, UnsupportedLayoutError, "bits 0x8 are set"),
        (DENSE | 2 << 7, Kind.F16, 1, UnsupportedLayoutError, "operand type 2 at bit 7"),
        (DENSE, Kind.I8, 1, UnsupportedLayoutError, "result type 1"),
        (1 << 7 | 1 << 10 | N_OF_64 | M_OF_128 | 1 << 31, Kind.MXF4NVF4, 1, UnsupportedLayoutError, "K of 96"),
        (1 << 7 | 1 << 10 | N_OF_64 | M_OF_128, Kind.MXF4, 1, Fault, "factors of UE4M3; expected UE8M0"),
        (DENSE, Kind.F16, 2, None, ""),
        (1 << 4 | 9 << 17 | M_OF_128, Kind.F16, 2, Fault, "N 72 with 2 CTAs; expected M 128 or 256"),
        (1 << 4 | N_OF_64 | 4 << 24, Kind.F16, 2, Fault, "M 64, N 64 with 2 CTAs"),
        (1 << 4 | N_OF_64 | 16 << 24, Kind.F16, 1, Fault, "M 256"),
        (1 << 4 | M_OF_128, Kind.F16, 1, Fault, "N 0"),
        (2 << 4 | 5 << 17 | M_OF_128, Kind.I8, 1, Fault, "N a multiple of 16"),
        (1 << 7 | 1 << 10 | N_OF_64 | M_OF_128 | 1 << 15, Kind.MXF4NVF4, 1, Fault, "MN-major operand of 4 bits"),
    ],
)
def test_what_the_hardware_or_the_interpreter_lacks_is_refused(value, kind, group, error, text):
    if error is None:
        assert decode_instruction_descriptor(value, kind, group).m == 128
        return
    with pytest.raises(error, match=text):
        decode_instruction_descriptor(value, kind, group)
