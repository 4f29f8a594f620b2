"""`aot pack`: every layout to the values that it stands for, what is left, resumed and refused."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest

from aot.checkpoint import packing, reading, shards
from aot.checkpoint.packing import Request, pack_checkpoint
from aot.core.element import ElementType
from aot.core.errors import CheckpointError, OutputError, ResourceError
from aot.core.numerics import decode, encode
from aot.core.packed_folder import FILE, read_folder
from aot.core.safetensors_file import read_header
from aot.core.weight_packing import unpack
from aot.core.weight_rounding import rounded
from aot.core.weight_values import weight_values
from tests import checkpoints

F16, BF16 = ElementType.FLOAT16, ElementType.BFLOAT16
N, K = 160, 256


def drawn(seed=0, n=N, k=K):
    return (np.random.default_rng(seed).standard_normal((n, k)) / 50).astype(np.float32)


def others():
    """Return tensors that no layout quantises."""
    return [("embed_tokens.weight", "F16", encode(F16, drawn(8))), ("a.proj.bias", "F16", encode(F16, drawn(9)[0, :N]))]


def written(folder, layout, *, element=F16, num_files=1, more=()):
    held, values = checkpoints.quantised(layout, drawn(), element)
    tensors = [*((f"a.proj.{end}", *rest) for end, *rest in held), *others(), *more]
    checkpoints.write_folder(folder, layout, tensors, num_files=num_files)
    return values


def packed(folder, output, jobs=1, **options):
    return pack_checkpoint(Request(folder, output, **options), jobs)


def tensors_of(output):
    found = {}
    for name in read_folder(output).shards:
        found |= read_header(output / name)
    return found


def values_of(output, name="a.proj"):
    """Return what a packed weight stands for, in float64."""
    layer, held = read_folder(output).layers[name], tensors_of(output)
    bits, scale = np.array(held[f"{name}.qweight"].bits()), held[f"{name}.scale"].bits().view(np.float32)
    if layer.form is not None:
        element = BF16 if layer.dtype == "bfloat16" else F16
        values = weight_values(layer.form, unpack(layer.form, bits, *layer.shape), element)
        return values * scale.astype(np.float64) if scale.size == 1 else values * (scale[:, None] if scale.size else 1)
    if layer.format == "fp8_block":
        scale = np.repeat(np.repeat(scale, 128, 0), 128, 1)[: layer.shape[0], : layer.shape[1]]
    return decode(ElementType.INT8 if layer.format == "int8" else ElementType.E4M3, bits) * scale


@pytest.mark.parametrize("layout", checkpoints.QUANTIZATION)
def test_each_layout_is_packed_to_the_values_that_it_stands_for(tmp_path, layout):
    values = written(tmp_path / "c", layout, num_files=2)
    found = packed(tmp_path / "c", tmp_path / "o", check_all=layout == "awq")
    assert found.folder.layers["a.proj"].format == checkpoints.FORMATS[layout]
    assert found.num_elements == N * K
    assert np.array_equal(values_of(tmp_path / "o"), values)
    held = tensors_of(tmp_path / "o")
    for name, _, bits in others():
        assert np.array_equal(held[name].bits(), bits)
    assert set(held) == {"a.proj.qweight", "a.proj.scale", "a.proj.bias", "embed_tokens.weight"}


@pytest.mark.parametrize("layout", ["modelopt_nvfp4", "nvfp4", "mxfp4", "wide"])
def test_weights_are_packed_in_rows_where_that_is_asked_for(tmp_path, monkeypatch, layout):
    """The factors of parts that are read apart stand behind all codes."""
    monkeypatch.setattr(reading, "CHUNK", 128 * K)
    if layout == "wide":
        checkpoints.write_folder(tmp_path / "c", None, [("a.proj.weight", "BF16", encode(BF16, drawn()))])
    else:
        values = written(tmp_path / "c", layout)
    form = "mxfp4rows" if layout == "mxfp4" else "nvfp4rows"
    found = packed(tmp_path / "c", tmp_path / "o", form=form, check_all=True)
    assert found.folder.layers["a.proj"].format == form
    if layout == "wide":
        packed(tmp_path / "c", tmp_path / "p", form="nvfp4")
        values = values_of(tmp_path / "p")
    assert np.array_equal(values_of(tmp_path / "o"), values)


@pytest.mark.parametrize(("layout", "form"), [("mxfp4", "nvfp4"), ("nvfp4", "mxfp4")])
def test_rows_of_another_format_are_refused(tmp_path, layout, form):
    written(tmp_path / "c", layout)
    text = rf"'a\.proj' is {layout}, and --format {form}rows is a layout of {form}, which no weight has; leave"
    with pytest.raises(CheckpointError, match=text):
        packed(tmp_path / "c", tmp_path / "o", form=f"{form}rows")


def test_the_folder_is_whole(tmp_path):
    written(tmp_path / "c", "awq")
    (tmp_path / "c" / "tokenizer.json").write_text("{}")
    (tmp_path / "c" / "model.py").write_text("raise SystemExit")
    packed(tmp_path / "c", tmp_path / "o")
    names = {x.name for x in (tmp_path / "o").iterdir()}
    shard = "packed-00001-of-00001.safetensors"
    assert names == {shard, "config.json", "tokenizer.json", FILE}
    config = json.loads((tmp_path / "o" / "config.json").read_text())
    said = {"quant_method": "aot", "version": 1, "format": "int4g128z"}
    assert config == {"model_type": "llama", "quantization_config": said}
    assert sorted(x.name for x in tmp_path.iterdir()) == ["c", "o"]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_how_many_processes_there_are_changes_no_byte(tmp_path, monkeypatch, jobs):
    monkeypatch.setattr(shards, "MAX_BYTES", 30_000)
    monkeypatch.setattr(reading, "CHUNK", 128 * K)
    written(tmp_path / "c", "gptq")
    found = packed(tmp_path / "c", tmp_path / "o", jobs)
    assert len(found.folder.shards) == 3
    digests = sorted(x.sha256 for x in found.folder.shards.values())
    written(tmp_path / "d", "gptq")
    assert sorted(x.sha256 for x in packed(tmp_path / "d", tmp_path / "p", 1).folder.shards.values()) == digests


def test_one_file_is_a_checkpoint(tmp_path):
    values = written(tmp_path / "c", "compressed")
    found = packed(tmp_path / "c" / "model.safetensors", tmp_path / "o")
    assert found.folder.source == "compressed-tensors pack-quantized"
    assert np.array_equal(values_of(tmp_path / "o"), values)
    assert not (tmp_path / "o" / "config.json").exists()
    (tmp_path / "c" / "config.json").unlink()
    assert packed(tmp_path / "c" / "model.safetensors", tmp_path / "p").folder.source == "compressed-tensors int4"


@pytest.mark.parametrize("form", ["int4g128", "nvfp4", "mxfp4", "int8", "fp8", "fp8_block", "int8_weight_only"])
def test_weights_of_16_bits_are_rounded(tmp_path, form, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK", 128 * K)  # so that a weight has two parts
    wide = [("a.proj.weight", "BF16", encode(BF16, drawn()))]
    checkpoints.write_folder(tmp_path / "c", "none", [*wide, *others()])
    found = packed(tmp_path / "c", tmp_path / "o", form=form)
    assert found.folder.layers["a.proj"].format == form
    assert found.folder.left == {"embed_tokens": "an embedding, a head or a router by its name: copied as it is"}
    held, exact = values_of(tmp_path / "o"), decode(BF16, wide[0][2])
    limit = {"int4g128": 0.13, "nvfp4": 0.11, "mxfp4": 0.13}.get(form, 0.03)
    assert 0 < np.sqrt(((held - exact) ** 2).mean() / (exact**2).mean()) < limit
    packing_format = found.folder.layers["a.proj"].form
    if packing_format is not None:
        whole = rounded(packing_format, exact.astype(np.float32), BF16)
        scale = 1 if whole.scale is None else whole.scale.astype(np.float64).reshape(-1, 1)
        assert np.array_equal(held, weight_values(packing_format, whole.parts, BF16) * scale)


def test_factors_get_the_type_that_is_asked_for(tmp_path):
    written(tmp_path / "c", "compressed")
    found = packed(tmp_path / "c", tmp_path / "o", dtype="bfloat16")
    assert found.folder.layers["a.proj"].dtype == "bfloat16"
    _, values = checkpoints.quantised("compressed", drawn())
    assert np.abs(values_of(tmp_path / "o") / np.where(values == 0, 1, values) - (values != 0)).max() <= 2**-8


def test_larger_groups_are_several_of_128(tmp_path):
    held, _ = checkpoints.quantised("compressed", drawn())
    tensors = {f"a.proj.{end}": [dtype, x] for end, dtype, x in held}
    tensors["a.proj.weight_scale"][1] = tensors["a.proj.weight_scale"][1][:, :1]
    checkpoints.write_folder(tmp_path / "c", "compressed", [(name, *x) for name, x in tensors.items()])
    packed(tmp_path / "c", tmp_path / "o")
    codes = unpack(
        read_folder(tmp_path / "o").layers["a.proj"].form,
        np.array(tensors_of(tmp_path / "o")["a.proj.qweight"].bits()),
        N,
        K,
    )
    assert np.array_equal(codes.factors[:, 0], codes.factors[:, 1])
    assert np.array_equal(codes.factors[:, :1], tensors["a.proj.weight_scale"][1])


def test_what_is_skipped_is_copied(tmp_path):
    more = [(f"b.{end}", *rest) for end, *rest in checkpoints.quantised("awq", drawn(5))[0]]
    written(tmp_path / "c", "awq", more=more)
    packed(tmp_path / "c", tmp_path / "o", skip=("b",))
    assert {x for x in tensors_of(tmp_path / "o") if x.startswith("b.")} == {"b.qweight", "b.qzeros", "b.scales"}


# Refused.


def refuse(folder, message, error=CheckpointError, **options):
    output = folder.parent / "o"
    with pytest.raises(error, match=re.escape(message)):
        packed(folder, output, **options)
    assert sorted(x.name for x in folder.parent.iterdir() if x.name != folder.name) == []


def configure(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", **values}
    (folder / "config.json").write_text(json.dumps(config))


def test_unknown_methods_are_refused(tmp_path):
    folder = tmp_path / "c"
    written(folder, "awq")
    for values, message in (
        ({"version": "gemv"}, "'a.proj': AWQ of version 'gemv'; expected gemm"),
        ({"bits": 8}, "'a.proj': codes of 8 bits; expected 4"),
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'; expected one of gptq, awq"),
        ({"quant_method": "compressed-tensors"}, "format is None; expected one of pack-quantized"),
        ({"quant_method": "modelopt"}, "quant_algo is None; expected one of FP8, NVFP4"),
    ):
        configure(folder, **values)
        refuse(folder, message)


def test_groups_in_another_order_are_refused(tmp_path):
    held, _ = checkpoints.quantised("gptq", drawn())
    order = np.random.default_rng(0).permutation(np.arange(K) // 128).astype(np.int32)
    tensors = [(f"a.proj.{end}", *(("I32", order) if end == "g_idx" else rest)) for end, *rest in held]
    checkpoints.write_folder(tmp_path / "c", "gptq", tensors)
    refuse(tmp_path / "c", "quantised in another order (desc_act)")


@pytest.mark.parametrize(
    ("layout", "end", "change", "message"),
    [
        ("awq", "qzeros", None, "'a.proj' has no qzeros; it has 'bias, qweight, scales'"),
        ("awq", "scales", lambda x: x[:, :-8], "'a.proj.qweight' is I32 of (256, 20); expected (256, 19)"),
        ("gptq", "qzeros", lambda x: x[:-1], "'a.proj.qzeros' is I32 of (1, 20); expected (2, 20)"),
        ("gptq", "g_idx", lambda x: x[:-1], "'a.proj.g_idx' is I32 of (255,); expected (256,) or (0,)"),
        ("compressed", "weight_shape", lambda x: x + 1, "weight_shape says [161, 257]; expected [160, 256]"),
        ("compressed", "weight_scale", lambda x: x | 0x7C00, "a factor is not finite in float16"),
        ("nvfp4", "weight_global_scale", None, "'a.proj' has no weight_global_scale"),
        ("nvfp4", "weight_global_scale", lambda x: x * 0, "'a.proj': a factor is not finite"),
        ("nvfp4", "weight_scale", lambda x: x | 0x7F, "'a.proj': a factor of nvfp4 is negative or NaN"),
        ("mxfp4", "weight_scale", lambda x: x | 0xFF, "'a.proj': a factor of mxfp4 is NaN"),
        ("fp8", "weight_scale", lambda x: x[1:], "'a.proj.weight_scale' is F32 of (159, 1); expected () or (1,)"),
        ("fp8", "weight_scale", lambda x: x * np.nan, "'a.proj': a factor is not finite"),
        ("fp8", "weight_scale", None, "'a.proj' has no weight_scale or weight_scale_inv"),
    ],
)
def test_tensors_that_do_not_go_together_are_named(tmp_path, layout, end, change, message):
    held, _ = checkpoints.quantised(layout, drawn())
    tensors = [
        (f"a.proj.{name}", dtype, change(x) if name == end else x) for name, dtype, x in held if change or name != end
    ]
    checkpoints.write_folder(tmp_path / "c", layout, [*tensors, others()[1]])
    output = tmp_path / "o"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        packed(tmp_path / "c", output)
    assert not output.exists()


def test_files_that_an_index_names_elsewhere_are_not_opened(tmp_path):
    folder = tmp_path / "c"
    written(folder, "awq", num_files=2)
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    for name in ("../x.safetensors", "/etc/passwd", ".x.safetensors", "a\\b.safetensors", "model.bin", 7):
        index.write_text(json.dumps({"weight_map": places | {"a.proj.scales": name}}))
        refuse(folder, f"'a.proj.scales' is said to be in {name!r}; expected the plain name of a file .safetensors")
    index.write_text(json.dumps({"weight_map": places | {"more": "model-0.safetensors"}}))
    refuse(folder, "there is no tensor 'more', as model.safetensors.index.json says")
    index.write_text(json.dumps({"weight_map": places | {"more": "model-9.safetensors"}}))
    refuse(folder, "No such file")
    index.write_text("[]")
    refuse(folder, "[]; expected an object")


def test_pickles_are_not_read(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "pytorch_model.bin").write_bytes(b"x")
    refuse(tmp_path / "c", "it has 'pytorch_model.bin', which can execute code and is not read")
    with pytest.raises(CheckpointError, match="there is no such folder or file"):
        packed(tmp_path / "d", tmp_path / "o")


def test_weights_of_16_bits_need_a_format_and_others_take_none(tmp_path):
    checkpoints.write_folder(tmp_path / "c", "none", others())
    refuse(
        tmp_path / "c", "none is quantised; expected a quantised checkpoint, or the format to round to: give --format"
    )
    refuse(tmp_path / "c", "no weight of it can be packed (an embedding, a head or a router by its name", form="nvfp4")
    written(tmp_path / "d", "awq")
    with pytest.raises(CheckpointError, match=re.escape("it is quantised already (awq), and --format nvfp4 rounds")):
        packed(tmp_path / "d", tmp_path / "o", form="nvfp4")
    bad = encode(BF16, drawn())
    bad[3, 5] = 0x7FC0
    checkpoints.write_folder(tmp_path / "e", "none", [("a.proj.weight", "BF16", bad)])
    with pytest.raises(CheckpointError, match="rows 0 to 160 have a number that is not finite"):
        packed(tmp_path / "e", tmp_path / "o", form="int4g128")


def test_a_folder_that_is_there_is_not_written(tmp_path):
    written(tmp_path / "c", "awq")
    (tmp_path / "o").mkdir()
    packed(tmp_path / "c", tmp_path / "o")  # an empty one is taken
    with pytest.raises(OutputError, match="o is there already; expected a new folder"):
        packed(tmp_path / "c", tmp_path / "o")


# Resumed.


def test_what_was_finished_is_kept_and_nothing_half_written_has_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MAX_BYTES", 30_000)
    written(tmp_path / "c", "gptq")
    copied = shards._copied

    def fail(tensor):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(shards, "_copied", fail)
    with pytest.raises(ResourceError, match="No space left on device; what is whole is kept; free disk, and run again"):
        packed(tmp_path / "c", tmp_path / "o")
    staging = tmp_path / ".o.packing"
    assert not (tmp_path / "o").exists()
    assert sorted(x.name for x in staging.glob("packed*")) == [
        "packed-00001-of-00003.safetensors",
        "packed-00001-of-00003.safetensors.done.json",
    ]
    monkeypatch.setattr(shards, "_copied", copied)
    (staging / "packed-00002-of-00003.safetensors.partial").write_bytes(b"x")
    found = packed(tmp_path / "c", tmp_path / "o")
    assert (found.num_kept, staging.exists()) == (1, False)
    assert np.array_equal(values_of(tmp_path / "o"), checkpoints.quantised("gptq", drawn())[1])


@pytest.mark.parametrize("target", ["nowhere", "empty"])
def test_a_link_is_no_new_folder(tmp_path, target):
    written(tmp_path / "c", "awq")
    (tmp_path / "empty").mkdir()
    (tmp_path / "o").symlink_to(target)
    with pytest.raises(OutputError, match="o is there already; expected a new folder"):
        packed(tmp_path / "c", tmp_path / "o")


def test_what_another_run_left_is_removed(tmp_path, monkeypatch):
    written(tmp_path / "c", "gptq")
    staging = tmp_path / ".o.packing"
    staging.mkdir()
    (staging / "plan.json").write_text("other")
    (staging / "packed-00001-of-00001.safetensors").write_bytes(b"x")
    assert packed(tmp_path / "c", tmp_path / "o").num_kept == 0
    assert np.array_equal(values_of(tmp_path / "o"), checkpoints.quantised("gptq", drawn())[1])


def test_two_at_once_and_a_full_disk_are_refused(tmp_path, monkeypatch):
    written(tmp_path / "c", "awq")
    with packing._staging(tmp_path / "o"), pytest.raises(OutputError, match="another `aot pack` writes it"):
        packed(tmp_path / "c", tmp_path / "o")
    monkeypatch.setattr(packing, "_SPARE_BYTES", 2**62)
    refuse(tmp_path / "c", "bytes of disk are free; expected", ResourceError)


@pytest.mark.parametrize("pattern", ["c", "B", "b.weight", "[", "b\n"])
def test_a_pattern_that_names_nothing_is_refused(tmp_path, pattern):
    written(tmp_path / "c", "nvfp4")
    with pytest.raises(CheckpointError, match=r"--skip .* is the name of none of its 2 modules; .* 'a\.proj, "):
        packed(tmp_path / "c", tmp_path / "o", skip=(pattern,))
    assert not (tmp_path / "o").exists()


def test_where_all_is_skipped_that_is_said(tmp_path):
    written(tmp_path / "c", "nvfp4")
    with pytest.raises(CheckpointError, match=r"nothing is left to pack beside what --skip names \('\*'\)"):
        packed(tmp_path / "c", tmp_path / "o", skip=("*",))


def test_what_is_packed_already_is_told_from_what_is_not_known(tmp_path):
    written(tmp_path / "c", "nvfp4")
    packed(tmp_path / "c", tmp_path / "o")
    with pytest.raises(CheckpointError, match=r"it is packed already; .* load this one by load_quantized"):
        packed(tmp_path / "o", tmp_path / "p")


def test_a_file_of_another_kind_is_no_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"it is no file \.safetensors; expected a folder with config\.json"):
        packed(tmp_path / "config.json", tmp_path / "o")


def test_a_pipe_is_no_file_of_tensors(tmp_path):
    written(tmp_path / "c", "awq", num_files=2)
    (tmp_path / "c" / "model-1.safetensors").unlink()
    os.mkfifo(tmp_path / "c" / "model-1.safetensors")
    refuse(tmp_path / "c", "model-1.safetensors: it is no regular file; expected a file of safetensors")


def test_what_links_lead_to_outside_is_not_copied(tmp_path):
    """The cache of Hugging Face has links to `blobs`, two folders above; any other place is not the checkpoint's."""
    folder, blobs = tmp_path / "snapshots" / "c", tmp_path / "blobs"
    blobs.mkdir()
    written(folder, "awq")
    (folder / "model.safetensors").rename(blobs / "1")
    (folder / "model.safetensors").symlink_to("../../blobs/1")
    for name, place in (("tokenizer.json", blobs / "2"), ("secret.txt", tmp_path / "secret")):
        place.write_text("{}")
        (folder / name).symlink_to(place)
    (folder / "gone.json").symlink_to("nowhere")
    packed(folder, tmp_path / "o")
    names = {x.name for x in (tmp_path / "o").iterdir()}
    assert names == {"packed-00001-of-00001.safetensors", "config.json", "tokenizer.json", FILE}


def test_whatever_lies_where_files_are_written_first(tmp_path):
    written(tmp_path / "c", "awq")
    staging = tmp_path / ".o.packing"
    (staging / "folder" / "in it").mkdir(parents=True)
    packed(tmp_path / "c", tmp_path / "o")
    assert sorted(x.name for x in tmp_path.iterdir()) == ["c", "o"]
    (tmp_path / ".p.packing").write_text("a file")
    with pytest.raises(OutputError, match=r"\.p\.packing: File exists; expected a folder that can be written"):
        packed(tmp_path / "c", tmp_path / "p")
