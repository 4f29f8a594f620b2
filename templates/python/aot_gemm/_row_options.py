"""What calls of operations on rows say beside tensors, checked and numbered as the library takes it."""

from __future__ import annotations

from typing import Any

from . import errors
from ._catalogue import BLOCK_FORMATS
from ._dtypes import dtype_number
from ._enumerations import BLOCKS, ELEMENTS, MX, NVFP4, OFFSETS_START, ONE_SCALE, ROW_FUNCTIONS

GRANULARITIES = ("row", "tensor", "block")
_FLAGS = {"row": 0, "block": BLOCKS, "tensor": ONE_SCALE}


def function_number(function: Any) -> int:
    """Return the number of a function that `rows` takes.

    Raises:
        UnsupportedError: there is none of this name, or it has operands of its own.
    """
    if function not in ROW_FUNCTIONS or function == "rotary":
        known = ", ".join(repr(x) for x in ROW_FUNCTIONS if x != "rotary")
        raise errors.UnsupportedError(f"rows: function is {errors.show(function)}; expected one of {known}")
    return ROW_FUNCTIONS.index(function)


def real(product: str, name: str, value: Any) -> float:
    """Return a number.

    Raises:
        OperandError: it is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise errors.OperandError(f"{product}: {name} is {errors.show(value)}; expected a number") from None


def element_and_flags(product: str, dtype: Any) -> tuple[int, int]:
    """Return the number of the result's element type, and the flags of its format, where it is of one."""
    form = format_scales(dtype)
    if form:
        return ELEMENTS.index(BLOCK_FORMATS[dtype].element), NVFP4 if form == "nvfp4" else MX
    return -1 if dtype is None else dtype_number(f"{product}: out_dtype", dtype), 0


def paired(found: Any, dtype: Any, scale: Any) -> Any:
    """Return results with the tensor's own scale beside the factors, where they are of a format that has one."""
    return (*found[:-1], (found[-1], scale)) if format_scales(dtype) == "nvfp4" else found


def start_flag(product: str, offsets: Any, groups: int | None) -> int:
    """Return the flag of offsets that begin with the first group's start, which the number of groups tells.

    Raises:
        ShapeError: offsets are not of so many groups.
        OperandError: there are no offsets.
    """
    if groups is None:
        return 0
    if offsets is None:
        raise errors.OperandError(f"{product}: got groups without offsets; expected where each group ends")
    shape = tuple(getattr(offsets, "shape", ()))
    if not isinstance(groups, int) or shape not in ((groups,), (groups + 1,)):
        raise errors.ShapeError(
            f"{product}: offsets has shape {shape} and groups is {errors.show(groups)}; expected (groups,), where each "
            "group ends, or (groups + 1,), the first group's start in front"
        )
    return OFFSETS_START if shape[0] > groups else 0


def check_granularity(granularity: Any) -> None:
    """Check what `quantize` is asked for.

    Raises:
        UnsupportedError: there is no such granularity.
    """
    if granularity not in GRANULARITIES:
        known = ", ".join(map(repr, GRANULARITIES))
        raise errors.UnsupportedError(f"quantize: granularity is {errors.show(granularity)}; expected one of {known}")


def format_scales(dtype: Any) -> str:
    """Return the scales of a format of blocks, in the words of the catalogue; empty where `dtype` names none."""
    form = BLOCK_FORMATS.get(dtype) if isinstance(dtype, str) else None
    if form is None:
        return ""
    return "nvfp4" if form.has_tensor_factor else "mx"


def scales_of(granularity: str, scale: Any) -> str:
    """Return the scales of the operation that `quantize` takes: one that is given serves rows like one of each."""
    return "row" if granularity == "tensor" and scale is not None else granularity


def scale_flags(granularity: str, scale: Any) -> int:
    """Return the flags of scales that are no format's."""
    return _FLAGS[scales_of(granularity, scale)]
