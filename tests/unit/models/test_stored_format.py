"""How a checkpoint's weights are stored: what `quantization_config` of the formats that people publish is read as."""

import pytest

from aot.core import types
from aot.core.element import ElementType
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
            "int4g128",
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt, FP8", "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt, NVFP4", "nvfp4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq, 4 bits in groups of 128", "int4g128z"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "gptq, 4 bits in groups of -1", "int4g128"),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": False},
            "gptq, 4 bits in groups of 64",
            "int4g64z",
        ),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "gptq, 8 bits in groups of 128", None),
        (
            compressed(num_bits=4, type="float", strategy="group", group_size=16),
            "compressed-tensors, 4 bits of type float by group of 16, activations in 16 bits",
            "nvfp4",
        ),
        ({"quant_method": "mxfp4"}, "mxfp4", "mxfp4"),
        ({"quant_method": "aot", "format": "nvfp4"}, "aot, packed as nvfp4", "nvfp4"),
        ({"quant_method": "aot", "format": "fp8_block"}, "aot, packed as fp8_block", "block"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes, 4 bits", None),
        ({}, "quantised", None),
    ],
)
def test_the_formats_that_people_publish_are_read(found, label, computed):
    known = {"block": types.E4M3_BF16_BLOCK, "fp8": types.E4M3_BF16, "int8": types.INT8_BF16, None: None}
    read = stored_format(Configuration({"quantization_config": found}, "x"))
    weight = None if read.weight is None else read.weight.name
    assert (read.label, weight or read.types) == (label, known.get(computed, computed))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (
            {"quant_method": "gptq", "bits": 4, "desc_act": True},
            "its groups may be in another order along k (desc_act)",
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": 48}, "groups of 48 along k; expected 32, 64 or a multiple"),
        (
            {"quant_method": "awq", "bits": 4, "version": "gemv"},
            "its words lie as gemv has them, which `aot pack` refus",
        ),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "its words lie as marlin has them"),
        ({"quant_method": "bitsandbytes"}, "no kernel multiplies weights of this format"),
    ],
)
def test_why_no_product_multiplies_them_is_said(found, why):
    read = stored_format(Configuration({"quantization_config": found}, "x"))
    assert read.types_for(ElementType.BFLOAT16) is None
    assert read.why_absent.startswith(why)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("method", "zeros"), [("awq", "z"), ("gptq", "")])
def test_each_size_of_groups_has_products(method, zeros, group):
    read = stored_format(
        Configuration({"quantization_config": {"quant_method": method, "bits": 4, "group_size": group}}, "x")
    )
    for element in (ElementType.BFLOAT16, ElementType.FLOAT16):
        found = read.types_for(element)
        assert found is not None
        assert (found.a, found.weight.name) == (element, f"int4g{group}{zeros}")
    assert read.types_for(ElementType.FLOAT32) is None
    assert read.why_absent == f"no operation multiplies int4g{group}{zeros}, though `aot pack` packs it"


def test_packed_weights_go_with_activations_of_either_type():
    read = stored_format(Configuration({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "x"))
    assert read.types_for(ElementType.BFLOAT16) is types.BF16_INT4_G128
    assert read.types_for(ElementType.FLOAT16) is types.FP16_INT4_G128


def test_what_a_configuration_leaves_in_16_bits_is_not_stored_so():
    found = compressed(num_bits=4, type="int", group_size=128)
    found["ignore"] = ["lm_head", "re:.*mlp.gate$", "model.layers.0.self_attn.q_proj", 7]
    read = stored_format(Configuration({"quantization_config": found}, "x"))
    assert read.kept == ("gate", "lm_head")
    assert [read.holds(x) for x in ("mlp.gate", "layers gate", "self_attn.q_proj")] == [False, False, True]


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


@pytest.mark.parametrize(
    "found", [{"quant_method": "mxfp4"}, {"quant_method": "aot", "format": "mxfp4", "of": "experts"}]
)
def test_of_gpt_oss_the_experts_alone_are_stored_so(found):
    read = stored_format(Configuration({"quantization_config": found}, "x"))
    assert [read.holds(x) for x in ("expert gate, expert up", "q", "router")] == [True, False, False]


def test_what_checkpoints_leave_in_16_bits_is_not_stored_so():
    read = StoredFormat("fp8", types.E4M3_BF16)
    assert [read.holds(x) for x in ("q, o", "lm_head", "expert router", "lm_head, q")] == [True, False, False, True]
