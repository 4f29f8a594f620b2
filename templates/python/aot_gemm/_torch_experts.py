"""The packed weights of a mixture's experts as one stack: stacking, packing, and taking apart again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import errors
from ._torch_packed import PackedBytes, PackedWeight, Parts, pack, unpack
from ._weight_format import PackedLayout, format_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Stacked(NamedTuple):
    """What packed weights have in common where they are stacked."""

    format: str
    shape: tuple[int, int]
    dtype: Any
    device: Any


class PackedExperts(PackedBytes):
    """Packed weights (experts, n, k) of one format: what `stack` and `pack` return, and `grouped_linear` takes.

    `data` are the bytes, uint8 (experts, rows, bytes), and `scale` the float32 factors beside them, (experts,) or
    (experts, n), or None. `dtype` is the type of x where the factors of groups have it, as of int4; else None. `shape`
    is (experts, n, k). Item i is expert i's packed weight, a view.
    """

    def __init__(self, data: Any, scale: Any, format: str, shape: tuple[int, int, int], dtype: Any = None) -> None:  # noqa: A002
        """Hold bytes and factors that belong together; nothing is copied.

        Raises:
            FormatError: there is no such format, or the bytes are not those of such weights.
        """
        form, (experts, n, k) = format_named(format), shape
        form.check(n, k)
        expected = experts, *PackedLayout(form).shape(n, k)
        if experts < 1 or data.dtype is not torch.uint8 or tuple(data.shape) != expected:
            text = f"torch.uint8 of {expected}, as {experts} {format} weights of {n} x {k} have, of one expert or more"
            raise errors.FormatError(f"packed bytes are {data.dtype} of {tuple(data.shape)}; expected {text}")
        held = () if scale is None else tuple(scale.shape)
        if held not in (((experts,), (experts, n)) if form.has_row_factors else ((),)):
            text = f"({experts},) or ({experts}, {n})" if form.has_row_factors else "none"
            raise errors.FormatError(f"float32 factors of {format} are {held or 'none'}; expected {text}")
        self.data, self.scale, self.format, self.shape, self.dtype = data, scale, format, tuple(shape), dtype

    def __len__(self) -> int:
        """Count the experts."""
        return self.shape[0]

    def __getitem__(self, expert: int) -> PackedWeight:
        """Return an expert's weight, which shares the bytes."""
        scale = None if self.scale is None else self.scale[expert].reshape(-1)
        return PackedWeight(self.data[expert], scale, self.format, self.shape[1:], self.dtype)

    def __iter__(self) -> Iterator[PackedWeight]:
        """Go through the experts' weights."""
        return (self[i] for i in range(len(self)))

    def to(self, device: Any) -> PackedExperts:
        """Return them on another device."""
        scale = None if self.scale is None else self.scale.to(device)
        return PackedExperts(self.data.to(device), scale, self.format, self.shape, self.dtype)


def stack(weights: Sequence[PackedWeight]) -> PackedExperts:
    """Return packed weights of experts as one stack, of which one launch multiplies each group of rows by its own.

        experts = aot_gemm.torch.stack([load_packed(tensors_of(i)) for i in range(32)])
        y = aot_gemm.torch.grouped_linear(x, experts, offsets)

    The bytes are copied, once, where a model is loaded; what was stacked may be freed.

    Args:
        weights: one or more of one format, size, type and device. Where some have a float32 factor for each row, all
            get one for each row.

    Raises:
        OperandError: they are no list of packed weights.
        FormatError: formats, sizes, types or devices differ.
    """
    if not isinstance(weights, (list, tuple)) or not weights or not all(isinstance(x, PackedWeight) for x in weights):
        raise errors.OperandError(f"stack: got {errors.show(weights)}; expected a list of PackedWeight, one or more")
    first = _common(weights[0])
    for i, weight in enumerate(weights):
        if _common(weight) != first:
            raise errors.FormatError(
                f"stack: weight {i} is {tuple(_common(weight))}, weight 0 {tuple(first)}: format, size, type of "
                "factors and device; expected the same of all; pack them alike"
            )
    factors = [x.scale.reshape(-1) for x in weights if x.scale is not None]
    if all(x.numel() == 1 for x in factors):
        scale = torch.cat(factors) if factors else None
    else:
        scale = torch.stack([x.expand(first.shape[0]) for x in factors])
    data = torch.stack([x.data for x in weights])
    return PackedExperts(data, scale, first.format, (len(weights), *first.shape), first.dtype)


def _common(weight: PackedWeight) -> Stacked:
    return Stacked(weight.format, weight.shape, weight.dtype, weight.data.device)


def pack_experts(codes: Any, factors: Any, zeros: Any, *, format: str, scale: Any) -> PackedExperts:  # noqa: A002
    """Pack a stack of weights, one after the other: `pack` of codes (experts, n, k).

    Raises:
        FormatError: as `pack` of one, or there is none, or not one of the others for each.
    """
    experts = codes.shape[0]
    given = {"factors": factors, "zeros": zeros, "scale": scale}
    for name, held in given.items():
        if held is not None and (held.ndim == 0 or held.shape[0] != experts):
            raise errors.FormatError(
                f"pack: {name} are of {tuple(held.shape)} beside codes of {tuple(codes.shape)}; expected {experts} in "
                "front, what belongs to each expert"
            )
    if not experts:
        raise errors.FormatError(f"pack: codes are of {tuple(codes.shape)}; expected one expert or more")

    def of(held: Any, expert: int) -> Any:
        return None if held is None else held[expert]

    packed = (pack(codes[i], of(factors, i), of(zeros, i), format=format, scale=of(scale, i)) for i in range(experts))
    return stack(list(packed))


def unpack_experts(packed: Any) -> Parts:
    """Return what experts' weights were packed of, each with the experts in front: `unpack` of them.

    Raises:
        OperandError: it is nothing that `pack` or `stack` returned.
    """
    if not isinstance(packed, PackedExperts):
        kind = type(packed)
        raise errors.OperandError(
            f"unpack: got a {kind.__module__}.{kind.__qualname__}; expected a PackedWeight, which pack returns, or "
            "PackedExperts"
        )
    parts = [unpack(x) for x in packed]
    stacked = (None if parts[0][i] is None else torch.stack([x[i] for x in parts]) for i in range(3))
    return Parts(*stacked, packed.scale)
