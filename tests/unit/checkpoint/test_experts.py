"""`aot pack` of a mixture's experts: stacks, as GPT-OSS has them, and Linears of one format."""

from __future__ import annotations

import numpy as np
import pytest

from aot.checkpoint import reading
from aot.core.numerics import encode
from aot.core.packed_folder import read_folder
from aot.core.weight_packing import unpack
from aot.core.weight_values import weight_values
from tests import checkpoints
from tests.unit.checkpoint.test_packing import BF16, K, N, drawn, others, packed, refuse, tensors_of


@pytest.mark.parametrize(("jobs", "form"), [(1, None), (2, None), (1, "mxfp4rows")])
def test_experts_in_one_tensor_are_packed_as_a_stack(tmp_path, monkeypatch, jobs, form):
    monkeypatch.setattr(reading, "CHUNK", 128 * K)
    held, values = checkpoints.gpt_oss(np.stack([drawn(i) for i in range(3)]))
    bias = encode(BF16, drawn(9)[:3, :N])
    tensors = [*((f"m.experts.up_{end}", *rest) for end, *rest in held), ("m.experts.up_bias", "BF16", bias)]
    checkpoints.write_folder(tmp_path / "c", "gpt_oss", [*tensors, *others()])
    found = packed(tmp_path / "c", tmp_path / "o", jobs, form=form, check_all=True)
    (name, layer), *_ = found.folder.layers.items()
    assert (name, layer.shape, found.num_elements) == ("m.experts.up", (3, N, K), 3 * N * K)
    assert layer.format == (form or "mxfp4")
    stored, bits = tensors_of(tmp_path / "o"), np.array(tensors_of(tmp_path / "o")["m.experts.up.qweight"].bits())
    for i in range(3):
        assert np.array_equal(weight_values(layer.form, unpack(layer.form, bits[i], N, K), BF16), values[i])
    assert stored["m.experts.up.scale"].shape == (0,)
    assert np.array_equal(stored["m.experts.up_bias"].bits(), bias)
    assert read_folder(tmp_path / "o").layers == found.folder.layers


def test_experts_that_do_not_go_together_are_refused_and_others_left(tmp_path):
    blocks = np.zeros((2, 32, 4, 16), np.uint8)
    names = [("m.experts.up_blocks", "U8", blocks), ("m.experts.up_scales", "U8", blocks[:, :, :2, 0])]
    checkpoints.write_folder(tmp_path / "c", "none", names)
    refuse(tmp_path / "c", "expected U8 of (experts, n, k / 32, 16), and of the first three")
    checkpoints.write_folder(tmp_path / "c", "none", names[:1])
    refuse(tmp_path / "c", "and there is no 'm.experts.up_scales'; fetch the checkpoint again")
    wide = [("m.experts.up", "BF16", np.zeros((2, 32, 32), np.uint16)), ("a.weight", "BF16", encode(BF16, drawn()))]
    checkpoints.write_folder(tmp_path / "c", "none", wide)
    left = packed(tmp_path / "c", tmp_path / "o", form="mxfp4").folder.left
    assert left["m.experts.up"].startswith("experts of 16 bits in one tensor: copied as it is")


