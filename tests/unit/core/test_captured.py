"""What products lose in a captured layer: its file, and the cell of a product."""

import json

import pytest

from aot.core.captured import (
    CAPTURED_VERSION,
    COMMITTED,
    Captured,
    CapturedLosses,
    captured_losses,
    read_captured,
    write_captured,
)
from aot.core.errors import StoreError

LOSSES = CapturedLosses((1, 16), (4096, 65536), ((0.1, -0.02), (0.0, 0.05)))
FILE = Captured(CAPTURED_VERSION, "h200", "NVIDIA H200", "torch 2.11.0", "0.1.0+h200", "2026-11-28", 8, LOSSES)


def test_a_product_has_the_cell_of_the_edges_that_are_not_below_it_and_past_them_the_last():
    sizes = [(1, 4096), (1, 4097), (2, 1), (16, 65536), (17, 65537)]
    assert [LOSSES.part(*x) for x in sizes] == [0.1, -0.02, 0.0, 0.05, 0.05]


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "h200.json"
    write_captured(path, FILE)
    assert read_captured(path, "h200") == FILE
    assert captured_losses("h200", path.parent) == LOSSES
    assert captured_losses("thor", path.parent) is None


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("rows", [16, 1], r"losses.rows is \[16, 1\]; expected edges that ascend, at least one"),
        ("weight_bytes", [], r"losses.weight_bytes is \[\]; expected edges that ascend"),
        ("parts", [[0.1, 0.2]], r"losses.parts has rows of \[2\] parts; expected 2 of 2"),
        ("parts", [[0.1, 0.2], [0.1]], r"losses.parts has rows of \[2, 1\] parts; expected 2 of 2"),
    ],
)
def test_a_file_whose_cells_do_not_fit_is_refused(tmp_path, field, value, reason):
    path = tmp_path / "h200.json"
    write_captured(path, FILE)
    document = json.loads(path.read_text())
    document["losses"][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=f"{reason}.*; write it again with research.bench.captured_summary"):
        read_captured(path, "h200")


def test_a_file_of_another_target_is_refused(tmp_path):
    write_captured(tmp_path / "thor.json", FILE)
    with pytest.raises(StoreError, match="it is of h200; expected thor"):
        captured_losses("thor", tmp_path)


def test_the_committed_files_are_of_the_targets_that_they_are_named_for():
    for path in COMMITTED.glob("*"):
        assert read_captured(path, path.stem).target == path.stem
