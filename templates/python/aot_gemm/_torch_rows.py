"""The operations on rows for torch: the package's own functions, or operators where torch is to know of the call.

An operator gives a list of what is new: the result, then x + residual where there is a residual, then the scales where
they are computed. It writes nothing that it is given.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _rows, errors
from ._dtypes import dtype_name
from ._torch_operators import LIBRARY, NAMESPACE
from ._torch_products import is_compiling, is_recorded
from ._torch_result import TensorCall, results_of

_NORM = "Tensor? residual=None, Tensor? scale=None, *, float eps={eps}, ScalarType? out_dtype=None"
_GATE = "(Tensor x, Tensor? scale=None, *, bool interleaved=False, ScalarType? out_dtype=None) -> Tensor[]"
SCHEMAS = {
    "rms_norm": f"(Tensor x, Tensor? weight=None, {_NORM.format(eps=1e-6)}, float weight_offset=0.0, "
    "bool round_norm=False) -> Tensor[]",
    "layer_norm": f"(Tensor x, Tensor? weight=None, Tensor? bias=None, {_NORM.format(eps=1e-5)}) -> Tensor[]",
    "silu_mul": _GATE,
    "gelu_tanh_mul": _GATE,
    "rotary": "(Tensor x, Tensor cos, Tensor sin, *, bool interleaved=False, int? rotary_dim=None) -> Tensor[]",
    "quantize": '(Tensor x, Tensor? scale=None, *, ScalarType dtype, str granularity="row") -> Tensor[]',
}
"""By operator."""
_TENSORS = {
    "rms_norm": ("x", "weight", "residual", "scale"),
    "layer_norm": ("x", "weight", "bias", "residual", "scale"),
    "silu_mul": ("x", "scale"),
    "gelu_tanh_mul": ("x", "scale"),
    "rotary": ("x", "cos", "sin"),
    "quantize": ("x", "scale"),
}
"""The arguments by position."""
_WRITTEN = ("out", "residual_out", "scale_out")
_operators: Any = getattr(torch.ops, NAMESPACE)


def _direct(name: str, tensors: dict[str, Any], options: dict[str, Any]) -> Any:
    """Call the package's function with an operator's arguments."""
    if name == "quantize":
        return _rows.quantize(tensors["x"], options["dtype"], options["granularity"], scale=tensors["scale"])
    given = {key: value for key, value in options.items() if value is not None}
    return getattr(_rows, name)(**tensors, **given)


def _kernel(name: str) -> Any:
    def call(*operands: Any, **options: Any) -> list[Any]:
        defaults = {"dtype": None, "granularity": "row"} if name == "quantize" else {}
        tensors = dict.fromkeys(_TENSORS[name]) | dict(zip(_TENSORS[name], operands, strict=False))
        found = _direct(name, tensors, defaults | options)
        results = list(found) if isinstance(found, tuple) else [found]
        return (
            results[:-1] if tensors.get("scale") is not None else results
        )  # an operator gives nothing that it was given

    return call


def _fake(name: str) -> Any:
    def give(*operands: Any, **options: Any) -> list[Any]:
        tensors = dict(zip(_TENSORS[name], operands, strict=False))
        written = results_of(TensorCall(name, tensors, options)).written.values()
        return [operands[0].new_empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in written]

    return give


def _refuse_gradient(name: str) -> Any:
    """Return what torch calls in front of an operator where it might record a gradient."""
    operator = getattr(_operators, name).default

    def check(keys: Any, *operands: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in operands):
            raise errors.GradientError(
                f"{name}: an operand requires a gradient, of which there is none; run it under torch.no_grad(), or use "
                "torch's own function"
            )
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - as torch.library's own kernels of autograd
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *operands, **options)  # noqa: SLF001

    return check


def _register() -> None:
    """Register the operators in the library of the products."""
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    for name, schema in SCHEMAS.items():
        LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag, strides))
        LIBRARY.impl(name, _kernel(name), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", _fake(name), lib=LIBRARY)
        LIBRARY.impl(name, _refuse_gradient(name), "Autograd", with_keyset=True)


_register()


def _dispatch(name: str, tensors: dict[str, Any], written: dict[str, Any], options: dict[str, Any]) -> Any:
    """Call an operator where torch is to know of it, else the package's function."""
    x, scale = tensors["x"], tensors.get("scale")
    given = {key: value for key, value in written.items() if value is not None}
    is_told = is_compiling() or (isinstance(x, torch.Tensor) and is_recorded(*tensors.values(), *given.values()))
    if not is_told:
        if name == "quantize":
            return _rows.quantize(x, options["dtype"], options["granularity"], scale=scale, **given)
        return getattr(_rows, name)(**tensors, **given, **options)
    if given:
        raise errors.UnsupportedError(
            f"{name}: got {', '.join(given)} where torch traces or records, where operators give new "
            "tensors; leave it away"
        )
    for key in ("out_dtype", "dtype"):
        if options.get(key) is not None and not isinstance(options[key], torch.dtype):
            options = {**options, key: getattr(torch, dtype_name(key, options[key]))}
    results = getattr(_operators, name).default(*tensors.values(), **options)
    results = (*results, scale) if scale is not None else tuple(results)
    return results[0] if len(results) == 1 else results