def test_experts_of_one_mixture_get_one_format(tmp_path):
    """Where one of them has zero points other than 8, all have zero points, so that they can be one stack."""
    plain, _ = checkpoints.quantised("compressed", drawn())
    others = [("weight_zero_point", "I32", checkpoints.words(np.full((K // 128, N), 7, np.uint8)).T)]
    tensors = [(f"m.experts.{i}.up.{end}", *rest) for i in range(2) for end, *rest in plain + others * i]
    checkpoints.write_folder(tmp_path / "c", "compressed", [*tensors, *((f"b.{x}", *rest) for x, *rest in plain)])
    layers = packed(tmp_path / "c", tmp_path / "o").folder.layers
    assert {name: x.format for name, x in layers.items()} == {
        "m.experts.0.up": "int4g128z",
        "m.experts.1.up": "int4g128z",
        "b": "int4g128",
    }


def linears_of_gpt_oss(layout, prefix):
    """Give the tensors of two experts as Linears with biases, what their stacks stand for, and the stacks' biases."""
    tensors, values, biases = [], {}, {}
    for part, end in enumerate(("gate_proj", "up_proj", "down_proj")):
        for i in range(2):
            held, values[i, end] = checkpoints.quantised(layout, drawn(2 * part + i), BF16)
            bias = encode(BF16, drawn(20 + 2 * part + i)[:, 0])
            biases[i, end] = bias
            name = f"{prefix}.{i}.{end}"
            tensors += [*((f"{name}.{x}", *rest) for x, *rest in held), (f"{name}.bias", "BF16", bias)]
    for found in (values, biases):
        gate, up = (np.stack([found[i, f"{x}_proj"] for i in range(2)]) for x in ("gate", "up"))
        found["gate_up_proj"] = np.stack((gate, up), 2).reshape(2, 2 * N, *gate.shape[2:])
        found["down_proj"] = np.stack([found[i, "down_proj"] for i in range(2)])
    return tensors, values, biases


@pytest.mark.parametrize(
    ("layout", "prefix"),
    [
        ("compressed", "m.experts"),
        ("mxfp4", "m.experts.experts"),
        ("nvfp4", "m.experts"),
        ("modelopt_fp8", "m.experts"),
    ],
)
def test_linears_of_gpt_oss_become_its_stacks_again(tmp_path, monkeypatch, layout, prefix):
    monkeypatch.setattr(reading, "CHUNK", 128 * K)
    tensors, values, biases = linears_of_gpt_oss(layout, prefix)
    checkpoints.write_folder(tmp_path / "c", layout, tensors, config={"model_type": "gpt_oss"})
    found = packed(tmp_path / "c", tmp_path / "o", check_all=True)
    stored = tensors_of(tmp_path / "o")
    assert sorted(found.folder.layers) == ["m.experts.down_proj", "m.experts.gate_up_proj"]
    for name in ("gate_up_proj", "down_proj"):
        layer, bits = found.folder.layers[f"m.experts.{name}"], np.array(stored[f"m.experts.{name}.qweight"].bits())
        scale = np.array(stored[f"m.experts.{name}.scale"].bits()).view(np.float32)
        assert layer.shape == (2, *values[name].shape[1:])
        for i in range(2):
            own = scale[i].reshape(-1, 1) if scale.size else 1
            if layer.form is None:
                held = checkpoints.weight_values_of_bytes(bits[i])
            else:
                held = weight_values(layer.form, unpack(layer.form, bits[i], *layer.matrix), BF16)
            assert np.array_equal(held * own, values[name][i])
        assert np.array_equal(stored[f"m.experts.{name}_bias"].bits(), biases[name])
    assert set(stored) == {
        f"m.experts.{x}{y}" for x in values if isinstance(x, str) for y in (".qweight", ".scale", "_bias")
    }
    assert read_folder(tmp_path / "o") == found.folder


def test_linears_of_gpt_oss_that_do_not_go_together_are_left_or_refused(tmp_path):
    tensors, *_ = linears_of_gpt_oss("mxfp4", "m.experts")
    checkpoints.write_folder(tmp_path / "c", "mxfp4", tensors, config={"model_type": "gpt_oss"})
    left = packed(tmp_path / "c", tmp_path / "o", skip=("m.experts.1.up_proj",)).folder.layers
    assert (len(left), "m.experts.0.gate_proj" in left) == (5, True)
    far = [(name.replace("experts.1.", f"experts.{10**15}."), *rest) for name, *rest in tensors]
    checkpoints.write_folder(tmp_path / "far", "mxfp4", far, config={"model_type": "gpt_oss"})
    assert len(packed(tmp_path / "far", tmp_path / "p").folder.layers) == 6  # without a table of so many experts
    (tmp_path / "d").mkdir()
    checkpoints.write_folder(tmp_path / "d" / "c", "mxfp4", tensors[:-1], config={"model_type": "gpt_oss"})
    refuse(
        tmp_path / "d" / "c", "and not each Linear of its mixture has such a bias; expected one of one size and type"
    )


@pytest.mark.parametrize("layout", ["nvfp4", "modelopt_nvfp4"])
def test_factors_of_inputs_are_kept_where_products_may_round_inputs(tmp_path, layout):
    """Of compressed-tensors they divide; one that is 0, of no calibration, is none."""
    held, _ = checkpoints.quantised(layout, drawn())
    end = next(x for x, *_ in held if x.startswith("input"))
    tensors = []
    for i, given in enumerate((0.25, 0.0)):
        each = [x if x[0] != end else (end, "F32", np.full_like(x[2], given)) for x in held]
        tensors += [(f"m.experts.{i}.up.{x}", *rest) for x, *rest in each]
    checkpoints.write_folder(tmp_path / "c", layout, tensors)
    plain = packed(tmp_path / "c", tmp_path / "plain").folder
    assert (plain.version, {x.input_scale for x in plain.layers.values()}) == (1, {None})
    assert all("dropped: a factor of activations" in plain.left[f"m.experts.{i}.up.{end}"] for i in range(2))
    found = packed(tmp_path / "c", tmp_path / "rows", form="nvfp4rows").folder
    first = 4.0 if layout == "nvfp4" else 0.25
    assert [x.input_scale for x in found.layers.values()] == [first, None]
    assert (found.version, list(found.left)) == (2, [f"m.experts.1.up.{end}"])
    assert read_folder(tmp_path / "rows") == found
