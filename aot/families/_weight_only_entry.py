"""What `weight_only` compiles: an entry of a kernel, and fake arguments. Imports CUTLASS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.families._packed_operands import packed_entry
from aot.families._weight_only_kernel import WeightOnlyGemm

if TYPE_CHECKING:
    from aot.core.epilogue import Step
    from aot.families._weight_only_tile import Tile

STORES = 2
"""Bytes of which the rows of D begin at multiples: an element."""


def weight_only_entry(
    tile: Tile, element: Any, *, is_scaled: bool, is_dependent: bool, gate: Step | None = None
) -> tuple[Any, tuple[Any, ...]]:
    """Make the entry and its fake arguments."""
    gemm = WeightOnlyGemm(element, tile, is_dependent, gate)
    return packed_entry(gemm, element, is_scaled=is_scaled, gate=gate, stores=STORES)
