"""What the kernels of `_row_kernel` and its kin are given, and what a norm's threads keep of it."""

from typing import Any, NamedTuple


class Operands(NamedTuple):
    """The arguments of an entry but the stream, None where the operation has none."""

    x: Any
    residual: Any
    weight: Any
    bias: Any
    y: Any
    """Of e2m1 a tensor of bytes, whose extents and strides count elements."""
    residual_out: Any
    scale: Any
    """Of factors in atoms bytes: a row of atoms for each 128 rows of Y."""
    tensor_scale: Any
    offsets: Any
    index: Any
    eps: Any
    weight_offset: Any
    flags: Any

    @property
    def without_groups(self) -> tuple[Any, ...]:
        """Return those but offsets and index, which kernels of factors alone have."""
        first = self._fields.index("offsets")
        return self[:first] + self[first + 2 :]


class Affine(NamedTuple):
    """What normalised values are multiplied by, and what is added; registers of X's type."""

    weight: Any
    bias: Any
    offset: Any
