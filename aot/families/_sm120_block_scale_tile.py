"""What the kernel of `sm120_block_scale` works on, and what it takes. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.element import BYTE_BITS
from aot.core.weight_format import ATOM_COLUMNS, ATOM_ROWS
from aot.families._mma_sync_tile import MAX_SHARED_ACCUMULATORS, MAX_STAGES, Tile

if TYPE_CHECKING:
    from aot.core.operation import Operation

STEP_BYTES = 32
"""Bytes of k of A that one instruction multiplies. Source: PTX ISA, mma.m16n8k64 of e2m1 and m16n8k32 of e4m3."""

PIECE_BYTES = 16
"""What one copy brings of an operand's row."""

LINES = 32
"""Runs of 16 bytes of an atom, each of which has the words of four rows, 32 apart. Source: aot.core.factor_atoms."""

MIN_STAGES = 2
"""Fewest with which loads overlap the multiplication."""

RESERVED_BYTES = 1024
"""What the driver takes of an SM's shared memory for each CTA. Source: CUDA C++ Programming Guide, compute capability
12.x: 100 KiB an SM, of which a CTA may have 99."""


@dataclass(frozen=True)
class Instruction:
    """`mma.sync` with scale factors for blocks along k."""

    kind: str
    num_factors: int
    """Factors of a row that one instruction takes: its `.scale_vec`."""
    k: int
    elements: tuple[str, str]
    """The PTX types of A and of B."""
    factor: str
    """That of the factors."""

    @property
    def opcode(self) -> str:
        """Return the instruction's name. Source: PTX ISA, mma, with .block_scale."""
        of_a, of_b = self.elements
        form = f"kind::{self.kind}.block_scale.scale_vec::{self.num_factors}X"
        return f"mma.sync.aligned.{form}.m16n8k{self.k}.row.col.f32.{of_a}.{of_b}.f32.{self.factor}"

    @property
    def steps_per_word(self) -> int:
        """Count the instructions along k that one word of factors serves: four factors lie in one."""
        return ATOM_COLUMNS // self.num_factors

    def byte_of(self, step: int) -> int:
        """Return the selector's byte-id of a step along k, counted from where a word begins."""
        return step % self.steps_per_word * self.num_factors


def instruction_of(operation: Operation) -> Instruction:
    """Return what multiplies an operation's operands.

    Raises:
        ValueError: they have no scale factors in atoms.
    """
    a, scale = operation.a.element, operation.a.scale
    if scale is None:
        raise ValueError(f"{operation.tag} has no scale factors; expected an operation whose blocks along k have some")
    k = a.num_in(STEP_BYTES)
    kind = "mxf4nvf4" if a.bits < BYTE_BITS else "mxf8f6f4"
    return Instruction(kind, k // scale.block_k, k, (a.tag, operation.b.element.tag), f"u{scale.element.tag}")


@dataclass(frozen=True)
class FactorRows:
    """The factors of an operand's part in a stage: words of four along k, as the lines of atoms have them.

    A line of an atom has the words of rows 32 apart: of as many of them as lie in the part, one copy brings a line's.
    """

    extent: int
    """Rows of the part, a power of two."""
    atoms: int
    """Atoms along k of a stage."""

    @property
    def lines(self) -> int:
        """Count the lines of an atom that the part has."""
        return min(self.extent, LINES)

    @property
    def words(self) -> int:
        """Count the words of a line that the part has."""
        return max(min(self.extent, ATOM_ROWS) // LINES, 1)

    @property
    def num_copies(self) -> int:
        """Count the copies of a stage."""
        return max(self.extent // ATOM_ROWS, 1) * self.atoms * self.lines

    @property
    def num_bytes(self) -> int:
        """Count the bytes of a stage."""
        return self.num_copies * self.words * ATOM_COLUMNS

    def word_of(self, row: int, atom: int) -> int:
        """Return which word of the stage has a row's factors; integers, or values of a kernel that is traced."""
        line = (row // ATOM_ROWS * self.atoms + atom) * self.lines + row % self.lines
        return line * self.words + row % ATOM_ROWS // LINES


@dataclass(frozen=True, kw_only=True)
class BlockScaledTile(Tile):
    """The work of a CTA; `block_k`, and A and B along k, are counted in bytes of A."""

    instruction: Instruction
    row_bytes: int
    """Bytes of A's rows in a stage."""
    is_padded: bool
    """Whether B's elements have half as many bits as A's, and become bytes in registers."""
    limit_bytes: int
    """Shared memory of a CTA, at most."""
    sm_bytes: int
    """Shared memory of an SM."""

    @property
    def block_k(self) -> int:
        """Return the bytes of A's rows in a stage."""
        return self.row_bytes

    @property
    def b_row_bytes(self) -> int:
        """Return the bytes of B's rows in a stage."""
        return self.row_bytes // (2 if self.is_padded else 1)

    @property
    def word_bytes(self) -> int:
        """Return the bytes of A's rows that a word of factors serves."""
        return self.instruction.steps_per_word * STEP_BYTES

    @property
    def atoms(self) -> int:
        """Count the atoms along k of a stage; one may serve several stages."""
        return max(self.row_bytes // self.word_bytes, 1)

    @property
    def factor_rows(self) -> tuple[FactorRows, FactorRows]:
        """Describe the factors of A and of B in a stage."""
        return FactorRows(self.rows, self.atoms), FactorRows(self.columns, self.atoms)

    @property
    def starts(self) -> tuple[int, int, int, int]:
        """Return the bytes of a stage at which A, B, A's factors and B's begin."""
        b = self.rows * self.row_bytes
        factors_a = b + self.columns * self.b_row_bytes
        return 0, b, factors_a, factors_a + self.factor_rows[0].num_bytes

    @property
    def stage_bytes(self) -> int:
        """Count the bytes of a stage."""
        return self.starts[-1] + self.factor_rows[1].num_bytes

    @property
    def num_blocks_per_sm(self) -> int:
        """Return how many CTAs are to fit an SM at once: two where shared memory and registers allow it."""
        least = max((MIN_STAGES + 1) * self.stage_bytes, 4 * self.num_sums)
        fits = least <= self._shared_bytes and self.num_accumulators <= MAX_SHARED_ACCUMULATORS
        return 2 if fits else 1

    @property
    def _shared_bytes(self) -> int:
        """Return the shared memory of each of two CTAs of an SM."""
        return self.sm_bytes // 2 - RESERVED_BYTES

    @property
    def num_stages(self) -> int:
        """Count the stages that fit; the fewest where the sums, which lie over them in the end, do not."""
        there = self._shared_bytes if self.num_blocks_per_sm > 1 else self.limit_bytes
        most = MAX_STAGES if 4 * self.num_sums <= there else MIN_STAGES
        return max(MIN_STAGES, min(most, there // self.stage_bytes))
