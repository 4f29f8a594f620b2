"""What a call on tensors gives, by shapes and types alone; extents may be symbols of a trace by torch.

The library checks the call, as it would later, with the extents that symbols stand for where they are traced. What
depends on memory, as strides that do not join and overlaps, is left to the call itself.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _library, errors
from ._catalogue import BLOCK_FORMATS, ROW_CATALOGUE
from ._dtypes import dtype_number
from ._enumerations import (
    ALLOW_TF32,
    ELEMENTS,
    FIELDS,
    INTERLEAVED,
    NAMES,
    ON_ROWS,
    READ,
    ROUNDS_NORM,
    ROW_FUNCTIONS,
    SCALE_BLOCK,
    USE_FAST_ACCUM,
    WEIGHT_FORMATS,
    WRITTEN,
)
from ._extras import activation_number
from ._factors import num_bytes
from ._row_options import element_and_flags, scale_flags, scales_of, start_flag

if TYPE_CHECKING:
    from collections.abc import Mapping

DEVICES = ("cuda", "meta")
"""Where the tensors of a trace are said to be; meta tensors have shapes alone."""
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5}
_CODES_OF_BYTES = {"float8_e4m3fn": 10, "float8_e5m2": 12, "float8_e8m0fnu": 14, "float4_e2m1fn_x2": 1, "bool": 6}
"""DLDataTypeCode of dlpack.h, by what the name of an element type begins with, and by the whole name: of torch's pairs
of 4 bits that of their bytes, which is the same to the library."""
PAIRS = frozenset(x.function for x in ROW_CATALOGUE if x.width == 2)
"""Those functions of rows whose x has twice the columns of the result."""
_UNKNOWN_TYPE = 3
"""kDLOpaqueHandle of dlpack.h."""
_UNKNOWN_EXTENT = 8192
"""What stands for an extent that no trace knows, as of indices of what is not zero."""


@dataclass(frozen=True)
class TensorCall:
    """The tensors and options of a call; tensors are torch's, or have `shape`, `ndim`, `dtype` and `device`."""

    function: str
    tensors: Mapping[str, Any]
    """By the names that users have; each may be None. The weight of a `grouped_linear` may be a list, and so may then
    be `scale_w`."""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, str]:
        """Return what messages call the left and the right operand."""
        return ("a", "b") if self.function == "matmul" else ("x", "weight")

    @property
    def x(self) -> Any:
        """Return the left operand."""
        return self.tensors[self.names[0]]

    @property
    def weight(self) -> Any:
        """Return the right operand, of a list the first."""
        weight = self.tensors.get(self.names[1])
        return weight[0] if isinstance(weight, list) else weight


class Results(NamedTuple):
    """What a call gives anew."""

    written: dict[str, tuple[tuple[Any, ...], str]]
    """Shape and element type, by torch's name, of `out`, and on rows of `residual_out` and `scale_out`."""
    operation: str
    """The tag of the operation that computes it."""


def results_of(call: TensorCall) -> Results:
    """Return what a call gives.

    Raises:
        AotGemmError: one of the classes that the function lists, as its call would.
    """
    for name, tensor in call.tensors.items():
        for each in tensor if isinstance(tensor, list) else (tensor,):
            if each is not None:
                _check_device(call, name, each)
    written, operation = _library.binding()[f"{call.function}_result"](_record(call))
    dtypes = {name: element for name, (*_, element) in written.items()}
    shapes = _shapes_of(call)
    left = dtype_text(call.x.dtype)
    return Results({x: (shapes[x], left if y < 0 else ELEMENTS[y]) for x, y in dtypes.items()}, operation)


def result_of(call: TensorCall) -> tuple[tuple[Any, ...], str]:
    """Return shape and element type, by torch's name, of what a product gives.

    Raises:
        AotGemmError: one of the classes that `linear` lists, as its call would.
    """
    return results_of(call).written["out"]


def dtype_text(dtype: Any) -> str:
    """Return torch's name of an element type."""
    return str(dtype).removeprefix("torch.")


