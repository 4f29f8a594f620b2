"""Decode the 32-bit instruction descriptor of tcgen05.mma.

Tested against descriptors that the compiler makes of CuTe DSL's MMA operations. Not independently checked: the
negations and the saturation of integers.

Source of every field: PTX ISA, tcgen05.mma, "Instruction descriptor"; CUTLASS, include/cute/arch/mma_sm100_desc.hpp,
InstrDescriptor and InstrDescriptorBlockScaled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.layouts.errors import UnsupportedLayoutError
from aot.emulate.layouts.matrix_descriptor import Major


class Kind(Enum):
    """The .kind of a tcgen05.mma."""

    F16 = "f16"
    TF32 = "tf32"
    F8F6F4 = "f8f6f4"
    I8 = "i8"
    MXF8F6F4 = "mxf8f6f4"
    MXF4 = "mxf4"
    MXF4NVF4 = "mxf4nvf4"

    @property
    def is_block_scaled(self) -> bool:
        """Say whether blocks along k have scale factors."""
        return self in {Kind.MXF8F6F4, Kind.MXF4, Kind.MXF4NVF4}


class Element(Enum):
    """The type of an element of an operand or of the result."""

    F16 = "f16"
    BF16 = "bf16"
    TF32 = "tf32"
    F32 = "f32"
    S32 = "s32"
    U8 = "u8"
    S8 = "s8"
    E4M3 = "e4m3"
    E5M2 = "e5m2"
    E2M1 = "e2m1"
    UE4M3 = "ue4m3"
    UE8M0 = "ue8m0"


_OPERANDS = {
    Kind.F16: {0: Element.F16, 1: Element.BF16},
    Kind.TF32: {2: Element.TF32},
    # 3 and 4 are types of 6 bits, and 5 one of 4, padded to bytes in shared memory; of these the toolchain's kernels
    # have e2m1 with scale factors alone.
    Kind.F8F6F4: {0: Element.E4M3, 1: Element.E5M2},
    Kind.I8: {0: Element.U8, 1: Element.S8},
    Kind.MXF8F6F4: {0: Element.E4M3, 1: Element.E5M2, 5: Element.E2M1},
    Kind.MXF4: {1: Element.E2M1},
    Kind.MXF4NVF4: {1: Element.E2M1},
}
_RESULTS = {
    Kind.F16: {0: Element.F16, 1: Element.F32},
    Kind.TF32: {1: Element.F32},
    Kind.F8F6F4: {0: Element.F16, 1: Element.F32},
    Kind.I8: {2: Element.S32},
}


@dataclass(frozen=True)
class InstructionDescriptor:
    """What one tcgen05.mma multiplies: D of (m, n) over both CTAs of a pair."""

    kind: Kind
    m: int
    n: int
    a: Element
    b: Element
    d: Element
    a_major: Major
    b_major: Major
    negates_a: bool = False
    negates_b: bool = False
    saturates: bool = False
    """Whether integers saturate instead of wrapping."""
    factor: Element | None = None
    """Type of the scale factors of blocks."""
    a_factor_byte: int = 0
    """Which byte of a 32-bit column of tensor memory has the first factor of a row of A in this instruction."""
    b_factor_byte: int = 0

    @property
    def k(self) -> int:
        """Return the elements of k of one instruction of a block-scaled kind.

        Source: PTX ISA, tcgen05.mma, "Matrix shape", table of kinds.
        """
        return 32 if self.kind is Kind.MXF8F6F4 else 64

    def is_padded(self, element: Element) -> bool:
        """Say whether elements of an operand are padded to bytes in shared memory: those of 4 bits beside others.

        Source: PTX ISA, tcgen05.mma, "Packing formats used for data in shared memory".
        """
        return self.kind is Kind.MXF8F6F4 and element is Element.E2M1

    @property
    def sign(self) -> int:
        """Return -1 where exactly one operand is negated, else 1."""
        return -1 if self.negates_a != self.negates_b else 1


class _Fields:
    """The 32 bits, each of which may be taken once."""

    def __init__(self, value: int, kind: Kind) -> None:
        self.value, self.kind, self.rest = value, kind, value

    def take(self, start: int, count: int) -> int:
        found = self.value >> start & (1 << count) - 1
        self.rest &= ~(((1 << count) - 1) << start)
        return found

    def operand(self, start: int) -> Element:
        code = self.take(start, 3)
        if code not in _OPERANDS[self.kind]:
            raise UnsupportedLayoutError(
                f"instruction descriptor {self.value:#x} of kind::{self.kind.value}: operand type {code} at bit "
                f"{start}; expected one of {sorted(_OPERANDS[self.kind])}"
            )
        return _OPERANDS[self.kind][code]

    def end(self) -> None:
        if self.rest:
            raise UnsupportedLayoutError(
                f"instruction descriptor {self.value:#x} of kind::{self.kind.value}: bits {self.rest:#x} are set "
                "(sparsity, K of 96, shifts or reserved bits); expected 0, since no such product is interpreted"
            )


def _check_shape(found: InstructionDescriptor, cta_group: int, value: int) -> None:
    """Refuse shapes that the hardware does not have. Source: PTX ISA, tcgen05.mma, "Matrix shape", table of kinds."""
    allowed_m = (64 * cta_group, 128 * cta_group)
    if found.kind.is_block_scaled and cta_group == 1:
        allowed_m = (128, 128)
    step = 8 * cta_group
    if found.kind is Kind.I8 and cta_group == 1 and found.n > 32:
        step = 16
    if found.kind is Kind.I8 and cta_group == 2:
        step = 32
    if found.m not in allowed_m or found.n % step or not 0 < found.n <= 256:
        raise Fault(
            FaultKind.DESCRIPTOR,
            f"instruction descriptor {value:#x} of kind::{found.kind.value}: M {found.m}, N {found.n} with {cta_group} "
            f"CTAs; expected M {allowed_m[0]} or {allowed_m[1]} and N a multiple of {step} up to 256",
        )
    if Major.MN in (found.a_major, found.b_major) and Element.E2M1 in (found.a, found.b):
        raise Fault(
            FaultKind.DESCRIPTOR, f"instruction descriptor {value:#x}: an MN-major operand of 4 bits; expected K-major"
        )


def _major(bit: int) -> Major:
    return Major.MN if bit else Major.K


def _dense(fields: _Fields) -> InstructionDescriptor:
    kind, value = fields.kind, fields.value
    is_integer = kind is Kind.I8
    saturates = bool(fields.take(3, 1)) if is_integer else False
    code = fields.take(4, 2)
    if code not in _RESULTS[kind]:
        raise UnsupportedLayoutError(
            f"instruction descriptor {value:#x} of kind::{kind.value}: result type {code}; "
            f"expected one of {sorted(_RESULTS[kind])}"
        )
    return InstructionDescriptor(
        kind=kind,
        d=_RESULTS[kind][code],
        a=fields.operand(7),
        b=fields.operand(10),
        negates_a=not is_integer and bool(fields.take(13, 1)),
        negates_b=not is_integer and bool(fields.take(14, 1)),
        a_major=_major(fields.take(15, 1)),
        b_major=_major(fields.take(16, 1)),
        n=8 * fields.take(17, 6),
        m=16 * fields.take(24, 5),
        saturates=saturates,
    )


def _block_scaled(fields: _Fields) -> InstructionDescriptor:
    kind, value = fields.kind, fields.value
    factor = Element.UE8M0 if fields.take(23, 1) else Element.UE4M3
    if factor is Element.UE4M3 and kind is not Kind.MXF4NVF4:
        raise Fault(
            FaultKind.DESCRIPTOR,
            f"instruction descriptor {value:#x} of kind::{kind.value}: factors of UE4M3; expected UE8M0",
        )
    return InstructionDescriptor(
        kind=kind,
        d=Element.F32,
        a=fields.operand(7),
        b=fields.operand(10),
        negates_a=bool(fields.take(13, 1)),
        negates_b=bool(fields.take(14, 1)),
        a_major=_major(fields.take(15, 1)),
        b_major=_major(fields.take(16, 1)),
        n=8 * fields.take(17, 6),
        m=16 * fields.take(24, 5),
        factor=factor,
        a_factor_byte=fields.take(29, 2),
        b_factor_byte=fields.take(4, 2),
    )


@lru_cache(maxsize=1024)
def decode_instruction_descriptor(value: int, kind: Kind, cta_group: int) -> InstructionDescriptor:
    """Read the instruction descriptor of a tcgen05.mma of a kind, issued for 1 or 2 CTAs.

    Bits of dense kinds: 3 saturate (integers), 4-5 type of D, 7-9 and 10-12 types of A and B, 13 and 14 negate A and B,
    15 and 16 A and B are MN-major, 17-22 N / 8, 24-28 M / 16. Block-scaled kinds have the byte of B's first factor at
    4-5, of A's at 29-30, and at 23 whether factors are UE8M0; their D is f32.

    Raises:
        Fault: a shape or combination that the hardware does not have.
        UnsupportedLayoutError: bits of what is not interpreted: sparsity, K of 96, shifts, types of 6 bits.
    """
    fields = _Fields(value, kind)
    found = _block_scaled(fields) if kind.is_block_scaled else _dense(fields)
    fields.end()
    _check_shape(found, cta_group, value)
    return found
