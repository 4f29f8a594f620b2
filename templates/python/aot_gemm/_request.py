"""Which operation a product needs: what there can be, what this wheel has, and what comes nearest."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn, TypedDict

from . import _extras, _library, errors
from ._catalogue import BLOCK_FORMATS, CATALOGUE, BlockFormat, Row
from ._dtypes import dtype_name
from ._enumerations import EPILOGUES, WEIGHT_FORMATS
from ._library import Library
from ._weight_format import format_named

_GATES = {"swiglu": "silu", "geglu": "gelu_tanh"}
"""The activation of a gate."""
_BYTE_DTYPES = {"float8_e4m3fn", "float8_e5m2", "int8"}
_NOT_EXTRA = ("none", "bias", "residual")
_FACTORS = {"block": "factors of blocks", "vector": "factors of rows"}


def _is_packed(dtype: str, weight_dtype: object) -> bool:
    """Say whether a weight beside elements of 16 bits is named by a format of packed weights."""
    is_format = isinstance(weight_dtype, str) and weight_dtype in WEIGHT_FORMATS[1:]
    return is_format and dtype in ("bfloat16", "float16")


class Computed(TypedDict, total=False):
    """What a product computes, as `plan` is told it."""

    bias: bool
    activation: str | None
    residual: bool
    gated: bool
    many: bool
    weight_dtype: Any
    scales: str | None
    out_dtype: Any
    allow_tf32: bool
    use_fast_accum: bool


class Request(NamedTuple):
    """All that the operation of a product depends on. Element types are torch's names."""

    product: str
    a: str
    b: str
    d: str
    scale: str
    """`none`, `vector`, `block` or `atoms`."""
    factor: str
    """Of `atoms`, of which type the factors are."""
    factor_d: str
    """Of which type the factors are that are written with D; `float32` where there are none."""
    epilogue: str
    """An activation, a gate, or `none`."""
    grouping: str
    """`dense`, `batched`, `grouped`, `gathered` or `kgrouped`."""
    bias: bool
    residual: bool
    allow_tf32: bool
    use_fast_accum: bool

    @property
    def row_epilogue(self) -> str:
        """Return the epilogue that an operation needs for what is asked for."""
        if self.epilogue != "none":
            return self.epilogue
        if self.residual:
            return "residual"
        has_own_bias = self.scale == "vector" or _is_packed(self.a, self.b)
        return "bias" if self.bias and not has_own_bias else "none"

    @property
    def _factors(self) -> str:
        if self.scale == "atoms":
            named = {x.element: name for name, x in BLOCK_FORMATS.items() if x.factor == self.factor}
            both = dict.fromkeys(named.get(x, f"blocks in {self.factor}") for x in (self.a, self.b))
            return " and ".join(both)
        return "blocks" if self.scale == "block" else "rows"

    @property
    def text(self) -> str:
        """Say in words what is asked for."""
        epilogue = f"{_GATES[self.epilogue]} gate" if self.epilogue in _GATES else self.epilogue
        steps = [] if epilogue == "none" else [epilogue]
        steps += [name for name, is_there in (("bias", self.bias), ("residual", self.residual)) if is_there]
        steps += [] if self.scale == "none" else [f"factors of {self._factors}"]
        return f"{self.a} by {self.b} into {_named(self.d, self.factor_d)}" + (
            f" with {', '.join(steps)}" if steps else ""
        )


def _scale_of(scales: object, dtype: str, weight_dtype: str, out_dtype: str | None) -> str:
    """Return the factors that are asked for, or that the element types need.

    Raises:
        UnsupportedError: there are no such factors.
    """
    if _is_packed(dtype, weight_dtype):
        return "vector" if format_named(weight_dtype).has_row_factors else "none"
    if scales is None:
        is_exact = dtype == "int8" and out_dtype in (None, "int32")
        return "vector" if {dtype, weight_dtype} <= _BYTE_DTYPES and not is_exact else "none"
    if isinstance(scales, str) and scales in ("vector", "block"):
        return scales
    raise errors.UnsupportedError(f"scales is {errors.show(scales)}; expected None, 'vector' or 'block'")


