"""The list of a folder of packed weights: written, read, and refused."""

import hashlib
import json
import os
import re
from dataclasses import replace

import pytest

from aot.core.errors import CheckpointError
from aot.core.packed_folder import FILE, PackedFolder, PackedLayer, Shard, check_shard, read_folder, version_of

FOLDER = PackedFolder(
    1,
    "awq",
    {"a": PackedLayer("int4g128", (24, 256), "float16"), "b": PackedLayer("fp8_block", (130, 256))},
    {"c": "why"},
    {"model-1.safetensors": Shard("0" * 64, 5)},
)


CALIBRATED = replace(FOLDER, version=2, layers=FOLDER.layers | {"a": PackedLayer("nvfp4rows", (24, 256), None, 0.5)})


def changed(folder, *keys_and_value, of=FOLDER):
    *keys, value = keys_and_value
    document = json.loads(of.text())
    place = document
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (folder / FILE).write_text(json.dumps(document))


def test_what_is_written_is_read(tmp_path):
    (tmp_path / FILE).write_text(FOLDER.text())
    assert read_folder(tmp_path) == FOLDER
    assert FOLDER.layers["a"].tensors == (("qweight", "U8", (2, 2112)), ("scale", "F32", (0,)))
    assert FOLDER.layers["b"].tensors == (("qweight", "F8_E4M3", (130, 256)), ("scale", "F32", (2, 2)))
    assert PackedLayer("nvfp4", (24, 256)).tensors[1] == ("scale", "F32", (1,))
    assert PackedLayer("int8_weight_only", (24, 256)).tensors[1] == ("scale", "F32", (24,))
    stack = PackedLayer("fp8_block", (3, 130, 256))  # of experts
    assert stack.tensors == (("qweight", "F8_E4M3", (3, 130, 256)), ("scale", "F32", (3, 2, 2)))
    assert PackedLayer("fp8", (3, 24, 256)).tensors[1] == ("scale", "F32", (3, 24))
    assert "input_scale" not in FOLDER.text()  # which an earlier wheel does not know
    assert [version_of(x.layers.values()) for x in (FOLDER, CALIBRATED)] == [1, 2]
    (tmp_path / FILE).write_text(CALIBRATED.text())
    assert read_folder(tmp_path) == CALIBRATED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("version", 3), "version is 3; expected 1 or 2, which this version reads"),
        (("version", 2), "expected an object of format, shape, dtype, input_scale"),
        (("version", True), "version is True"),
        (("source", 1), "source is 1; expected a text"),
        (("more", 1), "the list is"),
        (("left", {"c": 1}), "left is {'c': 1}; expected reasons by names"),
        (("layers", []), "layers is []; expected an object"),
        (
            ("layers", "a", "format", "int3"),
            "the format of 'a' is 'int3'; expected one of fp8, int8, fp8_block, int4g32",
        ),
        (("layers", "a", "shape", [24, 0]), "the shape of 'a' is [24, 0]; expected [n, k], or [experts, n, k]"),
        (("layers", "a", "shape", [24, 100]), "k a multiple of 128"),
        (("layers", "a", "dtype", None), "the dtype of 'a' is None; expected bfloat16 or float16"),
        (("layers", "b", "dtype", "float16"), "the dtype of 'b' is 'float16'; expected null"),
        (("shards", {"../x.safetensors": {}}), "a file's name is '../x.safetensors'; expected a plain name"),
        (("shards", "model-1.safetensors", "sha256", "0"), "is '0'; expected 64 hexadecimal digits"),
        (("shards", "model-1.safetensors", "num_bytes", -1), "is -1; expected a whole number"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, change, message):
    changed(tmp_path, *change)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_folder(tmp_path)


@pytest.mark.parametrize("value", [0.0, -0.5, float("inf"), float("nan"), "0.5", 1])
def test_a_factor_of_inputs_that_is_none_is_refused(tmp_path, value):
    changed(tmp_path, "layers", "a", "input_scale", value, of=CALIBRATED)
    with pytest.raises(CheckpointError, match=r"the input_scale of 'a' is .*; expected a positive number"):
        read_folder(tmp_path)
    changed(tmp_path, "layers", "b", "input_scale", 0.5, of=CALIBRATED)
    with pytest.raises(CheckpointError, match="expected null, for no inputs are rounded to fp8_block"):
        read_folder(tmp_path)


def test_a_folder_without_a_list_is_none(tmp_path):
    with pytest.raises(CheckpointError, match="expected a folder that `aot pack` wrote; pack the checkpoint first"):
        read_folder(tmp_path)
    (tmp_path / FILE).write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="no JSON"):
        read_folder(tmp_path)


def test_a_file_is_compared_with_its_hash(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    check_shard(tmp_path / "x", Shard(hashlib.sha256(b"12345").hexdigest(), 5))
    with pytest.raises(CheckpointError, match=r"5 bytes of SHA-256 5994471a.*; expected 5 of 000"):
        check_shard(tmp_path / "x", Shard("0" * 64, 5))
    with pytest.raises(CheckpointError, match="No such file"):
        check_shard(tmp_path / "y", Shard("0" * 64, 5))


def test_a_pipe_is_no_list(tmp_path):
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(CheckpointError, match="it is no regular file; expected the list that `aot pack` writes"):
        read_folder(tmp_path)
