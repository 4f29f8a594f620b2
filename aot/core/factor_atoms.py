"""Where scale factors lie that are held in atoms: the layout of block-scaled products' factors in memory.

An atom is 512 bytes: the factors of 128 rows and 4 blocks along k, a byte each. Row r of an atom and its block b lie at
byte (r % 32) * 16 + (r // 32) * 4 + b, so that `tcgen05.cp.32x128b.warpx4` brings an atom into four columns of tensor
memory. Atoms of one 128 rows lie behind each other along k. What fills the last atoms up is written as zeros: hardware
multiplies elements behind the end, which are zeros, by it, and NaN times 0 is NaN.

Where the rows of A are grouped, each group's factors begin with an atom: `first_atom_of_group` says which. Places that
are no row's, at the end of a group's last atoms and in atoms of no group, may hold anything.

Source: PTX ISA, tcgen05.mma, "Scale factors", scale_vec::1X to ::4X layouts; cuBLAS, "1D block scaling factors layout".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aot.core.weight_format import ATOM_COLUMNS, ATOM_ROWS

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    Bits = NDArray[Any]
    Indices: TypeAlias = NDArray[np.int64]

LANES = 32
"""Lanes of tensor memory that an atom's rows lie in, four in each."""

ATOM_BYTES = ATOM_ROWS * ATOM_COLUMNS


def num_atoms(rows: int, blocks: int) -> tuple[int, int]:
    """Return how many atoms hold the factors of some rows and of some blocks along k."""
    return -(-rows // ATOM_ROWS), -(-blocks // ATOM_COLUMNS)


def first_atom_of_group(start: Any, group: Any) -> Any:
    """Return which atoms, counted in 128 rows, the factors of a group of rows begin with.

    Each group in front takes at most one atom that is not full, so that whole numbers of the rows in front, and one
    more for each group in front, keep groups apart, whatever their sizes are. Nobody has to add up what groups take,
    and a group is found by its own start. Source: quack varlen_utils.py, `offset_batch_SFA`.

    Args:
        start: the group's first row, of those of all groups: integers of Python, of numpy, or of a traced kernel.
        group: its number, the same.
    """
    return start // ATOM_ROWS + group


def num_atoms_of_groups(rows: int, num_groups: int) -> int:
    """Return how many atoms, counted in 128 rows, hold the factors of groups of rows, whatever their sizes are.

    Args:
        rows: of all groups.
        num_groups: 1 or more.
    """
    return -(-rows // ATOM_ROWS) + num_groups - 1


def row_in_atoms(row: Any, start: Any, group: Any) -> Any:
    """Return which row of atoms a row of a group is.

    Args:
        row: of those of all groups: integers of Python, of numpy, or of a kernel that is traced.
        start: the group's first row, the same.
        group: its number, the same.
    """
    return first_atom_of_group(start, group) * ATOM_ROWS + row - start


def byte_in_atom(row: Any, block: Any) -> Any:
    """Return the byte of its atom at which the factor of a row and of a block along k lies.

    Args:
        row: of the operand: integers of Python, of numpy, or of a kernel that is traced.
        block: along k, the same.
    """
    return row % LANES * (LANES // 2) + row % ATOM_ROWS // LANES * ATOM_COLUMNS + block % ATOM_COLUMNS


def factor_positions(rows: Indices, blocks: Indices, num_blocks: int) -> Indices:
    """Return the bytes at which factors lie, (rows, blocks), counted from the first atom.

    Args:
        rows: of the operand.
        blocks: along k.
        num_blocks: blocks that a row of the operand has, which say how far it is to the next 128 rows.
    """
    row, block = rows[:, None], blocks[None, :]
    atom = row // ATOM_ROWS * -(-num_blocks // ATOM_COLUMNS) + block // ATOM_COLUMNS
    return np.asarray(atom * ATOM_BYTES + byte_in_atom(row, block), np.int64)


def pack_factors(codes: Bits) -> Bits:
    """Return the atoms that hold the codes of factors, (rows, blocks), as one run of bytes."""
    rows, blocks = codes.shape
    down, along = num_atoms(rows, blocks)
    held = np.zeros(down * along * ATOM_BYTES, np.uint8)
    held[factor_positions(np.arange(rows), np.arange(blocks), blocks)] = codes
    return held


def unpack_factors(held: Bits, rows: int, blocks: int) -> Bits:
    """Return the codes of factors, (rows, blocks), that atoms hold.

    Raises:
        ValueError: there are more or fewer bytes than those atoms have.
    """
    down, along = num_atoms(rows, blocks)
    if held.size != down * along * ATOM_BYTES:
        text = f"{rows} rows of {blocks} factors take {down * along * ATOM_BYTES} bytes of atoms, got {held.size}"
        raise ValueError(f"{text}; give whole atoms of {ATOM_ROWS} rows by {ATOM_COLUMNS} factors")
    return np.asarray(held.reshape(-1)[factor_positions(np.arange(rows), np.arange(blocks), blocks)])
