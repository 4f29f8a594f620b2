"""What stands between products: the catalogue of row operations that kernels are made for.

A row operation makes each row of Y (rows, cols) of a row of X. All arithmetic is in float32; each result is rounded
once. It has no k; its problems are told by rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from aot.core.constraints import Extent, Range, Word
from aot.core.element import ElementType
from aot.core.feature import Feature
from aot.core.formats import MX, NVFP4, SCALE_BLOCK, ScaleFormat, tag_of

if TYPE_CHECKING:
    from typing import Self  # Python 3.10 has none of its own


class RowFunction(Word):
    """What a row operation computes of a row x of X; the value is the last part of a tag."""

    RMS_NORM = "rms_norm"
    """z = x + residual, rounded to x's type; y = z * rsqrt(mean(z^2) + eps) * (weight + weight_offset).

    What is multiplied with the weight may be rounded to x's type first.
    """
    LAYER_NORM = "layer_norm"
    """z as above; y = (z - mean(z)) * rsqrt(mean((z - mean(z))^2) + eps) * weight + bias."""
    SILU_MUL = "silu_mul"
    """silu(gate) * linear, where X has 2 cols columns: the gate's and then the linear ones, or in turn."""
    GELU_TANH_MUL = "gelu_tanh_mul"
    """gelu_tanh(gate) * linear, likewise."""
    ROTARY = "rotary"
    """Rotary position embedding of X (tokens, heads, dim): a row is a head of a token, cols is dim."""
    QUANTIZE = "quantize"
    """x itself, in fewer bits."""


class RowScale(Enum):
    """What Y is divided by before it is rounded: float32 scales that go with Y."""

    NONE = "none"
    ROW = "row"
    """One scale for each row, which the kernel computes, or scales that the caller gives, one for each row or all."""
    BLOCK = "block"
    """One scale for each 128 columns of a row, which the kernel computes; the last block may be narrower."""
    TENSOR = "tensor"
    """One scale for all of Y, which the kernel computes; one that is given goes with `ROW`."""
    NVFP4 = "nvfp4"
    """An e4m3 factor for each 16 columns of a row, in atoms, over the tensor's own float32 factor, which is given."""
    MX = "mx"
    """A power of two for each 32 columns of a row, in atoms."""


FACTORS = {RowScale.NVFP4: NVFP4, RowScale.MX: MX}
"""The formats of scales that are no float32 numbers: those that block-scaled products read."""


NORMS = (RowFunction.RMS_NORM, RowFunction.LAYER_NORM)
PAIRS = (RowFunction.SILU_MUL, RowFunction.GELU_TANH_MUL)
"""Functions of two elements of X for each one of Y."""

KIND = "rows"
"""The kind of work that operations on rows are."""

BF16, FP16, INT8 = ElementType.BFLOAT16, ElementType.FLOAT16, ElementType.INT8
E4M3, E5M2, E2M1 = ElementType.E4M3, ElementType.E5M2, ElementType.E2M1


