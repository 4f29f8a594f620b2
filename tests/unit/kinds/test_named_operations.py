from dataclasses import replace

import pytest

from aot.core.errors import OperationError, TargetError
from aot.core.grouping import Grouping
from aot.core.operation import Layout, Operation
from aot.core.target import load_target, target_names
from aot.core.types import BF16, FP16
from aot.kinds.named_operations import (
    DEFAULT_PRESET,
    HELP,
    PRESETS,
    all_named_operations,
    default_operations,
    named_operations,
    with_epilogues,
)
from aot.kinds.rows.catalogue import row_operations
from aot.space.enumeration import has_tuned_kernels


def tags(text):
    return [x.tag for x in named_operations(text)]


def test_tags_and_patterns_are_listed_once_in_the_order_of_the_catalogue():
    assert tags("fp16_kk") == ["fp16_kk"]
    assert tags("int8_bf16_kk, bf16_kk,bf16_kk") == ["bf16_kk", "int8_bf16_kk"]
    assert tags("e4m3_bf16_*,-*_g*ed*") == [
        "e4m3_bf16_kk",
        "e4m3_bf16_fast_kk",
        "e4m3_bf16_block_kk",
        *(f"e4m3_bf16_kk_{x}" for x in ("relu", "gelu", "gelu_tanh", "silu", "residual", "swiglu", "geglu")),
    ]


def test_what_a_minus_leads_is_left_out():
    assert tags("bf16_kk_*,-*_*glu,-*_gelu*,-*ed,-*_many") == [
        "bf16_kk_bias",
        "bf16_kk_relu",
        "bf16_kk_silu",
        "bf16_kk_residual",
    ]
    assert tags("int8,-int8_int32_kk") == ["int8_bf16_kk", "int8_fp16_kk"]
    left = {"e4m3_fp32_kk", "e4m3_e4m3_kk", "int8_int32_kk", "tf32_kk", "fp32_kk"}
    assert set(tags("-*16_*,-nvfp4_nvfp4_*,-mx*")) == left


def test_the_default_are_the_products_that_have_run_on_a_gpu():
    dense = [x for x in Operation if x.grouping is Grouping.DENSE]
    expected = [x for x in dense if x.types in (BF16, FP16) and x.epilogue in ("none", "bias")]
    assert list(named_operations(DEFAULT_PRESET)) == expected
    assert len(expected) == 2 * len(Layout) + 2


def test_a_wheel_has_the_preset_default_and_what_its_target_s_file_names_of_any_kind():
    preset, found = named_operations(DEFAULT_PRESET), default_operations(load_target("thor"))
    products = ["nvfp4_bf16_kk", "nvfp4_bf16_kk_bias", "e4m3_bf16_kk"]
    products += [f"bf16x{x}_bf16_kk" for x in ("int4g128", "nvfp4", "nvfp4rows")]
    assert [x.tag for x in found.products] == [*(x.tag for x in preset), *products]
    assert [x.tag for x in found.others] == [f"bf16_nvfp4_{x}" for x in ("quantize", "rms_norm", "silu_mul")]
    named_again = replace(load_target("h200"), default_operations=("bf16_kk", "bf16_kk_bias"))
    assert default_operations(named_again).operations == preset


@pytest.mark.parametrize("name", target_names())
def test_each_target_s_default_operations_are_found_and_have_tuned_kernels(name):
    target = load_target(name)
    found = default_operations(target).operations
    assert {*(target.default_operations or ()), "bf16_kk_bias", "fp16_kk_bias"} <= {x.tag for x in found}
    assert all(has_tuned_kernels(x, target) for x in found)


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        ("mxfp8_bf16_kk", "h200: default_operations has mxfp8_bf16_kk, which needs block_scale; expected what the"),
        ("int4_kk", "h200: default_operations has 'int4_kk', which is no operation; docs/operations.md lists them"),
    ],
)
def test_a_default_operation_is_one_that_there_is_and_the_chip_can_compute(tag, text):
    with pytest.raises(TargetError, match=text):
        default_operations(replace(load_target("h200"), default_operations=("fp32_kk", tag)))


def test_a_default_operation_on_rows_asks_for_what_its_elements_need():
    without = replace(load_target("a100"), default_operations=("bf16_rms_norm", "bf16_e4m3_rms_norm"))
    with pytest.raises(TargetError, match="bf16_e4m3_rms_norm, which needs fp8"):
        default_operations(without)


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("llama", {"bf16_kk", "bf16_kk_residual", "bf16_kk_swiglu", "bf16_kk_many"}),
        ("vision", {"bf16_kk_bias", "bf16_kk_gelu", "bf16_kk_gelu_tanh", "bf16_kk_residual"}),
        ("diffusion", {"bf16_kk", "bf16_kk_bias", "bf16_kk_gelu_tanh", "bf16_kk_silu", "bf16_kk_residual"}),
        ("attention", {f"bf16_{x}_batched" for x in ("kk", "kn", "mk", "mn")}),
        ("moe", {f"bf16_kk_{x}" for x in ("grouped", "grouped_swiglu", "gathered", "gathered_swiglu")}),
    ],
)
def test_a_preset_names_what_such_models_need_in_both_types(preset, expected):
    assert set(tags(preset)) == expected | {x.replace("bf16", "fp16") for x in expected}
    assert preset in HELP


