"""The bench's JSON as Markdown: runs of before and after there were the peer and the check of overlap."""

import pytest

from research.bench.summary import medians, summary

ROW = {"m": 1, "n": 4096, "k": 4096, "dtype": "bfloat16", "wheel_us": 10.0, "torch_us": 12.0, "speedup": 1.2}
RUN = {
    "device": "NVIDIA H200",
    "torch": "2.11.0",
    "wheel": "0.1.0+h200",
    "date": "2026-11-20",
    "tuned": [ROW, {**ROW, "m": 8, "speedup": 0.3}],
    "untuned": [],
    "first_call_ms": {"wheel": 44.0},
    "preload_ms": 8.0,
    "host_us": {"wheel": 7.0},
    "num_kernels": 98,
    "library_bytes": 4_600_000,
    "clocks_after": "580.159.04",
}
TABLE = """\
| m | n 4096, k 4096 |
|---|---|
| 1 | 10.0 us, 1.20x |
| 8 | 10.0 us, 0.30x |
"""


def test_a_run_without_a_peer():
    lines = summary(RUN).splitlines()
    assert lines[0] == "NVIDIA H200, torch 2.11.0, wheel 0.1.0+h200, 2026-11-20"
    assert lines[2:4] == ["bfloat16, tuned: geomean 0.600x of torch.matmul, worst 0.300x", ""]
    assert TABLE in summary(RUN)
    assert "cuBLASLt" not in summary(RUN)


def test_a_run_with_a_peer_counts_the_rows_that_it_has_no_time_for():
    rows = [ROW | {"cublaslt_speedup": 0.95}, ROW | {"m": 8, "cublaslt_speedup": None}]
    text = summary(RUN | {"tuned": rows, "cublaslt": {"version": 130100}})
    line = "geomean 0.950x of the best of cuBLASLt's proposals, worst 0.950x (1 of 2 without)"
    assert f"\nbfloat16, tuned: {line}\n" in text
    assert "\ncuBLASLt 130100\n" in text


def test_the_check_of_overlap_has_its_table():
    cell = {"m": 1, "n": 4096, "k": 4096, "wheel_us": 9.5, "wheel_behind_us": 10.25, "constant_us": None}
    cell |= {"speedup": 1.3, "speedup_behind": 1.21, "constant_speedup": None}
    text = summary(RUN | {"overlap": {"description": "", "cells": [cell]}})
    assert "\n| 1, 4096, 4096 | 9.5 us, 1.30x | 10.2 us, 1.21x | - |\n" in text


def test_several_runs_give_their_medians():
    rows = [{"kernel": "x", **ROW, "wheel_us": us, "cublaslt_us": peer} for us, peer in ((9, 1), (12, None), (10, 3))]
    joined = medians([RUN | {"tuned": [row], "host_us": {"wheel": row["wheel_us"]}} for row in rows])
    assert joined["tuned"] == [rows[2] | {"cublaslt_us": None}]
    assert joined["host_us"] == {"wheel": 10}
    assert joined["wheel"] == "0.1.0+h200"


def test_two_runs_keep_whole_sizes_whole():
    runs = [RUN | {"tuned": [{"kernel": "x", **ROW, "wheel_us": us}]} for us in (9.0, 12.0)]
    assert "\n| 1 | 10.5 us, 1.20x |\n" in summary(medians(runs))


def test_runs_of_different_wheels_or_rows_do_not_join():
    run = RUN | {"tuned": [{"kernel": "x", **ROW}]}
    for other in (run | {"wheel": "0.2.0+h200"}, run | {"tuned": [{"kernel": "y", **ROW}]}, run | {"num_kernels": 3}):
        with pytest.raises(ValueError, match="give runs of one wheel"):
            medians([run, other])
