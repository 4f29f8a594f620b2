"""The float64 reference of every operation, and how far from it a right kernel's float32 arithmetic may lead.

Each value goes with a radius: what a kernel computes in float32, before it rounds to D's type, lies within it. The
radius is that of the sum, grown by each step of the epilogue. `aot.core.comparison` then rounds both of its ends to D's
type: since rounding never changes the order of two numbers, a right kernel's element lies between the two, and needs no
other allowance, whether it is subnormal, saturated or infinite.

The sum. A tensor core adds products, which are exact, to a running sum, some at a time; it shifts all to the largest's
exponent and cuts what is below its last bit, 2^-p of the largest: p is 23 in float32 accumulators, 13 in Hopper's FP8.
Source: M. Fasi et al., Numerical behavior of NVIDIA tensor cores, PeerJ Computer Science 7:e330 (2021), section 4;
DeepSeek-V3 technical report, section 3.5.2, "14 bits". Let Q be the root of the sum of the products' squares. Random
products have signs of their own, so that sums run about as a random walk whose end has a standard deviation of Q, and
whose mean square on the way is Q^2 / 2: the largest addend is taken as 2 Q. (Where products of one sign make the sum
larger than that, half of the sum is taken for Q.) Then

- each product loses up to 2^-p 2 Q, of its own sign: over L products an error of mean 0 and of a standard deviation of
  sqrt(L / 3) 2^-p 2 Q, of which six are allowed;
- the running sum loses up to 2^-p 2 Q, always towards 0, at each of L / c steps of c products: L / c 2^-p 2 Q in all,
  of which twice as much is allowed.

Where FP8 sums are promoted, L is 128: each run has its own Q, their squares add up to the whole's, and their errors
have signs of their own, so that the same expression with L = 128 holds for the whole; additions of p = 23 come on top.
A kernel that adds in another order, or splits k, stays below: shorter runs lose less. Integer sums are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from aot.core.element import BYTE_BITS, ElementType
from aot.core.epilogue import Epilogue, Step
from aot.core.formats import FactorLayout
from aot.core.numerics import decode, is_integer, round_to, unit_roundoff
from aot.core.operands import OPERANDS, element_of, operands
from aot.core.operation import ELEMENTS
from aot.core.signature import Argument
from aot.core.weight_values import packed_rows, packed_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from aot.core.formats import ScaleFormat
    from aot.core.numerics import Bits
    from aot.core.operands import Arrangement, Indices
    from aot.core.operation import Operation
    from aot.core.problem import Problem

    Array: TypeAlias = NDArray[np.float64]

Values: TypeAlias = "Mapping[Argument, Array]"
"""Operands by argument: A (m, k), B (rows, k), BIAS (1, rows), RESIDUAL (m, n), SCALE_A (m, 1) and SCALE_B (rows, 1)
or, of blocks, (m, k / 128) and (rows, k / 128), SCALE_D (1, 1). With a gate rows are 2 n, the gate's first."""

SIGMAS = 6.0
"""Standard deviations that an error of mean 0 may have: one in 5e8 is larger."""

WALK = 2.0
"""The largest addend of a sum over Q."""

FLOAT32_BITS = 23
"""p of a sum in float32."""

FP8_BITS = 13
"""p of a sum of FP8 products in Hopper's tensor cores."""

FLOAT32_STEP, FP8_STEP = 4, 32
"""Products that one step adds at the least: the k of TF32's smallest mma, and of FP8's. Source: PTX ISA, mma."""

PROMOTED_RUN = 128
"""Elements of k whose FP8 products the tensor core adds up between two additions in float32. Source:
aot.core.types.Types.is_fast."""

TANH_ERROR = 2.0**-11
"""Relative error of tanh.approx.f32. Source: PTX ISA, tanh."""

ERF_ERROR = 2.0**-21
"""Error of erf where its argument, of a magnitude of up to 4, was rounded twice, and its result is off by two units in
the last place. Source: CUDA C++ Programming Guide, mathematical functions, erff; the slope of erf is at most 1.13."""

