"""`aot shapes from-config`: a configuration becomes a shape set that the other commands take."""

import json
import sys
from pathlib import Path

import pytest

from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.shape_set import load_shape_set
from aot.models import empty
from tests.unit.invoked import aot, succeed
from tests.unit.models import stand_in

VIT = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
    "id2label": {"0": "a", "1": "b"},
    "torch_dtype": "float16",
}
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(empty, "is_installed", lambda *_: False)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN))
    (tmp_path / "vit.json").write_text(json.dumps(VIT))
    return tmp_path


def made(*arguments):
    """Make a shape set; return the m, the count and the epilogue of each weight, and its operations."""
    succeed("shapes", "from-config", *arguments, "-o", "x.toml")
    found = {}
    for model in load_shape_set("x.toml").models:
        (weight,), (count,), (operation,) = model.weights, set(model.counts), model.operations
        found[weight.name, weight.n, weight.k] = (model.m, count, operation.epilogue, operation.element)
    return found


BF16, FP16 = ElementType.BFLOAT16, ElementType.FLOAT16


def test_every_linear_has_its_m_its_count_and_its_bias():
    prefill = (1, 2, 64, 512)
    assert made("model", "--batch", "1-2", "--sequence", "64,512") == {
        ("q", 64, 64): (prefill, 3, Epilogue.BIAS, BF16),
        ("k, v", 32, 64): (prefill, 6, Epilogue.BIAS, BF16),
        ("qkv", 128, 64): (prefill, 3, Epilogue.BIAS, BF16),
        ("o", 64, 64): (prefill, 3, Epilogue.NONE, BF16),
        ("gate, up", 128, 64): (prefill, 6, Epilogue.NONE, BF16),
        ("gate_up", 256, 64): (prefill, 3, Epilogue.NONE, BF16),
        ("down", 64, 128): (prefill, 3, Epilogue.NONE, BF16),
        ("lm_head", 1000, 64): ((1, 2), 1, Epilogue.NONE, BF16),
    }


def test_by_default_m_is_the_atlass_and_what_is_said_and_written_agree():
    line = succeed("shapes", "from-config", "model", "-o", "x.toml")
    # Three sizes with a bias and four without meet the 9 batches and 13 lengths of prompts; the head meets the batches.
    assert line == (
        "x.toml: 97 problems of bf16_kk, 66 problems of bf16_kk_bias; 8 sizes of weights, by the table of families\n"
    )
    assert load_shape_set("x.toml").models[0].m == (
        *(1, 2, 4, 8, 16, 32, 64, 128, 256, 333, 500, 512, 900),
        *(1024, 2048, 2500, 3000, 4096, 5000, 8192, 12000, 16384),
    )
    assert (
        succeed("shapes", "--shapes", "x.toml").splitlines()[-1]
        == "97 problems of bf16_kk, 66 problems of bf16_kk_bias"
    )


def test_what_was_made_is_told_as_json():
    found = json.loads(succeed("shapes", "from-config", "model", "-o", "x.toml", "--m", "16", "--fused", "--json"))
    assert found["num_problems"] == {"bf16_kk": 4, "bf16_kk_bias": 1}
    assert (found["shapes"], found["built_by"], found["notes"], found["num_launches"]) == ("x.toml", None, [], 13)
    assert found["models"][0]["weights"] == [{"name": "qkv", "n": 128, "k": 64}]


def test_images_meet_their_patches_and_what_the_fallback_serves_is_said():
    result = aot("shapes", "from-config", "vit.json", "-o", "x.toml", "--batch", "1,2,64")
    assert (result.exit_code, result.stderr) == (
        0,
        "classifier 2 x 64 is no multiple of 8: kernels for what is not aligned serve it\n",
    )
    found = load_shape_set("x.toml")
    assert {model.m for model in found.models if model.weights[0].name != "classifier"} == {(5, 10)}
    assert [(x.weights[0].n, x.m) for x in found.models if x.weights[0].name == "classifier"] == [(2, (1, 2, 64))]
    assert {operation.element for operation in found.operations} == {FP16}
    text = Path("x.toml").read_text()
    assert (
        "# n or k is no multiple of 8, so that kernels for what is not aligned serve it:\n#   classifier 2 x 64\n"
        in text
    )


def test_options_for_m_type_forms_and_gpus():
    found = made("model", "--m", "16,1-3", "--dtype", "float16", "--fused", "--tensor-parallel", "2")
    assert found == {
        ("qkv", 64, 64): ((1, 2, 16), 3, Epilogue.BIAS, FP16),
        ("o", 64, 32): ((1, 2, 16), 3, Epilogue.NONE, FP16),
        ("gate_up", 128, 64): ((1, 2, 16), 3, Epilogue.NONE, FP16),
        ("down", 64, 64): ((1, 2, 16), 3, Epilogue.NONE, FP16),
        ("lm_head", 500, 64): ((1, 2, 16), 1, Epilogue.NONE, FP16),
    }
    both = made("model", "--m", "1", "--fused", "--unfused")
    assert both == made("model", "--m", "1")
    assert {name for name, *_ in both} - {name for name, *_ in made("model", "--m", "1", "--unfused")} == {
        "qkv",
        "gate_up",
    }