def request_of(
    dtype: Any,
    *,
    bias: bool = False,
    activation: str | None = None,
    residual: bool = False,
    gated: bool = False,
    many: bool = False,
    weight_dtype: Any = None,
    scales: str | None = None,
    out_dtype: Any = None,
    allow_tf32: bool = False,
    use_fast_accum: bool = False,
) -> Request:
    """Return what operation a product needs, by the arguments of `plan`.

    Raises:
        DtypeError: there is no such element type.
        UnsupportedError: there is no such activation, or no such factors.
    """
    allowed = bool(allow_tf32), bool(use_fast_accum)
    asked = "silu" if gated and activation is None else activation
    epilogue = EPILOGUES[_extras.activation_number("gated_linear" if gated else "linear", asked)]
    if many:
        epilogue = "many" if (epilogue, residual) == ("none", False) else _refuse_steps_of_many()
    found = _block_formats(dtype, dtype if weight_dtype is None else weight_dtype)
    if found and scales is None:
        d, factor_d = _result(out_dtype)
        types = *(x.element for x in found), d, "atoms", found[0].factor, factor_d
        return Request("plan", *types, epilogue, "dense", bool(bias), bool(residual), *allowed)
    a = dtype_name("dtype", dtype)
    is_packed = _is_packed(a, weight_dtype)
    b = a if weight_dtype is None else weight_dtype if is_packed else dtype_name("weight_dtype", weight_dtype)
    d = None if out_dtype is None else dtype_name("out_dtype", out_dtype)
    scale = _scale_of(scales, a, b, d)
    if d is None and is_packed:
        d = a
    if d is None:
        d = "bfloat16" if scale != "none" else "int32" if a == "int8" else a
    return Request(
        "plan", a, b, d, scale, "float32", "float32", epilogue, "dense", bool(bias), bool(residual), *allowed
    )


def _result(out_dtype: Any) -> tuple[str, str]:
    """Return the element type of a result beside narrow factors, and that of its own blocks' factors."""
    if isinstance(out_dtype, str) and out_dtype in BLOCK_FORMATS:
        form = BLOCK_FORMATS[out_dtype]
        return form.element, form.factor
    return "bfloat16" if out_dtype is None else dtype_name("out_dtype", out_dtype), "float32"


def _named(element: str, factor: str) -> str:
    """Return the name of a result's elements together with their factors."""
    return next((x for x, y in BLOCK_FORMATS.items() if (y.element, y.factor) == (element, factor)), element)


def _block_formats(dtype: object, weight_dtype: object) -> tuple[BlockFormat, ...]:
    """Return the formats of blocks of x and of a weight; none where it is not both that have one.

    Raises:
        UnsupportedError: their factors are of two types.
    """
    names = [x for x in (dtype, weight_dtype) if isinstance(x, str) and x in BLOCK_FORMATS]
    found = tuple(BLOCK_FORMATS[x] for x in names)
    if len(found) == 1 or not found:
        return ()
    if found[0].factor == found[1].factor:
        return found
    raise errors.UnsupportedError(
        f"dtype is {dtype} and weight_dtype {weight_dtype}; expected formats whose factors are of one type, as mxfp8 "
        "and mxfp4"
    )


def _refuse_steps_of_many() -> NoReturn:
    """Raise that nothing but a bias is added to the products of several weights."""
    raise errors.UnsupportedError(
        "many goes with bias alone; got an activation, a gate or a residual beside it; leave them away"
    )


def parse(text: str) -> Request:
    """Read a request as the binding writes it: words, and bits for the last four."""
    *words, bias, residual, allow_tf32, use_fast_accum = text.split()
    return Request(*words, *(bit == "1" for bit in (bias, residual, allow_tf32, use_fast_accum)))


def _types(row: Row) -> tuple[str, str, str]:
    """Return the element types in memory."""
    return ("float32",) * 3 if row.a == "tf32" else (row.a, row.b, row.d)


def _computes(row: Row, request: Request) -> bool:
    """Say whether an operation computes what is asked for: the twin of `computes` in request.cc."""
    return (
        (*_types(row), row.scale) == (request.a, request.b, request.d, request.scale)
        and (row.scale != "atoms" or row.factor == request.factor)
        and row.factor_d == request.factor_d
        and row.epilogue == request.row_epilogue
        and row.grouping == request.grouping
        and (row.epilogue == "residual") == request.residual
        and (row.has_bias == 1 or not request.bias)
        and (row.is_fast == 0 or request.use_fast_accum)
        and (row.a != "tf32" or request.allow_tf32)
    )


def _serving(request: Request) -> list[Row]:
    """Return the operations that compute what is asked for: first what is allowed beside the most exact one."""
    return sorted((x for x in CATALOGUE if _computes(x, request)), key=lambda x: -(x.is_fast + (x.a == "tf32")))


def _is_there(call: str) -> bool:
    return any(x.has(call) for x in _library.here())


def find(request: Request) -> list[tuple[Library, str]]:
    """Return the libraries that may compute a product, in the order in which they are asked, and by which operation.

    Raises:
        DtypeError: there is no product of the element types.
        UnsupportedError: there is no such operation, or this wheel has no kernels for it.
    """
    calls = [x.call for x in _serving(request)]
    found = ((library, next(filter(library.has, calls), None)) for library in _library.here())
    return [(library, call) for library, call in found if call is not None] or refuse(request)


