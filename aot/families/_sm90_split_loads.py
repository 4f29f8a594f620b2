"""How `SplitGemmSm90` loads an operand's tile, alone or as one of several CTAs of a cluster. Imports CUTLASS and quack.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Constexpr, Int32, const_expr, cute
from quack import copy_utils

MODES_OF_A_BATCH = 3
"""Modes of an operand of a batch: products, rows, and k or columns."""


def products_last(operand: cute.Tensor) -> Any:
    """View an operand with the products of a batch, if it is one, behind its rows and k, as TMA's tiles expect."""
    if cute.rank(operand) < MODES_OF_A_BATCH:
        return operand
    return cute.make_tensor(operand.iterator, cute.select(operand.layout, [1, 2, 0]))


@dataclass(frozen=True)
class Copy:
    """What loads a block of k of an operand's tile: `load(k_block, stage, tma_bar_ptr=barrier)`."""

    load: Any
    turns: int = 1
    """CTAs that load it in turns, each all of it for all; 1 where a CTA loads each block, or its part of each."""
    turn: Any = 0
    """This CTA's number among them: it loads the blocks of k with `k_block % turns == turn`."""


def make_copy(
    load: Any,
    stages: Any,
    place: tuple[int, Any],
    sharing: int,
    first: Any,
    part: Any,
    step: int = 1,
    in_turns: bool = False,
) -> Copy:
    """Make what loads a block of k of an operand's tile.

    Where tiles of the cluster share the operand, each loads its part of the rows for all, or each in its turn all rows.

    Args:
        load: the TMA atom and the operand in global memory.
        stages: the operand's stages in shared memory.
        place: rows of the operand's tile, and the tile's number.
        sharing: CTAs that share the operand; the parts, of which this CTA loads `part`.
        first: the first of these CTAs in the cluster.
        part: this CTA's number among them.
        step: CTAs of the cluster from one of them to the next.
        in_turns: whether they take turns.
    """
    atom, operand = load
    extent, tile = place
    source = cute.local_tile(operand, (extent, cute.size(stages, mode=[1])), (tile, None))
    if sharing == 1:
        return Copy(copy_utils.tma_get_block_copy_fn(atom, src_tensor=source, dst_tensor=stages))
    mask = cutlass.Int16(Int32(sum(1 << (step * i) for i in range(sharing))) << first)
    parts, own = (1, 0) if in_turns else (sharing, part)
    copy, _, _ = copy_utils.tma_get_copy_fn(atom, own, cute.make_layout(parts), source, stages, mcast_mask=mask)
    return Copy(copy, sharing, part) if in_turns else Copy(copy)


@cute.jit
def load_block(copy: Constexpr[Copy], k_block: Int32, stage: Int32, barrier: Any) -> None:
    """Load a block of k into a stage, or leave it to the CTA whose turn it is."""
    if const_expr(copy.turns == 1):  # noqa: SIM114 - known while tracing, the next is not
        copy.load(k_block, stage, tma_bar_ptr=barrier)
    elif k_block % copy.turns == copy.turn:
        copy.load(k_block, stage, tma_bar_ptr=barrier)
