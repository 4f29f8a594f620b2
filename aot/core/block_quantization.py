"""Rounding to narrow elements with a factor for each block along k: the rules of the wheel's quantiser, for numpy.

NVFP4 has a float32 factor of the whole tensor, by which the largest magnitude of all is 6 times 448, and of each 16
elements an e4m3 factor, by which the largest of them is 6. The MX formats have of each 32 elements the least power of
two by which none is more than the elements' largest number, so that nothing saturates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.element import ElementType
from aot.core.formats import BLOCK_FORMATS, ScaleFormat
from aot.core.numerics import decode, encode, max_finite, pack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.core.numerics import Bits

LEAST_E4M3 = 2.0**-9
"""The least factor of NVFP4, so that none is 0. Source: OCP 8-bit Floating Point Specification, table 1."""
LEAST_SCALE = 2.0**-126
"""The least factor of a whole tensor: float32's least normal number."""
_E8M0_BIAS, _E8M0_NAN = 127, 255


@dataclass(frozen=True)
class Quantized:
    """Rows of elements, and their factors."""

    codes: Bits
    """(rows, k), a code in each byte."""
    factors: Bits
    """(rows, ceil(k / block)), the codes of the factors."""
    tensor_factor: np.float32 | None
    form: tuple[ElementType, ScaleFormat]

    @property
    def packed(self) -> Bits:
        """Return the elements as they lie in memory: of 4 bits two in a byte."""
        return pack(self.codes) if self.form[0].num_sharing > 1 else self.codes

    @property
    def values(self) -> NDArray[np.float64]:
        """Return what elements and factors stand for."""
        element, scale = self.form
        each = decode(scale.element, self.factors) * (1.0 if self.tensor_factor is None else float(self.tensor_factor))
        spread = np.repeat(each, scale.block_k, 1)[:, : self.codes.shape[1]]
        return np.asarray(decode(element, self.codes) * spread, np.float64)


def quantize(x: NDArray[np.float32], name: str, own: np.float32 | None = None) -> Quantized:
    """Round a matrix (rows, k) to a format.

    Args:
        x: the matrix.
        name: of the format: `nvfp4`, `mxfp4` or `mxfp8`.
        own: of `nvfp4` the factor of a tensor that these are some rows of; by default that of these.
    """
    element, scale = BLOCK_FORMATS[name]
    rows, k = x.shape
    blocks = np.pad(x, ((0, 0), (0, -k % scale.block_k))).reshape(rows, -(-k // scale.block_k), scale.block_k)
    most = np.abs(blocks).max(2, initial=0).astype(np.float32)
    if not scale.has_tensor_factor:
        own = None
    elif own is None:
        own = _own_factor(most, np.float32(max_finite(element)))
    factors = block_factors(most, name, own)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        divisors = block_divisors(factors, name, own)
        scaled = (blocks / divisors[..., None]).reshape(rows, blocks.shape[1] * scale.block_k)[:, :k]
    return Quantized(encode(element, scaled), factors, own, (element, scale))


def block_factors(most: NDArray[np.float32], name: str, own: np.float32 | None) -> Bits:
    """Return the codes of the factors of blocks whose largest magnitudes are `most`.

    Args:
        most: float32, of any shape.
        name: of the format.
        own: the whole tensor's factor, of `nvfp4` alone.
    """
    element, scale = BLOCK_FORMATS[name]
    largest = np.float32(max_finite(element))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if own is None:
            return _powers(most, largest)
        ratio = most / (largest * own)
        return encode(scale.element, np.clip(ratio, np.float32(LEAST_E4M3), np.float32(max_finite(scale.element))))


def block_divisors(factors: Bits, name: str, own: np.float32 | None) -> NDArray[np.float32]:
    """Return what the elements of blocks are divided by, in float32: their factors, times that of the tensor."""
    each = decode(BLOCK_FORMATS[name][1].element, factors).astype(np.float32)
    return each if own is None else each * own


def own_factor(most: np.float32) -> np.float32:
    """Return the own factor of a tensor of `nvfp4` whose largest magnitude is `most`."""
    return _own_factor(np.asarray(most), np.float32(max_finite(ElementType.E2M1)))


def _own_factor(most: NDArray[np.float32], largest: np.float32) -> np.float32:
    whole = np.float32(most.max(initial=0))
    if whole == 0:
        return np.float32(1)
    return np.float32(np.maximum(whole / (largest * np.float32(max_finite(ElementType.E4M3))), np.float32(LEAST_SCALE)))


def _powers(most: NDArray[np.float32], largest: np.float32) -> Bits:
    """Return the codes of the least powers of two by which `most` is no more than the largest number."""
    significand, exponent = np.frexp(largest)
    of_most, needed = np.frexp(most)
    power = needed - exponent + (of_most > significand)
    codes = np.where(most == 0, 0, np.clip(power + _E8M0_BIAS, 0, 2 * _E8M0_BIAS))
    return np.where(np.isfinite(most), codes, _E8M0_NAN).astype(np.uint8)
