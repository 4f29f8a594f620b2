from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot.emulate.faults import Fault
from aot.emulate.layouts.errors import UnsupportedLayoutError
from aot.emulate.layouts.swizzle import Swizzle
from aot.emulate.layouts.tensor_box import box_rows, chunk_addresses, gathered_rows
from aot.emulate.layouts.tensor_map import ElementType, TensorMap
from tests.unit.emulate.layouts.cute_layout import parse

SWIZZLES = {0: Swizzle.NONE, 1: Swizzle.B32, 2: Swizzle.B64, 3: Swizzle.B128}
PLAIN = TensorMap(ElementType.BF16, 0x10000, (20, 7, 3), (64, 512), (16, 4, 2), Swizzle.NONE)
"""20 x 7 x 3 elements, rows 64 bytes apart, planes 512."""


@pytest.mark.slow
def test_chunks_land_where_cute_dsl_has_the_elements(sm90):
    """A box of rows of a K-major operand is what TMA copies; CuTe DSL's layout says where each element is."""
    seen = set()
    for product in sm90["products"]:
        if product["a_major"] != "K":
            continue
        layout, bits = parse(product["layouts"][0]), {"bf16": 16, "f16": 16, "e4m3": 8, "e5m2": 8}[product["a"]]
        columns = product["bytes"][0] * 8 // bits // 64
        element = ElementType.BF16 if bits == 16 else ElementType.U8
        mode = SWIZZLES[layout.swizzle[0]]
        box = TensorMap(element, 0, (columns, 64), (columns * bits // 8,), (columns, 64), mode)
        found = chunk_addresses(box, 3072)
        in_chunk = 128 // bits
        expected = [layout.address(3072, bits, r, k, 0) for r in range(64) for k in range(0, columns, in_chunk)]
        assert found.tolist() == expected
        seen.add(mode)
    assert seen == {Swizzle.B32, Swizzle.B64, Swizzle.B128}


def expected_box(tensor_map, at):
    """Copy element by element: the bytes of global memory that each byte of the box is of, or -1."""
    size = tensor_map.element.bits // 8
    strides = (size, *tensor_map.strides)
    found = []
    for index in np.ndindex(*tensor_map.box[::-1]):
        where = [a + i for a, i in zip(at, index[::-1], strict=True)]
        inside = all(0 <= w < e for w, e in zip(where, tensor_map.extents, strict=True))
        start = tensor_map.address + sum(w * s for w, s in zip(where, strides, strict=True))
        found += [start + i if inside else -1 for i in range(size)]
    return np.array(found).reshape(-1, tensor_map.row_bytes)


def copied(tensor_map, rows, num_rows):
    found = np.full((num_rows, tensor_map.row_bytes), -1)
    for start, index in zip(rows.starts.tolist(), rows.indices.tolist(), strict=True):
        found[index, rows.first_byte : rows.first_byte + rows.num_bytes] = start + np.arange(rows.num_bytes)
    return found


@pytest.mark.parametrize("at", [(0, 0, 0), (8, 2, 1), (-4, -1, 2), (16, 5, -1), (20, 0, 0), (-16, 0, 0), (4, 7, 0)])
def test_rows_at_and_outside_of_the_borders(at):
    assert np.array_equal(copied(PLAIN, box_rows(PLAIN, at), 8), expected_box(PLAIN, at))


def test_boxes_of_one_mode():
    line = TensorMap(ElementType.F32, 64, (10,), (), (8,), Swizzle.NONE)
    assert np.array_equal(copied(line, box_rows(line, (6,)), 1), expected_box(line, (6,)))


def test_addresses_wrap():
    """A ragged tensor's base and a stride of 2^64 - x bytes lead back into its buffer."""
    high = (1 << 40) - 64
    ragged = TensorMap(ElementType.BF16, 2**64 - 2 * high + 4096, (8, 4), (high,), (8, 4), Swizzle.NONE)
    assert box_rows(ragged, (0, 0)).starts.tolist() == [2**64 - 2 * high + 4096, 2**64 - high + 4096, 4096, 4096 + high]


def test_4_bit_elements_lie_two_in_a_byte():
    packed = TensorMap(ElementType.B4, 4096, (96, 2), (48,), (64, 2), Swizzle.B32)
    rows = box_rows(packed, (64, 0))
    assert (rows.starts.tolist(), rows.first_byte, rows.num_bytes) == ([4128, 4176], 0, 16)
    assert packed.box_bytes == 64
    with pytest.raises(UnsupportedLayoutError, match="cuts a byte"):
        box_rows(packed, (33, 0))


def test_four_rows_are_gathered():
    table = replace(PLAIN, extents=(20, 7), strides=(64,), box=(16, 1))
    rows = gathered_rows(table, (8, 6, -1, 2, 7))
    assert rows.indices.tolist() == [0, 2]
    assert rows.starts.tolist() == [0x10000 + 16 + 64 * 6, 0x10000 + 16 + 64 * 2]
    assert (rows.first_byte, rows.num_bytes) == (0, 24)
    assert chunk_addresses(table, 1024, 4).tolist() == [1024 + 16 * i for i in range(8)]
    with pytest.raises(Fault, match="expected 5 coordinates"):
        gathered_rows(PLAIN, (0, 0, 0, 0, 0))


def test_what_the_hardware_refuses():
    with pytest.raises(Fault, match="0x450; expected a multiple of 128"):
        chunk_addresses(PLAIN, 0x450)
    with pytest.raises(Fault, match="2 coordinates of a tensor map of rank 3"):
        box_rows(PLAIN, (0, 0))
