"""The cases of groups: a right kernel passes, and wrong ones are found."""

import numpy as np
import pytest

from aot.core.errors import VerificationError
from aot.core.grouping import Grouping
from aot.core.numerics import poison
from aot.core.operands import element_of, operands
from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.kinds.gemm import edge_shapes as cases
from aot.kinds.gemm.edge_operands import edge_operands
from aot.kinds.gemm.group_inputs import GroupSizes, draw_ends
from aot.measure.verify import Verifier
from tests.compiling import some
from tests.unit.group_twins import GroupKernels
from tests.unit.twins import TwinGpu, kernel_of

pytestmark = pytest.mark.slow

FEW = cases.ALIGNED_SHAPES[1:5]
OPERATIONS = (
    Operation.BF16_KK_GROUPED,
    Operation.BF16_KN_GROUPED,
    Operation.BF16_KK_GATHERED,
    Operation.BF16_MN_KGROUPED,
    Operation.BF16_KK_GATHERED_SWIGLU,
    Operation.E4M3_BF16_KK_GATHERED_SWIGLU,
    Operation.E4M3_BF16_BLOCK_KK_GROUPED,
)


def verify(operation, fault="", *, is_fallback=False):
    gpu = TwinGpu()
    kernels = GroupKernels(gpu, [kernel_of(operation=operation, is_fallback=is_fallback)])
    kernels.fault = fault
    verifier = Verifier(gpu, kernels, np.random.default_rng(6))
    try:
        return verifier.verify(kernels.kernels[0], 0)
    finally:
        verifier.close()
        assert gpu.num_allocations == 0


@pytest.mark.parametrize("operation", some(OPERATIONS, 4), ids=lambda x: x.tag)
@pytest.mark.parametrize("is_fallback", [False, True], ids=["aligned", "fallback"])
@pytest.mark.filterwarnings("error")
def test_a_right_kernel_passes(operation, is_fallback, monkeypatch):
    monkeypatch.setattr(cases, "ALIGNED_SHAPES", FEW)
    assert 0 < verify(operation, is_fallback=is_fallback) <= 4e-3


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        (Operation.BF16_KK_GROUPED, "first weight"),
        (Operation.BF16_KK_GROUPED, "one more"),
        (Operation.BF16_KK_GROUPED, "past the last"),
        (Operation.BF16_KK_GATHERED, "no index"),
        (Operation.BF16_KK_GATHERED, "row 0"),
        (Operation.E4M3_BF16_KK_GATHERED_SWIGLU, "first weight"),
        (Operation.BF16_MN_KGROUPED, "empty"),
    ],
)
def test_a_wrong_kernel_is_found(operation, fault, monkeypatch):
    monkeypatch.setattr(cases, "ALIGNED_SHAPES", FEW)
    with pytest.raises(VerificationError):
        verify(operation, fault)


@pytest.mark.parametrize(
    "operation", [Operation.BF16_KK_GROUPED, Operation.E4M3_BF16_KK_GROUPED, Operation.BF16_MN_KGROUPED]
)
def test_what_lies_behind_the_last_group_is_poison(operation):
    (shape, _) = [x for x in cases.edge_shapes(kernel_of(operation=operation)) if x.stride_multiple > 1]
    assert shape.sizes is GroupSizes.SHORT
    found = edge_operands(shape, operands(shape.problem), np.random.default_rng(2))
    end = int(found[Argument.OFFSETS].view(np.int32).max())
    axis = 2 if operation.grouping is Grouping.K_GROUPED else 1
    taken = (Argument.A, Argument.B if axis == 2 else Argument.SCALE_A)
    for argument in (x for x in taken if x in found):
        is_poison = found[argument] == poison(element_of(operation, argument))
        inside, behind = np.split(is_poison, [end], axis)
        assert behind.size > 0
        assert behind.all()
        assert not inside.any()


def test_rows_of_no_group_must_not_be_written():
    with pytest.raises(VerificationError, match=r"rows of no group were written, the first is row \d+"):
        verify(Operation.BF16_KK_GROUPED, "past the last")


def test_the_cases_have_all_sizes_and_say_so():
    shapes = cases.edge_shapes(kernel_of(operation=Operation.BF16_KK_GROUPED))
    assert {x.sizes for x in shapes} == set(GroupSizes) - {GroupSizes.EVEN, GroupSizes.SKEWED}
    assert str(shapes[1]).endswith("groups of which one has all")


@pytest.mark.parametrize("sizes", GroupSizes)
@pytest.mark.parametrize("extent", [7, 8, 300])
def test_groups_ascend_to_the_end(sizes, extent):
    ends = draw_ends(sizes, 7, extent, np.random.default_rng(1))
    assert len(ends) == 7
    assert (np.diff(ends) >= 0).all()
    assert ends[0] >= 0
    assert ends[-1] == (extent - extent // 4 if sizes is GroupSizes.SHORT else extent)


def test_groups_are_as_they_are_called():
    rng = np.random.default_rng(1)
    assert draw_ends(GroupSizes.EVEN, 4, 40, rng).tolist() == [10, 20, 30, 40]
    assert draw_ends(GroupSizes.ALL_IN_ONE, 4, 40, rng).tolist() == [0, 0, 40, 40]
    assert draw_ends(GroupSizes.ONES, 4, 40, rng).tolist() == [1, 2, 3, 40]
    sizes = np.diff(draw_ends(GroupSizes.SKEWED, 4, 2500, rng), prepend=0)
    assert sorted(sizes, reverse=True) == [1200, 600, 400, 300]
    firsts = {int(draw_ends(GroupSizes.SKEWED, 4, 2500, rng)[0]) for _ in range(50)}
    assert firsts == {1200, 600, 400, 300}
