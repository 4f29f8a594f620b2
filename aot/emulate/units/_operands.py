"""What the tensor units read of shared memory: the places of operands, and the values of their elements."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.layouts.errors import UnsupportedLayoutError
from aot.emulate.layouts.instruction_descriptor import Element
from aot.emulate.layouts.matrix_descriptor import Major, MatrixUnit, operand_addresses
from aot.emulate.memory import SHARED_START, chunk_cells

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from aot.emulate.running import Cta

ELEMENT_BITS = {
    Element.F16: 16,
    Element.BF16: 16,
    Element.TF32: 32,
    Element.U8: 8,
    Element.S8: 8,
    Element.E4M3: 8,
    Element.E5M2: 8,
    Element.E2M1: 4,
    Element.UE4M3: 8,
    Element.UE8M0: 8,
}
PADDED_RUN, PADDED_BITS = 16, 8
"""Padded elements that share 16 bytes, and the bits that each takes with its part of the gap.

Source: PTX ISA, tcgen05.mma, "Packing formats used for data in shared memory".
"""
_WORDS: dict[int, Any] = {4: np.uint8, 8: np.uint8, 16: np.uint16, 32: np.uint32}
_TF32_MASK = np.uint32(0xFFFFE000)
"""The bits of a word that are read of tf32. Source: PTX ISA, "Alternate Floating-Point Data Formats"."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Say at which instruction a descriptor was refused.

    Raises:
        Fault, UnsupportedLayoutError: what was raised inside, with the instruction.
    """
    try:
        yield
    except Fault as error:
        raise Fault(error.kind, f"{where}: {error.text}") from error
    except UnsupportedLayoutError as error:
        raise UnsupportedLayoutError(f"{where}: {error}") from error


@dataclass(frozen=True)
class Places:
    """Elements of shared memory."""

    indices: NDArray[np.int64]
    """Numbers of elements (of bytes where elements are of 4 bits) from the start of a CTA's shared memory."""
    last_byte: int
    cells: NDArray[np.int64] | slice
    """What their accesses are ordered by: see `Shadow`."""
    bits: int
    """The same as bits."""


@lru_cache(maxsize=1024)
def operand_places(
    descriptor: int,
    unit: MatrixUnit,
    rows: int,
    first: int,
    last: int,
    element_bits: int,
    major: Major,
    *,
    is_padded: bool = False,
) -> Places:
    """Return the places of rows `first` to `last` of an operand of `rows`.

    Padded elements of 4 bits lie as bytes do, but that each 16 of them are in the first 8 of 16 bytes.
    """
    bits = PADDED_BITS if is_padded else element_bits
    offsets = operand_addresses(descriptor, unit, rows, bits, major)[first:last] - SHARED_START
    if is_padded:
        of_chunks = offsets.reshape(len(offsets), -1, PADDED_RUN)
        offsets = of_chunks[:, :, : PADDED_RUN * element_bits // PADDED_BITS].reshape(len(offsets), -1)
    if offsets.min() < 0:
        raise Fault(FaultKind.ADDRESS, f"operand of descriptor {descriptor:#x} begins before shared memory")
    size = max(element_bits // PADDED_BITS, 1)
    cells, bits = chunk_cells(np.unique(offsets // 16))
    return Places(offsets // size, int(offsets.max()) + size, cells, bits)


def check_inside(cta: Cta, places: Places) -> None:
    """Fault where an operand is not inside of a CTA's shared memory."""
    if places.last_byte > cta.shared.content.size:
        raise Fault(
            FaultKind.ADDRESS,
            f"operand ends at byte {places.last_byte} of shared memory; expected at most {cta.shared.content.size}",
        )


@dataclass(frozen=True)
class _Format:
    """A floating-point format of up to 16 bits: sign, exponent, mantissa."""

    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True
    """Whether the largest exponent is for infinity and NaN; else only all bits set are NaN."""

    def decode(self) -> NDArray[np.float64]:
        """Return the values of all codes, in order."""
        codes = np.arange(1 << (1 + self.exponent_bits + self.mantissa_bits))
        mantissa = (codes & (1 << self.mantissa_bits) - 1) / (1 << self.mantissa_bits)
        top = (1 << self.exponent_bits) - 1
        exponent, bias = codes >> self.mantissa_bits & top, top >> 1
        found = np.where(exponent == 0, mantissa, 1 + mantissa) * 2.0 ** (np.maximum(exponent, 1) - bias)
        if self.has_infinity:
            found = np.where(exponent == top, np.where(mantissa == 0, np.inf, np.nan), found)
        else:
            largest = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
            found = np.where(codes & largest == largest, np.nan, found)
        return np.where(codes >> (self.exponent_bits + self.mantissa_bits), -found, found)


_FORMATS = {
    Element.F16: _Format(5, 10),
    Element.BF16: _Format(8, 7),
    Element.E4M3: _Format(4, 3, has_infinity=False),
    Element.E5M2: _Format(5, 2),
    Element.UE4M3: _Format(4, 3, has_infinity=False),
}
"""Source: PTX ISA, "Alternate Floating-Point Data Formats"; OCP 8-bit Floating Point Specification 1.0, table 1."""


@lru_cache(maxsize=16)
def _table(element: Element) -> NDArray[np.float64]:
    """Return the values of all codes of an element."""
    if element is Element.UE8M0:  # a power of two; all bits set are NaN
        return np.append(2.0 ** np.arange(-127, 128), np.nan)
    if element in _FORMATS:
        return _FORMATS[element].decode()
    codes = np.arange(256, dtype=np.uint8)
    return (codes.view(np.int8) if element is Element.S8 else codes).astype(np.float64)


E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""Of the 16 codes. Source: OCP Microscaling Formats Specification 1.0, section 5.3.3."""


def values(raw: NDArray[Any], element: Element) -> NDArray[np.float64]:
    """Widen raw bits to float64; of packed 4-bit elements there are twice as many, the lower nibble first."""
    if element is Element.TF32:
        return np.asarray((raw & _TF32_MASK).view(np.float32).astype(np.float64))
    if element is Element.E2M1:
        pairs = np.stack([E2M1_VALUES[raw & 15], E2M1_VALUES[raw >> 4]], axis=-1)
        return np.asarray(pairs.reshape(*raw.shape[:-1], -1))
    return np.asarray(_table(element)[raw])


def word_dtype(element: Element) -> Any:
    """Return the dtype of an element's raw bits."""
    return _WORDS[ELEMENT_BITS[element]]


def read_operand(cta: Cta, places: Places, element: Element) -> NDArray[np.float64]:
    """Return the values of an operand, of shape (rows, k)."""
    return values(cta.shared.content.view(word_dtype(element))[places.indices], element)