SLOPE = 1.13
"""Largest slope of the activations: GELU's 1.129, SiLU's 1.0998."""

ULP = unit_roundoff(ElementType.FLOAT32)

LEAST_NORMAL = 2.0**-126
"""Least normal number of float32: what is below it, a kernel may take for 0."""

_ERFC = np.frompyfunc(math.erfc, 1, 1)


@dataclass(frozen=True)
class Expected:
    """Exact results before they are rounded to D's type, and how far from them a kernel's may lie; both (m, n)."""

    values: Array
    radius: Array
    """Infinite where any result is right: an infinity times what a kernel may take for 0."""

    def __add__(self, other: Expected) -> Expected:
        """Return the sum, rounded once more."""
        values = self.values + other.values
        return rounded(values, self.radius + other.radius)

    def __mul__(self, other: Expected) -> Expected:
        """Return the product, rounded once more."""
        radius = np.abs(self.values) * other.radius + np.abs(other.values) * self.radius + self.radius * other.radius
        found = rounded(self.values * other.values, radius)
        is_open = self._may_vanish & np.isinf(other.values) | other._may_vanish & np.isinf(self.values)
        return Expected(np.where(is_open, np.nan, found.values), np.where(is_open, np.inf, found.radius))

    @property
    def _may_vanish(self) -> NDArray[np.bool_]:
        """Say which values a kernel may take for 0, whose product with an infinity is a NaN."""
        return np.asarray((np.abs(self.values) <= self.radius) & (self.values != 0), np.bool_)

    def map(self, function: Callable[[Array], Array], slope: float, error: float) -> Expected:
        """Return a function's values.

        Args:
            function: of a magnitude of at most its argument's.
            slope: its largest.
            error: of a kernel's function, over its argument.
        """
        size = np.where(np.isfinite(self.values), np.abs(self.values), 0.0)
        return _within(function(self.values), slope * self.radius + error * size)


def _within(values: Array, radius: Array) -> Expected:
    """Return values with their radius, which what is not finite has none of."""
    return Expected(values, np.where(np.isfinite(values), radius, 0.0))


def rounded(values: Array, radius: Array | float = 0.0) -> Expected:
    """Return values that float32 rounded once, beside the radius that they have."""
    return _within(values, radius + ULP * np.abs(values) + LEAST_NORMAL)


def exact(values: Array) -> Expected:
    """Return values that are exact."""
    return Expected(values, np.zeros_like(values))


def _gelu(x: Array) -> Array:
    """Return x * (1 + erf(x / sqrt(2))) / 2, by erfc: beside -1 erf has no digits left, and 0 times infinity is NaN."""
    return np.asarray(x * np.asarray(_ERFC(x / -math.sqrt(2)), np.float64) / 2)


