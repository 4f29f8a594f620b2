"""The arguments of a kernel's C entry: the family builds it from them, the manifest holds them, the runtime obeys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.constraints import Word
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping

if TYPE_CHECKING:
    from aot.core.operation import Operation


class Argument(Word):
    """One argument. Their order in a signature is that of these lines."""

    A = "a"
    """Tensor (m, k); of a batch (num_groups, m, k); where k is grouped, k is that of all groups, and so it is of B."""
    B = "b"
    """Tensor (n, k); with a gate (2, n, k), the gate's rows and the linear ones. Of a batch and of grouped rows the
    groups stand in front: (num_groups, n, k) or (num_groups, 2, n, k); likewise in what goes with rows of B. A packed
    weight is a matrix of bytes, as `aot.core.weight_format.PackedLayout` has it, with a gate two of them.

    Without groups the step from the gate's rows of B to the linear ones may be below 0, which TMA does not take: they
    are weights of their own, and either may lie in front."""
    D = "d"
    """Tensor (m, n); of a batch, and where k is grouped, (num_groups, m, n). Where rows are grouped, m is of all."""
    SCALE_A = "scale_a"
    """Float32 vector (m) of a stride of 1 or 0; of blocks (m, k / 128)."""
    SCALE_B = "scale_b"
    """Float32 vector (n) of a stride of 1 or 0, with a gate (2, n); of blocks (n / 128, k / 128). In atoms these and
    those of A are a vector of bytes, with a gate those of its 2 n rows as they alternate; where rows are grouped, those
    of the groups' B one behind the other, or as `SCALE_B_OF_GROUPS` says, and of A as `aot.core.factor_atoms` has
    them."""
    BIAS = "bias"
    """Vector (n), contiguous, with a gate (2, n); of 0 elements where a bias may be left away and is."""
    RESIDUAL = "residual"
    """Tensor (m, n) of D's type, row-major."""
    SCALE_D = "scale_d"
    """Float32 vector of one element, by which a D of 8 bits is multiplied before it is rounded, or the sum before a
    bias: the factor of all of A times that of all of B. Where rows are grouped a contiguous vector (num_groups), of the
    factor of all of A times that of the group's B."""
    OWN_D = "own_d"
    """Float32 vector of one element: D's own factor, where its format has one. What D's elements stand for is they,
    times the factors of their blocks, times this."""
    FACTORS_D = "factors_d"
    """Vector of bytes, written: the factors of D's blocks along n, in the atoms of (m, n) that a product reads as those
    of its A."""
    OFFSETS = "offsets"
    """int32 vector (num_groups): where each group ends, in rows or in k, ascending, as torch._grouped_mm has them."""
    INDEX = "index"
    """int32 vector (m), contiguous: the row of A that each row of the groups is."""
    B_OF_GROUPS = "b_of_groups"
    """int64 vector (num_groups) in host memory: the address of each group's B, where they are no one stack; a multiple
    of B's first stride behind B's own address. Of 0 elements where group i's is matrix i of B."""
    PLACES = "places"
    """int32 vector (num_groups), of 0 elements as `B_OF_GROUPS`: the entry has written to it which matrix each is."""
    SCALE_B_OF_GROUPS = "scale_b_of_groups"
    """int64 vector (num_groups) in host memory: the address of each group's atoms of factors of B, where those do not
    lie one behind the other; a multiple of as many bytes as `SCALE_B` then has elements, behind `SCALE_B`'s own
    address. Of 0 elements elsewhere."""
    SCALE_B_PLACES = "scale_b_places"
    """int32 vector (num_groups), of 0 elements as `SCALE_B_OF_GROUPS`: the entry has written to it how many of those
    steps each lies behind."""
    PARTS = "parts"
    """int64 vector (PARTS_WORDS) in host memory: where the parts of B, D and the bias lie, of several weights, as
    `aot.core.signature.PART_WORDS` has them. B (n, k) and D (m, n) are then the first part's with all parts' n."""
    WORKSPACE = "workspace"
    """Float32 tensor, one-dimensional, as `Workspace` sizes it."""
    PREFETCH_B = "prefetch_b"
    """int32: nonzero if the kernel may read B before the kernel in front has ended, which must not have written it."""
    TILE_ORDER = "tile_order"
    """int32: the order in which a persistent kernel takes its tiles, of `aot.core.tile_order`."""
    STREAM = "stream"
    """CUstream."""


PART_WORDS = ("n", "b", "b_row", "b_column", "d", "d_row", "d_column", "bias")
"""What each of MAX_PARTS parts is told by, in this order: its rows of B, then addresses, 0 for no bias, and strides in
elements. A part that there is not has no rows, and the addresses and strides of the first."""

Signature = tuple[Argument, ...]


def signature_of(
    operation: Operation, *, has_workspace: bool, prefetches_b: bool, orders_tiles: bool = False
) -> Signature:
    """Return the signature of a kernel."""
    has_atoms_of_groups = operation.grouping.groups_rows and operation.types.factors is FactorLayout.ATOMS
    is_there = {
        Argument.SCALE_A: operation.types.scale_a is not None,
        Argument.SCALE_B: operation.types.scale_b is not None,
        Argument.BIAS: operation.has_bias,
        Argument.RESIDUAL: operation.has_residual,
        Argument.SCALE_D: operation.types.scales_d,
        Argument.OWN_D: operation.factors_of_d is not None and operation.factors_of_d.has_tensor_factor,
        Argument.FACTORS_D: operation.factors_of_d is not None,
        Argument.OFFSETS: operation.grouping.has_offsets,
        Argument.INDEX: operation.grouping is Grouping.GATHERED,
        Argument.B_OF_GROUPS: operation.grouping.groups_rows,
        Argument.PLACES: operation.grouping.groups_rows,
        Argument.SCALE_B_OF_GROUPS: has_atoms_of_groups,
        Argument.SCALE_B_PLACES: has_atoms_of_groups,
        Argument.PARTS: operation.has_parts,
        Argument.WORKSPACE: has_workspace,
        Argument.PREFETCH_B: prefetches_b,
        Argument.TILE_ORDER: orders_tiles,
    }
    return tuple(argument for argument in Argument if is_there.get(argument, True))
