"""The operations on rows for torch: the package's own functions, or operators where torch is to know of the call.

An operator gives a list of what is new: the result, then x + residual where there is a residual, then the scales where
they are computed. It writes nothing that it is given. A format of blocks, such as "nvfp4", is a word beside torch's
types of results, `form`.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from . import _row_options, _rows, _torch_blocks, errors
from ._dtypes import dtype_name
from ._routes import is_matrix
from ._torch_operators import LIBRARY, NAMESPACE
from ._torch_products import is_compiling, is_recorded
from ._torch_result import TensorCall, results_of
from ._torch_transforms import refuse_derivatives, register_batches

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec

    _Parameters = ParamSpec("_Parameters")

_TYPE = "ScalarType? out_dtype=None, str? form=None"
_NORM = f"Tensor? residual=None, Tensor? scale=None, *, float eps={{eps}}, {_TYPE}"
_WHERE = "Tensor? scale=None, Tensor? offsets=None, Tensor? index=None"
_GATE = f"(Tensor x, {_WHERE}, *, bool interleaved=False, {_TYPE}, int? groups=None) -> Tensor[]"
_TURNS = "bool interleaved=False, int? rotary_dim=None"
SCHEMAS = {
    "rms_norm": f"(Tensor x, Tensor? weight=None, {_NORM.format(eps=1e-6)}, float weight_offset=0.0, "
    "bool round_norm=False) -> Tensor[]",
    "layer_norm": f"(Tensor x, Tensor? weight=None, Tensor? bias=None, {_NORM.format(eps=1e-5)}) -> Tensor[]",
    "silu_mul": _GATE,
    "gelu_tanh_mul": _GATE,
    "rotary": f"(Tensor x, Tensor cos, Tensor sin, *, {_TURNS}) -> Tensor[]",
    "quantize": f'(Tensor x, {_WHERE}, *, ScalarType? dtype=None, str granularity="row", str? form=None, '
    "int? groups=None) -> Tensor[]",
    "rows": f"(Tensor x, Tensor? weight=None, Tensor? bias=None, Tensor? residual=None, {_WHERE}, *, str function, "
    f"bool interleaved=False, float eps=1e-6, float weight_offset=0.0, bool round_norm=False, "
    f'str granularity="row", {_TYPE}, int? groups=None) -> Tensor[]',
}
"""By operator."""
_TENSORS = {
    "rms_norm": ("x", "weight", "residual", "scale"),
    "layer_norm": ("x", "weight", "bias", "residual", "scale"),
    "silu_mul": ("x", "scale", "offsets", "index"),
    "gelu_tanh_mul": ("x", "scale", "offsets", "index"),
    "rotary": ("x", "cos", "sin"),
    "quantize": ("x", "scale", "offsets", "index"),
    "rows": ("x", "weight", "bias", "residual", "scale", "offsets", "index"),
}
"""The arguments by position."""
_TYPED = {"quantize": "dtype"}
"""What an operation calls the type of its result, where that is not out_dtype."""
_WRITTEN = ("out", "residual_out", "scale_out")
_operators: Any = getattr(torch.ops, NAMESPACE)


def _direct(name: str, tensors: dict[str, Any], options: dict[str, Any]) -> Any:
    """Call the package's function with an operator's arguments."""
    given = {key: value for key, value in options.items() if value is not None}
    form = given.pop("form", None)
    if form is not None and name == "quantize":  # which torch does on a GPU that the wheel is not for
        if tensors["scale"] is None and _row_options.format_scales(form) == "nvfp4":
            raise errors.OperandError("quantize: scale is missing; expected the tensor's own factor of nvfp4")
        where = {"offsets": tensors["offsets"], "index": tensors["index"], "groups": given.get("groups")}
        return _torch_blocks.round_here(tensors["x"], form, tensors["scale"], where)
    if form is not None:
        given[_TYPED.get(name, "out_dtype")] = form
    return getattr(_rows, name)(**{key: value for key, value in tensors.items() if value is not None}, **given)


def _kernel(name: str) -> Any:
    def call(*operands: Any, **options: Any) -> list[Any]:
        tensors = dict.fromkeys(_TENSORS[name]) | dict(zip(_TENSORS[name], operands, strict=False))
        found = _direct(name, tensors, options)
        results = list(found) if isinstance(found, tuple) else [found]
        # An operator gives nothing that it was given.
        if isinstance(results[-1], tuple):
            results[-1] = results[-1][0]
        elif tensors.get("scale") is not None:
            results.pop()
        return results

    return call


def _fake(name: str) -> Any:
    def give(*operands: Any, **options: Any) -> list[Any]:
        tensors = dict(zip(_TENSORS[name], operands, strict=False))
        written = results_of(TensorCall(name, tensors, options)).written.values()
        return [operands[0].new_empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in written]

    return give


_ADVICE = ", of which there is none; run it under torch.no_grad(), or use torch's own function"


def _is_leading(name: str) -> Any:
    """Return what says whether a batch is rows like any other: of x, with a residual's, and results of 16 bits."""

    def say(batched: list[bool], operands: tuple[Any, ...], options: dict[str, Any]) -> bool:
        given = dict(zip(_TENSORS[name], zip(batched, operands, strict=True), strict=False))
        if name in ("rotary", "quantize") or any(options.get(x) is not None for x in ("out_dtype", "form", "groups")):
            return False
        residual, is_of_rows = given.pop("residual", (True, None)), given.pop("x")[0]
        return is_of_rows and (residual[0] or residual[1] is None) and not any(x for x, _ in given.values())

    return say


