"""The order in which products are added up, by which kernels give equal bits."""

from __future__ import annotations

import pytest

from aot.core.candidate import Candidate
from aot.families import families, family_of


def order(family, **parts):
    candidate = Candidate(**{"family": family, "tile_m": 64, "tile_n": 64, "schedule": "pingpong", **parts})
    return family_of(candidate).sum_order(candidate)


@pytest.mark.parametrize("family", ["sm90_quack", "sm90_partial_tile", "sm90_prefetch_b"])
def test_tiles_clusters_and_exchanged_operands_change_no_order(family):
    assert order(family) == "wgmma"
    other = {"tile_m": 128, "tile_n": 256, "cluster_m": 2, "schedule": "cooperative", "swap_ab": True}
    assert order(family, **other) == "wgmma"


def test_splits_of_k_do():
    found = [order("sm90_quack", split_k=s, split_k_mode=m) for s, m in ((2, "serial"), (4, "serial"), (4, "separate"))]
    assert found == ["wgmma, serial split-K of 2", "wgmma, serial split-K of 4", "wgmma, separate split-K of 4"]
    assert order("sm90_cluster_split_k") == "wgmma, blocks of k by turns of 1"
    assert order("sm90_one_tile") == order("sm90_cluster_split_k")
    assert order("sm90_cluster_split_k", split_k=4, split_k_mode="cluster") == "wgmma, blocks of k by turns of 4"
    skinny = [
        order("cluster_split_k", schedule=x, cluster_m=c) for x, c in (("warps8", 1), ("warps4", 1), ("warps8", 2))
    ]
    assert len(set(skinny)) == 3


@pytest.mark.parametrize(("family", "mode"), [("sm90_quack", "parallel"), ("sm90_stream_k", "tail")])
def test_where_it_depends_on_m_or_on_arrival_there_is_none(family, mode):
    assert order(family, split_k=4, split_k_mode=mode) == ""


def test_every_family_names_one():
    names = {name: order(name) for name in families()}
    assert all(isinstance(x, str) for x in names.values())
    assert (names["simt"], names["sm100_quack"], names["sm90_block_scale"]) == ("fma", "tcgen05", "wgmma by blocks")
