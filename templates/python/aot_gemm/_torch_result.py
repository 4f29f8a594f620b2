"""What a product of tensors gives, by shapes and types alone; extents may be symbols of a trace by torch.

The twin of operands.cc for tensors without memory: it refuses with the same errors what that would refuse later. What
depends on memory, as strides that do not join and overlaps, is left to the call itself.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple, NoReturn

from . import errors
from ._enumerations import ELEMENTS, EPILOGUES
from ._extras import ACTIVATIONS, GATES, refuse_activation
from ._request import Request, find

DEVICES = ("cuda", "meta")
"""Where the tensors of a trace are said to be; meta tensors have shapes alone."""
_BYTE_DTYPES = {"float8_e4m3fn", "float8_e5m2", "int8"}
SCALE_BLOCK = 128
"""kScaleBlock of operation.h."""


class Product(NamedTuple):
    """The operands and options of a product; tensors are torch's, or have `shape`, `ndim`, `dtype` and `device`."""

    name: str
    """`linear`, `gated_linear` or `matmul`."""
    x: Any
    weight: Any
    bias: Any = None
    scale_x: Any = None
    scale_w: Any = None
    residual: Any = None
    scale_out: Any = None
    activation: Any = None
    out_dtype: Any = None
    allow_tf32: bool = False
    use_fast_accum: bool = False
    out: Any = None

    @property
    def names(self) -> tuple[str, str]:
        """Return what messages call the left and the right operand."""
        return ("a", "b") if self.name == "matmul" else ("x", "weight")


def result_of(product: Product) -> tuple[tuple[Any, ...], str]:
    """Return shape and element type, by torch's name, of what a product gives.

    Raises:
        AotGemmError: one of the classes that `linear` lists, as its call would.
    """
    for name, tensor in zip(product.names, (product.x, product.weight), strict=True):
        check_tensor(product, name, tensor)
    _check_extents(product)
    request = _request_of(product)
    _find(product, request)
    rows, shape = _rows(product), _shape_of(product)
    if product.bias is not None:
        bias = "bfloat16" if request.d in _BYTE_DTYPES else request.d
        check_dtype(product, "bias", product.bias, bias)
        check_shape(
            product,
            "bias",
            product.bias,
            (rows,),
            ", an element for each row of weight; an output is named by keyword: linear(x, weight, out=out)",
        )
    if product.residual is not None:
        check_dtype(product, "residual", product.residual, request.d)
        check_shape(product, "residual", product.residual, shape, ", as the result")
    _check_scale_out(product, request)
    if product.out is not None:
        check_shape(product, "out", product.out, shape, "")
    return shape, request.d


def operation_of(product: Product) -> str:
    """Return the tag of the operation that a product is computed by, whose result `result_of` has found.

    Raises:
        AotGemmError: one of the classes that `linear` lists, as its call would.
    """
    return _find(product, _request_of(product))


