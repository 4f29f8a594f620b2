"""The fallback family's kernel over groups, in CuTe DSL: of rows, gathered or not, and along k. Imports CUTLASS.

There are as many blocks as groups of any sizes may need; each finds the group and the rows that it computes. Rows that
are in no group are not written. A row whose index is not one of A's is read as zeros, without a factor.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Constexpr, Float32, Int32, Int64, const_expr, cute, memory, range_constexpr

from aot.core.element import ElementType
from aot.core.factor_atoms import ATOM_BYTES, row_in_atoms
from aot.core.formats import FactorLayout, Operand
from aot.core.operands import element_of
from aot.core.operation import Operation
from aot.core.signature import Argument, Signature
from aot.core.weight_format import ATOM_COLUMNS, ATOM_ROWS
from aot.families._arguments import cutlass_type
from aot.families._epilogue_registers import in_turns
from aot.families._epilogue_steps import EpilogueOperands, finish
from aot.families._group_starts import Starts
from aot.families._places import addresses_argument, num_groups_of, place_of, steps_of_groups, write_places
from aot.families._simt_kernel import LOADS, ROW, SIDE, THREADS_ACROSS
from aot.families._simt_kernel import _multiply as multiply
from aot.families._simt_kernel import _tensor as tensor_argument
from aot.families._simt_narrow import element_at, factor_at
from aot.families._simt_quantized import store_row
from aot.families._simt_tile import NUM_THREADS, TILE, TILE_K, num_halves


class Part(NamedTuple):
    """What a block computes: a group's rows and columns of D, and the part of k that is summed."""

    group: Any
    """Int32: the group; any one where the block has nothing to do, for lack of rows and of k."""
    first_m: Any
    """Int32: the first row, of those of A and D."""
    end_m: Any
    first_n: Any
    first_k: Any
    end_k: Any


@cute.jit
def _row_of(index: cute.Tensor | None, row: Int32, end: Int32, num_rows: Int32) -> Int32:
    """Return the row of A that a row is, by the index if there is one; -1 for one that is not there."""
    found = Int32(-1)
    if row < end:
        found = row
        if const_expr(index is not None):
            found = index[row]
    if found >= num_rows:
        found = Int32(-1)
    return found


