"""x beside a packed weight: as it is, of 16 bits, or rounded too, and which of the two is faster.

The one reads the weight's codes into operands of 16 bits, best for few rows; the other multiplies narrow elements by
the tensor cores, best for many, and its result has the errors of a rounded x too. So it has to be asked for.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from . import _operations, errors
from ._catalogue import BLOCK_FORMATS
from ._constant import ConstantWeight
from ._manifest import is_batch_invariant
from ._request import find, request_of
from ._row_table import RowPlan, plan_rows
from ._table import plan
from ._torch_blocks import quantize
from ._torch_modules import ROWS
from ._torch_packed import rows_and_atoms
from ._weight_format import FORMATS, NVFP4_ROWS, format_named

WIDE, AUTO = "16-bit", "auto"
_BESIDE = {"nvfp4": "nvfp4", "mxfp4": "mxfp8"}
"""What x is rounded to, by what codes and factors of a weight in rows are called."""
NARROW = _BESIDE["nvfp4"]
"""What inputs of a mixture's experts are rounded to."""
ACTIVATION_FORMATS = (WIDE, *_BESIDE.values(), AUTO)
_LEAST_K = {"nvfp4": 32, "mxfp8": 128}
"""What k is a multiple of, of kernels that are not the fallback: of MXFP4 beside MXFP8 TMA loads whole 128.
Source: PTX ISA, cp.async.bulk.tensor, .b4x16_p64."""
_REMEMBERED = 1 << 14
"""Problems whose answer is kept."""


class Narrow(NamedTuple):
    """A product whose x is rounded, by its sizes and types."""

    m: int
    n: int
    k: int
    dtype: str
    """Of x and of the result."""
    weight_format: str
    bias: bool
    deterministic: bool


def is_rounding(asked: str) -> bool:
    """Say whether x is rounded, whatever the tables have as the faster."""
    return asked in _BESIDE.values()


def narrow_beside(weight_format: str) -> str:
    """Return the format that x is rounded to beside a weight in rows."""
    return _BESIDE[format_named(weight_format).elements]


def _types_beside(weight_format: str) -> tuple[str, dict[str, str]]:
    """Return x's type, and the weight's, as `plan` has them."""
    return narrow_beside(weight_format), {"weight_dtype": format_named(weight_format).elements}


def takes_scale(weight_format: str) -> bool:
    """Say whether x that is rounded beside a weight in rows has a factor of its own."""
    return BLOCK_FORMATS[narrow_beside(weight_format)].has_tensor_factor


def check_format(asked: Any, weight_format: str) -> None:
    """Refuse what no activations are, and formats of activations that a weight's bytes do not lie for.

    Raises:
        UnsupportedError: there is no such format.
        FormatError: the bytes are not in rows, or x is rounded to another format beside them.
    """
    if asked not in ACTIVATION_FORMATS:
        known = ", ".join(map(repr, ACTIVATION_FORMATS))
        raise errors.UnsupportedError(f"linear: activation_format is {errors.show(asked)}; expected one of {known}")
    if asked == WIDE:
        return
    form = format_named(weight_format)
    if not form.in_rows:
        known = " or ".join(x.name for x in FORMATS if x.in_rows)
        anew = f"round a weight to one by quantize(model, ..., activation_format={asked!r})"
        if form.rows is not None:
            known = form.rows.name
            anew = f'pack it anew by packed.repack("{known}"), or quantize the model by quantize(model, '
            anew += f'"{form.name}", activation_format={asked!r})'
        raise errors.FormatError(
            f"linear: activation_format is {asked!r}, and the weight is packed as {weight_format}, which kernels with "
            f"x of 16 bits alone read; expected {known}; {anew}"
        )
    beside = narrow_beside(weight_format)
    if asked not in (AUTO, beside):
        raise errors.FormatError(
            f"linear: activation_format is {asked!r}, and beside a weight that is packed as {weight_format} x is "
            f"rounded to {beside}; expected {beside!r}, {AUTO!r} or {WIDE!r}"
        )


def why_not_narrow(
    n: int, k: int, dtype: torch.dtype, *, bias: bool, weight_format: str = NVFP4_ROWS.name, **others: Any
) -> str | None:
    """Say why this wheel has no tuned products of a weight (n, k) with x that is rounded; None where it has.

    Args:
        n: rows of the weight, with a gate of one half.
        k: columns of it.
        dtype: of results.
        bias: whether one is added.
        weight_format: of the weight, in rows.
        others: what `plan` has of groups, gates and results of another type beside these.
    """
    of_x, of_weight = _types_beside(weight_format)
    asked = {"bias": bias, "out_dtype": str(dtype).removeprefix("torch."), **of_weight, **others}
    try:
        tiers = [plan(m, n, k, of_x, **asked).tier for m in ROWS]
    except (errors.UnsupportedError, errors.DtypeError, errors.ShapeError) as error:
        return str(error)
    if "fallback" not in tiers:
        return None
    quantum = _LEAST_K[of_x]
    return f"n {n} and k {k} get the fallback; expected k a multiple of {quantum}, n of 8"


