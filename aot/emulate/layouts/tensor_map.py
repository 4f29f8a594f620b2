"""Decode the tiled TMA descriptor (CUtensorMap) that the host passes to a kernel.

NVIDIA documents the arguments of `cuTensorMapEncodeTiled`, not the bits. Each position was found twice, and agrees:

- driver: `cuTensorMapEncodeTiled` on an H200, driver 580.159.04, one argument varied at a time;
- assembler: PTX `tensormap.replace` on shared memory becomes plain loads, masks and stores, so that the machine code
  of one such instruction (ptxas 13.4, sm_110a) says where its field lies.

The positions are written down a second time, with their evidence, in the tests of host launches. Both decoders read
the same recorded descriptors of the driver, and must agree. The codes of 4-bit elements (11 and 12) are inferred from
what CuTe DSL writes, and no independent source checks them. Nor does one check the swizzle atomicity of 32 bytes in a
descriptor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.layouts.errors import UnsupportedLayoutError
from aot.emulate.layouts.swizzle import Swizzle

NUM_BYTES = 128
"""Bytes of a CUtensorMap. Source: CUDA driver API, CU_TENSOR_MAP_NUM_QWORDS is 16."""

MEANINGFUL_BYTES = 64
"""The other 64 are the driver's notes; what CuTe DSL's host code encodes leaves there what the stack held."""

MAX_RANK = 5
"""Source: CUDA driver API, cuTensorMapEncodeTiled."""

STRIDE_UNIT_BYTES = 16
"""Source: CUDA driver API, cuTensorMapEncodeTiled: strides are multiples of 16 bytes."""


class ElementType(Enum):
    """An element as (code in the descriptor, bits).

    Source: the codes of 8 to 64 bits are those of PTX ISA, tensormap.replace, elemtype. 11 and 12 are inferred: what
    CuTe DSL 4.8.1 writes for packed 4-bit floats, and not the codes that tensormap.replace has for them.
    """

    U8 = (0, 8)
    U16 = (1, 16)
    U32 = (2, 32)
    S32 = (3, 32)
    U64 = (4, 64)
    S64 = (5, 64)
    F16 = (6, 16)
    F32 = (7, 32)
    F32_FTZ = (8, 32)
    F64 = (9, 64)
    BF16 = (10, 16)
    B4 = (11, 4)
    B4_PADDED = (12, 4)
    """Packed in global memory; in shared memory 16 have 16 bytes, the last 8 of which nothing is written to.

    Source: CUDA driver API, cuTensorMapEncodeTiled, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B.
    """

    @property
    def bits(self) -> int:
        """Return the bits of one element in global memory."""
        return self.value[1]

    @property
    def shared_bits(self) -> int:
        """Return the bits that one element takes in shared memory, its share of a gap among them."""
        return 8 if self is ElementType.B4_PADDED else self.bits


_ELEMENTS = {element.value[0]: element for element in ElementType}
_SWIZZLES = {
    # (swizzle, atomicity): bits 13-14 and 19-20 of the word at byte 8.
    (0, 0): Swizzle.NONE,
    (1, 0): Swizzle.B32,
    (2, 0): Swizzle.B64,
    (3, 0): Swizzle.B128,
    (3, 1): Swizzle.B128_ATOM_32B,
}


@dataclass(frozen=True)
class TensorMap:
    """A tensor in global memory and the box that one copy moves; modes are fastest first."""

    element: ElementType
    address: int
    extents: tuple[int, ...]
    """Elements of each mode; a coordinate outside of [0, extent) is out of bounds."""
    strides: tuple[int, ...]
    """Bytes of the modes after the first."""
    box: tuple[int, ...]
    """Elements of each mode."""
    swizzle: Swizzle
    is_tf32: bool = False
    """CuTe DSL sets bit 16 of the word at byte 8 for loads of TF32; the bytes that are copied do not change."""

    @property
    def rank(self) -> int:
        """Return the number of modes."""
        return len(self.extents)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of the box in its fastest mode, in shared memory."""
        return self.box[0] * self.element.shared_bits // 8

    @property
    def copied_row_bytes(self) -> int:
        """Return those that are copied: fewer where there are gaps."""
        return self.box[0] * self.element.bits // 8

    @property
    def num_rows(self) -> int:
        """Return the rows of the box: the product of its modes after the first."""
        rows = 1
        for extent in self.box[1:]:
            rows *= extent
        return rows

    @property
    def box_bytes(self) -> int:
        """Return the bytes that one copy counts towards its mbarrier, also where parts are out of bounds.

        Gaps do not count. Source: CUTLASS, sm100 block-scaled collectives, which count the bits of packed elements;
        quack gemm_sm100.py, `num_tma_load_bytes`.
        """
        return self.copied_row_bytes * self.num_rows


class _Bits:
    """The 512 meaningful bits, each of which may be taken once."""

    def __init__(self, content: bytes) -> None:
        self._rest = int.from_bytes(content, "little")

    def take(self, byte: int, count: int, bit: int = 0) -> int:
        start = 8 * byte + bit
        value = self._rest >> start & (1 << count) - 1
        self._rest ^= value << start
        return value

    def end(self) -> None:
        if self._rest:
            unknown = [i for i in range(8 * MEANINGFUL_BYTES) if self._rest >> i & 1]
            raise UnsupportedLayoutError(
                f"tensor map: bits {unknown} are set; expected only bits of known fields; "
                "find out what they mean and decode them in aot/emulate/layouts/tensor_map.py"
            )


def _modes(values: list[int], rank: int, absent: int, what: str) -> tuple[int, ...]:
    if any(x != absent for x in values[rank:]):
        raise UnsupportedLayoutError(f"tensor map: {what} past mode {rank} hold {values[rank:]}; expected {absent}")
    return tuple(values[:rank])


