"""How a weight is rounded to a narrow format: to nearest, with the largest magnitude of a group as its range.

Nothing is calibrated: how much a model loses by it depends on the model. Checkpoints that were quantised with more care
are packed by `pack` and `load_packed`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ._torch_prepare import quantize_by_rows
from ._weight_format import INT4_OFFSET, MXFP4, NVFP4, Code, WeightFormat

E2M1_LARGEST, E4M3_LARGEST = 6.0, 448.0
E2M1_EXPONENT = 2
"""Of the largest number of e2m1. Source: Open Compute Project, Microscaling Formats, sections 5.3.3 and 6.3."""
_LEAST_E8M0, _LARGEST_E8M0, _E8M0_BIAS = 1, 254, 127
_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Between the magnitudes of e2m1: a number halfway goes to the even code."""
_LEAST_FACTOR = 2.0**-9
"""The least e4m3 above 0."""


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
    - nvfp4: the factor of the weight is its largest magnitude over 6 times 448; that of a group, in e4m3, its own
      over 6.
    - mxfp4: the factor of a group is the power of two of its largest magnitude, over 4.
    - int8, e4m3: the factor of a row is its largest magnitude over 127 or 448.

    Args:
        form: the format.
        weight: (n, k).
        dtype: of int4's factors, by which, as they are rounded, codes are found.
    """
    if form.code is Code.INT4:
        return _int4(form, weight.float(), dtype)
    if form is NVFP4:
        return _nvfp4(weight.float())
    if form is MXFP4:
        return _mxfp4(weight.float())
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


def _nvfp4(wide: Any) -> Rounded:
    groups = wide.unflatten(1, (-1, NVFP4.group))
    most = groups.abs().amax(2)
    whole = most.amax() / (E2M1_LARGEST * E4M3_LARGEST)
    scale = torch.where(whole == 0, 1.0, whole)
    factors = (most / E2M1_LARGEST / scale).clamp(0, E4M3_LARGEST).to(torch.float8_e4m3fn)
    divisor = factors.float().clamp_min(_LEAST_FACTOR) * scale
    return Rounded(_e2m1(groups / divisor.unsqueeze(2)).flatten(1), factors, None, scale.reshape(1))


def _mxfp4(wide: Any) -> Rounded:
    groups = wide.unflatten(1, (-1, MXFP4.group))
    _, exponent = torch.frexp(groups.abs().amax(2))  # of x in [0.5, 1) times a power of two
    codes = (exponent - 1 - E2M1_EXPONENT + _E8M0_BIAS).clamp(_LEAST_E8M0, _LARGEST_E8M0)
    divisor = torch.exp2((codes - _E8M0_BIAS).float())
    return Rounded(_e2m1(groups / divisor.unsqueeze(2)).flatten(1), codes.to(torch.uint8), None, None)


def _e2m1(values: Any) -> Any:
    """Return the codes of values, to nearest, ties to even; what is larger than the largest number becomes that."""
    magnitude = values.abs()
    bounds = [x if code % 2 == 0 else _before(x) for code, x in enumerate(_BOUNDS)]
    codes = torch.bucketize(magnitude, torch.tensor(bounds, device=values.device))
    return (codes + 8 * torch.signbit(values)).to(torch.uint8)


def _before(bound: float) -> float:
    """Return the float32 in front of a bound, which then belongs to the numbers above."""
    return float(torch.nextafter(torch.tensor(bound), torch.tensor(0.0)))
