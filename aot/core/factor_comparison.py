"""Hold narrow elements and the factors of their blocks against the rules of `aot.core.block_quantization`.

Where the values before them are exact, as in quantisation alone, every code of an element and of a factor has to be the
rules' own. Where they have a radius, a factor lies between those of the least and of the greatest magnitude that its
block may have, and an element between the two that its value's ends are rounded to over the factor that was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.block_quantization import block_divisors, block_factors
from aot.core.comparison import Comparison, largest_share
from aot.core.formats import BLOCK_FORMATS
from aot.core.numerics import decode, encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.core.element import ElementType
    from aot.core.formats import ScaleFormat
    from aot.core.numerics import Bits
    from aot.core.reference import Expected

    Array = NDArray[np.float64]
    Singles = NDArray[np.float32]


@dataclass(frozen=True)
class WrittenFactors:
    """What a kernel wrote, as codes."""

    y: Bits
    """(rows, cols), a code in each byte."""
    factors: Bits
    """(rows, blocks)."""
    own: np.float32 | None = None
    """The factor of all of Y that was given to it, where the format has one."""


@dataclass(frozen=True)
class _Range:
    """The codes of the least and the greatest number that each place may hold."""

    element: ElementType
    low: Bits
    high: Bits

    def fault(self, name: str, codes: Bits, is_any: NDArray[np.bool_]) -> str:
        """Say how many codes are none of these, and the first; empty where all are, but for those of any value."""
        got, low, high = (decode(self.element, x) for x in (codes, self.low, self.high))
        is_nan = np.isnan(got) & np.isnan(low)
        is_same = (self.low == self.high) & (codes == self.low)
        is_between = (self.low != self.high) & (got >= np.fmin(low, high)) & (got <= np.fmax(low, high))
        wrong = ~(is_nan | is_same | is_between | is_any)
        if not wrong.any():
            return ""
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        text = f"{name}: {int(wrong.sum())} of {wrong.size} codes are wrong; the first, ({row}, {column})"
        ends = sorted({int(self.low[row, column]), int(self.high[row, column])})
        wanted = " to ".join(f"{x:#04x}" for x in ends)
        return f"{text}, is {int(codes[row, column]):#04x}, {got[row, column]:.6g}, expected {wanted}"

    def share(self, codes: Bits, best: Bits) -> float:
        """Return how much of the way to its ends the codes that are right take."""
        values = (decode(self.element, x) for x in (codes, best, self.low, self.high))
        return largest_share(*values)


def _magnitudes(values: Array | NDArray[np.bool_], form: ScaleFormat) -> Singles:
    """Return the largest magnitude of each block of a row, (rows, blocks), at least 0, or NaN where there is one."""
    rows, cols = values.shape
    wide = np.pad(values, ((0, 0), (0, -cols % form.block_k)))
    most = wide.reshape(rows, -(-cols // form.block_k), form.block_k).max(2, initial=0)
    return np.asarray(most, np.float32)


def _singles(values: Array) -> Singles:
    return np.asarray(values, np.float32)


def compare_factors(
    name: str, written: WrittenFactors, expected: Expected, called: tuple[str, str] = ("scales", "y")
) -> Comparison:
    """Hold elements and factors against what an operation gives before it is quantised.

    Args:
        name: of the format, such as `nvfp4`.
        written: what the operation's kernel wrote.
        expected: values (rows, cols), and by how much a right kernel's may be off.
        called: what messages call factors and elements.
    """
    if name not in BLOCK_FORMATS:
        raise ValueError(f"the format is {name!r}; expected one whose factors lie in atoms: {', '.join(BLOCK_FORMATS)}")
    (element, form), own = BLOCK_FORMATS[name], written.own
    # An exact value is both of its ends, so that a zero keeps its sign.
    ends = [np.where(expected.radius > 0, expected.values + x * expected.radius, expected.values) for x in (-1, 1)]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        size = np.abs(expected.values)
        least, best, greatest = (
            block_factors(_magnitudes(x, form), name, own)
            for x in (np.maximum(size - expected.radius, 0), size, size + expected.radius)
        )
        of_factors = _Range(form.element, least, greatest)
        is_any = np.isinf(expected.radius)
        fault = of_factors.fault(called[0], written.factors, _magnitudes(is_any, form) > 0)
        if fault:
            return Comparison(np.inf, fault, np.inf)
        cols = size.shape[1]
        divisors = np.repeat(block_divisors(written.factors, name, own), form.block_k, 1)[:, :cols]
        low, middle, high = (encode(element, _singles(x) / divisors) for x in (ends[0], expected.values, ends[1]))
        of_elements = _Range(element, low, high)
        fault = of_elements.fault(called[1], written.y, is_any)
        if fault:
            return Comparison(np.inf, fault, np.inf)
        share = max(of_factors.share(written.factors, best), of_elements.share(written.y, middle))
    return Comparison(0.0, share_of_bound=share)
