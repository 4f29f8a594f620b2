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


def pack_factors(
    factors: Any, offsets: Any = None, *, groups: int | None = None, index: Any = None, stacked: bool = False
) -> Any:
    """Put factors into atoms, as the kernels of NVFP4, MXFP4 and MXFP8 take them.

        held = aot_gemm.pack_factors(factors)
        y = aot_gemm.linear(x, weight, scale_x=scale_x, scale_w=held)

    `linear` takes factors in rows of blocks too, and does this with each call; of a weight it is done once. So does
    `grouped_linear` of its weights' factors; those of x, whose atoms begin anew with each group, it takes in atoms:

        scale_x = aot_gemm.pack_factors(factors, offsets)
        scale_w = aot_gemm.pack_factors(factors_of_weights, stacked=True)

    Nothing of the offsets is read by the host.

    Args:
        factors: (rows, blocks), or with more leading dimensions, of 8 bits: float8_e4m3fn, float8_e8m0fnu or uint8. A
            tensor of torch, on any device, or an array of numpy, CuPy or JAX.
        offsets: of rows in groups (groups,), where each group ends, ascending, as `grouped_linear` has them; beside
            `groups` also (groups + 1,), the first start in front. Integers, of the same framework and device.
        groups: how many groups there are; as many as offsets where it is not given.
        index: of rows in groups (rows,), integers: row i of the groups has the factors of row index[i], or zeros where
            there is no such row.
        stacked: whether the first dimension is of groups, each of which begins with an atom: of weights (groups, n,
            blocks).

    Returns:
        (ceil(rows / 128) * ceil(blocks / 4) * 512,), of the same type, with zeros in what fills the atoms up; of a
        stack as many for each group, one behind the other; and of rows in groups ((ceil(rows / 128) + groups - 1) *
        ceil(blocks / 4) * 512,), where the factors of group g begin with atom (start of g // 128 + g) of its 128 rows.

    Raises:
        DtypeError: it is no such tensor.
        ShapeError: it has one dimension or none, or offsets are not of so many groups.
        OperandError: it is a stack beside offsets, or an index or groups are there without offsets.
    """
    library = _library_of("pack_factors", factors)
    if len(factors.shape) < 2 + int(stacked):
        raise errors.ShapeError(
            f"pack_factors: factors have shape {tuple(factors.shape)}; expected "
            f"{'(groups, rows, blocks)' if stacked else '(rows, blocks); what has one dimension is atoms already'}"
        )
    if offsets is None:
        if groups is not None or index is not None:
            raise errors.OperandError(
                "pack_factors: got groups or an index without offsets; expected where each group ends"
            )
        return atoms_of_stack(library, factors) if stacked else atoms_of(library, factors)
    if stacked:
        raise errors.OperandError("pack_factors: got stacked=True and offsets; expected one of the two")
    return atoms_of_groups(library, factors, groups_of(offsets, groups), index)


def run_of(atoms: Any) -> Any:
    """Return the atoms of groups, (groups, bytes), as one run of bytes, which is a copy where rows lie apart."""
    _library_of("grouped_linear", atoms)
    return atoms.reshape(-1)


def num_bytes(rows: Any, blocks: Any, groups: Any = 1) -> Any:
    """Return the bytes of the atoms of factors (rows, blocks), of rows in groups of those of all groups."""
    down, along = -(-rows // _ATOM_ROWS) + groups - 1, -(-blocks // _ATOM_BLOCKS)
    return down * along * _ATOM_ROWS * _ATOM_BLOCKS


def groups_of(offsets: Any, groups: int | None) -> tuple[Any, Any]:
    """Return where groups start and end, of offsets that may have the first start in front.

    Raises:
        ShapeError: offsets are not of so many groups.
    """
    count = offsets.shape[0] if len(offsets.shape) == 1 else -1
    num_groups = count if groups is None else groups
    if num_groups < 1 or count - num_groups not in (0, 1):
        raise errors.ShapeError(
            f"pack_factors: offsets have shape {tuple(offsets.shape)} and groups is {errors.show(groups)}; expected "
            "(groups,), where each group ends, or (groups + 1,) beside groups, the first start in front"
        )
    return offsets[:-1] if count > num_groups else None, offsets[count - num_groups :]


def atoms_of_groups(library: Any, factors: Any, groups: tuple[Any, Any], index: Any = None) -> Any:
    """Put factors (..., blocks) of rows in groups into atoms, which begin anew with each group.

    What is no row's is 0 behind a group's last row, and in front of the first group the factors of some row.

    Args:
        library: torch, or a module with numpy's functions.
        factors: of the rows.
        groups: as `groups_of` returns them.
        index: of the rows of the groups, which row of factors each is; None where they are the same.
    """
    blocks, height = factors.shape[-1], math.prod(factors.shape[:-1])
    rows = height if index is None else index.shape[0]
    starts, ends = groups
    ends = library.clip(ends, 0, rows)
    if starts is None:
        starts = library.concatenate((library.zeros_like(ends[:1]), ends[:-1]))
    else:
        starts = library.clip(starts, 0, rows)
    count = ends.shape[0]
    device = {"device": factors.device} if library.__name__ == "torch" else {}
    firsts = starts // _ATOM_ROWS + library.arange(count, dtype=starts.dtype, **device)
    place = library.arange((-(-rows // _ATOM_ROWS) + count - 1) * _ATOM_ROWS, dtype=starts.dtype, **device)
    side = {"right": True} if library.__name__ == "torch" else {"side": "right"}
    group = library.searchsorted(firsts, place // _ATOM_ROWS, **side) - 1
    row = place + (starts - firsts * _ATOM_ROWS)[group]
    is_there = row < ends[group]
    if index is not None:
        row = index[library.clip(row, 0, max(rows - 1, 0))] if rows else row
        is_there = is_there & (row >= 0) & (row < height)
    codes = factors.view(library.uint8).reshape(height, blocks)
    if height == 0:
        codes, row = library.zeros((1, blocks), dtype=library.uint8, **device), row * 0
    found = codes[library.clip(row, 0, max(height - 1, 0))] * is_there[:, None]
    return atoms_of(library, found).view(factors.dtype)


def atoms_of_stack(library: Any, factors: Any) -> Any:
    """Put factors (groups, ..., blocks) into atoms, those of one group behind those of the other."""
    groups, blocks = factors.shape[0], factors.shape[-1]
    rows = math.prod(factors.shape[1:-1])
    below = -rows % _ATOM_ROWS
    codes = factors.view(library.uint8).reshape(groups, rows, blocks)
    if library.__name__ == "torch":
        whole = library.nn.functional.pad(codes, (0, 0, 0, below))
    else:
        whole = library.pad(codes, ((0, 0), (0, below), (0, 0)))
    return atoms_of(library, whole.reshape(groups * (rows + below), blocks)).view(factors.dtype)


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
