"""Weights that are packed once: quantized with their factors, gate and linear rows in one matrix, promised."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from . import _operations, _torch_modules, errors
from ._constant import ConstantWeight
from ._dtypes import dtype_name
from ._enumerations import SCALE_BLOCK
from ._table import plan
from ._torch_products import is_plain

_LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}
"""By element type of 8 bits: its largest value."""
_WIDE = (torch.bfloat16, torch.float16, torch.float32)
_GRANULARITIES = ("row", "tensor", "block")
_LEAST_SCALE = 2.0**-126
"""LEAST_SCALE of the toolchain's row_quantization.py, by which `quantize` computes its scales: none becomes 0."""
_SLAB = 8 * SCALE_BLOCK
"""Rows that are quantized at a time, so that little is held in float32."""


class PreparedWeight(NamedTuple):
    """What `prepare` returns: the first two operands of a product that belong together."""

    weight: ConstantWeight
    """(n, k), or of a gate (2 n, k), contiguous, promised to be constant; `weight.tensor` is the tensor."""
    scale: Any
    """float32, what `linear` and `gated_linear` take as scale_w; None where the weight keeps its type."""


def prepare(
    weight: Any, dtype: Any = None, granularity: str = "row", *, up: Any = None, interleaved: bool = False
) -> PreparedWeight:
    """Pack a weight once, where a model is loaded, as products take it with each call.

        weight, scale = aot_gemm.torch.prepare(linear.weight, torch.float8_e4m3fn)
        rows, scale_x = aot_gemm.torch.quantize(x)
        y = aot_gemm.torch.linear(rows, weight, scale_x=scale_x, scale_w=scale)

    The result has memory of its own, unless the weight keeps its type and already lies as it should: then that is
    promised to be constant, and nobody may write it. Waits for the work on the current stream, as `constant` does.

    Args:
        weight: (n, k) in GPU memory, of any strides: bfloat16, float16 or float32. With `up`, the rows of the gate.
        dtype: float8_e4m3fn, float8_e5m2 or int8 to quantize to, as torch has it or by name; None for the weight's own.
        granularity: "row" for a factor of each row, (n, 1); "tensor" for one of all, (1,); "block" for one of each 128
            by 128 elements, (ceil(n / 128), ceil(k / 128)). Each is the largest magnitude over that of the type, but
            at least 2^-126, or 1 where all are zero.
        up: (n, k), the linear rows of a gate, for `gated_linear`: they follow the gate's.
        interleaved: whether they are in turns with those of the gate, as `gated_linear(interleaved=True)` has them.

    Returns:
        The weight and its factors.

    Raises:
        DtypeError: the weight's type is none of those, or there is no product of the type asked for.
        ShapeError: the weight is no matrix, or `up` is not of its shape.
        DeviceError: the weight is not in GPU memory, or `up` is elsewhere.
        OperandError: an operand is no plain tensor, `interleaved` goes without `up`, or a stream is being captured.
        UnsupportedError: there is no such granularity, or this wheel has no kernels for the product.
    """
    _check("weight", weight, weight)
    if up is not None:
        _check("up", up, weight)
    elif interleaved:
        raise errors.OperandError("prepare: interleaved goes with up=, the linear rows of a gate; leave it away")
    if granularity not in _GRANULARITIES:
        known = ", ".join(map(repr, _GRANULARITIES))
        raise errors.UnsupportedError(f"prepare: granularity is {errors.show(granularity)}; expected one of {known}")
    element = None if dtype is None else dtype_name("prepare: dtype", dtype)
    if element is not None and element not in _LARGEST:
        raise errors.DtypeError(f"prepare: dtype is {element}; expected {', '.join(_LARGEST)}, or None for no change")
    _check_planned(weight, element, granularity, gated=up is not None)
    with torch.no_grad():
        rows = _rows_of(weight.detach(), None if up is None else up.detach(), interleaved=interleaved)
        values, scale = (rows.contiguous(), None) if element is None else _quantized(rows, element, granularity)
    return PreparedWeight(_operations.constant(values), scale)


def _check(name: str, tensor: Any, like: Any) -> None:
    kind = type(tensor)
    if not isinstance(tensor, torch.Tensor) or not is_plain(tensor):
        raise errors.OperandError(
            f"prepare: {name} is a {kind.__module__}.{kind.__qualname__}; expected a plain torch.Tensor"
        )
    if tensor.dtype not in _WIDE or tensor.dtype != like.dtype:
        expected = "bfloat16, float16 or float32" if like is tensor else f"{like.dtype}, as the weight"
        raise errors.DtypeError(f"prepare: {name} is {tensor.dtype}; expected {expected}")
    if tensor.ndim != 2 or tensor.shape != like.shape:
        expected = "(n, k)" if like is tensor else f"{tuple(like.shape)}, as the weight"
        raise errors.ShapeError(f"prepare: {name} has shape {tuple(tensor.shape)}; expected {expected}")
    if tensor.device.type not in _torch_modules.DEVICES:
        raise errors.DeviceError(f"prepare: {name} is on {tensor.device}; expected a GPU; move it there first")
    if tensor.device != like.device:
        raise errors.DeviceError(f"prepare: {name} is on {tensor.device}, weight on {like.device}; expected one GPU")


