"""`aot doctor MODEL`: how a target's table serves a model, Linear by Linear."""

import json
from dataclasses import replace

import pytest

from aot.cli import doctor, model_doctor, selection
from aot.core.operation import Operation
from aot.models import empty
from aot.select.score.diagnosis import Layer, diagnose
from tests.unit.cli.test_cli_shapes import QWEN
from tests.unit.invoked import aot, succeed
from tests.unit.select.test_coverage import BF16, H200, SELECTION

SIZES = {"model_type": "qwen3", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128}


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(empty, "is_installed", lambda *_: False)
    monkeypatch.setattr(doctor, "selection_of_layers", lambda *_: SELECTION)
    return tmp_path


def write(folder, **values):
    (folder / "config.json").write_text(json.dumps({**QWEN, **SIZES, **values}))
    return folder / "config.json"


def facts(*words):
    return json.loads(succeed("doctor", *words, "--json"))


def test_each_linear_is_native_by_a_measured_or_a_predicted_kernel(workplace):
    config = write(workplace, num_key_value_heads=32, intermediate_size=4096, vocab_size=4096)
    found = facts(config, "--target", "h200", "--m", "16,64")
    assert {(x["n"], x["k"], x["state"]) for x in found["layers"]} == {(4096, 4096, "native")}
    assert [[y["answer"] for y in x["served"]] for x in found["layers"]] == [["measured"] * 2] * len(found["layers"])
    assert [x["m"] for x in found["passes"]] == [16]  # of which no time is known, since the table's is too short
    assert found["next"] == "aot build --target h200"
    predicted = facts(config, "--target", "h200", "--m", "16,32")
    words = f"--config {config} --target h200"
    assert predicted["next"] == f"aot wheel {words} --on ssh://user@host, which measures what is predicted"


def test_odd_sizes_are_slow_with_the_factor_and_the_reason():
    layers = [Layer("w", 4095, 4096, 3, (1, 16), BF16), Layer("v", 4096, 4096, 1, (16, 32, 48), BF16)]
    slow, native = diagnose(SELECTION, layers, H200)
    assert (slow.worst, native.worst) == ("general", "predicted")
    assert {x.reason for x in slow.served} == {"n 4095 is not a multiple of 8"}
    assert all(x.time_us > x.roofline_us and "simt" in x.kernel for x in slow.served)
    assert [(x.m, x.answer) for x in native.served] == [(16, "measured"), (32, "predicted"), (48, "predicted")]
    text = model_doctor._why(slow)
    assert text.startswith(f"2 of 2 m by the general kernel {slow.served[0].kernel}, up to ")
    assert text.endswith("n 4095 is not a multiple of 8")
    assert slow.layer.num_bytes == 4095 * 4096 * 2 * 3


def test_a_time_below_the_roofline_is_not_this_problems():
    (found,) = diagnose(SELECTION, [Layer("w", 4096, 4096, 1, (16,), BF16)], H200)
    assert SELECTION.table.sections[0].ladders[0].rows[0].time_us == 2.0 < found.served[0].roofline_us
    assert found.served[0].time_us is None


