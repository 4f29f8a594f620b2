import pytest

from aot.kinds.rows.catalogue import row_operations
from aot.kinds.rows.signature import RowFlag

SIGNATURES = {
    "rms_norm": "x residual weight y residual_out eps weight_offset flags stream",
    "e4m3_rms_norm": "x residual weight y residual_out scale eps weight_offset flags stream",
    "layer_norm": "x residual weight bias y residual_out eps flags stream",
    "e4m3_layer_norm": "x residual weight bias y residual_out scale eps flags stream",
    "silu_mul": "x y flags stream",
    "e4m3_silu_mul": "x y scale flags stream",
    "gelu_tanh_mul": "x y flags stream",
    "rotary": "x cos sin keys values y key_cache value_cache cache_position flags stream",
    "e4m3_quantize": "x y scale flags stream",
    "int8_quantize": "x y scale flags stream",
    "e4m3_block_quantize": "x y scale flags stream",
    "e5m2_quantize": "x y scale flags stream",
    "e4m3_tensor_quantize": "x y scale flags stream",
    "e5m2_tensor_quantize": "x y scale flags stream",
    "int8_tensor_quantize": "x y scale flags stream",
    "nvfp4_quantize": "x y scale tensor_scale offsets index flags stream",
    "mxfp8_quantize": "x y scale offsets index flags stream",
    "mxfp4_quantize": "x y scale offsets index flags stream",
    "nvfp4_rms_norm": "x residual weight y residual_out scale tensor_scale eps weight_offset flags stream",
    "mxfp8_rms_norm": "x residual weight y residual_out scale eps weight_offset flags stream",
    "nvfp4_silu_mul": "x y scale tensor_scale offsets index flags stream",
    "mxfp8_silu_mul": "x y scale offsets index flags stream",
    "mxfp4_rms_norm": "x residual weight y residual_out scale eps weight_offset flags stream",
    "mxfp4_silu_mul": "x y scale offsets index flags stream",
    "gpt_oss_mul": "x y flags stream",
}


@pytest.mark.parametrize("operation", row_operations())
def test_arguments_stand_in_one_order(operation):
    assert " ".join(operation.signature) == SIGNATURES[operation.tag.removeprefix(f"{operation.x.tag}_")]


def test_flags_are_those_of_the_runtime():
    assert {flag.name: int(flag) for flag in RowFlag} == {
        "HAS_RESIDUAL": 1,
        "HAS_WEIGHT": 2,
        "HAS_BIAS": 4,
        "HAS_RESIDUAL_OUT": 8,
        "SCALE_IS_GIVEN": 16,
        "IS_INTERLEAVED": 32,
        "ROUNDS_NORM": 64,
        "HAS_OFFSETS": 128,
        "OFFSETS_START": 256,
        "HAS_INDEX": 512,
    }
