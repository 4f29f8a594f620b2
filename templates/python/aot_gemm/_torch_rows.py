"""The operations on rows for torch: the package's own functions, or operators where torch is to know of the call.

An operator gives a list of what is new: the result, then x + residual where there is a residual, then the scales where
they are computed. It writes nothing that it is given.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from . import _row_options, _rows, errors
from ._dtypes import dtype_name
from ._torch_operators import LIBRARY, NAMESPACE
from ._torch_products import is_compiling, is_recorded
from ._torch_result import TensorCall, results_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec

    _Parameters = ParamSpec("_Parameters")

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


def _run_operator(name: str, arguments: dict[str, Any]) -> Any:
    """Call an operator with the arguments of the package's function."""
    tensors = {key: arguments.pop(key, None) for key in _TENSORS[name]}
    given = [key for key in _WRITTEN if arguments.pop(key, None) is not None]
    if given:
        raise errors.UnsupportedError(
            f"{name}: got {', '.join(given)} where torch traces or records, where operators give new "
            "tensors; leave it away"
        )
    if name == "quantize":
        arguments = {"dtype": torch.float8_e4m3fn, "granularity": "row"} | arguments
        _row_options.check_granularity(arguments["granularity"])
    form = arguments.get("out_dtype")
    if _row_options.format_scales(form):
        raise errors.UnsupportedError(
            f"{name}: out_dtype is {form!r} where torch traces or records, where results are of torch's types alone; "
            "call it outside of what is compiled and under torch.no_grad(), or quantize its result"
        )
    for key in ("out_dtype", "dtype"):
        if arguments.get(key) is not None and not isinstance(arguments[key], torch.dtype):
            arguments[key] = getattr(torch, dtype_name(key, arguments[key]))
    results = getattr(_operators, name).default(*tensors.values(), **arguments)
    scale = tensors.get("scale")
    results = (*results, scale) if scale is not None else tuple(results)
    return results[0] if len(results) == 1 else results


def _for_torch(full: Callable[_Parameters, Any]) -> Callable[_Parameters, Any]:
    """Have calls of one of the package's functions go to the operator where torch is to know of them."""
    name, names = full.__name__, tuple(inspect.signature(full).parameters)

    @wraps(full)
    def call(*operands: Any, **options: Any) -> Any:
        if not is_compiling():
            is_of_torch = isinstance(operands[0] if operands else options.get("x"), torch.Tensor)
            if not (is_of_torch and is_recorded(*operands, *options.values())):
                return getattr(_rows, name)(*operands, **options)
        return _run_operator(name, {**dict(zip(names, operands, strict=False)), **options})

    call.__doc__ = f"""Compute the package's `{name}`, under torch.compile and torch.export too.

    Arguments, result and errors are those of the package's function. Where a compiler or a dispatch mode traces,
    nothing that is given can be written: UnsupportedError. No gradient is recorded: GradientError.
    """
    return call


rms_norm = _for_torch(_rows.rms_norm)
layer_norm = _for_torch(_rows.layer_norm)
silu_mul = _for_torch(_rows.silu_mul)
gelu_tanh_mul = _for_torch(_rows.gelu_tanh_mul)
rotary = _for_torch(_rows.rotary)
quantize = _for_torch(_rows.quantize)