def dtype_text(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def shape_text(tensor: Any) -> str:
    return str(tuple(tensor.shape))


def check_tensor(product: Any, name: str, tensor: Any) -> None:
    if tensor.device.type not in DEVICES:
        raise errors.DeviceError(
            f"{product.name}: {name} is on {tensor.device}; expected a CUDA tensor; move it to the GPU first, or use "
            "torch's own product there"
        )
    if tensor.device != product.x.device:
        raise errors.DeviceError(
            f"{product.name}: {name} is on {tensor.device}, {product.names[0]} on {product.x.device}; expected one GPU"
        )
    if dtype_text(tensor.dtype) not in ELEMENTS:
        raise errors.DtypeError(
            f"{product.name}: {name} is {dtype_text(tensor.dtype)}; expected bfloat16, float16, float32, "
            "float8_e4m3fn, float8_e5m2 or int8; convert it"
        )


def _check_extents(product: Product) -> None:
    x, weight = product.x, product.weight
    is_matmul = product.name == "matmul"
    left, right = product.names
    if x.ndim < 1 or weight.ndim < 1 or not (weight.ndim == 2 or is_matmul):
        expected = "a (..., m, k) or (k,), and b (..., k, n) or (k,)" if is_matmul else "x (..., k) and weight (n, k)"
        raise errors.ShapeError(
            f"{product.name}: got {left} {shape_text(x)} and {right} {shape_text(weight)}; expected {expected}"
        )
    right_k = weight.shape[(max(weight.ndim - 2, 0)) if is_matmul else 1]
    if x.shape[-1] != right_k:
        raise errors.ShapeError(
            f"{product.name}: {left} {shape_text(x)} has k {x.shape[-1]}, {right} {shape_text(weight)} has k "
            f"{right_k}; expected one k"
        )
    if product.name == "gated_linear" and weight.shape[0] % 2 != 0:
        raise errors.ShapeError(
            f"{product.name}: weight has shape {shape_text(weight)}; expected an even number of rows, those of the "
            "gate and as many linear ones"
        )


def _rows(product: Product) -> Any:
    """Return how many rows the weight has, or columns the right operand of a matmul."""
    return product.weight.shape[-1 if product.name == "matmul" else 0] if product.weight.ndim >= 2 else 1


def _is_batch(product: Product) -> bool:
    return product.name == "matmul" and bool(product.weight.ndim > 2)


def _batch_shape(product: Product) -> tuple[Any, ...]:
    """Return the shape of a batch's result, whose leading dimensions broadcast."""
    a, b = tuple(product.x.shape), tuple(product.weight.shape)
    pairs = list(itertools.zip_longest(reversed(a[:-2]), reversed(b[:-2]), fillvalue=1))
    if any(x not in (y, 1) and y != 1 for x, y in pairs):
        raise errors.ShapeError(
            f"matmul: got a {a} and b {b}; expected leading dimensions that are equal or 1, counted from the last two "
            "on; expand or permute one"
        )
    return (*(y if x == 1 else x for x, y in reversed(pairs)), *a[-2:-1], b[-1])


def _shape_of(product: Product) -> tuple[Any, ...]:
    if _is_batch(product):
        return _batch_shape(product)
    leading, rows = tuple(product.x.shape[:-1]), _rows(product)
    if product.weight.ndim == 1:
        return leading
    return (*leading, rows // 2 if product.name == "gated_linear" else rows)


def _request_of(product: Product) -> Request:
    """Return what operation the element types and options need; vectors where there are factors."""
    known = GATES if product.name == "gated_linear" else ACTIVATIONS
    if product.activation not in known:
        refuse_activation(product.name, product.activation)
    a, b = dtype_text(product.x.dtype), dtype_text(product.weight.dtype)
    is_scaled, d = product.scale_x is not None, element_of_d(product)
    check_scales(product, a, b, d)
    has = product.bias is not None, product.residual is not None
    epilogue = EPILOGUES[known[product.activation]]
    allowed = product.allow_tf32, product.use_fast_accum
    scale = "vector" if is_scaled else "none"
    return Request(product.name, a, b, d, scale, epilogue, "dense", *has, *allowed)


def element_of_d(product: Any) -> str:
    """Return the element type of the result: the one that is asked for, or that `out` has.

    Raises:
        DtypeError: there is no such type, or `out` has another.
    """
    a = dtype_text(product.x.dtype)
    d = "bfloat16" if product.scale_x is not None else "int32" if a == "int8" else a
    if product.out_dtype is not None:
        d = dtype_text(product.out_dtype)
    if product.out is not None:
        check_tensor(product, "out", product.out)
        asked, d = d, dtype_text(product.out.dtype)
        if product.out_dtype is not None and asked != d:
            raise errors.DtypeError(
                f"{product.name}: out is {d} and out_dtype {asked}; expected one type; leave out_dtype away"
            )
    if d not in ELEMENTS:
        raise errors.DtypeError(f"{product.name}: out_dtype is {d}; expected one of {', '.join(ELEMENTS)}")
    return d


def check_scales(product: Any, a: str, b: str, d: str) -> None:
    """Check that there are both factors or none, as the element types have it."""
    has_x, has_w = product.scale_x is not None, product.scale_w is not None
    if has_x != has_w:
        got, lacks = ("scale_x", "scale_w") if has_x else ("scale_w", "scale_x")
        raise errors.OperandError(f"{product.name}: got {got} and no {lacks}; expected both, or none")
    are_bytes = {a, b} <= _BYTE_DTYPES
    if has_x and not are_bytes:
        raise errors.OperandError(
            f"{product.name}: got scale_x and scale_w, which go with float8 and int8 operands; x is {a} and weight "
            f"{b}; leave them away"
        )
    if not has_x and are_bytes and d != "int32":
        raise errors.OperandError(
            f"{product.name}: {a} operands of a {d} result need factors, by which they are multiplied; expected "
            "float32 tensors in GPU memory, of one element, or of one for each row; pass them as linear(x, weight, "
            "scale_x=, scale_w=)"
        )


def _find(product: Product, request: Request) -> str:
    """Return the operation's tag; of factors that are of either kind, as where k is up to 128, either's."""
    if request.scale == "none":
        return find(request)
    check_dtype(product, "scale_x", product.scale_x, "float32")
    check_dtype(product, "scale_w", product.scale_w, "float32")
    vectors, blocks = _scale_kinds(product)
    if not vectors and not blocks:
        _refuse_scales(product)
    by_blocks = request._replace(scale="block")
    if not vectors:
        return find(by_blocks)
    try:
        return find(request)
    except errors.UnsupportedError:
        if blocks and (tag := tag_of(by_blocks)) is not None:
            return tag
        raise


def tag_of(request: Request) -> str | None:
    """Return the tag of the operation for a request, or None where there is none."""
    try:
        return find(request)
    except errors.UnsupportedError:
        return None


def _scale_kinds(product: Product) -> tuple[bool, bool]:
    """Say whether the factors are vectors, and whether they are of blocks: the twin of read_scale_shapes."""
    scale_x, scale_w = tuple(product.scale_x.shape), tuple(product.scale_w.shape)
    leading, rows = tuple(product.x.shape[:-1]), _rows(product)
    m, k_blocks = math.prod(leading), -(-product.x.shape[-1] // SCALE_BLOCK)
    x_is_vector = is_one(scale_x) or scale_x in ((m,), (m, 1), leading, (*leading, 1))
    w_is_vector = is_one(scale_w) or scale_w in ((rows,), (rows, 1), (1, rows))
    x_is_blocks = scale_x in ((m, k_blocks), (*leading, k_blocks))
    w_is_blocks = scale_w == (-(-rows // SCALE_BLOCK), k_blocks)
    return x_is_vector and w_is_vector, x_is_blocks and w_is_blocks


def is_one(shape: tuple[Any, ...]) -> bool:
    return all(extent == 1 for extent in shape)


def _refuse_scales(product: Product) -> NoReturn:
    m, rows = math.prod(product.x.shape[:-1]), _rows(product)
    k_blocks, row_blocks = -(-product.x.shape[-1] // SCALE_BLOCK), -(-rows // SCALE_BLOCK)
    raise errors.ShapeError(
        f"{product.name}: scale_x has shape {shape_text(product.scale_x)} and scale_w {shape_text(product.scale_w)}, "
        f"beside x {shape_text(product.x)} and weight {shape_text(product.weight)}; expected one element or an element "
        f"for each row: scale_x (1,), ({m},) or ({m}, 1), and scale_w (1,), ({rows},), ({rows}, 1) or (1, {rows}); or "
        f"one for each block: scale_x ({m}, {k_blocks}) and scale_w ({row_blocks}, {k_blocks})"
    )


def check_dtype(product: Any, name: str, tensor: Any, expected: str) -> None:
    check_tensor(product, name, tensor)
    got = dtype_text(tensor.dtype)
    if got != expected:
        raise errors.DtypeError(f"{product.name}: {name} is {got}; expected {expected}; convert it")


def check_shape(product: Any, name: str, tensor: Any, expected: tuple[Any, ...], why: str) -> None:
    if tuple(tensor.shape) != expected:
        raise errors.ShapeError(f"{product.name}: {name} has shape {shape_text(tensor)}; expected {expected}{why}")


def _check_scale_out(product: Product, request: Request) -> None:
    needs = request.scale != "none" and request.d in _BYTE_DTYPES
    scale = product.scale_out
    if scale is None and needs:
        raise errors.OperandError(
            f"{product.name}: a {request.d} result needs scale_out, by which it is multiplied before it is rounded; "
            "expected a float32 tensor of one element in GPU memory; pass scale_out="
        )
    if scale is None:
        return
    if not needs:
        raise errors.OperandError(
            f"{product.name}: got scale_out, which goes with a float8 result; the result is {request.d}; leave it away"
        )
    check_dtype(product, "scale_out", scale, "float32")
    if not is_one(tuple(scale.shape)):
        raise errors.ShapeError(f"{product.name}: scale_out has shape {shape_text(scale)}; expected one element")
