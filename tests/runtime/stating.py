"""States problems of any operation: packed operands at addresses of their own, any of which may be changed."""

from __future__ import annotations

import ctypes
from functools import cache

from aot.core.formats import SCALE_BLOCK, FactorLayout
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.signature import Argument, signature_of
from aot.measure.call_structs import GATE_INTERLEAVED, ProblemStruct, TensorStruct

QUANTIZED = tuple(x for x in Operation if x.factors_of_d is not None and x.grouping is Grouping.DENSE)
"""The operations of one product that write factors with D."""
QUANTIZED_GROUPS = tuple(x for x in Operation if x.factors_of_d is not None and x not in QUANTIZED)
"""Those of groups of rows."""
IN_ATOMS = tuple(
    x
    for x in Operation
    if x.types.factors is FactorLayout.ATOMS and x.grouping is Grouping.DENSE and x not in QUANTIZED
)
"""The operations of one product of narrow elements whose factors lie in atoms, and whose D is elements alone."""
MANY = tuple(x for x in Operation if x.has_parts)
"""The operations of several weights, whose operands are stated by part: test_many.py."""
DENSE = tuple(
    x
    for x in Operation
    if x.grouping is Grouping.DENSE and x not in (*IN_ATOMS, *QUANTIZED, *MANY) and x.types.weight is None
)
"""The operations of one product, whose operands are matrices of whole bytes."""

PACKED = (
    Operation.BF16_INT4_G128_KK,
    Operation.BF16_NVFP4_KK,
    Operation.FP16_INT8_KK,
    Operation.BF16_NVFP4_ROWS_KK,
)
"""Some operations of packed weights: without float32 factors, with one, with one for each row; and one in rows."""
PACKED_GATES = (Operation.BF16_INT4_G128_KK_SWIGLU, Operation.FP16_INT8_KK_GEGLU, Operation.BF16_NVFP4_ROWS_KK_SWIGLU)
"""Some gates of two."""
PACKED_GROUPS = (
    Operation.BF16_MXFP4_KK_GROUPED,
    Operation.BF16_NVFP4_KK_GATHERED,
    Operation.FP16_INT8_KK_GROUPED,
    Operation.BF16_NVFP4_ROWS_KK_GROUPED,
)
"""Some groups of them."""
NARROW_GROUPS = (
    Operation.E4M3_BF16_KK_GROUPED,
    Operation.E4M3_BF16_KK_GATHERED,
    Operation.E4M3_BF16_BLOCK_KK_GROUPED,
    Operation.E4M3_BF16_BLOCK_KK_GATHERED_SWIGLU,
    Operation.NVFP4_NVFP4_KK_GROUPED_SWIGLU,
    Operation.NVFP4_BF16_KK_GROUPED,
)
"""Some groups of narrow rows and weights: of 8 bits with factors of rows, and of blocks, of which one has a gate; and
those of a layer in NVFP4."""

OPERANDS = ("a", "b", "d", "bias", "scale_a", "scale_b", "residual", "scale_d", "own_d", "factors_d")
"""The tensors of `aot_gemm_problem_t`."""
ADDRESSES = {name: place << 44 for place, name in enumerate(OPERANDS, 1)}
"""Further apart than any problem of the tests reaches."""
FP32_BYTES = 4


@cache
def operands_of(operation):
    """List the tensors that a problem of an operation has."""
    taken = signature_of(operation, has_workspace=False, prefetches_b=False)
    return tuple(name for name in OPERANDS if Argument(name) in taken)


def element_bytes(operation, name):
    elements = {"a": operation.types.a, "b": operation.types.b, "bias": operation.bias}
    elements |= dict.fromkeys(("d", "residual"), operation.d)
    return elements[name].num_bytes if name in elements else FP32_BYTES


def extents(operation, m, n, k):
    """Return the rows and columns of each of the tensors."""
    rows, blocks = operation.num_rows_of_b(n), -(-k // SCALE_BLOCK)
    is_blocked = operation.types.factors is FactorLayout.BLOCK
    return {
        "a": (m, k),
        "b": (rows, k),
        "d": (m, n),
        "bias": (1, rows),
        "scale_a": (m, blocks if is_blocked else 1),
        "scale_b": (-(-n // SCALE_BLOCK), blocks) if is_blocked else (rows, 1),
        "residual": (m, n),
        "scale_d": (1, 1),
        "own_d": (1, 1),
        "factors_d": (1, 1),
    }


def packed(operation, m, n, k):
    """Return the strides of each of the tensors where nothing lies between rows; a factor for each row."""
    strides = {name: (columns, 1) for name, (_, columns) in extents(operation, m, n, k).items()}
    if not operation.layout.a_k_major:
        strides["a"] = 1, m
    if not operation.layout.b_k_major:
        strides["b"] = 1, operation.num_rows_of_b(n)
    return strides


def state(library, operation, m, n, k, *, flags=0, device=-1, num_groups=0, **changes):
    """State a problem; `changes` gives tensors other (address, strides) by their names, or None for all 0.

    Rows of a gate are in turns where they have to be.
    """
    strides = packed(operation, m, n, k)
    given = {name: (ADDRESSES[name], strides[name]) for name in operands_of(operation)} | changes
    number = library.c.aot_gemm_operation(operation.call.encode())
    flags |= GATE_INTERLEAVED if operation.is_interleaved else 0
    stated = ProblemStruct(ctypes.sizeof(ProblemStruct), number, device, m, n, k, flags=flags)
    stated.num_groups = num_groups
    for name, tensor in given.items():
        if tensor is not None:
            setattr(stated, name, TensorStruct(*tensor))
    return stated


def by_call():
    """Return one operation of each that a caller may ask for, whatever its layout, in the order of the catalogue."""
    return list({x.call: x for x in reversed(DENSE)}.values())[::-1]
