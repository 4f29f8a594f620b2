"""Packed weights of one input as one, rows behind rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import errors
from ._factors import atoms_of, rows_of
from ._torch_packed import PackedWeight, rows_and_atoms
from ._weight_format import ATOM_ROWS, TILE_ROWS, PackedLayout, WeightFormat

if TYPE_CHECKING:
    from collections.abc import Sequence


def join(weights: Sequence[PackedWeight]) -> PackedWeight:
    """Return packed weights of one input as one, rows behind rows, so that one launch multiplies all of them.

        both = aot_gemm.torch.join([gate, up])
        hidden = aot_gemm.torch.silu_mul(aot_gemm.torch.linear(x, both))

    The bytes are copied, once, where a model is loaded; what is not joined any more may be freed. A result's columns
    are those of the weights in their order: `y.split([n, ...], -1)` gives each its own, as views.

    Args:
        weights: two or more of one format and one k, on one device. All but the last have rows of a multiple of 16, and
            in rows, as `nvfp4rows` has them, of 128 and one own factor, by which the product with a narrow x is
            multiplied as a whole.

    Raises:
        OperandError: they are no list of packed weights.
        FormatError: formats, types or k differ, rows are no such multiple, or own factors in rows differ.
    """
    if not isinstance(weights, (list, tuple)) or not weights or not all(isinstance(x, PackedWeight) for x in weights):
        raise errors.OperandError(f"join: got {errors.show(weights)}; expected a list of PackedWeight, one or more")
    first, form = weights[0], weights[0].form
    quantum = quantum_of(form)
    for weight in weights:
        got, expected = ((x.format, x.shape[1], x.dtype, x.data.device) for x in (weight, first))
        if got != expected:
            raise errors.FormatError(
                f"join: got weights of {got} and {expected}; expected one format, k, type and device"
            )
        if weight is not weights[-1] and weight.shape[0] % quantum:
            raise errors.FormatError(
                f"join: a weight of {weight.format} in front of another has {weight.shape[0]} rows; expected a "
                f"multiple of {quantum}; put it last, or multiply it by itself"
            )
    scale = None
    if first.scale is not None:
        held = [x.scale for x in weights if x.scale is not None]
        is_one = all(x.numel() == 1 and torch.equal(x, held[0]) for x in held)
        if form.in_rows and not is_one:
            raise errors.FormatError(
                f"join: weights of {form.name} have own factors of their own; expected one, by which the product with "
                "a narrow x is multiplied; round them together, or repack them as nvfp4"
            )
        scale = held[0] if is_one else torch.cat([x.expand(y.shape[0]) for x, y in zip(held, weights, strict=True)])
    data = joined_bytes(form, [(x.data, x.shape[0]) for x in weights])
    return PackedWeight(data, scale, first.format, (sum(x.shape[0] for x in weights), first.shape[1]), first.dtype)


def quantum_of(form: WeightFormat) -> int:
    """Return of how many rows a weight in front of another is a multiple, where both are joined."""
    return ATOM_ROWS if form.in_rows else TILE_ROWS


def joined_bytes(form: WeightFormat, weights: Sequence[tuple[Any, int]]) -> Any:
    """Return the bytes of weights, rows behind rows.

    Args:
        form: the format.
        weights: the bytes of each, and its rows.
    """
    parts = [(data,) for data, _ in weights]
    if form.in_rows:
        parts = [data.split([y := PackedLayout(form).first_atom_row(n), len(data) - y]) for data, n in weights]
    return torch.cat([x for some in zip(*parts, strict=True) for x in some])


def bytes_in_turns(form: WeightFormat, gate: Any, line: Any, shape: tuple[int, int]) -> Any:
    """Return the bytes, in rows, of a weight (2 n, k) whose row 2 j is row j of one and row 2 j + 1 that of another.

    Args:
        form: the format, whose bytes lie in rows.
        gate: the bytes of the weight (n, k) that has the even rows.
        line: those of the one that has the odd ones.
        shape: (n, k).
    """
    (n, k), groups = shape, form.num_groups(shape[1])
    both = [rows_and_atoms(form, x, shape) for x in (gate, line)]
    held = [[x for x, _ in both], [rows_of(torch, atoms.view(torch.uint8), n, groups) for _, atoms in both]]
    elements, factors = (torch.stack(x, 1).flatten(0, 1) for x in held)
    found = gate.new_zeros(PackedLayout(form).shape(2 * n, k))
    of_elements, of_atoms = rows_and_atoms(form, found, (2 * n, k))
    of_elements.copy_(elements)
    of_atoms.view(torch.uint8).copy_(atoms_of(torch, factors))
    return found