def _register() -> None:
    """Register the operators in the library of the products."""
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    for name, schema in SCHEMAS.items():
        LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag, strides))
        LIBRARY.impl(name, _kernel(name), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", _fake(name), lib=LIBRARY)
        refuse_derivatives(LIBRARY, name, _ADVICE)
        register_batches(LIBRARY, name, _is_leading(name))


_register()

OF_CACHE = ("keys", "values", "key_cache", "value_cache", "cache_position")
"""What a rotary embedding has all of, or none."""
_CACHE_SCHEMA = (
    "(Tensor x, Tensor cos, Tensor sin, Tensor keys, Tensor values, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    f"Tensor cache_position, *, {_TURNS}) -> Tensor"
)
_CACHE_TENSORS = ("x", "cos", "sin", *OF_CACHE)


def _rotary_cache(*operands: Any, **options: Any) -> Any:
    """Call the package's function, with a copy of what does not lie as it takes it.

    A compiler may have laid out operands otherwise than the graph said. An x the function copies by itself.
    """
    tensors = dict(zip(_CACHE_TENSORS, operands, strict=True))
    for name, num_last in (("keys", 2), ("values", 2), ("cos", 1), ("sin", 1)):
        if not is_matrix(tensors[name], num_last):
            tensors[name] = tensors[name].contiguous()
    tensors["cache_position"] = tensors["cache_position"].contiguous()
    return _rows.rotary(**tensors, **options)


def _fake_rotary_cache(*operands: Any, **options: Any) -> Any:
    tensors = dict(zip(_CACHE_TENSORS, operands, strict=True))
    ((shape, dtype),) = results_of(TensorCall("rotary", tensors, options)).written.values()
    return operands[0].new_empty(shape, dtype=getattr(torch, dtype))


def _register_cache() -> None:
    """Register the operator that writes keys and values to a cache: the one on rows that writes what it is given."""
    name = "rotary_cache"
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    LIBRARY.define(f"{name}{_CACHE_SCHEMA}", tags=(torch.Tag.pt2_compliant_tag, strides))
    LIBRARY.impl(name, _rotary_cache, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", _fake_rotary_cache, lib=LIBRARY)
    refuse_derivatives(LIBRARY, name, _ADVICE)


_register_cache()


def run_operator(name: str, arguments: dict[str, Any]) -> Any:
    """Call an operator with the arguments of the package's function, by name.

    Raises:
        UnsupportedError: something is given that would be written.
    """
    if name == "rotary" and any(arguments.get(key) is not None for key in OF_CACHE):
        return _run_rotary_cache(arguments)
    tensors = {key: arguments.pop(key, None) for key in _TENSORS[name]}
    arguments = {key: value for key, value in arguments.items() if key not in OF_CACHE}
    given = [key for key in _WRITTEN if arguments.pop(key, None) is not None]
    if given:
        raise errors.UnsupportedError(
            f"{name}: got {', '.join(given)} where torch traces or records, where operators give new "
            "tensors; leave it away"
        )
    if "granularity" in arguments:
        _row_options.check_granularity(arguments["granularity"])
    key = _TYPED.get(name, "out_dtype")
    asked = arguments.pop(key, torch.float8_e4m3fn if name == "quantize" else None)
    form = asked if _row_options.format_scales(asked) else None
    if form is not None:
        arguments["form"] = form
    elif asked is not None:
        arguments[key] = asked if isinstance(asked, torch.dtype) else getattr(torch, dtype_name(key, asked))
    results = getattr(_operators, name).default(*tensors.values(), **arguments)
    scale = tensors.get("scale")
    if form is not None and scale is not None:
        results = (*results[:-1], (results[-1], scale))
    else:
        results = (*results, scale) if scale is not None else tuple(results)
    return results[0] if len(results) == 1 else results


def _run_rotary_cache(arguments: dict[str, Any]) -> Any:
    missing = [key for key in _CACHE_TENSORS if arguments.get(key) is None]
    if missing or arguments.get("out") is not None:
        raise errors.OperandError(
            f"rotary: got {'out=' if not missing else f'no {missing[0]}'} where torch traces or records; expected "
            f"{', '.join(_CACHE_TENSORS)}, and no out="
        )
    options = {key: value for key, value in arguments.items() if key not in (*_CACHE_TENSORS, "out")}
    return _operators.rotary_cache.default(*(arguments[key] for key in _CACHE_TENSORS), **options)


def _for_torch(full: Callable[_Parameters, Any]) -> Callable[_Parameters, Any]:
    """Have calls of one of the package's functions go to the operator where torch is to know of them."""
    name, names = full.__name__, tuple(inspect.signature(full).parameters)

    @wraps(full)
    def call(*operands: Any, **options: Any) -> Any:
        if not is_compiling():
            is_of_torch = any(isinstance(x, torch.Tensor) for x in (*operands[:2], options.get("x")))
            if not (is_of_torch and is_recorded(*operands, *options.values())):
                return getattr(_rows, name)(*operands, **options)
        return run_operator(name, {**dict(zip(names, operands, strict=False)), **options})

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
rows = _for_torch(_rows.rows)
