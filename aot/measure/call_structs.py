"""The structs of calls in the C API, templates/include/, and how a call of each kind becomes one."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from aot.core.grouping import Grouping
from aot.core.operands import element_of
from aot.core.signature import Argument
from aot.kinds.rows.signature import RowArgument

if TYPE_CHECKING:
    from aot.core.operands import GemmCall, Tensor
    from aot.kinds.rows.call import RowCall


class TensorStruct(ctypes.Structure):
    """`aot_gemm_tensor_t`."""

    _fields_ = (("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 2))


class GroupStrides(ctypes.Structure):
    """`aot_gemm_group_strides_t`."""

    _fields_ = tuple((x, ctypes.c_int64) for x in ("a", "b", "d", "bias", "scale_a", "scale_b", "residual"))


class PartStruct(ctypes.Structure):
    """`aot_gemm_part_t`."""

    _fields_ = (("n", ctypes.c_int64), *((x, TensorStruct) for x in ("b", "d", "bias")))


class ProblemStruct(ctypes.Structure):
    """`aot_gemm_problem_t`, stated here alone in Python.

    tests/unit/measure/test_kernel_library.py compares it with the header through the C compiler.
    """

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        ("operation", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("a", TensorStruct),
        ("b", TensorStruct),
        ("d", TensorStruct),
        ("flags", ctypes.c_uint64),
        ("bias", TensorStruct),
        ("scale_a", TensorStruct),
        ("scale_b", TensorStruct),
        ("residual", TensorStruct),
        ("scale_d", TensorStruct),
        ("num_groups", ctypes.c_int64),
        ("group_strides", GroupStrides),
        ("offsets", TensorStruct),
        ("index", TensorStruct),
        ("rows_of_a", ctypes.c_int64),
        ("b_of_groups", ctypes.POINTER(ctypes.c_void_p)),
        ("parts", ctypes.POINTER(PartStruct)),
        ("num_parts", ctypes.c_int64),
        ("scale_b_of_groups", ctypes.POINTER(ctypes.c_void_p)),
        ("own_d", TensorStruct),
        ("factors_d", TensorStruct),
    )


B_CONSTANT = 1
"""Flag of a problem whose B nothing writes meanwhile. Source: aot_gemm.h, AOT_GEMM_B_CONSTANT."""

GATE_INTERLEAVED = 2
"""Flag of a problem whose B has gate row 2j before linear row 2j + 1. Source: aot_gemm.h, AOT_GEMM_GATE_INTERLEAVED."""

GATE_PARTS = 32
"""Flag of a problem whose linear rows of B are a step of their own from the gate's. Source: aot_gemm.h,
AOT_GEMM_GATE_PARTS."""

OFFSETS_START = 16
"""Flag of a problem whose offsets begin with the first group's start. Source: aot_gemm.h, AOT_GEMM_OFFSETS_START."""


class SelectionStruct(ctypes.Structure):
    """`aot_gemm_selection_t`."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in ("kernel", "tier", "section", "index", "layout", "exchanged")),
        *((name, ctypes.c_int64) for name in "mnk"),
        *((name, ctypes.c_int32) for name in ("table", "tile_order")),
        *((name, ctypes.c_int64) for name in ("num_groups", "num_launches")),
    )


class RowsTensorStruct(ctypes.Structure):
    """`aot_rows_tensor_t`."""

    _fields_ = (("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 3))


class RowsProblemStruct(ctypes.Structure):
    """`aot_rows_problem_t`, stated here alone in Python; a test compares it with the header through the C compiler."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        ("operation", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("flags", ctypes.c_uint64),
        ("eps", ctypes.c_float),
        ("weight_offset", ctypes.c_float),
        ("x", RowsTensorStruct),
        ("y", RowsTensorStruct),
        ("residual", RowsTensorStruct),
        ("residual_out", RowsTensorStruct),
        ("weight", RowsTensorStruct),
        ("bias", RowsTensorStruct),
        ("cos", RowsTensorStruct),
        ("sin", RowsTensorStruct),
        ("scale", RowsTensorStruct),
        ("heads", ctypes.c_int64),
        ("positions", ctypes.c_int64),
        ("rotary_dim", ctypes.c_int64),
        ("tensor_scale", RowsTensorStruct),
        ("offsets", RowsTensorStruct),
        ("index", RowsTensorStruct),
        ("num_groups", ctypes.c_int64),
        ("rows_of_x", ctypes.c_int64),
        ("keys", RowsTensorStruct),
        ("values", RowsTensorStruct),
        ("key_cache", RowsTensorStruct),
        ("value_cache", RowsTensorStruct),
        ("cache_position", RowsTensorStruct),
        ("key_heads", ctypes.c_int64),
        ("cache_length", ctypes.c_int64),
        ("num_positions", ctypes.c_int64),
    )


