"""The kernel of `weight_only` over groups of rows, each with a packed weight of its own: experts. Imports CUTLASS.

A CTA has rows of one group's weight and rows of x of that group. There are as many CTAs as groups of any sizes may
need, and each finds its group by the offsets; one too many ends there. An earlier kernel may have written the offsets,
so that nothing is read before that kernel has ended: not the weight either, since nobody knows which it is.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Int32, Int64, const_expr, cute

from aot.core.element import BYTE_BITS
from aot.core.weight_packing import CODE_BYTES
from aot.families._grid import along_x
from aot.families._group_starts import Starts
from aot.families._group_tiles import find_tile, most_tiles
from aot.families._packed_operands import added_of, offsets_arguments, packed_arguments
from aot.families._places import num_groups_of, place_of, write_places
from aot.families._weight_only_kernel import WeightOnlyGemm
from aot.families._weight_only_rows import view_weight, weight_of_stack


@dataclass(frozen=True)
class WeightOnlyGroups(WeightOnlyGemm):
    """The kernel of one candidate."""

    def launch(self, a: Any, b: Any, d: Any, added: tuple[Any, Any], groups: tuple[Any, Any, Any], stream: Any) -> None:
        """Launch a CTA for each of so many rows of a weight and of so many rows of D; to be called while tracing.

        Args:
            a: x (rows, k).
            b: the packed weights, bytes (groups, rows, bytes).
            d: D (m, n).
            added: float32 factors (groups, n), of stride 1 or 0 along n, or None; and a bias (groups, n), of which
                there may be 0 columns.
            groups: the offsets; the index, or None; and which of the stack each group's weight is.
            stream: where the kernel is launched.
        """
        tile, (offsets, index, places) = self.tile, groups
        extents = Int32(d.shape[0]), Int32(d.shape[1]), Int32(a.shape[1])
        num_groups, step = Int32(num_groups_of(b, places)), cute.assume(Int64(b.stride[0]), divby=CODE_BYTES)
        packed = b.iterator
        if const_expr(tile.form.in_rows):
            packed = view_weight(packed, extents[1], extents[2], tile, (Int32(b.shape[0]), step))
        self.grouped_kernel(
            (a.iterator, Int64(a.stride[0]), Int32(a.shape[0])),
            (packed, step),
            (d.iterator, Int64(d.stride[0])),
            extents,
            added_of(*added, is_stack=True),
            (offsets, index, places, num_groups),
        ).launch(
            grid=along_x(self._ctas_of_rows(d.shape[1]), most_tiles(extents[0], num_groups, tile.columns)),
            block=(tile.num_threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=tile.blocks_per_sm,
            preferred_smem_carveout=100,  # left out, the compiler asks a GPU how much there is
            use_pdl=self.is_dependent,
        )

    @cute.kernel
    def grouped_kernel(self, x: Any, packed: Any, d: Any, extents: Any, added: Any, groups: Any) -> None:
        """Compute the columns of D of some rows of a group's weight, and of some of the group's rows."""
        (m, n, k), (offsets, index, places, num_groups) = extents, groups
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        row_tiles = self._ctas_of_rows(n)
        if const_expr(self.is_dependent):
            cute.arch.griddepcontrol_wait()
        starts = Starts(offsets, num_groups, m)
        group, first, count = find_tile(starts, num_groups, block // row_tiles, self.tile.columns)
        if count > 0:
            place = block % row_tiles * self.of_sums.columns_of_d, first, count, n
            rows = (x[0], x[1], k) if const_expr(index is None) else (x[0], x[1], k, index.iterator, x[2])
            weight = self._weight_of(packed, place_of(places, group))
            of_group = self._added_of(added, Int64(group))
            self._compute(rows, weight, d, place, of_group, Int32(1), (thread, warp_index))

    def _weight_of(self, packed: Any, place: Int32) -> Any:
        """Return where a weight of the stack lies, or what loads it; to be called while tracing."""
        if self.tile.form.in_rows:
            return weight_of_stack(packed[0], place)
        return packed[0] + cute.assume(Int64(place) * packed[1], divby=CODE_BYTES)

    def _added_of(self, added: Any, group: Int64) -> Any:
        """Return where a group's factors and bias lie; to be called while tracing."""
        scale, (bias, count, step) = added
        if scale[0] is not None:
            scale = scale[0] + group * scale[2], scale[1]
        return scale, (bias + group * step, count)

    def _rows_of_x(self, x: Any, place: Any) -> Any:
        """Return what the base class does; with an index x's own start, and behind it all the index and x's rows."""
        start, stride, k, *index = x
        if not index:
            return super()._rows_of_x(x, place)
        return start, stride, place[2], k, index[0] + place[1], index[1]

    def _row_of_x(self, x: Any, row: Int32) -> tuple[Any, Any]:
        """Return what the base class does, of the row that the index names if there is one."""
        if len(x) == len(("start", "stride", "rows", "k")):
            return super()._row_of_x(x, row)
        found = cute.make_tensor(x[4] + row, cute.make_layout(1))[0]
        is_there = (found >= 0) & (found < x[5])
        return cutlass.select_(is_there, found, Int32(0)), cutlass.select_(is_there, x[3], Int32(0))


def grouped_entry(
    gemm: WeightOnlyGroups, *, is_scaled: bool, is_gathered: bool, stores: int
) -> tuple[Any, tuple[Any, ...]]:
    """Make the entry and its fake arguments.

    Args:
        gemm: the kernel.
        is_scaled: whether rows of the weight have float32 factors.
        is_gathered: whether an index says which row of x each is.
        stores: bytes of which the rows of D begin at multiples.
    """

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_b: Any,
        bias: cute.Tensor,
        offsets: cute.Tensor,
        index: Any,
        b_of_groups: cute.Tensor,
        places: cute.Tensor,
        prefetch_b: Int32,  # noqa: ARG001 - which weight a CTA reads, the kernel in front may have written
        stream: cuda.CUstream,
    ) -> None:
        addresses, tables = (b_of_groups, None), (places, None)
        write_places(addresses, b, None, tables, stream, is_dependent=gemm.is_dependent, bits=BYTE_BITS)
        gemm.launch(a, b, d, (scale_b, bias), (offsets, index, places), stream)

    *operands, prefetch_b, stream = packed_arguments(gemm.element, stores, is_scaled=is_scaled, is_stack=True)
    return entry, (*operands, *offsets_arguments(is_gathered=is_gathered), prefetch_b, stream)