@cute.jit
def _stage(
    source: cute.Tensor,
    staged: cute.Tensor,
    rows: tuple[Int32, Int32],
    depth: tuple[Int32, Int32],
    index: cute.Tensor | None,
    scale: cute.Tensor | None,
    first_scaled: Int32,
    form: Constexpr[Operand],
    turn: Constexpr[int | None] = None,
) -> None:
    """Copy a TILE by TILE_K piece of a (rows, k) operand to shared memory, widened and scaled, zero outside.

    With a turn, 0 or 1, it is a piece of those of each two rows that come first or second.

    Args:
        source: the operand.
        staged: shared memory, (k, rows).
        rows: the first row and the end of those that are there.
        depth: the same along k.
        index: the rows of the operand by the piece's.
        scale: factors of blocks, as `form` has them.
        first_scaled: the row that the operand's first one is of those that have factors.
        form: of the operand.
        turn: see above.
    """
    thread, _, _ = cute.arch.thread_idx()
    for i in range_constexpr(LOADS):
        element = thread + i * NUM_THREADS
        k, row = depth[0] + element % TILE_K, rows[0] + element // TILE_K
        value = staged.element_type(0)
        found = _row_of(index, row, rows[1], source.shape[0])
        if found >= 0 and k < depth[1]:
            at = found if const_expr(turn is None) else 2 * found + turn
            value = element_at(source, at, k, form).to(staged.element_type)
            if const_expr(scale is not None):
                value = value * factor_at(scale, first_scaled + at, k, source.shape[1], form)
        staged[element % TILE_K, element // TILE_K] = value


@cute.jit
def _find_rows(starts: Any, num_groups: Int32, tile: Int32) -> Any:
    """Return the group that has a tile of rows, and the tile's first row and end; all groups have theirs in order."""
    group, first, end, before = Int32(num_groups), Int32(0), Int32(0), Int32(0)
    for g in range(num_groups):
        start, stop = starts[g], starts[g + 1]
        tiles = cute.ceil_div(cutlass.max(stop - start, 0), TILE)
        if tile >= before and tile < before + tiles:
            group, first, end = Int32(g), start + (tile - before) * TILE, stop
        before = before + tiles
    return group, first, end


@cute.jit
def _part_of_rows(a: cute.Tensor, d: cute.Tensor, offsets: cute.Tensor, groups: Int32) -> Part:
    """Find the part of a block where rows are grouped."""
    block, _, _ = cute.arch.block_idx()
    tiles_n = cute.ceil_div(d.shape[1], TILE)
    group, first_m, end_m = _find_rows(Starts(offsets, groups, d.shape[0]), groups, block // tiles_n)
    depth = cutlass.select_(group < groups, Int32(a.shape[1]), Int32(0))
    return Part(cutlass.min(group, groups - 1), first_m, end_m, block % tiles_n * TILE, Int32(0), depth)


@cute.jit
def _part_of_depth(a: cute.Tensor, d: cute.Tensor, offsets: cute.Tensor) -> Part:
    """Find the part of a block where k is grouped."""
    block, _, _ = cute.arch.block_idx()
    tiles_n = cute.ceil_div(d.shape[2], TILE)
    tiles = tiles_n * cute.ceil_div(d.shape[1], TILE)
    group, tile = block // tiles, block % tiles
    starts = Starts(offsets, d.shape[0], a.shape[1])
    first_m, first_n = tile // tiles_n * TILE, tile % tiles_n * TILE
    return Part(group, first_m, d.shape[1], first_n, starts[group], starts[group + 1])


def _matrix_of_stack(stack: Any, place: Any, form: Operand) -> Any:
    """View what lies at a place of a stack of B; of elements that share bytes it is of bytes."""
    step = Int64(place) * Int64(stack.stride[0]) // form.element.num_sharing
    return cute.make_tensor(stack.iterator + step, cute.make_layout(stack.shape[1:], stride=stack.stride[1:]))


def _of_group(tensor: Any, group: Any) -> Any:
    """View what a group has of a stack of groups; None where there is none."""
    return None if tensor is None else tensor[(group, *[None] * (cute.rank(tensor) - 1))]


def _atoms_of_group(factors: Any, group: Any, places: Any, b: Any, form: Operand) -> Any:
    """View the bytes of a group's atoms of B, by its place, or as one behind the other's; b is (rows, k)."""
    num_rows = cute.ceil_div(b.shape[0], ATOM_ROWS)
    num_bytes = num_rows * cute.ceil_div(b.shape[1], form.scale.block_k * ATOM_COLUMNS) * ATOM_BYTES
    _, step = steps_of_groups(factors, num_bytes, group, places)
    first = Int64(place_of(places, group)) * step
    return cute.make_tensor(factors.iterator + first, cute.make_layout(num_bytes))


def _halves(b: Any, operation: Operation) -> list[Any]:
    """View what sums are taken of: B, or of a gate each of its halves, or both where their rows are in turns."""
    if operation.is_interleaved:
        return [in_turns(b)] * num_halves(operation)
    return [b] if num_halves(operation) == 1 else [b[half, None, None] for half in range(num_halves(operation))]


def _first_scaled(starts: Any, group: Any, operation: Operation) -> Any:
    """Return the row of A's factors that row 0 of A is, as a group's rows are counted there."""
    in_atoms = operation.types.factors is FactorLayout.ATOMS
    return row_in_atoms(Int32(0), starts[group], group) if in_atoms else Int32(0)


def _operands_of_group(
    group: Any, b: Any, scale_b: Any, bias: Any, scale_d: Any, places: Any, operation: Operation
) -> tuple[Any, Any, Any]:
    """View the factors of a group's B, its bias, and the factor of its sums; None where there is none."""
    if operation.types.factors is FactorLayout.ATOMS:
        rows = in_turns(b) if operation.is_interleaved else b
        scale_b = _atoms_of_group(scale_b, group, places, rows, operation.b)
    else:
        scale_b = _of_group(scale_b, group)
    if scale_d is not None:
        scale_d = cute.make_tensor(scale_d.iterator + group, cute.make_layout(1))
    return scale_b, _of_group(bias, group), scale_d


@cute.jit
def _factor_of_row(scale: cute.Tensor, index: cute.Tensor | None, row: Int32, end: Int32) -> Any:
    """Read the factor of a row, as a vector of one element; 0 for a row that is not there."""
    factor = cute.make_rmem_tensor(1, Float32)
    factor[0] = Float32(0.0)
    found = _row_of(index, row, end, scale.shape[0])
    if found >= 0:
        factor[0] = scale[found]
    return factor


@cute.jit
def _store(
    sums: Any,
    d: cute.Tensor,
    own_d: cute.Tensor | None,
    factors_d: cute.Tensor | None,
    place: Any,
    first_scaled: Int32,
    index: cute.Tensor | None,
    read: Any,
    operation: Constexpr[Operation],
) -> None:
    """Finish, round and store a thread's rows and columns of D, from the first of a `Part` on.

    What is read besides is the factors of A and of B, the bias, and the factor of the sums.
    """
    scale_a, scale_b, bias, scale_d = read
    for i in range_constexpr(SIDE):
        m = place.first_m + i
        if const_expr(operation.factors_of_d is not None):
            of_row = [tuple(x[i, j] for x in sums) for j in range(SIDE)]
            at = (m, place.end_m, place.first_n, first_scaled + m)
            operands = EpilogueOperands(None, scale_b, bias, None, scale_d)
            store_row(of_row, d, factors_d, own_d, *at, operands, operation)
        else:
            factor = None
            if const_expr(operation.types.factors is FactorLayout.VECTOR):
                factor = _factor_of_row(scale_a, index, m, place.end_m)
            operands = EpilogueOperands(factor, scale_b, bias, None, scale_d)
            for j in range_constexpr(SIDE):
                n = place.first_n + j
                if m < place.end_m and n < d.shape[1]:
                    totals = tuple(x[i, j] for x in sums)
                    d[m, n] = finish(totals, Int32(0), n, operands, operation).to(d.element_type)


@cute.kernel
def _kernel(
    a: cute.Tensor,
    b: cute.Tensor,
    d: cute.Tensor,
    scale_a: cute.Tensor | None,
    scale_b: cute.Tensor | None,
    bias: cute.Tensor | None,
    scale_d: cute.Tensor | None,
    own_d: cute.Tensor | None,
    factors_d: cute.Tensor | None,
    offsets: cute.Tensor,
    index: cute.Tensor | None,
    places: cute.Tensor | None,
    scale_b_places: cute.Tensor | None,
    operation: Constexpr[Operation],
) -> None:
    thread, _, _ = cute.arch.thread_idx()
    groups_rows = const_expr(operation.grouping.groups_rows)
    first_scaled = Int32(0)
    if const_expr(groups_rows):
        groups = num_groups_of(b, places)
        part = _part_of_rows(a, d, offsets, groups)
        first_scaled = _first_scaled(Starts(offsets, groups, d.shape[0]), part.group, operation)
        b = _matrix_of_stack(b, place_of(places, part.group), operation.b)
        own = _operands_of_group(part.group, b, scale_b, bias, scale_d, scale_b_places, operation)
        scale_b, bias, scale_d = own
    else:
        part = _part_of_depth(a, d, offsets)
        d = _of_group(d, part.group)
    halves = const_expr(num_halves(operation))
    halves_b = _halves(b, operation)
    shared = memory.SmemAllocator()
    layout = cute.make_layout((TILE_K, TILE), stride=(ROW, 1))
    accumulator = cutlass_type(operation.accumulator)
    is_blocked = const_expr(operation.types.factors in (FactorLayout.BLOCK, FactorLayout.ATOMS))
    staged_a = shared.allocate_tensor(accumulator, layout, 16)
    staged_b = [shared.allocate_tensor(accumulator, layout, 16) for _ in range(halves)]
    sums = [cute.make_rmem_tensor((SIDE, SIDE), accumulator) for _ in range(halves)]
    for half in range_constexpr(halves):
        sums[half].fill(accumulator(0))
    rows, columns = (part.first_m, part.end_m), (part.first_n, d.shape[1])
    row, column = thread // THREADS_ACROSS * SIDE, thread % THREADS_ACROSS * SIDE
    for step in range(cute.ceil_div(cutlass.max(part.end_k - part.first_k, 0), TILE_K)):
        depth = (part.first_k + step * TILE_K, part.end_k)
        factors = scale_a if const_expr(is_blocked) else None
        _stage(a, staged_a, rows, depth, index, factors, first_scaled, operation.a)
        for half in range_constexpr(halves):
            factors = scale_b if const_expr(is_blocked) else None
            turn = half if const_expr(operation.is_interleaved) else None
            before = Int32(0) if const_expr(operation.is_interleaved) else half * d.shape[1]
            _stage(halves_b[half], staged_b[half], columns, depth, None, factors, before, operation.b, turn)
        cute.arch.sync_threads()
        for half in range_constexpr(halves):
            multiply(staged_a, staged_b[half], sums[half], row, column)
            cute.arch.sync_threads()  # keeps one half's loads behind the other's multiplication too: fewer registers
    place = part._replace(first_m=part.first_m + row, first_n=part.first_n + column)
    _store(sums, d, own_d, factors_d, place, first_scaled, index, (scale_a, scale_b, bias, scale_d), operation)


def make_entry(operation: Operation) -> Any:
    """Make the entry, which launches blocks for as many tiles as the groups may have, whatever their sizes are.

    All blocks lie along x: only x takes more than 65,535.
    """
    groups_rows = operation.grouping.groups_rows

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_a: cute.Tensor | None,
        scale_b: cute.Tensor | None,
        bias: cute.Tensor | None,
        scale_d: cute.Tensor | None,
        own_d: cute.Tensor | None,
        factors_d: cute.Tensor | None,
        offsets: cute.Tensor,
        index: cute.Tensor | None,
        b_of_groups: cute.Tensor | None,
        places: cute.Tensor | None,
        scale_b_of_groups: cute.Tensor | None,
        scale_b_places: cute.Tensor | None,
        stream: cuda.CUstream,
    ) -> None:
        if const_expr(groups_rows):
            addresses, tables = (b_of_groups, scale_b_of_groups), (places, scale_b_places)
            bits = operation.b.element.bits
            write_places(addresses, b, scale_b, tables, stream, is_dependent=False, bits=bits)
            tiles_m = (d.shape[0] + num_groups_of(b, places) * (TILE - 1)) // TILE
            blocks = tiles_m * cute.ceil_div(d.shape[1], TILE)
        else:
            blocks = d.shape[0] * cute.ceil_div(d.shape[1], TILE) * cute.ceil_div(d.shape[2], TILE)
        given = (a, b, d, scale_a, scale_b, bias, scale_d, own_d, factors_d, offsets, index, places, scale_b_places)
        _kernel(*given, operation).launch(grid=(blocks, 1, 1), block=(NUM_THREADS, 1, 1), stream=stream)

    return entry


def arguments(signature: Signature, operation: Operation) -> tuple[Any, ...]:
    """Make the arguments of the entry, each None where the signature has none."""
    has_gate, is_block = operation.gate is not None, operation.types.factors is FactorLayout.BLOCK
    in_atoms = operation.types.factors is FactorLayout.ATOMS
    stack = int(operation.grouping.groups_rows)
    rank = 2 if is_block else 1
    pair = int(has_gate)
    made: dict[Argument, Callable[[], Any]] = {
        Argument.A: lambda: tensor_argument(operation.a.element, 2),
        Argument.B: lambda: tensor_argument(operation.b.element, 2 + stack + pair),
        Argument.D: lambda: tensor_argument(operation.d, 3 - stack),
        Argument.SCALE_A: lambda: tensor_argument(operation.types.factor, rank, is_contiguous=in_atoms),
        Argument.SCALE_B: lambda: tensor_argument(
            operation.types.factor,
            1 if in_atoms else stack + (rank if is_block else 1 + pair),
            is_contiguous=in_atoms,
        ),
        Argument.BIAS: lambda: tensor_argument(operation.bias, stack + 1 + pair),
        Argument.SCALE_D: lambda: tensor_argument(ElementType.FLOAT32, 1, is_contiguous=True),
        Argument.OWN_D: lambda: tensor_argument(ElementType.FLOAT32, 1, is_contiguous=True),
        Argument.FACTORS_D: lambda: tensor_argument(element_of(operation, Argument.FACTORS_D), 1, is_contiguous=True),
        Argument.OFFSETS: lambda: tensor_argument(ElementType.INT32, 1, is_contiguous=True),
        Argument.INDEX: lambda: tensor_argument(ElementType.INT32, 1, is_contiguous=True),
        Argument.B_OF_GROUPS: addresses_argument,
        Argument.PLACES: lambda: tensor_argument(ElementType.INT32, 1, is_contiguous=True),
        Argument.SCALE_B_OF_GROUPS: addresses_argument,
        Argument.SCALE_B_PLACES: lambda: tensor_argument(ElementType.INT32, 1, is_contiguous=True),
    }
    arguments = (make() if argument in signature else None for argument, make in made.items())
    return (*arguments, cute.runtime.make_fake_stream())