class RowsSelectionStruct(ctypes.Structure):
    """`aot_rows_selection_t`."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in ("kernel", "tier", "section", "index")),
        *((name, ctypes.c_int64) for name in ("rows", "cols")),
        *((name, ctypes.c_int32) for name in ("table", "reserved")),
    )


SCALE_GIVEN = 1
"""Flag of a problem whose scale is read. Source: aot_gemm_rows.h, AOT_ROWS_SCALE_GIVEN."""

INTERLEAVED = 2
"""Flag of a problem whose pairs lie side by side. Source: aot_gemm_rows.h, AOT_ROWS_INTERLEAVED."""

ROUND_NORM = 4
"""Flag of a problem whose normalised rows are rounded to X's type. Source: aot_gemm_rows.h, AOT_ROWS_ROUND_NORM."""

ROWS_OFFSETS_START = 8
"""Flag of a problem whose offsets begin with the first start. Source: aot_gemm_rows.h, AOT_ROWS_OFFSETS_START."""

CURRENT_DEVICE = -1
"""What `device` is for the calling thread's current device. Source: aot_gemm.h, aot_gemm_problem_t."""


def _struct(tensor: Tensor | None) -> TensorStruct:
    """Return a tensor as the library takes it; one that is not there is all zero."""
    if tensor is None:
        return TensorStruct()
    return TensorStruct(tensor.address, (tensor.matrix.row_stride, tensor.matrix.column_stride))


_GROUPED = (
    *(Argument.A, Argument.B, Argument.D),
    *(Argument.BIAS, Argument.SCALE_A, Argument.SCALE_B, Argument.RESIDUAL),
)
"""The tensors that have a stride from group to group, in the order of `GroupStrides`."""

_FIELDS = (Argument.BIAS, Argument.SCALE_A, Argument.SCALE_B, Argument.RESIDUAL, Argument.SCALE_D)
"""The tensors behind the flags, in the struct's order."""


_OF_PARTS = (Argument.B, Argument.D, Argument.BIAS)
"""What each of several weights has of its own, in the order of `PartStruct`."""


def _parts(call: GemmCall) -> list[PartStruct]:
    """Return the weights of a call of several: slices of B's rows, of D's columns and of the bias."""
    operation, found, start = call.problem.operation, [], 0
    if not operation.has_parts:
        return []
    for n in call.part_extents or (call.problem.n,):
        tensors = []
        for argument in _OF_PARTS:
            tensor = call.tensors.get(argument)
            if tensor is not None:
                step = tensor.matrix.row_stride if argument is Argument.B else tensor.matrix.column_stride
                offset = element_of(operation, argument).size_of(start * step)
                tensor = replace(tensor, address=tensor.address + offset)
            tensors.append(_struct(tensor))
        found.append(PartStruct(n, *tensors))
        start += n
    return found