def test_what_the_table_lacks_is_absent_and_the_build_that_has_it_is_named(workplace):
    config = write(workplace, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    found = facts(config, "--target", "h200")
    states = {x["name"]: (x["operation"], x["state"]) for x in found["layers"]}
    assert states["lm_head"] == ("bf16_kk", "native")
    assert {x for name, x in states.items() if name != "lm_head"} == {("e4m3_bf16_block_kk", "absent")}
    assert found["stored"] == "fp8, e4m3 in blocks of 128 x 128"
    assert found["passes"] == []
    assert found["next"].startswith("aot build --target h200 --operations e4m3_bf16_block_kk,")


def test_a_format_without_kernels_is_absent_everywhere(workplace):
    config = write(workplace, quantization_config={"quant_method": "awq", "bits": 4, "group_size": 48})
    text = succeed("doctor", config, "--target", "h200")
    assert "stored as awq, 4 bits in groups of 48, on h200" in text
    assert "absent  groups of 48 along k; expected 32, 64 or a multiple" in text
    assert "next: load the checkpoint in 16 bits, as bfloat16, whose products the wheel of `aot wheel --config " in text


def test_sizes_that_a_format_has_not_are_absent_and_not_slow(workplace):
    config = write(workplace, intermediate_size=4304, quantization_config={"quant_method": "awq", "bits": 4})
    found = {x["name"]: x for x in facts(config, "--target", "h200", "--m", "16")["layers"]}
    assert (found["down"]["operation"], found["down"]["state"], found["down"]["served"]) == (None, "absent", [])
    assert found["gate, up"]["operation"] == "bf16xint4g128z_bf16_kk"
    assert "absent  a weight of 4096 x 4304 cannot be packed as int4g128z: expected" in succeed(
        "doctor", config, "--target", "h200", "--m", "16"
    )


def test_packed_weights_are_absent_with_the_build_and_the_packing_that_mend_it(workplace):
    config = write(workplace, quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128})
    found = facts(config, "--target", "h200", "--dtype", "float16")
    states = {x["name"]: (x["operation"], x["state"]) for x in found["layers"]}
    assert {x for name, x in states.items() if name != "lm_head"} == {("fp16xint4g128z_fp16_kk", "absent")}
    tags = "fp16xint4g128z_fp16_kk,fp16_kk"
    assert found["next"] == f"aot build --target h200 --operations {tags}; and aot pack {workplace}"
    config = write(workplace, quantization_config={"quant_method": "aot", "format": "int4g128z"})
    assert (
        facts(config, "--target", "h200", "--dtype", "float16")["next"]
        == f"aot build --target h200 --operations {tags}"
    )
    (reason,) = {y["reason"] for x in found["layers"] if x["name"] != "lm_head" for y in x["served"]}
    assert reason == "no kernels of fp16xint4g128z_fp16"


MIXTURE = {"model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1}


@pytest.mark.parametrize(
    ("stored", "tag", "beside"),
    [
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128},
            "bf16xint4g128z_bf16_kk_grouped",
            "bf16xint4g128z_bf16_kk_gathered,bf16_silu_mul",
        ),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            "e4m3_bf16_block_kk_grouped",
            "e4m3_bf16_block_kk_gathered_swiglu,bf16_e4m3_block_quantize",
        ),
        ({"quant_method": "aot", "format": "int8"}, None, None),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"0": {"weights": {"num_bits": 4, "group_size": 128}}},
            },
            "bf16xint4g128_bf16_kk_grouped",
            "bf16xint4g128_bf16_kk_gathered,bf16_gpt_oss_mul",
        ),
        (
            {"quant_method": "mxfp4"},
            "bf16xmxfp4_bf16_kk_grouped",
            "bf16xmxfp4_bf16_kk_gathered,bf16_gpt_oss_mul",
        ),
    ],
)
def test_experts_are_groups_and_what_they_take_beside_is_named(workplace, stored, tag, beside):
    sizes = {"num_key_value_heads": 8, "intermediate_size": 4096, "vocab_size": 4096, "num_local_experts": 8}
    is_gpt_oss = stored["quant_method"] in ("mxfp4", "compressed-tensors")
    kind = MIXTURE | ({"model_type": "gpt_oss"} if is_gpt_oss else {})
    found = facts(write(workplace, **sizes, **kind, quantization_config=stored), "--target", "h200", "--m", "16")
    assert {x["operation"] for x in found["layers"] if x["name"].startswith("expert ")} == {tag}
    if tag is not None:
        build = found["next"].partition(";")[0]
        assert {tag, *beside.split(",")} <= set(build.rpartition(" ")[2].split(","))
        assert found["next"].endswith(f"; and aot pack {workplace}")
    others = {x["operation"] for x in found["layers"] if x["name"] in ("q, o", "q", "o")}
    assert others <= {"bf16_kk", "bf16_kk_bias"} if stored["quant_method"] == "mxfp4" else tag not in others


def test_experts_in_nvfp4_may_have_their_inputs_rounded_on_a_thor(workplace, monkeypatch):
    """By a checkpoint's factors: where it is packed in rows, the operations are named, and before how to pack it so."""
    monkeypatch.setattr(doctor, "selection_of_layers", lambda *_: replace(SELECTION, target="thor"))
    rounded = ["nvfp4_nvfp4_kk_grouped_swiglu", "nvfp4_bf16_kk_grouped", "bf16_nvfp4_quantize"]
    for stored, kind in (
        ({"quant_method": "aot", "format": "nvfp4rows"}, "qwen3_moe"),
        ({"quant_method": "aot", "format": "mxfp4rows"}, "qwen3_moe"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "qwen3_moe"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "gpt_oss"),
    ):
        sizes = {"num_key_value_heads": 8, "intermediate_size": 4096, "vocab_size": 4096, "num_local_experts": 8}
        config = write(workplace, **sizes, **MIXTURE | {"model_type": kind}, quantization_config=stored)
        advice = facts(config, "--target", "thor", "--m", "16")["next"]
        assert all(x in advice for x in rounded) == (stored.get("format") == "nvfp4rows")
        assert ("bf16xmxfp4rows_bf16_kk_gathered" in advice) == (stored.get("format") == "mxfp4rows")
        packing = f"input_scale, aot pack {workplace} --format nvfp4rows, and aot doctor of what that writes"
        assert advice.endswith(packing) == (stored["quant_method"] == "modelopt" and kind == "qwen3_moe")


