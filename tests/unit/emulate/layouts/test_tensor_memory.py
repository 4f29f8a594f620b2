"""Tensor memory, as CuTe DSL's fragments and copy atoms have it."""

from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.layouts.errors import UnsupportedLayoutError
from aot.emulate.layouts.tensor_memory import (
    LoadShape,
    accumulator_cells,
    factor_cells,
    num_registers,
    register_cells,
    split_address,
)
from tests.unit.emulate.layouts.cute_layout import parse

LANE_STRIDE = 1 << 16


@pytest.mark.parametrize(("m", "group"), [(64, 1), (128, 1), (128, 2), (256, 2)])
def test_accumulators_lie_where_cute_dsl_has_them(sm110, m, group):
    layout = parse(sm110["layouts"][f"accumulator {m} {group}"][0])
    cells = accumulator_cells(m, 64, group)
    rows = m // group
    expected = [[split_address(layout((r, c), 0, 0)) for c in range(64)] for r in range(rows)]
    assert np.array_equal(np.stack([cells.lanes, cells.columns], -1), expected)


@pytest.mark.parametrize("m", [64, 128])
def test_operands_in_tensor_memory_have_the_lanes_of_accumulators(sm110, m):
    layout = parse(sm110["layouts"][f"operand {m}"][0])
    cells = accumulator_cells(m, 8, 1)
    for r in range(m):
        for k in range(16):
            # Elements of 16 bits: two to a column.
            assert layout((r, k), 0, 0) == 2 * (cells.lanes[r, k // 2] * LANE_STRIDE + cells.columns[r, k // 2]) + k % 2


@pytest.mark.parametrize("shape", list(LoadShape))
@pytest.mark.parametrize("repeat", [1, 4])
def test_registers_of_loads_lie_where_cute_dsl_has_them(sm110, shape, repeat):
    layout = parse(sm110["layouts"][f"tcgen05.ld {shape.value} x{repeat}"][0])
    count = num_registers(shape, repeat)
    # The halves of 16x32bx2 follow each other in CuTe's atom.
    cells = register_cells(shape, repeat, repeat if shape is LoadShape.L16_B32X2 else 0)
    assert cells.lanes.shape == (count, 32)
    width = 32 * count // shape.num_lanes
    expected = [[divmod(layout(t, v), width) for t in range(32)] for v in range(count)]
    assert np.array_equal(np.stack([cells.lanes, cells.columns], -1), expected)


def test_the_second_half_of_16x32bx2_is_where_the_immediate_says():
    cells = register_cells(LoadShape.L16_B32X2, 2, 8)
    assert (cells.lanes[1, 17], cells.columns[1, 17], cells.num_columns) == (1, 9, 10)


@pytest.mark.parametrize(("name", "num_factors", "first"), [("nvfp4", 4, 0), ("mxfp4", 2, 0), ("mxfp4", 2, 2)])
@pytest.mark.parametrize("operand", ["a", "b"])
def test_factors_lie_where_cute_dsl_has_them(sm110, name, num_factors, first, operand):
    layout = parse(sm110["layouts"][f"factors {name} {operand}"][1])
    rows, block = {"a": 128, "b": 256}[operand], layout.shape[0][1][0]
    cells = factor_cells(rows, num_factors, first)
    step = first // num_factors  # the second product of two takes bytes 2 and 3
    for r in range(rows):
        for j in range(num_factors):
            lane, place = divmod(layout((r, j * block), 0, step), 4 * LANE_STRIDE)
            assert (cells.lanes[r, j], cells.columns[r, j], cells.factor_bytes[r, j]) == (lane, place // 4, place % 4)


def test_factors_do_not_cross_a_column():
    with pytest.raises(UnsupportedLayoutError, match="4 scale factors from byte 2"):
        factor_cells(128, 4, 2)
    with pytest.raises(UnsupportedLayoutError, match="accumulator of 32 rows"):
        accumulator_cells(64, 64, 2)
