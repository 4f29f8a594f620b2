"""The element types that one product goes together of, and the formats of its operands' scale factors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aot.core.element import BYTE_BITS, ElementType
from aot.core.feature import Feature
from aot.core.formats import BLOCKS_OF_ROWS, MX, NVFP4, SQUARE_BLOCKS, VECTOR, FactorLayout, ScaleFormat, tag_of
from aot.core.weight_format import E4M3 as E4M3_WEIGHT
from aot.core.weight_format import (
    INT4_G32,
    INT4_G32_ZEROS,
    INT4_G64,
    INT4_G64_ZEROS,
    INT4_G128,
    INT4_G128_ZEROS,
    WeightFormat,
)
from aot.core.weight_format import INT8 as INT8_WEIGHT
from aot.core.weight_format import MXFP4 as MXFP4_WEIGHT
from aot.core.weight_format import MXFP4_ROWS as MXFP4_WEIGHT_ROWS
from aot.core.weight_format import NVFP4 as NVFP4_WEIGHT
from aot.core.weight_format import NVFP4_ROWS as NVFP4_WEIGHT_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Types:
    """The element types of A, B, D and the accumulator, and the formats of the scale factors of A and B."""

    a: ElementType
    b: ElementType
    d: ElementType
    accumulator: ElementType = ElementType.FLOAT32
    scale_a: ScaleFormat | None = None
    scale_b: ScaleFormat | None = None
    is_fast: bool = False
    """Whether FP8 sums may stay in the tensor core's accumulator for all of k, as torch's `use_fast_accum` asks for.

    Hopper's tensor cores keep 14 bits or so of those; where this is False they are added up in float32 every 128 of k.
    Source: DeepSeek-V3 technical report, section 3.5.2.
    """
    weight: WeightFormat | None = None
    """What B is where it is a packed weight: a matrix of bytes, as `aot.core.weight_packing` lays it out."""
    blocks_d: ScaleFormat | None = None
    """The factors that are written with D, of its blocks along n: the next product reads D as its A, and n is its k."""

    @property
    def tag(self) -> str:
        """Return the first part of an operation's tag: `bf16`, `e4m3_bf16`, `e5m2e4m3_fp32`, `e4m3_bf16_block`.

        Of a packed weight it is the type of A, then the weight's format: `bf16xint4g128_bf16`.
        """
        if self.weight is not None:
            return f"{self.a.tag}x{self.weight.name}_{self.d.tag}"
        if self.a is ElementType.TFLOAT32:
            return self.a.tag
        names = ["".join(dict.fromkeys((tag_of(self.a, self.scale_a), tag_of(self.b, self.scale_b))))]
        names += [] if self.d is self.a is self.b and not self.is_scaled else [tag_of(self.d, self.blocks_d)]
        names += ["block"] if self.factors is FactorLayout.BLOCK else []
        return "_".join([*names, *(["fast"] if self.is_fast else [])])

    def pads(self, element: ElementType) -> bool:
        """Say whether kernels load an operand's elements of 4 bits with gaps, since those of the other are wider.

        Source: PTX ISA, tcgen05.mma, kind::mxf8f6f4, whose operands take a byte of shared memory for each element.
        """
        return element.bits < BYTE_BITS and self.a.bits != self.b.bits

    @property
    def is_scaled(self) -> bool:
        """Say whether A or B has scale factors."""
        return self.factors is not None

    @property
    def factors(self) -> FactorLayout | None:
        """Return how the scale factors lie, those of A as those of B; None where there are none."""
        found = self.scale_a or self.scale_b
        return None if found is None else found.layout

    @property
    def factor(self) -> ElementType:
        """Return the element type of the scale factors; float32 where there are none."""
        found = self.scale_a or self.scale_b
        return ElementType.FLOAT32 if found is None else found.element

    @property
    def scaling(self) -> str:
        """Return the name by which the library knows how the scale factors lie: `none` where there are none."""
        return "none" if self.factors is None else self.factors.value

    @property
    def needs(self) -> tuple[Feature, ...]:
        """Return what a chip must be able to do with the elements, whatever the family."""
        is_fp8 = {ElementType.E4M3, ElementType.E5M2} & {self.a, self.b, self.d}
        in_atoms = self.factors is FactorLayout.ATOMS
        return (*((Feature.FP8,) if is_fp8 else ()), *((Feature.BLOCK_SCALE,) if in_atoms else ()))

    @property
    def is_promoted(self) -> bool:
        """Say whether FP8 sums are added up outside of Hopper's tensor cores, every 128 of k."""
        if self.factors is FactorLayout.ATOMS:
            return False
        return self.a.bits == 8 and self.accumulator is ElementType.FLOAT32 and not self.is_fast

    @property
    def scales_sum(self) -> bool:
        """Say whether A and B have factors of their whole tensors, by whose product the sum is multiplied first."""
        return any(x is not None and x.has_tensor_factor for x in (self.scale_a, self.scale_b))

    @property
    def scales_d(self) -> bool:
        """Say whether there is one factor more: of a D of 8 bits, before it is rounded, or that of `scales_sum`.

        A D whose blocks have factors is divided by those, and by its own of all: `blocks_d`.
        """
        return self.scales_sum or (self.is_scaled and self.d.bits == BYTE_BITS and self.blocks_d is None)

    def alike(self, others: Sequence[Types]) -> tuple[Types, ...]:
        """Return those of others that have the same sizes, accumulation and scale factors."""

        def shape(x: Types) -> tuple[object, ...]:
            factors = x.scale_a, x.scale_b, x.weight, x.blocks_d
            return x.a.bits, x.b.bits, x.d.bits, x.accumulator, factors, x.is_fast, x.a is ElementType.TFLOAT32

        return tuple(x for x in others if x != self and shape(x) == shape(self))

    def of_other_groups(self, others: Sequence[Types]) -> tuple[Types, ...]:
        """Return those of others whose packed weight differs in its groups, the nearest first.

        First come those with zero points where these have some, then the nearest size, then the same type of x.
        """
        own = self.weight
        if own is None:
            return ()

        def distance(x: Types) -> tuple[bool, float, bool]:
            other = x.weight or own
            return other.has_zeros != own.has_zeros, abs(math.log2(other.group / own.group)), x.a is not self.a

        found = (x for x in others if x.weight is not None and own.differs_in_groups(x.weight))
        return tuple(sorted(found, key=distance))