@pytest.mark.parametrize(
    ("target", "stored", "has"),
    [
        ("thor", {"weight_block_size": [128, 128]}, "the slow general kernel alone for e4m3_bf16_block_kk"),
        ("orin", {}, "no kernel for e4m3_bf16_kk"),
    ],
)
def test_operations_that_a_chip_has_no_tuned_kernels_for_are_no_advice(workplace, monkeypatch, target, stored, has):
    """FP8 of blocks is Hopper's, and an Orin has no FP8."""
    monkeypatch.setattr(doctor, "selection_of_layers", lambda *_: replace(SELECTION, target=target))
    config = write(workplace, quantization_config={"quant_method": "fp8"} | stored)
    advice = facts(config, "--target", target, "--m", "16")["next"]
    assert advice.startswith(
        "load the checkpoint in 16 bits, as bfloat16, whose products the wheel of `aot wheel --config "
    )
    assert advice.endswith(f" has: {target} has {has}")


def test_modules_of_their_own_formats_are_rows_of_their_own(workplace):
    groups = {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8, "type": "float"}}
    named = {
        "quant_method": "compressed-tensors",
        "config_groups": {"0": groups | {"targets": ["re:.*\\.1\\.self_attn.[qkv]_proj"]}},
    }
    config = write(workplace, num_hidden_layers=4, quantization_config=named)
    rows = {}
    for x in facts(config, "--target", "h200", "--m", "16")["layers"]:
        rows[x["operation"], x["name"]] = rows.get((x["operation"], x["name"]), 0) + x["count"]
    assert rows["e4m3_bf16_kk", "q"] == 1
    assert rows["e4m3_bf16_kk", "k, v"] == 2
    assert rows["bf16_kk", "k, v"] == 6


def test_bytes_of_packed_weights_have_their_factors():
    packed = Layer("w", 4096, 4096, 2, (1,), Operation.BF16_INT4_G128_KK)
    assert packed.num_bytes == 2 * 4096 * 4096 * 4.125 / 8


def test_what_is_said_of_a_model_means_nothing_without_one():
    done = aot("doctor", "--m", "16")
    assert done.exit_code == 2
    assert "--m means nothing without MODEL; leave it out, or name a model" in done.output


@pytest.mark.slow
def test_the_table_that_ships_serves_a_model(workplace, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(workplace)
    config = write(workplace, num_key_value_heads=8, intermediate_size=12288, vocab_size=151936)
    done = aot("doctor", config, "--target", "h200")
    assert done.exit_code == 0, done.output
    lines = [x for x in done.output.splitlines() if "bf16_kk" in x]
    assert lines
    assert all(" native " in x for x in lines)
    assert "measures what is predicted" in done.output


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ({}, ["bf16_kk", "fp16_kk"]),
        ({"model_type": "qwen2"}, ["bf16_kk", "fp16_kk", "bf16_kk_bias", "fp16_kk_bias"]),
        ({"quantization_config": {"quant_method": "fp8"}}, ["bf16_kk", "fp16_kk", "e4m3_bf16_kk"]),
    ],
)
def test_of_a_whole_wheel_by_the_model_only_what_linears_ask_for_is_selected(workplace, monkeypatch, values, asked):
    """All default operations of a Thor took a minute and a half of CPU for a model of bf16."""
    requests = []

    def select(request):
        requests.append([x.tag for x in request.operations])
        return SELECTION

    monkeypatch.setattr(selection, "select", select)
    monkeypatch.setattr(doctor, "selection_of_layers", selection.selection_of_layers)
    done = aot("doctor", write(workplace, **values), "--target", "thor")
    assert requests == [asked]
    assert "thor has no committed selection: selecting by the cost model" in done.stderr
