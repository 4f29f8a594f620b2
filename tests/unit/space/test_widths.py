import pytest

from aot.core.candidate import Accepted, KernelKey, Reason, changed, gemm_candidate
from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.operation import Layout, Operation
from aot.core.target import load_target
from aot.families import family_of
from aot.families.sm90_one_tile import WIDTHS
from aot.space.enumeration import Patterns, legal
from aot.space.legality import check
from aot.space.widths import of_widths, shared
from tests.unit.accepted import reason
from tests.unit.twins import BF16

H200 = load_target("h200")
TILE = gemm_candidate("sm90_one_tile", 64, 112, 4, 1, swap_ab=True, use_tma_store=False)
WIDE = changed(TILE, tile_n=128, schedule="widths")


def operation_of(tag):
    return next(x for x in Operation if x.tag == tag)


@pytest.mark.parametrize(
    ("tile_n", "widest", "num_narrower"), [(128, 128, 0), (104, 128, 3), (136, 160, 3), (16, 32, 2)]
)
def test_a_width_is_one_of_four_up_to_a_multiple_of_32(tile_n, widest, num_narrower):
    assert of_widths(changed(TILE, tile_n=tile_n), BF16, H200) == (changed(WIDE, tile_n=widest), num_narrower)


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        ({"family": "sm90_cluster_split_k", "cluster_m": 2}, BF16),
        ({"schedule": "widths", "tile_n": 128}, BF16),
        ({"num_stages": 4}, BF16),
        ({"tile_m": 256}, BF16),
        ({"cluster_m": 4, "cluster_n": 2}, BF16),
        ({}, Operation.of(ElementType.BFLOAT16, Layout.KK, Epilogue.GELU)),
        ({}, operation_of("e4m3_bf16_kk")),
        ({"swap_ab": False}, Operation.of(ElementType.BFLOAT16, Layout.KN)),
        ({}, operation_of("bf16_kk_batched")),
    ],
)
def test_what_no_kernel_of_several_widths_computes_is_alone(change, operation):
    assert of_widths(changed(TILE, **change), operation, H200) is None


@pytest.mark.parametrize("epilogue", [Epilogue.NONE, Epilogue.BIAS])
def test_a_bias_is_added_in_several_widths(epilogue):
    operation = Operation.of(ElementType.FLOAT16, Layout.KK, epilogue)
    assert of_widths(TILE, operation, H200) == (WIDE, 2)


@pytest.mark.parametrize(("change", "got"), [({"tile_n": 120}, "64x120"), ({"tile_m": 256, "tile_n": 64}, "256x64")])
def test_a_tile_of_several_widths_is_a_multiple_of_32(change, got):
    text = "a tile of several widths has 64, 128, 192 rows, and columns in steps of 32"
    assert reason(changed(WIDE, **change), "h200") == (Reason.TILE, f"{text}, got {got}")


@pytest.mark.slow
def test_kernels_of_several_widths_are_in_no_search():
    assert not [x for x in legal(BF16, H200, Patterns.parse("sm90_one_tile*")) if x.gemm.schedule == WIDTHS]


def test_several_widths_take_what_the_widest_takes():
    assert isinstance(check(WIDE, BF16, H200), Accepted)
    single = changed(WIDE, schedule="")
    one, several = (family_of(x).resources(x, BF16, H200) for x in (single, WIDE))
    assert one == several


def test_kernels_share_where_two_are_of_one():
    def key(tile_n, operation=BF16, **change):
        return KernelKey(operation, changed(TILE, tile_n=tile_n, **change))

    fp16 = Operation.of(ElementType.FLOAT16, Layout.KK)
    alone = [
        key(136),
        key(112, cluster_m=2),
        key(112, fp16),
        KernelKey(BF16, gemm_candidate("sm90_quack", 128, 128, 2, 1)),
    ]
    together = [key(128), key(112), key(104)]
    wide = KernelKey(BF16, WIDE)
    found = shared([*alone, *together], H200)
    assert found == {together[0]: (wide, 0), together[1]: (wide, 2), together[2]: (wide, 3)}
