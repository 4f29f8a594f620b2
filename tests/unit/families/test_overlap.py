"""The bench's check of programmatic dependent launch: what is captured, and what is subtracted."""

import pytest
import torch

from research.bench import overlap

TIMES = {
    "wheel": [10.0, 11.0, 12.0],
    "constant": [8.0, 8.0, 9.0],
    "torch": [15.0, 15.0, 15.0],
    "elementwise": [2.0, 4.0, 3.0],
    "wheel_behind": [13.0, 16.0, 14.5],
    "constant_behind": [13.0, 15.0, 14.0],
    "torch_behind": [17.0, 19.0, 18.5],
}


def test_the_kernel_in_front_is_subtracted_round_by_round():
    assert overlap.medians(TIMES) == {
        "wheel": 11.0,
        "constant": 8.0,
        "torch": 15.0,
        "elementwise": 3.0,
        "wheel_behind": 11.5,  # of 11, 12 and 11.5
        "constant_behind": 11.0,
        "torch_behind": 15.0,  # of 15, 15 and 15.5
    }


@pytest.fixture
def device(monkeypatch):
    """Stand in for the GPU: captured calls run once."""
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda size, device: ones(size))
    monkeypatch.setattr(overlap, "make_sets", lambda *_: [(1, 2, 3)])
    monkeypatch.setattr(overlap, "capture", lambda call, sets: call(*sets[0]))
    monkeypatch.setattr(overlap, "interleave", lambda graphs: {name: TIMES[name] for name in graphs})


def calls(called):
    def note(name):
        return lambda *x: called.append((name, x))

    return note("wheel"), lambda sets: note(f"constant {sets}"), note("torch")


def test_a_cell_has_every_call_alone_and_behind_a_kernel(device):
    called = []
    row = overlap.measure_cell((64, 4096, 4096), *calls(called))
    names = ["wheel", "constant [(1, 2, 3)]", "torch"]
    assert called == [(name, (1, 2, 3)) for name in names * 2]
    assert row == {
        "m": 64,
        "n": 4096,
        "k": 4096,
        "elementwise_us": 3.0,
        "wheel_us": 11.0,
        "constant_us": 8.0,
        "torch_us": 15.0,
        "wheel_behind_us": 11.5,
        "constant_behind_us": 11.0,
        "torch_behind_us": 15.0,
        "speedup": 1.3636,
        "speedup_behind": 1.3043,
        "constant_speedup": 1.875,
        "constant_speedup_behind": 1.3636,
    }


def test_every_cell_is_measured_and_described(device):
    lines = []
    result = overlap.measure(*calls([]), lines.append)
    assert [(row["m"], row["n"], row["k"]) for row in result["cells"]] == list(overlap.CELLS)
    assert len(overlap.CELLS) == len(lines) == 6
    assert lines[0].startswith("overlap m1 n4096 k4096: elementwise_us 3.0, wheel_us 11.0, constant_us 8.0")
    assert "promised constant" in result["description"]
