"""The narrow formats of a Linear's weight, by name: how a weight is rounded, and how its products are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from . import _row_table, errors
from ._torch_modules import ROWS, why_not_planned
from ._torch_prepare import quantize_by_rows, quantize_weight
from ._torch_products import linear
from ._torch_rows import quantize


@dataclass(frozen=True)
class RowFormat:
    """Elements of 8 bits, with one factor for each row of the weight and one for each row of the input.

    A format of another kind, as of blocks or of the weight alone, has these methods too; nothing else knows of formats.
    """

    name: str
    dtype: torch.dtype

    def why_not(self, n: int, k: int, dtype: torch.dtype, *, bias: bool) -> str | None:
        """Say why this wheel has no tuned products of a weight (n, k) with results of `dtype`; None where it has."""
        return why_not_planned(n, k, self.dtype, scales="vector", out_dtype=dtype, bias=bias)

    def narrow(self, weight: Any) -> tuple[Any, Any]:
        """Round a weight (n, k): return its elements (n, k), and their factors (n, 1) in float32."""
        return quantize_weight(weight, self.dtype)

    def widen(self, qweight: Any, scale: Any, dtype: torch.dtype) -> Any:
        """Return what elements and factors stand for, in `dtype`."""
        return (qweight.float() * scale).to(dtype)

    def has_kernel(self, cols: int, dtype: torch.dtype) -> bool:
        """Say whether the package has a kernel, other than the fallback, that rounds inputs (..., cols) of `dtype`."""
        try:
            tiers = [_row_table.plan_rows("quantize", m, cols, dtype, out_dtype=self.dtype).tier for m in ROWS]
        except errors.AotGemmError:
            return False
        return "fallback" not in tiers

    def product(self, x: Any, qweight: Any, scale: Any, bias: Any, *, by_kernel: bool) -> Any:
        """Compute x @ weight^T + bias of an input (..., k), whose rows the package's kernel rounds, or torch."""
        rows, scale_x = quantize(x, self.dtype) if by_kernel else quantize_by_rows(x, self.dtype)
        return linear(rows, qweight, bias, scale_x=scale_x, scale_w=scale, out_dtype=x.dtype)


FORMATS = {
    "fp8": RowFormat("fp8", torch.float8_e4m3fn),
    "int8": RowFormat("int8", torch.int8),
}
"""By the name that `quantize` takes."""


def format_of(name: Any) -> RowFormat:
    """Return a format by its name.

    Raises:
        UnsupportedError: there is none of that name.
    """
    found = FORMATS.get(name) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(map(repr, FORMATS))
        raise errors.UnsupportedError(f"quantize: the format is {errors.show(name)}; expected one of {known}")
    return found
