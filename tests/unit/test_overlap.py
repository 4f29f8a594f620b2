"""The bench's check of programmatic dependent launch: what is captured under which setting, and what is subtracted."""

import pytest
import torch

from bench import overlap

TIMES = {
    "wheel": [10.0, 11.0, 12.0],
    "torch": [15.0, 15.0, 15.0],
    "elementwise": [2.0, 4.0, 3.0],
    "wheel_behind": [13.0, 16.0, 14.5],
    "torch_behind": [17.0, 19.0, 18.5],
    "wheel_late": [12.5, 12.0, 13.0],
}


def test_the_kernel_in_front_is_subtracted_round_by_round():
    assert overlap.medians(TIMES) == {
        "wheel": 11.0,
        "torch": 15.0,
        "elementwise": 3.0,
        "wheel_behind": 11.5,  # of 11, 12 and 11.5
        "torch_behind": 15.0,  # of 15, 15 and 15.5
        "wheel_late": 12.5,
    }


@pytest.fixture
def device(monkeypatch):
    """Stand in for the GPU: captured calls run once, and the setting at the capture is what a graph is."""
    ones, early = torch.ones, [True]

    def exchange(enabled):
        before, early[0] = early[0], enabled
        return before

    def capture(call, sets):
        call(*sets[0])
        return early[0], 1

    def interleave(graphs):
        seen.update({name: graph for name, (graph, _) in graphs.items()})
        return {name: TIMES[name] for name in graphs}

    seen = {}
    monkeypatch.setattr(torch, "ones", lambda size, device: ones(size))
    monkeypatch.setattr(overlap, "make_sets", lambda *_: [(1, 2, 3)])
    monkeypatch.setattr(overlap, "capture", capture)
    monkeypatch.setattr(overlap, "interleave", interleave)
    return early, exchange, seen


def test_only_the_late_graph_is_captured_without_early_weights(device):
    early, exchange, seen = device
    called = []
    calls = {"wheel": lambda *x: called.append(("wheel", x)), "torch": lambda *x: called.append(("torch", x))}
    row = overlap.measure_cell((64, 4096, 4096), calls, exchange)
    assert {name for name, was_early in seen.items() if not was_early} == {"wheel_late"}
    assert set(seen) == set(TIMES)
    assert early == [True]
    assert called == [(name, (1, 2, 3)) for name in ("wheel", "torch", "wheel", "torch", "wheel")]
    assert row == {
        "m": 64,
        "n": 4096,
        "k": 4096,
        "elementwise_us": 3.0,
        "wheel_us": 11.0,
        "torch_us": 15.0,
        "wheel_behind_us": 11.5,
        "torch_behind_us": 15.0,
        "wheel_late_us": 12.5,
        "speedup": 1.3636,
        "speedup_behind": 1.3043,
        "speedup_late": 1.2,
    }


def test_a_wheel_without_the_switch_has_no_late_time(device):
    calls = {"wheel": lambda *_: None, "torch": lambda *_: None}
    row = overlap.measure_cell((1, 4096, 4096), calls, None)
    assert (row["wheel_late_us"], row["speedup_late"]) == (None, None)


def test_every_cell_is_measured_and_described(device):
    lines = []
    result = overlap.measure({"wheel": lambda *_: None, "torch": lambda *_: None}, None, lines.append)
    assert [(row["m"], row["n"], row["k"]) for row in result["cells"]] == list(overlap.CELLS)
    assert len(overlap.CELLS) == len(lines) == 6
    assert lines[0].startswith("overlap m1 n4096 k4096: elementwise_us 3.0, wheel_us 11.0")
    assert "early_weights(False)" in result["description"]