def _swizzle(mode: int, atomicity: int) -> Swizzle:
    if (mode, atomicity) not in _SWIZZLES:
        raise UnsupportedLayoutError(
            f"tensor map: swizzle {mode} with atomicity {atomicity}; expected one of {sorted(_SWIZZLES)}"
        )
    return _SWIZZLES[mode, atomicity]


def _refuse_unused(bits: _Bits) -> None:
    """Refuse the fields that no kernel of the toolchain uses, and drop those that move no other bytes."""
    for name, value in (("interleave", bits.take(8, 2, 11)), ("NaN fill", bits.take(8, 1, 15))):
        if value:
            raise UnsupportedLayoutError(
                f"tensor map: {name} is {value}; expected 0, since nothing else is interpreted"
            )
    steps = [bits.take(52, 3, 3 * i) + 1 for i in range(MAX_RANK)]
    if steps != [1] * MAX_RANK:
        raise UnsupportedLayoutError(f"tensor map: element strides are {steps}; expected 1 of each mode")
    bits.take(8, 2, 17)  # promotion in L2
    bits.take(8, 1, 1)  # set by CuTe DSL; without an effect on an H200
    bits.take(8, 1, 21)  # set by CuTe DSL from 128 KiB on; likewise


def _check_box(tensor_map: TensorMap) -> None:
    """Refuse boxes that the hardware cannot copy. Source: CUDA driver API, cuTensorMapEncodeTiled, boxDim."""
    row_bits = tensor_map.box[0] * tensor_map.element.shared_bits
    if row_bits % 128:
        raise Fault(
            FaultKind.DESCRIPTOR,
            f"tensor map: the inner box of {tensor_map.box[0]} elements of {tensor_map.element.shared_bits} bits has "
            f"{row_bits / 8:g} bytes; expected a multiple of 16; widen the box or copy by other instructions",
        )
    span = tensor_map.swizzle.span_bytes
    if tensor_map.swizzle is not Swizzle.NONE and tensor_map.row_bytes > span:
        raise Fault(
            FaultKind.DESCRIPTOR,
            f"tensor map: the inner box has {tensor_map.row_bytes} bytes; expected at most the swizzle's {span}; "
            "split the box or take a wider swizzle",
        )
    if any(extent > 256 for extent in tensor_map.box):
        raise Fault(FaultKind.DESCRIPTOR, f"tensor map: the box is {tensor_map.box}; expected at most 256 of each mode")
    if tensor_map.element is ElementType.B4_PADDED:
        _check_padded(tensor_map)


PADDED_BOX = 128
"""Elements of a box of padded 4-bit elements along the first mode, and what its extent is a multiple of."""

PADDED_ALIGNMENT_BYTES = 32
_PADDED_SWIZZLES = (Swizzle.NONE, Swizzle.B128, Swizzle.B128_ATOM_32B)


def _check_padded(tensor_map: TensorMap) -> None:
    """Refuse what no tensor map of padded elements has.

    Source: CUDA driver API, cuTensorMapEncodeTiled, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B.
    """
    places = (tensor_map.address, *tensor_map.strides)
    if tensor_map.box[0] != PADDED_BOX or tensor_map.extents[0] % PADDED_BOX:
        text = f"a box of {tensor_map.box[0]} of {tensor_map.extents[0]} elements; expected {PADDED_BOX} of a multiple"
    elif any(x % PADDED_ALIGNMENT_BYTES for x in places):
        text = (
            f"an address and strides {[hex(x) for x in places]}; expected multiples of {PADDED_ALIGNMENT_BYTES} bytes"
        )
    elif tensor_map.swizzle not in _PADDED_SWIZZLES:
        text = f"swizzle {tensor_map.swizzle.name}; expected one of {[x.name for x in _PADDED_SWIZZLES]}"
    else:
        return
    raise Fault(FaultKind.DESCRIPTOR, f"tensor map of padded 4-bit elements: {text}")


def decode_tensor_map(content: bytes) -> TensorMap:
    """Read a tiled descriptor of 128 bytes.

    Raises:
        Fault: a box that the hardware cannot copy.
        UnsupportedLayoutError: a field or bit that the interpreter does not know.
    """
    if len(content) != NUM_BYTES:
        raise UnsupportedLayoutError(f"tensor map: {len(content)} bytes; expected {NUM_BYTES}")
    bits = _Bits(content[:MEANINGFUL_BYTES])
    rank = bits.take(8, 3, 4) + 1
    if rank > MAX_RANK:
        raise Fault(FaultKind.DESCRIPTOR, f"tensor map: rank is {rank}; expected at most {MAX_RANK}")
    code = bits.take(8, 4, 7)
    if code not in _ELEMENTS:
        raise UnsupportedLayoutError(f"tensor map: element code is {code}; expected one of {sorted(_ELEMENTS)}")
    strides = [bits.take(12 + 4 * i, 32) | bits.take(28, 4, 4 * i) << 32 for i in range(MAX_RANK - 1)]
    _refuse_unused(bits)
    tensor_map = TensorMap(
        element=_ELEMENTS[code],
        address=bits.take(0, 64),
        extents=_modes([bits.take(32 + 4 * i, 32) + 1 for i in range(MAX_RANK)], rank, 1, "extents"),
        strides=_modes([STRIDE_UNIT_BYTES * x for x in strides], rank - 1, 0, "strides"),
        box=_modes([bits.take(55 + i, 8) + 1 for i in range(MAX_RANK)], rank, 1, "box extents"),
        swizzle=_swizzle(bits.take(8, 2, 13), bits.take(8, 2, 19)),
        is_tf32=bool(bits.take(8, 1, 16)),
    )
    bits.end()
    _check_box(tensor_map)
    return tensor_map
