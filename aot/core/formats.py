"""How an operand is held: its element, the mode that is contiguous, and the format of its scale factors.

Nothing else states how many bytes an operand or its factors take. The factors of a format are float32, or of one byte;
what the scale factors and the elements of a narrow format are called together (nvfp4, mxfp8) is said here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aot.core.element import BYTE_BITS, ElementType
from aot.core.weight_format import ATOM_COLUMNS, ATOM_ROWS, BLOCK_K, TILE_ROWS, PackedLayout, WeightFormat


class FactorLayout(Enum):
    """How the scale factors of an operand lie in memory. The value is the name that the library knows it by."""

    VECTOR = "vector"
    """A vector of stride 1, or of stride 0 where one factor serves the whole operand."""
    BLOCK = "block"
    """A matrix, one factor for each block of rows and of k, of any two strides."""
    ATOMS = "atoms"
    """Atoms of 128 rows by 4 blocks of k, 512 bytes each, one behind the other along k: `aot.core.factor_atoms`."""


@dataclass(frozen=True)
class ScaleFormat:
    """The scale factors of an operand of (rows, k): of which type they are, what one serves, and how they lie."""

    element: ElementType
    block_m: int
    """Rows that one factor serves."""
    block_k: int
    """Elements along k that one factor serves; 0 where it serves all of them."""
    layout: FactorLayout
    has_tensor_factor: bool = False
    """Whether one float32 more serves the whole operand; a product takes that of A times that of B."""

    def num_factors(self, rows: int, k: int) -> tuple[int, int]:
        """Return how many factors there are along the rows, and along k."""
        return -(-rows // self.block_m), -(-k // self.block_k) if self.block_k else 1

    def num_held(self, rows: int, k: int) -> tuple[int, int]:
        """Return how many places for factors there are in memory, those that only fill atoms among them."""
        m, blocks = self.num_factors(rows, k)
        if self.layout is not FactorLayout.ATOMS:
            return m, blocks
        return -(-m // ATOM_ROWS) * ATOM_ROWS, -(-blocks // ATOM_COLUMNS) * ATOM_COLUMNS

    def size_of(self, rows: int, k: int) -> int:
        """Return the bytes of all factors of an operand."""
        m, blocks = self.num_held(rows, k)
        return self.element.size_of(m * blocks)


ALIGNMENT_BYTES = 16
"""Alignment of an operand's address and leading stride that the TMA kernels need. Source: CUDA driver API,
cuTensorMapEncodeTiled: globalAddress and globalStrides are multiples of 16 bytes."""

PACKED_RUN_BYTES = 16
"""Bytes of which rows of elements of 4 bits have a whole number. Source: quack gemm_tvm_ffi_utils.py, where k of two
packed FP4 operands is a multiple of 32."""

PADDED_ALIGNMENT_BYTES = 32
"""The same as `ALIGNMENT_BYTES` of elements of 4 bits that are padded. Source: CUDA driver API, cuTensorMapEncodeTiled,
CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B: globalAddress and globalStrides are multiples of 32 bytes."""

PADDED_RUN = 128
"""Elements of which rows of padded elements have a whole number. Source: the same, globalDim[0]."""

SCALE_BLOCK = 128
"""Elements along k, and rows of B, that one factor of a block serves. Source: DeepSeek-V3 technical report, section
3.3.2, and torch.nn.functional.scaled_mm's BlockWise1x128 and BlockWise128x128."""

VECTOR = ScaleFormat(ElementType.FLOAT32, 1, 0, FactorLayout.VECTOR)
"""A factor for each row, or one for the whole operand."""
BLOCKS_OF_ROWS = ScaleFormat(ElementType.FLOAT32, 1, SCALE_BLOCK, FactorLayout.BLOCK)
"""Of A: a factor for each 128 elements along k of a row."""
SQUARE_BLOCKS = ScaleFormat(ElementType.FLOAT32, SCALE_BLOCK, SCALE_BLOCK, FactorLayout.BLOCK)
"""Of B: a factor for each 128 by 128 elements."""
NVFP4 = ScaleFormat(ElementType.E4M3, 1, 16, FactorLayout.ATOMS, has_tensor_factor=True)
"""Of e2m1: an e4m3 factor for each 16 elements along k. Source: PTX ISA, tcgen05.mma, .kind::mxf4nvf4, block16."""
MX = ScaleFormat(ElementType.E8M0, 1, 32, FactorLayout.ATOMS)
"""A power of two for each 32 elements along k. Source: Open Compute Project, Microscaling Formats, section 5."""

BLOCK_FORMATS = {
    "nvfp4": (ElementType.E2M1, NVFP4),
    "mxfp4": (ElementType.E2M1, MX),
    "mxfp8": (ElementType.E4M3, MX),
}
"""What elements are called together with factors. Others are called by their element alone."""
_TAGS = {held: tag for tag, held in BLOCK_FORMATS.items()}


def tag_of(element: ElementType, scale: ScaleFormat | None) -> str:
    """Return the name of elements together with their factors, such as `bf16`, `e4m3` or `nvfp4`."""
    return element.tag if scale is None else _TAGS.get((element, scale), element.tag)


@dataclass(frozen=True)
class Operand:
    """A or B: its element type, the mode that is contiguous, its scale factors; of a packed weight its format."""

    element: ElementType
    is_k_major: bool
    scale: ScaleFormat | None = None
    weight: WeightFormat | None = None
    """What elements and their groups' factors are, where all of it is packed to bytes: `element` is that of a byte."""
    is_padded: bool = False
    """Whether kernels load elements of 4 bits with gaps, 16 to 16 bytes, as beside an operand of wider elements."""

    @property
    def alignment(self) -> int:
        """Return the bytes of which the address and the leading stride are multiples for kernels with wide loads."""
        return PADDED_ALIGNMENT_BYTES if self.is_padded else ALIGNMENT_BYTES

    @property
    def run(self) -> int:
        """Return the elements of which leading strides are multiples for kernels with wide loads.

        It is 1 of a packed weight, whose strides are not looked at.
        """
        return self.element.num_in(self.alignment) if self.weight is None else 1

    @property
    def factors(self) -> FactorLayout | None:
        """Return how the scale factors lie; None where there are none."""
        return None if self.scale is None else self.scale.layout

    @property
    def whole(self) -> int:
        """Return what k is a multiple of, a power of two: of elements of 4 bits what instructions or loads take.

        Of a packed weight it is a group.
        """
        if self.weight is not None:
            return self.weight.quantum
        if self.is_padded:
            return PADDED_RUN
        return self.element.num_in(PACKED_RUN_BYTES) if self.element.bits < BYTE_BITS else 1

    @property
    def tag(self) -> str:
        """Return the name of the elements together with their factors, such as `bf16` or `nvfp4`."""
        return self.weight.name if self.weight is not None else tag_of(self.element, self.scale)

    @property
    def num_bytes(self) -> float:
        """Return the bytes that an element takes, with its share of its group's factor where they are packed."""
        if self.weight is None:
            return self.element.bits / BYTE_BITS
        return PackedLayout(self.weight).block_bytes / (TILE_ROWS * BLOCK_K)

    def extents(self, rows: int, k: int) -> tuple[int, int]:
        """Return the rows and columns of the matrix in memory: of a packed weight those of its bytes."""
        return (rows, k) if self.weight is None else PackedLayout(self.weight).shape(rows, k)

    def size_of(self, rows: int, k: int) -> int:
        """Return the bytes of an operand that is packed, with its factors."""
        factors = 0 if self.scale is None else self.scale.size_of(rows, k)
        height, width = self.extents(rows, k)
        return self.element.size_of(height * width) + factors
