"""The narrow formats that a weight can have beside activations of 16 bits: codes, factors, and bytes when packed.

A weight-only product multiplies x (m, k), bfloat16 or float16, with a weight (n, k) whose elements are codes of 4 or 8
bits. The value of an element is that of its code, times the factor of its group along k, times a float32 factor of its
row or of the whole weight. Codes and factors are held as unsigned integers, as checkpoints hold their bits. What codes
and factors stand for is `aot.core.weight_values`.

A wheel has this module too, and `weight_packing` and `weight_checkpoints`: they import nothing of ours but each other
and `FormatError`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from aot.core.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits = NDArray[Any]

ROW_QUANTUM = 16
"""Elements along k that a row is a multiple of, where no group asks for more: two pieces of 16 bytes of x."""

INT4_OFFSET = 8
"""What is taken from a code of int4, which has no sign. Source: AutoGPTQ and compressed-tensors, symmetric int4."""

GPTQ_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
"""By GPTQ's `checkpoint_format`: what is added to zero points as they lie. Source: GPTQModel, const.py, FORMAT."""

E8M0_BIAS, E8M0_NAN = 127, 255
"""Source: Open Compute Project, Microscaling Formats (MX) specification 1.0, section 5.4.1."""

E4M3_NAN = 0x7F
"""The code of a NaN, with either sign. Source: Open Compute Project, OFP8 specification 1.0, table 1."""

TILE_ROWS = 16
"""Rows of the weight that a row of the packed bytes has: of a matrix A of `mma`. Source: PTX ISA, mma.m16n8k16."""
BLOCK_K = 128
"""Elements along k of a block of the packed bytes: a group of the widest format."""

ATOM_ROWS, ATOM_COLUMNS = 128, 4
"""Rows, and blocks along k, whose factors are one atom. Source: PTX ISA, tcgen05.mma, "Scale factors", and
cutlass.utils.blockscaled_layout, `BlockScaledBasicChunk`."""


class WeightLayout(Enum):
    """Where the bytes of a packed weight lie."""

    FRAGMENTS = "fragments"
    """As a warp reads them: a row of bytes for each `TILE_ROWS` rows of the weight, as `weight_packing` has it."""
    ROWS = "rows"
    """As block-scaled products read B: the rows of the weight, two codes of 4 bits a byte, and behind all of them the
    factors in atoms, as `factor_atoms` has them."""


class Code(Enum):
    """What an element of a weight is."""

    INT4 = "int4"
    """0 to 15, of which 8 is taken."""
    E2M1 = "e2m1"
    INT8 = "int8"
    """In two's complement."""
    E4M3 = "e4m3"

    @property
    def bits(self) -> int:
        """Return the bits of a code."""
        return 4 if self in (Code.INT4, Code.E2M1) else 8

    @property
    def zero(self) -> int:
        """Return the code of 0."""
        return INT4_OFFSET if self is Code.INT4 else 0


@dataclass(frozen=True)
class WeightFormat:
    """Codes, and the factors of groups of them along k."""

    name: str
    """As operations are tagged by it, such as `int4g128`."""
    code: Code
    group: int = 0
    """Elements along k that have a factor of their own; 0 where only rows, or the whole weight, have one."""
    factor_bits: int = 0
    """Of a group's factor."""
    has_zeros: bool = False
    """Whether each group has a zero point, which is taken from its codes in the place of 8."""
    has_row_factors: bool = False
    """Whether a float32 factor goes with each row, or with the whole weight."""
    layout: WeightLayout = field(default=WeightLayout.FRAGMENTS, repr=False)
    """Which the name says too."""

    @property
    def is_nvfp4(self) -> bool:
        """Say whether codes and factors are those of NVFP4, in either layout."""
        return self._is(NVFP4)

    @property
    def is_mxfp4(self) -> bool:
        """Say whether codes and factors are those of MXFP4, in either layout."""
        return self._is(MXFP4)

    @property
    def elements(self) -> str:
        """Return what its codes and factors are called, whatever the layout."""
        return next((x.name for x in (NVFP4, MXFP4) if self._is(x)), self.name)

    def _is(self, other: WeightFormat) -> bool:
        return replace(self, name=other.name, layout=other.layout) == other

    @property
    def in_rows(self) -> bool:
        """Say whether the bytes lie as block-scaled products read them too."""
        return self.layout is WeightLayout.ROWS

    @property
    def rows(self) -> WeightFormat | None:
        """Return the format of the same codes and factors whose bytes lie in rows; None where there is none."""
        return next((x for x in FORMATS if x.in_rows and x.elements == self.elements), None)

    @property
    def quantum(self) -> int:
        """Return what k is a multiple of."""
        return max(self.group, ROW_QUANTUM)

    @property
    def group_bits(self) -> int:
        """Return the bits of a group's factor, and of its zero point where it has one."""
        return self.factor_bits + (8 if self.has_zeros else 0)

    def differs_in_groups(self, other: WeightFormat) -> bool:
        """Say whether another format has the same codes and factors, for groups of another size or with zero points."""
        same = replace(other, name=self.name, group=self.group, has_zeros=self.has_zeros) == self
        return same and self != other and self.group > 0 and other.group > 0

    def num_groups(self, k: int) -> int:
        """Return the groups of a row."""
        return k // self.group if self.group else 0

    def check(self, n: int, k: int) -> None:
        """Refuse extents that the format has not (FormatError)."""
        if n < 1 or k < 1 or k % self.quantum:
            raise FormatError(
                f"a weight of {n} x {k} cannot be packed as {self.name}: expected at least one row, and k a multiple "
                f"of {self.quantum}; pad the weight and x with zeros along k, or use a format of smaller groups"
            )


