"""How a weight is rounded to a narrow format: to nearest, with the largest magnitude of a group as its range.

Nothing is calibrated: how much a model loses by it depends on the model. Checkpoints that were quantised with more care
are packed by `pack` and `load_packed`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ._catalogue import BLOCK_FORMATS
from ._torch_blocks import own_factor, round_blocks
from ._torch_prepare import quantize_by_rows
from ._weight_format import INT4_OFFSET, Code, WeightFormat


class Rounded(NamedTuple):
    """What `pack` takes of a weight."""

    codes: Any
    factors: Any
    zeros: Any
    scale: Any


def rounded(form: WeightFormat, weight: Any, dtype: Any) -> Rounded:
    """Round a weight (n, k), of any floating-point type and device, to a format.

    - int4: codes -8 to 7 of a group, whose factor is the largest of max / 7 and -min / 8, so that none is cut; with
      zero points 0 to 15 between the least and the largest number, 0 among them.
    - nvfp4, mxfp4: as `quantize` of a tensor rounds it; blocks that are not finite get a factor of NaN, which `pack`
      refuses.
    - int8, e4m3: the factor of a row is its largest magnitude over 127 or 448.

    Args:
        form: the format.
        weight: (n, k).
        dtype: of int4's factors, by which, as they are rounded, codes are found.
    """
    if form.code is Code.INT4:
        return _int4(form, weight.float(), dtype)
    if form.elements in BLOCK_FORMATS:
        return _blocks(form, weight.float())
    elements, scale = quantize_by_rows(weight, torch.int8 if form.code is Code.INT8 else torch.float8_e4m3fn)
    return Rounded(elements.view(torch.uint8), None, None, scale)


def _int4(form: WeightFormat, wide: Any, dtype: Any) -> Rounded:
    groups = wide.unflatten(1, (-1, form.group))
    high, low = groups.amax(2), groups.amin(2)
    if not form.has_zeros:
        factors = torch.maximum(high / 7, low / -8).to(dtype)
        offset = torch.full_like(high, INT4_OFFSET)
    else:
        high, low = high.clamp_min(0), low.clamp_max(0)
        factors = ((high - low) / 15).to(dtype)
        offset = (-low / _safe(factors)).round().clamp(0, 15)
    codes = (groups / _safe(factors).unsqueeze(2)).round() + offset.unsqueeze(2)
    zeros = offset.to(torch.uint8) if form.has_zeros else None
    return Rounded(codes.clamp(0, 15).to(torch.uint8).flatten(1), factors, zeros, None)


def _safe(factors: Any) -> Any:
    """Return float32 factors to divide by: where they are 0, so is what is divided."""
    wide = factors.float()
    return torch.where(wide == 0, 1.0, wide)


def _blocks(form: WeightFormat, wide: Any) -> Rounded:
    block = BLOCK_FORMATS[form.elements]
    own = own_factor(wide) if block.has_tensor_factor else None
    codes, factors = round_blocks(wide, own, block)
    if form.is_mxfp4:
        factors = factors.view(torch.uint8)
        codes = codes.where(factors.repeat_interleave(form.group, 1) > 0, 0)  # kernels take the factor 2^-127 for 0
    return Rounded(codes, factors, None, own)
