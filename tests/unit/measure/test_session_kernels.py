"""What a session asks of kernels without launching them."""

from itertools import pairwise

from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.measure.session_kernels import stated


def test_operands_that_are_asked_about_do_not_overlap():
    call = stated(Problem(Operation.BF16_KK_MANY, 1024, 1152, 896))
    assert len(call.part_extents) == 3
    places = sorted((x.address, x.address + 2 * x.matrix.num_elements) for x in call.tensors.values())
    assert all(end <= start for (_, end), (start, _) in pairwise(places))