def _gelu_tanh(x: Array) -> Array:
    """Return x * (1 + tanh(u)) / 2, which is x / (1 + exp(-2 u)): beside -1 tanh has no digits left."""
    return np.asarray(x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


ROUNDINGS = 4 * ULP
"""What the float32 operations of an activation add to its error, over its argument."""

_ACTIVATIONS: Mapping[Step, Callable[[Expected], Expected]] = {
    Step.RELU: lambda x: x.map(lambda v: np.maximum(v, 0.0), 1.0, 0.0),
    Step.GELU: lambda x: x.map(_gelu, SLOPE, ERF_ERROR / 2 + ROUNDINGS),
    Step.GELU_TANH: lambda x: x.map(_gelu_tanh, SLOPE, TANH_ERROR / 2 + ROUNDINGS),
    Step.SILU: lambda x: x.map(_silu, SLOPE, TANH_ERROR / 2 + ROUNDINGS),
}
"""SiLU is x (1 + tanh(x / 2)) / 2, which kernels compute as they do GELU by tanh; by exp its error is less."""

_GATES = {Step.SWIGLU: Step.SILU, Step.GEGLU: Step.GELU_TANH}


def gated(gate: Step, values: Expected, linear: Expected) -> Expected:
    """Return a gate's activation of some values, times others."""
    return _ACTIVATIONS[_GATES[gate]](values) * linear


def _run_error(bits: int, length: int, step: int) -> float:
    """Return the error of a sum over Q, of runs of `length` products."""
    lost = WALK * 2.0**-bits
    return lost * (SIGMAS * math.sqrt(length / 3) + 2 * math.ceil(length / step))


def is_16_bit_product(operation: Operation) -> bool:
    """Say whether an operation is a product of 16-bit operands, or several, with or without a bias.

    Those, which were first, have a bound of their type (aot.core.comparison.ERROR_BOUND), and no radius is computed.
    """
    types = operation.types
    is_plain = operation.epilogue in (Epilogue.NONE, Epilogue.BIAS) and types.factors is None
    return is_plain and types.d in ELEMENTS and types.a is types.b is types.d


def sum_error(operation: Operation, k: int) -> float:
    """Return how far a kernel's sum of k random products may lie from the exact one, over Q."""
    if is_integer(operation.accumulator):
        return 0.0
    error = _run_error(FLOAT32_BITS, k, FLOAT32_STEP)
    if operation.a.element.bits > BYTE_BITS:
        return error
    return error + _run_error(FP8_BITS, k if operation.types.is_fast else min(k, PROMOTED_RUN), FP8_STEP)


def _input_error(a: Array, b: Array, total: Array, root: Array) -> Array:
    """Return what the tensor cores' TF32 changes of float32 inputs, which they cut or round to 10 bits.

    Each loses up to 2^-10 of itself, always towards 0 where it is cut, so that a product loses up to 2^-9. Where no
    input has more bits, nothing is lost.
    """
    if all(np.array_equal(round_to(ElementType.TFLOAT32, x), x, equal_nan=True) for x in (a, b)):
        return np.zeros_like(total)
    return 2.0**-9 * (np.abs(total) + SIGMAS * root)


def _factors_of(scale: ScaleFormat | None, rows: Indices, k: int) -> tuple[Indices, Indices]:
    """Return which factors some rows of an operand are multiplied by: one row of factors for each of them."""
    if scale is None:
        return rows, np.zeros(1, np.int64)
    return rows // scale.block_m, np.arange(scale.num_factors(1, k)[1], dtype=np.int64)


def _rows_of_b(problem: Problem, columns: Indices, arrangement: Arrangement) -> Indices:
    """Return the rows of B, or of its bytes, that some columns of D are made of: a gate's, then the linear ones."""
    operation, n = problem.operation, problem.n
    weight, (behind, _) = operation.b.weight, operation.b.extents(n, problem.k)
    rows = columns if weight is None else packed_rows(weight, columns, n)
    if operation.gate is None:
        return rows
    halves = (2 * rows, 2 * rows + 1) if arrangement.is_interleaved else (rows, behind + rows)
    return np.concatenate(halves[::-1] if arrangement.is_linear_first else halves)


def needed(
    problem: Problem, rows: Indices, columns: Indices, arrangement: Arrangement
) -> dict[Argument, tuple[Indices, Indices]]:
    """Return the rows and columns of each operand that some rows and columns of D are made of.

    They are in the order of `Values`: a gate's rows of B before the linear ones, and factors of blocks for each row. Of
    a packed weight they are the rows of bytes that columns of D are in: `values_of` finds them there.
    """
    n, k = problem.n, problem.k
    of_b, zero = columns, np.zeros(1, np.int64)
    if problem.operation.gate is not None:
        halves = (2 * columns, 2 * columns + 1) if arrangement.is_interleaved else (columns, n + columns)
        of_b = np.concatenate(halves)
    steps, (_, row_length) = np.arange(k, dtype=np.int64), problem.operation.b.extents(n, k)
    found = (
        (rows, steps),
        (_rows_of_b(problem, columns, arrangement), np.arange(row_length, dtype=np.int64)),
        (rows, columns),
        _factors_of(problem.operation.a.scale, rows, k),
        _factors_of(problem.operation.b.scale, of_b, k),
        (zero, of_b),
        (rows, columns),
        (zero, zero),
        (zero, zero),
        _factors_of(problem.operation.factors_of_d, rows, n),
    )
    values = (x for x in OPERANDS if x not in (Argument.OFFSETS, Argument.INDEX))
    return {x: y for x, y in zip(values, found, strict=True) if x in operands(problem, 0, arrangement)}


def values_of(problem: Problem, argument: Argument, bits: Bits, columns: Indices) -> Array:
    """Return what bits of an operand stand for, which were taken at the places that `needed` names.

    Args:
        problem: what is computed.
        argument: the operand.
        bits: (rows, columns) of it.
        columns: of D, which were asked for.
    """
    weight = problem.operation.b.weight
    if argument is Argument.B and weight is not None:
        parts = np.split(bits, problem.operation.num_rows_of_b(1))
        x = problem.operation.a.element
        return np.concatenate([packed_values(weight, part, columns, problem.k, x) for part in parts])
    return decode(element_of(problem.operation, argument), bits)


def _multiplied(x: Array, scale: ScaleFormat | None, factors: Array | None) -> Array:
    """Return an operand, (rows, k), of which each block along k is multiplied by its factor."""
    if scale is None or not scale.block_k or factors is None:
        return x
    return np.asarray(x * np.repeat(factors, scale.block_k, axis=1)[:, : x.shape[1]])


def _product(operation: Operation, values: Values) -> Expected:
    """Sum the products, those of blocks times their factors."""
    a, b = values[Argument.A], values[Argument.B]
    if is_16_bit_product(operation):
        return exact(a @ b.T)
    k = a.shape[1]
    a = _multiplied(a, operation.a.scale, values.get(Argument.SCALE_A))
    b = _multiplied(b, operation.b.scale, values.get(Argument.SCALE_B))
    total = a @ b.T
    root = np.maximum(np.sqrt(a**2 @ (b**2).T), np.abs(total) / WALK)
    radius = sum_error(operation, k) * root
    if operation.a.element is ElementType.TFLOAT32:
        radius += _input_error(a, b, total, root)
    return _within(total, radius + k * LEAST_NORMAL)


def _scaled(operation: Operation, values: Values) -> Expected:
    """Return the sum with its vectors of scales and its bias."""
    found = _product(operation, values)
    if is_integer(operation.accumulator) and not is_integer(operation.d):
        found = rounded(found.values, found.radius)
    if operation.types.factors is FactorLayout.VECTOR:
        of_b = values[Argument.SCALE_B].T
        found *= rounded(values[Argument.SCALE_A] * of_b) if Argument.SCALE_A in values else exact(of_b)
    if operation.types.scales_sum:
        found *= exact(values[Argument.SCALE_D])
    if Argument.BIAS in values:
        found += exact(values[Argument.BIAS])
    return found


def reference(operation: Operation, values: Values) -> Expected:
    """Compute what an operation gives, in float64.

    Args:
        operation: what is computed.
        values: its operands. A bias that is not there is not added.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        found = _scaled(operation, values)
        if operation.gate is not None:
            n = found.values.shape[1] // 2
            gate, linear = (Expected(found.values[:, x], found.radius[:, x]) for x in (slice(n), slice(n, None)))
            found = gated(operation.gate, gate, linear)
        elif operation.activation is not None:
            found = _ACTIVATIONS[operation.activation](found)
        if Argument.RESIDUAL in values:
            found += exact(values[Argument.RESIDUAL])
        if Argument.SCALE_D in values and not operation.types.scales_sum:
            found *= exact(values[Argument.SCALE_D])
    return found
