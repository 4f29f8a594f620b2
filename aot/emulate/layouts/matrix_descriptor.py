"""Decode the shared memory matrix descriptors of wgmma and tcgen05.mma, and find the elements that they describe.

Every layout is tested against CuTe DSL's own shared memory layouts, K-major and MN-major, for each element size, with
offsets taken from the strides of those layouts as CUTLASS's make_gmma_desc and make_umma_desc do, and steps along k as
its DescriptorIterator takes them. Not independently checked: the stride offset of 32-byte atoms where it is not that of
four rows that follow each other, and tiles that begin elsewhere than where a swizzle repeats, but for steps along k.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.layouts.errors import UnsupportedLayoutError
from aot.emulate.layouts.swizzle import Addresses, Swizzle, swizzle

K_BYTES = 32
"""Bytes of k of one dense instruction, whatever the type of its elements.

Source: PTX ISA, wgmma.mma_async and tcgen05.mma, shapes: k is 8 for tf32, 16 for f16, 32 for 8 bits, 64 for 4 bits.
"""

CORE_MATRIX_BYTES = 16
"""Bytes of a row of a core matrix, which has 8 rows. Source: PTX ISA, "Matrix descriptor", core matrix."""


class MatrixUnit(Enum):
    """The unit that reads a descriptor; the bits of the layout differ."""

    WGMMA = "wgmma"
    TCGEN05 = "tcgen05"


class Major(Enum):
    """The mode of an operand whose elements are contiguous."""

    K = 0
    MN = 1


_WGMMA_SWIZZLES = (Swizzle.NONE, Swizzle.B128, Swizzle.B64, Swizzle.B32)
"""By bits 62-63. Source: CUTLASS, include/cute/arch/mma_sm90_desc.hpp, LayoutType."""

_TCGEN05_SWIZZLES = {
    0: Swizzle.NONE,
    1: Swizzle.B128_ATOM_32B,
    2: Swizzle.B128,
    4: Swizzle.B64,
    6: Swizzle.B32,
}
"""By bits 61-63. Source: PTX ISA, "Shared memory descriptor layout"; CUTLASS, mma_sm100_desc.hpp, LayoutType."""


@dataclass(frozen=True)
class MatrixDescriptor:
    """Where an operand lies in shared memory; all in bytes."""

    start: int
    leading: int
    """Between core matrices along k where there is no swizzle, else along MN of an MN-major operand."""
    stride: int
    """Between groups of 8 rows of a K-major operand; the other mode of an MN-major one."""
    swizzle: Swizzle


def decode_matrix_descriptor(value: int, unit: MatrixUnit) -> MatrixDescriptor:
    """Read a 64-bit matrix descriptor.

    Bits: 0-13 start, 16-29 leading offset, 32-45 stride offset, each in 16 bytes; 49-51 base offset. wgmma: 62-63
    swizzle. tcgen05: 46-48 are 0b001, 52 mode of the leading offset, 61-63 swizzle.

    Source: PTX ISA, "Matrix descriptor" (wgmma) and "Shared memory descriptor" (tcgen05); CUTLASS, mma_sm90_desc.hpp
    and mma_sm100_desc.hpp.

    Raises:
        Fault: the fixed bits of tcgen05 are others.
        UnsupportedLayoutError: a base offset, an absolute leading offset, or bits that no field has.
    """
    base, code = value >> 49 & 7, value >> 61 & 7
    fields = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49
    if unit is MatrixUnit.WGMMA:
        fields |= 3 << 62
        mode: Swizzle | None = _WGMMA_SWIZZLES[value >> 62 & 3]
    else:
        fields |= 7 << 46 | 1 << 52 | 7 << 61
        mode = _TCGEN05_SWIZZLES.get(code)
        if value >> 46 & 7 != 1:
            raise Fault(
                FaultKind.DESCRIPTOR, f"matrix descriptor {value:#x}: bits 46-48 are {value >> 46 & 7}; expected 1"
            )
        if value >> 52 & 1:
            raise UnsupportedLayoutError(
                f"matrix descriptor {value:#x}: absolute leading offset; expected a relative one"
            )
    if mode is None:
        raise Fault(
            FaultKind.DESCRIPTOR,
            f"matrix descriptor {value:#x}: swizzle code {code}; expected one of {sorted(_TCGEN05_SWIZZLES)}",
        )
    if value & ~fields:
        raise UnsupportedLayoutError(
            f"matrix descriptor {value:#x}: bits {value & ~fields:#x} belong to no known field"
        )
    if base:
        raise UnsupportedLayoutError(
            f"matrix descriptor {value:#x}: base offset {base}; expected 0: operands that begin where a swizzle repeats"
        )
    return MatrixDescriptor((value & 0x3FFF) << 4, (value >> 16 & 0x3FFF) << 4, (value >> 32 & 0x3FFF) << 4, mode)


def _k_major(descriptor: MatrixDescriptor, rows: int, unit_bytes: int) -> Addresses:
    r, k = np.arange(rows)[:, None], unit_bytes * np.arange(K_BYTES // unit_bytes)[None, :]
    core_row = descriptor.start + r // 8 * descriptor.stride
    if descriptor.swizzle is Swizzle.NONE:
        # Core matrices of 8 rows of 16 contiguous bytes: the second along k is at the leading offset.
        return (
            core_row + r % 8 * CORE_MATRIX_BYTES + k // CORE_MATRIX_BYTES * descriptor.leading + k % CORE_MATRIX_BYTES
        )
    # 8 rows of the swizzle's span, in which the 32 bytes of k are contiguous before the exchange.
    return core_row + r % 8 * descriptor.swizzle.span_bytes + k


def _mn_major(descriptor: MatrixDescriptor, rows: int, unit_bytes: int) -> Addresses:
    r, k = np.arange(rows)[:, None], np.arange(K_BYTES // unit_bytes)[None, :]
    span = descriptor.swizzle.span_bytes
    width = span // unit_bytes
    within = r % width * unit_bytes + descriptor.start
    if descriptor.swizzle is Swizzle.NONE:
        # The offsets change their roles: along MN at the stride, along k at the leading offset.
        return within + r // width * descriptor.stride + k // 8 * descriptor.leading + k % 8 * span
    # With atoms of 32 bytes the pattern repeats after 4 rows of k, not 8.
    depth = 4 if descriptor.swizzle is Swizzle.B128_ATOM_32B else 8
    return within + r // width * descriptor.leading + k // depth * descriptor.stride + k % depth * span


@lru_cache(maxsize=64)
def operand_addresses(value: int, unit: MatrixUnit, rows: int, element_bits: int, major: Major = Major.K) -> Addresses:
    """Return the shared addresses of an operand's elements, of shape (rows, 256 / element bits).

    Of packed 4-bit elements they are those of pairs, of shape (rows, 32): the lower nibble is the first.

    Args:
        value: the descriptor.
        unit: the unit that reads it.
        rows: of M or N, a multiple of 8.
        element_bits: 4, 8, 16 or 32.
        major: the contiguous mode.

    Source: PTX ISA, "Strides" and "Canonical layouts" of the asynchronous warpgroup and tensor core 5th generation
    chapters; CUTLASS, mma_traits_sm90_gmma.hpp and mma_sm100_desc.hpp, canonical layouts.

    Raises:
        Fault: the descriptor or its combination with the operand is forbidden.
        UnsupportedLayoutError: the descriptor is not known.
    """
    descriptor = decode_matrix_descriptor(value, unit)
    if rows % 8 or element_bits not in {4, 8, 16, 32}:
        raise UnsupportedLayoutError(f"operand of {rows} rows of {element_bits} bits; expected 8 rows and 4 to 32 bits")
    if descriptor.swizzle is Swizzle.B128_ATOM_32B and (major is Major.K or element_bits != 32):
        raise Fault(
            FaultKind.DESCRIPTOR,
            f"matrix descriptor {value:#x}: 32-byte atoms with a {major.name}-major operand of {element_bits} bits; "
            "expected an MN-major one of 32 bits",
        )
    if major is Major.MN and element_bits == 4:
        raise Fault(
            FaultKind.DESCRIPTOR, f"matrix descriptor {value:#x}: an MN-major operand of 4 bits; expected a K-major one"
        )
    layout = _k_major if major is Major.K else _mn_major
    addresses = swizzle(layout(descriptor, rows, max(element_bits // 8, 1)), descriptor.swizzle)
    addresses.flags.writeable = False
    return addresses


@lru_cache(maxsize=4096)
def core_matrix_rows(value: int, rows: int) -> Addresses:
    """Return the shared addresses of `rows` rows of 16 bytes, as tcgen05.cp .32x128b reads them.

    Source: PTX ISA, tcgen05.cp; CUTLASS, copy_traits_sm100.hpp, SM100_UTCCP_4x32dp128bit, whose source is a K-major
    core matrix column; tested against CuTe DSL's layout of scale factors.

    Raises:
        UnsupportedLayoutError: the rows are swizzled.
    """
    descriptor = decode_matrix_descriptor(value, MatrixUnit.TCGEN05)
    if descriptor.swizzle is not Swizzle.NONE:
        raise UnsupportedLayoutError(f"matrix descriptor {value:#x}: swizzled source of tcgen05.cp; expected none")
    r = np.arange(rows, dtype=np.int64)
    return descriptor.start + r // 8 * descriptor.stride + r % 8 * CORE_MATRIX_BYTES
