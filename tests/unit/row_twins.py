"""Operations on rows on host memory, by their reference; what a fault spoils of them."""

from __future__ import annotations

import numpy as np

from aot.core.block_quantization import quantize
from aot.core.element import ElementType
from aot.core.numerics import decode, encode, pack
from aot.kinds.rows.call import POSITIONS, WRITTEN
from aot.kinds.rows.candidate import RowKernelKey, RowLimits, row_candidate
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.reference import expected_scales, row_reference, scaled
from aot.kinds.rows.signature import RowArgument
from aot.kinds.rows.tuned import TunedRowKernel

VECTORS = RowLimits(16, 8, 1024)
NORM, QUANTIZE, ROTARY = (
    row_operation("bf16_rms_norm"),
    row_operation("bf16_e4m3_quantize"),
    row_operation("bf16_rotary"),
)


def row_kernel_of(operation=NORM, threads=1, sha="ab", *, limits=VECTORS, is_fallback=False):
    key = RowKernelKey(operation, row_candidate("row_registers", threads, 1, 8, 1))
    return TunedRowKernel(key, sha.ljust(64, "0"), limits, is_fallback)


def element_of(operation, argument):
    scales = {RowArgument.SCALE: operation.scale_element, RowArgument.TENSOR_SCALE: ElementType.FLOAT32}
    return scales.get(argument, operation.y if argument is RowArgument.Y else operation.x)


