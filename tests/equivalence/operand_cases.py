"""Problems of any operation as the C API takes them, at random, the same every time."""

from __future__ import annotations

import ctypes
import random
import zlib
from math import ceil, lcm

from aot.core.element import BYTE_BITS, ElementType
from aot.core.epilogue import Epilogue
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.kinds.rows.function import RMS_NORM
from aot.kinds.rows.operation import RowScale
from aot.measure.call_structs import (
    B_CONSTANT,
    CURRENT_DEVICE,
    GATE_INTERLEAVED,
    GATE_PARTS,
    INTERLEAVED,
    OFFSETS_START,
    ROWS_OFFSETS_START,
    SCALE_GIVEN,
    GroupStrides,
    ProblemStruct,
    RowsProblemStruct,
    RowsTensorStruct,
    TensorStruct,
)

COUNT = 40
"""Problems for each kernel."""
ALIGNMENT = 16
MAX_EXTENT = 60000
BLOCK = 128
"""Columns that a factor of a block serves."""
BASES = {
    name: place << 43
    for place, name in enumerate(
        ("a", "b", "d", "bias", "scale_a", "scale_b", "residual", "scale_d", "offsets", "index"), 1
    )
}
"""Further apart than any operand of the problems reaches."""


def rng_of(name):
    return random.Random(zlib.crc32(name.encode()))


def _address(rng, name, alignment):
    return BASES[name] + alignment * rng.randrange(2**24)


