"""Bits of bf16 and fp16, the float64 reference of a product, and the bounds that a result must keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from aot.core.element import ElementType

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bits: TypeAlias = "NDArray[np.uint16]"
"""Elements of bf16 or fp16 as their 16 bits."""

ERROR_BOUND = {ElementType.BFLOAT16: 5e-3, ElementType.FLOAT16: 1e-3}
"""Largest error allowed, relative to the reference, in the Frobenius norm and (see `compare`) for each element.

Derivation: D is rounded once, which changes an element by at most the unit roundoff: 2^-8 = 3.9e-3 for bf16 (8
significant bits), 2^-11 = 4.9e-4 for fp16 (11 bits). Accumulating k products in float32 adds about sqrt(k) * 2^-24,
under 2e-5 up to k = 65536. Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 2.2
and section 3.1. A correctly rounded random result lies near 1.6e-3 and 2e-4.
"""

POISON = 0xFFFF
"""Bits that D holds before a launch: a NaN in both types, so an element that was not written shows."""

EXPONENT = {ElementType.BFLOAT16: np.uint16(0x7F80), ElementType.FLOAT16: np.uint16(0x7C00)}
"""Bits of the exponent, all set in infinities and NaNs alone. Source: IEEE 754-2019, section 3.4."""


def encode(dtype: ElementType, values: NDArray[np.float32]) -> Bits:
    """Round float32 values to the type's bits, to nearest, ties to even."""
    if dtype is ElementType.FLOAT16:
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16)


def decode(dtype: ElementType, bits: Bits) -> NDArray[np.float64]:
    """Return the values that the bits stand for."""
    if dtype is ElementType.FLOAT16:
        return np.ascontiguousarray(bits).view(np.float16).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def reference(
    a: NDArray[np.float64], b: NDArray[np.float64], bias: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Compute A (m, k) @ B (n, k)^T in float64, and add a bias (n) to each row."""
    product = a @ b.T
    return product if bias is None else product + bias


def _norm(values: NDArray[np.float64]) -> float:
    """Return the Frobenius norm. np.linalg.norm wakes BLAS threads for it, which cost more than the sum does."""
    return float(np.sqrt(np.square(values).sum()))


@dataclass(frozen=True)
class Comparison:
    """Outcome of a check: the relative error, and what is wrong, empty when nothing is."""

    relative_error: float
    fault: str = ""


def _not_finite(bits: Bits, values: NDArray[np.float64]) -> str:
    bad = ~np.isfinite(values)
    row, column = (int(i) for i in np.argwhere(bad)[0])
    what = "was not written" if int(bits[row, column]) == POISON else f"is {values[row, column]}"
    return f"{int(bad.sum())} of {bad.size} elements are not finite; the first, ({row}, {column}), {what}"


def compare(dtype: ElementType, bits: Bits, expected: NDArray[np.float64]) -> Comparison:
    """Hold a result (m, n) against its float64 reference.

    The Frobenius norm of the error stays under ERROR_BOUND times the reference's; and no element is off by more than
    ERROR_BOUND times (its own magnitude plus the reference's root mean square), since one wrong element among
    millions does not move the norm.
    """
    values = decode(dtype, bits)
    if not np.isfinite(values).all():
        return Comparison(1.0, _not_finite(bits, values))
    error = np.abs(values - expected)
    norm = max(_norm(expected), np.finfo(np.float64).tiny)
    relative = _norm(error) / norm
    bound = ERROR_BOUND[dtype]
    allowed = bound * (np.abs(expected) + norm / np.sqrt(expected.size))
    wrong = error > allowed
    if relative <= bound and not wrong.any():
        return Comparison(relative)
    row, column = (int(i) for i in np.unravel_index(int(np.argmax(error - allowed)), error.shape))
    got, want = float(values[row, column]), float(expected[row, column])
    return Comparison(
        relative,
        f"relative error {relative:.2e}, bound {bound:.0e}; {int(wrong.sum())} of {wrong.size} elements are wrong, "
        f"most at ({row}, {column}): got {got:.6g}, expected {want:.6g}",
    )