def test_presets_of_nvfp4_have_what_rounds_x():
    dense, grouped = (all_named_operations(x).operations for x in ("nvfp4", "moe_nvfp4"))
    products = [f"nvfp4_bf16_kk{x}" for x in ("", "_bias", "_residual", "_swiglu")]
    assert [*dense] == [*products, *(f"bf16_nvfp4_{x}" for x in ("quantize", "rms_norm", "silu_mul"))]
    products = [f"{x}_kk_grouped_swiglu" for x in ("nvfp4_bf16", "nvfp4_nvfp4")]
    assert [*grouped] == ["nvfp4_bf16_kk_grouped", *products, "bf16_nvfp4_quantize"]


def test_no_preset_hides_a_tag():
    assert not set(PRESETS) & {x.tag for x in Operation}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bf16_kk_sil", "no operation is called 'bf16_kk_sil', and no preset; did you mean bf16_kk_silu or "),
        ("visoin", "no operation is called 'visoin', and no preset; did you mean vision?"),
        ("x*", "no operation is called 'x*', and no preset; docs/operations.md lists them"),
        ("bf16_kk,-fp8x_*", "no operation is called 'fp8x_*', and no preset; did you mean fp8?"),
        ("bf16_kk,-bf16_*", "'bf16_kk,-bf16_*' leaves no operation; exclude less"),
        ("", "an empty name in ''; write for example 'bf16_kk,bf16_kk_silu' or 'llama,-fp16_*'"),
        ("bf16_kk,-", "an empty name in 'bf16_kk,-'; write for example"),
    ],
)
def test_what_names_nothing_is_refused(text, message):
    with pytest.raises(OperationError) as caught:
        named_operations(text)
    assert str(caught.value).startswith(message)


def rows(text):
    return [x.tag for x in all_named_operations(text).others]


def test_row_operations_are_named_beside_products():
    named = all_named_operations("default,fp16_rms_norm,bf16_*quantize,-*int8*,-*e5m2*,-*tensor*,-*nvfp4*,-*mx*")
    assert named.products == named_operations(DEFAULT_PRESET)
    assert [x.tag for x in named.others] == ["fp16_rms_norm", "bf16_e4m3_quantize", "bf16_e4m3_block_quantize"]
    assert rows(DEFAULT_PRESET) == []
    assert rows("rows") == [x.tag for x in row_operations()]
    assert rows("llama") == [f"{x}_{name}" for name in ("rms_norm", "silu_mul", "rotary") for x in ("bf16", "fp16")]
    assert set(rows("fp8")) == {f"bf16_e4m3_{x}" for x in ("rms_norm", "layer_norm", "silu_mul", "quantize")} | {
        "bf16_e4m3_block_quantize"
    }


def test_products_are_needed_beside_row_operations():
    with pytest.raises(OperationError, match=r"names no product \(bf16_rms_norm\); .* default,bf16_rms_norm"):
        named_operations("bf16_rms_norm")


def test_no_tag_is_of_both_catalogues():
    assert not {x.tag for x in Operation} & {x.tag for x in row_operations()}


@pytest.mark.parametrize(
    ("text", "epilogues", "added"),
    [
        ("default", "silu", "bf16_kk_silu,fp16_kk_silu"),
        ("bf16_kk,e4m3_bf16_kk", "silu, gelu_tanh", "[be]*16_kk_silu,[be]*16_kk_gelu_tanh,-*e5m2*"),
        ("bf16_kk_gathered", "swiglu", "bf16_kk_gathered_swiglu"),
        ("fp16_kk,bf16_rms_norm", "residual", "fp16_kk_residual"),
    ],
)
def test_epilogues_add_operations_of_the_same_types_layout_and_grouping(text, epilogues, added):
    named = all_named_operations(text)
    found = with_epilogues(named, epilogues)
    assert found.others == named.others
    assert set(found.products) == {*named.products, *named_operations(added)}
    assert list(found.products) == [x for x in Operation if x in found.products]


@pytest.mark.parametrize(
    ("text", "epilogues", "message"),
    [
        ("default", "swish", "no epilogue is called 'swish'; expected of bias, relu, gelu, gelu_tanh, silu, residual"),
        ("default", "none", "no epilogue is called 'none'"),
        ("default", "", "no epilogue is called ''"),
        (
            "int8",
            "gelu",
            "no operation is like int8_int32_kk, int8_bf16_kk, int8_fp16_kk with the epilogue gelu; there",
        ),
    ],
)
def test_epilogues_that_there_are_not_are_refused(text, epilogues, message):
    with pytest.raises(OperationError, match=message):
        with_epilogues(all_named_operations(text), epilogues)
