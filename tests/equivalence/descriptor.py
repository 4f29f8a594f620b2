"""Decodes the 64 meaningful bytes of a tiled TMA descriptor (CUtensorMap), knowing nothing of the code that wrote it.

NVIDIA documents the arguments of `cuTensorMapEncodeTiled`, not the bits. Each position below was found in two ways that
agree, neither of them CuTe DSL's encoder, whose output the decoder is to judge:

- driver: `cuTensorMapEncodeTiled` on an H200, driver 580.159.04, one argument varied at a time (`driver_maps.py`; its
  answers are `driver_maps.jsonl`, which `test_descriptor.py` decodes);
- assembler: PTX `tensormap.replace` on shared memory becomes plain loads, masks and stores, so that the machine code of
  one such instruction (ptxas 13.4 and nvdisasm, sm_110a) says where its field lies on Thor's own architecture.

    bytes   what                                                 driver  sm_110a machine code of tensormap.replace
    0-7     address                                              yes     global_address: 8 bytes stored at 0
    8-11    word of small fields:
              bits 4-6    rank - 1                               yes     rank: mask 0x70 at 8
              bits 7-10   element type: `DTYPES`                 yes     elemtype: 0x300 or 0x500 at 8
              bits 11-12  interleave: none, 16, 32 bytes         yes     interleave_layout: mask 0x1800 at 8
              bits 13-14  swizzle: none, 32, 64, 128 bytes       yes     swizzle_mode: mask 0x6000 at 8
              bit 15      NaN outside, instead of zero           yes     fill_mode: mask 0x8000 at 8
              bits 17-18  promotion in L2: none, 64, 128, 256 B  yes     -
              bit 16      CuTe DSL sets it for loads of tf32     zero    -
              bits 19-20  swizzle atomicity, 0 for 16 bytes      zero    swizzle_atomicity: mask 0x180000 at 8
              bit 1       CuTe DSL sets it                       zero    -
              bit 21      CuTe DSL sets it from 128 KiB on       zero    -
    12-27   strides of modes 1 to 4, in 16 bytes, low 32 bits    yes     global_stride: stored at 0xc + 4 i
    28-29   bits 32-35 of the same, 4 bits each                  yes     global_stride: mask 0xf << 4 i at 0x1c
    32-51   extents of modes 0 to 4, less 1                      yes     global_dim: stored at 0x20 + 4 i
    52-53   element strides of modes 0 to 4, less 1, 3 bits      yes     element_stride: mask 7 << 3 i at 0x34
    55-59   box extents of modes 0 to 4, less 1                  yes     box_dim: bytes 0x37 to 0x3b

Everything else is zero in all of the driver's answers, and an error here.

Bits 1 and 21 are not the driver's, not for an H200: CuTe DSL sets them, for sm_90a and sm_110a, loads and stores alike,
and an H200 gives right results with them (`tests/device`). Bit 21 is the "bit 85" of the known issues in NVIDIA's
driver release notes 595.71.05: on Blackwell it must be clear for a tensor of less than 128 KB, and drivers that set it
there make illegal accesses now and then (triton issue 10442). What bit 1 means is not known.

Bytes 64 to 127 are the driver's own notes. CuTe DSL leaves there what the stack held.
"""

from __future__ import annotations

from dataclasses import dataclass

NUM_BYTES = 64
MAX_RANK = 5
DTYPES = {0: "uint8", 1: "uint16", 2: "uint32", 6: "float16", 7: "float32", 10: "bfloat16", 11: "two e2m1 a byte"} | {
    12: "two e2m1 a byte, padded in shared memory"
}
"""The codes of integers are those of PTX ISA, tensormap.replace, elemtype, which the others are too; but 11 and 12,
which are what CuTe DSL writes of elements of 4 bits."""
STRIDE_UNIT_BYTES = 16


@dataclass(frozen=True)
class TensorMap:
    """A descriptor's content in the terms of `cuTensorMapEncodeTiled`: modes fastest first, strides in bytes."""

    dtype: str
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    """Of the modes after the first."""
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    l2_promotion: int
    nan_fill: bool
    bit_1: bool = True
    bit_21: bool = True
    tf32: bool = False
    atomicity: int = 0


class _Bits:
    """The 512 bits of a descriptor, each to be taken once."""

    def __init__(self, content):
        self._rest = int.from_bytes(content, "little")

    def take(self, byte, count, bit=0):
        start = byte * 8 + bit
        value = self._rest >> start & (1 << count) - 1
        self._rest ^= value << start
        return value

    def end(self):
        """Refuse bits that no field took."""
        if self._rest:
            unknown = [i for i in range(NUM_BYTES * 8) if self._rest >> i & 1]
            raise ValueError(f"bits {unknown} are set; no field has them")


def _of_rank(values, rank, absent):
    """Keep the modes that there are; the others must hold what stands for none."""
    if any(x != absent for x in values[rank:]):
        raise ValueError(f"modes past the {rank} of the tensor hold {values[rank:]}; expected {absent}")
    return tuple(values[:rank])


def decode(content):
    """Read 64 bytes of a descriptor.

    Raises:
        ValueError: they are not those of a tiled map of one of our element types.
    """
    if len(content) != NUM_BYTES:
        raise ValueError(f"{len(content)} bytes; expected {NUM_BYTES}")
    bits = _Bits(content)
    rank = bits.take(8, 3, 4) + 1
    if rank > MAX_RANK:
        raise ValueError(f"rank is {rank}; expected at most {MAX_RANK}")
    strides = [bits.take(12 + 4 * i, 32) | bits.take(28, 4, 4 * i) << 32 for i in range(MAX_RANK - 1)]
    code = bits.take(8, 4, 7)
    if code not in DTYPES:
        raise ValueError(f"element type is {code}; expected one of {DTYPES}")
    tensor_map = TensorMap(
        dtype=DTYPES[code],
        address=bits.take(0, 64),
        extents=_of_rank([bits.take(32 + 4 * i, 32) + 1 for i in range(MAX_RANK)], rank, 1),
        strides=_of_rank([x * STRIDE_UNIT_BYTES for x in strides], rank - 1, 0),
        box=_of_rank([bits.take(55 + i, 8) + 1 for i in range(MAX_RANK)], rank, 1),
        element_strides=_of_rank([bits.take(52, 3, 3 * i) + 1 for i in range(MAX_RANK)], rank, 1),
        interleave=bits.take(8, 2, 11),
        swizzle=bits.take(8, 2, 13),
        l2_promotion=bits.take(8, 2, 17),
        nan_fill=bool(bits.take(8, 1, 15)),
        bit_1=bool(bits.take(8, 1, 1)),
        bit_21=bool(bits.take(8, 1, 21)),
        tf32=bool(bits.take(8, 1, 16)),
        atomicity=bits.take(8, 2, 19),
    )
    bits.end()
    return tensor_map
