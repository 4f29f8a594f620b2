"""What a wheel has of the row operations that there can be, in words."""

from __future__ import annotations

from typing import NoReturn

from . import _library, errors
from ._catalogue import ROW_CATALOGUE, RowRow

PREFIX = "rows "
"""How the binding begins a request of a row operation. Function, element types of x and y, and scales follow."""

_SCALES = {
    "none": "",
    "row": "",
    "block": " with scales of blocks",
    "tensor": " with one scale",
    "nvfp4": " as nvfp4",
    "mx": " with powers of two in atoms",
}


def find(function: str, x: str, y: str, scale: str) -> RowRow | None:
    """Return the operation of a function and types, whether or not this wheel has it."""
    return next((row for row in ROW_CATALOGUE if row[1:5] == (function, x, y, scale)), None)


def is_there(row: RowRow) -> bool:
    """Say whether this wheel has kernels for an operation."""
    return any(x.has_rows(row.tag) for x in _library.here())


def refuse(text: str) -> NoReturn:
    """Raise that this wheel has no row operation for what is asked for.

    Args:
        text: PREFIX, and four words.

    Raises:
        DtypeError: there is none of the element types.
        UnsupportedError: this wheel has no kernels for it.
    """
    function, x, y, scale = text.removeprefix(PREFIX).split()
    of_function = [row for row in ROW_CATALOGUE if row.function == function]
    row = find(function, x, y, scale)
    blocks = _SCALES[scale]
    if row is None:
        known = ", ".join(f"{each.x} to {each.form or each.y + _SCALES[each.scale]}" for each in of_function)
        raise errors.DtypeError(
            f"{function}: there is none of {x} to {y}{blocks}; expected one of {known}; convert x, or ask for "
            "another type"
        )
    here = ", ".join(each.tag for each in of_function if is_there(each)) or "none"
    raise errors.UnsupportedError(
        f"{function}: this wheel has no kernels for {row.tag}; of {function} it has {here}; build a wheel with it: "
        f"{_library.build_command(row.tag)}"
    )
