"""Rounding of a wide weight to a narrow format, to nearest, nothing calibrated: as the wheel's `_torch_rounding`.

- int4: codes -8 to 7 of a group, whose factor is the largest of max / 7 and -min / 8, so that none is cut; with zero
  points 0 to 15 between the least and the largest number, 0 among them.
- nvfp4, mxfp4: as `aot.core.block_quantization` has it.
- rows of int8 and e4m3, and blocks of e4m3: the factor is the largest magnitude over 127 or 448.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.core.block_quantization import quantize
from aot.core.element import ElementType
from aot.core.formats import BLOCK_FORMATS
from aot.core.numerics import decode, encode, max_finite
from aot.core.weight_format import INT4_OFFSET, Code, WeightFormat, WeightParts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits = NDArray[Any]
    Wide = NDArray[np.float32]

LEAST_SCALE = np.float32(2.0**-126)
"""As of a wheel's `prepare`: no factor becomes 0."""


@dataclass(frozen=True)
class Rounded:
    """Rows of a weight."""

    parts: WeightParts
    scale: Wide | None
    """Of int8 and e4m3 the factors of the rows, (n, 1), of blocks (n / 128, k / 128)."""


def rounded(form: WeightFormat, wide: Wide, element: ElementType, own: np.float32 | None = None) -> Rounded:
    """Round rows (n, k) of a weight to a packed format.

    Args:
        form: the format.
        wide: the rows.
        element: of int4's factors, by which, as they are rounded, codes are found.
        own: of nvfp4 the factor of the whole weight; by default that of these rows.
    """
    if form.code is Code.INT4:
        return Rounded(_int4(form, wide, element), None)
    if form.elements not in BLOCK_FORMATS:
        codes, scale = by_rows(wide, ElementType.INT8 if form.code is Code.INT8 else ElementType.E4M3)
        return Rounded(WeightParts(codes), scale)
    found = quantize(wide, form.elements, own)
    codes = found.codes
    if form.is_mxfp4:  # kernels take the factor 2^-127 for 0
        codes = np.where(np.repeat(found.factors, form.group, 1) > 0, codes, np.uint8(0))
    whole = found.tensor_factor
    return Rounded(WeightParts(codes, found.factors), None if whole is None else np.full((1,), whole, np.float32))


def by_rows(wide: Wide, element: ElementType) -> tuple[Bits, Wide]:
    """Return rows (n, k) in an element type of 8 bits, as bits, and their factors (n, 1)."""
    return _scaled(wide, element, np.abs(wide).max(1, keepdims=True))


def by_blocks(wide: Wide, block: int) -> tuple[Bits, Wide]:
    """Return rows (n, k) in e4m3, as bits, and a factor for each `block` by `block` elements."""
    n, k = wide.shape
    padded = np.pad(np.abs(wide), ((0, -n % block), (0, -k % block)))
    most = padded.reshape(padded.shape[0] // block, block, -1, block).max((1, 3))
    each = np.repeat(np.repeat(most, block, 0), block, 1)[:n, :k]
    return _scaled(wide, ElementType.E4M3, each)[0], _factors(most, ElementType.E4M3)


def _factors(most: Wide, element: ElementType) -> Wide:
    found = np.where(most == 0, np.float32(1), np.maximum(most / np.float32(max_finite(element)), LEAST_SCALE))
    return np.asarray(found, np.float32)


def _scaled(wide: Wide, element: ElementType, most: Wide) -> tuple[Bits, Wide]:
    scale, largest = _factors(most, element), np.float32(max_finite(element))
    with np.errstate(invalid="ignore"):
        return encode(element, np.clip(wide / scale, -largest, largest)), scale


def _int4(form: WeightFormat, wide: Wide, element: ElementType) -> WeightParts:
    groups = wide.reshape(len(wide), -1, form.group)
    high, low = groups.max(2), groups.min(2)
    with np.errstate(invalid="ignore", over="ignore"):
        if form.has_zeros:
            high, low = np.maximum(high, 0), np.minimum(low, 0)
            factors = encode(element, (high - low) / np.float32(15))
            each = _divisors(element, factors)
            offset = np.clip(np.rint(-low / each), 0, 15)
        else:
            factors = encode(element, np.maximum(high / np.float32(7), low / np.float32(-8)))
            each, offset = _divisors(element, factors), np.full_like(high, INT4_OFFSET)
        found = groups / each[..., None]
        np.rint(found, out=found)
        found += offset[..., None]
        codes = np.clip(found, 0, 15, out=found).astype(np.uint8).reshape(wide.shape)
    return WeightParts(codes, factors, offset.astype(np.uint8) if form.has_zeros else None)


def _divisors(element: ElementType, factors: Bits) -> Wide:
    """Return what factors stand for, to divide by: where one is 0, so is what is divided."""
    each = decode(element, factors).astype(np.float32)
    return np.asarray(np.where(each == 0, np.float32(1), each), np.float32)
