"""What a product is but for its sizes: element types, layout, epilogue and grouping, and what follows from them."""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from aot.core.constraints import Word
from aot.core.element import BYTE_BITS, ElementType
from aot.core.epilogue import ACTIVATIONS, GATES, Epilogue, Step
from aot.core.formats import FactorLayout, Operand, ScaleFormat
from aot.core.grouping import Grouping

if TYPE_CHECKING:
    from typing import Self  # Python 3.10 has none of its own

    from aot.core.feature import Feature
    from aot.core.types import Types


class Layout(Enum):
    """Which mode of A and of B is contiguous in memory; D is always row-major.

    The first letter is A's (`k`: row-major (m, k); `m`: its transpose), the second is B's (`k`: row-major (n, k), a
    torch weight; `n`: its transpose, the row-major (k, n) right operand of torch.matmul). A column-major D is the same
    problem with A and B exchanged, so no letter is needed for it.
    """

    KK = "kk"
    KN = "kn"
    MK = "mk"
    MN = "mn"

    @property
    def a_k_major(self) -> bool:
        """Say whether A is contiguous along k."""
        return self.value[0] == "k"

    @property
    def b_k_major(self) -> bool:
        """Say whether B is contiguous along k."""
        return self.value[1] == "k"

    @property
    def code(self) -> int:
        """Return the number by which the runtime knows the layout: bit 1 is A's, bit 0 is B's; 0 means k-major."""
        return (not self.a_k_major) * 2 + (not self.b_k_major)


KIND = "gemm"
"""The kind of work that products are."""