def _int4(group: int, *, has_zeros: bool = False) -> WeightFormat:
    return WeightFormat(f"int4g{group}{'z' if has_zeros else ''}", Code.INT4, group, 16, has_zeros)


INT4_G32, INT4_G64, INT4_G128 = (_int4(x) for x in (32, 64, 128))
"""A factor of x's type for each group."""
INT4_G32_ZEROS, INT4_G64_ZEROS, INT4_G128_ZEROS = (_int4(x, has_zeros=True) for x in (32, 64, 128))
"""And a zero point, as AWQ and GPTQ have them."""
MAX_ZERO = 16
"""The largest zero point: GPTQ stores them less by 1, so that 15 stands for 16."""
NVFP4 = WeightFormat("nvfp4", Code.E2M1, 16, 8, has_row_factors=True)
"""An e4m3 factor for each 16 elements, and a float32 factor of the weight. Source: PTX ISA, tcgen05.mma,
.kind::mxf4nvf4 with .block16; compressed-tensors, nvfp4-pack-quantized."""
NVFP4_ROWS = replace(NVFP4, name="nvfp4rows", layout=WeightLayout.ROWS)
"""The same in rows and atoms, so that a product with x in NVFP4 takes the bytes too."""
MXFP4 = WeightFormat("mxfp4", Code.E2M1, 32, 8)
"""A power of two, ue8m0, for each 32 elements. Source: MX specification 1.0, section 5."""
MXFP4_ROWS = replace(MXFP4, name="mxfp4rows", layout=WeightLayout.ROWS)
"""The same in rows and atoms, so that a product with x in MXFP8 takes the bytes too."""
INT8 = WeightFormat("int8", Code.INT8, has_row_factors=True)
"""A float32 factor for each row, or for the weight."""
E4M3 = WeightFormat("e4m3", Code.E4M3, has_row_factors=True)
"""Likewise."""

FORMATS = (
    *(INT4_G32, INT4_G64, INT4_G128, INT4_G32_ZEROS, INT4_G64_ZEROS, INT4_G128_ZEROS),
    *(NVFP4, MXFP4, INT8, E4M3, NVFP4_ROWS, MXFP4_ROWS),
)


@dataclass(frozen=True)
class WeightParts:
    """A weight (n, k) in a format, as checkpoints hold its parts."""

    codes: Bits
    """uint8 (n, k)."""
    factors: Bits | None = None
    """The bits of the groups' factors, uint16 or uint8 (n, k / group)."""
    zeros: Bits | None = None
    """The groups' zero points, uint8 (n, k / group)."""


def format_named(name: str) -> WeightFormat:
    """Return a format by its name.

    Raises:
        FormatError: there is none of that name.
    """
    found = next((x for x in FORMATS if x.name == name), None)
    if found is None:
        raise FormatError(f"no weight format {name!r}; there are: {', '.join(x.name for x in FORMATS)}")
    return found


@dataclass(frozen=True)
class PackedLayout:
    """How many bytes the parts of a packed weight take."""

    form: WeightFormat

    @property
    def code_bytes(self) -> int:
        """Return the bytes of a block's codes."""
        return TILE_ROWS * BLOCK_K * self.form.code.bits // 8

    @property
    def factor_bytes(self) -> int:
        """Return the bytes of a block's factors."""
        return TILE_ROWS * self.form.num_groups(BLOCK_K) * self.form.factor_bits // 8

    @property
    def zero_bytes(self) -> int:
        """Return the bytes of a block's zero points."""
        return TILE_ROWS * self.form.num_groups(BLOCK_K) if self.form.has_zeros else 0

    @property
    def block_bytes(self) -> int:
        """Return the bytes of a block, 16 rows by 128 of k, with its factors: a multiple of 16.

        In rows these bytes do not lie together; a kernel that has read them holds as many.
        """
        return self.code_bytes + self.factor_bytes + self.zero_bytes

    @property
    def run_k(self) -> int:
        """Return the elements along k of which a row of the bytes has a whole number: in rows an atom's."""
        return ATOM_COLUMNS * self.form.group if self.form.in_rows else BLOCK_K

    @property
    def run_bytes(self) -> int:
        """Return the bytes that `run_k` elements take of a row of the bytes."""
        return self.run_k * self.form.code.bits // 8 if self.form.in_rows else self.block_bytes

    @property
    def rows_of_atoms(self) -> int:
        """Return the rows of bytes that the atoms of `ATOM_ROWS` rows of the weight take; 0 where there are none."""
        return ATOM_ROWS * ATOM_COLUMNS // self.run_bytes if self.form.in_rows else 0

    @property
    def tile_rows(self) -> int:
        """Return the rows of the weight of which the bytes have a whole number; in rows atoms stand behind them.

        Kernels view codes in rows as runs of two tiles' rows. Where fewer rows than one has stand behind them, all of a
        run's are there.
        """
        return 2 * TILE_ROWS if 0 < self.rows_of_atoms < TILE_ROWS else TILE_ROWS

    def first_atom_row(self, n: int) -> int:
        """Return the row of bytes at which the atoms begin: behind whole `tile_rows` rows of the weight."""
        return -(-n // self.tile_rows) * self.tile_rows

    def shape(self, n: int, k: int) -> tuple[int, int]:
        """Return the shape of the packed bytes of a weight of (n, k)."""
        row_bytes = -(-k // self.run_k) * self.run_bytes
        if self.form.in_rows:
            return self.first_atom_row(n) + -(-n // ATOM_ROWS) * self.rows_of_atoms, row_bytes
        return -(-n // TILE_ROWS), row_bytes
