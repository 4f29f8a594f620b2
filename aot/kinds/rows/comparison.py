"""Hold what a row kernel wrote against its float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.comparison import Comparison, largest_share
from aot.core.numerics import decode, is_integer, round_to
from aot.kinds.rows.reference import expected_scales, scaled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.core.numerics import Bits
    from aot.kinds.rows.operation import RowOperation
    from aot.kinds.rows.reference import RowExpected

    Array = NDArray[np.float64]


@dataclass(frozen=True)
class Written:
    """What a kernel wrote, as bits, and None where it did not have to."""

    y: Bits
    """(rows, cols)."""
    scales: NDArray[np.float32] | None = None
    """(rows, 1), (rows, blocks) or (1, 1): those that the kernel wrote, or those that were given to it."""
    residual_out: Bits | None = None
    """(rows, cols)."""


def _first(name: str, wrong: NDArray[np.bool_], got: Array, low: Array, high: Array) -> str:
    """Say how many elements of something are wrong, and the first."""
    row, column = (int(i) for i in np.argwhere(wrong)[0])
    between = f"between {low[row, column]:.6g} and {high[row, column]:.6g}"
    text = f"{name}: {int(wrong.sum())} of {wrong.size} elements are wrong; the first, ({row}, {column})"
    return f"{text}, is {got[row, column]:.6g}, expected {between}"


def _outside(got: Array, low: Array, high: Array) -> NDArray[np.bool_]:
    """Say which values are in no range; a NaN is in that of NaNs."""
    is_nan = np.isnan(got) & np.isnan(low)
    return np.asarray(~((got >= low) & (got <= high)) & ~is_nan, np.bool_)


def _wrong(fault: str) -> Comparison:
    return Comparison(np.inf, fault, np.inf)


def compare_rows(
    operation: RowOperation, written: Written, expected: RowExpected, *, scales_are_given: bool
) -> Comparison:
    """Hold what a kernel wrote against its reference. The relative error of the outcome is 0 where nothing is wrong.

    Its scales are held against the reference's unless they were given to it, and Y against the reference's values over
    those scales: a scale that is off by a unit in the last place is right, and so is what was divided by it.
    """
    values, share = expected.values, 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        if written.scales is not None:
            scales = written.scales.astype(np.float64)
            if not scales_are_given:
                wanted = expected_scales(operation, values)
                low, high = wanted.values - wanted.radius, wanted.values + wanted.radius
                wrong = _outside(scales, low, high)
                if wrong.any():
                    return _wrong(_first("scales", wrong, scales, low, high))
                share = largest_share(scales, wanted.values, low, high)
            values = scaled(operation, values, scales)
        low, high = (round_to(operation.y, values.values + sign * values.radius) for sign in (-1, 1))
        if is_integer(operation.y):  # a NaN becomes 0
            low, high = np.nan_to_num(low, nan=0.0), np.nan_to_num(high, nan=0.0)
        got = decode(operation.y, written.y)
        wrong = _outside(got, low, high) & ~np.isinf(values.radius)
        if wrong.any():
            return _wrong(_first("y", wrong, got, low, high))
        share = max(share, largest_share(got, np.clip(round_to(operation.y, values.values), low, high), low, high))
        fault = fault_of_residual(operation, written.residual_out, expected)
    return _wrong(fault) if fault else Comparison(0.0, share_of_bound=share)


def fault_of_residual(operation: RowOperation, residual_out: Bits | None, expected: RowExpected) -> str:
    """Say what is wrong with X + RESIDUAL as a kernel wrote it; empty where nothing is, or there is none."""
    if residual_out is None or expected.residual_out is None:
        return ""
    got, want = decode(operation.x, residual_out), expected.residual_out
    wrong = _outside(got, want, want)
    return _first("residual_out", wrong, got, want, want) if wrong.any() else ""
