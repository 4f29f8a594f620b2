"""What the parameters of a launch of a row kernel must be: derived from the problem that the C API was given, alone."""

from __future__ import annotations

import struct
from math import ceil

from aot.kinds.rows.operation import RowScale
from aot.kinds.rows.signature import RowArgument, RowFlag
from aot.measure.call_structs import INTERLEAVED, ROWS_OFFSETS_START, SCALE_GIVEN
from tests.equivalence.operand_cases import BLOCK
from tests.equivalence.operand_launches import Plain, integer, tensor

COLUMNS_OF_FACTOR = {RowScale.NVFP4: 16, RowScale.MX: 32}
"""Of scales in atoms, of 128 rows by 4 factors and 512 bytes each, which lie behind one another."""

VECTORS = (
    *(RowArgument.WEIGHT, RowArgument.BIAS),
    *(RowArgument.TENSOR_SCALE, RowArgument.OFFSETS, RowArgument.INDEX, RowArgument.CACHE_POSITION),
)
OF_KEYS, CACHES = (RowArgument.KEYS, RowArgument.VALUES), (RowArgument.KEY_CACHE, RowArgument.VALUE_CACHE)


def _extents(operation, problem, argument):
    rows, cols, heads = problem.rows, problem.cols, problem.heads
    middle = (heads,) if operation.is_rotary else ()
    scales = (rows, ceil(cols / BLOCK) if operation.scale is RowScale.BLOCK else 1)
    if operation.scale in COLUMNS_OF_FACTOR:
        groups = max(problem.num_groups, 1)
        scales = (ceil(rows / 128) + groups - 1, ceil(ceil(cols / COLUMNS_OF_FACTOR[operation.scale]) / 4) * 512)
    angles = problem.positions, problem.rotary_dim // 2
    sequences = rows // problem.num_positions if problem.num_positions else 0
    known = {
        **dict.fromkeys(OF_KEYS, (rows, problem.key_heads, cols)),
        **dict.fromkeys(CACHES, (sequences, problem.cache_length, problem.key_heads, cols)),
        RowArgument.CACHE_POSITION: (problem.num_positions,),
        RowArgument.X: (problem.rows_of_x or rows, *middle, 2 * cols if operation.is_pair else cols),
        RowArgument.Y: (rows, *middle, cols),
        RowArgument.COS: angles,
        RowArgument.SIN: angles,
        RowArgument.SCALE: scales,
        RowArgument.TENSOR_SCALE: (1,),
        RowArgument.OFFSETS: (problem.num_groups + bool(problem.flags & ROWS_OFFSETS_START),),
        RowArgument.INDEX: (rows,),
        RowArgument.WEIGHT: (cols,),
        RowArgument.BIAS: (cols,),
    }
    return known.get(argument, (rows, cols))


def flags(problem):
    """Say which operands there are, and how they lie, as the kernels take it."""
    return (
        (RowFlag.HAS_RESIDUAL if problem.residual.data else 0)
        | (RowFlag.HAS_WEIGHT if problem.weight.data else 0)
        | (RowFlag.HAS_BIAS if problem.bias.data else 0)
        | (RowFlag.HAS_RESIDUAL_OUT if problem.residual_out.data else 0)
        | (RowFlag.SCALE_IS_GIVEN if problem.flags & SCALE_GIVEN else 0)
        | (RowFlag.IS_INTERLEAVED if problem.flags & INTERLEAVED else 0)
        | (RowFlag.HAS_OFFSETS if problem.offsets.data else 0)
        | (RowFlag.OFFSETS_START if problem.flags & ROWS_OFFSETS_START else 0)
        | (RowFlag.HAS_INDEX if problem.index.data else 0)
    )


def _strides(kernel, given, argument, extents):
    """Give the strides that a tensor is passed with: a vector none, a fast kernel's matrix all but the last."""
    if argument in VECTORS:
        return []
    if argument is RowArgument.SCALE and kernel.operation.scale in COLUMNS_OF_FACTOR:
        return [extents[1], 1]
    has_last = (kernel.limits.has_last_stride and argument not in CACHES) or argument is RowArgument.SCALE
    return given.strides[: len(extents) if has_last else len(extents) - 1]


def parameters(kernel, problem):
    """List what each parameter of a launch must be."""
    found = []
    for argument in kernel.operation.signature:
        match argument:
            case RowArgument.STREAM:
                continue
            case RowArgument.EPS | RowArgument.WEIGHT_OFFSET:
                found.append(Plain(struct.pack("<f", getattr(problem, argument.value))))
            case RowArgument.FLAGS:
                found.append(integer(flags(problem)))
            case _:
                given, extents = getattr(problem, argument.value), _extents(kernel.operation, problem, argument)
                found.append(tensor(given.data, extents, _strides(kernel, given, argument, extents)))
    return found


def grid(kernel, problem):
    """Give the CTAs along x: one for so many rows, and where rows may be cut, for so many columns."""
    operation, candidate = kernel.operation, kernel.candidate
    is_rotary = operation.is_rotary
    rows = problem.rows * (problem.heads + 2 * problem.key_heads if is_rotary else 1)
    is_cut = not operation.reduces_rows and not is_rotary
    return ceil(rows / candidate.knobs.rows_per_cta) * (ceil(problem.cols / candidate.knobs.columns) if is_cut else 1)
