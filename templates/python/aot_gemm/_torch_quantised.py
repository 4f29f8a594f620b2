"""Rows of 8 bits in front of a product: quantised by the package's kernels, or by torch where it has none of them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import module as torch_module

from . import _row_table, errors
from ._torch_modules import ROWS, is_watched
from ._torch_products import is_compiling
from ._torch_rows import quantize

QUANTISED = {"fp8": (torch.float8_e4m3fn, 448.0), "int8": (torch.int8, 127.0)}
"""By the name that `patch` takes: the element type, and its largest value."""
_LEAST = 1e-12
"""A scale factor is at least this, so that a row of zeros divides by no zero."""


def quantise_rows(x: Any, kind: str) -> tuple[Any, Any]:
    """Return x (..., k) in an element type of 8 bits, and the factors (..., 1) of its rows, in float32, by torch."""
    dtype, largest = QUANTISED[kind]
    wide = x.float()
    scale = (wide.abs().amax(-1, keepdim=True) / largest).clamp_min(_LEAST)
    scaled = (wide / scale).clamp(-largest, largest)
    return (scaled if dtype.is_floating_point else scaled.round()).to(dtype), scale


def has_kernel(function: str, cols: int, dtype: Any, kind: str) -> bool:
    """Say whether the package has a kernel, other than the fallback, of an operation that gives rows of 8 bits."""
    out_dtype = QUANTISED[kind][0]
    try:
        tiers = [_row_table.plan_rows(function, rows, cols, dtype, out_dtype=out_dtype).tier for rows in ROWS]
    except errors.AotGemmError:
        return False
    return "fallback" not in tiers


class Inputs:
    """The inputs of one product of 8 bits: rows that were made for it, or of 16 bits that are quantised here.

    Args:
        kind: "fp8" or "int8".
        cols: k of the product.
        dtype: element type of inputs that are to be quantised.
    """

    def __init__(self, kind: str, cols: int, dtype: Any) -> None:
        self.kind, self.dtype = kind, QUANTISED[kind][0]
        self.has_kernel = has_kernel("quantize", cols, dtype, kind)
        self.last: Any = None
        """Under a trace: the rows that were made for the product, and their factors."""

    def give(self, values: Any, scale: Any) -> Any:
        """Note the factors of rows that are made for the product; return the rows, which stand for its input.

        The rows themselves carry the factors, so that threads do not take each other's. A trace has one thread.
        """
        if is_compiling():
            self.last = (values, scale)
        else:
            values.aot_scale = scale
        return values

    def scale_of(self, x: Any) -> Any:
        """Return the factors of rows that were made for the product; None where x is none of those."""
        if x.dtype is not self.dtype:
            return None
        if is_compiling():
            return self.last[1] if self.last is not None and self.last[0] is x else None
        return getattr(x, "aot_scale", None)

    def restored(self, x: Any, dtype: Any) -> Any:
        """Return what rows that were made for the product stand for, in another type."""
        return (x.float() * self.scale_of(x)).to(dtype)

    def take(self, x: Any) -> tuple[Any, Any]:
        """Return the rows of 8 bits of an input, and their factors."""
        scale = self.scale_of(x)
        if scale is not None:
            self.last = None
            return x, scale
        if self.has_kernel:
            found: tuple[Any, Any] = quantize(x, self.dtype)
            return found
        return quantise_rows(x, self.kind)

    def __deepcopy__(self, memo: dict[int, Any]) -> Inputs:
        """Make one that was given nothing."""
        other = object.__new__(Inputs)
        vars(other).update(vars(self) | {"last": None})
        return other


class Feed:
    """Where rows of 8 bits go that something makes, as a norm: to one product, and past which modules.

    Args:
        joined: the product.
        places: the modules that are called with the rows, or whose hooks may see them: owner, name and module of each.
    """

    def __init__(self, joined: Any, places: tuple[tuple[Any, str, Any], ...]) -> None:
        self.joined, self.places = joined, places

    def is_open(self, dtype: Any) -> bool:
        """Say whether rows may be given to the product, where an input of this type stood.

        They may not where a hook sees them, nor where another module has the place of one that takes them.
        """
        joined = self.joined
        if joined.inputs is None or joined.weight.dtype is not dtype or not joined.is_current():
            return False
        if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:  # noqa: SLF001
            return False
        for owner, name, module in self.places:
            if owner._modules.get(name) is not module or is_watched(module):  # noqa: SLF001
                return False
        return all(getattr(x, "aot_joined", None) is joined for x in joined.modules)

    def give(self, values: Any, scale: Any) -> Any:
        """Give rows to the product; return them, which stand for its input."""
        return self.joined.inputs.give(values, scale)
