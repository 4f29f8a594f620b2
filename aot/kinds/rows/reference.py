"""The float64 reference of every row operation, and how far from it a right kernel's float32 arithmetic may lead.

As in `aot.core.reference`, each value goes with a radius, and rounding both of its ends to Y's type bounds a right
kernel's element. What a kernel rounds on the way is rounded here too, exactly: X + RESIDUAL, which is added in float32
first, and the scales, which are taken as the kernel wrote them once they are found right.

A sum of n float32 terms is off by at most d units in the last place of the sum of their magnitudes, where d is how many
additions lie one upon another. Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section
4.2. No kernel's d is more than `ADDITIONS` and a share of the columns: a thread adds its own in turn, of at most 64 in
registers or one in each 256, and the threads' are added pairwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from aot.core.element import ElementType
from aot.core.epilogue import Step
from aot.core.formats import SCALE_BLOCK
from aot.core.numerics import decode, encode, max_finite
from aot.core.reference import LEAST_NORMAL, ULP, Expected, exact, gated, rounded
from aot.kinds.rows.function import GPT_OSS_LIMIT, GPT_OSS_SLOPE, LAYER_NORM
from aot.kinds.rows.operation import RowOperation, RowScale
from aot.kinds.rows.quantization import LEAST_SCALE
from aot.kinds.rows.signature import RowArgument

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]

Rows: TypeAlias = "Mapping[RowArgument, Array]"
"""Rows of operands by argument, values of their types: X (rows, cols) or (rows, 2 cols), RESIDUAL (rows, cols), WEIGHT
and BIAS (1, cols), COS and SIN (rows, rotary dim / 2). What is not there is left away."""

ADDITIONS, THREADS = 96, 256
"""Additions one upon another: `ADDITIONS` + cols / `THREADS`. Source: the families' most elements a thread, 64, their
fewest threads of a wide row, 256, ten steps among 1024 threads, and as much again."""

APPROXIMATE = 2.0**-21
"""Relative error of rsqrt.approx, rcp.approx and a rounding or two. Source: PTX ISA: 2^-22.9, and one unit in the last
place."""


@dataclass(frozen=True)
class RowParameters:
    """The numbers of a call, and how pairs lie."""

    eps: float = 1e-6
    weight_offset: float = 0.0
    is_interleaved: bool = False
    rounds_norm: bool = False
    """Whether a normalised row is rounded to X's type before it is multiplied with the weight."""


@dataclass(frozen=True)
class RowExpected:
    """What an operation gives before it is divided by scales and rounded to Y's type."""

    values: Expected
    residual_out: Array | None = None
    """X + RESIDUAL, rounded to X's type: exact. None where there is no residual."""


def _added(rows: Rows, element: ElementType) -> Array:
    """Return X + RESIDUAL as kernels compute it: in float32, then rounded to X's type."""
    x = rows[RowArgument.X].astype(np.float32) + rows[RowArgument.RESIDUAL].astype(np.float32)
    return decode(element, encode(element, x))


def _sum_error(cols: int) -> float:
    return (ADDITIONS + cols / THREADS) * ULP


def _overflowed(values: Array) -> Array:
    """Return sums as float32 has them: what is larger than its numbers is infinite."""
    return np.where(np.abs(values) > max_finite(ElementType.FLOAT32), np.copysign(np.inf, values), values)


def _deviation(z: Expected, eps: float) -> Expected:
    """Return 1 / sqrt(mean(z^2) + eps) of each row, (rows, 1)."""
    cols = z.values.shape[1]
    mean = _overflowed((z.values**2).sum(1, keepdims=True)) / cols
    error = (2 * np.abs(z.values) * z.radius + z.radius**2).sum(1, keepdims=True) / cols
    error = error + (_sum_error(cols) + APPROXIMATE) * mean + LEAST_NORMAL
    middle = 1 / np.sqrt(mean + eps)
    # What is below the least normal number may be taken for 0, whose root's inverse is infinite.
    least = mean - error + eps
    high = 1 / np.sqrt(np.where(least > LEAST_NORMAL, least, 0.0))
    low = 1 / np.sqrt(mean + error + eps)
    radius = np.fmax(high - middle, middle - low) + APPROXIMATE * middle
    return Expected(middle, np.where(np.isfinite(mean) & np.isfinite(middle), radius, 0.0))


def norm_reference(operation: RowOperation, rows: Rows, parameters: RowParameters) -> RowExpected:
    """Compute a norm of X, or of X + RESIDUAL."""
    has_residual = RowArgument.RESIDUAL in rows
    z = _added(rows, operation.x) if has_residual else rows[RowArgument.X]
    found, cols = exact(z), z.shape[1]
    offset = 0.0
    if operation.function == LAYER_NORM:
        mean = _overflowed(z.sum(1, keepdims=True)) / cols
        error = (_sum_error(cols) + APPROXIMATE) * np.abs(z).sum(1, keepdims=True) / cols
        found = rounded(z - mean, np.broadcast_to(error, z.shape))
    else:
        offset = parameters.weight_offset
    found = found * _wide(_deviation(found, parameters.eps), z.shape)
    if parameters.rounds_norm:
        found = _narrowed(operation.x, found)
    if RowArgument.WEIGHT in rows:
        weight = np.broadcast_to(rows[RowArgument.WEIGHT], z.shape)
        found = found * (rounded(weight + offset) if offset else exact(weight))
    if RowArgument.BIAS in rows:
        found = found + exact(np.broadcast_to(rows[RowArgument.BIAS], z.shape))
    return RowExpected(found, z if has_residual else None)


