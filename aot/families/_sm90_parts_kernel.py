"""The GEMMs of `sm90_cluster_split_k` and `sm90_one_tile` for several weights in one launch. Imports CUTLASS and quack.

Whose a tile is: see `_parts`. The tiles of a cluster are of one weight.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cuda
from cutlass import Int32, cute, range_constexpr, select_

from aot.families._next_start import num_bytes
from aot.families._parts import choose_part, read_parts, vectors_of
from aot.families._sm90_one_tile_kernel import OneTileGemmSm90
from aot.families._sm90_split_kernel import SplitGemmSm90
from aot.families._sm90_split_tile import GROUP, VECTOR_BYTES


@dataclass(frozen=True)
class PartsSplitGemmSm90(SplitGemmSm90):
    """The kernel of one candidate, of operands of 16 bits and up to MAX_PARTS weights."""

    @property
    def side(self) -> int:
        """The side of a tile that the weights have: its rows (0) or columns."""
        return 0 if self.swap_ab else 1

    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        words: Any,
        prefetch_b: Int32,
        stream: cuda.CUstream,
        tile_order: Int32 | None = None,
    ) -> None:
        """Make the descriptors and launch a cluster for each tile of each D; to be called while tracing.

        Args:
            a: A (m, k).
            b: B (n, k), the first weight with the rows of all.
            d: D (m, n) likewise.
            words: the parts, in host memory.
            prefetch_b: whether the weights may be read before the kernel in front has ended.
            stream: where the kernel is launched.
            tile_order: Int32 of `aot.core.tile_order`, or None.
        """
        tile, parts = self.tile, read_parts(words, b)
        extents = tuple(x * y for x, y in zip((tile.rows, tile.columns), (tile.cluster_m, tile.cluster_n), strict=True))
        layout = self.stages_of(self.side, (tile.rows, tile.columns)[self.side])
        weights = [self.make_load(part.b, layout, self.side) for part in parts]
        vectors = vectors_of(parts, [atom for atom, _ in weights], extents[self.side])
        layout_x, load_x, rows_of_x = self.prepare_side(1 - self.side, a)
        sides = [(layout, weights[0], vectors.num_tiles)]
        sides.insert(1 - self.side, (layout_x, load_x, cute.ceil_div(rows_of_x, extents[1 - self.side])))
        layouts, loads, counts = (list(x) for x in zip(*sides, strict=True))
        self.launch_clusters(loads, layouts, d, vectors, counts, num_bytes(a, b), (prefetch_b, tile_order), stream)

    def part_of(self, loads: Any, d: Any, vectors: Any, place: Any) -> tuple[Any, Any, Any, Any]:
        """Return what loads a tile, the D and the bias of its weight, and the tile's place in that D."""
        in_cluster = (self.tile.cluster_m, self.tile.cluster_n)[self.side]
        chosen = choose_part(place[self.side] // in_cluster, d, vectors, VECTOR_BYTES)
        loads, place = list(loads), list(place)
        loads[self.side] = (*loads[self.side], chosen.descriptor)
        place[self.side] = chosen.tile * in_cluster + place[self.side] % in_cluster
        count = select_(chosen.bias != 0, Int32(chosen.d.shape[1]), Int32(0))
        element_bytes = int(self.element.width) // 8
        pointer = cute.make_ptr(self.element, chosen.bias, cute.AddressSpace.gmem, assumed_align=element_bytes)
        return tuple(loads), chosen.d, cute.make_tensor(pointer, cute.make_layout((count,))), tuple(place)

    @cute.jit
    def fetch_late(self, fetched: Any, vectors: Any, first: Int32, origin: Any) -> Any:
        """Return where the bias lies: it is read as it is added."""
        del fetched
        return vectors, first, origin

    @cute.jit
    def complete(self, own: cute.Tensor, fetched: Any, memory: Any, warp: Int32) -> Any:
        """Return what is to be rounded of a thread's sums: with the bias of the tile's weight, if it has one."""
        del memory, warp
        bias, first, origin = fetched
        if cute.size(bias) > 0:
            for i in range_constexpr(self.num_pairs):
                pairs = range(i, i + 1)
                self.add_bias(own, self.load_bias(bias, origin[0], origin[1] + first * GROUP, pairs), pairs)
        return own

    def descriptors(self, loads: Any) -> list[Any]:
        """List the TMA atoms whose descriptors are fetched at once: x's. `choose_part` begins with the weight's."""
        return [loads[1 - self.side][0]]

    def count_clusters_of_rows(self, load_rows: Any, vectors: Any) -> Any:
        """Count the clusters along the tiles' rows, those of all weights."""
        return vectors.num_tiles if self.side == 0 else super().count_clusters_of_rows(load_rows, vectors)


@dataclass(frozen=True)
class PartsOneTileGemmSm90(PartsSplitGemmSm90, OneTileGemmSm90):
    """The same of a kernel whose CTAs compute a tile each and end."""
