"""Hold a kernel's result against its float64 reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from aot.core.element import ElementType
from aot.core.numerics import decode, is_bad, is_integer, max_finite, poison, round_to, saturates
from aot.core.reference import is_16_bit_product

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from aot.core.numerics import Bits
    from aot.core.operation import Operation
    from aot.core.reference import Expected

ERROR_BOUND = {ElementType.BFLOAT16: 5e-3, ElementType.FLOAT16: 1e-3}
"""Largest error allowed of a product of 16-bit operands with or without a bias, relative to the reference, in the
Frobenius norm and (see `compare`) for each element.

Derivation: D is rounded once, which changes an element by at most the unit roundoff: 2^-8 = 3.9e-3 for bf16 (8
significant bits), 2^-11 = 4.9e-4 for fp16 (11 bits). Accumulating k products in float32 adds about sqrt(k) * 2^-24,
under 2e-5 up to k = 65536. Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 2.2
and section 3.1. A correctly rounded random result lies near 1.6e-3 and 2e-4.
"""


@dataclass(frozen=True)
class Comparison:
    """Outcome of a check: the relative error, and what is wrong, empty when nothing is."""

    relative_error: float
    fault: str = ""
    share_of_bound: float = 0.0
    """The largest error of an element by what it may be (`largest_share`): up to 1 where nothing is wrong."""


def worst(outcomes: Sequence[Comparison]) -> Comparison:
    """Return the worst of some outcomes: one that is wrong, or the largest error; with the largest share of all."""
    found = max(outcomes, key=lambda x: (bool(x.fault), x.relative_error))
    return replace(found, share_of_bound=max(x.share_of_bound for x in outcomes))


def _norm(values: NDArray[np.float64]) -> float:
    """Return the Frobenius norm. np.linalg.norm wakes BLAS threads for it, which cost more than the sum does."""
    return float(np.sqrt(np.square(values).sum()))


def largest_share(
    values: NDArray[np.float64], best: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> float:
    """Return the largest distance of a value from the best one, by the distance from there to the limit on that side.

    Args:
        values: results.
        best: what they would best be, between the limits.
        low: the least that they may be.
        high: the greatest.
    """
    error = values - best
    allowed = np.where(error > 0, high - best, best - low)
    is_counted = np.isfinite(error) & np.isfinite(allowed) & (error != 0)
    shares = np.abs(error[is_counted]) / np.maximum(allowed[is_counted], np.finfo(np.float64).tiny)
    return float(shares.max(initial=0.0))


def _not_finite(dtype: ElementType, bits: Bits, values: NDArray[np.float64], bad: NDArray[np.bool_]) -> str:
    row, column = (int(i) for i in np.argwhere(bad)[0])
    what = "was not written" if int(bits[row, column]) == poison(dtype) else f"is {values[row, column]}"
    state = "not written" if is_integer(dtype) else "not finite"
    return f"{int(bad.sum())} of {bad.size} elements are {state}; the first, ({row}, {column}), {what}"


@dataclass(frozen=True)
class _Limits:
    """The least and the greatest value that each element may have, and the relative error allowed of all."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    relative: float


def _limits_by_type(dtype: ElementType, expected: Expected, norm: float) -> _Limits:
    """Allow each element ERROR_BOUND times its own magnitude plus the reference's root mean square."""
    values, bound = expected.values, ERROR_BOUND[dtype]
    magnitude = np.abs(values)
    allowed = bound * (magnitude + norm / np.sqrt(values.size))
    low, high = values - allowed, values + allowed
    if not (magnitude <= max_finite(dtype)).all():
        wanted = round_to(dtype, values)
        low, high = (np.where(np.isfinite(wanted), x, wanted) for x in (low, high))
    return _Limits(low, high, bound)


def _limits_by_radius(dtype: ElementType, expected: Expected) -> _Limits:
    low, high = (round_to(dtype, expected.values + sign * expected.radius) for sign in (-1, 1))
    return _Limits(low, high, np.inf)


class Check:
    """What a result (m, n) of an operation is held against, computed once for all kernels.

    An element must lie where its reference's radius, rounded to D's type, lets it (`aot.core.reference`); be a NaN
    where the reference is, and infinite where that is. An element of a product of 16-bit operands has the bound of its
    type instead, and so has the Frobenius norm of all errors: one wrong element among millions does not move the norm.
    """

    @np.errstate(invalid="ignore", over="ignore")
    def __init__(self, operation: Operation, expected: Expected) -> None:
        self._dtype = dtype = operation.d
        largest = max_finite(dtype) if saturates(dtype) else np.inf  # what is more is no error then
        self._exact = np.clip(expected.values, -largest, largest)
        self._norm = max(_norm(self._exact[np.isfinite(self._exact)]), np.finfo(np.float64).tiny)
        is_simple = is_16_bit_product(operation)
        by_radius = None if is_simple else _limits_by_radius(dtype, expected)
        self._limits = by_radius or _limits_by_type(dtype, expected, self._norm)
        self._must_be_finite = np.isfinite(self._limits.low) & np.isfinite(self._limits.high)
        self._is_any_right = np.isinf(expected.radius)
        # The limits by radius are rounded, so that the rounding of a right result takes no share of them.
        self._best = self._exact if is_simple else round_to(dtype, expected.values)

    @np.errstate(invalid="ignore", over="ignore")
    def compare(self, bits: Bits) -> Comparison:
        """Hold a result's bits against the reference."""
        values, exact, limits = decode(self._dtype, bits), self._exact, self._limits
        bad = is_bad(self._dtype, bits) & self._must_be_finite
        if bad.any():
            return Comparison(1.0, _not_finite(self._dtype, bits, values, bad), np.inf)
        error = values - exact
        relative = _norm(np.where(np.isfinite(error), error, 0.0)) / self._norm
        is_inside = (values >= limits.low) & (values <= limits.high)
        wrong = ~is_inside
        if wrong.any():  # what is not finite is compared by kind
            wrong &= ~((np.isnan(values) & np.isnan(exact)) | self._is_any_right)
        if relative <= limits.relative and not wrong.any():
            share = max(largest_share(values, self._best, limits.low, limits.high), relative / limits.relative)
            return Comparison(relative, share_of_bound=share)
        return Comparison(relative, _wrong(values, exact, limits, wrong, relative), np.inf)


def compare(operation: Operation, bits: Bits, expected: Expected) -> Comparison:
    """Hold one result (m, n) against its reference, as `Check` does."""
    return Check(operation, expected).compare(bits)


def _wrong(
    values: NDArray[np.float64],
    exact: NDArray[np.float64],
    limits: _Limits,
    wrong: NDArray[np.bool_],
    relative: float,
) -> str:
    """Say how many elements are wrong, and which one the most: what is not finite, or what is, before all else."""
    excess = np.maximum(values - limits.high, limits.low - values)
    excess = np.where(wrong & np.isnan(excess), np.inf, excess)
    row, column = (int(i) for i in np.unravel_index(int(np.nanargmax(excess)), excess.shape))
    got, want = float(values[row, column]), float(exact[row, column])
    low, high = float(limits.low[row, column]), float(limits.high[row, column])
    if np.isfinite(limits.relative):
        bound, between = f", bound {limits.relative:.0e}", ""
    else:
        bound, between = "", f", between {low:.6g} and {high:.6g}"
    return (
        f"relative error {relative:.2e}{bound}; {int(wrong.sum())} of {wrong.size} elements are wrong, "
        f"most at ({row}, {column}): got {got:.6g}, expected {want:.6g}{between}"
    )