class RowOperation(Word):
    """One row operation, by its stable tag, such as `bf16_rms_norm` or `bf16_e4m3_quantize`.

    This is a catalogue, not a cross product. A line has the tag, the element type of X, the function, the element type
    of Y, and the scales that go with it.
    """

    x: ElementType
    y: ElementType
    function: RowFunction
    scale: RowScale

    BF16_RMS_NORM = "bf16_rms_norm", BF16, RowFunction.RMS_NORM
    FP16_RMS_NORM = "fp16_rms_norm", FP16, RowFunction.RMS_NORM
    BF16_E4M3_RMS_NORM = "bf16_e4m3_rms_norm", BF16, RowFunction.RMS_NORM, E4M3, RowScale.ROW
    FP16_E4M3_RMS_NORM = "fp16_e4m3_rms_norm", FP16, RowFunction.RMS_NORM, E4M3, RowScale.ROW
    BF16_LAYER_NORM = "bf16_layer_norm", BF16, RowFunction.LAYER_NORM
    FP16_LAYER_NORM = "fp16_layer_norm", FP16, RowFunction.LAYER_NORM
    BF16_E4M3_LAYER_NORM = "bf16_e4m3_layer_norm", BF16, RowFunction.LAYER_NORM, E4M3, RowScale.ROW
    BF16_SILU_MUL = "bf16_silu_mul", BF16, RowFunction.SILU_MUL
    FP16_SILU_MUL = "fp16_silu_mul", FP16, RowFunction.SILU_MUL
    BF16_E4M3_SILU_MUL = "bf16_e4m3_silu_mul", BF16, RowFunction.SILU_MUL, E4M3, RowScale.ROW
    BF16_GELU_TANH_MUL = "bf16_gelu_tanh_mul", BF16, RowFunction.GELU_TANH_MUL
    FP16_GELU_TANH_MUL = "fp16_gelu_tanh_mul", FP16, RowFunction.GELU_TANH_MUL
    BF16_ROTARY = "bf16_rotary", BF16, RowFunction.ROTARY
    FP16_ROTARY = "fp16_rotary", FP16, RowFunction.ROTARY
    BF16_E4M3_QUANTIZE = "bf16_e4m3_quantize", BF16, RowFunction.QUANTIZE, E4M3, RowScale.ROW
    FP16_E4M3_QUANTIZE = "fp16_e4m3_quantize", FP16, RowFunction.QUANTIZE, E4M3, RowScale.ROW
    BF16_INT8_QUANTIZE = "bf16_int8_quantize", BF16, RowFunction.QUANTIZE, INT8, RowScale.ROW
    BF16_E4M3_BLOCK_QUANTIZE = "bf16_e4m3_block_quantize", BF16, RowFunction.QUANTIZE, E4M3, RowScale.BLOCK
    BF16_E5M2_QUANTIZE = "bf16_e5m2_quantize", BF16, RowFunction.QUANTIZE, E5M2, RowScale.ROW
    FP16_E5M2_QUANTIZE = "fp16_e5m2_quantize", FP16, RowFunction.QUANTIZE, E5M2, RowScale.ROW
    BF16_E4M3_TENSOR_QUANTIZE = "bf16_e4m3_tensor_quantize", BF16, RowFunction.QUANTIZE, E4M3, RowScale.TENSOR
    FP16_E4M3_TENSOR_QUANTIZE = "fp16_e4m3_tensor_quantize", FP16, RowFunction.QUANTIZE, E4M3, RowScale.TENSOR
    BF16_E5M2_TENSOR_QUANTIZE = "bf16_e5m2_tensor_quantize", BF16, RowFunction.QUANTIZE, E5M2, RowScale.TENSOR
    FP16_E5M2_TENSOR_QUANTIZE = "fp16_e5m2_tensor_quantize", FP16, RowFunction.QUANTIZE, E5M2, RowScale.TENSOR
    BF16_INT8_TENSOR_QUANTIZE = "bf16_int8_tensor_quantize", BF16, RowFunction.QUANTIZE, INT8, RowScale.TENSOR
    BF16_NVFP4_QUANTIZE = "bf16_nvfp4_quantize", BF16, RowFunction.QUANTIZE, E2M1, RowScale.NVFP4
    BF16_MXFP8_QUANTIZE = "bf16_mxfp8_quantize", BF16, RowFunction.QUANTIZE, E4M3, RowScale.MX
    BF16_MXFP4_QUANTIZE = "bf16_mxfp4_quantize", BF16, RowFunction.QUANTIZE, E2M1, RowScale.MX
    BF16_NVFP4_RMS_NORM = "bf16_nvfp4_rms_norm", BF16, RowFunction.RMS_NORM, E2M1, RowScale.NVFP4
    BF16_MXFP8_RMS_NORM = "bf16_mxfp8_rms_norm", BF16, RowFunction.RMS_NORM, E4M3, RowScale.MX
    BF16_NVFP4_SILU_MUL = "bf16_nvfp4_silu_mul", BF16, RowFunction.SILU_MUL, E2M1, RowScale.NVFP4
    BF16_MXFP8_SILU_MUL = "bf16_mxfp8_silu_mul", BF16, RowFunction.SILU_MUL, E4M3, RowScale.MX

    def __new__(
        cls,
        tag: str,
        x: ElementType,
        function: RowFunction,
        y: ElementType | None = None,
        scale: RowScale = RowScale.NONE,
    ) -> Self:
        """Make a line of the catalogue."""
        self = str.__new__(cls, tag)
        self._value_ = tag
        self.x, self.y, self.function, self.scale = x, y or x, function, scale
        return self

    @property
    def tag(self) -> str:
        """Return the prefix of its kernels' names and the name of its section."""
        return str(self.value)

    @property
    def kind(self) -> str:
        """Return the name of its kind of work."""
        return KIND

    @cached_property
    def position(self) -> int:
        """Return the place in the catalogue, which orders the sections of a table."""
        return list(RowOperation).index(self)

    @property
    def needs(self) -> tuple[Feature, ...]:
        """Return what of a chip its element types ask for, whichever family computes it."""
        return (Feature.FP8,) if self.y in (E4M3, E5M2) else ()

    @property
    def is_norm(self) -> bool:
        """Say whether rows are normalised: then there may be a residual and a weight."""
        return self.function in NORMS

    @property
    def is_pair(self) -> bool:
        """Say whether an element of Y is made of two of X, which then has 2 cols columns."""
        return self.function in PAIRS

    @property
    def has_bias(self) -> bool:
        """Say whether a bias may be added."""
        return self.function is RowFunction.LAYER_NORM

    @property
    def is_quantized(self) -> bool:
        """Say whether Y has scales."""
        return self.scale is not RowScale.NONE

    @property
    def reads_for_scales(self) -> bool:
        """Say whether a scale depends on more than a block, so that what does not fit registers is read for it once."""
        return self.is_quantized and self.factors is None

    @property
    def factors(self) -> ScaleFormat | None:
        """Return the format of Y's scales where they are narrow and lie in atoms; None where they are float32."""
        return FACTORS.get(self.scale)

    @property
    def form(self) -> str:
        """Return the name of Y's format of blocks, such as `nvfp4`; empty where Y has none."""
        return "" if self.factors is None else tag_of(self.y, self.factors)

    @property
    def scale_element(self) -> ElementType:
        """Return the element type of the scales."""
        return ElementType.FLOAT32 if self.factors is None else self.factors.element

    @property
    def has_tensor_scale(self) -> bool:
        """Say whether a float32 scale of all of Y is given beside those of blocks."""
        return self.factors is not None and self.factors.has_tensor_factor

    @property
    def multiple(self) -> int:
        """Return what the columns are a multiple of: elements that share a byte fill whole ones."""
        return self.y.num_sharing

    @property
    def reduces_rows(self) -> bool:
        """Say whether an element of Y depends on all of its row of X, so that one CTA must read the whole row."""
        return self.is_norm or self.scale is RowScale.ROW

    @property
    def flops_of_element(self) -> int:
        """Count the arithmetic for an element of Y.

        A mean adds, a variance multiplies and adds, a norm multiplies by both root and weight; a gate is an
        exponential, a sum, a quotient and a product; a rotation two products and a sum; a scale a maximum and a
        product.
        """
        own = {
            RowFunction.RMS_NORM: 4,
            RowFunction.LAYER_NORM: 7,
            RowFunction.SILU_MUL: 4,
            RowFunction.GELU_TANH_MUL: 9,
            RowFunction.ROTARY: 3,
        }.get(self.function, 0)
        return own + 2 * self.is_quantized

    @property
    def num_launches(self) -> int:
        """Return the kernels that a call launches: a tensor's scale is cleared, found and used by one each."""
        return 3 if self.scale is RowScale.TENSOR else 1

    @cached_property
    def twins(self) -> tuple[RowOperation, ...]:
        """Return the operations that differ in X's element type alone: they share their candidates."""

        def parts(operation: RowOperation) -> tuple[object, ...]:
            return operation.function, operation.scale, operation.y if operation.is_quantized else None

        return tuple(x for x in RowOperation if x is not self and parts(x) == parts(self))

    def num_columns_of_x(self, cols: int) -> int:
        """Return the columns that X has for cols columns of Y."""
        return 2 * cols if self.is_pair else cols

    def num_scales(self, rows: int, cols: int) -> int:
        """Count the scales that go with Y (rows, cols), without what fills atoms up."""
        height, width = self.shape_of_scales(rows, cols)
        return height * width if self.is_quantized else 0

    def shape_of_scales(self, rows: int, cols: int) -> tuple[int, int]:
        """Return the rows and columns of the scales that go with a quantised Y (rows, cols)."""
        if self.scale is RowScale.TENSOR:
            return 1, 1
        if self.factors is not None:
            return self.factors.num_factors(rows, cols)
        return rows, -(-cols // SCALE_BLOCK) if self.scale is RowScale.BLOCK else 1

    def num_bytes(self, rows: int, cols: int, *, has_residual: bool = False) -> int:
        """Count the fewest bytes that device memory must move: X, residual and weight are read, all else is written.

        Weights and biases are read once; of a rotary embedding's cosines and sines, which heads share, nothing is
        counted.
        """
        moved = self.x.size_of(rows * self.num_columns_of_x(cols)) + self.y.size_of(rows * cols)
        moved += 2 * self.x.size_of(rows * cols) if has_residual else 0
        moved += self.x.size_of(cols) * (self.is_norm + self.has_bias)
        return moved + self.scale_element.size_of(self.num_scales(rows, cols))


MAX_COLS = 2**30
"""Most columns of Y: kernels count the 2 cols columns of a pair, and columns beside a row's last, in 32 bits."""


@dataclass(frozen=True, order=True)
class RowProblem:
    """One row operation and the sizes of Y. A rotary embedding has a row for each head of each token."""

    operation: RowOperation
    rows: Extent
    cols: Annotated[int, Range(1, MAX_COLS)]

    @property
    def num_bytes(self) -> int:
        """Count the fewest bytes that device memory must move, without a residual."""
        return self.operation.num_bytes(self.rows, self.cols)

    @property
    def flops(self) -> int:
        """Count the arithmetic, an exponential or a root as one: memory bounds every one of them."""
        return self.operation.flops_of_element * self.rows * self.cols

    @property
    def name(self) -> str:
        """Return the name used in tables and messages, such as `bf16_rms_norm rows 16 cols 4096`."""
        return f"{self.operation.tag} rows {self.rows} cols {self.cols}"
