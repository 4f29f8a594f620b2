"""Checkpoints of sizes that nobody chose, against their specifications; and what has no one meaning is refused.

Tensors are made here from the numbers that they stand for, word by word, and not by the functions that are tested.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from aot.checkpoint.packing import Request, pack_checkpoint
from aot.core.errors import CheckpointError
from aot.core.packed_folder import read_folder
from aot.core.safetensors_file import read_header
from aot.core.weight_packing import unpack
from tests import checkpoints

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""Source: Open Compute Project, Microscaling Formats (MX) specification 1.0, section 5.3.3."""
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
RNG = np.random.default_rng(20261128)
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "version": "GEMM", "zero_point": True}


def compressed(layout="pack-quantized", **weights):
    described = {"num_bits": 4, "type": "int", **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": {"weights": described}},
    }


def modelopt(algorithm):
    return {"quant_method": "modelopt", "quant_algo": algorithm}


def words_along(numbers, columns=range(8)):
    """Put eight numbers along the last axis into a word: place i of it has the column that is named."""
    held = np.zeros((len(numbers), numbers.shape[1] // 8), np.uint32)
    for i in range(held.shape[0]):
        for j in range(held.shape[1]):
            held[i, j] = sum(int(numbers[i, 8 * j + column]) << 4 * place for place, column in enumerate(columns))
    return held.view(np.int32)


def halves(codes):
    return (codes[:, ::2] + 16 * codes[:, 1::2]).astype(np.uint8)


def e4m3(bits):
    """Return the values of e4m3's bits. Source: OFP8 specification 1.0, table 1."""
    exponent, fraction = (bits >> 3 & 15).astype(int), (bits & 7) / 8.0
    value = np.where(exponent > 0, np.ldexp(1 + fraction, exponent - 7), np.ldexp(fraction, -6))
    return np.where(bits & 128, -value, value)


def drawn_factors(*shape, dtype="F16"):
    """Return factors' bits and values; bfloat16 is the upper half of float32."""
    values = (RNG.random(shape) + 0.01).astype(np.float32) / 64
    if dtype == "BF16":
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(float)
    if dtype == "F16":
        return values.astype(np.float16).view(np.uint16), values.astype(np.float16).astype(float)
    return values, values.astype(float)


def gptq(n, k, group, version=1, dtype="F16"):
    groups = -(-k // group)
    codes, zeros = RNG.integers(0, 16, (k, n)), RNG.integers(1 if version == 1 else 0, 16, (groups, n))
    bits, factors = drawn_factors(groups, n, dtype=dtype)
    of = np.arange(k) // group
    held = {
        "qweight": ("I32", words_along(codes.T).T),
        "qzeros": ("I32", words_along(zeros - 1 if version == 1 else zeros)),
        "scales": (dtype, bits),
        "g_idx": ("I32", of.astype(np.int32)),
    }
    return held, ((codes - zeros[of]) * factors[of]).T


def awq(n, k, group, dtype="F16"):
    codes, zeros = RNG.integers(0, 16, (k, n)), RNG.integers(0, 16, (k // group, n))
    bits, factors = drawn_factors(k // group, n, dtype=dtype)
    of = np.arange(k) // group
    packed = [("I32", words_along(x, AWQ_COLUMNS)) for x in (codes, zeros)]
    return dict(zip(("qweight", "qzeros", "scales"), [*packed, (dtype, bits)], strict=True)), (
        (codes - zeros[of]) * factors[of]
    ).T


def int4(n, k, group, dtype="BF16", has_zeros=False):
    codes, zeros = RNG.integers(-8, 8, (n, k)), RNG.integers(-8, 8, (n, k // group)) * has_zeros
    bits, factors = drawn_factors(n, k // group, dtype=dtype)
    of = np.arange(k) // group
    held = {"weight_packed": ("I32", words_along(codes + 8)), "weight_scale": (dtype, bits)}
    held["weight_shape"] = ("I64", np.array([n, k]))
    if has_zeros:
        padded = np.zeros((-(-n // 8) * 8, zeros.shape[1]), int)
        padded[:n] = zeros + 8
        held["weight_zero_point"] = ("I32", words_along(padded.T).T)
    return held, (codes - zeros[:, of]) * factors[:, of]


def fp4(n, k, group, ends=("weight_packed", "weight_global_scale")):
    codes = RNG.integers(0, 16, (n, k))
    if group == 32:
        powers = RNG.integers(1, 255, (n, k // 32)).astype(np.uint8)
        held = {"weight_packed": ("U8", halves(codes)), "weight_scale": ("U8", powers)}
        return held, E2M1[codes] * np.repeat(np.ldexp(1.0, powers.astype(int) - 127), 32, 1)
    factors = RNG.integers(0, 127, (n, k // 16)).astype(np.uint8)
    divides, whole = (
        ends[1] == "weight_global_scale",
        np.float32(2.0**-11 if ends[1] == "weight_global_scale" else 3e-4),
    )
    held = {ends[0]: ("U8", halves(codes)), "weight_scale": ("F8_E4M3", factors)}
    held[ends[1]] = ("F32", np.array([1 / whole], np.float32) if divides else np.array(whole))
    held["input_scale"] = ("F32", np.float32(0.5).reshape(()))
    return held, E2M1[codes] * np.repeat(e4m3(factors), 16, 1) * float(whole)


def fp8(n, k, shape, end="weight_scale", dtype="F32"):
    codes = RNG.integers(0, 256, (n, k)).astype(np.uint8)
    codes[codes & 127 == 127] = 0
    bits, factors = drawn_factors(*shape, dtype=dtype)
    held = {"weight": ("F8_E4M3", codes), end: (dtype, bits), "input_scale": ("F32", np.float32(2).reshape(()))}
    if len(shape) == 4 or end == "weight_scale_inv":
        across = factors.reshape(-(-n // 128), -(-k // 128))
        return held, e4m3(codes) * np.repeat(np.repeat(across, 128, 0), 128, 1)[:n, :k]
    return held, e4m3(codes) * factors.reshape(-1, 1)


def write(folder, held, quantization, more=()):
    checkpoints.write_folder(folder, None, [*((f"a.proj.{end}", *x) for end, x in held.items()), *more])
    config = {"model_type": "llama", **({"quantization_config": quantization} if quantization else {})}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def values_of(output, name="a.proj"):
    """Return what a packed weight stands for, from its bits."""
    layer = read_folder(output).layers[name]
    held = {}
    for shard in read_folder(output).shards:
        held |= read_header(output / shard)
    bits, scale = np.array(held[f"{name}.qweight"].bits()), held[f"{name}.scale"].bits().view(np.float32).astype(float)
    if layer.form is None:
        if layer.format == "fp8_block":
            scale = np.repeat(np.repeat(scale, 128, 0), 128, 1)[: layer.shape[0], : layer.shape[1]]
        return (bits.view(np.int8).astype(float) if layer.format == "int8" else e4m3(bits)) * scale
    parts = unpack(layer.form, bits, *layer.shape)
    if layer.dtype is not None:
        numbers = parts.codes.astype(float)
        zeros = np.full(parts.factors.shape, 8) if parts.zeros is None else parts.zeros
        numbers = numbers - np.repeat(zeros.astype(float), layer.form.group, 1)
        wide = (parts.factors.astype(np.uint32) << 16).view(np.float32)
        factors = wide if layer.dtype == "bfloat16" else parts.factors.view(np.float16)
    else:
        if layer.form.group == 0:
            return e4m3(parts.codes) * scale.reshape(-1, 1)
        numbers = E2M1[parts.codes]
        factors = np.ldexp(1.0, parts.factors.astype(int) - 127) if layer.format == "mxfp4" else e4m3(parts.factors)
    values = numbers * np.repeat(factors.astype(float), layer.form.group, 1)
    return values * scale if scale.size else values


WIDE_INPUTS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": None}},
}
MODELOPT_ENDS = ("weight", "weight_scale_2")
GIVEN = {
    "gptq": (gptq(24, 384, 128), GPTQ),
    "gptq, groups of 32": (gptq(40, 160, 32, dtype="BF16"), GPTQ | {"group_size": 32}),
    "gptq, whole rows": (gptq(264, 640, 640), GPTQ | {"group_size": -1}),
    "gptq_v2": (gptq(136, 192, 64, version=2), GPTQ | {"group_size": 64, "checkpoint_format": "gptq_v2"}),
    "gptq_v2 by its other key": (gptq(8, 256, 128, version=2), GPTQ | {"format": "gptq_v2"}),
    "awq, three groups": (awq(8, 384, 128), AWQ | {"group_size": 128}),
    "awq, five groups": (awq(16, 320, 64, dtype="BF16"), AWQ | {"group_size": 64}),
    "int4": (int4(13, 160, 32), compressed(group_size=32)),
    "int4, zero points": (int4(7, 384, 128, "F16", has_zeros=True), compressed(group_size=128, symmetric=False)),
    "int4, one row": (int4(1, 1536, 512, has_zeros=True), compressed(group_size=512)),
    "nvfp4": (fp4(3, 48, 16), compressed("nvfp4-pack-quantized", type="float", group_size=16)),
    "nvfp4 of ModelOpt": (fp4(17, 144, 16, MODELOPT_ENDS), modelopt("NVFP4")),
    "mxfp4": (fp4(7, 96, 32), compressed("mxfp4-pack-quantized", type="float", group_size=32)),
    "fp8 by rows": (fp8(7, 48, (7, 1), dtype="BF16"), compressed("float-quantized", num_bits=8, type="float")),
    "fp8 by rows beside inputs of 16 bits": (fp8(7, 48, (7, 1)), WIDE_INPUTS),
    "fp8 by tensor beside inputs of 16 bits": (fp8(7, 48, ()), WIDE_INPUTS),
    "fp8 by tensor": (fp8(130, 16, ()), modelopt("FP8")),
    "fp8 by blocks": (
        fp8(257, 200, (3, 2), "weight_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
    "fp8 by blocks of ModelOpt": (fp8(200, 300, (2, 1, 3, 1)), modelopt("FP8_PB_WO")),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_layout_stands_for_what_its_specification_says(tmp_path, name):
    (held, values), quantization = GIVEN[name]
    pack_checkpoint(Request(write(tmp_path / "c", held, quantization), tmp_path / "o", check_all=True), 1)
    assert np.array_equal(values_of(tmp_path / "o"), values)
    (layer,) = read_folder(tmp_path / "o").layers.values()
    assert (layer.format == "fp8_weight_only") == (quantization is WIDE_INPUTS)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2"}),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "version": "GEMM"}),
    ],
)
@pytest.mark.parametrize("is_file", [False, True])
def test_what_older_quantisers_say_in_a_file_of_theirs_is_read(tmp_path, file, said, is_file):
    held, values = gptq(8, 256, 128, version=2) if "quantize" in file else awq(8, 256, 128)
    folder = write(tmp_path / "c", held, None)
    (folder / file).write_text(json.dumps(said))
    given = folder / "model.safetensors" if is_file else folder
    found = pack_checkpoint(Request(given, tmp_path / "o"), 1)
    assert found.folder.source == ("gptq" if "quantize" in file else "awq")
    assert np.array_equal(values_of(tmp_path / "o"), values)
    assert not (tmp_path / "o" / file).exists()  # which would say that it is not packed


def without(held, *ends):
    return {end: x for end, x in held.items() if end not in ends}


def short_group(*ends):
    """Return GPTQ's 1024 and 256 elements along k, which are not two groups of 640."""
    return without(gptq(8, 1280, 1024)[0], *ends)


def with_zero_of_15():
    held, _ = gptq(8, 256, 128)
    words = held["qzeros"][1].view(np.uint32).copy()
    words[1, 0] |= np.uint32(0xF0)
    return held | {"qzeros": ("I32", words.view(np.int32))}


ROTATED = {
    "transform_config": {"config_groups": {"R4": {"apply": [{"location": "weight_output"}, {"location": "input"}]}}}
}
PRE_QUANT = fp4(8, 64, 16, MODELOPT_ENDS)[0] | {"pre_quant_scale": ("BF16", drawn_factors(64, dtype="BF16")[0])}
INT8 = {
    "weight": ("I8", np.ones((8, 32), np.int8)),
    "weight_scale": ("F32", np.ones((8, 1), np.float32)),
    "weight_zero_point": ("I8", np.full((8, 1), 3, np.int8)),
}


def with_nan():
    held, _ = fp8(8, 32, ())
    held["weight"][1][3, 5] = 0xFF
    return held


REFUSED = {
    "an element of FP8 that is NaN": (with_nan(), modelopt("FP8"), "'a.proj': rows 0 to 8 have an element that is NaN"),
    "a short last group": (
        short_group("g_idx"),
        GPTQ | {"group_size": 1024},
        "2 groups along k 1280, of 1024 elements",
    ),
    "its g_idx": (
        short_group(),
        GPTQ | {"group_size": 1024},
        "'a.proj.g_idx' does not count 2 groups of the same size",
    ),
    "an empty g_idx": (
        short_group() | {"g_idx": ("I32", np.zeros(0, np.int32))},
        GPTQ | {"group_size": 1024},
        "the last of 256; expected k a multiple of the group",
    ),
    "a zero point of 15": (
        with_zero_of_15(),
        GPTQ,
        "is 15 in qzeros; expected 0 to 14: ExLlama and vLLM take it for 16",
    ),
    "GPTQ of no version": (gptq(8, 256, 128)[0], None, "no configuration says of which version of GPTQ"),
    "GPTQ in Marlin's order": (
        gptq(8, 256, 128)[0],
        GPTQ | {"checkpoint_format": "marlin"},
        "checkpoint_format is 'mar",
    ),
    "int4 of no stated shape": (without(int4(8, 256, 128)[0], "weight_shape"), None, "'a.proj' has no weight_shape"),
    "factors of x beside NVFP4": (
        PRE_QUANT,
        modelopt("NVFP4_AWQ"),
        "'a.proj.pre_quant_scale' is BF16 of (64,), beside",
    ),
    "int8 with zero points": (
        INT8,
        compressed("int-quantized", num_bits=8),
        "'a.proj.weight_zero_point' is I8 of (8, 1), beside a weight of elements of 8 bits; expected nothing but bias",
    ),
    "a name that is written": (
        fp8(8, 32, ())[0] | {"scale": ("F32", np.ones(3, np.float32))},
        modelopt("FP8"),
        "'a.proj.scale' is F32 of (3,), beside a weight of elements of 8 bits",
    ),
    "rotated activations": (int4(8, 256, 128)[0], compressed() | ROTATED, "the location of a transform is 'input'"),
    "other blocks": (
        fp8(200, 300, (2, 3), "weight_scale_inv")[0],
        {"quant_method": "fp8", "weight_block_size": [120, 120]},
        "of blocks of (120, 120) by the configuration; expected 128 x 128",
    ),
    "no rows": (fp8(0, 32, ())[0], modelopt("FP8"), "a weight of 0 x 32 cannot be packed as fp8: expected a row"),
    "no columns": (
        fp8(32, 0, (32, 1))[0],
        modelopt("FP8"),
        "a weight of 32 x 0 cannot be packed as fp8: expected a row",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_another_meaning_or_several_is_refused_by_file_and_name(tmp_path, name):
    held, quantization, message = REFUSED[name]
    folder = write(tmp_path / "c", held, quantization)
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        pack_checkpoint(Request(folder, tmp_path / "o"), 1)
    assert str(caught.value).startswith(str(folder))
    assert [x.name for x in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(
    ("dtype", "end"), [("U8", "_weight_scale"), ("F8_E4M3", "_scale_inv")], ids=["Llama 4's NVFP4", "FP8 of experts"]
)
def test_stacks_of_experts_in_no_known_layout_are_refused_and_not_copied(tmp_path, dtype, end):
    stack = "moe.experts.gate_up_proj"
    more = [(stack, dtype, np.zeros((2, 16, 8), np.uint8)), (stack + end, "F32", np.ones((2, 1, 1), np.float32))]
    folder = write(tmp_path / "c", fp8(8, 32, ())[0], modelopt("FP8"), more)
    with pytest.raises(
        CheckpointError, match=rf"'{stack}' is {dtype} of \(2, 16, 8\), beside '{stack}{end}'; expected"
    ):
        pack_checkpoint(Request(folder, tmp_path / "o"), 1)
    pack_checkpoint(Request(folder, tmp_path / "o", skip=("moe.experts",)), 1)


@pytest.mark.parametrize(
    "said", [modelopt("MIXED_PRECISION"), compressed("mixed-precision", type="float")], ids=["ModelOpt", "compressed"]
)
def test_modules_of_one_checkpoint_may_have_formats_of_their_own(tmp_path, said):
    (held, values), (others, other_values) = fp8(32, 64, (32, 1)), fp4(24, 48, 16)
    folder = write(tmp_path / "c", held, said, [(f"b.up.{end}", *x) for end, x in others.items()])
    found = pack_checkpoint(Request(folder, tmp_path / "o", check_all=True), 1).folder
    assert {name: x.format for name, x in found.layers.items()} == {"a.proj": "fp8", "b.up": "nvfp4"}
    assert np.array_equal(values_of(tmp_path / "o"), values)
    assert np.array_equal(values_of(tmp_path / "o", "b.up"), other_values)
    in_rows = pack_checkpoint(Request(folder, tmp_path / "p", "nvfp4rows"), 1).folder.layers
    assert {name: x.format for name, x in in_rows.items()} == {"a.proj": "fp8", "b.up": "nvfp4rows"}


def test_zero_points_that_are_all_0_are_dropped_and_groups_in_order_may_be_stated_as_none(tmp_path):
    held = INT8 | {"weight_zero_point": ("I8", np.zeros((8, 1), np.int8))}
    folder = write(tmp_path / "c", held, compressed("int-quantized", num_bits=8))
    found = pack_checkpoint(Request(folder, tmp_path / "o"), 1).folder
    assert found.left == {"a.proj.weight_zero_point": "dropped: zero points that are all 0"}
    held, values = int4(8, 256, 128)
    held["weight_g_idx"] = ("I32", np.full(256, -1, np.int32))
    pack_checkpoint(Request(write(tmp_path / "d", held, compressed()), tmp_path / "p"), 1)
    assert np.array_equal(values_of(tmp_path / "p"), values)


def test_words_of_4_and_8_bits_in_one_checkpoint_are_told_by_their_shapes(tmp_path):
    both = compressed(group_size=128)
    both["config_groups"]["group_1"] = {"weights": {"num_bits": 8, "type": "int"}}
    held, values = int4(8, 256, 128)
    of_8_bits = held["weight_packed"], held["weight_scale"], ("I64", np.array([8, 128]))
    ends = ("weight_packed", "weight_scale", "weight_shape")
    more = [(f"b.{end}", *x) for end, x in zip(ends, of_8_bits, strict=True)]
    folder = write(tmp_path / "c", held, both, more)
    with pytest.raises(CheckpointError, match=re.escape("'b.weight_packed' is I32 of (8, 32), and weight_shape says")):
        pack_checkpoint(Request(folder, tmp_path / "o"), 1)
    pack_checkpoint(Request(folder, tmp_path / "o", skip=("b",)), 1)
    assert np.array_equal(values_of(tmp_path / "o"), values)


def test_a_matrix_beside_names_that_are_written_is_left_and_what_is_not_quantised_keeps_all(tmp_path):
    wide = ("BF16", drawn_factors(16, 128, dtype="BF16")[0])
    one = ("F32", np.ones(3, np.float32))
    folder = write(tmp_path / "c", {"weight": wide, "scale": one}, None, [("b.weight", *wide), ("b.q_scale", *one)])
    found = pack_checkpoint(Request(folder, tmp_path / "o", form="fp8"), 1).folder
    assert found.left == {"a.proj": "copied as it is: it has scale beside its weight, and so is no nn.Linear"}
    (shard,) = found.shards
    assert set(read_header(tmp_path / "o" / shard)) == {
        "a.proj.weight",
        "a.proj.scale",
        "b.qweight",
        "b.scale",
        "b.q_scale",
    }


@pytest.mark.parametrize("form", ["fp8", "int8", "fp8_block", "int4g128"])
@pytest.mark.parametrize("shape", [(0, 128), (128, 0)])
def test_a_matrix_without_elements_is_left(tmp_path, form, shape):
    wide = ("BF16", drawn_factors(16, 128, dtype="BF16")[0])
    folder = write(tmp_path / "c", {"weight": ("BF16", np.zeros(shape, np.uint16))}, None, [("b.weight", *wide)])
    found = pack_checkpoint(Request(folder, tmp_path / "o", form=form), 1).folder
    assert (list(found.layers), list(found.left)) == (["b"], ["a.proj"])
    assert read_folder(tmp_path / "o").layers == found.layers


def test_a_configuration_of_what_is_wide_again_is_not_heeded(tmp_path):
    """As of DeepSeek's weights that were converted to bfloat16, whose config.json was left as it was."""
    folder = write(tmp_path / "c", {"weight": ("BF16", drawn_factors(16, 128, dtype="BF16")[0])}, GPTQ)
    with pytest.raises(CheckpointError, match=r"its weights are of 16 bits, and none is quantised; .* give --format"):
        pack_checkpoint(Request(folder, tmp_path / "o"), 1)
    found = pack_checkpoint(Request(folder, tmp_path / "o", form="int4g128"), 1).folder
    assert (found.source, found.layers["a.proj"].format) == ("16 bits, rounded to int4g128", "int4g128")
