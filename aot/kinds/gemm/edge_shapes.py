"""The cases that a kernel is verified on: extents at and past tiles' edges, and what a caller may choose besides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import lcm
from typing import TYPE_CHECKING

from aot.core.alignment import column_step
from aot.core.element import BYTE_BITS, ElementType
from aot.core.formats import ALIGNMENT_BYTES, FactorLayout
from aot.core.grouping import Grouping
from aot.core.knobs import GemmKnobs, SplitK
from aot.core.operands import PLAIN, Arrangement, Matrix, operands, plain_arrangement
from aot.core.problem import Problem
from aot.core.reference import is_16_bit_product
from aot.core.signature import Argument
from aot.kinds.gemm.group_inputs import GroupSizes

if TYPE_CHECKING:
    from aot.core.candidate import KernelKey
    from aot.core.operation import Operation
    from aot.kinds.gemm.tuned import TunedKernel

ALIGNED_SHAPES = (
    (1, 8, 8, 0),
    (2, 136, 64, 8),
    (7, 24, 520, 0),
    (17, 520, 40, 16),
    (63, 520, 136, 0),
    (64, 16, 136, 8),
    (65, 264, 72, 8),
    (129, 72, 16, 0),
    (255, 264, 64, 0),
    (300, 520, 520, 8),
    (650, 1032, 328, 0),
)
"""(m, n, k, padding): below, at and past the tiles' edges, the last past two 256 x 512 cluster tiles each way. They are
rounded up to what the types' alignment needs."""

RAGGED_SHAPES = ((65, 136, 99), (130, 264, 197))
"""(m, n, k) whose leading strides are whole multiples of 16 bytes, and longer than a k that ends inside of 16 bytes.

What lies behind k in a row is then NaN, and a kernel that loads whole pieces of 16 bytes would multiply it by zeros:
seen of gathered rows on an H100, 2026-11-26. n is rounded up to what the stores of D need.
"""

LONG_SHAPE = (17, 24, 24584, 8)
"""(m, n, k, padding) for kernels that have more stages than the shapes above have blocks of k: those of 8-bit operands,
of which 128 elements lie in a stage, and those of `OF_ONE_TILE`. Two turns of 22 stages of 128 in each of 4 CTAs,
as a tile of 64 x 16 has in 227 KiB, are 22,528 of k."""

OF_ONE_TILE = ("gemv", "sm90_cluster_split_k", "sm90_one_tile", "sm90_weight_only", "sm100_weight_only", "weight_only")
"""Families whose CTAs compute one tile, so that no second tile uses the stages again, or the loop over k."""

TAIL_TILES = ((15, 10), (18, 12))
"""Tiles along the kernel's rows and columns for kernels that split those which fill no whole wave: on 132 SMs, with
clusters of 1 or 2, one or half a whole wave or more and a tail that is split over one wave, and over two."""

TAIL_K = 200
"""k of those shapes: with 64 elements a stage, too few stages for all splits, and the last one not full."""

FALLBACK_SHAPES = (
    (1, 1, 1, 0),
    (7, 3, 5, 2),
    (16, 8, 16, 8),
    (17, 31, 70, 1),
    (33, 70, 69, 4),
    (64, 64, 64, 3),
    (65, 1, 33, 0),
    (70, 67, 13, 5),
)
"""(m, n, k, padding) of odd extents and strides, run in every layout at addresses that are not aligned.

Behind the end of a row lies poison, but for two cases whose rows follow each other: there the next row would be read
where a kernel reads too far, whose values a zero of the other operand hides.
"""

SPECIAL_SHAPE = (40, 136, 200, 0)
"""(m, n, k, padding) of the case with NaNs, infinities and the least and largest numbers, and of that with all bits."""


class Content(Enum):
    """What the operands of a case hold."""

    RANDOM = "random"
    SPECIAL = "special"
    """Among random elements NaNs, infinities, zeros, subnormal and the largest numbers."""
    ALL_BITS = "all bits"
    """float32 elements of more bits than TF32 keeps."""