class Product(Word):
    """A line of a catalogue of products, by its stable tag, such as `bf16_kk` or `bf16_kk_bias`."""

    types: Types
    layout: Layout
    epilogue: Epilogue
    _grouping: Grouping

    def __new__(
        cls,
        tag: str,
        types: Types,
        layout: Layout,
        epilogue: Epilogue = Epilogue.NONE,
        grouping: Grouping = Grouping.DENSE,
    ) -> Self:
        """Make a line of the catalogue."""
        self = str.__new__(cls, tag)
        self._value_ = tag
        self.types, self.layout, self.epilogue, self._grouping = types, layout, epilogue, grouping
        return self

    @property
    def tag(self) -> str:
        """Return the prefix of its kernels' names and the name of its section."""
        return str(self.value)

    @property
    def kind(self) -> str:
        """Return the name of its kind of work."""
        return KIND

    @property
    def needs(self) -> tuple[Feature, ...]:
        """Return what of a chip its element types ask for, whichever family computes it."""
        return self.types.needs

    @cached_property
    def call(self) -> str:
        """Return the tag by which a caller of the library asks for it, such as `bf16_bias`: strides give the layout."""
        return "_".join([self.types.tag, *self.suffixes])

    @cached_property
    def suffixes(self) -> tuple[str, ...]:
        """Return the parts of the tag behind the layout: the grouping's and the epilogue's, where there are any."""
        grouping = () if self.grouping is Grouping.DENSE else (self.grouping.value,)
        return (*grouping, *(() if self.epilogue is Epilogue.NONE else (self.epilogue.value,)))

    @property
    def element(self) -> ElementType:
        """Return the element type of A."""
        return self.types.a

    @cached_property
    def a(self) -> Operand:
        """Return the left operand."""
        of = self.types
        return Operand(of.a, self.layout.a_k_major, of.scale_a, is_padded=of.pads(of.a))

    @cached_property
    def b(self) -> Operand:
        """Return the right operand."""
        of = self.types
        return Operand(of.b, self.layout.b_k_major, of.scale_b, of.weight, of.pads(of.b))

    @property
    def d(self) -> ElementType:
        """Return the element type of D and of a residual."""
        return self.types.d

    @property
    def bias(self) -> ElementType:
        """Return the element type of a bias: D's, or bfloat16 where D is of 8 bits or fewer, as torch has it."""
        return ElementType.BFLOAT16 if self.d.bits <= BYTE_BITS else self.d

    @property
    def factors_of_d(self) -> ScaleFormat | None:
        """Return the format of the factors that are written with D; None where D is elements alone."""
        return self.types.blocks_d

    @property
    def grouping(self) -> Grouping:
        """Return how many products a launch computes."""
        return self._grouping

    @property
    def accumulator(self) -> ElementType:
        """Return the element type of the accumulator."""
        return self.types.accumulator

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Return the steps between the accumulator and D, in order.

        Beside vectors of scales, and a packed weight, there may be a bias.
        """
        scaled = {None: (), FactorLayout.VECTOR: (Step.SCALE, Step.BIAS)}.get(self.types.factors, (Step.SCALE,))
        scaled = scaled if self.types.weight is None else tuple(dict.fromkeys((*scaled, Step.BIAS)))
        return tuple(dict.fromkeys((*scaled, *self.epilogue.steps)))

    @property
    def has_bias(self) -> bool:
        """Say whether the epilogue adds a bias, or may."""
        return Step.BIAS in self.steps

    @property
    def has_residual(self) -> bool:
        """Say whether the epilogue adds a matrix of D's shape and type."""
        return Step.RESIDUAL in self.steps

    @property
    def activation(self) -> Step | None:
        """Return the activation, or None where there is none."""
        return next((step for step in self.steps if step in ACTIVATIONS), None)

    @cached_property
    def gate(self) -> Step | None:
        """Return the gate, or None where there is none. With one, B holds 2 n rows: the gate's, and the linear ones."""
        return next((step for step in self.steps if step in GATES), None)

    @property
    def is_interleaved(self) -> bool:
        """Say whether a gate's rows of B alternate with the linear ones in any case, the gate's first.

        Elsewhere a caller may choose, if `may_interleave`. Factors in atoms lie as the rows do, which a view puts in no
        other order.
        """
        return self.gate is not None and self.types.factors is FactorLayout.ATOMS

    @property
    def may_interleave(self) -> bool:
        """Say whether a gate's rows of B may alternate with the linear ones.

        They would share factors of blocks, and bytes where they are packed, of which each has its own.
        """
        return self.gate is not None and self.types.factors is not FactorLayout.BLOCK and self.types.weight is None

    @cached_property
    def can_exchange(self) -> bool:
        """Say whether the problem with A and B exchanged, which computes D's transpose, is of the catalogue too.

        An exchange would turn a bias of columns into one of rows, and groups of rows into groups of columns.
        """
        return not self.steps and self.types.a is self.types.b and not self.grouping.has_offsets

    @cached_property
    def k_step(self) -> int:
        """Return what k must be a multiple of, whatever the alignment, for kernels other than the fallback."""
        return max(self.a.whole, self.b.whole)

    @property
    def has_parts(self) -> bool:
        """Say whether B and D are several matrices, and the bias as many vectors: of several weights in one launch."""
        return Step.MANY in self.steps

    def num_rows_of_b(self, n: int) -> int:
        """Return the rows that B has for n columns of D."""
        return n if self.gate is None else 2 * n

    def num_bytes(self, m: int, n: int, k: int, num_groups: int = 1) -> int:
        """Count the fewest bytes that device memory must move: operands are read once, D is written once.

        Args:
            m: rows of D; where rows are grouped, those that are expected of a group.
            n: columns of D.
            k: length of the sums; where k is grouped, what is expected of a group.
            num_groups: products of a batch, none of which share an operand, or groups.
        """
        moved = self._product_bytes(m, n, k) * num_groups
        if self.grouping.has_offsets:
            moved += ElementType.INT32.size_of(num_groups)
        if self.grouping is Grouping.GATHERED:
            moved += ElementType.INT32.size_of(m * num_groups)
        return moved

    def _product_bytes(self, m: int, n: int, k: int) -> int:
        rows = self.num_rows_of_b(n)
        moved = self.a.size_of(m, k) + self.b.size_of(rows, k)
        moved += self.d.size_of(m * n) * (2 if self.has_residual else 1)
        moved += 0 if self.factors_of_d is None else self.factors_of_d.size_of(m, n)
        return moved + (self.bias.size_of(rows) if self.has_bias else 0)
