"""A call of an operation on rows, and the cases that its kernels are verified on: their operands and references."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from aot.core.block_quantization import own_factor
from aot.core.comparison import Comparison, worst
from aot.core.element import ElementType
from aot.core.factor_comparison import WrittenFactors, compare_factors
from aot.core.numerics import decode, encode
from aot.core.operands import AtomMatrix, Matrix, Tensor
from aot.kinds.inputs import as_bits, draw_index
from aot.kinds.rows.cache import RowCache, heads_of
from aot.kinds.rows.comparison import Written, compare_rows, fault_of_residual
from aot.kinds.rows.function import QUANTIZE
from aot.kinds.rows.groups import RowGroups
from aot.kinds.rows.operation import RowOperation, RowScale
from aot.kinds.rows.problem import RowProblem
from aot.kinds.rows.reference import RowParameters, row_reference
from aot.kinds.rows.signature import RowArgument
from aot.kinds.trial import Placed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.core.numerics import Bits
    from aot.kinds.rows.candidate import RowLimits
    from aot.kinds.rows.reference import Rows
    from aot.kinds.trial import Check

MAX_CASE_COLS = 20000
"""Columns of the widest case: more than registers of a CTA hold."""
HEADS = 3
"""Of a token, in cases of a rotary embedding."""
CACHE_CASES = ((1, 1), (12, 4))
"""Tokens, and sequences that they are of, of cases whose keys and values go to a cache."""
TIMED_HEADS = (32, 8, 1)
"""Of a token, where rotary embeddings are timed: the first that divides the rows. Source: an assumption."""
ATOM_CASE_ROWS = 133
"""Rows of the case of factors that fill one atom, and begin another."""
GROUP_CASES = (
    (9, RowGroups((3, 3, 7), start=1)),
    (8, RowGroups((*(2,) * 33, 3, 3, 7), rows_of_x=5)),
    (147, RowGroups((4, 4, 137, 138, 138, 145), start=2)),
)
"""Rows, and groups of them: an empty one, rows in front of the first and behind the last; more than a warp has lanes,
of rows that an index names; and one of more rows than an atom has."""
POSITIONS = (RowArgument.OFFSETS, RowArgument.INDEX, RowArgument.CACHE_POSITION)
"""The arguments that say where."""
WRITTEN = (RowArgument.Y, RowArgument.RESIDUAL_OUT, RowArgument.KEY_CACHE, RowArgument.VALUE_CACHE)
"""The arguments that a kernel always writes; a scale it writes unless one is given."""
VECTORS = (RowArgument.WEIGHT, RowArgument.BIAS)
"""The arguments that all rows share."""
OPTIONAL = (RowArgument.RESIDUAL, RowArgument.RESIDUAL_OUT, *VECTORS)
"""The tensors that a call may leave away, of a function that takes them."""


@dataclass(frozen=True)
class RowCall:
    """One call of the C API: its tensors on the device; sizes and strides are in elements."""

    problem: RowProblem
    tensors: Mapping[RowArgument, Tensor]
    """Of those that there are. X and Y of a rotary embedding are a stack, a matrix of heads for each token, and so are
    keys and values; their caches are as `aot.kinds.rows.cache` says."""
    parameters: RowParameters = field(default_factory=RowParameters)
    scale_is_given: bool = False
    groups: RowGroups | None = None
    cache: RowCache | None = None


@dataclass(frozen=True)
class RowCase:
    """One case: sizes, what there is beside X, and how far rows lie apart beyond their columns."""

    operation: RowOperation = field(repr=False)
    rows: int
    """Of a rotary embedding, tokens."""
    cols: int
    is_full: bool
    """Whether there are all operands that may be there, a given scale among them, and pairs side by side."""
    padding: int = 0
    is_own: bool = field(default=True, repr=False)
    """Whether it is one kernel's alone: most ask for other widths than the next."""
    groups: RowGroups | None = field(default=None, repr=False)
    sequences: int = field(default=0, repr=False)
    """Of a rotary embedding whose keys and values go to a cache, those that the tokens are of; 0 where none do."""

    def __str__(self) -> str:
        """Return it with its groups, or its cache, where it has some."""
        where = f" in {self.groups}" if self.groups is not None else ""
        return f"{self!r}{where}" + (f" of {self.sequences} sequences" if self.sequences else "")

    @property
    def problem(self) -> RowProblem:
        """Return what is computed."""
        return RowProblem(self.operation, self.rows * (HEADS if self.operation.is_rotary else 1), self.cols)

    @property
    def cache(self) -> RowCache | None:
        """Return the sizes of the caches that keys and values go to, where there are some."""
        return RowCache.of_tokens(self.rows, self.sequences) if self.sequences else None

    @property
    def gives_scale(self) -> bool:
        """Say whether scales are given."""
        return self.is_full and self.operation.scale is RowScale.ROW

    @property
    def parameters(self) -> RowParameters:
        """Return the numbers of the call, as float32 has them, and how pairs lie."""
        has_offset = RowArgument.WEIGHT_OFFSET in self.operation.function.arguments
        return RowParameters(
            float(np.float32(1e-5)),
            float(self.is_full and has_offset),
            is_interleaved=self.is_full and (self.operation.is_pair or self.operation.is_rotary),
            rounds_norm=self.is_full and has_offset and self.rows > 1,
        )