@dataclass(frozen=True)
class EdgeShape:
    """One case: a problem, the padding of its leading strides, and an offset of its addresses, in elements."""

    problem: Problem
    padding: int
    offset: int
    is_own: bool = False
    """Whether it is one kernel's alone: its operands are freed after it, since a wave of tiles has many elements."""
    arrangement: Arrangement = PLAIN
    content: Content = Content.RANDOM
    sizes: GroupSizes = GroupSizes.RANDOM
    stride_multiple: int = 1
    """What leading strides are rounded up to whole multiples of, in elements."""
    stores_anywhere: bool = False
    """Whether D and what the epilogue reads lie one element further, in rows of odd lengths that end with poison."""

    def matrices(self) -> dict[Argument, Matrix]:
        """Return where the elements of each operand lie behind its first one."""
        found = operands(self.problem, self.padding, self.arrangement, self.stride_multiple)
        for argument in (Argument.D, Argument.RESIDUAL):
            if self.stores_anywhere and argument in found:
                moved = replace(found[argument], row_stride=(found[argument].num_columns + 1) | 1)
                found[argument] = moved.stacked(moved.num_groups) if moved.num_groups > 1 else moved
        return found

    def offset_of(self, argument: Argument) -> int:
        """Return how many elements an operand lies behind an aligned address."""
        operation = self.problem.operation
        in_atoms = operation.types.factors is FactorLayout.ATOMS
        is_packed = operation.b.weight is not None and argument is Argument.B
        if is_packed or (in_atoms and argument in (Argument.SCALE_A, Argument.SCALE_B, Argument.FACTORS_D)):
            return 0  # atoms and packed weights begin at multiples of 16 bytes, whatever takes them
        is_moved = self.stores_anywhere and argument in (Argument.D, Argument.RESIDUAL, Argument.BIAS)
        return self.offset + int(is_moved)

    def __str__(self) -> str:
        """Return the text of messages."""
        operation, arranged = self.problem.operation, self.arrangement
        is_scaled = operation.types.factors is FactorLayout.VECTOR
        scales_a = is_scaled and operation.a.scale is not None
        facts = {
            f"groups {self.sizes.value}": operation.grouping.has_offsets,
            f"with {self.content.value} values": self.content is Content.SPECIAL,
            "with values of all bits": self.content is Content.ALL_BITS,
            "without a bias": operation.has_bias and not arranged.has_bias,
            "with one factor for all of A": scales_a and not arranged.has_scales_of_a,
            "with one factor for all of B": is_scaled and not arranged.has_scales_of_b,
            "with factors by columns": operation.types.factors is FactorLayout.BLOCK
            and not arranged.has_row_major_blocks,
            "with interleaved gates": operation.gate is not None and arranged.is_interleaved,
            "with linear rows in front of the gate's": operation.gate is not None and arranged.is_linear_first,
            f"of {arranged.num_parts} weights": operation.has_parts,
            "with one A for all": arranged.shares_a,
            "with one B for all": arranged.shares_b,
            f"and rounded up to multiples of {self.stride_multiple}": self.stride_multiple > 1,
            f"{self.offset} elements further": self.offset > 0,
            "with D at any element": self.stores_anywhere,
        }
        return ", ".join(
            [
                f"{self.problem.name}, strides padded by {self.padding}",
                *(text for text, is_so in facts.items() if is_so),
            ]
        )


ARRANGEMENTS = (
    Arrangement(),
    Arrangement(has_bias=False, is_interleaved=True, has_row_major_blocks=False),
    Arrangement(has_scales_of_a=False, has_scales_of_b=False),
    Arrangement(has_scales_of_a=False, is_interleaved=True),
    Arrangement(has_bias=False, has_scales_of_b=False, has_row_major_blocks=False),
)
"""What the cases take in turn: five of them and eleven shapes, so that no choice falls on small shapes alone."""

GATE_ARRANGEMENTS = (PLAIN, Arrangement(is_linear_first=True), *ARRANGEMENTS[1:])
"""The same of a gate without groups, either of whose two weights may lie in front: six of them."""


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def steps(operation: Operation) -> tuple[int, int, int]:
    """Return what m, n and k of aligned shapes are multiples of."""
    of_a, of_b, of_d = operation.a.run, operation.b.run, operation.d.num_in(ALIGNMENT_BYTES)
    a_is_k_major, b_is_k_major = operation.a.is_k_major, operation.b.is_k_major
    n = lcm(MIN_STEP, of_d, 1 if b_is_k_major else of_b, column_step(operation))
    k = lcm(MIN_STEP, of_a if a_is_k_major else 1, of_b if b_is_k_major else 1, operation.k_step)
    return 1 if a_is_k_major else of_a, n, k


def rounded(problem: Problem, m_multiple: int = 1, n_multiple: int = 1) -> Problem:
    """Round a problem's extents up to what its operation's types need, and a kernel besides."""
    m, n, k = steps(problem.operation)
    extents = ((problem.m, lcm(m, m_multiple)), (problem.n, lcm(n, n_multiple)), (problem.k, k))
    m, n, k = (_round_up(extent, step) for extent, step in extents)
    return replace(problem, m=m, n=n, k=k)


BATCHED_ARRANGEMENTS = (PLAIN, Arrangement(shares_b=True), Arrangement(shares_a=True))
"""What the cases of a batch take in turn: strides from product to product, and 0 of one operand."""

