"""What the codes and factors of a narrow weight stand for, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aot.core.element import ElementType
from aot.core.factor_atoms import factor_positions
from aot.core.numerics import decode
from aot.core.weight_format import (
    ATOM_ROWS,
    E8M0_BIAS,
    INT4_OFFSET,
    TILE_ROWS,
    Code,
    PackedLayout,
    WeightFormat,
    WeightParts,
)
from aot.core.weight_packing import unpack, unpack_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits = NDArray[Any]
    Indices = NDArray[np.int64]

_ELEMENTS = {Code.E2M1: ElementType.E2M1, Code.INT8: ElementType.INT8, Code.E4M3: ElementType.E4M3}


def code_values(code: Code) -> NDArray[np.float64]:
    """Return the value of each code."""
    codes = np.arange(1 << code.bits, dtype=np.uint8)
    return codes.astype(np.float64) - INT4_OFFSET if code is Code.INT4 else decode(_ELEMENTS[code], codes)


def factor_values(form: WeightFormat, factors: Bits, element: ElementType) -> NDArray[np.float64]:
    """Return the values of groups' factors.

    Args:
        form: the format.
        factors: their bits, (n, groups).
        element: x's type, which factors of 16 bits have.
    """
    if form.is_mxfp4:
        return np.ldexp(1.0, factors.astype(np.int64) - E8M0_BIAS)
    return decode(ElementType.E4M3 if form.is_nvfp4 else element, factors)


def weight_values(form: WeightFormat, parts: WeightParts, element: ElementType) -> NDArray[np.float64]:
    """Return the values of a weight's elements, (n, k), before a float32 factor: each is exact in float64.

    Args:
        form: the format.
        parts: the weight.
        element: x's type.
    """
    values = code_values(form.code)[parts.codes]
    if parts.zeros is not None:
        values = values + INT4_OFFSET - np.repeat(parts.zeros.astype(np.float64), form.group, axis=1)
    if parts.factors is None:
        return values
    return np.asarray(values * np.repeat(factor_values(form, parts.factors, element), form.group, axis=1))


def packed_rows(form: WeightFormat, rows: Indices, n: int) -> Indices:
    """Return which rows of the packed bytes hold some rows of a weight of n: what `packed_values` is given.

    Of a weight in rows the atoms stand behind the codes, once for all rows that have factors in them.
    """
    if not form.in_rows:
        return rows // TILE_ROWS
    layout, atoms = PackedLayout(form), np.unique(rows // ATOM_ROWS)
    behind = atoms[:, None] * layout.rows_of_atoms + np.arange(layout.rows_of_atoms)
    return np.concatenate((rows, layout.first_atom_row(n) + behind.reshape(-1)))


def packed_values(
    form: WeightFormat, packed: NDArray[np.uint8], rows: Indices, k: int, element: ElementType
) -> NDArray[np.float64]:
    """Return the values of some rows of a packed weight, (rows, k), before a float32 factor.

    Args:
        form: the format.
        packed: the rows of bytes that `packed_rows` names.
        rows: their places in the weight.
        k: elements of a row.
        element: x's type.
    """
    if form.in_rows:
        return _values_in_rows(form, packed, rows, k, element)
    places, found = rows % TILE_ROWS, np.empty((len(rows), k))
    starts = np.flatnonzero(np.append(True, np.diff(rows // TILE_ROWS) != 0))  # neighbours share a row of bytes
    for start, end in zip(starts, np.append(starts[1:], len(rows)), strict=True):
        tile = weight_values(form, unpack(form, packed[start : start + 1], TILE_ROWS, k), element)
        found[start:end] = tile[places[start:end]]
    return found


def _values_in_rows(
    form: WeightFormat, packed: NDArray[np.uint8], rows: Indices, k: int, element: ElementType
) -> NDArray[np.float64]:
    count, groups = len(rows), form.num_groups(k)
    atoms, place = np.unique(rows // ATOM_ROWS, return_inverse=True)
    held = packed[count:].reshape(len(atoms), -1)[place]
    at = factor_positions(rows % ATOM_ROWS, np.arange(groups), groups)
    parts = WeightParts(unpack_pairs(packed[:count], k), np.take_along_axis(held, at, 1))
    return weight_values(form, parts, element)
