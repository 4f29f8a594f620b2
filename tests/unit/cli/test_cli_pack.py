"""The command `aot pack`."""

from __future__ import annotations

import json

import pytest

from aot.cli import pack
from aot.core.errors import CheckpointError
from aot.core.packed_folder import read_folder
from tests.unit.checkpoint.test_packing import written
from tests.unit.invoked import aot, succeed


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_was_packed_is_told(workplace):
    written(workplace / "Llama", "nvfp4")
    text = succeed("pack", "Llama", "--jobs", "1")
    lines = text.splitlines()
    assert lines[0] == "Llama-packed: compressed-tensors nvfp4-pack-quantized; packed 1 as nvfp4"
    assert lines[1].startswith("40,960 weights in ")
    assert lines[2] == "1 left: dropped: a factor of activations, which these products round by themselves"
    assert lines[3] == 'next: aot_gemm.torch.load_quantized(config, "Llama-packed") in Python'
    assert read_folder(workplace / "Llama-packed").layers["a.proj"].format == "nvfp4"


def test_facts_are_json(workplace):
    written(workplace / "c", "awq")
    found = json.loads(succeed("pack", "c", "-o", "o", "--dtype", "bfloat16", "--check", "--jobs", "1", "--json"))
    assert (found["source"], found["formats"], found["num_elements"]) == ("awq", {"int4g128z": 1}, 40960)
    assert (found["num_files"], found["num_kept"], found["left"]) == (1, 0, {})
    assert found["bytes_after"] == sum(x.stat().st_size for x in (workplace / "o").glob("*.safetensors"))


def test_progress_is_asked_of_the_disk(workplace, monkeypatch, capsys):
    monkeypatch.setattr(pack, "LOG_S", 0.01)
    monkeypatch.setattr(pack.tqdm, "__init__", lambda self, **values: bars.append((self, values)))
    monkeypatch.setattr(pack.tqdm, "update", lambda self, count: counts.append(count))
    monkeypatch.setattr(pack.tqdm, "close", lambda self: None)
    monkeypatch.setattr(pack.tqdm, "n", 0, raising=False)
    bars, counts = [], []
    written(workplace / "c", "awq")
    succeed("pack", "c", "-o", "o", "--jobs", "1")
    (_, values) = bars[0]
    assert values["total"] == max(counts) == sum(x.stat().st_size for x in (workplace / "o").glob("*.safetensors"))


def test_errors_have_their_code_and_leave_nothing(workplace):
    done = aot("pack", "none")
    assert done.exit_code == CheckpointError.exit_code
    assert "none: there is no such folder or file; expected a checkpoint" in done.stderr
    written(workplace / "c", "awq")
    done = aot("pack", "c", "--format", "int3")
    assert done.exit_code == 2
    assert sorted(x.name for x in workplace.iterdir()) == ["c"]
