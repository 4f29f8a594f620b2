"""The operands by which a session asks for a kernel's clusters, with nothing launched."""

from __future__ import annotations

from itertools import pairwise

import pytest

from aot.core.grouping import Grouping
from aot.core.operands import operands
from aot.core.operation import Operation
from aot.kinds.gemm.edge_shapes import edge_shapes
from aot.kinds.gemm.trial import made_up
from tests.compiling import some
from tests.unit.twins import kernel_of

MANY = [x for x in Operation if x.grouping is not Grouping.DENSE]
LARGEST_ELEMENT = 4
"""Bytes of float32 factors, int32 offsets and indices, and float32 itself."""


@pytest.mark.parametrize("is_fallback", [False, True])
@pytest.mark.parametrize("operation", some(MANY), ids=lambda x: x.tag)
def test_made_up_operands_of_groups_and_batches_do_not_overlap(operation, is_fallback):
    """The library refuses an output that overlaps an operand, of which a stack of weights is long."""
    for shape in edge_shapes(kernel_of(operation=operation, is_fallback=is_fallback)):
        found = made_up(shape.problem)
        assert found.keys() == operands(shape.problem).keys()
        for first, second in pairwise(found.values()):
            assert first.address + first.matrix.num_elements * LARGEST_ELEMENT <= second.address
            assert second.address % 256 == 0


def test_operands_of_some_groups_are_longer_than_a_mebibyte():
    lengths = [
        x.matrix.num_elements * 2
        for op in MANY
        for s in edge_shapes(kernel_of(operation=op))
        for x in made_up(s.problem).values()
    ]
    assert max(lengths) > 1 << 20