def _check_planned(weight: Any, element: str | None, granularity: str, *, gated: bool) -> None:
    """Refuse what this wheel has no product of."""
    n, k = weight.shape
    options: dict[str, Any] = {"activation": "silu", "gated": True} if gated else {}
    if element is None:
        plan(1, n, k, weight.dtype, allow_tf32=weight.dtype is torch.float32, **options)
        return
    out_dtype = torch.bfloat16 if weight.dtype is torch.float32 else weight.dtype
    scales = "block" if granularity == "block" else "vector"
    other = "float8_e4m3fn" if element == "float8_e5m2" else element  # of x: there is no product of two e5m2
    plan(1, n, k, other, weight_dtype=element, scales=scales, out_dtype=out_dtype, **options)


def _rows_of(weight: Any, up: Any, *, interleaved: bool) -> Any:
    if up is None:
        return weight
    return torch.stack((weight, up), 1).flatten(0, 1) if interleaved else torch.cat((weight, up))


def quantize_weight(weight: Any, dtype: Any) -> tuple[Any, Any]:
    """Return a weight (n, k) in an element type of 8 bits, and the factors (n, 1) of its rows in float32.

    A part at a time, so that little is held in float32; on the weight's own device, meta included.
    """
    n = weight.shape[0]
    values, scale = torch.empty_like(weight, dtype=dtype), weight.new_empty(n, 1, dtype=torch.float32)
    for start in range(0, n, _SLAB):
        part = slice(start, start + _SLAB)
        values[part], scale[part] = quantize_by_rows(weight[part], dtype)
    return values, scale


def quantize_by_rows(x: Any, dtype: Any) -> tuple[Any, Any]:
    """Return x (..., k) in an element type of 8 bits, and the factors (..., 1) of its rows in float32, by torch.

    The values are those of the toolchain's reference, and so of the package's `quantize`.
    """
    wide = x.float()
    most = wide.abs().amax(-1, keepdim=True) if x.shape[-1] else wide.new_zeros(*x.shape[:-1], 1)
    return _rounded(wide, dtype, most)


def quantize_by_blocks(x: Any, dtype: Any) -> tuple[Any, Any]:
    """Return x (..., k) in an element type of 8 bits, and a factor for each 128 columns of a row, by torch.

    The values are those of the package's `quantize` of blocks.
    """
    wide, k = x.float(), x.shape[-1]
    padded = torch.nn.functional.pad(wide.abs(), (0, -k % SCALE_BLOCK))
    most = padded.unflatten(-1, (-1, SCALE_BLOCK)).amax(-1)
    values, _ = _rounded(wide, dtype, most.repeat_interleave(SCALE_BLOCK, -1)[..., :k])
    return values, _rounded(most, dtype, most)[1]


def quantize_square_blocks(weight: Any) -> tuple[Any, Any]:
    """Return a weight (n, k) in float8_e4m3fn, and a float32 factor for each 128 by 128 elements."""
    return _quantized(weight, "float8_e4m3fn", "block")


def _rounded(wide: Any, dtype: Any, most: Any) -> tuple[Any, Any]:
    """Return elements of float32 in an element type of 8 bits, and their factors, of the largest magnitudes `most`."""
    largest = _LARGEST[str(dtype).removeprefix("torch.")]
    scale = torch.where(most == 0, 1.0, (most / largest).clamp_min(_LEAST_SCALE))
    scaled = (wide / scale).clamp(-largest, largest)
    return (scaled if dtype.is_floating_point else scaled.round()).to(dtype), scale


def _quantized(rows: Any, element: str, granularity: str) -> tuple[Any, Any]:
    """Return rows in an element type of 8 bits, and their factors."""
    dtype = getattr(torch, element)
    if granularity == "row":
        return quantize_weight(rows, dtype)
    if rows.numel() == 0:
        n, k = rows.shape
        shape = (1,) if granularity == "tensor" else (-(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK))
        return rows.to(dtype), torch.ones(shape, device=rows.device)
    values = torch.empty(rows.shape, dtype=dtype, device=rows.device)
    whole = rows.abs().amax().float().reshape(1) if granularity == "tensor" else None
    scales = []
    for start in range(0, rows.shape[0], _SLAB):
        part = slice(start, start + _SLAB)
        wide = rows[part].float()
        most = _block_maxima(wide) if whole is None else whole
        each = most
        if whole is None:
            blocks = most.repeat_interleave(SCALE_BLOCK, 0).repeat_interleave(SCALE_BLOCK, 1)
            each = blocks[: wide.shape[0], : wide.shape[1]]
        values[part] = _rounded(wide, dtype, each)[0]
        scales.append(_rounded(most, dtype, most)[1])
    return values, torch.cat(scales) if whole is None else scales[0]


def _block_maxima(wide: Any) -> Any:
    """Return the largest magnitude of each 128 by 128 elements."""
    n, k = wide.shape
    padded = torch.nn.functional.pad(wide.abs(), (0, -k % SCALE_BLOCK, 0, -n % SCALE_BLOCK))
    return padded.unflatten(0, (-1, SCALE_BLOCK)).unflatten(2, (-1, SCALE_BLOCK)).amax((1, 3))
