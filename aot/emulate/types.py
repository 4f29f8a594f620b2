"""The element types of PTX: their bytes, their arrays of raw bits, and conversions that numpy does not have.

A register of 32 lanes is an unsigned numpy array of its bits, whatever its type; an instruction looks at it as the type
that its form names. Source: PTX ISA, section "Types".
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
Value: TypeAlias = NDArray[Any]
"""A register of a warp: the raw bits of 32 lanes."""
Lanes: TypeAlias = NDArray[np.bool_]
"""Which of 32 lanes."""

BYTES = {
    "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4, "s32": 4,
    "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8, "b128": 16,
    "pred": 1,
}  # fmt: skip
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
LANES = np.arange(32)
F32_TINY = np.float32(np.finfo(np.float32).tiny)
"""The least normal number."""


def raw_dtype(kind: str) -> Any:
    """Return the dtype in which a register of a type is kept."""
    return np.bool_ if kind == "pred" else np.uint64 if kind == "b128" else UNSIGNED[BYTES[kind]]


def view_dtype(kind: str) -> Any:
    """Return the dtype as which an instruction of a type looks at raw bits."""
    if kind in ("f32", "f64", "f16"):
        return {"f32": np.float32, "f64": np.float64, "f16": np.float16}[kind]
    return (SIGNED if kind[0] == "s" else UNSIGNED)[BYTES[kind]]


def bf16_to_f32(bits: Bits) -> NDArray[np.float32]:
    """Widen bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to bfloat16 bits, to nearest even; NaN becomes 0x7fff. Source: PTX ISA, cvt."""
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def flushed(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Take subnormal numbers for zeros of their sign, as .ftz does."""
    return np.where(np.abs(values) < F32_TINY, np.copysign(np.float32(0), values), values).astype(np.float32)
