"""quack's Hopper GEMM with loads that end at the operands' last row. Imports CUTLASS and quack.

TMA fills the rows of a box that lie outside a tensor with zeros, and takes longer for each than to load one. Here an
operand's last, partial tile is loaded through a descriptor of its own, whose box has few more rows than are left. What
then remains in the rest of the stage is whatever was there: it reaches only rows and columns of the product that lie
outside D, which the TMA store clips.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

import inspect
from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Boolean, Constexpr, Int32, Int64, const_expr, cute
from cutlass.block import block_copy
from cutlass.utils import TensorMapManager, TensorMapUpdateMode
from quack import copy_utils
from quack.gemm_default_epi import GemmDefaultEpiMixin

from aot.families._boxes import box_rows
from aot.families._quack_sm90_kernel import GemmSplitSm90

DESCRIPTOR_BYTES = 128


def _closed_over(copy: Callable[..., None], name: str) -> Any:
    """Give `src` or `dst`, tensors of ((tile, tile_k), k tiles or stages), that an operand's copy function holds.

    Source: quack copy_utils.py, `tma_get_block_copy_fn`.
    """
    return inspect.getclosurevars(inspect.unwrap(copy)).nonlocals[name]


class GemmPartialTileSm90(GemmSplitSm90):
    """`GemmSplitSm90` whose loads end at the operands' last row. Both operands are k-major.

    Pairs below are of A and B. Attributes that hold values of the kernel are set while it is traced.
    """

    _extra_param_fields = (
        *GemmDefaultEpiMixin._extra_param_fields,  # noqa: SLF001 - how quack's own classes extend the parameters
        ("boxes", Any, None),
        ("extents", Any, None),
    )

    def make_tma_load_atoms_and_tensors(
        self, a: Any, b: Any, a_smem: Any, b_smem: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Make the atoms of whole tiles as quack does, and one for every size of box beside them."""
        tile_m, tile_n, tile_k = self.cta_tile_shape_mnk
        self._sizes = [box_rows(tile_m), box_rows(tile_n)]
        self._boxes = [
            [
                self._make_tma_atoms_and_tensors(tensor, cute.composition(smem, (rows, tile_k)), (rows, tile_k), 1)[0]
                for rows in sizes
            ]
            for tensor, smem, sizes in zip((a, b), (a_smem, b_smem), self._sizes, strict=True)
        ]
        self._extents = [a.shape[0], b.shape[0]]
        return super().make_tma_load_atoms_and_tensors(a, b, a_smem, b_smem, *args, **kwargs)

    def epi_to_underlying_arguments(self, args: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """Send the boxes along with the epilogue's parameters, which are the ones that a subclass can extend."""
        params = super().epi_to_underlying_arguments(args, loc=loc, ip=ip)
        params.boxes, params.extents = self._boxes, self._extents
        return params

    def epi_get_smem_tensors(self, params: Any, storage: Any) -> Any:
        """Choose the boxes: quack calls this at the kernel's start, before it waits for the kernel in front."""
        self._extents = params.extents
        self._atoms = [atoms[0] for atoms in params.boxes]
        self._chosen = [self._choose_box(params.boxes[i], params.extents[i], i) for i in range(2)]
        return super().epi_get_smem_tensors(params, storage)

    @cute.jit
    def _choose_box(self, atoms: Any, extent: Int32, i: int) -> Any:
        """Give the rows and the descriptor's address of the least box for the operand's last tile; 0 if it is whole."""
        rows, address = Int32(0), Int64(0)
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp >= self.ab_load_warp_id and warp < self.ab_load_warp_id + self.num_ab_load_warps:
            left = _rows_left(extent, self.cta_tile_shape_mnk[i])
            for s in cutlass.range_constexpr(len(self._sizes[i]) - 1, -1, -1):
                fits = left <= self._sizes[i][s]
                rows = Int32(self._sizes[i][s]) if fits else rows
                address = copy_utils.get_tma_desc_addr(atoms[s]).toint() if fits else address
            if rows > 0:
                cute.arch.inline_ptx("prefetch.tensormap [{$r0}];", read_only_args=[address])
        return rows, address

    @cute.jit
    def load_tma(
        self, pipeline: Any, producer_state: Any, copy_fns: Any, k_tile_cnt: Int32, k_tile_start: Any = 0
    ) -> Any:
        """Load the stages of a tile: as quack does where it is whole, else by boxes."""
        counts = [self._count_rows(copy_fns[i], i) for i in range(2)]
        whole_a, whole_b = counts[0] == self.cta_tile_shape_mnk[0], counts[1] == self.cta_tile_shape_mnk[1]
        # A loop for each case, since the loading warp bounds the time of small problems: with the branches inside one
        # loop, 64x128 tiles took 40 us instead of 35 at m 3, n 4096, k 14336 on an H200.
        if whole_a and whole_b:
            producer_state = super(GemmPartialTileSm90, self).load_tma(  # noqa: UP008 - traced code has no class cell
                pipeline, producer_state, copy_fns, k_tile_cnt, k_tile_start=k_tile_start
            )
        elif whole_a:
            producer_state = self._load_partial(
                pipeline, producer_state, copy_fns, (False, True), counts, k_tile_cnt, k_tile_start
            )
        elif whole_b:
            producer_state = self._load_partial(
                pipeline, producer_state, copy_fns, (True, False), counts, k_tile_cnt, k_tile_start
            )
        else:
            producer_state = self._load_partial(
                pipeline, producer_state, copy_fns, (True, True), counts, k_tile_cnt, k_tile_start
            )
        return producer_state

    @cute.jit
    def _count_rows(self, copy_fn: Any, i: int) -> Any:
        """Count the rows to load of a tile: all, those of its box, or none where a cluster reaches past the last."""
        tile = self.cta_tile_shape_mnk[i]
        inside = self._extents[i] - _closed_over(copy_fn, "src")[(0, 0), 0][1]
        rows = self._chosen[i][0]
        count = Int32(tile)
        if inside < tile and rows > 0:
            count = rows
        if inside <= 0:
            count = Int32(0)
        return count

    @cute.jit
    def _load_partial(
        self,
        pipeline: Any,
        producer_state: Any,
        copy_fns: Any,
        partial: Constexpr[tuple[bool, bool]],
        counts: Any,
        k_tile_cnt: Int32,
        k_tile_start: Any,
    ) -> Any:
        """Load a tile's stages by boxes where an operand is partial, as quack does where it is not."""
        num_bytes = (counts[0] + counts[1]) * (self.cta_tile_shape_mnk[2] * self.a_dtype.width // 8)
        is_free = Boolean(True)
        if k_tile_cnt > 0:
            is_free = pipeline.producer_try_acquire(producer_state)
        for k_tile in cutlass.range(k_tile_cnt, unroll=1):
            # producer_acquire would expect the bytes of whole tiles.
            if not is_free:
                pipeline.sync_object_empty.wait(producer_state.index, producer_state.phase)
            pipeline.sync_object_full.arrive_and_expect_tx(producer_state.index, num_bytes)
            barrier = pipeline.producer_get_barrier(producer_state)
            for i in cutlass.range_constexpr(2):
                if const_expr(not partial[i]):
                    copy_fns[i](k_tile_start + k_tile, producer_state.index, tma_bar_ptr=barrier)
                elif self._has_box(counts[i]):
                    stage, address = producer_state.index, self._chosen[i][1]
                    self._load_box(copy_fns[i], i, k_tile_start + k_tile, stage, barrier, address)
            producer_state.advance()
            is_free = Boolean(True)
            if k_tile + 1 < k_tile_cnt:
                is_free = pipeline.producer_try_acquire(producer_state)
        return producer_state

    def _has_box(self, count: Any) -> Any:
        """Say whether an operand's partial tile has rows to load; without clusters it always has."""
        return True if self.cluster_shape_mnk[0] * self.cluster_shape_mnk[1] == 1 else count > 0

    @cute.jit
    def _load_box(self, copy_fn: Any, i: int, k_tile: Int32, stage: Int32, barrier: Any, address: Int64) -> None:
        """Load the box of a tile by the descriptor at `address`, every CTA for itself: sharing it gained nothing."""
        # The instruction takes its box from the descriptor, so the least atom serves for all sizes.
        box = (self._sizes[i][0], self.cta_tile_shape_mnk[2])
        src = cute.local_tile(_closed_over(copy_fn, "src")[(None, None), k_tile], box, (0, 0))
        dst = cute.local_tile(_closed_over(copy_fn, "dst")[(None, None), stage], box, (0, 0))
        block_copy(
            self._atoms[i],
            cute.group_modes(src, 0, 2),
            cute.group_modes(dst, 0, 2),
            tma_bar_ptr=barrier,
            tma_desc_ptr=_descriptor(address),
        )


def _rows_left(extent: Any, tile: int) -> Any:
    """Give the rows of the last tile, 1 to all; to be called while tracing."""
    return extent - (extent - 1) // tile * tile


def _descriptor(address: Any) -> Any:
    """Make a pointer to a descriptor of its address; to be called while tracing."""
    pointer = cute.make_ptr(Int64, address, cute.AddressSpace.gmem, assumed_align=8)
    manager = TensorMapManager(TensorMapUpdateMode.GMEM, DESCRIPTOR_BYTES)
    return manager.get_tensormap_ptr(pointer, cute.AddressSpace.generic)
