"""What an operation on rows computes: a record that says all that the road must know of a function of rows.

Ours are below. A package of its own states another one, with its operations, by an entry point: `catalogue.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from aot.kinds.rows.signature import RowArgument

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class RowFunction:
    """What a row operation computes of a row x of X; the name is the last part of a tag.

    All arithmetic is in float32, and each result is rounded once. `reference` and `arithmetic` name functions, as
    `module:function`, which are loaded where they are asked for: the catalogue needs neither numpy nor CUTLASS.
    """

    name: str
    reference: str
    """Takes the operation, `Rows` and `RowParameters` of `aot.kinds.rows.reference`, and returns a `RowExpected`: the
    values in float64, and how far from them a right kernel's arithmetic may lead."""
    flops: int = 0
    """The arithmetic for an element of Y, an exponential or a root as one."""
    width: int = 1
    """Elements of X for each one of Y: 2 of a pair, whose X has 2 cols columns, the first ones' and then the second
    ones', or in turn."""
    arguments: tuple[RowArgument, ...] = ()
    """What its kernels take beside X, Y, Y's scales, flags and the stream."""
    num_reductions: int = 0
    """Steps that need all of a row of X, so that one CTA must read the whole row."""
    arithmetic: str = ""
    """Device code of one element, which the families of ours compute a function by that has no arguments: a function of
    `width` float32 values of CuTe DSL, that gives the value of Y. Empty where its families have code of their own."""

    @property
    def is_pair(self) -> bool:
        """Say whether an element of Y is made of two of X."""
        return self.width > 1

    @property
    def is_rotary(self) -> bool:
        """Say whether a row is a head of a token, which is turned by angles."""
        return RowArgument.COS in self.arguments

    def load_reference(self) -> Callable[..., Any]:
        """Return the float64 reference."""
        found: Callable[..., Any] = resolve_name(self.reference)
        return found

    def load_arithmetic(self) -> Callable[..., Any] | None:
        """Return the device code of an element, where there is some. It imports CUTLASS."""
        found: Callable[..., Any] | None = resolve_name(self.arithmetic) if self.arithmetic else None
        return found


_OF_NORM = (RowArgument.RESIDUAL, RowArgument.WEIGHT, RowArgument.RESIDUAL_OUT, RowArgument.EPS)
_REFERENCES, _ARITHMETIC = "aot.kinds.rows.reference", "aot.families.rows._arithmetic"

RMS_NORM = RowFunction(
    "rms_norm",
    f"{_REFERENCES}:norm_reference",
    flops=4,
    arguments=(*_OF_NORM, RowArgument.WEIGHT_OFFSET),
    num_reductions=1,
)
"""z = x + residual, rounded to x's type; y = z * rsqrt(mean(z^2) + eps) * (weight + weight_offset).

What is multiplied with the weight may be rounded to x's type first. A mean adds, a variance multiplies and adds, a norm
multiplies by both root and weight.
"""
LAYER_NORM = RowFunction(
    "layer_norm", f"{_REFERENCES}:norm_reference", flops=7, arguments=(*_OF_NORM, RowArgument.BIAS), num_reductions=2
)
"""z as above; y = (z - mean(z)) * rsqrt(mean((z - mean(z))^2) + eps) * weight + bias."""
SILU_MUL = RowFunction(
    "silu_mul", f"{_REFERENCES}:silu_mul_reference", flops=4, width=2, arithmetic=f"{_ARITHMETIC}:silu_mul"
)
"""silu(gate) * linear of pairs: an exponential, a sum, a quotient and a product."""
GELU_TANH_MUL = RowFunction(
    "gelu_tanh_mul",
    f"{_REFERENCES}:gelu_tanh_mul_reference",
    flops=9,
    width=2,
    arithmetic=f"{_ARITHMETIC}:gelu_tanh_mul",
)
"""gelu_tanh(gate) * linear, likewise."""
OF_CACHE = (
    *(RowArgument.KEYS, RowArgument.VALUES, RowArgument.KEY_CACHE, RowArgument.VALUE_CACHE),
    RowArgument.CACHE_POSITION,
)
"""What a call has all of, or none: keys and values that go to a cache."""
ROTARY = RowFunction(
    "rotary",
    f"{_REFERENCES}:rotary_reference",
    flops=3,
    arguments=(RowArgument.COS, RowArgument.SIN, *OF_CACHE),
)
"""Rotary position embedding of X (tokens, heads, dim): a row is a head of a token, cols is dim. A rotation is two
products and a sum. Keys that are turned likewise, and values, may be written to a cache in the same launch."""
QUANTIZE = RowFunction("quantize", f"{_REFERENCES}:quantize_reference")
"""x itself, in fewer bits."""
GPT_OSS_MUL = RowFunction(
    "gpt_oss_mul",
    f"{_REFERENCES}:gpt_oss_mul_reference",
    flops=8,
    width=2,
    arithmetic="aot.families.rows._gpt_oss:gpt_oss_mul",
)
"""g * sigmoid(GPT_OSS_SLOPE * g) * (l + 1) of pairs, g no larger than GPT_OSS_LIMIT and l within it: the gate of
GPT-OSS's experts. `rows` calls it by name."""
GPT_OSS_SLOPE, GPT_OSS_LIMIT = 1.702, 7.0
"""Source: OpenAI, gpt-oss, `swiglu` of gpt_oss/torch/model.py, and config.json, swiglu_limit."""

OWN_FUNCTIONS = (RMS_NORM, LAYER_NORM, SILU_MUL, GELU_TANH_MUL, ROTARY, QUANTIZE)
"""In the order of their numbers in a library."""
NORMS = (RMS_NORM, LAYER_NORM)

OPEN_ARGUMENTS = (*_OF_NORM, RowArgument.BIAS, RowArgument.WEIGHT_OFFSET)
"""What a function of another package may have as arguments; `RESIDUAL_OUT` goes with `RESIDUAL`."""