def _extent(rng, step=1):
    count = rng.choice((1, 2, 3, rng.randrange(1, 40), rng.randrange(1, 600), rng.randrange(1, 5000)))
    return step * min(count, MAX_EXTENT // step)


def _leading(rng, inner, step):
    """Give a stride of a multiple of `step` elements: packed, padded a little, or far apart."""
    packed = ceil(inner / step) * step
    return packed + step * rng.choice((0, 0, 1, rng.randrange(1, 70), rng.randrange(1, 2**14)))


class _Maker:
    """Makes the operands of one problem, as aligned as a kernel asks for, or of any strides.

    Args:
        rng: what they are drawn by.
        loads: bytes of which addresses and steps are multiples.
        stores: the same of D and of a residual.
        has_units: whether elements that follow each other may lie apart.
    """

    def __init__(self, rng, *, loads=1, stores=1, has_units=False):
        self.rng, self.loads, self.stores, self.has_units = rng, loads, stores, has_units

    def matrix(self, name, rows, columns, element, *, row_major, is_padded=False):
        """Give a tensor, and the elements from one of a stack to the next. Elements that share bytes are adjacent."""
        sharing = element.num_sharing
        loads = 2 * self.loads if is_padded else self.loads
        alignment = max(self.stores if name in ("d", "residual") else loads, element.size_of(sharing))
        rng, step = self.rng, element.num_in(alignment)
        outer, inner = (rows, columns) if row_major else (columns, rows)
        unit = rng.choice((1, 1, 2, 5)) if self.has_units and name != "d" and sharing == 1 else 1
        leading = _leading(rng, inner * unit, step)
        between = ceil(outer * leading / step) * step + step * rng.choice((0, 0, 3, rng.randrange(1, 999)))
        strides = (leading, unit) if row_major else (unit, leading)
        return TensorStruct(_address(rng, name, alignment), strides), between

    def factors(self, name, extent):
        """Give a vector of factors, or one that serves all."""
        return TensorStruct(_address(self.rng, name, 4), (self.rng.randrange(2), self.rng.randrange(3))), extent


def _extents(rng, operation, *, is_whole):
    """Give m, n, k and the groups: n of whole pieces of 16 bytes of D and of B, and of blocks where they are scaled."""
    is_grouped = operation.grouping.has_offsets
    n = _extent(rng, BLOCK if operation.types.factors is FactorLayout.BLOCK and is_grouped else 16)
    m = _extent(rng) + (operation.grouping is not Grouping.DENSE)
    k = (
        _extent(rng, 16 if operation.gate is not None or is_grouped else 1)
        + 1
        - (is_grouped or operation.gate is not None)
    )
    if operation.types.factors is FactorLayout.BLOCK and is_grouped:
        k = ceil(k / BLOCK) * BLOCK
    if is_whole:
        k = ceil(k / operation.k_step) * operation.k_step
    groups = 0 if operation.grouping is Grouping.DENSE else rng.choice((2, 3, 8, 65))
    if operation.types.factors is FactorLayout.ATOMS and is_grouped:  # of which the library takes 2^31 - 1 bytes
        groups = min(groups, (2**31 - 1) // _bytes_of_atoms(operation, n, max(k, 1)))
    return m, n, max(k, 1), groups


def _bytes_of_atoms(operation, n, k):
    """Give the bytes of the factors of a group's B: 512 for 128 rows and four blocks along k."""
    return ceil(operation.num_rows_of_b(n) / 128) * ceil(k / operation.b.scale.block_k / 4) * 512


def _scaled(make, operation, problem, height, rows):
    if operation.types.factors is FactorLayout.VECTOR:
        problem.scale_a, _ = make.factors("scale_a", height)
        problem.scale_b, problem.group_strides.scale_b = make.factors("scale_b", rows)
    if operation.types.factors is FactorLayout.BLOCK:
        rng, blocks = make.rng, ceil(problem.k / BLOCK)
        any_strides = _Maker(rng, has_units=True)
        fp32 = ElementType.FLOAT32
        of_b = any_strides.matrix("scale_b", ceil(rows / BLOCK), blocks, fp32, row_major=True)
        problem.scale_a, _ = any_strides.matrix("scale_a", height, blocks, fp32, row_major=rng.randrange(2) == 1)
        problem.scale_b, problem.group_strides.scale_b = of_b
    if operation.types.factors is FactorLayout.ATOMS:
        for name in ("scale_a", "scale_b"):
            setattr(problem, name, TensorStruct(_address(make.rng, name, ALIGNMENT), (0, 0)))
        of_group = _bytes_of_atoms(operation, problem.n, problem.k)
        problem.group_strides.scale_b = of_group if operation.grouping.groups_rows else 0
    if operation.types.scales_d:
        is_vector = operation.grouping.groups_rows
        problem.scale_d = TensorStruct(_address(make.rng, "scale_d", 4), (int(is_vector), 0))


def _added(make, operation, problem, rows):
    rng = make.rng
    if operation.has_bias and (operation.epilogue is Epilogue.BIAS or rng.randrange(3)):
        problem.bias = TensorStruct(_address(rng, "bias", ALIGNMENT), (rng.randrange(9), 1))
        problem.group_strides.bias = rows + rng.randrange(5)
    if operation.has_residual:
        problem.residual, _ = make.matrix("residual", problem.m, problem.n, operation.types.d, row_major=True)


def _flags(rng, operation):
    """Give flags that mean something for an operation, or not."""
    flags = rng.choice((0, B_CONSTANT))
    if operation.is_interleaved:
        flags |= GATE_INTERLEAVED
    elif operation.gate is not None and not operation.grouping.has_offsets:
        flags |= rng.choice((0, GATE_INTERLEAVED))
    return flags | (rng.choice((0, OFFSETS_START)) if operation.grouping.has_offsets else 0)


def product(make, operation, *, has_odd_n):
    """State one problem of an operation."""
    rng, types, steps = make.rng, operation.types, GroupStrides()
    m, n, k, groups = _extents(rng, operation, is_whole=not make.has_units)
    n += has_odd_n
    rows, height = operation.num_rows_of_b(n), m
    problem = ProblemStruct(ctypes.sizeof(ProblemStruct), 0, CURRENT_DEVICE, m, n, k, flags=_flags(rng, operation))
    if operation.grouping is Grouping.GATHERED:
        problem.rows_of_a = height = _extent(rng)
        problem.index = TensorStruct(_address(rng, "index", 4), (1, 0))
    problem.a, steps.a = make.matrix("a", height, k, types.a, row_major=operation.layout.a_k_major)
    is_padded, row_major = types.b.bits < types.a.bits == BYTE_BITS, operation.layout.b_k_major
    problem.b, steps.b = make.matrix("b", rows, k, types.b, row_major=row_major, is_padded=is_padded)
    problem.d, steps.d = make.matrix("d", m, n, types.d, row_major=True)
    if operation.grouping is Grouping.BATCHED:
        steps.a, steps.b = (rng.choice((0, x, x)) for x in (steps.a, steps.b))
    problem.group_strides = steps
    _scaled(make, operation, problem, height, rows)
    _added(make, operation, problem, rows)
    if operation.grouping.has_offsets:
        problem.offsets = TensorStruct(_address(rng, "offsets", 4), (1, 0))
    problem.num_groups = groups
    if not groups:
        problem.group_strides = GroupStrides()
    return problem


def separated(rng, problem, alignment):
    """Give a problem's groups a B each, at addresses that do not ascend by one step."""
    found = sorted(_address(rng, "b", alignment) for _ in range(problem.num_groups))[::-1]
    problem.b.data, problem.group_strides.b = None, 0
    problem.b_of_groups = (ctypes.c_void_p * len(found))(*found)
    return problem


def with_separate_factors(rng, problem):
    """Give a problem's groups atoms of factors each, too, in an order of their own."""
    found = [_address(rng, "scale_b", ALIGNMENT) for _ in range(problem.num_groups)]
    problem.scale_b.data, problem.group_strides.scale_b = None, 0
    problem.scale_b_of_groups = (ctypes.c_void_p * len(found))(*found)


def turned(rng, problem, step):
    """Put a gate's linear rows far in front of the gate's, by a multiple of `step` elements."""
    far = ceil(problem.n * problem.b.strides[0] / step) + rng.randrange(1, 2**20)
    problem.flags = problem.flags & ~GATE_INTERLEAVED | GATE_PARTS
    problem.group_strides.b = -far * step
    return problem


def products(kernel):
    """State the problems of a kernel of products, each with a stream.

    Of groups of rows some have separate B, of atoms of factors some have separate ones, and of a gate some have the
    linear rows of B in front.
    """
    rng, of_lists = rng_of(kernel.name), rng_of(f"separate {kernel.name}")
    is_aligned, operation = kernel.num_strides == 1, kernel.operation
    make = _Maker(rng, has_units=True)
    if is_aligned:
        make = _Maker(rng, loads=kernel.load_alignment, stores=kernel.store_alignment)
    has_odd_n = is_aligned and kernel.store_alignment == 1
    found = [(product(make, operation, has_odd_n=has_odd_n), rng.randrange(2**47)) for _ in range(COUNT)]
    if operation.grouping.groups_rows:
        alignment = operation.b.alignment if is_aligned else operation.types.b.size_of(operation.types.b.num_sharing)
        for problem, _ in found[::3]:
            separated(of_lists, problem, alignment)
        for problem, _ in found[::2] if operation.types.factors is FactorLayout.ATOMS else ():
            with_separate_factors(of_lists, problem)
    elif operation.gate is not None and not operation.is_interleaved:
        for problem, _ in found[::3]:
            turned(of_lists, problem, ALIGNMENT // operation.types.b.num_bytes if is_aligned else 1)
    return found


def _strides(rng, extents, step, *, has_last):
    """Give strides of a tensor whose runs lie apart by multiples of `step` elements."""
    unit = rng.choice((1, 1, 3)) if has_last else 1
    strides = [unit]
    for extent in extents[:0:-1]:
        strides.insert(0, _leading(rng, extent * strides[0], step))
    return strides


def of_rows(rng, operation, limits):
    """State one problem of an operation on rows, of what a kernel with these limits takes."""
    is_rotary, has_last = operation.is_rotary, limits.has_last_stride
    multiple = lcm(limits.cols_multiple, operation.multiple)
    cols = min(_extent(rng, max(multiple, 2) * (2 if is_rotary else 1)), limits.max_cols // multiple * multiple)
    rows = _extent(rng)
    problem = RowsProblemStruct(ctypes.sizeof(RowsProblemStruct), 0, CURRENT_DEVICE, rows, cols)
    step = max(limits.alignment_bytes // operation.x.num_bytes, 1)

    def tensor(name, extents, num_bytes):
        address = (list(RowsProblemStruct.__dict__).index(name) << 40) + num_bytes * step * rng.randrange(2**24)
        strides = _strides(rng, extents, step, has_last=has_last and name not in ("weight", "bias"))
        setattr(problem, name, RowsTensorStruct(address, (*strides, *(0,) * (3 - len(strides)))))

    if is_rotary:
        problem.heads, problem.positions = rng.randrange(1, 70), rng.randrange(1, 5000)
        problem.rotary_dim = cols
        for name in ("cos", "sin"):
            tensor(name, (problem.positions, cols // 2), operation.x.num_bytes)
        if rng.randrange(2):
            _cache(rng, problem, tensor, step, operation.x.num_bytes)
            rows = problem.rows
    middle = (problem.heads,) if is_rotary else ()
    tensor("x", (rows, *middle, operation.num_columns_of_x(cols)), operation.x.num_bytes)
    if operation.multiple == 1:
        tensor("y", (rows, *middle, cols), operation.y.num_bytes)
    else:
        _bytes_of_y(rng, operation, problem, step)
    if operation.is_norm:
        problem.eps = rng.random()
        _norm_operands(rng, operation, problem, tensor)
    if operation.is_quantized:
        _scales_of_y(rng, operation, problem)
    if (is_rotary or operation.is_pair) and rng.randrange(2):
        problem.flags |= INTERLEAVED
    return problem


def _cache(rng, problem, tensor, step, num_bytes):
    """Have a problem's keys and values go to caches, (batch, heads, length, dim) or (batch, length, heads, dim)."""
    sequences = rng.randrange(1, 9)
    problem.num_positions = problem.rows
    problem.rows *= sequences
    heads, length, cols = rng.randrange(1, 9), rng.randrange(1, 5000), problem.cols
    problem.key_heads, problem.cache_length = heads, length
    for name in ("keys", "values"):
        tensor(name, (problem.rows, heads, cols), num_bytes)
    for name in ("key_cache", "value_cache"):
        tensor(name, (sequences, heads, length), num_bytes)
        head = -(-cols // step) * step
        by_head = head * heads * length, head, head * length
        strides = by_head if rng.randrange(2) or head != cols else (head * heads * length, head * heads, head)
        getattr(problem, name).strides[:] = strides
    tensor("cache_position", (problem.num_positions,), 8)
    problem.cache_position.strides[0] = 1


def _scales_of_y(rng, operation, problem):
    names = list(RowsProblemStruct.__dict__)
    if operation.factors is not None:
        problem.scale.data = (names.index("scale") << 40) + 16 * rng.randrange(2**24)
        if operation.has_tensor_scale:
            problem.tensor_scale.data = (names.index("tensor_scale") << 40) + 4 * rng.randrange(2**24)
        if operation.takes_groups and rng.randrange(2):
            _groups_of_rows(rng, problem)
        return
    blocks = ceil(problem.cols / BLOCK) if operation.scale is RowScale.BLOCK else 1
    scale = (names.index("scale") << 40) + 4 * rng.randrange(2**24)
    problem.scale = RowsTensorStruct(scale, (*_strides(rng, (problem.rows, blocks), 1, has_last=True), 0))
    if operation.scale is RowScale.ROW and rng.randrange(2):
        problem.flags |= SCALE_GIVEN
        problem.scale.strides[0] *= rng.randrange(2)


def _groups_of_rows(rng, problem):
    """Put a problem's rows into groups; half of the time an index names rows of its X."""
    names = list(RowsProblemStruct.__dict__)
    problem.num_groups, is_gathered = rng.randrange(1, 70), rng.randrange(2)
    problem.flags |= ROWS_OFFSETS_START * rng.randrange(2)
    problem.rows_of_x = rng.randrange(1, 5000) * is_gathered
    for name in ("offsets", "index")[: 1 + is_gathered]:
        address = (names.index(name) << 40) + 4 * rng.randrange(2**24)
        setattr(problem, name, RowsTensorStruct(address, (1, 1, 0)))


def _bytes_of_y(rng, operation, problem, step):
    """Give a problem a Y of elements that share bytes: at any byte, with rows of whole vectors."""
    step = max(step, operation.multiple)
    address = (list(RowsProblemStruct.__dict__).index("y") << 40) + operation.y.size_of(step) * rng.randrange(2**24)
    problem.y = RowsTensorStruct(address, (_leading(rng, problem.cols, step), 1, 0))


def _norm_operands(rng, operation, problem, tensor):
    """Give a norm those of its operands that it may be left without, or not."""
    rows, cols, num_bytes = problem.rows, problem.cols, operation.x.num_bytes
    kind = rng.randrange(3)
    if kind:
        tensor("residual", (rows, cols), num_bytes)
    if kind == 1:
        tensor("residual_out", (rows, cols), num_bytes)
    if rng.randrange(3):
        tensor("weight", (1, cols), num_bytes)
    if operation.function == RMS_NORM:
        problem.weight_offset = rng.choice((0.0, 1.0))
    if operation.has_bias and rng.randrange(3):
        tensor("bias", (1, cols), num_bytes)


def problems_of_rows(kernel):
    """State the problems of a row kernel, each with a stream."""
    rng = rng_of(kernel.name)
    return [(of_rows(rng, kernel.operation, kernel.limits), rng.randrange(2**47)) for _ in range(COUNT)]
