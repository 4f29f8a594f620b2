import numpy as np
import pytest

from aot.core.element import ElementType
from aot.core.numerics import decode, encode
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.comparison import Written, compare_rows
from aot.kinds.rows.reference import RowParameters, expected_scales, row_reference, scaled
from aot.kinds.rows.signature import RowArgument

ROWS, COLS = 3, 160


def written(tag, x, residual=None):
    """Give an operation, its reference, and what a right kernel writes."""
    operation = row_operation(tag)
    rows = {RowArgument.X: x} | ({} if residual is None else {RowArgument.RESIDUAL: residual})
    expected = row_reference(operation, rows, RowParameters())
    values, scales = expected.values, None
    if operation.is_quantized:
        scales = expected_scales(operation, values).values.astype(np.float32)
        values = scaled(operation, values, scales.astype(np.float64))
    rounded = np.nan_to_num(values.values, nan=0.0) if operation.y is ElementType.INT8 else values.values
    out = None if expected.residual_out is None else encode(operation.x, expected.residual_out.astype(np.float32))
    return operation, expected, Written(encode(operation.y, rounded.astype(np.float32)), scales, out)


def random(seed=1):
    x = np.random.default_rng(seed).standard_normal((ROWS, COLS), np.float32)
    x[1, 2] = np.nan
    return decode(ElementType.BFLOAT16, encode(ElementType.BFLOAT16, x))


def fault_of(operation, written, expected, scales_are_given=False):
    return compare_rows(operation, written, expected, scales_are_given=scales_are_given).fault


TAGS = [
    *("bf16_rms_norm", "bf16_e4m3_rms_norm", "bf16_e4m3_quantize", "bf16_int8_quantize", "bf16_e4m3_block_quantize"),
    "bf16_e5m2_quantize",
]
TENSORS = ["bf16_e4m3_tensor_quantize", "bf16_e5m2_tensor_quantize", "bf16_int8_tensor_quantize"]


@pytest.mark.parametrize("tag", TAGS + TENSORS)
def test_what_is_right_has_no_fault(tag):
    operation, expected, right = written(tag, random(), random(2) if "norm" in tag else None)
    assert fault_of(operation, right, expected) == ""


@pytest.mark.parametrize("tag", TAGS)
def test_one_wrong_element_is_found(tag):
    operation, expected, right = written(tag, random())
    y = right.y.copy()
    y[2, 7] ^= 0x40
    fault = fault_of(operation, Written(y, right.scales), expected)
    assert fault.startswith("y: 1 of 480 elements are wrong; the first, (2, 7), is ")


@pytest.mark.parametrize("tag", TENSORS)
def test_one_scale_serves_every_row(tag):
    """The NaN of `random` makes all of a tensor one."""
    operation, expected, right = written(tag, np.nan_to_num(random(), nan=3.0))
    assert right.scales.shape == (1, 1)
    scales = right.scales * np.float32(1 + 2**-20)
    fault = fault_of(operation, Written(right.y, scales), expected)
    assert fault.startswith("scales: 1 of 1 elements are wrong; the first, (0, 0), is ")
    y = right.y.copy()
    y[2, 7] ^= 0x40
    fault = fault_of(operation, Written(y, right.scales), expected)
    assert fault.startswith("y: 1 of 480 elements are wrong; the first, (2, 7), is ")


def test_a_wrong_scale_is_found_unless_it_was_given():
    operation, expected, right = written("bf16_e4m3_quantize", random())
    scales = right.scales * np.float32(1 + 2**-20)
    off = Written(right.y, scales)
    assert fault_of(operation, off, expected).startswith("scales: 2 of 3 elements are wrong; the")
    twice = Written(right.y, right.scales * 2)
    assert fault_of(operation, twice, expected, scales_are_given=True).startswith("y: ")
    assert fault_of(operation, right, expected, scales_are_given=True) == ""


def test_a_wrong_sum_with_the_residual_is_found():
    operation, expected, right = written("bf16_rms_norm", random(), random(2))
    wrong = right.residual_out.copy()
    wrong[0, 5] ^= 1
    fault = fault_of(operation, Written(right.y, None, wrong), expected)
    assert fault.startswith("residual_out: 1 of 480 elements are wrong; the first, (0, 5), is ")


def test_a_nan_that_should_not_be_is_wrong_and_one_that_should_be_is_not():
    operation, expected, right = written("bf16_rms_norm", random())
    assert np.isnan(decode(operation.y, right.y)[1]).all()
    y = right.y.copy()
    y[0, 0] = 0x7FC0
    fault = fault_of(operation, Written(y), expected)
    assert fault.startswith("y: 1 of 480 elements are wrong; the first, (0, 0), is nan, expected between ")
