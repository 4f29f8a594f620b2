"""Names of cuBLAS's kernels, and kernels of ours with the same tiles."""

import json

import pytest

from aot.core.errors import StoreError
from aot.core.operation import Operation
from aot.core.target import load_target
from research.studies.library_tiles import LibraryTile, alike, read_names
from tests.unit.invoked import study, succeed

NATURAL = "nvjet_sm90_tst_144x128_64x6_2x4_h_bz_TNN"
SWAPPED = "nvjet_sm90_tst_128x272_64x4_2x1_v_bz_coopA_TNT"
SPLIT = "nvjet_sm90_tst_112x64_64x9_2x1_v_bz_splitK_TNN"
FP8 = "nvjet_sm90_qqtst_128x152_128x6_4x1_v_bz_coopA_algo2_TNT"
OTHER = "void cublasLt::splitKreduce_kernel<32, 16, int, float>"


@pytest.mark.parametrize(
    ("name", "tile", "cluster", "swap_ab", "is_split"),
    [
        (NATURAL, (128, 144), (4, 2), False, False),
        (SWAPPED, (128, 272), (2, 1), True, False),
        (SPLIT, (64, 112), (1, 2), False, True),
        (FP8, (128, 152), (4, 1), True, False),
    ],
)
def test_a_name_says_tile_cluster_and_what_is_stored(name, tile, cluster, swap_ab, is_split):
    assert LibraryTile.of(name) == LibraryTile(tile, cluster, swap_ab, is_split)


def test_other_kernels_say_nothing():
    assert LibraryTile.of(OTHER) is None


def test_kernels_of_ours_have_the_tile_and_the_cluster():
    found = {x.candidate.name for x in alike((NATURAL, SWAPPED, OTHER), Operation.BF16_KK, load_target("h200"))}
    assert "sm90_prefetch_b_128x272_c2x1_cooperative_swap" in found
    assert "sm90_one_tile_128x144_c4x2_direct" in found
    assert {"sm90_quack_128x144_c4x1_pingpong", "sm90_quack_128x144_c1x4_cooperative"} <= found
    assert not [x for x in found if "serial" in x or "separate" in x]


def test_a_file_without_such_kernels_is_refused(tmp_path):
    """An empty list would stand for all kernels."""
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps({"operation": "bf16_kk", "kernels": [[1, 2, 3, [OTHER]]]}))
    refused = study("tiles", "--target", "h200", path)
    assert refused.exit_code
    assert "none of the 1 kernels" in refused.stderr
    path.write_text(json.dumps({"operation": "bf16_kk", "kernels": [[1, 2, 3, [NATURAL, OTHER]]]}))
    assert "sm90_one_tile_128x144_c4x2_direct" in succeed("tiles", "--target", "h200", path, run=study)


def test_what_is_no_list_of_kernels_is_refused(tmp_path):
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps({"operation": "bf16_kk", "kernels": [[1, 2, 3, [NATURAL]]]}))
    assert read_names(path) == (Operation.BF16_KK, [NATURAL])
    path.write_text(json.dumps({"operation": "bf17", "kernels": []}))
    with pytest.raises(StoreError, match=r"give what research/bench/library_kernels\.py wrote"):
        read_names(path)
