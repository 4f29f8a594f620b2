"""Products whose result is in a format of blocks, such as "nvfp4", as operators of torch.

An operator gives two tensors: elements, and their factors in atoms. It takes the product of the operands' own factors,
where the format has some, and the result's own, which it does not give again.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _operations
from ._extras import join_result, split_factors, split_result
from ._torch_operators import LIBRARY, MODES, NAMESPACE
from ._torch_promises import promised
from ._torch_result import TensorCall, results_of
from ._torch_transforms import refuse_derivatives, refuse_of_out, register_batches

LISTED = "grouped_linear_weights"
"""The product of groups whose weights are a tensor for each."""
_SCALES = "Tensor? scale_x=None, Tensor? scale_w=None"
_OWN = "Tensor? scale_out=None, Tensor? own=None"
_LISTED = _OWN.replace(", ", ", Tensor[]? factors=None, ")
_PLAIN = f"Tensor x, Tensor weight, Tensor? bias=None, {_SCALES}"
_GROUPS = f"Tensor offsets, Tensor? bias=None, Tensor? index=None, {_SCALES}"
_OF_GROUPS = f"str form, str? gate=None, bool interleaved=False, {MODES}"
_ARGUMENTS = {
    "linear": f"{_PLAIN}, Tensor? residual=None, {_OWN}, *, str form, str? activation=None, bool allow_tf32=False, "
    f"bool use_fast_accum=False, {MODES}",
    "gated_linear": f'{_PLAIN}, {_OWN}, *, str form, str activation="silu", bool interleaved=False, {MODES}',
    "grouped_linear": f"Tensor x, Tensor weight, {_GROUPS}, {_OWN}, *, {_OF_GROUPS}",
    LISTED: f"Tensor x, Tensor[] weight, {_GROUPS}, {_LISTED}, *, {_OF_GROUPS}",
}
"""By product; `factors` are those of each weight of a list, in the place of `scale_w`."""
_TENSORS = {
    name: tuple(x.split("=")[0].split()[-1] for x in arguments.split(", *, ")[0].split(", "))
    for name, arguments in _ARGUMENTS.items()
}
"""The tensors by position."""
_operators: Any = getattr(torch.ops, NAMESPACE)


def operator_of(product: str) -> str:
    """Return the name of a product's operator for results in blocks."""
    return f"{product}_in_blocks"


def _function_of(product: str) -> str:
    return "grouped_linear" if product == LISTED else product


def _read(product: str, operands: tuple[Any, ...]) -> dict[str, Any]:
    """Return an operator's tensors by name; those of a list of factors as `scale_w`."""
    tensors = dict.fromkeys(_TENSORS[product]) | dict(zip(_TENSORS[product], operands, strict=False))
    factors = tensors.pop("factors", None)
    return tensors if factors is None else tensors | {"scale_w": list(factors)}


def _kernel(product: str) -> Any:
    def call(*operands: Any, form: str, **options: Any) -> Any:
        given = _read(product, operands)
        out, factors = options.pop("out", None), options.pop("factors_out", None)
        given["scale_out"] = given["scale_out"], given.pop("own")
        weight = given.pop("weight")
        weight = weight if isinstance(weight, list) else promised(weight)
        pair = None if out is None else (out, factors)
        function = getattr(_operations, _function_of(product))
        values, found = function(weight=weight, out=pair, out_dtype=form, **given, **options)
        return values, found[0] if isinstance(found, tuple) else found

    return call


def _kernel_out(product: str) -> Any:
    kernel = _kernel(product)

    def write(*operands: Any, **options: Any) -> None:
        kernel(*operands, **options)

    return write


def _written(product: str, operands: tuple[Any, ...], options: dict[str, Any]) -> list[tuple[Any, str]]:
    """Return shape and element type, by torch's name, of what a call gives."""
    tensors = _read(product, operands)
    tensors |= {"own_d": tensors.pop("own"), "out": options.get("out"), "factors_d": options.get("factors_out")}
    return list(results_of(TensorCall(_function_of(product), tensors, options)).written.values())


def _fake(product: str) -> Any:
    def give(*operands: Any, **options: Any) -> Any:
        if product == "gated_linear":
            options = {"activation": "silu"} | options
        found = _written(product, operands, options)
        return tuple(operands[0].new_empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in found)

    return give


def _fake_out(product: str) -> Any:
    fake = _fake(product)

    def give(*operands: Any, **options: Any) -> None:
        fake(*operands, **options)

    return give


def _register() -> None:
    """Register the operators in the library of the products."""
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    tags = (torch.Tag.pt2_compliant_tag, strides)
    for product, arguments in _ARGUMENTS.items():
        name = operator_of(product)
        LIBRARY.define(f"{name}({arguments}) -> (Tensor, Tensor)", tags=tags)
        LIBRARY.define(f"{name}.out({arguments}, Tensor(a!) out, Tensor(b!) factors_out) -> ()", tags=tags)
        LIBRARY.impl(name, _kernel(product), "CompositeExplicitAutograd")
        LIBRARY.impl(f"{name}.out", _kernel_out(product), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", _fake(product), lib=LIBRARY)
        torch.library.register_fake(f"{NAMESPACE}::{name}.out", _fake_out(product), lib=LIBRARY)
        refuse_derivatives(LIBRARY, name, ", of which a result in blocks has none; run it under torch.no_grad()")
        refuse_of_out(LIBRARY, name)
        register_batches(LIBRARY, name)


_register()


def call_in_blocks(product: str, operands: tuple[Any, ...], out: Any, options: dict[str, Any]) -> Any:
    """Call the operator of a product whose result is in blocks.

    Args:
        product: the operator of the product whose result is a tensor.
        operands: its tensors in front.
        out: a pair that is written to, or None.
        options: the others, by name, and what is asked for besides: `out_dtype` is the format.

    Returns:
        What the package's function does.

    Raises:
        AotGemmError: one of its classes, as of that.
    """
    names, function = _TENSORS[product], _function_of(product)
    given = dict(zip(names, operands, strict=False))
    asked = {x: y for x, y in options.items() if x not in names and x != "out_dtype" and y is not None}
    given |= {x: y for x, y in options.items() if x in names}
    form = options["out_dtype"]
    out, product_of_own, own, factors = split_result(function, form, out, given.get("scale_out"))
    scales = split_factors(function, given.get("scale_x"), given.get("scale_w"), product_of_own)
    given |= dict(zip(("scale_x", "scale_w", "scale_out"), scales, strict=True)) | {"own": own}
    tensors = [given.get(x) for x in names]
    operator = getattr(_operators, operator_of(product))
    if out is None:
        return join_result(operator.default(*tensors, form=form, **asked), own)
    operator.out(*tensors, form=form, **asked, out=out, factors_out=factors)
    return join_result((out, factors), own)