def _check_device(call: TensorCall, name: str, tensor: Any) -> None:
    if tensor.device.type not in DEVICES:
        instead = "" if call.function in ON_ROWS else ", or use torch's own product there"
        raise errors.DeviceError(
            f"{call.function}: {name} is on {tensor.device}; expected a CUDA tensor; move it to the GPU first{instead}"
        )
    if tensor.device != call.x.device:
        raise errors.DeviceError(
            f"{call.function}: {name} is on {tensor.device}, {call.names[0]} on {call.x.device}; expected one GPU"
        )


def _extent(extent: Any) -> int:
    """Return an extent, or what its symbol stands for, without telling the trace that it was asked."""
    if isinstance(extent, int):
        return extent
    hint = extent.node.hint
    return _UNKNOWN_EXTENT if hint is None else int(hint)


def _shape(tensor: Any) -> tuple[int, ...]:
    """Return a tensor as the library is told of one without memory: its element type, and its extents."""
    name = dtype_text(tensor.dtype)
    kind = re.fullmatch(r"([a-z]+)(\d+)", name)
    code = _CODES_OF_BYTES.get(name, _CODES.get(kind[1], _UNKNOWN_TYPE) if kind else _UNKNOWN_TYPE)
    bits = int(kind[2]) if kind else 8
    return code, bits, *map(_extent, tensor.shape)


def _epilogue(call: TensorCall) -> int:
    asked = call.options.get("gate" if call.function == "grouped_linear" else "activation")
    return activation_number(call.function, asked)


def _flags(call: TensorCall) -> int:
    flags = ALLOW_TF32 if call.options.get("allow_tf32") else 0
    flags |= USE_FAST_ACCUM if call.options.get("use_fast_accum") else 0
    flags |= INTERLEAVED if call.options.get("interleaved") else 0
    form = call.options.get("form")
    if form is not None:
        flags |= element_and_flags(call.function, form)[1]
    if call.function not in ON_ROWS:
        return flags
    flags |= ROUNDS_NORM if call.options.get("round_norm") else 0
    flags |= start_flag(call.function, call.tensors.get("offsets"), call.options.get("groups"))
    if form is not None:
        return flags
    return flags | scale_flags(call.options.get("granularity", "row"), call.tensors.get("scale"))


def _scales(call: TensorCall) -> str:
    return scales_of(call.options.get("granularity", "row"), call.tensors.get("scale"))


def _element(call: TensorCall) -> int:
    name = "dtype" if call.function == "quantize" else "out_dtype"
    asked, form = call.options.get(name), call.options.get("form")
    if form is not None:
        return element_and_flags(call.function, form)[0]
    if asked is None and call.function == "quantize":
        asked = "float8_e4m3fn"
    return -1 if asked is None else dtype_number(f"{call.function}: {name}", asked)


def _record(call: TensorCall) -> tuple[Any, ...]:
    """Return what the binding takes, with a shape for each tensor."""
    is_listed = isinstance(call.tensors.get("weight"), list)
    rotary_dim = call.options.get("rotary_dim")
    said: dict[str, Any] = {
        "element": _element(call),
        "flags": _flags(call),
        "rotary_dim": -1 if rotary_dim is None else rotary_dim,
        "weight_format": WEIGHT_FORMATS.index(call.options.get("weight_format", "none")),
        "columns": call.options.get("columns", 0),
        "eps": 0.0,
        "weight_offset": 0.0,
        "function": ROW_FUNCTIONS.index(call.options.get("function", ROW_FUNCTIONS[0])),
        "weights": tuple(map(_shape, call.tensors["weight"])) if is_listed else None,
        "factors": None,
    }
    if "epilogue" in FIELDS[call.function]:
        said["epilogue"] = _epilogue(call)
    tensors = {"left": call.x} | ({"right": call.weight} if "right" in FIELDS[call.function] else {})
    for name in FIELDS[call.function]:
        if name in (*READ, *WRITTEN) and name not in tensors:
            tensors[name] = call.tensors.get(NAMES.get(name, name))
    if isinstance(tensors.get("scale_w"), list):
        said["factors"] = tuple(map(_shape, tensors["scale_w"]))
        tensors["scale_w"] = tensors["scale_w"][0]
    said |= {name: None if tensor is None else _shape(tensor) for name, tensor in tensors.items()}
    return tuple(said[name] for name in FIELDS[call.function])


