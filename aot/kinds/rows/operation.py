"""What stands between products: an operation on rows, a line of the catalogue that kernels are made for.

A row operation makes each row of Y (rows, cols) of a row of X. All arithmetic is in float32; each result is rounded
once. It has no k; its problems are told by rows and columns.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from aot.core.element import ElementType
from aot.core.feature import Feature
from aot.core.formats import MX, NVFP4, SCALE_BLOCK, ScaleFormat, tag_of
from aot.kinds.rows.function import NORMS
from aot.kinds.rows.signature import RowArgument

if TYPE_CHECKING:
    from typing import Self  # Python 3.10 has none of its own

    from aot.kinds.rows.function import RowFunction
    from aot.kinds.rows.signature import RowSignature


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


KIND = "rows"
"""The kind of work that operations on rows are."""

MAX_COLS = 2**30
"""Most columns of Y: kernels count the 2 cols columns of a pair, and columns beside a row's last, in 32 bits."""


class RowOperation(str):  # noqa: SLOT000 - it has a dictionary of what it is
    """One row operation, by its stable tag, such as `bf16_rms_norm` or `bf16_e4m3_quantize`.

    It has the element type of X, the function, the element type of Y, and the scales that go with it. The catalogue,
    `aot.kinds.rows.catalogue`, lists those that there are, and has each of them once.
    """

    x: ElementType
    y: ElementType
    function: RowFunction
    scale: RowScale
    position: int
    """Its place in the catalogue, which orders the sections of a table."""

    def __new__(
        cls,
        tag: str,
        x: ElementType,
        function: RowFunction,
        y: ElementType | None = None,
        scale: RowScale = RowScale.NONE,
        position: int = 0,
    ) -> Self:
        """Make a line of a catalogue, which says the position."""
        self = str.__new__(cls, tag)
        self.__dict__.update(x=x, y=y or x, function=function, scale=scale, position=position)
        return self

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: an operation stays as it was made."""
        raise AttributeError(f"{name} of the operation {self} cannot be set")

    def __getnewargs__(self) -> tuple[object, ...]:  # type: ignore[override]
        """Return what another process makes it of."""
        return str(self), self.x, self.function, self.y, self.scale, self.position

    def __repr__(self) -> str:
        """Return what kernels are named by, and what is therefore a part of their objects."""
        return f"<RowOperation.{self.upper()}: {str(self)!r}>"

    def at(self, position: int) -> RowOperation:
        """Return it at a place in the catalogue."""
        return RowOperation(str(self), self.x, self.function, self.y, self.scale, position)

    @property
    def tag(self) -> str:
        """Return the prefix of its kernels' names and the name of its section."""
        return str(self)

    @property
    def kind(self) -> str:
        """Return the name of its kind of work."""
        return KIND

    @property
    def needs(self) -> tuple[Feature, ...]:
        """Return what of a chip its element types ask for, whichever family computes it."""
        return (Feature.FP8,) if self.y in (ElementType.E4M3, ElementType.E5M2) else ()

    @property
    def is_norm(self) -> bool:
        """Say whether rows are normalised, by a norm of ours: then there may be a residual and a weight."""
        return self.function in NORMS

    @property
    def is_pair(self) -> bool:
        """Say whether an element of Y is made of two of X, which then has 2 cols columns."""
        return self.function.is_pair

    @property
    def is_rotary(self) -> bool:
        """Say whether rows are heads of tokens, which are turned by angles."""
        return self.function.is_rotary

    @property
    def has_bias(self) -> bool:
        """Say whether a bias may be added."""
        return RowArgument.BIAS in self.function.arguments

    @property
    def num_vectors(self) -> int:
        """Count the operands that all rows share."""
        return len({RowArgument.WEIGHT, RowArgument.BIAS} & {*self.function.arguments})

    @property
    def signature(self) -> RowSignature:
        """Return the arguments of its kernels' entry, which all have the same, in their order."""
        always = {RowArgument.X, RowArgument.Y, RowArgument.FLAGS, RowArgument.STREAM}
        more = {RowArgument.SCALE: self.is_quantized, RowArgument.TENSOR_SCALE: self.has_tensor_scale}
        more |= dict.fromkeys((RowArgument.OFFSETS, RowArgument.INDEX), self.takes_groups)
        there = always | {*self.function.arguments} | {x for x, is_there in more.items() if is_there}
        return tuple(x for x in RowArgument if x in there)

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
    def takes_groups(self) -> bool:
        """Say whether rows may be in groups, with whose first ones atoms begin anew, and be gathered by an index.

        What groups need is known behind a router, which reads a norm's result: norms are not computed in groups.
        """
        return self.factors is not None and not self.reduces_rows

    @property
    def multiple(self) -> int:
        """Return what the columns are a multiple of: elements that share a byte fill whole ones."""
        return self.y.num_sharing

    @property
    def reduces_rows(self) -> bool:
        """Say whether an element of Y depends on all of its row of X, so that one CTA must read the whole row."""
        return self.function.num_reductions > 0 or self.scale is RowScale.ROW

    @property
    def flops_of_element(self) -> int:
        """Count the arithmetic for an element of Y; a scale is a maximum and a product."""
        return self.function.flops + 2 * self.is_quantized

    @property
    def num_launches(self) -> int:
        """Return the kernels that a call launches: a tensor's scale is cleared, found and used by one each."""
        return 3 if self.scale is RowScale.TENSOR else 1

    def is_twin_of(self, other: RowOperation) -> bool:
        """Say whether two operations differ in X's element type alone: they share their candidates."""

        def parts(operation: RowOperation) -> tuple[object, ...]:
            return operation.function, operation.scale, operation.y if operation.is_quantized else None

        return self != other and parts(self) == parts(other)

    def num_columns_of_x(self, cols: int) -> int:
        """Return the columns that X has for cols columns of Y."""
        return self.function.width * cols

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
        moved += self.x.size_of(cols) * self.num_vectors
        return moved + self.scale_element.size_of(self.num_scales(rows, cols))
