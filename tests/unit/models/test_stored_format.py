"""How a checkpoint's weights are stored: what `quantization_config` of the formats that people publish is read as."""

import pytest

from aot.core import types
from aot.models.configuration import Configuration
from aot.models.stored_format import PLAIN, StoredFormat, stored_format

FP8_INPUTS = {"num_bits": 8, "type": "float", "dynamic": True}


def compressed(inputs=None, **weights):
    groups = {"group_0": {"weights": weights, "input_activations": inputs, "targets": ["Linear"]}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("found", "label", "computed"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8, e4m3 in blocks of 128 x 128", "block"),
        ({"quant_method": "fp8", "weight_block_size": [64, 128]}, "fp8, e4m3 in blocks of 64 x 128", None),
        ({"quant_method": "fp8"}, "fp8, e4m3", "fp8"),
        (
            compressed(FP8_INPUTS, num_bits=8, type="float", strategy="channel"),
            "compressed-tensors, 8 bits of type float by channel",
            "fp8",
        ),
        (
            compressed(FP8_INPUTS, num_bits=8, type="float", strategy="block", block_structure=[128, 128]),
            "compressed-tensors, 8 bits of type float by block of 128 x 128",
            "block",
        ),
        (
            compressed(FP8_INPUTS | {"type": "int"}, num_bits=8, type="int", strategy="channel"),
            "compressed-tensors, 8 bits of type int by channel",
            "int8",
        ),
        (
            compressed(num_bits=8, type="int", strategy="channel"),
            "compressed-tensors, 8 bits of type int by channel, activations in 16 bits",
            None,
        ),
        (
            compressed(num_bits=4, type="int", strategy="group", group_size=128),
            "compressed-tensors, 4 bits of type int by group of 128, activations in 16 bits",
            None,
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt, FP8", "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt, NVFP4", None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq, 4 bits in groups of 128", None),
        ({"quant_method": "mxfp4"}, "mxfp4", None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes, 4 bits", None),
        ({}, "quantised", None),
    ],
)
def test_the_formats_that_people_publish_are_read(found, label, computed):
    known = {"block": types.E4M3_BF16_BLOCK, "fp8": types.E4M3_BF16, "int8": types.INT8_BF16, None: None}
    assert stored_format(Configuration({"quantization_config": found}, "x")) == StoredFormat(label, known[computed])


@pytest.mark.parametrize(
    "found", [{"quant_method": ["fp8"]}, compressed([], num_bits="8"), {"config_groups": [1]}, compressed(7)]
)
def test_what_is_not_known_is_named_and_has_no_products(found):
    read = stored_format(Configuration({"quantization_config": found}, "x"))
    assert read.types is None
    assert 0 < len(read.label) <= 80


@pytest.mark.parametrize("values", [{}, {"quantization_config": None}, {"quantization_config": "fp8"}])
def test_weights_that_are_not_quantised_are_plain(values):
    assert stored_format(Configuration(values, "x")) is PLAIN
    assert not PLAIN.holds("q")


def test_what_checkpoints_leave_in_16_bits_is_not_stored_so():
    read = StoredFormat("fp8", types.E4M3_BF16)
    assert [read.holds(x) for x in ("q, o", "lm_head", "expert router", "lm_head, q")] == [True, False, False, True]
