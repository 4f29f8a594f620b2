"""The order in which products are added up, by which kernels give equal bits."""

from __future__ import annotations

import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.grouping import Grouping
from aot.core.knobs import GemmKnobs
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.core.weight_format import Code
from aot.families import families, family_of
from aot.families._sum_order import order_of
from aot.space.enumeration import fallback, has_tuned_kernels, legal


def order(family, **parts):
    candidate = gemm_candidate(**{"family": family, "tile_m": 64, "tile_n": 64, "schedule": "pingpong", **parts})
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
    named = {name: x for name, x in families().items() if x.kind == "gemm"}
    names = {name: order(name) for name, family in named.items() if family.knobs is GemmKnobs}
    first = next(named["weight_only"].candidates(Operation.BF16_INT4_G128_KK, load_target("h200")))
    assert "1 blocks by turns of 4, offset apart" in named["weight_only"].sum_order(first)
    assert all(isinstance(x, str) for x in names.values())
    assert (names["simt"], names["sm100_quack"], names["sm90_block_scale"]) == ("fma", "tcgen05", "wgmma by blocks")


GROUPED = [x for x in Operation if x.grouping.has_offsets and x.types.weight is None]


@pytest.mark.parametrize("target", ["h200", "thor"])
@pytest.mark.parametrize("operation", GROUPED, ids=lambda x: x.tag)
def test_all_kernels_of_groups_but_the_fallback_have_one_order(operation, target):
    """So a table of groups keeps a row's bits whatever it chooses: no split of k is legal in any of them."""
    device = load_target(target)
    found = legal(operation, device) if has_tuned_kernels(operation, device) else []
    assert not found or fallback(operation, device) not in found
    orders = {family_of(x).sum_order(x) for x in found}
    assert orders == ({"wgmma" if target == "h200" else "tcgen05"} if found else set())
    assert not any(family_of(x).workspace(x).waits for x in found)


PACKED = [x for x in Operation if x.grouping.groups_rows and x.types.weight is not None]


@pytest.mark.parametrize("operation", PACKED, ids=lambda x: x.tag)
def test_kernels_of_groups_of_packed_weights_have_one_order_but_for_the_offset_of_int4(operation):
    """A zero point, a number of each group, is taken in one way. Hopper has one more order, of rows in order."""
    orders, of_hopper = (
        {order_of(KernelKey(operation, x)) for x in legal(operation, load_target(target))}
        for target in ("thor", "h200")
    )
    form, is_in_order = operation.types.weight, operation.grouping is Grouping.GROUPED
    many = {"wgmma of packed weights, blocks of k by turns of 1"} if is_in_order and not form.in_rows else set()
    assert of_hopper == orders | many
    assert {x.partition(", offset")[0] for x in orders} == {"mma.sync of packed weights, 1 blocks by turns of 4"}
    assert len(orders) == (2 if form.code is Code.INT4 and not form.has_zeros else 1)


def test_a_family_is_asked_of_an_operation_where_it_can_tell():
    key = KernelKey(Operation.BF16_KK, gemm_candidate(family="sm90_one_tile", tile_m=64, tile_n=64))
    assert order_of(key) == family_of(key.candidate).sum_order(key.candidate) != ""
