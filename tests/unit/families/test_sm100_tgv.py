import pytest

from aot.core.candidate import Reason, Workspace, changed
from aot.families.sm100_tgv import FAMILY
from tests.unit.accepted import named, reason, resources

TILE = named("sm100_tgv_64x8_c1x1_st8_direct_swap")


@pytest.mark.parametrize(("tile_n", "stages"), [(8, 4), (8, 12), (16, 10), (32, 8)])
def test_resources(tile_n, stages):
    # Source of 256 threads and 256 columns: the PTX of sm100_tgv 64x8 st4 (.reqntid, tcgen05.alloc), 2026-11-26.
    smem_bytes = stages * (64 + tile_n) * 128 * 2
    name = f"sm100_tgv_64x{tile_n}_c1x1_st{stages}_direct_swap"
    assert resources(name, "thor") == (smem_bytes, stages, 256, 256)


@pytest.mark.parametrize(
    ("change", "why", "message"),
    [
        ({"tile_n": 64, "num_stages": 4}, Reason.TILE, "TGV has tiles 64 by (8, 16, 32), got 64x64"),
        ({"tile_m": 128, "num_stages": 4}, Reason.TILE, "TGV has tiles 64 by (8, 16, 32), got 128x8"),
        ({"cluster_m": 2}, Reason.COMBINATION, "TGV is one CTA to a cluster, swapped, without split-K"),
        ({"swap_ab": False}, Reason.COMBINATION, "TGV is one CTA to a cluster, swapped, without split-K"),
    ],
)
def test_what_the_operator_does_not_have_is_refused(change, why, message):
    assert reason(changed(TILE, **change), "thor") == (why, message)


def test_takes_all_sizes_without_a_workspace():
    assert (FAMILY.multiples(TILE), FAMILY.workspace(TILE)) == ((1, 1), Workspace())
