"""research/bench/captured.py without a GPU: its losses and rules, and its run with wheel, graphs and clock replaced."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch

from aot.core.captured import read_captured
from research.bench.captured_summary import LEAST, joined, loss, losses, lost, main, summary

RUN = {"device": "a device", "torch": "2", "wheel": "1", "date": "2026-11-28", "dtype": "bfloat16", "failures": []}


def row(m, n, k, *times):
    names = ("wheel_us", "torch_us", "neighbours_us", "wheel_layer_us", "torch_layer_us")
    return {"m": m, "n": n, "k": k, **dict(zip(names, times, strict=True))}


def test_a_loss_is_what_the_wheel_is_less_ahead_in_a_layer():
    assert loss(row(1, 64, 64, 10.0, 12.0, 4.0, 15.0, 16.0)) == pytest.approx(0.1)
    assert loss(row(1, 64, 64, 10.0, 12.0, 4.0, 13.0, 16.0)) == pytest.approx(-0.1)


def test_a_cell_of_few_products_has_the_loss_of_all_of_so_many_rows():
    small = [row(1, 64, 64 + i, 10.0, 10.0, 4.0, 10.0 + i, 10.0) for i in range(LEAST)]
    large = [row(1, 8192, 8192, 10.0, 10.0, 4.0, 20.0, 10.0)]
    found = losses(small + large)
    assert found[0] == [0.1, 0.15, 0.15, 0.15]
    assert found[1] == [0.0] * 4


def test_a_rule_costs_what_its_layers_take_over_the_better_ones():
    rows = [row(1, 64, 64, 10.0, 12.0, 4.0, 20.0, 16.0), row(1, 64, 128, 10.0, 8.0, 4.0, 10.0, 20.0)]
    assert lost(rows, lambda _: True) == (0.125, 0.25, 1.0)
    assert lost(rows, lambda x: x["torch_us"] >= x["wheel_us"]) == (0.625, 1.0, 0.5)


def test_runs_join_by_medians_and_of_one_kind_alone():
    times = [row(1, 64, 64, 10.0, x, 4.0, 15.0, 16.0) for x in (12.0, 14.0, 11.0)]
    runs = [{**RUN, "rows": [x]} for x in times]
    assert joined(runs)["rows"][0]["torch_us"] == 12.0
    with pytest.raises(ValueError, match="runs of one kind"):
        joined([runs[0], {**runs[1], "torch": "3"}])
    with pytest.raises(ValueError, match="in common"):
        joined([runs[0], {**runs[1], "rows": []}])


def test_the_correction_of_runs_is_written(tmp_path, monkeypatch, capsys):
    rows = [row(1, 64, 64 + i, 10.0, 10.0, 4.0, 11.0, 10.0) for i in range(LEAST)]
    run, out = tmp_path / "run.json", tmp_path / "h200.json"
    run.write_text(json.dumps({**RUN, "rows": rows}))
    monkeypatch.setattr(sys, "argv", ["captured_summary", str(run), "--target", "h200", "--out", str(out)])
    main()
    assert "| always torch | 0.00% | 0.0% | 0% |" in capsys.readouterr().out
    found = read_captured(out, "h200")
    assert (found.losses.part(1, 8192), found.losses.part(4096, 8192), found.num_products) == (0.1, 0.0, LEAST)
    monkeypatch.setattr(sys, "argv", ["captured_summary", str(run), "--out", str(out)])
    with pytest.raises(SystemExit):
        main()


@pytest.fixture
def captured(monkeypatch):
    """Import research.bench.captured with a wheel of torch's products on the CPU."""

    def linear(x, weight, out):
        return torch.mm(x, weight.t(), out=out).add_(1.0 if len(weight) == wheel.wrong else 0.0)

    wheel, of_torch, of_gain = (types.ModuleType(x) for x in ("aot_gemm", "aot_gemm.torch", "aot_gemm._gain"))
    wheel.linear, wheel.__version__, wheel.wrong, wheel.torch = linear, "1", 0, of_torch
    wheel.plan = lambda *_: types.SimpleNamespace(kernel="a kernel", tier="tuned")
    wheel.AotGemmError = type("AotGemmError", (Exception,), {})
    of_torch.inductor_options, of_gain.measured_gain = dict, lambda *_: None
    for module in (wheel, of_torch, of_gain):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("atlas", "captured"):
        monkeypatch.delitem(sys.modules, f"research.bench.{name}", raising=False)
    import research.bench.captured as module
    from research.bench import atlas

    def capture(call, sets, _graph_us):
        call(*sets[0])
        return types.SimpleNamespace(), 1

    drawn = {name: getattr(torch, name) for name in ("randn", "empty")}
    for name, make in drawn.items():
        monkeypatch.setattr(torch, name, lambda *sizes, device=None, _make=make, **options: _make(*sizes, **options))
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda layer, **options: compiled.append(options) or layer)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    monkeypatch.setattr(module, "mark_rows", lambda on: None)
    monkeypatch.setattr(module, "capture", capture)
    monkeypatch.setattr(module, "interleave", lambda graphs: {x: [2.0, 1.0, 3.0] for x in graphs})
    monkeypatch.setattr(module, "clocks", lambda: "none")
    monkeypatch.setattr(module, "WEIGHTS", ((24, 16), (16, 8)))
    monkeypatch.setattr(module, "COMPILED", ((16, 8),))
    monkeypatch.setattr(module, "Pool", lambda sizes, dtype: atlas.Pool(sizes, dtype, "cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    module.compiled = compiled
    yield module
    for name in ("atlas", "captured"):
        sys.modules.pop(f"research.bench.{name}", None)


def run(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["captured", *arguments])
    return module.main()


def test_each_product_is_timed_alone_and_in_a_layer(captured, monkeypatch, tmp_path, capsys):
    out = tmp_path / "captured.json"
    assert run(captured, monkeypatch, "--rows", "1", "4", "--out", str(out)) == 0
    found = json.loads(out.read_text())
    assert [(x["m"], x["n"], x["k"]) for x in found["rows"]] == [(1, 16, 8), (4, 16, 8), (1, 24, 16), (4, 24, 16)]
    assert [len([x for x in y if x.endswith("_us")]) for y in found["rows"]] == [5, 7, 5, 5]
    assert captured.compiled == [{"fullgraph": True}, {"fullgraph": True, "options": {}}]
    assert all(x["error"] == 0 and x["wheel_layer_us"] == 2.0 for x in found["rows"])
    first = capsys.readouterr().out
    assert "| always the wheel | 0.00% | 0.0% | 100% |" in first
    assert "| 4 | 1 | 1.000 | 1.000 | 1.000 |" in first
    assert run(captured, monkeypatch, "--table", str(out)) == 0
    assert capsys.readouterr().out == first == summary(found) + "\n"


def test_a_wrong_result_and_one_that_fails_end_with_1(captured, monkeypatch, tmp_path):
    sys.modules["aot_gemm"].wrong = 24
    monkeypatch.setattr(torch, "compile", lambda *_, **__: 1 / 0)
    out = tmp_path / "captured.json"
    assert run(captured, monkeypatch, "--rows", "4", "--out", str(out)) == 1
    reasons = [x["reason"] for x in json.loads(out.read_text())["failures"]]
    assert reasons[0].startswith("ZeroDivisionError")
    assert reasons[1].startswith("relative error")


def test_what_there_is_no_time_for_is_left_out(captured, monkeypatch, tmp_path):
    out = tmp_path / "captured.json"
    assert run(captured, monkeypatch, "--rows", "4", "--max-seconds", "-1", "--out", str(out)) == 0
    found = json.loads(out.read_text())
    assert found["rows"] == []
    assert found["left_out"] == [[4, 16, 8], [4, 24, 16]]


def test_without_a_gpu_it_says_so(captured, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        run(captured, monkeypatch)
    assert "torch finds no GPU" in capsys.readouterr().err
