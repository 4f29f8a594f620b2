"""How the warps of `SplitGemm` load blocks of k of an operand's tile, and how they read them. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync

from aot.families._descriptor import pointer_to_descriptor

WORDS = 4
"""32-bit registers of a chunk."""


def make_load(operand: Any, layout: Any, box: tuple[int, int]) -> Any:
    """Make the TMA atom that loads boxes of (rows, k), and the operand's view for it; to be called while tracing."""
    target = cute.composition(cute.select(layout, [0, 1]), box)
    return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), operand, target, box)


def partition(load: Any, memory: Any, layout: Any, box: tuple[int, int], tile: Any) -> Any:
    """Make the atom's view of a tile in global memory, (box, block of k), and of the stages, (box, stage)."""
    atom, operand = load
    stages = memory.get_tensor(layout.outer, swizzle=layout.inner)
    boxes = cute.local_tile(stages, box, (0, 0, None))
    tiles = cute.local_tile(operand, box, (tile, None))
    target, source = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(boxes, 0, 2), cute.group_modes(tiles, 0, 2)
    )
    return atom, source, target


def _descriptor_at(address: Any = None) -> dict[str, Any]:
    """Return the options of a copy by the descriptor at an address; of the atom's own descriptor none."""
    return {} if address is None else {"tma_desc_ptr": pointer_to_descriptor(address)}


@cute.jit
def load_block(pair: Any, k_block: Int32, stage: Int32, barrier: Any) -> None:
    """Load a block of k of one operand's tile into a stage, by the atom's own descriptor or by one at an address."""
    atom, source, target, *address = pair
    cute.copy(atom, source[None, k_block], target[None, stage], tma_bar_ptr=barrier, **_descriptor_at(*address))


def chunks(memory: Any, first: Int32, count: int) -> Any:
    """View `count` chunks of 16 bytes of stages from a chunk on, (words, chunks)."""
    words = cute.recast_ptr(memory.data_ptr(), dtype=Int32)
    everything = cute.make_tensor(words, cute.make_layout((WORDS, 1 << 20), stride=(1, WORDS)))
    start = everything[None, first].iterator
    return cute.make_tensor(start, cute.make_layout((WORDS, count), stride=(1, WORDS)))