def _written(out: Any, residual_out: Any = None, scale_out: Any = None) -> dict[str, Any]:
    return dict(zip(_WRITTEN, (out, residual_out, scale_out), strict=True))


def rms_norm(
    x: Any,
    weight: Any = None,
    *,
    eps: float = 1e-6,
    residual: Any = None,
    weight_offset: float = 0.0,
    round_norm: bool = False,
    out: Any = None,
    out_dtype: Any = None,
    scale: Any = None,
    residual_out: Any = None,
    scale_out: Any = None,
) -> Any:
    """Compute the package's `rms_norm`, under torch.compile and torch.export too.

    Arguments, result and errors are those of the package's function. Where a compiler or a dispatch mode traces,
    nothing that is given can be written: UnsupportedError. No gradient is recorded: GradientError. So it is of all
    functions below.
    """
    tensors = {"x": x, "weight": weight, "residual": residual, "scale": scale}
    options = {"eps": eps, "out_dtype": out_dtype, "weight_offset": weight_offset, "round_norm": round_norm}
    return _dispatch("rms_norm", tensors, _written(out, residual_out, scale_out), options)


def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    residual: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    scale: Any = None,
    residual_out: Any = None,
    scale_out: Any = None,
) -> Any:
    """Compute the package's `layer_norm`, as `rms_norm` is here."""
    tensors = {"x": x, "weight": weight, "bias": bias, "residual": residual, "scale": scale}
    options = {"eps": eps, "out_dtype": out_dtype}
    return _dispatch("layer_norm", tensors, _written(out, residual_out, scale_out), options)


def silu_mul(
    x: Any,
    *,
    interleaved: bool = False,
    out: Any = None,
    out_dtype: Any = None,
    scale: Any = None,
    scale_out: Any = None,
) -> Any:
    """Compute the package's `silu_mul`, as `rms_norm` is here."""
    options = {"interleaved": interleaved, "out_dtype": out_dtype}
    return _dispatch("silu_mul", {"x": x, "scale": scale}, _written(out, None, scale_out), options)


def gelu_tanh_mul(
    x: Any,
    *,
    interleaved: bool = False,
    out: Any = None,
    out_dtype: Any = None,
    scale: Any = None,
    scale_out: Any = None,
) -> Any:
    """Compute the package's `gelu_tanh_mul`, as `rms_norm` is here."""
    options = {"interleaved": interleaved, "out_dtype": out_dtype}
    return _dispatch("gelu_tanh_mul", {"x": x, "scale": scale}, _written(out, None, scale_out), options)


def rotary(
    x: Any, cos: Any, sin: Any, *, interleaved: bool = False, rotary_dim: int | None = None, out: Any = None
) -> Any:
    """Compute the package's `rotary`, as `rms_norm` is here."""
    options = {"interleaved": interleaved, "rotary_dim": rotary_dim}
    return _dispatch("rotary", {"x": x, "cos": cos, "sin": sin}, _written(out), options)


def quantize(
    x: Any,
    dtype: Any = torch.float8_e4m3fn,
    granularity: str = "row",
    *,
    scale: Any = None,
    out: Any = None,
    scale_out: Any = None,
) -> tuple[Any, Any]:
    """Compute the package's `quantize`, as `rms_norm` is here."""
    _rows.check_granularity(granularity)
    options = {"dtype": dtype, "granularity": granularity}
    found: tuple[Any, Any] = _dispatch("quantize", {"x": x, "scale": scale}, _written(out, None, scale_out), options)
    return found
