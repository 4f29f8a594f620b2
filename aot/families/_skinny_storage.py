"""What a CTA of the kernels for few rows keeps in shared memory. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cutlass import Float32, Int32, Int64, cute, range_constexpr

from aot.families._skinny_tile import ALIGN_BYTES, Tile


def shared_memory(tile: Tile, element: Any, block_k: int) -> Any:
    """Describe a CTA's shared memory: the stages of B and of A, the cluster's sums, the barriers, the factors.

    Args:
        tile: the kernel's tile.
        element: CUTLASS's type of A and B.
        block_k: elements of k in a stage.
    """

    def stages(rows: int) -> Any:
        count = rows * block_k * tile.num_warps * tile.num_stages
        return cute.struct.Align[cute.struct.MemRange[element, count], ALIGN_BYTES]

    fields = {
        "b": stages(tile.rows),
        "a": stages(tile.padded_columns),
        "received": cute.struct.Align[cute.struct.MemRange[Float32, tile.num_received], 16],
        "barriers": cute.struct.MemRange[Int64, tile.num_barriers],
    }
    if tile.num_factors:
        fields["factors"] = cute.struct.MemRange[Float32, tile.num_factors]
    return cute.struct(type("SharedMemory", (), {"__annotations__": fields}))


@cute.jit
def add_up(parts: cute.Tensor, row: Int32, column: Int32) -> Any:
    """Add up the parts of a sum, (row, column, part), in order."""
    value = parts[row, column, 0]
    for p in range_constexpr(1, cute.size(parts, mode=[2])):
        value += parts[row, column, p]
    return value


def received_barrier(storage: Any, tile: Tile) -> Any:
    """Return the barrier that counts what a CTA receives from the cluster."""
    return storage.barriers.data_ptr() + tile.num_warps * tile.num_stages