BATCH = 3
"""Products of a case's batch."""

GROUPS = 7
"""Groups of a case."""

SIZES = (GroupSizes.RANDOM, GroupSizes.ALL_IN_ONE, GroupSizes.ONES, GroupSizes.SHORT)
"""What the cases of groups take in turn: of eleven shapes each has small and large ones."""


PART_ARRANGEMENTS = (
    PLAIN,
    Arrangement(num_parts=3),
    Arrangement(num_parts=2, has_bias=False),
    Arrangement(num_parts=4),
    Arrangement(has_bias=False),
    Arrangement(num_parts=4, has_bias=False),
)
"""What the cases of several weights take in turn."""


def arrangements_of(operation: Operation) -> tuple[Arrangement, ...]:
    """Return what an operation's cases take in turn."""
    if operation.grouping is Grouping.BATCHED:
        return BATCHED_ARRANGEMENTS
    if operation.has_parts:
        return PART_ARRANGEMENTS
    if is_16_bit_product(operation):
        return (PLAIN,)
    if operation.is_interleaved:
        return tuple(x for x in ARRANGEMENTS if x.is_interleaved)
    has_parts = operation.gate is not None and operation.grouping is Grouping.DENSE
    found = GATE_ARRANGEMENTS if has_parts else ARRANGEMENTS
    if operation.gate is not None and not operation.may_interleave:  # the library refuses it: problem_check.cc
        return tuple(x for x in found if not x.is_interleaved)
    return found


def _num_groups(operation: Operation) -> int:
    if operation.grouping is Grouping.DENSE:
        return 1
    return GROUPS if operation.grouping.has_offsets else BATCH


def _has_long_rings(key: KernelKey) -> bool:
    """Say whether a kernel may have more stages than the aligned shapes have blocks of k, for one tile."""
    is_of_bytes = key.operation.a.element.bits <= BYTE_BITS
    return not key.operation.grouping.has_offsets and (is_of_bytes or key.candidate.family in OF_ONE_TILE)


MIN_STEP = 8
"""What n and k of aligned shapes are multiples of in any case."""


def _tail_shapes(kernel: TunedKernel) -> list[EdgeShape]:
    """List the cases of whole waves and a tail, the last tile of each axis not full; none for most kernels."""
    knobs = kernel.key.candidate.knobs
    if not isinstance(knobs, GemmKnobs) or knobs.split_k_mode != SplitK.TAIL:
        return []
    shapes = []
    for tiles_m, tiles_n in TAIL_TILES:
        rows, columns = tiles_m * knobs.tile_m - MIN_STEP, tiles_n * knobs.tile_n - MIN_STEP
        m, n = (columns, rows) if knobs.swap_ab else (rows, columns)
        shapes.append(EdgeShape(rounded(Problem(kernel.key.operation, m, n, TAIL_K)), 0, 0, is_own=True))
    return shapes


def _contents(operation: Operation) -> list[Content]:
    """List what the operands of a further case each hold.

    Products of 16-bit operands have none, as ever, nor those of packed weights, whose codes have no special numbers.
    """
    if is_16_bit_product(operation) or operation.grouping.has_offsets or operation.b.weight is not None:
        return []
    has_all_bits = operation.a.element is ElementType.TFLOAT32
    return [Content.SPECIAL, *([Content.ALL_BITS] if has_all_bits else [])]


def _stride_step(operation: Operation) -> int:
    """Return what leading strides of aligned operands are multiples of, in elements."""
    return max(operation.a.run, operation.b.run, operation.d.num_in(ALIGNMENT_BYTES), MIN_STEP)


def _least_offset(operation: Operation) -> int:
    """Return the fewest elements by which operands that begin with a byte lie behind an aligned address."""
    return max(x.num_sharing for x in (operation.a.element, operation.b.element, operation.d))


def whole_k(operation: Operation, k: int) -> int:
    """Return k in elements, of a packed weight rounded up to what it has at all."""
    return k if operation.b.weight is None else _round_up(k, operation.k_step)


def whole_n(operation: Operation, n: int) -> int:
    """Return n in elements, rounded up to whole bytes of a D whose elements share some."""
    return _round_up(n, operation.d.num_sharing)


