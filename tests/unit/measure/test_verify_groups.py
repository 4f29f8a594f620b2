"""The cases of groups: a right kernel passes, and wrong ones are found."""

import numpy as np
import pytest

from aot.core.errors import VerificationError
from aot.core.grouping import Grouping
from aot.core.numerics import encode
from aot.core.operands import element_of
from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.measure import edge_shapes as cases
from aot.measure.group_inputs import GroupSizes, draw_ends
from aot.measure.verify import Verifier
from tests.unit.twins import TwinGpu, TwinKernels, kernel_of, memory

A, B, D, BIAS, SCALE_A, SCALE_B = (Argument(x) for x in ("a", "b", "d", "bias", "scale_a", "scale_b"))
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


def stack_of(operation, argument, tensor):
    """Return the elements of an operand in memory, (group, row, column)."""
    matrix, dtype = tensor.matrix, element_of(operation, argument)
    flat = memory(tensor.address, matrix.num_elements, dtype)
    strides = tuple(dtype.num_bytes * x for x in (matrix.group_stride, matrix.row_stride, matrix.column_stride))
    return np.lib.stride_tricks.as_strided(flat, (matrix.num_groups, matrix.num_rows, matrix.num_columns), strides)


class GroupKernels(TwinKernels):
    """A kernel of groups, that may be wrong in one way."""

    fault = ""

    def _compute(self, call, fault):
        operation = call.problem.operation
        stacks = {x: stack_of(operation, x, y) for x, y in call.tensors.items()}
        ends = np.ascontiguousarray(stacks.pop(Argument.OFFSETS)[0, :, 0]).view(np.int32)
        d = stacks.pop(D)
        if operation.grouping is Grouping.K_GROUPED:
            for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
                if start == end:
                    d[group] = 1 if self.fault == "empty" else 0
                    continue
                given = {x: y[0][:, start:end] for x, y in stacks.items()}
                d[group] = self.product(operation, given, call.is_interleaved)
            return
        index = stacks.pop(Argument.INDEX, None)
        rows = np.arange(len(d[0])) if index is None else np.ascontiguousarray(index[0, :, 0]).view(np.int32)
        for group, (start, last) in enumerate(zip([0, *ends], ends, strict=False)):
            end = last + 1 if self.fault == "one more" and last < len(rows) else last
            if start < end:
                taken = self._group(operation, stacks, group, rows[start:end])
                d[0][start:end] = self.product(operation, taken, call.is_interleaved)
        if self.fault == "past the last" and ends[-1] < len(rows):
            d[0][-1, 0] = 0

    def _group(self, operation, stacks, group, rows):
        """Return a group's operands; rows that A does not have are zeros."""
        height = stacks[A].shape[1]
        is_there = (rows >= 0) & (rows < height)
        found = np.where(is_there, rows, 0)
        if self.fault == "no index":
            found = np.arange(len(rows))
        group = 0 if self.fault == "first weight" else group
        given = {x: y[min(group, len(y) - 1)] for x, y in stacks.items() if x not in (A, SCALE_A)}
        given |= {x: stacks[x][0][found] for x in (A, SCALE_A) if x in stacks}
        if self.fault != "row 0":
            given[A] = np.where(is_there[:, None], given[A], encode(element_of(operation, A), np.zeros(1, np.float32)))
        return given


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


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda x: x.tag)
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


def test_rows_of_no_group_must_not_be_written():
    with pytest.raises(VerificationError, match=r"rows of no group were written, the first is row \d+"):
        verify(Operation.BF16_KK_GROUPED, "past the last")


def test_the_cases_have_all_sizes_and_say_so():
    shapes = cases.edge_shapes(kernel_of(operation=Operation.BF16_KK_GROUPED))
    assert {x.sizes for x in shapes} == set(GroupSizes) - {GroupSizes.EVEN}
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
