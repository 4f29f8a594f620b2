"""Element types, by torch's names."""

from __future__ import annotations

from . import errors
from ._enumerations import BITS, ELEMENTS

_TAKEN = tuple(x for x in ELEMENTS if BITS[x] >= 8 and x not in ("float8_e8m0fnu", "uint8"))
"""Those that are asked for by themselves; elements of 4 bits, and factors that are powers of two, go with a format."""


def dtype_name(argument: str, dtype: object) -> str:
    """Return the name of an element type that is given by name, or as torch, NumPy or JAX have it.

    Raises:
        DtypeError: there are no kernels for it.
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    name = str(name).removeprefix("torch.")
    if name not in _TAKEN:
        raise errors.DtypeError(f"{argument} is {errors.show(dtype)}; expected one of {', '.join(_TAKEN)}")
    return name


def dtype_number(argument: str, dtype: object) -> int:
    """Return the number of an element type.

    Raises:
        DtypeError: there are no kernels for it.
    """
    return ELEMENTS.index(dtype_name(argument, dtype))