def gemm_struct(call: GemmCall, operation: int, *, b_is_constant: bool) -> ProblemStruct:
    """Make the struct of a call of products.

    Args:
        call: operands and sizes.
        operation: the library's number of its operation.
        b_is_constant: promise that nothing writes B meanwhile.
    """
    problem, tensors, parts = call.problem, call.tensors, _parts(call)
    a, d = tensors[Argument.A].matrix, tensors[Argument.D].matrix
    strides = {x: tensors[x].matrix.group_stride if x in tensors else 0 for x in _GROUPED}
    flags = (B_CONSTANT if b_is_constant else 0) | (GATE_INTERLEAVED if call.is_interleaved else 0)
    b = tensors[Argument.B]
    if call.is_linear_first:
        step = b.matrix.num_rows // 2 * b.matrix.row_stride
        b = replace(b, address=b.address + problem.operation.b.element.size_of(step))
        flags, strides[Argument.B] = flags | GATE_PARTS, -step
        if problem.operation.b.weight is not None and Argument.SCALE_B in tensors:
            strides[Argument.SCALE_B] = problem.n * tensors[Argument.SCALE_B].matrix.row_stride
    own = {x: y for x, y in {**tensors, Argument.B: b}.items() if not parts or x not in _OF_PARTS}
    return ProblemStruct(
        ctypes.sizeof(ProblemStruct),
        operation,
        CURRENT_DEVICE,
        d.num_rows,
        d.num_columns,
        a.num_columns,
        *(_struct(own.get(x)) for x in (Argument.A, Argument.B, Argument.D)),
        flags,
        *(_struct(own.get(x)) for x in _FIELDS),
        problem.num_groups,
        GroupStrides(*strides.values()),
        *(_struct(tensors.get(x)) for x in (Argument.OFFSETS, Argument.INDEX)),
        a.num_rows if problem.operation.grouping is Grouping.GATHERED else 0,
        None,
        (PartStruct * len(parts))(*parts) if parts else None,
        len(parts),
        None,
        *(_struct(tensors.get(x)) for x in (Argument.OWN_D, Argument.FACTORS_D)),
    )


def _row_flags(call: RowCall) -> int:
    parameters = call.parameters
    flags = SCALE_GIVEN if call.scale_is_given else 0
    flags |= INTERLEAVED if parameters.is_interleaved else 0
    flags |= ROWS_OFFSETS_START if call.groups is not None and call.groups.start is not None else 0
    return flags | (ROUND_NORM if parameters.rounds_norm else 0)


_OF_HEADS = (RowArgument.X, RowArgument.Y, RowArgument.KEYS, RowArgument.VALUES)
"""Tensors of a rotary embedding that are a matrix of heads for each token."""


def rows_struct(call: RowCall, operation: int) -> RowsProblemStruct:
    """Make the struct of a call of an operation on rows.

    Args:
        call: tensors, sizes and numbers.
        operation: the library's number of its operation.
    """
    found = RowsProblemStruct(ctypes.sizeof(RowsProblemStruct), operation, CURRENT_DEVICE)
    found.rows, found.cols, found.flags = call.problem.rows, call.problem.cols, _row_flags(call)
    found.eps, found.weight_offset = call.parameters.eps, call.parameters.weight_offset
    is_rotary = call.problem.operation.is_rotary
    for argument, tensor in call.tensors.items():
        matrix = tensor.matrix
        strides: tuple[int, ...] = (matrix.row_stride, matrix.column_stride)
        if argument in (RowArgument.KEY_CACHE, RowArgument.VALUE_CACHE) and call.cache is not None:
            strides = call.cache.heads * matrix.group_stride, matrix.row_stride, matrix.group_stride
        elif is_rotary and argument in _OF_HEADS:
            strides = matrix.group_stride, *strides
        setattr(found, argument.value, RowsTensorStruct(tensor.address, (*strides, *(0,) * (3 - len(strides)))))
    if call.groups is not None:
        found.num_groups, found.rows_of_x = len(call.groups.ends), call.groups.rows_of_x
    if call.cache is not None:
        cache = call.cache
        found.key_heads, found.cache_length, found.num_positions = cache.heads, cache.length, cache.num_positions
        found.cache_position.strides[0] = 1
    if is_rotary:
        tokens = call.tensors[RowArgument.X].matrix
        found.rows, found.heads = tokens.num_groups, tokens.num_rows
        angles = call.tensors[RowArgument.COS].matrix
        found.positions, found.rotary_dim = angles.num_rows, 2 * angles.num_columns
    return found


AnyStruct: TypeAlias = ProblemStruct | RowsProblemStruct
