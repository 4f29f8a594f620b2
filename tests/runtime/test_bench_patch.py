"""bench/patch.py without a GPU: its road from the command line to what it writes, with graphs and clocks replaced."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture
def bench(module, every_package, calls, monkeypatch):
    """Give research.bench.patch over a package whose products torch computes, and a small stack on the CPU."""
    own = ("research.bench.patch", "research.bench.stack", "research.bench.model", "research.bench.fp8")
    monkeypatch.setitem(sys.modules, "aot_gemm", every_package)
    monkeypatch.setitem(sys.modules, "aot_gemm.torch", module)
    for name in own:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import research.bench.patch as bench

    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}
    monkeypatch.setattr(bench, "Shape", partial(bench.Shape, **sizes, intermediate_size=256))
    for name in ("make_stack", "make_row"):
        made = getattr(bench, name)
        monkeypatch.setattr(bench, name, lambda *given, made=made: made(*given[:-1], "cpu"))
    monkeypatch.setattr(bench, "capture_passes", lambda passes, m: passes())
    monkeypatch.setattr(bench, "interleave", lambda graphs: {key: [float(i + 1)] for i, key in enumerate(graphs)})
    monkeypatch.setattr(bench, "clocks", dict)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    yield bench
    for name in own:
        sys.modules.pop(name, None)


def run(bench, monkeypatch, tmp_path, *options):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["patch.py", "--out", str(out), "--no-models", "--cache", "16", *options])
    code = bench.main()
    return code, json.loads(out.read_text())


def test_fp8_weights_are_timed_beside_torchs(bench, monkeypatch, tmp_path, capsys):
    code, found = run(bench, monkeypatch, tmp_path, "--fp8", "--rows", "prefill-64")
    (row,) = found["rows"]
    assert (code, row["failures"], found["weights"]) == (0, [], "fp8")
    assert {key for key in row if key.endswith("_us")} == {f"{x}_us" for x in bench.FP8.names}
    assert row["patch_compiled_over_compiled"] == 0.75  # the third of the four times over the fourth
    assert 0.01 < row["patch_error"] <= bench.FP8_SLACK * row["stock_error"]
    assert "weights are fp8 by rows" in found["report"]
    assert capsys.readouterr().out.startswith("prefill-64: stock 1 us, patch 2 us, compiled 3 us, patch_compiled 4 us;")


def test_an_error_past_torchs_is_a_failure(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "relative_error", lambda result, expected: next(errors))
    errors = iter((0.1, 0.112, 0.2, 0.109))
    code, found = run(bench, monkeypatch, tmp_path, "--fp8", "--rows", "decode-2")
    assert code == 1
    assert found["rows"][0]["failures"] == ["patch: error 0.112; expected at most 0.11"]


def test_bf16_weights_are_timed_with_and_without_the_promise(bench, monkeypatch, tmp_path):
    code, found = run(bench, monkeypatch, tmp_path, "--rows", "decode-2")
    (row,) = found["rows"]
    assert (code, row["failures"], found["weights"]) == (0, [], "bf16")
    assert set(bench.BF16.ratios) < set(row)
    assert row["patch_error"] < 0.02
    assert "nobody may write them" not in found["report"]