def shape_of(
    kernel: TunedKernel,
    extents: tuple[int, int, int],
    arrangement: Arrangement | None = None,
    sizes: GroupSizes = GroupSizes.RANDOM,
) -> EdgeShape:
    """Return the case of a kernel with any extents, whose leading strides are rounded up to what the kernel needs.

    Args:
        kernel: the kernel.
        extents: (m, n, k); of groups those of one. m and n are rounded up to what the kernel and D's stores need.
        arrangement: what the caller chooses; nothing by default.
        sizes: how groups share what is grouped.
    """
    operation, (m, n, k) = kernel.key.operation, extents
    arrangement = arrangement or plain_arrangement(operation)
    groups = _num_groups(operation)
    if kernel.is_fallback:
        offset, n, k = _least_offset(operation), whole_n(operation, n), whole_k(operation, k)
        return EdgeShape(Problem(operation, m, n, k, groups), 0, offset, arrangement=arrangement, sizes=sizes)
    n_step = lcm(operation.d.num_in(ALIGNMENT_BYTES), column_step(operation), kernel.n_multiple)
    m, n, k = _round_up(m, kernel.m_multiple), _round_up(n, n_step), _round_up(k, operation.k_step)
    problem = Problem(operation, m, n, k, groups)
    step = _stride_step(operation)
    return EdgeShape(problem, 0, 0, arrangement=arrangement, sizes=sizes, stride_multiple=step)


def _ragged_shapes(kernel: TunedKernel) -> list[EdgeShape]:
    """List the cases whose k ends inside of 16 bytes, and m or n where these run along the rows of memory."""
    arrangements, sizes = arrangements_of(kernel.key.operation), (GroupSizes.SHORT, GroupSizes.RANDOM)
    return [
        shape_of(kernel, extents, arrangements[i % len(arrangements)], sizes[i % len(sizes)])
        for i, extents in enumerate(RAGGED_SHAPES)
    ]


def _unaligned_shapes(kernel: TunedKernel) -> list[EdgeShape]:
    """List the cases of a kernel that stores D at any element; A and B are aligned to no more than it asks for."""
    operation = kernel.key.operation
    if kernel.store_alignment > 1 or operation.grouping.has_offsets:
        return []
    step = max(operation.a.element.num_in(kernel.load_alignment), 1)
    offset = step if kernel.load_alignment < ALIGNMENT_BYTES else 0
    arrangements = arrangements_of(operation)
    return [
        EdgeShape(
            Problem(operation, m, n, whole_k(operation, k), _num_groups(operation)),
            padding * step,
            offset,
            arrangement=arrangements[i % len(arrangements)],
            stride_multiple=step,
            stores_anywhere=True,
        )
        for i, (m, n, k, padding) in enumerate(FALLBACK_SHAPES)
    ]


def _fallback_shapes(operation: Operation) -> list[EdgeShape]:
    arrangements, groups = arrangements_of(operation), _num_groups(operation)
    found, offset = [], _least_offset(operation)
    for layout in operation.layouts:
        for i, (m, n, k, padding) in enumerate(FALLBACK_SHAPES):
            arrangement = arrangements[i % len(arrangements)]
            sizes, columns = SIZES[i % len(SIZES)], whole_n(layout, n)
            problem = Problem(layout, m, columns, whole_k(layout, k), groups)
            found.append(EdgeShape(problem, padding, offset, arrangement=arrangement, sizes=sizes))
        special = Problem(layout, *SPECIAL_SHAPE[:3])
        plain = plain_arrangement(layout)
        found += [EdgeShape(special, 1, offset, arrangement=plain, content=x) for x in _contents(operation)]
    return found


def edge_shapes(kernel: TunedKernel) -> list[EdgeShape]:
    """List the cases of a kernel, extents rounded up to what it and its operation's types need."""
    operation = kernel.key.operation
    if kernel.is_fallback:
        return _fallback_shapes(operation)
    step = _stride_step(operation)

    def shape(extents: tuple[int, int, int, int], arrangement: Arrangement, content: Content) -> EdgeShape:
        m, n, k, padding = extents
        problem = rounded(Problem(operation, m, n, k, _num_groups(operation)), kernel.m_multiple, kernel.n_multiple)
        return EdgeShape(problem, _round_up(padding, step), 0, arrangement=arrangement, content=content)

    arrangements, plain = arrangements_of(operation), plain_arrangement(operation)
    aligned = [
        replace(shape(extents, arrangements[i % len(arrangements)], Content.RANDOM), sizes=SIZES[i % len(SIZES)])
        for i, extents in enumerate(ALIGNED_SHAPES)
    ]
    if _has_long_rings(kernel.key):
        aligned.insert(-1, shape(LONG_SHAPE, plain, Content.RANDOM))
    # In front of the last, whose packed operands any kernel takes.
    aligned[-1:-1] = [*_ragged_shapes(kernel), *_unaligned_shapes(kernel)]
    special = [shape(SPECIAL_SHAPE, plain, content) for content in _contents(operation)]
    return aligned + special + _tail_shapes(kernel)