def rows_of(call, argument):
    """Return an operand in memory as rows, of a rotary embedding one for each head of each token.

    Of elements that share bytes it is the bytes.
    """
    from tests.unit.twins import memory

    tensor, element = call.tensors[argument], element_of(call.problem.operation, argument)
    matrix, sharing = tensor.matrix, element.num_sharing
    element = ElementType.UINT8 if sharing > 1 else element
    flat = memory(tensor.address, -(-matrix.num_elements // sharing), element)
    shape = (matrix.num_groups, matrix.num_rows, matrix.num_columns // sharing)
    strides = matrix.group_stride // sharing, matrix.row_stride // sharing, matrix.column_stride
    return np.lib.stride_tricks.as_strided(flat, shape, tuple(element.num_bytes * x for x in strides))


def write_factors(call, values):
    """Write elements and factors of values (rows, cols), by the rules of the toolchain's own rounding."""
    from tests.unit.twins import memory

    op, scale = call.problem.operation, call.tensors[RowArgument.SCALE]
    own = rows_of(call, RowArgument.TENSOR_SCALE).view(np.float32).item() if op.has_tensor_scale else None
    found = quantize(values.astype(np.float32), op.form, None if own is None else np.float32(own))
    taken = slice(None) if call.groups is None else call.groups.taken
    rows_of(call, RowArgument.Y)[0][taken] = pack(found.codes) if op.multiple > 1 else found.codes
    held = memory(scale.address, scale.matrix.num_elements, ElementType.UINT8)
    held[scale.matrix.positions(*map(np.arange, found.factors.shape))] = found.factors
    held[scale.matrix.filled] = 0


def positions_of(call, argument):
    """Return offsets, or an index."""
    from tests.unit.twins import memory

    tensor = call.tensors[argument]
    return memory(tensor.address, tensor.matrix.num_rows, ElementType.INT32).view(np.int32).astype(np.int64)


def write_cache(call, read):
    """Turn keys, and write them and the values to their caches (batch x heads, length, dim)."""
    from tests.unit.twins import memory

    op, cache = call.problem.operation, call.cache
    heads = call.tensors[RowArgument.X].matrix.num_rows
    angles = {x: np.repeat(read[x][::heads], cache.heads, 0) for x in (RowArgument.COS, RowArgument.SIN)}
    keys = row_reference(op, {RowArgument.X: read.pop(RowArgument.KEYS), **angles}, call.parameters).values.values
    words = memory(call.tensors[RowArgument.CACHE_POSITION].address, 2 * cache.num_positions, ElementType.INT32)
    places = words.view(np.int64) % cache.length
    for argument, rows in ((RowArgument.KEY_CACHE, keys), (RowArgument.VALUE_CACHE, read.pop(RowArgument.VALUES))):
        held = rows_of(call, argument)
        tokens = encode(op.y, rows.astype(np.float32)).reshape(cache.batch, -1, cache.heads, held.shape[-1])
        for sequence in range(cache.batch):
            for head in range(cache.heads):
                held[sequence * cache.heads + head][places] = tokens[sequence, :, head]


def read_by(call):
    """Give the values of what a call reads, as rows."""
    found = {}
    for argument in call.tensors:
        if argument not in (RowArgument.SCALE, RowArgument.TENSOR_SCALE, *WRITTEN, *POSITIONS):
            bits = rows_of(call, argument)
            found[argument] = decode(call.problem.operation.x, bits.reshape(-1, bits.shape[-1]))
    return found


def compute_rows(call):
    """Compute a call of a right kernel."""
    op, read = call.problem.operation, read_by(call)
    if call.groups is not None:
        assert positions_of(call, RowArgument.OFFSETS).tolist() == list(call.groups.offsets)
        index = positions_of(call, RowArgument.INDEX) if call.groups.rows_of_x else None
        read[RowArgument.X] = call.groups.rows_taken(read[RowArgument.X], index)
    if op.is_rotary:
        heads = call.tensors[RowArgument.X].matrix.num_rows
        read |= {x: np.repeat(read[x], heads, 0) for x in (RowArgument.COS, RowArgument.SIN)}
        if call.cache is not None:
            write_cache(call, read)
    expected = row_reference(op, read, call.parameters)
    y = expected.values
    if op.factors is not None:
        write_factors(call, y.values)
    elif op.is_quantized:
        scales = rows_of(call, RowArgument.SCALE)[0].view(np.float32)
        if not call.scale_is_given:
            scales[:] = expected_scales(op, y).values
        y = scaled(op, y, scales.astype(np.float64))
    if op.factors is None:
        out = rows_of(call, RowArgument.Y)
        out[:] = encode(op.y, y.values.astype(np.float32)).reshape(out.shape)
    if RowArgument.RESIDUAL_OUT in call.tensors:
        rows_of(call, RowArgument.RESIDUAL_OUT)[0][:] = encode(op.x, expected.residual_out.astype(np.float32))


def spoil_factors(scale, fault):
    """Let right factors in atoms be a faulty kernel's: the first, the last byte behind a row's, or the last of all."""
    from tests.unit.twins import memory

    places = {"scales": [0], "filled": scale.matrix.filled.ravel()[-1:], "fills rows": [-1]}
    memory(scale.address, scale.matrix.num_elements, ElementType.UINT8)[places.get(fault, [])] ^= 1


def spoil(call, fault, num_launches):
    """Let a right result be a faulty kernel's."""
    from tests.unit.twins import memory

    op, y = call.problem.operation, call.tensors[RowArgument.Y]
    out = rows_of(call, RowArgument.Y)
    if fault == "wrong":
        out[-1, -1, -1] ^= 0x40
    if fault == "unstable":
        out[0, 0, 0] ^= out.dtype.type(1 - num_launches & 1)
    if fault == "unwritten":
        out[0, 0] = 0xFFFF if op.y.bits == 16 else 0xFF
    if fault == "guards":
        memory(y.address - op.y.num_bytes, 1, op.y)[:] = 7
    if fault == "padding" and y.matrix.num_rows > 1:
        memory(y.address + op.y.size_of(y.matrix.num_columns), 1, op.y)[:] = 7
    if fault == "reads x":
        memory(call.tensors[RowArgument.X].address, 1, op.x)[:] ^= 1
    if fault == "residual" and RowArgument.RESIDUAL_OUT in call.tensors:
        rows_of(call, RowArgument.RESIDUAL_OUT)[0, 0, 0] ^= 1
    if op.factors is not None:
        spoil_factors(call.tensors[RowArgument.SCALE], fault)
    elif fault == "scales" and not call.scale_is_given:
        rows_of(call, RowArgument.SCALE)[0, :1, :1].view(np.float32)[:] *= np.float32(1.01)
