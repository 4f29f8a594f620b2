"""Results without what no page cites, and the committed ones, which are all of that form."""

import json
from pathlib import Path

import pytest

from research.bench.atlas_summary import joined, summary
from research.bench.compact import compact, expanded, read_result, text

RESULTS = sorted((Path(__file__).parents[3] / "research" / "bench" / "results").glob("*.json"))
RUN = {
    "device": "NVIDIA H200",
    "date": "2026-11-26",
    "description": "a page of text",
    "seconds": 4.5,
    "host_us": {"wheel": 7.0},
    "failures": [],
    "rows": [
        {"m": 1, "kernel": "x", "us": {"wheel": 2.0, "torch": 3.0}, "speedup_behind": 1.5, "wheel_spread": 0.1},
        {"m": 8, "kernel": "y", "us": {"wheel": 4.0}, "error": 0.5},
    ],
}
SHRUNK = {
    "device": "NVIDIA H200",
    "date": "2026-11-26",
    "host_us": {"wheel": 7.0},
    "failures": [],
    "rows": {"columns": ["m", "us.wheel", "us.torch", "error"], "rows": [[1, 2.0, 3.0, None], [8, 4.0, None, 0.5]]},
}


def test_conditions_sizes_times_and_errors_stay():
    assert compact(RUN) == SHRUNK
    assert compact(SHRUNK) == SHRUNK


def test_rows_are_dictionaries_again():
    rows = [{"m": 1, "us": {"wheel": 2.0, "torch": 3.0}, "error": None}, {"m": 8, "us": {"wheel": 4.0}, "error": 0.5}]
    assert expanded(SHRUNK) == {**SHRUNK, "rows": rows}
    assert expanded(RUN) == RUN


def test_a_row_has_a_line(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(text(SHRUNK))
    assert "\n[8,4.0,null,0.5]\n" in path.read_text()
    assert json.loads(path.read_text()) == SHRUNK
    assert read_result(path) == expanded(SHRUNK)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_committed_results_are_shrunk_and_say_where_they_are_from(path):
    found = json.loads(path.read_text(encoding="utf-8"))
    assert path.read_text(encoding="utf-8") == text(compact(found))
    device, date = path.stem.split("_")[:2]
    if not found.keys() & {"tool", "machine"}:  # a sanitizer times nothing, and packing takes no GPU
        assert found["device"].startswith(f"NVIDIA {device.upper()}")
    assert found.get("date", f"{date[:4]}-{date[4:6]}-{date[6:]}").replace("-", "") == date


def test_the_atlas_has_its_table_of_a_shrunk_run():
    path = next(x for x in RESULTS if x.stem == "h200_20261130_atlas")
    assert "\n| all | 646 | 1.158, 3.7%, 0.5%, 0.860 | 1.086, 10.2%, 0.8%, 0.833 |" in summary(
        joined([read_result(path)])
    )
