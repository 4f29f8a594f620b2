"""The factors of blocks along k: in rows of blocks, (rows, blocks), or in the atoms that kernels take.

An atom is 512 bytes for 128 rows and 4 blocks; those of 128 rows lie one behind the other. It is the layout of cuBLAS
and of torch's SwizzleType.SWIZZLE_32_4_4. Here atoms are always a tensor of one dimension, and rows of blocks one of
more.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from . import errors
from ._frameworks import roots_of

_ATOM_ROWS, _ATOM_BLOCKS = 128, 4
"""Twins of the toolchain's ATOM_ROWS and ATOM_COLUMNS of formats.py, as `_LANES` is of LANES of factor_atoms.py."""
_LANES = 32
_MODULES = ("cupy", "jax", "jaxlib", "numpy")
"""The frameworks whose tensors have numpy's functions."""
_NUM_BYTES = 1


def pack_factors(factors: Any) -> Any:
    """Put factors into atoms, as the kernels of NVFP4, MXFP4 and MXFP8 take them.

        held = aot_gemm.pack_factors(factors)
        y = aot_gemm.linear(x, weight, scale_x=scale_x, scale_w=held)

    `linear` takes factors in rows of blocks too, and does this with each call; of a weight it is done once.

    Args:
        factors: (rows, blocks), or with more leading dimensions, of 8 bits: float8_e4m3fn, float8_e8m0fnu or uint8. A
            tensor of torch, on any device, or an array of numpy, CuPy or JAX.

    Returns:
        (ceil(rows / 128) * ceil(blocks / 4) * 512,), of the same type, with zeros in what fills the atoms up.

    Raises:
        DtypeError: it is no such tensor.
        ShapeError: it has one dimension or none.
    """
    library = _library_of("pack_factors", factors)
    if len(factors.shape) < 2:
        raise errors.ShapeError(
            f"pack_factors: factors have shape {tuple(factors.shape)}; expected (rows, blocks); what has one dimension "
            "is atoms already"
        )
    return atoms_of(library, factors)


def atoms_of(library: Any, factors: Any) -> Any:
    """Put factors (..., blocks) of torch, or of a module with numpy's functions, into atoms."""
    rows, blocks = math.prod(factors.shape[:-1]), factors.shape[-1]
    down, along = -(-rows // _ATOM_ROWS), -(-blocks // _ATOM_BLOCKS)
    codes = factors.view(library.uint8).reshape(rows, blocks)
    below, behind = down * _ATOM_ROWS - rows, along * _ATOM_BLOCKS - blocks
    if library.__name__ == "torch":
        whole = library.nn.functional.pad(codes, (0, behind, 0, below))
    else:
        whole = library.pad(codes, ((0, below), (0, behind)))
    parts = whole.reshape(down, _ATOM_ROWS // _LANES, _LANES, along, _ATOM_BLOCKS)
    return _moved(library, parts, (0, 3, 2, 1, 4)).reshape(-1).view(factors.dtype)


def unpack_factors(atoms: Any, rows: int, blocks: int) -> Any:
    """Take factors out of atoms: what `pack_factors` put into them.

    Args:
        atoms: a tensor of one dimension, as `pack_factors` returns it.
        rows: how many rows have factors.
        blocks: how many blocks along k a row has.

    Returns:
        (rows, blocks), of the same type.

    Raises:
        DtypeError: it is no such tensor.
        ShapeError: the atoms of so many rows and blocks have another number of bytes.
    """
    return rows_of(_library_of("unpack_factors", atoms), atoms, rows, blocks)


def rows_of(library: Any, atoms: Any, rows: int, blocks: int) -> Any:
    """Take factors of torch, or of a module with numpy's functions, out of atoms.

    Raises:
        ShapeError: the atoms of so many rows and blocks have another number of bytes.
    """
    down, along = -(-rows // _ATOM_ROWS), -(-blocks // _ATOM_BLOCKS)
    expected = down * along * _ATOM_ROWS * _ATOM_BLOCKS
    if tuple(atoms.shape) != (expected,):
        raise errors.ShapeError(
            f"unpack_factors: atoms have shape {tuple(atoms.shape)}; expected ({expected},), of {rows} rows and "
            f"{blocks} blocks; flatten them"
        )
    parts = atoms.view(library.uint8).reshape(down, along, _LANES, _ATOM_ROWS // _LANES, _ATOM_BLOCKS)
    whole = _moved(library, parts, (0, 3, 2, 1, 4)).reshape(down * _ATOM_ROWS, along * _ATOM_BLOCKS)
    found = whole[:rows, :blocks]
    return (found.contiguous() if library.__name__ == "torch" else found.copy()).view(atoms.dtype)


def _library_of(function: str, factors: Any) -> Any:
    """Return torch, or the module with numpy's functions, that a tensor of 8 bits belongs to."""
    roots = roots_of(type(factors))
    is_of_torch = "torch" in roots
    name = "torch" if is_of_torch else next((x for x in _MODULES if x in roots), None)
    size = getattr(getattr(factors, "dtype", None), "itemsize", None)
    if name is None or size != _NUM_BYTES:
        kind = getattr(factors, "dtype", None) or type(factors).__name__
        raise errors.DtypeError(
            f"{function}: got {errors.show(kind)}; expected factors of float8_e4m3fn, float8_e8m0fnu or uint8, as "
            "torch, numpy, CuPy or JAX have them"
        )
    return sys.modules["jax.numpy" if name.startswith("jax") else name]  # which has made the tensor


def _moved(library: Any, parts: Any, order: tuple[int, ...]) -> Any:
    return parts.permute(order) if library.__name__ == "torch" else parts.transpose(order)
