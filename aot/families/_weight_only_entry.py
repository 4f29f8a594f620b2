"""What `weight_only` compiles: an entry of a kernel, and fake arguments. Imports CUTLASS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.core.grouping import Grouping
from aot.families._packed_operands import packed_entry
from aot.families._weight_only_groups import WeightOnlyGroups, grouped_entry
from aot.families._weight_only_kernel import WeightOnlyGemm

if TYPE_CHECKING:
    from aot.core.epilogue import Step
    from aot.families._weight_only_tile import Tile

STORES = 2
"""Bytes of which the rows of D begin at multiples: an element."""


def weight_only_entry(
    tile: Tile,
    element: Any,
    *,
    is_scaled: bool,
    is_dependent: bool,
    gate: Step | None = None,
    grouping: Grouping = Grouping.DENSE,
) -> tuple[Any, tuple[Any, ...]]:
    """Make the entry and its fake arguments."""
    if grouping.groups_rows:
        groups = WeightOnlyGroups(element, tile, is_dependent)
        is_gathered = grouping is Grouping.GATHERED
        return grouped_entry(groups, is_scaled=is_scaled, is_gathered=is_gathered, stores=STORES)
    gemm = WeightOnlyGemm(element, tile, is_dependent, gate)
    return packed_entry(gemm, element, is_scaled=is_scaled, gate=gate, stores=STORES)
