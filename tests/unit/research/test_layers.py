"""bench/layers.py without a GPU: its order of products and its table, with the wheel, graphs and clock replaced."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch

SMALL = {"one": (16, 16, 8, 24), "two": (8, 16, 8, 16)}


@pytest.fixture
def layers(monkeypatch):
    """Import research.bench.layers with a wheel of torch's products on the CPU, whose calls are noted as `calls`."""
    calls = []

    def linear(x, weight, out):
        calls.append(tuple(weight.shape))
        return torch.mm(x, weight.t(), out=out).add_(1.0 if len(weight) == wheel.wrong else 0.0)

    wheel = types.ModuleType("aot_gemm")
    wheel.linear, wheel.__version__, wheel.calls, wheel.wrong = linear, "1", calls, 0
    monkeypatch.setitem(sys.modules, "aot_gemm", wheel)
    monkeypatch.delitem(sys.modules, "research.bench.layers", raising=False)
    import research.bench.layers as module

    def capture(call, sets):
        call(*sets[0])
        return types.SimpleNamespace(replay=lambda: call(*sets[0])), 1

    drawn = {name: getattr(torch, name) for name in ("randn", "empty", "ones")}
    for name, make in drawn.items():
        monkeypatch.setattr(torch, name, lambda *sizes, device=None, _make=make, **options: _make(*sizes, **options))
    monkeypatch.setattr(module, "LAYERS", {name: module.Layer(*sizes) for name, sizes in SMALL.items()})
    monkeypatch.setattr(module, "capture", capture)
    monkeypatch.setattr(module, "interleave", lambda _: {"wheel": [10.0, 9.0, 8.0], "torch": [12.0, 11.0, 20.0]})
    monkeypatch.setattr(module, "clocks", lambda: "none")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(L2_cache_size=4096))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    yield module
    sys.modules.pop("research.bench.layers", None)


def test_a_layers_products_come_in_a_models_order(layers):
    row = layers.measure("one", 4, torch.bfloat16)
    order = [(16, 16), (8, 16), (8, 16), (16, 16), (24, 16), (24, 16), (16, 24)]
    assert sys.modules["aot_gemm"].calls[:7] == order
    assert (row["wheel_us"], row["torch_us"], row["speedup"], row["error"]) == (9.0, 12.0, 1.3333, 0.0)
    assert len(layers.operands(layers.LAYERS["one"], 4, torch.bfloat16)) == 4  # 3 x 4096 bytes of 3,968 each


def test_the_command_writes_json_and_joins_it(layers, monkeypatch, tmp_path, capsys):
    out = tmp_path / "new" / "x.json"
    monkeypatch.setattr(sys, "argv", ["layers", "--rows", "4", "8", "--layers", "one", "two", "--out", str(out)])
    assert layers.main() == 0
    assert len(json.loads(out.read_text())["rows"]) == 4
    first = capsys.readouterr().out
    assert "| layer | 4 | 8 |\n|---|--:|--:|\n| one | 1.333 | 1.333 |\n| two | 1.333 | 1.333 |" in first
    monkeypatch.setattr(sys, "argv", ["layers", "--table", str(out), str(out)])
    assert layers.main() == 0
    assert capsys.readouterr().out == first
    other = tmp_path / "other.json"
    other.write_text(json.dumps(json.loads(out.read_text()) | {"rows": []}))
    monkeypatch.setattr(sys, "argv", ["layers", "--table", str(out), str(other)])
    with pytest.raises(SystemExit):
        layers.main()
    assert "have not measured the same layers and m" in capsys.readouterr().err


def test_a_wrong_result_ends_with_1(layers, monkeypatch):
    sys.modules["aot_gemm"].wrong = 24
    monkeypatch.setattr(sys, "argv", ["layers", "--rows", "4", "--layers", "one"])
    assert layers.main() == 1


def test_without_a_gpu_it_says_so(layers, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["layers"])
    with pytest.raises(SystemExit):
        layers.main()
    assert "torch finds no GPU here" in capsys.readouterr().err
