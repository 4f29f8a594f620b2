"""The GEMM of `cluster_split_k` for several weights in one launch. Imports CUTLASS and quack.

Whose a tile is: see `_parts`.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cuda
from cutlass import Float32, Int32, cute

from aot.families._next_start import num_bytes
from aot.families._parts import choose_part, read_parts, vectors_of
from aot.families._skinny_kernel import SplitGemm
from aot.families._skinny_loads import make_load


@dataclass(frozen=True)
class PartsSplitGemm(SplitGemm):
    """The kernel of one candidate, of operands of 16 bits and up to MAX_PARTS weights."""

    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        words: cute.Tensor,
        prefetch_b: Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Make the descriptors and launch a cluster for each tile of each D; to be called while tracing.

        Args:
            a: A (m, k).
            b: B (n, k), the first weight with the rows of all.
            d: D (m, n) likewise.
            words: the parts, in host memory.
            prefetch_b: whether the weights may be read before the kernel in front has ended.
            stream: where the kernel is launched.
        """
        tile, parts, layouts = self.tile, read_parts(words, b), self._layouts()
        loads = [make_load(part.b, layouts[1], (tile.rows, self.block_k)) for part in parts]
        load_a = make_load(a, layouts[0], (tile.columns, self.block_k))
        vectors = vectors_of(parts, [x for x, _ in loads], tile.rows)
        tiles = cute.ceil_div(d.shape[0], tile.columns), vectors.num_tiles
        self._launch((load_a, loads[0]), layouts, d, vectors, tiles, num_bytes(a, b), prefetch_b, stream)

    def _part_of(self, tile_n: Any, d: Any, vectors: Any) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        """Return a tile's number among those of its weight, D and bias of that, and the address of its descriptor."""
        chosen = choose_part(tile_n, d, vectors, int(self.element.width) // 8)
        return chosen.tile, chosen.d, chosen.bias, (chosen.descriptor,)

    @cute.jit
    def _finish(self, sums: Any, e: int, kept: Any, storage: Any, place: Any, n: Int32, vectors: Any) -> Float32:
        """Return an element of D before it is rounded; `vectors` is the address of a bias, or 0."""
        del e, kept, storage, place
        value = Float32(sums[0])
        if vectors != 0:
            pointer = cute.make_ptr(
                self.element, vectors, cute.AddressSpace.gmem, assumed_align=int(self.element.width) // 8
            )
            value = value + cute.make_tensor(pointer, cute.make_layout(1 << 30))[n].to(Float32)
        return value
