"""What an operation on rows of torch tensors gives, by shapes and types alone; extents may be symbols of a trace.

The twin of row_tensors.cc for tensors without memory: it refuses with the same errors what that would refuse later.
What depends on memory, as strides and overlaps, is left to the call itself.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from . import _row_request, _torch_result, errors
from ._rows import scales_of

_BYTE_DTYPES = ("float8_e4m3fn", "float8_e5m2", "int8")
_SCALE_BLOCK = 128
"""kScaleBlock of operation.h."""


class RowCall(NamedTuple):
    """The tensors and options of a call; tensors are torch's."""

    function: str
    x: Any
    weight: Any = None
    bias: Any = None
    residual: Any = None
    cos: Any = None
    sin: Any = None
    scale: Any = None
    out_dtype: Any = None
    granularity: str = "row"
    rotary_dim: Any = None


class RowResults(NamedTuple):
    """Shape and element type, by torch's name, of what a call gives anew."""

    y: tuple[tuple[Any, ...], str]
    residual: tuple[tuple[Any, ...], str] | None
    scale: tuple[tuple[Any, ...], str] | None


def name_of(dtype: Any) -> str:
    """Return the name of an element type that torch has."""
    return str(dtype).removeprefix("torch.")


def results_of(call: RowCall) -> RowResults:
    """Return what a call gives.

    Raises:
        AotGemmError: one of the classes that `rms_norm` lists, as its call would.
    """
    x = call.x
    given = ("x", "weight", "bias", "residual", "cos", "sin", "scale")
    for name in given:
        if getattr(call, name) is not None:
            _check_device(call, name, getattr(call, name))
    dtype = name_of(x.dtype)
    y = dtype if call.out_dtype is None else name_of(call.out_dtype)
    scale = "none" if y not in _BYTE_DTYPES else scales_of(call.granularity, call.scale)
    row = _row_request.find(call.function, dtype, y, scale)
    if row is None or not _row_request.is_there(row):
        _row_request.refuse(f"{_row_request.PREFIX}{call.function} {dtype} {y} {scale}")
    shape = _shape_of(call)
    for name in ("weight", "bias"):
        _check(call, name, dtype, shape[-1:])
    _check(call, "residual", dtype, tuple(x.shape))
    if call.function == "rotary":
        _check_angles(call, dtype)
    scales = (*shape[:-1], -(-shape[-1] // _SCALE_BLOCK) if scale == "block" else 1)
    if scale == "tensor":
        scales = (1,) * len(shape)
    if call.scale is not None:
        _check_scale(call, scale, y, scales)
    return RowResults(
        (shape, y),
        None if call.residual is None else (tuple(x.shape), dtype),
        (scales, "float32") if scale != "none" and call.scale is None else None,
    )


def _text(tensor: Any) -> str:
    return str(tuple(tensor.shape))


def _check_device(call: RowCall, name: str, tensor: Any) -> None:
    if tensor.device.type not in _torch_result.DEVICES:
        raise errors.DeviceError(
            f"{call.function}: {name} is on {tensor.device}; expected a CUDA tensor; move it to the GPU first"
        )
    if tensor.device != call.x.device:
        raise errors.DeviceError(
            f"{call.function}: {name} is on {tensor.device}, x on {call.x.device}; expected one GPU"
        )


def _shape_of(call: RowCall) -> tuple[Any, ...]:
    x = call.x
    least = 2 if call.function == "rotary" else 1
    if x.ndim < least:
        expected = "(..., heads, dim)" if least == 2 else "(..., cols)"
        raise errors.ShapeError(f"{call.function}: x has shape {_text(x)}; expected {expected}")
    if call.function not in ("silu_mul", "gelu_tanh_mul"):
        return tuple(x.shape)
    if x.shape[-1] % 2 != 0:
        raise errors.ShapeError(
            f"{call.function}: x has shape {_text(x)}; expected an even last extent: the gate's elements and as many "
            "linear ones"
        )
    return (*x.shape[:-1], x.shape[-1] // 2)


def _check(call: RowCall, name: str, dtype: str, shape: tuple[Any, ...]) -> None:
    tensor = getattr(call, name)
    if tensor is None:
        return
    if name_of(tensor.dtype) != dtype:
        raise errors.DtypeError(f"{call.function}: {name} is {name_of(tensor.dtype)}; expected {dtype}; convert it")
    if tuple(tensor.shape) != shape:
        raise errors.ShapeError(f"{call.function}: {name} has shape {_text(tensor)}; expected {shape}")


def _check_angles(call: RowCall, dtype: str) -> None:
    for name in ("cos", "sin"):
        tensor = getattr(call, name)
        if tensor is None:
            raise errors.OperandError(f"rotary: {name} is missing; expected cos and sin of each position")
        _check(call, name, dtype, tuple(tensor.shape))
    x, cos, sin = call.x, call.cos, call.sin
    dim, width = x.shape[-1], cos.shape[-1] if cos.ndim else 0
    turned = call.rotary_dim if call.rotary_dim is not None else dim if width == dim else 2 * width
    tokens, positions = math.prod(x.shape[:-2]), math.prod(cos.shape[:-1])
    is_whole = turned in (width, 2 * width) and turned <= dim and turned % 2 == 0
    has_all = tokens == 0 or (positions > 0 and tokens % positions == 0)
    if cos.ndim < 1 or tuple(cos.shape) != tuple(sin.shape) or not is_whole or not has_all:
        raise errors.ShapeError(
            f"rotary: cos has shape {_text(cos)} and sin {_text(sin)}, beside x {_text(x)}; expected both (positions, "
            "rotary_dim / 2) or (positions, rotary_dim), where rotary_dim is even and up to dim, and the tokens are as "
            "many as the positions, or a multiple"
        )


def _check_scale(call: RowCall, kind: str, y: str, scales: tuple[Any, ...]) -> None:
    scale, shape = call.scale, tuple(call.scale.shape)
    if kind != "row":
        raise errors.OperandError(
            f"{call.function}: got scale, which goes with a result of 8 bits that has no blocks; the result is {y}; "
            "leave it away"
        )
    if name_of(scale.dtype) != "float32":
        raise errors.DtypeError(f"{call.function}: scale is {name_of(scale.dtype)}; expected float32; convert it")
    rows = math.prod(scales[:-1])
    if all(extent == 1 for extent in shape) or shape in ((rows,), (rows, 1), scales, scales[:-1]):
        return
    raise errors.ShapeError(
        f"{call.function}: scale has shape {shape}; expected one element, or {scales}, one for each row"
    )
