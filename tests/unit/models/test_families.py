"""Families by table: the same Linears as transformers builds, and what is refused."""

import pytest

from aot.core.errors import ShapeFileError
from aot.models.configuration import Configuration
from aot.models.families import KNOWN, parts_of
from aot.models.linears import linears
from tests.unit.models.cases import CASES, configuration, listed

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def sizes(config, **options):
    return {x.name: (x.n, x.k, x.count) for x in linears(parts_of(Configuration(config, "c.json")), **options)}


@pytest.mark.parametrize("name", CASES)
def test_the_table_has_the_linears_that_transformers_builds(name):
    parts = parts_of(configuration(name))
    assert listed(parts) == CASES[name]["linears"]
    assert listed(parts, 2) == CASES[name]["halves"]


def test_every_known_family_is_compared():
    kinds = {case["config"]["model_type"] for case in CASES.values()}
    assert set(KNOWN) - kinds == {"siglip_vision_model", "clip_vision_model", "kimi_k2"}


def test_kimis_family_is_deepseeks_by_another_name():
    """Transformers does not know it: its code comes with the model, which calls the class DeepseekV3ForCausalLM."""
    config = configuration("deepseek_v3").values
    assert parts_of(Configuration({**config, "model_type": "kimi_k2"}, "c.json")) == parts_of(
        Configuration(config, "c.json")
    )


def test_published_numbers_of_a_llama():
    assert sizes(LLAMA) == {
        "q, o": (4096, 4096, 64),
        "k, v": (1024, 4096, 64),
        "qkv": (6144, 4096, 32),
        "gate, up": (14336, 4096, 64),
        "gate_up": (28672, 4096, 32),
        "down": (4096, 14336, 32),
        "lm_head": (128256, 4096, 1),
    }


def test_fused_forms_alone_and_parts_alone():
    assert list(sizes(LLAMA, unfused=False)) == ["qkv", "o", "gate_up", "down", "lm_head"]
    assert list(sizes(LLAMA, fused=False)) == ["q, o", "k, v", "gate, up", "down", "lm_head"]


def test_sixteen_gpus_repeat_eight_key_value_heads():
    found = sizes(LLAMA, ways=16)
    assert (found["k, v"], found["qkv"], found["o"]) == ((128, 4096, 64), (512, 4096, 32), (4096, 256, 32))


def test_a_model_that_is_made_of_towers_has_all_of_them():
    vision = {"model_type": "clip_vision_model", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    found = sizes({"model_type": "llava", "text_config": LLAMA, "vision_config": vision})
    assert found["vision q, vision k, vision v, vision o"] == (64, 64, 8)
    assert found["qkv"] == (6144, 4096, 32)


def nested(depth):
    config = LLAMA
    for _ in range(depth):
        config = {"model_type": "outer", "text_config": config}
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, 'model_type: expected the name of a family, such as "llama", got None'),
        ({**LLAMA, "model_type": ["llama"]}, 'model_type: expected the name of a family, such as "llama", got [\'ll'),
        ({**LLAMA, "hidden_size": None}, "hidden_size: expected a whole number from 1 to 2147483647, but the key is"),
        ({**LLAMA, "hidden_size": -1}, "hidden_size: expected a whole number from 1 to 2147483647, got -1; mend the"),
        ({**LLAMA, "hidden_size": 4096.0}, "hidden_size: expected a whole number from 1 to 2147483647, got 4096.0"),
        ({**LLAMA, "hidden_size": True}, "hidden_size: expected a whole number from 1 to 2147483647, got True"),
        ({**LLAMA, "hidden_size": 10**40}, "hidden_size: expected a whole number from 1 to 2147483647, got an integer"),
        ({**LLAMA, "hidden_size": 4097}, "hidden_size: expected a multiple of 32, the number of heads, got 4097"),
        ({**LLAMA, "num_hidden_layers": 10001}, "num_hidden_layers: expected at most 10000, got 10001"),
        ({**LLAMA, "mlp_bias": 1}, "mlp_bias: expected true or false, got 1"),
        ({**LLAMA, "architectures": "x"}, "architectures: expected a list of names of classes, got 'x'"),
        (nested(5), "text_config.text_config.text_config.text_config.text_config: expected at most 4 configurations"),
        ({"model_type": "x", "text_config": 3}, "text_config: expected the object of a tower's configuration, got 3"),
    ],
)
def test_what_is_no_configuration_is_refused_with_the_key(config, message):
    with pytest.raises(ShapeFileError) as caught:
        parts_of(Configuration(config, "c.json"))
    assert str(caught.value).startswith(f"c.json: {message}")


def test_an_unknown_family_is_refused_with_the_known_ones():
    with pytest.raises(ShapeFileError) as caught:
        parts_of(Configuration({"model_type": "mamba"}, "c.json"))
    assert str(caught.value) == (
        f"c.json: the family 'mamba' is not known; known without transformers: {', '.join(KNOWN)}; transformers knows "
        "more: pip install transformers beside aot, and run the command again; `aot shapes record` takes the shapes of "
        "any program that runs"
    )


def test_a_model_whose_tower_says_no_family_is_unknown_itself():
    """Qwen2.5-VL's tower for images has no model_type, and the numbers for texts stand beside it."""
    with pytest.raises(ShapeFileError, match=r"^c\.json: the family 'qwen2_5_vl' is not known; known without"):
        parts_of(Configuration({**LLAMA, "model_type": "qwen2_5_vl", "vision_config": {"depth": 2}}, "c.json"))


def test_a_model_of_diffusers_is_sent_to_it():
    with pytest.raises(ShapeFileError) as caught:
        parts_of(Configuration({"_class_name": "DiTTransformer2DModel"}, "c.json"))
    assert str(caught.value) == (
        "c.json: DiTTransformer2DModel is a model of diffusers, which builds it: pip install diffusers beside aot, and "
        "run the command again; `aot shapes record` takes the shapes of any program that runs"
    )


@pytest.mark.parametrize(
    ("changes", "ways", "message"),
    [
        ({}, 3, "--tensor-parallel 3 does not divide the model's 32 heads; give a number that does"),
        ({"num_key_value_heads": 6}, 4, "--tensor-parallel 4 does not divide the model's 6 key-value heads; give a"),
        ({"intermediate_size": 14337}, 2, "--tensor-parallel 2 does not divide the model's 14337 columns of a feed"),
        ({"intermediate_size": 2**31 - 1}, 1, "the weight gate_up is 4294967294 x 4096; expected at most 2147483647"),
    ],
)
def test_what_gpus_cannot_share_and_kernels_cannot_take_is_refused(changes, ways, message):
    with pytest.raises(ShapeFileError) as caught:
        sizes({**LLAMA, **changes}, ways=ways)
    assert str(caught.value).startswith(message)
