"""A twin of kernels of groups, that may be wrong in one way."""

import numpy as np

from aot.core.grouping import Grouping
from aot.core.numerics import encode
from aot.core.operands import element_of
from aot.core.signature import Argument
from tests.unit.twins import TwinKernels, memory

A, D, SCALE_A = Argument.A, Argument.D, Argument.SCALE_A


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