def row_cases(operation: RowOperation, limits: RowLimits) -> Iterator[RowCase]:
    """List the cases of a kernel: few and many rows, narrow, odd and wide ones, as far as it takes them."""
    step = lcm(limits.cols_multiple, operation.multiple)
    widths = {
        step,
        3 * step,
        16 * step,
        min(limits.max_cols, 1000 // step * step),
        min(limits.max_cols, MAX_CASE_COLS // 8 * 8),
    }
    for cols in sorted(widths):
        for rows in (1, 37):
            for is_full in (False, True):
                case = RowCase(operation, rows, cols, is_full, 8 * (rows > 1))
                if takes_case(limits, case):
                    yield case
    for cols, (rows, sequences) in itertools.product(sorted(widths)[:-1], CACHE_CASES) if operation.is_rotary else ():
        case = RowCase(operation, rows, cols, is_full=rows > 1, padding=8 * (rows > 1), sequences=sequences)
        if takes_case(limits, case):
            yield case
    if operation.factors is not None:
        cols = min(limits.max_cols, 17 * step)
        yield RowCase(operation, ATOM_CASE_ROWS, cols, is_full=True, padding=8)
        for rows, groups in GROUP_CASES if operation.takes_groups else ():
            yield RowCase(operation, rows, cols, is_full=groups.rows_of_x > 0, padding=8, groups=groups)


def takes_case(limits: RowLimits, case: RowCase) -> bool:
    """Say whether a kernel takes a case: half of a quarter of a head must be whole vectors."""
    return not case.operation.is_rotary or case.cols % (4 * limits.cols_multiple) == 0


def _rows(rows: int, cols: int, padding: int = 0) -> Matrix:
    return Matrix(rows, cols, cols + padding, 1)


def row_operands(case: RowCase) -> dict[RowArgument, Placed]:
    """Return the operands of a case; `padding` lies behind each row, and behind each head."""
    operation, rows, cols, padding = case.operation, case.rows, case.cols, case.padding
    x, y = operation.x, operation.y
    if operation.is_rotary:
        step = cols // 2 if case.is_full or cols % 4 else cols // 4
        whole, angles = heads_of(rows, HEADS, cols, cols + padding), _rows(rows, step, padding)
        found = {RowArgument.X: whole, RowArgument.Y: whole, RowArgument.COS: angles, RowArgument.SIN: angles}
        if case.cache is not None:
            found |= case.cache.matrices(cols, cols + padding)
        placed = {argument: Placed(x, matrix, 0, argument in WRITTEN) for argument, matrix in found.items()}
        return placed if case.cache is None else placed | case.cache.position
    found = {
        RowArgument.X: _rows(rows, operation.num_columns_of_x(cols), padding),
        RowArgument.Y: _rows(rows, cols, padding),
    }
    if case.is_full:
        given = [x for x in OPTIONAL if x in operation.function.arguments]
        found |= {x: _rows(1, cols) if x in VECTORS else _rows(rows, cols, padding) for x in given}
    placed = {
        argument: Placed(y if argument is RowArgument.Y else x, matrix, 0, argument in WRITTEN)
        for argument, matrix in found.items()
    }
    return placed | _in_groups(case) | _scales(case.problem, case.groups, is_written=not case.gives_scale)


def _in_groups(case: RowCase) -> dict[RowArgument, Placed]:
    """Return what a case of groups has: X where an index names rows of it, and where groups end."""
    if case.groups is None:
        return {}
    found = {RowArgument.OFFSETS: Placed(ElementType.INT32, Matrix(len(case.groups.offsets), 1, 1, 1))}
    if case.groups.rows_of_x:
        matrix = _rows(case.groups.rows_of_x, case.operation.num_columns_of_x(case.cols), case.padding)
        found[RowArgument.X] = Placed(case.operation.x, matrix)
        found[RowArgument.INDEX] = Placed(ElementType.INT32, Matrix(case.rows, 1, 1, 1))
    return found


def _scales(problem: RowProblem, groups: RowGroups | None = None, *, is_written: bool) -> dict[RowArgument, Placed]:
    """Return the scales of Y, and that of a whole tensor."""
    operation, found = problem.operation, {}
    if operation.is_quantized:
        extents = operation.shape_of_scales(problem.rows, problem.cols)
        matrix = _rows(*extents) if operation.factors is None else AtomMatrix(*extents, 0, 0)
        matrix = matrix if groups is None else groups.factors(*extents)
        found[RowArgument.SCALE] = Placed(operation.scale_element, matrix, 0, is_written)
    if operation.has_tensor_scale:
        found[RowArgument.TENSOR_SCALE] = Placed(ElementType.FLOAT32, _rows(1, 1))
    return found


def timed_heads(problem: RowProblem) -> int:
    """Return the heads of a token in a timed problem; 1 of what is no rotary embedding."""
    return next(x for x in TIMED_HEADS if problem.rows % x == 0) if problem.operation.is_rotary else 1


def timed_operands(problem: RowProblem) -> dict[RowArgument, Placed]:
    """Return the packed operands that kernels are timed with: a norm's weight and bias, and scales that are found.

    Rows of a rotary embedding are heads of tokens, and whole heads are rotated.
    """
    operation, rows, cols = problem.operation, problem.rows, problem.cols
    x, y = operation.x, operation.y
    if operation.is_rotary:
        heads = timed_heads(problem)
        whole, angles = heads_of(rows // heads, heads, cols, cols), _rows(rows // heads, cols // 2)
        found = {RowArgument.X: whole, RowArgument.Y: whole, RowArgument.COS: angles, RowArgument.SIN: angles}
        return {argument: Placed(x, matrix, 0, argument in WRITTEN) for argument, matrix in found.items()}
    placed = {
        RowArgument.X: Placed(x, _rows(rows, operation.num_columns_of_x(cols))),
        RowArgument.Y: Placed(y, _rows(rows, cols), 0, is_written=True),
    }
    placed |= {each: Placed(x, _rows(1, cols)) for each in VECTORS if each in operation.function.arguments}
    return placed | _scales(problem, is_written=True)


def draw_rows(case: RowCase, rng: np.random.Generator) -> dict[RowArgument, Bits]:
    """Draw the operands of a case that are read, each (group, row, column), in the arguments' order of `row_operands`.

    Scales that are given lie above 0.1; that of a tensor is by turns its values' own, as far as X tells. Rows that get
    factors have blocks of many magnitudes, and what is not finite.
    """
    found: dict[RowArgument, Bits] = {}
    for argument, placed in row_operands(case).items():
        if argument in POSITIONS:
            found[argument] = _positions(case, argument, rng)
        elif not placed.is_written:
            matrix = placed.matrix
            values = rng.standard_normal((matrix.num_groups, matrix.num_rows, matrix.num_columns), np.float32)
            if argument in (RowArgument.SCALE, RowArgument.TENSOR_SCALE):
                values = (np.abs(values) + 0.1).astype(np.float32)
            if argument is RowArgument.X and case.operation.factors is not None:
                values = _spread(case, values, rng)
            if argument is RowArgument.TENSOR_SCALE and not case.is_full:
                x = decode(case.operation.x, found[RowArgument.X])
                values[:] = own_factor(np.float32(np.abs(x[np.isfinite(x)]).max()))
            found[argument] = encode(placed.element, values)
    return found


def _positions(case: RowCase, argument: RowArgument, rng: np.random.Generator) -> Bits:
    """Return where the groups of a case end, or draw which rows of X its rows are, or where tokens go in a cache."""
    groups = case.groups
    if case.cache is not None:
        return case.cache.draw_position(rng)
    if groups is None:
        raise ValueError(f"{case} has no groups, got {argument.value}; expected a case of some")
    if argument is RowArgument.OFFSETS:
        return as_bits(np.array(groups.offsets))[None, :, None]
    return as_bits(draw_index(case.rows, groups.rows_of_x, rng, has_missing=True))[None, :, None]


SPREAD, FAR, SPREAD_COLUMNS = 6, 100, 8
"""Exponents of the magnitudes of neighbouring values, and of a few that are far out; and how many columns have one."""


def _spread(case: RowCase, values: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Give each few columns a power of two of their own; in quantisation alone also zeros, and what is not finite."""
    rows, cols = values.shape[1:]
    extents = values.shape[0], rows, -(-cols // SPREAD_COLUMNS)
    exponents, kinds = rng.integers(-SPREAD, SPREAD + 1, extents), rng.integers(0, 16, extents)
    is_alone = case.operation.function == QUANTIZE and case.is_full
    if is_alone:
        exponents = np.where(kinds == 1, -FAR, np.where(kinds == 2, FAR, exponents))
    found = np.ldexp(values, np.repeat(exponents, SPREAD_COLUMNS, 2)[..., :cols]).astype(np.float32)
    if is_alone:
        found[np.repeat(kinds == 3, SPREAD_COLUMNS, 2)[..., :cols]] = -0.0
        for i, special in enumerate((np.nan, -np.nan, np.inf, -np.inf)):
            found[0, i % rows, rng.integers(cols)] = special
    return found


def _flat(bits: Bits) -> Bits:
    """Return an operand (group, row, column) as rows: of a rotary embedding one for each head of each token."""
    return bits.reshape(-1, bits.shape[-1])


class RowReference:
    """The float64 reference of a case, computed once.

    Args:
        operation: what is computed.
        values: rows of the operands that are read, as `row_reference` takes them.
        parameters: the numbers of the call.
        own: the scale of all of Y, of an operation that is given one beside factors.
    """

    def __init__(
        self, operation: RowOperation, values: Rows, parameters: RowParameters, own: np.float32 | None = None
    ) -> None:
        self._operation, self._expected = operation, row_reference(operation, values, parameters)
        self._own = own

    def compare(self, written: Mapping[RowArgument, Bits], given: Bits | None = None) -> Comparison:
        """Hold what a kernel wrote against it; `given` are scales that it did not write, or that are not looked at."""
        if self._operation.factors is not None:
            return self._compare_factors(written)
        scales, residual_out = written.get(RowArgument.SCALE, given), written.get(RowArgument.RESIDUAL_OUT)
        found = Written(
            _flat(written[RowArgument.Y]),
            None if scales is None else np.ascontiguousarray(_flat(scales)).view(np.float32),
            None if residual_out is None else _flat(residual_out),
        )
        return compare_rows(self._operation, found, self._expected, scales_are_given=given is not None)

    def _compare_factors(self, written: Mapping[RowArgument, Bits]) -> Comparison:
        codes = WrittenFactors(_flat(written[RowArgument.Y]), _flat(written[RowArgument.SCALE]), self._own)
        outcome = compare_factors(self._operation.form, codes, self._expected.values)
        residual_out = written.get(RowArgument.RESIDUAL_OUT)
        bits = None if residual_out is None else _flat(residual_out)
        fault = outcome.fault or fault_of_residual(self._operation, bits, self._expected)
        return Comparison(np.inf, fault, np.inf) if fault else outcome


def check_of(case: RowCase, bits: Mapping[RowArgument, Bits]) -> Check:
    """Compute the reference of a case from its operands that are read."""
    placed, given = row_operands(case), bits.get(RowArgument.SCALE)
    values: dict[RowArgument, NDArray[np.float64]] = {}
    for argument, read in bits.items():
        if argument not in (RowArgument.SCALE, RowArgument.TENSOR_SCALE, *POSITIONS):
            rows = decode(placed[argument].element, _flat(read))
            is_shared = argument in (RowArgument.COS, RowArgument.SIN)  # by the heads of a token
            values[argument] = np.repeat(rows, HEADS, 0) if is_shared else rows
    own = bits.get(RowArgument.TENSOR_SCALE)
    given_to_all = None if own is None else np.float32(decode(ElementType.FLOAT32, own).item())
    if case.groups is not None:
        index = bits.get(RowArgument.INDEX)
        rows_of_y = None if index is None else np.ascontiguousarray(index[0, :, 0]).view(np.int32).astype(np.int64)
        values[RowArgument.X] = case.groups.rows_taken(values[RowArgument.X], rows_of_y)
    reference = RowReference(case.operation, values, case.parameters, given_to_all)
    if case.cache is not None:
        return _check_of_cache(case, case.cache, reference, bits, values)
    return lambda written: _compare(case, reference, written, given)


def _check_of_cache(
    case: RowCase,
    cache: RowCache,
    of_y: RowReference,
    bits: Mapping[RowArgument, Bits],
    values: Mapping[RowArgument, NDArray[np.float64]],
) -> Check:
    """Compute the reference of keys too; values are copied, and nothing else is written to a cache."""
    operation = case.operation
    angles = {x: np.repeat(values[x][::HEADS], cache.heads, 0) for x in (RowArgument.COS, RowArgument.SIN)}
    of_keys = RowReference(operation, {RowArgument.X: values[RowArgument.KEYS], **angles}, case.parameters)

    def compare(written: Mapping[RowArgument, Bits]) -> Comparison:
        position = bits[RowArgument.CACHE_POSITION]
        keys, fault = cache.take(written[RowArgument.KEY_CACHE], position, operation.y)
        taken, fault_of_values = cache.take(written[RowArgument.VALUE_CACHE], position, operation.y)
        if (taken != _flat(bits[RowArgument.VALUES])).any():
            fault_of_values = "values are not as they were given"
        faults = [Comparison(np.inf, f"cache: {x}", np.inf) for x in (fault, fault_of_values) if x]
        of_rows = [of_y.compare({RowArgument.Y: written[RowArgument.Y]}), of_keys.compare({RowArgument.Y: keys})]
        return worst([*of_rows, *faults])

    return compare


def _compare(
    case: RowCase, reference: RowReference, written: Mapping[RowArgument, Bits], given: Bits | None
) -> Comparison:
    """Hold what a kernel wrote against the reference of a case, of groups their rows."""
    if case.groups is None:
        return reference.compare(written, given)
    y = written[RowArgument.Y]
    wrong = case.groups.compare_others(case.operation, _flat(y))
    return wrong or reference.compare({**written, RowArgument.Y: y[:, case.groups.taken]}, given)
