"""How a checkpoint's weights are stored: what `quantization_config` of the formats that people publish is read as."""

import json
import re

import pytest

from aot.core import types
from aot.core.element import ElementType
from aot.core.errors import ShapeFileError
from aot.core.packed_folder import PackedFolder, PackedLayer
from aot.models import name_pattern
from aot.models.configuration import Configuration
from aot.models.linears import Named
from aot.models.module_names import Modules
from aot.models.stored_format import APART, PLAIN, StoredFormat, stored_format

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
        (
            compressed(num_bits=8, type="float", strategy="channel"),
            "compressed-tensors, 8 bits of type float by channel, activations in 16 bits",
            "e4m3",
        ),
        (
            {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
            "compressed-tensors, mxfp4-pack-quantized",
            "mxfp4",
        ),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors, of no stated groups", None),
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


def test_products_of_narrow_inputs_give_the_models_own_type():
    fp8 = stored_format(Configuration({"quantization_config": {"quant_method": "fp8"}}, "x"))
    assert fp8.types_for(ElementType.BFLOAT16) is types.E4M3_BF16
    assert fp8.types_for(ElementType.FLOAT16) is types.E4M3_FP16
    blocks = StoredFormat("fp8", types.E4M3_BF16_BLOCK)
    assert blocks.types_for(ElementType.FLOAT16) is None
    assert blocks.why_absent.startswith("no operation gives another type than bfloat16 of this format")


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
    assert PLAIN.formats_of(Named("q", 3)) == {PLAIN: 3}


@pytest.mark.parametrize(
    "found", [{"quant_method": "mxfp4"}, {"quant_method": "aot", "format": "mxfp4", "of": "experts"}]
)
def test_of_gpt_oss_the_experts_alone_are_stored_so(found):
    read = stored_format(Configuration({"quantization_config": found}, "x"))
    assert shown(read, ("expert gate", 6), ("q", 2), ("router", 2)) == [{"mxfp4": 6}, {"": 2}, {"": 2}]


def shown(read, *names):
    """Return of weights, (name, count, paths), how many are stored in which format; those of 16 bits have no name."""

    def text(form):
        return form.weight.name if form.weight else form.types.tag if form.types else "apart" * (form is APART)

    return [{text(form): count for form, count in read.formats_of(Named(*x)).items()} for x in names]


NVFP4 = compressed(num_bits=4, type="float", group_size=16)
LAYERS = ("model.layers.0.mixer", "model.layers.7.mixer", "model.layers.9.mixer")
TOWER = [f"vision_tower.vision_model.encoder.layers.{i}.{x}" for i in range(3) for x in ("self_attn.q_proj", "mlp.fc1")]


@pytest.mark.parametrize(
    ("ignored", "names", "expected"),
    [
        (["re:.*vision_tower.*"], [("vision q", 3), ("vision up", 3), ("q", 3)], [{"": 3}, {"": 3}, {"nvfp4": 3}]),
        (["re:visual.*"], [("vision qkv", 3), ("vision mlp.0", 1, ("model.visual.merger.mlp",))], [{"": 3}, {"": 1}]),
        (["vision_tower*", "multi_modal_projector*"], [("vision down", 3), ("down", 3)], [{"": 3}, {"nvfp4": 3}]),
        (["visual"], [("vision o", 3), ("o", 3)], [{"": 3}, {"nvfp4": 3}]),
        (TOWER, [("vision q", 3), ("vision k", 3), ("vision up", 3)], [{"": 3}, {"nvfp4": 3}, {"": 3}]),
        (
            [f"model.layers.{i}.self_attn*" for i in range(4)],
            [("q_a and kv_a", 4), ("kv_b", 4), ("up", 4)],
            [{"": 4}, {"": 4}, {"nvfp4": 4}],
        ),
        (
            ["model.layers.0.mlp.down_proj", "model.layers.2.mlp"],
            [("down", 4), ("up", 4)],
            [{"": 2, "nvfp4": 2}, {"": 1, "nvfp4": 3}],
        ),
        (["model.layers.1.mlp.experts.3.up_proj"], [("expert up", 16)], [{"": 8, "nvfp4": 8}]),
        (["re:.*mlp.experts.*"], [("expert gate_up", 16), ("shared expert up", 2)], [{"": 16}, {"nvfp4": 2}]),
        (["backbone.layers.7.mixer*"], [("in_proj", 2, LAYERS[::2]), ("q", 1, LAYERS[1:2])], [{"nvfp4": 2}, {"": 1}]),
        (["re:.*mlp.gate$", "re:(", 7, "lm_head"], [("gate", 2), ("lm_head", 1)], [{"nvfp4": 2}, {"": 1}]),
    ],
)
def test_what_a_configuration_leaves_in_16_bits_is_not_stored_so(ignored, names, expected):
    """Modules are named as compressed-tensors, ModelOpt and AutoAWQ name them in published checkpoints."""
    values = {"num_experts": 8, "quantization_config": NVFP4 | {"ignore": ignored}}
    assert shown(stored_format(Configuration(values, "x")), *names) == expected


def have(pattern, *names):
    modules = Modules([pattern])
    return [modules.have((x,)) for x in names]


def test_a_strangers_pattern_is_matched_as_an_expression_in_bounded_time(monkeypatch):
    """Those that take `re` longer than anybody waits, too; what takes long here as well, or is not read, is refused."""
    layers = r"model\.layers\.\d{1,2}\.[^m].+?q.{4,}"
    for text in (r".*(q|k|v)_proj$", r"(?i).*Q_PROJ", r"^(?!.*k_proj).*_proj(?<!gate_proj)", layers):
        names = [f"model.layers.{i}.{x}_proj" for i in (0, 17) for x in ("self_attn.q", "self_attn.k", "mlp.gate")]
        assert have(f"re:{text}", *names) == [bool(re.match(text, x)) for x in names], text
    assert have("re:(a+)+$", "a" * 99, "a" * 99 + "x") == [True, False]
    for text in ("(" * 5 + "x" + "{30})" * 5, "(?:qproj){e<=1}", "[[:alpha:]]*", r"\Kq", "("):  # names nothing
        assert have(f"re:{text}", "x", "q_proj") == [False, False]
    monkeypatch.setattr(name_pattern, "MOST_SECONDS", 0.02)
    step = r"0.02 s to be matched, the last of them '.*'; expected such as 're:.*'; write names, or patterns without"
    with pytest.raises(ShapeFileError, match=rf"^quantization_config: patterns take more than {step}"):
        have("re:(a|aa)+$", "a" * 60 + "x")


def test_modules_may_have_formats_of_their_own(tmp_path):
    names = [("q", 2), ("qkv", 2), ("gate_up", 2), ("lm_head", 1), ("expert down", 16)]
    groups = {
        "group_0": NVFP4["config_groups"]["group_0"] | {"targets": ["re:.*mlp.*"]},
        "group_1": {
            "weights": {"num_bits": 8, "type": "float"},
            "input_activations": FP8_INPUTS,
            "targets": ["re:.*q_proj"],
        },
    }
    mixed = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    read = stored_format(Configuration({"num_experts": 8, "quantization_config": mixed}, "x"))
    fp8 = types.E4M3_BF16.tag
    assert shown(read, *names) == [{fp8: 2}, {"apart": 2}, {"nvfp4": 2}, {"": 1}, {"nvfp4": 16}]
    assert APART.why_absent.startswith("its parts are stored in different formats")
    layers = {f"model.language_model.layers.{i}.mlp.experts": {"quant_algo": "W4A16_NVFP4"} for i in range(2)}
    layers |= {"model.layers.1.self_attn.q_proj": {"quant_algo": "FP8"}, "lm_head": {"quant_algo": "MXFP4"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quantized_layers": layers}}))
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    read = stored_format(Configuration({"num_experts": 8, "quantization_config": mixed}, str(tmp_path / "config.json")))
    assert shown(read, *names) == [{"": 1, fp8: 1}, {"": 1, "apart": 1}, {"": 2}, {"mxfp4": 1}, {"nvfp4": 16}]


@pytest.mark.parametrize(
    ("file", "said", "label"),
    [
        (
            "hf_quant_config.json",
            {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}},
            "modelopt, NVFP4",
        ),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 64, "version": "GEMM"}, "awq, 4 bits in groups of 64"),
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False}, "gptq, 4 bits in groups of 128"),
    ],
)
def test_what_stands_in_a_file_beside_the_configuration_is_read(tmp_path, file, said, label):
    (tmp_path / file).write_text(json.dumps(said))
    read = stored_format(Configuration({}, str(tmp_path / "config.json")))
    assert (read.label, read.types_for(ElementType.BFLOAT16) is None) == (label, False)
    (tmp_path / file).write_text("[")
    with pytest.raises(ShapeFileError, match=file):
        stored_format(Configuration({}, str(tmp_path / "config.json")))


def test_a_packed_folder_has_its_own_list(tmp_path):
    layers = {
        "language_model.model.layers.0.self_attn.q_proj": PackedLayer("nvfp4", (8, 16)),
        "model.layers.1.mlp.experts.gate_up_proj": PackedLayer("mxfp4", (4, 8, 32)),
    }
    (tmp_path / "aot-packed.json").write_text(PackedFolder(1, "modelopt", layers, {}, {}).text())
    said = {"quant_method": "aot", "format": "nvfp4"}
    read = stored_format(Configuration({"quantization_config": said, "num_experts": 4}, str(tmp_path / "config.json")))
    assert read.is_packed
    names = [("q", 1), ("vision q", 2), ("expert up", 8), ("expert gate_up", 8)]
    assert shown(read, *names) == [{"nvfp4": 1}, {"": 2}, {"": 4, "mxfp4": 4}, {"": 4, "mxfp4": 4}]


def test_what_checkpoints_leave_in_16_bits_is_not_stored_so():
    read = StoredFormat("fp8", types.E4M3_BF16)
    assert shown(read, ("q", 2), ("lm_head", 1), ("expert router", 2)) == [{types.E4M3_BF16.tag: 2}, {"": 1}, {"": 2}]