def _narrowed(element: ElementType, found: Expected) -> Expected:
    """Round values to an element type; what a kernel is off by may round another way."""
    middle, low, high = (
        decode(element, encode(element, x.astype(np.float32)))
        for x in (found.values, found.values - found.radius, found.values + found.radius)
    )
    return Expected(middle, np.where(np.isfinite(middle), np.fmax(high - middle, middle - low), 0.0))


def _wide(column: Expected, shape: tuple[int, ...]) -> Expected:
    return Expected(np.broadcast_to(column.values, shape), np.broadcast_to(column.radius, shape))


def halves_of(rows: Rows, parameters: RowParameters) -> tuple[Array, Array]:
    """Return the first and the second elements of the pairs of X, (rows, cols) each."""
    x = rows[RowArgument.X]
    half = x.shape[1] // 2
    return (x[:, ::2], x[:, 1::2]) if parameters.is_interleaved else (x[:, :half], x[:, half:])


def _gated(step: Step, rows: Rows, parameters: RowParameters) -> RowExpected:
    gate, linear = halves_of(rows, parameters)
    return RowExpected(gated(step, exact(gate), exact(linear)))


def silu_mul_reference(operation: RowOperation, rows: Rows, parameters: RowParameters) -> RowExpected:
    """Compute silu(gate) * linear."""
    del operation
    return _gated(Step.SWIGLU, rows, parameters)


def gelu_tanh_mul_reference(operation: RowOperation, rows: Rows, parameters: RowParameters) -> RowExpected:
    """Compute gelu_tanh(gate) * linear."""
    del operation
    return _gated(Step.GEGLU, rows, parameters)


def gpt_oss_mul_reference(operation: RowOperation, rows: Rows, parameters: RowParameters) -> RowExpected:
    """Compute silu(slope * gate) / slope * (linear + 1), both clamped; NaN stays."""
    del operation
    gate, linear = halves_of(rows, parameters)
    above = np.where(gate > GPT_OSS_LIMIT, GPT_OSS_LIMIT, gate)
    within = np.where(np.abs(linear) > GPT_OSS_LIMIT, np.copysign(GPT_OSS_LIMIT, linear), linear)
    slope, of_slope = (rounded(np.full_like(gate, x)) for x in (GPT_OSS_SLOPE, 1.0 / GPT_OSS_SLOPE))
    return RowExpected(gated(Step.SWIGLU, exact(above) * slope, rounded(within + 1.0) * of_slope))


def rotary_reference(operation: RowOperation, rows: Rows, parameters: RowParameters) -> RowExpected:
    """Turn the elements of heads."""
    del operation
    x, cos, sin = (rows[argument] for argument in (RowArgument.X, RowArgument.COS, RowArgument.SIN))
    half = cos.shape[1]
    lies = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    left, right = lies if parameters.is_interleaved else (slice(0, half), slice(half, 2 * half))
    a, b = exact(x[:, left]), exact(x[:, right])
    c, s, minus = exact(cos), exact(sin), exact(-sin)
    values, radius = x.copy(), np.zeros_like(x)
    for part, found in ((left, a * c + b * minus), (right, b * c + a * s)):
        values[:, part], radius[:, part] = found.values, found.radius
    return RowExpected(Expected(values, radius))


def quantize_reference(operation: RowOperation, rows: Rows, parameters: RowParameters) -> RowExpected:
    """Return X itself."""
    del operation, parameters
    return RowExpected(exact(rows[RowArgument.X]))


def row_reference(operation: RowOperation, rows: Rows, parameters: RowParameters) -> RowExpected:
    """Compute what a row operation gives, in float64, before Y's scales."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        found: RowExpected = operation.function.load_reference()(operation, rows, parameters)
    return found


def expected_scales(operation: RowOperation, values: Expected) -> Expected:
    """Return the scales that a kernel computes, `shape_of_scales`: the largest magnitude over Y's largest number.

    A NaN among the values makes the scale one; values that are all 0 have the scale 1. Where the values are exact, the
    scale is the exact quotient rounded to float32.
    """
    if operation.scale is RowScale.TENSOR:
        values = Expected(values.values.reshape(1, -1), values.radius.reshape(1, -1))
    cols = values.values.shape[1]
    width = SCALE_BLOCK if operation.scale is RowScale.BLOCK else max(cols, 1)
    parts = [slice(start, start + width) for start in range(0, cols, width)]
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(values.values)
        largest = np.stack([size[:, part].max(1) for part in parts], 1)
        radius = np.stack([values.radius[:, part].max(1) for part in parts], 1)
        most = max_finite(operation.y)
        scales = np.maximum((largest / most).astype(np.float32).astype(np.float64), LEAST_SCALE)
        error = np.where(radius > 0, radius / most + 2 * ULP * scales, 0.0)
        return Expected(np.where(largest == 0, 1.0, scales), np.where(np.isfinite(scales), error, 0.0))


def scaled(operation: RowOperation, values: Expected, scales: Array) -> Expected:
    """Divide values by the scales that go with them, as kernels do, in float32.

    Args:
        operation: whose scales they are.
        values: (rows, cols).
        scales: (rows, 1), (1, 1), or (rows, blocks).
    """
    cols = values.values.shape[1]
    wide = np.repeat(scales, SCALE_BLOCK, 1)[:, :cols] if operation.scale is RowScale.BLOCK else scales
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        quotient = values.values / wide
        radius = values.radius / np.abs(wide) + ULP * np.abs(quotient) + LEAST_NORMAL
        return Expected(quotient, np.where(np.isfinite(quotient), radius, 0.0))
