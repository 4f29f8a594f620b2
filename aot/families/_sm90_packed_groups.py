"""The kernel of `sm90_grouped_weight_only`: groups of rows of x, each by a packed weight of its own. Imports CUTLASS.

A CTA computes a tile of one group as `PackedOneTileGemmSm90` does: its rows are rows of the group's weight, its columns
rows of x that the group has. There are as many CTAs as groups of any sizes may need, and each finds its group by the
offsets, as in `_weight_only_groups`. Descriptors of weights have one mode more, the weights of the stack. x and D are
seen from the tile's first row on, so that a column behind the group's last row is multiplied, and stored nowhere.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Int64, const_expr, cute
from cutlass.cute.nvgpu import cpasync

from aot.core.weight_packing import CODE_BYTES
from aot.families._grid import along_x
from aot.families._group_starts import Starts
from aot.families._group_tiles import find_tile, most_tiles
from aot.families._next_start import AT_ONCE
from aot.families._places import num_groups_of, place_of
from aot.families._sm90_packed_kernel import PackedOneTileGemmSm90
from aot.families._sm90_packed_tile import LINE_BYTES
from aot.families._sm90_split_store import CHUNK


@dataclass(frozen=True)
class PackedGroupsSm90(PackedOneTileGemmSm90):
    """The kernel of one candidate."""

    is_dependent = True
    """Whether it waits for the kernel in front by griddepcontrol, as all of Hopper's do."""

    def launch(self, a: Any, b: Any, d: Any, added: tuple[Any, Any], groups: tuple[Any, Any, Any], stream: Any) -> None:
        """Make the descriptors and launch a CTA for each tile that groups may have; to be called while tracing.

        The arguments are those of `WeightOnlyGroups.launch`; there is no index.
        """
        tile, (offsets, _, places) = self.tile, groups
        num_groups = Int32(num_groups_of(b, places))
        stack = cute.make_layout(b.shape[0], stride=cute.assume(Int64(b.stride[0]), divby=CODE_BYTES))
        rows, load_rows, extent = self._prepare_stack(self.view_weight(b, d.shape[1], a.shape[1]), stack)
        columns, load_columns, _ = self.prepare_side(1, a)
        loads, found_by = (load_rows, load_columns), (offsets, places, num_groups)
        self.grouped_kernel(self.make_mma(tile.columns), loads, (rows, columns), d, added, found_by).launch(
            grid=along_x(cute.ceil_div(extent, tile.rows), most_tiles(Int32(d.shape[0]), num_groups, tile.columns)),
            block=(tile.num_threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
            preferred_smem_carveout=100,  # left out, the compiler asks a GPU how much there is
            use_pdl=self.is_dependent,
        )

    def _prepare_stack(self, weight: Any, stack: Any) -> tuple[Any, Any, Any]:
        """Return what `prepare_side` does of a weight, with loads of all weights of the stack; on the host."""
        layouts, _, extent = self.prepare_side(0, weight)
        code_bytes, size = self.tile.layout.code_bytes, self.tile.block_group_bytes
        views = [cute.make_tensor(weight.iterator, cute.append(weight.layout, stack))]
        shapes: list[tuple[int, ...]] = [(LINE_BYTES, self.lines, self.tile.row_tiles, 1)]
        if size:
            factors = cute.prepend(cute.select(weight.layout, [2, 3]), cute.make_layout(size))
            views.append(cute.make_tensor(weight.iterator + code_bytes, cute.append(factors, stack)))
            shapes.append((size, self.tile.row_tiles, 1))
        found = [
            cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), view, _first_of(layout), shape)
            for view, layout, shape in zip(views, layouts, shapes, strict=True)
        ]
        return layouts, tuple((x[0], x[1]) for x in found), extent

    @cute.kernel
    def grouped_kernel(
        self,
        mma: cute.TiledMma,
        loads: Any,
        layouts: Any,
        d: cute.Tensor,
        added: Any,
        groups: Any,
    ) -> None:
        """Compute a tile of the transpose of a group's rows of D; a CTA behind the last tile ends."""
        (load_rows, load_columns), (offsets, places, num_groups) = loads, groups
        block, _, _ = cute.arch.block_idx()
        row_tiles = cute.ceil_div(self.num_rows(load_rows), self.tile.rows)
        cute.arch.griddepcontrol_wait()
        starts = Starts(offsets, num_groups, Int32(d.shape[0]))
        group, first, count = find_tile(starts, num_groups, block // row_tiles, self.tile.columns)
        if count > 0:
            place = place_of(places, group)
            weight = tuple((atom, view[(*(None,) * (cute.rank(view) - 1), place)]) for atom, view in load_rows)
            x = load_columns[0], cute.domain_offset((first, 0), load_columns[1])
            begin = cute.assume(Int64(first) * Int64(d.stride[0]), divby=CHUNK)
            rows = cute.make_tensor(d.iterator + begin, cute.make_layout((count, d.shape[1]), stride=(d.stride[0], 1)))
            own = tuple(None if const_expr(y is None) else y[group, None] for y in added)
            starting = Int32(0), Int32(AT_ONCE)  # the weight is not read before the kernel in front has ended
            tile = block % row_tiles, Int32(0)
            self._compute(mma, (weight, x), layouts, rows, own, starting, tile, Int32(0), self.tile.columns)


def _first_of(layout: Any) -> Any:
    """Return the layout of one stage of codes, or of groups' factors."""
    if hasattr(layout, "outer"):
        first = cute.select(layout.outer, list(range(cute.rank(layout.outer) - 1)))
        return cute.make_composed_layout(layout.inner, 0, first)
    return cute.select(layout, list(range(cute.rank(layout) - 1)))
