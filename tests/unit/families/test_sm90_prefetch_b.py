from dataclasses import replace

import pytest

from aot.core.element import ElementType
from aot.core.operation import Layout, Operation
from aot.core.target import load_target
from aot.families import families
from aot.families.sm90_partial_tile import FAMILY as BOUNDED
from aot.families.sm90_prefetch_b import FAMILY
from aot.space.legality import check
from tests.unit.accepted import named
from tests.unit.twins import BF16

H200 = load_target("h200")
TILE = named("sm90_prefetch_b_128x128_c1x1_pingpong", "h200")


def bounded(candidate):
    return replace(candidate, family=BOUNDED.name)


def test_the_space_is_that_of_the_bounded_family():
    assert list(map(bounded, FAMILY.candidates(BF16, H200))) == list(BOUNDED.candidates(BF16, H200))


@pytest.mark.parametrize("layout", Layout)
def test_limits_and_resources_are_those_of_the_bounded_family(layout):
    operation = Operation.of(ElementType.FLOAT16, layout)
    for candidate in FAMILY.candidates(operation, H200):
        assert check(candidate, operation, H200) == check(bounded(candidate), operation, H200)


def test_workspace_and_multiples_are_those_of_the_bounded_family():
    split = replace(TILE, cluster_m=2, swap_ab=True, split_k=4, split_k_mode="separate")
    assert FAMILY.workspace(split) == BOUNDED.workspace(bounded(split))
    assert FAMILY.multiples(split) == BOUNDED.multiples(bounded(split)) == (1, 4)


def test_three_families_prefetch_b():
    found = [name for name, family in families().items() if family.prefetches_b]
    assert found == ["cluster_split_k", "sm90_cluster_split_k", FAMILY.name]
