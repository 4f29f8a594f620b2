"""How `SplitGemmSm90` loads an operand's tile, alone or as one of several CTAs of a cluster. Imports CUTLASS and quack.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Constexpr, Int32, const_expr, cute
from quack import copy_utils

from aot.families._descriptor import pointer_to_descriptor
from aot.families._sm90_split_tile import Tile

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
    num_bytes: Any
    """What arrives of it in a stage, whichever CTA loads it."""
    turns: int = 1
    """CTAs that load it in turns, each all of it for all; 1 where a CTA loads each block, or its part of each."""
    turn: Any = 0
    """This CTA's number among them: it loads the blocks of k with `k_block % turns == turn`."""
    descriptor: Any = None
    """The address of the descriptor that the load takes in place of its own, Int64."""


@dataclass(frozen=True)
class Sharers:
    """The CTAs of a cluster that share an operand's tile."""

    count: int
    first: Any
    """The first of them in the cluster."""
    part: Any
    """This CTA's number among them."""
    step: int = 1
    """CTAs of the cluster from one of them to the next."""
    in_turns: bool = False
    """Whether each loads whole blocks in its turn for all; else each loads its part of the rows of every block."""


def make_copy(load: Any, stages: Any, place: tuple[int, Any], sharers: Sharers) -> Copy:
    """Make what loads a block of k of an operand's tile.

    Args:
        load: the TMA atom and the operand in global memory, and perhaps the address of a descriptor, Int64, that the
            load takes in place of the atom's.
        stages: the operand's stages in shared memory.
        place: rows of the operand's tile, and the tile's number.
        sharers: the CTAs that share the operand.
    """
    atom, operand, *descriptors = load
    extent, tile = place
    source = cute.local_tile(operand, (extent, cute.size(stages, mode=[1])), (tile, None))
    num_bytes = extent * cute.size(stages, mode=[1]) * int(stages.element_type.width) // 8
    copy = copy_of(atom, source, stages, sharers)
    turns = (sharers.count, sharers.part) if sharers.in_turns else (1, 0)
    return Copy(copy, num_bytes, *turns, *descriptors)


def copy_of(atom: Any, source: Any, stages: Any, sharers: Sharers) -> Any:
    """Make what copies a block of k of `source`, (rows, k of a block, blocks), to a stage."""
    if sharers.count == 1:
        return copy_utils.tma_get_block_copy_fn(atom, src_tensor=source, dst_tensor=stages)
    mask = cutlass.Int16(Int32(sum(1 << (sharers.step * i) for i in range(sharers.count))) << sharers.first)
    parts, own = (1, 0) if sharers.in_turns else (sharers.count, sharers.part)
    copy, _, _ = copy_utils.tma_get_copy_fn(atom, own, cute.make_layout(parts), source, stages, mcast_mask=mask)
    return copy


@cute.jit
def load_block(copy: Constexpr[Copy], k_block: Int32, stage: Int32, barrier: Any) -> None:
    """Load a block of k into a stage, or leave it to the CTA whose turn it is."""
    if const_expr(copy.turns == 1):  # noqa: SIM114 - known while tracing, the next is not
        _load(copy, k_block, stage, barrier)
    elif k_block % copy.turns == copy.turn:
        _load(copy, k_block, stage, barrier)


@cute.jit
def _load(copy: Constexpr[Copy], k_block: Int32, stage: Int32, barrier: Any) -> None:
    if const_expr(copy.descriptor is None):
        copy.load(k_block, stage, tma_bar_ptr=barrier)
    else:
        copy.load(k_block, stage, tma_bar_ptr=barrier, tma_desc_ptr=pointer_to_descriptor(copy.descriptor))


def barriers(storage: Any, tile: Tile) -> Any:
    """Return the barriers of full stages, of empty stages, and of what a CTA receives from the cluster."""
    first = storage.barriers.data_ptr()
    return first, first + tile.num_stages, first + 2 * tile.num_stages
