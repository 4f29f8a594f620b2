"""What each function of a wheel's Python hands to the library: a record, whose fields both sides are rendered with."""

from __future__ import annotations

from enum import IntFlag

READ = (
    *("left", "right", "bias", "scale_x", "scale_w", "residual", "scale_d"),
    *("offsets", "index", "cos", "sin", "scale", "own_d"),
    *("keys", "values", "cache_position"),
)
"""The tensors that calls read. The first seven are those of a call by XLA, by the bits of its operands."""
WRITTEN = ("out", "residual_out", "scale_out", "factors_d", "key_cache", "value_cache")
"""The tensors that calls write; None where the library is to allocate one, or there is none, as of the caches."""
OPERANDS = READ + WRITTEN
OPTIONS = (
    *("weights", "factors", "epilogue", "element", "flags", "rotary_dim", "weight_format", "columns"),
    *("eps", "weight_offset", "function"),
)
"""What calls say beside tensors: a tuple of weights that are tensors of their own, whose first is `right`, or None;
the same of their factors, whose first is `scale_w`; the number of an epilogue; that of the result's element type,
or -1; `CallFlag`s; an extent, or -1; the number of a format of packed weights, and the columns of the result; two
floats; and the number of a function of rows."""

PYTHON_NAMES = {"left": "x", "right": "weight", "scale_d": "scale_out"}
"""What users call an operand, where that is another word."""

_BEGIN = ("left", "right", "bias", "out")
_SCALED = (*_BEGIN, "scale_x", "scale_w")
_OF_D = ("scale_d", "own_d", "factors_d")
_CHOICE = ("epilogue", "element", "flags")
_PACKED = ("weight_format", "columns")
_WRITES = ("scale", "out", "scale_out", "element", "flags")
_POSITIONS = ("offsets", "index")
_NORM = ("residual", "scale", "out", "residual_out", "scale_out", "element", "flags", "eps")
_CACHE = ("keys", "values", "cache_position", "key_cache", "value_cache")
_ROTARY = ("left", "cos", "sin", *_CACHE, "out", "flags", "rotary_dim")

FIELDS: dict[str, tuple[str, ...]] = {
    "linear": (*_SCALED, "residual", *_OF_D, *_CHOICE),
    "matmul": ("left", "right", "out", "flags"),
    "gated_linear": (*_SCALED, *_OF_D, "weights", *_CHOICE),
    "grouped_linear": (*_SCALED, *_OF_D, *_POSITIONS, "weights", "factors", *_CHOICE, *_PACKED),
    "packed_linear": (*_BEGIN, "scale_w", "weights", "factors", *_CHOICE, *_PACKED),
    "linear_many": ("left",),
    "constant": ("left",),
    "rms_norm": ("left", "right", *_NORM, "weight_offset"),
    "layer_norm": ("left", "right", "bias", *_NORM),
    "silu_mul": ("left", *_POSITIONS, *_WRITES),
    "gelu_tanh_mul": ("left", *_POSITIONS, *_WRITES),
    "rotary": _ROTARY,
    "quantize": ("left", *_POSITIONS, *_WRITES),
    "rows": ("left", "right", "bias", *_POSITIONS, *_NORM, "weight_offset", "function"),
}
"""By function, in the order of their numbers. Operations on rows come last, our functions of rows in the order of their
numbers, and then the one that takes any function.

`linear_many`, whose tensors are tuples, is no call of a record: of it and of `constant` there is what is read alone."""

PLAIN = {"linear": len(_BEGIN), "matmul": 3}
"""Of how many fields a call may be that has nothing else."""


class CallFlag(IntFlag):
    """What a call asks for, beside tensors."""

    ALLOW_TF32 = 1
    USE_FAST_ACCUM = 2
    INTERLEAVED = 4
    DETERMINISTIC = 8
    BATCH_INVARIANT = 16
    BLOCKS = 32
    """Of `quantize`: a scale for each 128 columns of a row."""
    ONE_SCALE = 64
    """Of `quantize`: one for all, which is computed."""
    ROUNDS_NORM = 128
    NVFP4 = 256
    """Of `quantize`: factors of 16 columns in atoms, over the tensor's own, which is `scale`."""
    MX = 512
    """Of `quantize`: powers of two of 32 columns, in atoms."""
    OFFSETS_START = 1024
    """Of operations on rows: offsets begin with the first group's start."""
