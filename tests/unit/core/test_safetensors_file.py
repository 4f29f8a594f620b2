"""Files of tensors: what headers say, what is refused, and that nothing is read that is not asked for."""

import json
import re

import numpy as np
import pytest

from aot.core.errors import CheckpointError
from aot.core.safetensors_file import header_bytes, read_header


def written(path, header, content=b"", *, count=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if count is None else count).to_bytes(8, "little") + text + content)
    return path


def test_what_is_written_is_read(tmp_path):
    arrays = {
        "a": np.arange(6, dtype=np.uint16).reshape(2, 3),
        "b": np.array(7, np.uint8),
        "c": np.zeros((0, 4), np.uint32),
    }
    kinds = {"a": "BF16", "b": "F8_E4M3", "c": "F32"}
    head = header_bytes((name, kinds[name], x.shape) for name, x in arrays.items())
    (tmp_path / "x").write_bytes(head + b"".join(x.tobytes() for x in arrays.values()))
    found = read_header(tmp_path / "x")
    assert len(head) % 8 == 0
    assert list(found) == list(arrays)
    for name, x in arrays.items():
        assert (found[name].dtype, found[name].shape) == (kinds[name], x.shape)
        assert np.array_equal(found[name].bits(), x)


def entry(**values):
    return {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **values}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "the header is no JSON"),
        (b"\xff", "the header is no JSON"),
        (b"[" * 10000, "the header is no JSON"),
        ([1], "the header is [1]; expected an object"),
        (b'{"a":1,"a":2}', "a name stands twice"),
        ({"a": 1}, "the type of 'a' is None; expected one of BOOL"),
        ({"a": entry(dtype="F4")}, "the type of 'a' is 'F4'; expected one of"),
        ({"a": entry(dtype=["U8"])}, "the type of 'a' is ['U8']"),
        ({"a": entry(shape=[True])}, "the shape of 'a' is [True]; expected at most 16 whole numbers"),
        ({"a": entry(shape=[-4])}, "the shape of 'a' is [-4]"),
        (
            {"a": entry(shape=[2**62, 2**62])},
            "is U8 of (4611686018427387904, 4611686018427387904), a number of over 30",
        ),
        ({"a": entry(shape=[5])}, "'a' is U8 of (5,), 5 bytes, and lies in 4; expected as many"),
        ({"a": entry(data_offsets=[4, 0])}, "the place of 'a' is [4, 0]; expected two whole numbers in order"),
        ({"a": entry(data_offsets=[0.0, 4])}, "the place of 'a' is [0.0, 4]"),
        ({"a": entry(data_offsets=[1, 5])}, "'a' begins at byte 1; expected 0"),
        ({"a": entry(), "b": entry()}, "'b' begins at byte 0; expected 4"),
        ({"a": entry(), "b": entry(data_offsets=[4, 8])}, "132 bytes; expected 136, by its header; fetch the"),
        ({"": entry()}, "the name of '' is ''; expected 1 to 1000 characters"),
    ],
)
def test_damage_is_named(tmp_path, header, message):
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_header(written(tmp_path / "x", header, bytes(4)))


@pytest.mark.parametrize("content", [b"", b"1234567", (2**63).to_bytes(8, "little") + b"{}"])
def test_a_file_that_is_cut_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CheckpointError, match="bytes, of which the first 8 count a header of"):
        read_header(tmp_path / "x")
    with pytest.raises(CheckpointError, match="No such file"):
        read_header(tmp_path / "y")
