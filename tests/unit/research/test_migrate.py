import gzip
import json
from dataclasses import replace

import pytest

from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, Grid
from aot.select.selection import parse_selection, write_selection
from research.studies.migrate import migrate, migrated
from tests.unit.accepted import named
from tests.unit.reported import SELECTION, with_section
from tests.unit.twins import BF16


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"family": "fallback"}', '{"family": "simt"}'),
        ('{"family":"sm90_overlap"}', '{"family":"sm90_prefetch_b"}'),
        ('"bf16_kk_sm90_bounded_64x16_c1x1"', '"bf16_kk_sm90_partial_tile_64x16_c1x1"'),
        ('"fallback_64x64_c1x1_direct"', '"simt_64x64_c1x1_direct"'),
        ('"rounding_mean": 0.1, "rounding_worst": 1', '"bucketing_loss_mean": 0.1, "bucketing_loss_worst": 1'),
        ('"fallback": 3', '"fallback": 3'),
        ('{"o": {"dtype": "float16", "layout": "mn"}, "version": 1}\n', '{"o": "fp16_mn", "version": 2}\n'),
        (
            (
                '{"kernels": [], "o": {\n "dtype_name": "bfloat16",\n "layout_name": "kk"\n}, "selection_version": 2,\n'
                '"table": {"sections": []}}'
            ),
            (
                '{\n"kernels":[],\n"o":"bf16_kk",\n"references":[],\n"selection_version":4,\n"table":{"sections":[]}\n}\n'
            ),
        ),
    ],
)
def test_names_of_families_and_fields_are_those_of_today(old, new):
    assert migrated(old) == new
    assert migrated(new) == new


def test_a_file_is_renamed_in_place_and_one_of_today_keeps_its_bytes(tmp_path):
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b'{"family": "sm90_bounded"}'))
    migrate(path)
    assert gzip.decompress(path.read_bytes()) == b'{"family": "sm90_partial_tile"}'
    path.write_bytes(gzip.compress(b'{"family": "simt"}', mtime=7))
    before = path.read_bytes()
    migrate(path)
    assert path.read_bytes() == before


def test_the_cells_of_a_grid_become_columns_of_joined_steps(tmp_path):
    # Kernel 1 takes all, 2 needs whole tiles, so that 1 is its general one, and 3 an n that alignment gives.
    separate = named("sm90_quack_64x64_c1x1_pingpong_separate2")
    selection = replace(SELECTION, kernels=(*SELECTION.kernels, KernelKey(BF16, separate)))
    path = tmp_path / "s.json.gz"
    write_selection(path, selection)
    document = json.loads(gzip.decompress(path.read_bytes()))
    section = document["table"]["sections"][0]
    # By m, then n, then k: the columns are 1 3 3, 2 1 3, 3 3 3 and 3 1 2.
    kernels = [1, 2, 3, 3, 3, 1, 3, 1, 3, 3, 3, 2]
    rows = [
        {"kernel": x, "general": 1, "time_us": 2.0, "provenance": "predicted", "runner_up": 1, "runner_up_us": 3.0}
        for x in kernels
    ]
    section["grid"] = {"m_edges": [16, 64, 256], "n_edges": [512, 1024], "k_edges": [64, 128], "cells": rows}
    del document["references"]
    old = json.dumps({**document, "selection_version": 3}, indent=1, sort_keys=True) + "\n"
    path.write_bytes(gzip.compress(old.encode()))
    migrate(path)
    grid = Grid(
        (512, 1024),
        (64, 128),
        (
            Column((16, 256), (1, 3)),
            Column((64, 256), (1, 3)),
            Column((256,), (3,)),
            Column((16, 256), (3, 1)),
        ),
    )
    found = parse_selection(gzip.decompress(path.read_bytes()), "s.json.gz")
    assert found == replace(selection, table=with_section(grid=grid).table)
    before = path.read_bytes()
    write_selection(path, found)
    assert path.read_bytes() == before