def refuse(request: Request) -> NoReturn:
    """Raise that this wheel has no operation for what is asked for.

    Raises:
        DtypeError: there is no product of the element types.
        UnsupportedError: there is no such operation, or this wheel has no kernels for it.
    """
    named = [x for x in CATALOGUE if request.grouping != "dense" or x.grouping == "dense"]
    of_types = [x for x in named if _types(x) == (request.a, request.b, request.d)]
    if not of_types:
        raise errors.DtypeError(
            f"{request.product}: there is no product of {request.a} by {request.b} into {request.d}; expected one of "
            f"{_products_of(request.a)}; convert an operand, or give another out_dtype"
        )
    here = [x for x in named if _is_there(x.call)]
    of_these = [x.call for x in here if x in of_types]
    has = f"of these types it has {', '.join(of_these)}" if of_these else f"it has {_list(here)}, none of these types"
    serving = _serving(request)
    what = f"this wheel has no kernels for {serving[0].call}" if serving else "no wheel has"
    what += f" ({request.text})" if serving else f" {request.text}"
    has = has if serving else f"there are {_list(of_types)}; {has.replace('it has', 'this one has')}"
    advice = [_nearest(request, here)]
    advice += [f"build a wheel with it: {_library.build_command(serving[0].tag)}"] if serving else []
    if request.bias and request.product != "plan":
        advice += ["an output is named by keyword, out=, since the third argument is a bias"]
    raise errors.UnsupportedError(f"{request.product}: {what}; {has}; {'; '.join(advice)}")


def _list(rows: list[Row]) -> str:
    return ", ".join(x.call for x in rows) or "none"


def _products_of(a: str) -> str:
    """List the element types that are multiplied, with a left operand of a type where there are any."""
    known = dict.fromkeys(_types(x) for x in CATALOGUE if not _is_packed(x.a, x.b))
    of_left = [x for x in known if x[0] == a] or known
    return ", ".join(f"{left} by {right} into {result}" for left, right, result in of_left)


def _nearest(request: Request, here: list[Row]) -> str:
    """Say which operation of this wheel comes nearest, and what is left to do."""
    steps = ((row, _left_to_do(request, row)) for row in here)
    possible = [(row, left) for row, left in steps if left is not None]
    if not possible:
        return "none of them comes near"
    row, left = min(possible, key=lambda x: (len(x[1]), _types(x[0])[:2] != (request.a, request.b)))
    return f"the nearest that it has is {row.call}: {', and '.join(left)}"


def _left_to_do(request: Request, row: Row) -> list[str] | None:
    """Say what is to be done beside an operation to have what is asked for; None where it does not serve."""
    left = []
    a, b, d = _types(row)
    if (a, b) != (request.a, request.b):
        if a != b or row.scale != "none" or a not in ("bfloat16", "float16"):
            return None
        is_dequantized = request.scale == "atoms"
        left += [f"{'dequantize' if is_dequantized else 'convert'} the operands to {a}"]
        left += ["multiply by the factors"] if request.scale != "none" and not is_dequantized else []
    elif (row.scale, row.factor) != (request.scale, request.factor):
        if "none" in (row.scale, request.scale):
            return None
        left += [f"give {_FACTORS.get(row.scale, f'factors of {row.factor}')}"]
    if row.is_fast and not request.use_fast_accum:
        left += ["use_fast_accum=True"]
    if row.a == "tf32" and not request.allow_tf32:
        left += ["allow_tf32=True"]
    if (d, row.factor_d) != (request.d, request.factor_d) and (a, b) == (request.a, request.b):
        left += [f"out_dtype={_named(d, row.factor_d)}"]
    return None if _adds_more(request, row) else left + _steps_left(request, row)


def _adds_more(request: Request, row: Row) -> bool:
    """Say whether an operation does what is not asked for, or not without more."""
    if row.epilogue not in _NOT_EXTRA and row.epilogue != request.epilogue:
        return True
    if row.epilogue == "residual" and not (request.residual and request.epilogue == "none"):
        return True
    return row.epilogue == "bias" and not request.bias


def _steps_left(request: Request, row: Row) -> list[str]:
    """Say which steps an operation leaves to the caller: gathering rows, and those of an epilogue."""
    left = []
    if (request.grouping, row.grouping) == ("gathered", "grouped"):
        left += ["give the rows that the index names, and no index"]
    if request.bias and row.has_bias == 0:
        left += ["add the bias to its result"]
    if request.epilogue != row.epilogue and request.epilogue in _GATES:
        left += [f"compute both halves by linear, and {_GATES[request.epilogue]}(gate) * linear of them"]
    elif request.epilogue not in (row.epilogue, "none"):
        left += [f"apply {request.epilogue} to its result"]
    if request.residual and row.epilogue != "residual":
        left += ["add the residual to its result"]
    return left
