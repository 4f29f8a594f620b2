"""Rows of Y in groups, whose factors' atoms begin anew with each, and the rows of X that an index names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.comparison import Comparison
from aot.core.factor_atoms import ATOM_BYTES, factor_positions, num_atoms, num_atoms_of_groups, row_in_atoms
from aot.core.numerics import poison
from aot.core.operands import AtomMatrix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.core.numerics import Bits
    from aot.core.operands import Indices
    from aot.kinds.rows.operation import RowOperation


@dataclass(frozen=True)
class RowGroups:
    """Groups of rows, as a call has them; ends ascend, and lie within the rows."""

    ends: tuple[int, ...]
    start: int | None = None
    """Where the first group starts, of offsets that begin with it."""
    rows_of_x: int = 0
    """Those that an index names; 0 where row i of Y is row i of X."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return what lies on the device."""
        return self.ends if self.start is None else (self.start, *self.ends)

    @property
    def taken(self) -> slice:
        """Return the rows of Y that are of groups."""
        return slice(self.start or 0, self.ends[-1])

    @property
    def rows_of_atoms(self) -> tuple[int, ...]:
        """Return the rows of atoms that the factors of `taken` lie in."""
        starts = (self.taken.start, *self.ends[:-1])
        pairs = enumerate(zip(starts, self.ends, strict=True))
        return tuple(row_in_atoms(row, s, group) for group, (s, e) in pairs for row in range(s, e))

    def factors(self, rows: int, blocks: int) -> GroupedAtoms:
        """Return where the factors of Y (rows, ...) of some blocks along a row lie."""
        places, count = self.rows_of_atoms, num_atoms_of_groups(rows, len(self.ends))
        return GroupedAtoms(len(places), blocks, 0, 0, places=places, num_atoms=count)

    def rows_taken(self, x: NDArray[np.float64], index: Indices | None) -> NDArray[np.float64]:
        """Return the rows of X of `taken`; zeros where an index names none."""
        if index is None:
            return x[self.taken]
        named = index[self.taken]
        is_there = (named >= 0) & (named < len(x))
        return np.where(is_there[:, None], x[np.where(is_there, named, 0)], 0.0)

    def compare_others(self, operation: RowOperation, y: Bits) -> Comparison | None:
        """Say what is wrong with the rows of Y (rows, cols) of no group, which nothing writes; None if nothing is."""
        is_free = np.ones(len(y), np.bool_)
        is_free[self.taken] = False
        written = is_free & (y != poison(operation.y)).any(1)
        if not written.any():
            return None
        fault = f"{int(written.sum())} rows of no group were written, the first is row {int(np.argmax(written))}"
        return Comparison(np.inf, fault, np.inf)


@dataclass(frozen=True)
class GroupedAtoms(AtomMatrix):
    """Factors of rows in groups: of the rows that are of one, each in its row of atoms."""

    places: tuple[int, ...] = ()
    num_atoms: int = 0
    """Counted in 128 rows."""

    @property
    def _matrix_bytes(self) -> int:
        return self.num_atoms * num_atoms(1, self.num_columns)[1] * ATOM_BYTES

    def positions(self, rows: Indices, columns: Indices, group: int = 0) -> Indices:
        """Return at which bytes factors lie, (rows, columns)."""
        del group
        return factor_positions(np.asarray(self.places, np.int64)[rows], columns, self.num_columns)