def is_narrow(asked: str, x: Any, bias: Any, options: dict[str, Any]) -> bool:
    """Say whether x is rounded: where that was asked for, or where the tables say that it is faster and it may be.

    It may not where a row's bits are not to depend on the other rows, by whose number the tables decide.
    """
    if asked != AUTO or is_batch_invariant(options):
        return is_rounding(asked)
    k = x.shape[-1]
    problem = Narrow(
        m=x.numel() // k if k else 0,
        n=options["columns"],
        k=k,
        dtype=str(x.dtype).removeprefix("torch."),
        weight_format=options["weight_format"],
        bias=bias is not None,
        deterministic=bool(options.get("deterministic")),
    )
    return narrow_is_faster(problem, x.device.index if x.is_cuda else None)


def rounding_us(asked: RowPlan, name: str = NARROW) -> float:
    """Return what rounding x to a format takes, about, where the table has no time for so many rows and columns.

    It has one at the edge of their bucket: x is taken to get the same part of its roofline, and no less time than at
    the edge of the bucket of one row, where most of it is the launch.
    """
    least = asked.roofline_us or 0.0
    if asked.time_us is not None or asked.bucket is None:
        return asked.time_us or least

    def edge_of(plan: RowPlan) -> RowPlan:
        sizes = plan.bucket or (plan.rows, plan.cols)
        return plan_rows(plan.function, *sizes, plan.dtype, out_dtype=name, target=plan.target)

    edge = edge_of(asked)
    first = edge_of(plan_rows(asked.function, 1, asked.cols, asked.dtype, out_dtype=name, target=asked.target))
    if edge.time_us is None or first.time_us is None:
        return least
    return max(first.time_us, least * edge.time_us / (edge.roofline_us or edge.time_us))


@lru_cache(maxsize=_REMEMBERED)
def narrow_is_faster(problem: Narrow, device: int | None = None, target: str | None = None) -> bool:
    """Say whether rounding x and multiplying narrow elements takes less time than x of 16 bits, by the wheel's tables.

    The times are those of the tables, measured or predicted, where both products have one for the problem, and where
    one has none the least that they can take by the rates of the table's target. What x's own factor takes to be found
    is not counted. Where the wheel has no kernel that rounds x, or none for the narrow product, x is not rounded.

    Args:
        problem: the product.
        device: of x, whose table `plan` asks.
        target: as `plan` has it.
    """
    del device  # by which answers are kept apart
    m, n, k, dtype, weight_format, bias, *_ = problem
    modes = {"deterministic": problem.deterministic, "target": target}
    of_x, of_weight = _types_beside(weight_format)
    try:
        rounding = plan_rows("quantize", m, k, dtype, out_dtype=of_x, target=target)
        before = rounding_us(rounding, of_x)
        narrow = plan(m, n, k, of_x, bias=bias, out_dtype=dtype, **of_weight, **modes)
        wide = plan(m, n, k, dtype, weight_dtype=weight_format, bias=bias, **modes)
    except (errors.UnsupportedError, errors.DtypeError, errors.ShapeError):
        return False
    if "fallback" in (narrow.tier, rounding.tier) or 0 in (m, n, k):
        return False
    if narrow.time_us is not None and wide.time_us is not None:
        return before + narrow.time_us < wide.time_us
    return before + (narrow.roofline_us or 0.0) < (wide.roofline_us or 0.0)


@cache
def _refuse_absent(weight_format: str, dtype: torch.dtype, *, bias: bool) -> None:
    """Refuse a narrow product that the wheel has no kernels for (UnsupportedError), before x is rounded."""
    of_x, of_weight = _types_beside(weight_format)
    find(request_of(of_x, bias=bias, out_dtype=str(dtype).removeprefix("torch."), **of_weight))


def narrow_linear(operands: tuple[Any, ...], out: Any, options: dict[str, Any]) -> Any:
    """Compute x @ weight^T + bias with x rounded, to NVFP4 beside a weight of NVFP4, to MXFP8 beside one of MXFP4.

    Args:
        operands: x (..., k); the weight's bytes, in rows; a bias (n,) or None; the weight's own factor, or None; and
            x's, a float32 tensor of one element, or None, where it is found of x, or the format has none.
        out: (..., n), or None.
        options: as `packed_linear` has them.

    Raises:
        OperandError: a row's bits are not to depend on the others, and x's own factor is not given.
        UnsupportedError: the wheel has no kernels for it.
    """
    x, data, bias, scale, own = operands
    name = options["weight_format"]
    if own is None and takes_scale(name) and is_batch_invariant(options):
        raise errors.OperandError(
            "linear: x is rounded to nvfp4 by a factor that is found of all its rows, and a row's bits are not to "
            "depend on the others; expected scale_x, x's own factor as of a calibration; give it, or leave x as it is: "
            "activation_format='16-bit'"
        )
    is_promised = isinstance(data, ConstantWeight) and data.is_kept
    tensor = data.tensor if isinstance(data, ConstantWeight) else data
    form = format_named(name)
    elements, atoms = rows_and_atoms(form, tensor, (options["columns"], x.shape[-1]))
    weight = ConstantWeight(elements, elements.data_ptr()) if is_promised else elements
    dtype = options.get("out_dtype") or x.dtype
    _refuse_absent(name, dtype, bias=bias is not None)
    rows, scale_x = quantize(x, narrow_beside(name), scale=own)
    scale_w = atoms if scale is None else (atoms, scale)
    modes = {name: options[name] for name in ("deterministic", "batch_invariant") if options.get(name)}
    return _operations.linear(rows, weight, bias, scale_x=scale_x, scale_w=scale_w, out=out, out_dtype=dtype, **modes)
