"""The operations on rows that there are: ours, and those of other packages, found by their entry points.

This is a catalogue, not a cross product. A line has the tag, the element type of X, the function, the element type of
Y, and the scales that go with it. An entry point of the group `aot.row_operations` has the name of a function, and its
value names the tuple of that function's operations: `relu2_mul = "relu2_mul:OPERATIONS"`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, TypeAlias

from aot.core.constraints import Form, Label
from aot.core.element import ElementType
from aot.core.errors import OperationError
from aot.core.strict_json import DecodeError, shown
from aot.kinds.rows import function as f
from aot.kinds.rows.function import OPEN_ARGUMENTS, RowFunction
from aot.kinds.rows.operation import RowOperation, RowScale
from aot.kinds.rows.signature import RowArgument

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_BF16, _FP16, _INT8 = ElementType.BFLOAT16, ElementType.FLOAT16, ElementType.INT8
_E4M3, _E5M2, _E2M1 = ElementType.E4M3, ElementType.E5M2, ElementType.E2M1
_ROW, _TENSOR = RowScale.ROW, RowScale.TENSOR

_LINES = (
    RowOperation("bf16_rms_norm", _BF16, f.RMS_NORM),
    RowOperation("fp16_rms_norm", _FP16, f.RMS_NORM),
    RowOperation("bf16_e4m3_rms_norm", _BF16, f.RMS_NORM, _E4M3, _ROW),
    RowOperation("fp16_e4m3_rms_norm", _FP16, f.RMS_NORM, _E4M3, _ROW),
    RowOperation("bf16_layer_norm", _BF16, f.LAYER_NORM),
    RowOperation("fp16_layer_norm", _FP16, f.LAYER_NORM),
    RowOperation("bf16_e4m3_layer_norm", _BF16, f.LAYER_NORM, _E4M3, _ROW),
    RowOperation("bf16_silu_mul", _BF16, f.SILU_MUL),
    RowOperation("fp16_silu_mul", _FP16, f.SILU_MUL),
    RowOperation("bf16_e4m3_silu_mul", _BF16, f.SILU_MUL, _E4M3, _ROW),
    RowOperation("bf16_gelu_tanh_mul", _BF16, f.GELU_TANH_MUL),
    RowOperation("fp16_gelu_tanh_mul", _FP16, f.GELU_TANH_MUL),
    RowOperation("bf16_rotary", _BF16, f.ROTARY),
    RowOperation("fp16_rotary", _FP16, f.ROTARY),
    RowOperation("bf16_e4m3_quantize", _BF16, f.QUANTIZE, _E4M3, _ROW),
    RowOperation("fp16_e4m3_quantize", _FP16, f.QUANTIZE, _E4M3, _ROW),
    RowOperation("bf16_int8_quantize", _BF16, f.QUANTIZE, _INT8, _ROW),
    RowOperation("bf16_e4m3_block_quantize", _BF16, f.QUANTIZE, _E4M3, RowScale.BLOCK),
    RowOperation("bf16_e5m2_quantize", _BF16, f.QUANTIZE, _E5M2, _ROW),
    RowOperation("fp16_e5m2_quantize", _FP16, f.QUANTIZE, _E5M2, _ROW),
    RowOperation("bf16_e4m3_tensor_quantize", _BF16, f.QUANTIZE, _E4M3, _TENSOR),
    RowOperation("fp16_e4m3_tensor_quantize", _FP16, f.QUANTIZE, _E4M3, _TENSOR),
    RowOperation("bf16_e5m2_tensor_quantize", _BF16, f.QUANTIZE, _E5M2, _TENSOR),
    RowOperation("fp16_e5m2_tensor_quantize", _FP16, f.QUANTIZE, _E5M2, _TENSOR),
    RowOperation("bf16_int8_tensor_quantize", _BF16, f.QUANTIZE, _INT8, _TENSOR),
    RowOperation("bf16_nvfp4_quantize", _BF16, f.QUANTIZE, _E2M1, RowScale.NVFP4),
    RowOperation("bf16_mxfp8_quantize", _BF16, f.QUANTIZE, _E4M3, RowScale.MX),
    RowOperation("bf16_mxfp4_quantize", _BF16, f.QUANTIZE, _E2M1, RowScale.MX),
    RowOperation("bf16_nvfp4_rms_norm", _BF16, f.RMS_NORM, _E2M1, RowScale.NVFP4),
    RowOperation("bf16_mxfp8_rms_norm", _BF16, f.RMS_NORM, _E4M3, RowScale.MX),
    RowOperation("bf16_nvfp4_silu_mul", _BF16, f.SILU_MUL, _E2M1, RowScale.NVFP4),
    RowOperation("bf16_mxfp8_silu_mul", _BF16, f.SILU_MUL, _E4M3, RowScale.MX),
    RowOperation("bf16_mxfp4_rms_norm", _BF16, f.RMS_NORM, _E2M1, RowScale.MX),
    RowOperation("bf16_mxfp4_silu_mul", _BF16, f.SILU_MUL, _E2M1, RowScale.MX),
    RowOperation("bf16_gpt_oss_mul", _BF16, f.GPT_OSS_MUL),
    RowOperation("fp16_gpt_oss_mul", _FP16, f.GPT_OSS_MUL),
)
OWN_ROW_OPERATIONS = tuple(line.at(position) for position, line in enumerate(_LINES))
"""Ours."""

GROUP = "aot.row_operations"
"""Entry points of functions in other packages."""


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.metadata['Name']} {entry.dist.version}" if entry.dist else "an unnamed distribution"


_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def _refuse(entry: EntryPoint, fault: str) -> OperationError:
    again = f"mend {_distribution(entry)}, or uninstall it"
    return OperationError(f"the operations on rows {entry.name!r} of {_distribution(entry)} {fault}; {again}")


def _fault_of(function: RowFunction) -> str:
    """Say what is wrong with a function of another package; empty where nothing is."""
    given = set(function.arguments)
    if not given <= {*OPEN_ARGUMENTS}:
        strange, known = sorted(given - {*OPEN_ARGUMENTS}), ", ".join(OPEN_ARGUMENTS)
        return f"take {', '.join(strange)}; expected arguments of {known}"
    if (RowArgument.RESIDUAL in given) != (RowArgument.RESIDUAL_OUT in given):
        return "take one of residual and residual_out, which is what their sum is written to; expected both, or none"
    if function.width not in (1, 2) or not 0 <= function.num_reductions <= 2 or function.flops < 0:
        got = f"the width {function.width}, {function.num_reductions} reductions and {function.flops} FLOP"
        return f"have {got}; expected 1 or 2, 0 to 2, and no number below 0"
    return ""


def _loaded(entry: EntryPoint) -> tuple[RowOperation, ...]:
    """Load the operations of an entry point.

    Raises:
        OperationError: they cannot be imported, or are none.
    """
    try:
        found = entry.load()
    except Exception as error:  # whatever a package of others raises when it is imported
        raise _refuse(entry, f"cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(found, tuple) or not found or not all(isinstance(x, RowOperation) for x in found):
        raise _refuse(entry, f"are {type(found).__name__}; expected a tuple of RowOperation, of one or more")
    for line in found:
        if line.function.name != entry.name or not _NAME.fullmatch(entry.name):
            text = "expected the entry point's own name, of lower-case letters, digits and _"
            raise _refuse(entry, f"have {line.tag} of a function {line.function.name!r}; {text}")
        if not line.tag.endswith(f"_{entry.name}") or not _NAME.fullmatch(line.tag.removesuffix(f"_{entry.name}")):
            raise _refuse(entry, f"have the tag {line.tag!r}; expected element types, and then _{entry.name}")
        if fault := _fault_of(line.function):
            raise _refuse(entry, fault)
    return found


@cache
def outside_entries() -> dict[str, EntryPoint]:
    """Find the entry points of functions of other packages, by name; nothing is imported.

    Raises:
        OperationError: two functions have one name, or one that of one of ours.
    """
    own = {x.function.name for x in OWN_ROW_OPERATIONS}
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda x: x.name):
        if entry.name in own or entry.name in found:
            other = "one of ours" if entry.name in own else f"that of {_distribution(found[entry.name])}"
            raise _refuse(entry, f"have the name of {other}")
        found[entry.name] = entry
    return found


@cache
def row_operations() -> tuple[RowOperation, ...]:
    """List the operations that there are: ours, then those of other packages by their functions' names.

    Raises:
        OperationError: some cannot be loaded, or two functions or two tags are one.
    """
    found = dict.fromkeys(OWN_ROW_OPERATIONS)
    for entry in outside_entries().values():
        for line in _loaded(entry):
            if line in found:
                raise _refuse(entry, f"have the tag {line.tag!r}, which is another operation's")
            found[line.at(len(found))] = None
    return tuple(found)


def row_operation(tag: str) -> RowOperation:
    """Return the operation of a tag.

    Raises:
        OperationError: there is none, or `row_operations` fails.
    """
    found = _find(tag)
    if found is None:
        raise OperationError(f"no operation on rows is called {tag!r}; docs/operations.md lists them")
    return found


_OWN_BY_TAG = {x.tag: x for x in OWN_ROW_OPERATIONS}


def _find(tag: str) -> RowOperation | None:
    """Find an operation; those of other packages are loaded for what is none of ours."""
    return _OWN_BY_TAG.get(tag) or next((x for x in row_operations() if x == tag), None)


def twins(operation: RowOperation) -> tuple[RowOperation, ...]:
    """List the operations that differ from one in X's element type alone."""
    return tuple(x for x in row_operations() if x.is_twin_of(operation))


def read_row_operation(tag: str) -> RowOperation:
    """Return the operation of a tag that a file holds.

    Raises:
        DecodeError: there is none.
    """
    found = _find(tag)
    if found is None:
        got = f"got {shown(tag)}; that of another package is known where it is installed"
        raise DecodeError(f"expected the tag of an operation on rows, such as bf16_rms_norm, {got}")
    return found


CataloguedRow: TypeAlias = Annotated[RowOperation, Form(Label, read_row_operation)]
"""An operation on rows, as a field of a file."""