def _plain(element: ElementType) -> Types:
    return Types(element, element, element)


def _packed(element: ElementType, weight: WeightFormat) -> Types:
    scale = VECTOR if weight.has_row_factors else None
    return Types(element, ElementType.UINT8, element, scale_b=scale, weight=weight)


def _fp8(d: ElementType, *, a: ElementType = ElementType.E4M3, b: ElementType = ElementType.E4M3) -> Types:
    return Types(a, b, d, scale_a=VECTOR, scale_b=VECTOR)


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
E4M3_BF16_FAST = replace(E4M3_BF16, is_fast=True)
E4M3_BF16_BLOCK = replace(E4M3_BF16, scale_a=BLOCKS_OF_ROWS, scale_b=SQUARE_BLOCKS)
INT8_INT32 = Types(ElementType.INT8, ElementType.INT8, ElementType.INT32, ElementType.INT32)
INT8_BF16 = Types(ElementType.INT8, ElementType.INT8, ElementType.BFLOAT16, ElementType.INT32, VECTOR, VECTOR)
INT8_FP16 = Types(ElementType.INT8, ElementType.INT8, ElementType.FLOAT16, ElementType.INT32, VECTOR, VECTOR)
NVFP4_BF16 = Types(ElementType.E2M1, ElementType.E2M1, ElementType.BFLOAT16, scale_a=NVFP4, scale_b=NVFP4)
MXFP4_BF16 = Types(ElementType.E2M1, ElementType.E2M1, ElementType.BFLOAT16, scale_a=MX, scale_b=MX)
MXFP8_BF16 = Types(ElementType.E4M3, ElementType.E4M3, ElementType.BFLOAT16, scale_a=MX, scale_b=MX)
MXFP8_MXFP4_BF16 = replace(MXFP8_BF16, b=ElementType.E2M1)
MXFP8_MXFP4_FP16 = replace(MXFP8_MXFP4_BF16, d=ElementType.FLOAT16)
NVFP4_FP16, MXFP4_FP16, MXFP8_FP16 = (replace(x, d=ElementType.FLOAT16) for x in (NVFP4_BF16, MXFP4_BF16, MXFP8_BF16))
NVFP4_NVFP4, MXFP4_MXFP4, MXFP8_MXFP8 = (
    replace(x, d=x.a, blocks_d=x.scale_a) for x in (NVFP4_BF16, MXFP4_BF16, MXFP8_BF16)
)
BF16_INT4_G128, FP16_INT4_G128 = (_packed(x.a, INT4_G128) for x in (BF16, FP16))
BF16_INT4_G128_ZEROS, FP16_INT4_G128_ZEROS = (_packed(x.a, INT4_G128_ZEROS) for x in (BF16, FP16))
BF16_NVFP4, FP16_NVFP4 = (_packed(x.a, NVFP4_WEIGHT) for x in (BF16, FP16))
BF16_MXFP4, FP16_MXFP4 = (_packed(x.a, MXFP4_WEIGHT) for x in (BF16, FP16))
BF16_INT8, FP16_INT8 = (_packed(x.a, INT8_WEIGHT) for x in (BF16, FP16))
BF16_INT4_G64, FP16_INT4_G64 = (_packed(x.a, INT4_G64) for x in (BF16, FP16))
BF16_INT4_G64_ZEROS, FP16_INT4_G64_ZEROS = (_packed(x.a, INT4_G64_ZEROS) for x in (BF16, FP16))
BF16_INT4_G32, FP16_INT4_G32 = (_packed(x.a, INT4_G32) for x in (BF16, FP16))
BF16_INT4_G32_ZEROS, FP16_INT4_G32_ZEROS = (_packed(x.a, INT4_G32_ZEROS) for x in (BF16, FP16))
BF16_NVFP4_ROWS, FP16_NVFP4_ROWS = (_packed(x.a, NVFP4_WEIGHT_ROWS) for x in (BF16, FP16))
BF16_MXFP4_ROWS = _packed(BF16.a, MXFP4_WEIGHT_ROWS)
BF16_E4M3, FP16_E4M3 = (_packed(x.a, E4M3_WEIGHT) for x in (BF16, FP16))