def test_a_type_without_kernels_becomes_bfloat16_and_is_said(workplace):
    (workplace / "vit.json").write_text(json.dumps({**VIT, "torch_dtype": "float32"}))
    result = aot("shapes", "from-config", "vit.json", "-o", "x.toml")
    assert result.stderr.splitlines()[0] == (
        "vit.json: the configuration's 'float32' is no type of these kernels; the shape set is for bfloat16; --dtype "
        "says another"
    )
    assert {operation.element for operation in load_shape_set("x.toml").operations} == {BF16}


def test_weights_that_are_published_quantised_are_said(workplace):
    quantised = {**QWEN, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (workplace / "fp8.json").write_text(json.dumps(quantised))
    assert aot("shapes", "from-config", "fp8.json", "-o", "x.toml").stderr == (
        "fp8.json: its weights are published quantised (fp8, e4m3 in blocks of 128 x 128); the shape set is for "
        "bfloat16; for other kernels change `operations` in it, whose tags docs/operations.md lists\n"
    )


def test_a_family_that_the_table_alone_knows_needs_no_transformers(workplace, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", stand_in.module())
    monkeypatch.setattr(empty, "is_installed", lambda *_: True)
    summary = succeed("shapes", "from-config", "model", "-o", "x.toml")
    assert summary.endswith("8 sizes of weights, by the table of families\n")
    (workplace / "fake.json").write_text(json.dumps({"model_type": "fake", "hidden": 64}))
    assert succeed("shapes", "from-config", "fake.json", "-o", "x.toml").endswith("built empty with transformers\n")


def test_what_joins_towers_is_said_to_be_missing(workplace):
    (workplace / "llava.json").write_text(json.dumps({"model_type": "llava", "text_config": QWEN}))
    result = aot("shapes", "from-config", "llava.json", "-o", "x.toml")
    assert result.stderr == (
        "llava.json: of 'llava' its text_config alone are listed, and not what joins these or is beside them; "
        "transformers lists all, where it is installed and knows the family\n"
    )


def test_a_family_that_no_library_knows_has_its_towers_listed(workplace, monkeypatch):
    """As OpenVLA, whose text tower is a Llama with the numbers that its configuration leaves to transformers."""
    (workplace / "openvla.json").write_text(
        json.dumps({"model_type": "openvla", "text_config": {"model_type": "llama"}})
    )
    found = []
    for is_installed in (False, True):
        monkeypatch.setattr(empty, "is_installed", lambda *_, known=is_installed: known)
        monkeypatch.setattr(empty, "is_known", lambda _: False)
        assert aot("shapes", "from-config", "openvla.json", "-o", "x.toml").exit_code == 0
        found.append((workplace / "x.toml").read_text())
    assert found[0] == found[1]
    assert "n = 11008" in found[0]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["model"], 2, "Missing option '-o' / '--output'"),
        (["org/model", "-o", "x"], 3, "org/model: No such file or directory; give the path of a config.json or of its"),
        (
            ["none.json", "-o", "x"],
            3,
            "with; `aot shapes record` takes the shapes of any program that runs",
        ),
        (["model", "-o", "x", "--m", "1", "--batch", "2"], 2, "--batch means nothing with --m; leave it out, or use"),
        (["model", "-o", "x", "--m", "0"], 2, "'0' is neither a number from 1 to 2147483647 nor a range of"),
        (["model", "-o", "x", "--m", "8-4"], 2, "8-4: the range goes down; expected the smaller number first"),
        (
            ["model", "-o", "x", "--m", "1,,2"],
            2,
            "'' is neither a number from 1 to 2147483647 nor a range of doublings",
        ),
        (["model", "-o", "x", "--m", "1-"], 2, "'1-' is neither a number from 1 to 2147483647 nor a range of"),
        (["model", "-o", "x", "--m", ",".join(map(str, range(1, 202)))], 2, "201 numbers; expected at most 200"),
        (["model", "-o", "x", "--tensor-parallel", "3"], 3, "--tensor-parallel 3 does not divide the model's 4 heads"),
        (
            ["vit.json", "-o", "x", "--batch", "2147483647"],
            3,
            "5 rows an input make 10737418235 in all; expected at most",
        ),
        (["model", "-o", "model"], 15, "cannot write model: it is a folder; give the path of a file"),
    ],
)
def test_what_makes_no_shape_set_is_refused_and_nothing_is_written(workplace, arguments, code, message):
    (workplace / "none.json").write_text("{}")
    result = aot("shapes", "from-config", *arguments)
    assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
    assert not (workplace / "x").exists()