def _shapes_of(call: TensorCall) -> dict[str, tuple[Any, ...]]:
    """Return the shapes of what a checked call writes, by the symbols of its operands."""
    form = call.options.get("form")
    if call.function not in ON_ROWS:
        shape = _shape_of_groups(call) if call.function == "grouped_linear" else _shape_of_product(call)
        if form is None:
            return {"out": shape}
        return {"out": _shape_in(form, shape), "factors_d": _atoms(form, shape, _num_groups(call))}
    shape = tuple(call.x.shape)
    if call.tensors.get("index") is not None:
        shape = (call.tensors["index"].shape[0], *shape[1:])
    if call.options.get("function", call.function) in PAIRS:
        shape = (*shape[:-1], shape[-1] // 2)
    if form is not None:
        atoms = _atoms(form, shape, _num_groups(call))
        return {"out": _shape_in(form, shape), "residual_out": tuple(call.x.shape), "scale_out": atoms}
    scales = (*shape[:-1], -(-shape[-1] // SCALE_BLOCK) if _scales(call) == "block" else 1)
    scales = (1,) * len(shape) if _scales(call) == "tensor" else scales
    return {"out": shape, "residual_out": tuple(call.x.shape), "scale_out": scales}


def _shape_in(form: str, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the shape of elements of a format of blocks, of which a byte may hold two."""
    return (*shape[:-1], shape[-1] // 2) if BLOCK_FORMATS[form].element == "float4_e2m1fn" else shape


def _num_groups(call: TensorCall) -> Any:
    """Return how many groups of rows a call has; 1 of one that has none."""
    offsets, groups = call.tensors.get("offsets"), call.options.get("groups")
    if offsets is None:
        return 1
    weight = call.tensors.get("weight")
    if isinstance(weight, list):
        return len(weight)
    if call.function == "grouped_linear":
        return call.weight.shape[0]
    return offsets.shape[0] if groups is None else groups


def _atoms(form: str, shape: tuple[Any, ...], groups: Any) -> tuple[Any, ...]:
    """Return the shape of the factors in atoms of a result of so many rows and columns."""
    return (num_bytes(math.prod(shape[:-1]), -(-shape[-1] // BLOCK_FORMATS[form].block), groups),)


def _shape_of_product(call: TensorCall) -> tuple[Any, ...]:
    leading, right = tuple(call.x.shape[:-1]), tuple(call.weight.shape)
    if call.function == "packed_linear":
        return (*leading, call.options["columns"])
    if call.function != "matmul":
        return (*leading, right[0] // 2 if call.function == "gated_linear" else right[0])
    if len(right) <= 2:
        return (*leading, *right[1:])
    pairs = itertools.zip_longest(reversed(leading[:-1]), reversed(right[:-2]), fillvalue=1)
    batch = [y if x == 1 else x for x, y in pairs]
    return (*reversed(batch), *leading[-1:], right[-1])


def _shape_of_groups(call: TensorCall) -> tuple[Any, ...]:
    index, weight = call.tensors.get("index"), call.tensors["weight"]
    rows = call.x.shape[0] if index is None else index.shape[0]
    if "columns" in call.options:  # of packed weights
        return rows, call.options["columns"]
    n = call.weight.shape[-2] if call.options.get("gate") is None else call.weight.shape[-2] // 2
    groups_k = not isinstance(weight, list) and weight.ndim == 2
    return *((call.tensors["offsets"].shape[0],) if groups_k else ()), rows, n
