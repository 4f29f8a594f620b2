"""The kernel of `weight_only_simt`: codes are found one by one where packing has put them. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from typing import Any

from cuda.bindings import driver as cuda
from cutlass import Constexpr, Float32, Int32, Int64, Uint32, const_expr, cute, memory, range_constexpr, select_
from cutlass._mlir.dialects import arith
from cutlass.cutlass_dsl import T

from aot.core.element import BYTE_BITS, ElementType
from aot.core.factor_atoms import ATOM_BYTES, byte_in_atom
from aot.core.operation import Operation
from aot.core.signature import Argument, Signature
from aot.core.weight_format import (
    ATOM_COLUMNS,
    ATOM_ROWS,
    BLOCK_K,
    INT4_OFFSET,
    TILE_ROWS,
    Code,
    PackedLayout,
    WeightFormat,
)
from aot.core.weight_packing import CODE_BYTES, E2M1_BITS, INT4_STARTS
from aot.families._arguments import cutlass_type
from aot.families._epilogue_steps import FUNCTIONS, half_of
from aot.families._group_tiles import most_tiles
from aot.families._packed_operands import offsets_arguments
from aot.families._places import num_groups_of, place_of, write_places
from aot.families._simt_grouped_kernel import _of_group as of_group
from aot.families._simt_grouped_kernel import _part_of_rows as part_of_rows
from aot.families._simt_grouped_kernel import _row_of as row_of
from aot.families._simt_kernel import LOADS, ROW, SIDE, THREADS_ACROSS, _multiply
from aot.families._simt_narrow import _e2m1
from aot.families._simt_tile import NUM_THREADS, TILE, TILE_K, num_halves

LEAST_E8M0, EXPONENT_SHIFT = 0x00400000, 23
"""2^-127 as float32, which the code 0 of ue8m0 is, and the place of its other codes. Source: IEEE 754-2019, 3.4."""


def _memory(packed: Any, element: Any) -> Any:
    """View the bytes of a packed weight as elements; while tracing."""
    pointer = cute.recast_ptr(packed.iterator, dtype=element)
    return cute.make_tensor(pointer, cute.make_layout(1 << 30))


@cute.jit
def _rotated(word: Uint32, count: Int32) -> Uint32:
    """Rotate a word to the right by 0 to 31."""
    return Uint32((word >> count) | (word << ((32 - count) & 31)))


@cute.jit
def _byte_place(row: Int32, k: Int32) -> Int32:
    """Return at which byte of a block a code of 8 bits is, by its row of 16 and its k of 128."""
    return Int32(k // 32 * 512 + row % 8 * 64 + k % 32 // 8 * 16 + k % 8 * 2 + row // 8)


@cute.jit
def _code(packed: cute.Tensor, block: Int64, row: Int32, k: Int32, form: Constexpr[WeightFormat]) -> Int32:
    """Read a code of 4 bits of a block, by its row of 16 and its k of 128: see `aot.core.weight_packing`."""
    half, g = row // 8, row % 8
    t, h, p, e = k % 32 // 8, k % 8 // 4, k % 4 // 2, k % 2
    at = (((k // 64 * 8 + g) * 4 + t) * 2 + k % 64 // 32) * 2 + h
    word = Uint32(_memory(packed, Uint32)[block // 4 + at])
    register = p * 2 + half
    if const_expr(form.code is Code.INT4):
        # The starts of the four registers are those of the first, and 8 and 4 more: 2, 10, 6, 14.
        start = INT4_STARTS[0] + (INT4_STARTS[1] - INT4_STARTS[0]) * half + (INT4_STARTS[2] - INT4_STARTS[0]) * p
        return Int32(_rotated(word, (start + 16 * e) % 32) & 15)
    # Of the first three registers the bits are the same, each 3 higher; of the last they are others.
    low, sign, last = E2M1_BITS[0][0], E2M1_BITS[0][3], E2M1_BITS[3]
    turned = _rotated(word, (16 * e + 3 * select_(register == 3, Int32(0), register)) % 32)
    usual = Int32((turned >> low) & 7 | ((turned >> sign) & 1) << 3)
    other = Int32((turned >> last[0]) & 3 | ((turned >> last[2]) & 1) << 2 | ((turned >> last[3]) & 1) << 3)
    return Int32(select_(register == 3, other, usual))


@cute.jit
def _group_place(row: Int32, k: Int32, form: Constexpr[WeightFormat]) -> Int32:
    """Return which of a block's factors, or zero points, is that of a row and a k."""
    half, g, groups = row // 8, row % 8, const_expr(form.num_groups(BLOCK_K))
    if const_expr(form.is_nvfp4):
        return Int32((((g * 2 + k % 32 // 16) * 2 + k // 64) * 2 + half) * 2 + k % 64 // 32)
    return Int32((g * groups + k // form.group) * 2 + half)


@cute.jit
def _group_factor(
    packed: cute.Tensor, factors: Int64, place: Int32, element: Constexpr[Any], form: Constexpr[WeightFormat]
) -> Float32:
    """Read a group's factor."""
    if const_expr(form.factor_bits == 16):
        return Float32(_memory(packed, element)[factors // 2 + place].to(Float32))
    if const_expr(form.is_nvfp4):
        return Float32(_memory(packed, cutlass_type(ElementType.E4M3))[factors + place].to(Float32))
    # Widened with its sign, whatever the type that the bytes are viewed as.
    code = Int32(_memory(packed, cutlass_type(ElementType.UINT8))[factors + place].to(Int32) & 0xFF)
    bits = Int32(select_(code == 0, Int32(LEAST_E8M0), code << EXPONENT_SHIFT))
    return Float32(arith.bitcast(T.f32(), bits.ir_value()))


@cute.jit
def _value(
    packed: cute.Tensor,
    place: tuple[Int32, Int32],
    num_blocks: Int32,
    element: Constexpr[Any],
    form: Constexpr[WeightFormat],
) -> Float32:
    """Return the value of an element, with its group's factor."""
    layout, bytes_of = const_expr(PackedLayout(form)), cutlass_type(ElementType.UINT8)
    row, k = place[0] % TILE_ROWS, place[1] % BLOCK_K
    block = (Int64(place[0] // TILE_ROWS) * num_blocks + place[1] // BLOCK_K) * layout.block_bytes
    if const_expr(form.code.bits == 8):
        of_bytes = const_expr({Code.INT8: ElementType.INT8, Code.E4M3: ElementType.E4M3}[form.code])
        return Float32(_memory(packed, cutlass_type(of_bytes))[block + _byte_place(row, k)].to(Float32))
    code = _code(packed, block, row, k, form)
    factors, at = block + layout.code_bytes, _group_place(row, k, form)
    value = Float32(0.0)
    if const_expr(form.code is Code.E2M1):
        value = _e2m1(code)
    elif const_expr(form.has_zeros):
        zero = Int32(_memory(packed, bytes_of)[factors + (layout.factor_bytes + at)].to(Int32))
        value = (code - zero).to(Float32)
    else:
        value = (code - INT4_OFFSET).to(Float32)
    return Float32(value * _group_factor(packed, factors, at, element, form))


@cute.jit
def _value_in_rows(
    packed: cute.Tensor, place: tuple[Int32, Int32], extents: tuple[Int32, Int32], form: Constexpr[WeightFormat]
) -> Float32:
    """Return the value of an element of a weight in rows, with its group's factor, which lies in an atom."""
    layout, of_bytes = const_expr(PackedLayout(form)), cutlass_type(ElementType.UINT8)
    (row, k), runs = place, cute.ceil_div(extents[1], layout.run_k)
    row_bytes = Int64(runs * layout.run_bytes)
    both = Int32(_memory(packed, of_bytes)[row * row_bytes + k // 2].to(Int32)) & 0xFF
    first = cute.ceil_div(extents[0], layout.tile_rows) * layout.tile_rows * row_bytes
    block = k // form.group
    atom = Int64(row // ATOM_ROWS) * runs + block // ATOM_COLUMNS
    factor = _group_factor(packed, first + atom * ATOM_BYTES, byte_in_atom(row, block), None, form)
    return Float32(_e2m1(both >> k % 2 * 4 & 15) * factor)


@cute.jit
def _stage_x(x: cute.Tensor, staged: cute.Tensor, rows: tuple[Int32, Any, Any], first_k: Int32, thread: Int32) -> None:
    """Copy a piece of x to shared memory, widened, zero outside.

    `rows` are the first one, and of groups where the rows of one end, and the index, or None; else None twice.
    """
    first_row, end, index = rows
    for i in range_constexpr(LOADS):
        element = thread + i * NUM_THREADS
        k, row = element % TILE_K, element // TILE_K
        value = Float32(0.0)
        if const_expr(end is None):
            if first_row + row < x.shape[0] and first_k + k < x.shape[1]:
                value = x[first_row + row, first_k + k].to(Float32)
        else:
            found = row_of(index, first_row + row, end, x.shape[0])
            if found >= 0 and first_k + k < x.shape[1]:
                value = x[found, first_k + k].to(Float32)
        staged[k, row] = value


@cute.jit
def _stage_weight(
    packed: cute.Tensor,
    staged: cute.Tensor,
    first: tuple[Int32, Int32],
    extents: tuple[Int32, Int32],
    thread: Int32,
    element: Constexpr[Any],
    form: Constexpr[WeightFormat],
) -> None:
    """Write a piece of the weight's values to shared memory, zero outside."""
    num_blocks = cute.ceil_div(extents[1], BLOCK_K)
    for i in range_constexpr(LOADS):
        at = thread + i * NUM_THREADS
        k, row = at % TILE_K, at // TILE_K
        value = Float32(0.0)
        if first[0] + row < extents[0] and first[1] + k < extents[1]:
            if const_expr(form.in_rows):
                value = _value_in_rows(packed, (first[0] + row, first[1] + k), extents, form)
            else:
                value = _value(packed, (first[0] + row, first[1] + k), num_blocks, element, form)
        staged[k, row] = value


@cute.jit
def _finished(total: Float32, at: Int32, scale_b: Any, bias: cute.Tensor, half: Constexpr[Any]) -> Float32:
    """Return a sum with its factor and bias, those of a row of the weight, or of one of a gate's two."""
    value = total
    if const_expr(scale_b is not None):
        value = value * half_of(scale_b, half)[at]
    of_bias = half_of(bias, half)
    if at < of_bias.shape[0]:
        value = value + of_bias[at].to(Float32)
    return value


def _weight_of(stack: Any, place: Any) -> Any:
    """View a packed weight of a stack, which begins at a multiple of 16 bytes; to be called while tracing."""
    step = cute.assume(Int64(place) * Int64(stack.stride[0]), divby=CODE_BYTES)
    return cute.make_tensor(stack.iterator + step, cute.make_layout(stack.shape[1:], stride=stack.stride[1:]))


@cute.jit
def _compute(
    a: cute.Tensor,
    b: cute.Tensor,
    d: cute.Tensor,
    scale_b: Any,
    bias: cute.Tensor,
    groups: Any,
    operation: Constexpr[Operation],
) -> None:
    """Compute a block's piece of D. `groups` are None, or of groups the offsets, the index or None, and the places."""
    form = const_expr(operation.b.weight)
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    tiles_n = cute.ceil_div(d.shape[1], TILE)
    first_m, first_n = block // tiles_n * TILE, block % tiles_n * TILE
    rows_of_x, end_m, depth = (first_m, None, None), d.shape[0], a.shape[1]
    if const_expr(groups is not None):
        offsets, index, places = groups
        part = part_of_rows(a, d, offsets, num_groups_of(b, places))
        first_m, end_m, depth = part.first_m, part.end_m, part.end_k
        rows_of_x = (first_m, end_m, index)
        b = _weight_of(b, place_of(places, part.group))
        scale_b, bias = of_group(scale_b, part.group), of_group(bias, part.group)
    shared, layout = memory.SmemAllocator(), cute.make_layout((TILE_K, TILE), stride=(ROW, 1))
    halves = num_halves(operation)
    staged_a = shared.allocate_tensor(Float32, layout, 16)
    staged_b = [shared.allocate_tensor(Float32, layout, 16) for _ in range(halves)]
    row, column = thread // THREADS_ACROSS * SIDE, thread % THREADS_ACROSS * SIDE
    sums = [cute.make_rmem_tensor((SIDE, SIDE), Float32) for _ in range(halves)]
    parts = [None] if const_expr(halves == 1) else list(range(halves))
    weights = [b] if const_expr(halves == 1) else [b[half, None, None] for half in range(halves)]
    for half in range_constexpr(halves):
        sums[half].fill(0.0)
    for step in range(cute.ceil_div(depth, TILE_K)):
        _stage_x(a, staged_a, rows_of_x, step * TILE_K, thread)
        extents = (d.shape[1], a.shape[1])
        for half in range_constexpr(halves):
            _stage_weight(
                weights[half], staged_b[half], (first_n, step * TILE_K), extents, thread, a.element_type, form
            )
        cute.arch.sync_threads()
        for half in range_constexpr(halves):
            _multiply(staged_a, staged_b[half], sums[half], row, column)
        cute.arch.sync_threads()
    for i in range_constexpr(SIDE):
        for j in range_constexpr(SIDE):
            at_m, at_n = first_m + row + i, first_n + column + j
            if at_m < end_m and at_n < d.shape[1]:
                value = _finished(sums[0][i, j], at_n, scale_b, bias, parts[0])
                if const_expr(operation.gate is not None):
                    linear = _finished(sums[1][i, j], at_n, scale_b, bias, parts[1])
                    value = Float32(FUNCTIONS[operation.gate](value) * linear)
                d[at_m, at_n] = value.to(d.element_type)


@cute.kernel
def _kernel(
    a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, scale_b: Any, bias: cute.Tensor, operation: Constexpr[Operation]
) -> None:
    _compute(a, b, d, scale_b, bias, None, operation)


@cute.kernel
def _grouped_kernel(
    a: cute.Tensor,
    b: cute.Tensor,
    d: cute.Tensor,
    scale_b: Any,
    bias: cute.Tensor,
    groups: tuple[Any, Any, Any],
    operation: Constexpr[Operation],
) -> None:
    _compute(a, b, d, scale_b, bias, groups, operation)


def make_entry(operation: Operation) -> Any:
    """Make the entry, which launches one block for each TILE by TILE piece of D."""

    @cute.jit
    def entry(
        a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, scale_b: Any, bias: cute.Tensor, stream: cuda.CUstream
    ) -> None:
        blocks = cute.ceil_div(d.shape[0], TILE) * cute.ceil_div(d.shape[1], TILE)
        _kernel(a, b, d, scale_b, bias, operation).launch(grid=(blocks, 1, 1), block=(NUM_THREADS, 1, 1), stream=stream)

    @cute.jit
    def grouped_entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_b: Any,
        bias: cute.Tensor,
        offsets: cute.Tensor,
        index: Any,
        b_of_groups: cute.Tensor,
        places: cute.Tensor,
        stream: cuda.CUstream,
    ) -> None:
        write_places((b_of_groups, None), b, None, (places, None), stream, is_dependent=False, bits=BYTE_BITS)
        blocks = most_tiles(d.shape[0], num_groups_of(b, places), TILE) * cute.ceil_div(d.shape[1], TILE)
        _grouped_kernel(a, b, d, scale_b, bias, (offsets, index, places), operation).launch(
            grid=(blocks, 1, 1), block=(NUM_THREADS, 1, 1), stream=stream
        )

    return grouped_entry if operation.grouping.groups_rows else entry


def arguments(signature: Signature, operation: Operation) -> tuple[Any, ...]:
    """Make the arguments of the entry; of the factors None where the signature has none."""

    def tensor(element: ElementType, rank: int) -> Any:
        shape, strides = (tuple(make() for _ in range(rank)) for make in (cute.sym_int, cute.sym_int64))
        align = element.num_bytes
        return cute.runtime.make_fake_tensor(cutlass_type(element), shape, stride=strides, assumed_align=align)

    groups_rows = operation.grouping.groups_rows
    pair = (cute.sym_int(),) if operation.gate is not None or groups_rows else ()
    bias = cute.runtime.make_fake_tensor(
        cutlass_type(operation.bias),
        (*pair, cute.sym_int()),
        stride=(*(cute.sym_int64() for _ in pair), 1),
        assumed_align=operation.bias.num_bytes,
    )
    steps = *(cute.sym_int64(divisibility=CODE_BYTES) for _ in pair), cute.sym_int64(), cute.sym_int64()
    shape = tuple(cute.sym_int() for _ in steps)
    weight = cute.runtime.make_fake_tensor(
        cutlass_type(ElementType.UINT8), shape, stride=steps, assumed_align=CODE_BYTES
    )
    return (
        tensor(operation.a.element, 2),
        weight,
        tensor(operation.d, 2),
        tensor(ElementType.FLOAT32, 1 + len(pair)) if Argument.SCALE_B in signature else None,
        bias,
        *(offsets_arguments(is_gathered=Argument.INDEX in signature) if groups_rows else ()),
        cute.runtime.make_fake_stream(),
    )
