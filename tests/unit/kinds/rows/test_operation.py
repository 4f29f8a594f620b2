import pickle

import pytest

from aot.core.element import ElementType
from aot.core.formats import MX, NVFP4
from aot.kinds.rows.catalogue import row_operation, row_operations, twins
from aot.kinds.rows.function import GELU_TANH_MUL, GPT_OSS_MUL, RMS_NORM, SILU_MUL
from aot.kinds.rows.operation import RowScale
from aot.kinds.rows.problem import RowProblem


@pytest.mark.parametrize("operation", row_operations())
def test_a_tag_says_types_scales_and_function(operation):
    y = operation.form or operation.y.tag
    types = [operation.x.tag] + ([y] if operation.y is not operation.x else [])
    scale = [operation.scale.value] if operation.scale in (RowScale.BLOCK, RowScale.TENSOR) else []
    assert operation.tag == "_".join([*types, *scale, operation.function.name])
    assert row_operation(operation.tag) is operation
    assert operation.is_quantized == (operation.y.bits <= 8)


def test_the_catalogue_is_ordered_and_every_line_is_its_own():
    lines = {(x.x, x.y, x.function, x.scale) for x in row_operations()}
    assert len(lines) == len(row_operations()) == 36
    assert [x.position for x in row_operations()] == list(range(36))


def test_factors_are_those_of_block_scaled_products():
    nvfp4, mxfp8 = row_operation("bf16_nvfp4_quantize"), row_operation("bf16_mxfp8_quantize")
    assert (nvfp4.form, nvfp4.factors, nvfp4.has_tensor_scale, nvfp4.multiple) == ("nvfp4", NVFP4, True, 2)
    assert (mxfp8.form, mxfp8.factors, mxfp8.has_tensor_scale, mxfp8.multiple) == ("mxfp8", MX, False, 1)
    assert (nvfp4.scale_element, mxfp8.scale_element) == (ElementType.E4M3, ElementType.E8M0)
    plain = row_operation("bf16_e4m3_block_quantize")
    assert (plain.form, plain.factors, plain.has_tensor_scale, plain.scale_element) == (
        "",
        None,
        False,
        ElementType.FLOAT32,
    )


def test_an_operation_stays_as_it_is_in_another_process_too():
    operation = row_operation("bf16_nvfp4_rms_norm")
    found = pickle.loads(pickle.dumps(operation))
    assert (found, found.function, found.scale, found.position) == (operation, RMS_NORM, RowScale.NVFP4, 28)
    assert repr(found) == repr(operation) == "<RowOperation.BF16_NVFP4_RMS_NORM: 'bf16_nvfp4_rms_norm'>"
    with pytest.raises(AttributeError, match="scale of the operation bf16_nvfp4_rms_norm cannot be set"):
        operation.scale = RowScale.NONE


@pytest.mark.parametrize(
    ("tag", "others", "reduces"),
    [
        ("bf16_rms_norm", ("fp16_rms_norm",), True),
        ("bf16_e4m3_rms_norm", ("fp16_e4m3_rms_norm",), True),
        ("bf16_silu_mul", ("fp16_silu_mul",), False),
        ("bf16_e4m3_silu_mul", (), True),
        ("fp16_rotary", ("bf16_rotary",), False),
        ("bf16_int8_quantize", (), True),
        ("bf16_e4m3_block_quantize", (), False),
        ("bf16_e5m2_quantize", ("fp16_e5m2_quantize",), True),
        ("fp16_e4m3_tensor_quantize", ("bf16_e4m3_tensor_quantize",), False),
        ("bf16_int8_tensor_quantize", (), False),
        ("bf16_nvfp4_quantize", (), False),
        ("bf16_mxfp8_quantize", (), False),
        ("bf16_mxfp4_quantize", (), False),
        ("bf16_nvfp4_rms_norm", (), True),
        ("bf16_mxfp8_rms_norm", (), True),
        ("bf16_nvfp4_silu_mul", (), False),
        ("bf16_mxfp8_silu_mul", (), False),
        ("bf16_mxfp4_rms_norm", (), True),
        ("bf16_mxfp4_silu_mul", (), False),
    ],
)
def test_twins_differ_in_the_type_of_x_alone(tag, others, reduces):
    operation = row_operation(tag)
    assert (twins(operation), operation.reduces_rows) == (others, reduces)


@pytest.mark.parametrize(
    ("tag", "num_bytes"),
    [
        ("bf16_rms_norm", 2 * 12 * 2 + 4 * 2),
        ("bf16_layer_norm", 2 * 12 * 2 + 2 * 4 * 2),
        ("bf16_e4m3_rms_norm", 12 * 3 + 4 * 2 + 3 * 4),
        ("bf16_silu_mul", 3 * 12 * 2),
        ("bf16_e4m3_block_quantize", 12 * 3 + 3 * 4),
        ("fp16_e5m2_tensor_quantize", 12 * 3 + 4),
        ("fp16_rotary", 2 * 12 * 2),
        ("bf16_nvfp4_quantize", 12 * 2 + 12 // 2 + 3),
        ("bf16_mxfp8_quantize", 12 * 3 + 3),
        ("bf16_mxfp4_quantize", 12 * 2 + 12 // 2 + 3),
        ("bf16_nvfp4_rms_norm", 12 * 2 + 4 * 2 + 12 // 2 + 3),
        ("bf16_mxfp8_silu_mul", 2 * 12 * 2 + 12 + 3),
        ("bf16_mxfp4_silu_mul", 2 * 12 * 2 + 12 // 2 + 3),
    ],
)
def test_bytes_are_what_is_read_and_written_once(tag, num_bytes):
    assert RowProblem(row_operation(tag), 3, 4).num_bytes == num_bytes


def test_a_residual_is_read_and_its_sum_is_written():
    operation = row_operation("bf16_rms_norm")
    assert operation.num_bytes(3, 4, has_residual=True) - operation.num_bytes(3, 4) == 2 * 12 * 2


def test_blocks_have_a_scale_each_and_the_last_may_be_narrower():
    assert row_operation("bf16_e4m3_block_quantize").num_scales(3, 129) == 6
    assert row_operation("bf16_e4m3_quantize").num_scales(3, 129) == 3
    assert row_operation("bf16_rotary").num_scales(3, 129) == 0


def test_a_pair_reads_twice_as_many_columns():
    assert [x for x in row_operations() if x.num_columns_of_x(5) == 10] == [
        x for x in row_operations() if x.function in (SILU_MUL, GELU_TANH_MUL, GPT_OSS_MUL)
    ]
    assert RowProblem(row_operation("fp16_silu_mul"), 3, 5).name == "fp16_silu_mul rows 3 cols 5"
    assert row_operation("bf16_e4m3_silu_mul").y is ElementType.E4M3


@pytest.mark.parametrize(
    ("tag", "shape", "num_launches"),
    [
        ("bf16_e4m3_quantize", (3, 1), 1),
        ("bf16_e4m3_block_quantize", (3, 2), 1),
        ("bf16_e4m3_tensor_quantize", (1, 1), 3),
        ("bf16_nvfp4_quantize", (3, 9), 1),
        ("bf16_mxfp8_quantize", (3, 5), 1),
    ],
)
def test_scales_are_of_rows_of_blocks_or_one(tag, shape, num_launches):
    operation = row_operation(tag)
    assert operation.shape_of_scales(3, 130) == shape
    assert operation.num_scales(3, 130) == shape[0] * shape[1]
    assert operation.num_launches == num_launches
    assert row_operation("bf16_rms_norm").num_scales(3, 130) == 0
