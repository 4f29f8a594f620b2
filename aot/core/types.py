"""The element types that one product goes together of, and the scale factors of its operands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aot.core.element import ElementType
from aot.core.feature import Feature


class Scale(Enum):
    """What an operand's elements are multiplied by: float32 factors."""

    NONE = "none"
    VECTOR = "vector"
    """A factor for each row of A and of B (n, k), or one for the whole operand: a vector of stride 1 or 0."""
    BLOCK = "block"
    """A factor for each 128 elements along k of a row of A, and for each 128 by 128 elements of B."""


SCALE_BLOCK = 128
"""Elements along k, and rows of B, that one factor of `Scale.BLOCK` serves. Source: DeepSeek-V3 technical report,
section 3.3.2, and torch.nn.functional.scaled_mm's BlockWise1x128 and BlockWise128x128."""


@dataclass(frozen=True)
class Types:
    """The element types of A, B, D and the accumulator, and the scale factors of A and B."""

    a: ElementType
    b: ElementType
    d: ElementType
    accumulator: ElementType = ElementType.FLOAT32
    scale: Scale = Scale.NONE
    is_fast: bool = False
    """Whether FP8 sums may stay in the tensor core's accumulator for all of k, as torch's `use_fast_accum` asks for.

    Hopper's tensor cores keep 14 bits or so of those; where this is False they are added up in float32 every 128 of k.
    Source: DeepSeek-V3 technical report, section 3.5.2.
    """

    @property
    def tag(self) -> str:
        """Return the first part of an operation's tag: `bf16`, `e4m3_bf16`, `e5m2e4m3_fp32`, `e4m3_bf16_block`."""
        if self.a is ElementType.TFLOAT32:
            return self.a.tag
        names = [self.a.tag if self.a is self.b else self.a.tag + self.b.tag]
        names += [] if self.d is self.a is self.b and not self.is_scaled else [self.d.tag]
        names += ["block"] if self.scale is Scale.BLOCK else []
        return "_".join([*names, *(["fast"] if self.is_fast else [])])

    @property
    def is_scaled(self) -> bool:
        """Say whether A and B have scale factors."""
        return self.scale is not Scale.NONE

    @property
    def needs(self) -> tuple[Feature, ...]:
        """Return what a chip must be able to do with the elements, whatever the family."""
        is_fp8 = {ElementType.E4M3, ElementType.E5M2} & {self.a, self.b, self.d}
        return (Feature.FP8,) if is_fp8 else ()

    @property
    def is_promoted(self) -> bool:
        """Say whether FP8 sums are added up outside of Hopper's tensor cores, every 128 of k."""
        return self.a.bits == 8 and self.accumulator is ElementType.FLOAT32 and not self.is_fast

    @property
    def scales_d(self) -> bool:
        """Say whether D is multiplied by one factor before it is rounded: D is of 8 bits."""
        return self.is_scaled and self.d.bits == 8


def _plain(element: ElementType) -> Types:
    return Types(element, element, element)


def _fp8(d: ElementType, *, a: ElementType = ElementType.E4M3, b: ElementType = ElementType.E4M3) -> Types:
    return Types(a, b, d, scale=Scale.VECTOR)


BF16 = _plain(ElementType.BFLOAT16)
FP16 = _plain(ElementType.FLOAT16)
FP32 = _plain(ElementType.FLOAT32)
TF32 = Types(ElementType.TFLOAT32, ElementType.TFLOAT32, ElementType.FLOAT32)
E4M3_BF16 = _fp8(ElementType.BFLOAT16)
E4M3_FP16 = _fp8(ElementType.FLOAT16)
E4M3_FP32 = _fp8(ElementType.FLOAT32)
E4M3_E4M3 = _fp8(ElementType.E4M3)
E5M2E4M3_BF16 = _fp8(ElementType.BFLOAT16, a=ElementType.E5M2)
E4M3E5M2_BF16 = _fp8(ElementType.BFLOAT16, b=ElementType.E5M2)
E4M3_BF16_FAST = Types(ElementType.E4M3, ElementType.E4M3, ElementType.BFLOAT16, scale=Scale.VECTOR, is_fast=True)
E4M3_BF16_BLOCK = Types(ElementType.E4M3, ElementType.E4M3, ElementType.BFLOAT16, scale=Scale.BLOCK)
INT8_INT32 = Types(ElementType.INT8, ElementType.INT8, ElementType.INT32, ElementType.INT32)
INT8_BF16 = Types(ElementType.INT8, ElementType.INT8, ElementType.BFLOAT16, ElementType.INT32, Scale.VECTOR)
INT8_FP16 = Types(ElementType.INT8, ElementType.INT8, ElementType.FLOAT16, ElementType.INT32, Scale.VECTOR)
