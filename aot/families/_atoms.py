"""How scale factors in atoms are seen as quack's block-scaled GEMMs take them, while tracing. Imports CUTLASS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cutlass import Int64, cute

from aot.core.factor_atoms import ATOM_BYTES, LANES
from aot.core.weight_format import ATOM_COLUMNS, ATOM_ROWS
from aot.families._places import steps_of_groups

if TYPE_CHECKING:
    from aot.core.formats import Operand


def _layout(down: Any, along: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return shape and strides of atoms along the rows, atoms along k, and the rows and blocks of one: (32, 4, 4)."""
    shape = (down, along, LANES, ATOM_ROWS // LANES, ATOM_COLUMNS)
    return shape, (along * ATOM_BYTES, ATOM_BYTES, LANES // 2, ATOM_COLUMNS, 1)


def _num_along(k: Any, form: Operand) -> Any:
    """Count the atoms along k."""
    if form.scale is None:
        raise ValueError(f"operand {form} has no scale factors; expected some in atoms")
    return cute.ceil_div(k, form.scale.block_k * ATOM_COLUMNS)


def atoms_of(factors: Any, operand: Any, form: Operand) -> Any:
    """View the bytes of an operand's scale factors.

    Args:
        factors: a vector of whole atoms, those of 128 rows behind each other along k.
        operand: (rows, k), that they belong to.
        form: of the operand.

    Returns:
        Atoms along the rows, atoms along k, and the rows and blocks of one: (32, 4, 4).
    """
    rows, k = operand.shape
    shape, strides = _layout(cute.ceil_div(rows, ATOM_ROWS), _num_along(k, form))
    return cute.make_tensor(factors.iterator, cute.make_layout(shape, stride=strides))


def atoms_of_rows(factors: Any, k: Any, form: Operand) -> Any:
    """View the bytes of the factors of A's rows in groups, as `atoms_of` does: as many atoms as there are.

    Args:
        factors: a vector of whole atoms, where `aot.core.factor_atoms.first_atom_of_group` has them.
        k: of the operand.
        form: of the operand.
    """
    along = _num_along(k, form)
    shape, strides = _layout(cute.ceil_div(factors.shape[0], along * ATOM_BYTES), along)
    return cute.make_tensor(factors.iterator, cute.make_layout(shape, stride=strides))


def behind_batch(atoms: Any) -> Any:
    """View atoms with a mode of one batch in front, as quack has those that it writes."""
    return cute.make_tensor(atoms.iterator, cute.prepend(atoms.layout, cute.make_layout(1, stride=0)))


def atoms_of_groups(factors: Any, stack: Any, num_groups: Any, places: Any, form: Operand) -> Any:
    """View the bytes of the factors of a stack of B, one matrix's behind the other's, groups in front.

    Args:
        factors: a vector of whole atoms; where there are places, of as many bytes as lie between two of them.
        stack: (matrices, rows, k), of which `num_groups` are multiplied.
        num_groups: matrices that have factors.
        places: which of the steps each group's are at; of 0 elements where they lie one behind the other.
        form: of the operand.
    """
    _, rows, k = stack.shape
    shape, strides = _layout(cute.ceil_div(rows, ATOM_ROWS), _num_along(k, form))
    count, step = steps_of_groups(factors, Int64(shape[0]) * Int64(strides[0]), num_groups, places)
    return cute.make_tensor(factors.iterator, cute.make_layout((count, *shape), stride=(step, *strides)))
