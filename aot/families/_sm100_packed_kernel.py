"""The kernel of `sm100_weight_only`: a packed weight times many rows of x, on `tcgen05`. Imports CUTLASS.

A CTA computes a tile of D's transpose: 128 rows of the weight, which are lanes of tensor memory, by rows of x. One warp
asks for the weight as it was packed, one for x by TMA. Eight warps decode the weight into swizzled
shared memory, beside x: a stage of operands is full when both are there. One warp issues the products. Where a group's
factor multiplies its sums, the four warps that store in the end read them out of tensor memory group by group, into
registers, from one of two sets of columns while the other is written; elsewhere they read all once.

Four kinds of barriers, each as a pair of full and empty: packed stages (bulk copies; decoding warps, and where factors
are read late the storing ones), stages of operands (decoding warps and TMA; `tcgen05.commit`), and sets of sums
(`tcgen05.commit`; storing warps).

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass, field
from typing import Any

import cutlass
import cutlass.utils.blackwell_helpers as sm100
from cuda.bindings import driver as cuda
from cutlass import Constexpr, Float32, Int32, Int64, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.memory import SmemAllocator

from aot.core.epilogue import Step
from aot.core.weight_format import BLOCK_K, TILE_ROWS
from aot.families._grid import along_x
from aot.families._packed_operands import added_of, weights_of
from aot.families._sm90_packed_decode import QuadDecoder
from aot.families._sm100_packed_decode import PartDecoder, RowDecoder
from aot.families._sm100_packed_loads import FragmentLoads, RowLoads
from aot.families._sm100_packed_store import StoreSm100, after_thread_sync, before_thread_sync, commit, following
from aot.families._sm100_packed_tile import (
    FIRST_DECODING,
    FIRST_STORING,
    NUM_DECODING,
    NUM_STORING,
    NUM_THREADS,
    PART_K,
    PARTS,
    ROWS,
    PackedTile,
)
from aot.families._tcgen05 import ALIGNMENT_BYTES, TILE_K_BYTES
from aot.families._waits import await_phase

STEPS = PART_K // 16
"""Instructions along k of a stage of operands. Source: PTX ISA, tcgen05.mma, kind::f16: K is 16."""

REGISTERS = (48, 104, 208)
"""Of a thread that loads or multiplies, that decodes, and that holds promoted sums: 128, 256 and 128 threads, whose
registers together are no more than the 65,536 of an SM. Source: PTX ISA, setmaxnreg: multiples of 8."""

MULTIPLYING = 2
"""The warp that multiplies, behind those that load."""

DECODED = 2
"""The named barrier at which warps that store wait for those that decode, over whose operands they write; 1 is that of
`StoreSm100`."""


@dataclass(frozen=True)
class Barriers:
    """The barriers of a CTA, as pointers to the first of each kind."""

    packed_full: Any
    packed_empty: Any
    operands_full: Any
    operands_empty: Any
    sums_full: Any
    sums_empty: Any

    @staticmethod
    def at(start: Any, tile: PackedTile) -> "Barriers":
        """Lay them out from an address on."""
        counts = [x for x in (tile.num_packed, tile.num_operands, tile.num_sums) for _ in range(2)]
        return Barriers(*(start + sum(counts[:i]) for i in range(len(counts))))


@dataclass(frozen=True)
class PackedGemmSm100:
    """The kernel of one candidate."""

    element: Any
    """CUTLASS's type of x and D."""
    tile: PackedTile
    gate: Step | None = field(default=None, repr=False)
    """Which the name of a kernel, that is of what is printed of this, need not say."""

    @property
    def of_sums(self) -> StoreSm100:
        """Return what reads sums, and stores them."""
        return StoreSm100(self.tile, self.element, self.decoder, self.gate)

    @property
    def decoder(self) -> QuadDecoder:
        """Return what makes operands of codes."""
        return QuadDecoder(self.tile.form, self.element)

    @property
    def loads(self) -> Any:
        """Return what brings the weight to shared memory."""
        return RowLoads(self.tile) if self.tile.form.in_rows else FragmentLoads(self.tile)

    @property
    def tiler(self) -> tuple[int, int, int]:
        """Return the tile of a stage of operands."""
        return ROWS, self.tile.columns, PART_K

    def make_mma(self) -> Any:
        """Make what multiplies; to be called while tracing."""
        k_major = OperandMajorMode.K
        return sm100.make_trivial_tiled_mma(
            self.element, self.element, k_major, k_major, Float32, tcgen05.CtaGroup.ONE, self.tiler[:2]
        )

    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        added: tuple[Any, cute.Tensor],
        prefetch_b: Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Launch a CTA for each tile; to be called while tracing.

        Args:
            a: x (m, k).
            b: the packed weight, bytes; with a gate two of them, at any step.
            d: D (m, n).
            added: float32 factors (n), of stride 1 or 0, or None; and a bias (n), or of 0 elements; with a gate (2, n).
            prefetch_b: whether B may be read before the kernel in front has ended.
            stream: where the kernel is launched.
        """
        tile, mma = self.tile, self.make_mma()
        of_x = sm100.make_smem_layout_b(mma, self.tiler, self.element, tile.num_operands)
        of_weight = sm100.make_smem_layout_a(mma, self.tiler, self.element, tile.num_operands)
        one = cute.slice_(of_x, (None, None, None, 0))
        cluster = cute.tiled_divide(cute.make_layout((1, 1, 1)), (mma.thr_id.shape,))
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        load_x = cute.nvgpu.make_tiled_tma_atom_B(load, a, one, self.tiler, mma, cluster.shape)
        extents = Int32(d.shape[0]), Int32(d.shape[1]), Int32(a.shape[1])
        row_tiles = cute.ceil_div(extents[1], self.of_sums.columns_of_d)
        self.kernel(
            mma,
            load_x[0],
            load_x[1],
            (of_weight, of_x),
            self.loads.view(weights_of(b, self.gate), extents[1], extents[2]),
            (d.iterator, Int64(d.stride[0])),
            extents,
            added_of(*added, is_stack=self.gate is not None),
            prefetch_b,
        ).launch(
            grid=along_x(row_tiles, cute.ceil_div(extents[0], tile.columns)),
            block=(NUM_THREADS, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
            use_pdl=True,
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        atom_x: cute.CopyAtom,
        x: cute.Tensor,
        layouts: Any,
        packed: Any,
        d: Any,
        extents: Any,
        added: Any,
        prefetch_b: Int32,
    ) -> None:
        """Compute a tile: see the module."""
        tile = self.tile
        _, n, k = extents
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block, _, _ = cute.arch.block_idx()
        row_tiles = cute.ceil_div(n, self.of_sums.columns_of_d)
        place = block % row_tiles, block // row_tiles
        num_blocks = cute.ceil_div(k, BLOCK_K)
        memory = SmemAllocator().allocate(tile.smem_bytes, ALIGNMENT_BYTES)
        start = cute.recast_ptr(memory, dtype=Int64)
        bars = Barriers.at(start, tile)
        of_tmem = cute.recast_ptr(memory + 8 * tile.num_barriers, dtype=Int32)
        self._begin(warp, bars, of_tmem, atom_x)
        cute.arch.sync_threads()
        tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, of_tmem)
        operands = memory + ALIGNMENT_BYTES
        stages = operands, operands + tile.num_operands * tile.decoded_bytes, memory + tile.packed_start
        if warp < FIRST_DECODING:
            if const_expr(tile.is_promoted):
                cute.arch.setmaxregister_decrease(REGISTERS[0])
            if warp == 0:
                weight = packed, place[0], cute.ceil_div(n, TILE_ROWS), k
                self._load_weight(weight, stages[2], bars, prefetch_b)
            elif warp == 1:
                self._load_x(mma, (atom_x, x, place[1]), (stages[1], layouts[1]), bars, num_blocks)
            elif warp == MULTIPLYING:
                self._multiply(mma, stages, layouts, tmem, bars, num_blocks)
        elif warp < FIRST_STORING:
            self._decode(stages, bars, warp - FIRST_DECODING, num_blocks)
        else:
            self._finish(tmem, stages, bars, (place, extents, num_blocks), d, added)
        cute.arch.sync_threads()
        if warp == MULTIPLYING:
            cute.arch.dealloc_tmem(tmem, tile.tmem_columns)

    @cute.jit
    def _begin(self, warp: Int32, bars: Constexpr[Barriers], of_tmem: Any, atom_x: Any) -> None:
        """Initialise barriers in the first warp, and allocate tensor memory in the one that multiplies."""
        if warp == 0:
            cpasync.prefetch_descriptor(atom_x)
            with cute.arch.elect_one():
                self._initialise(bars)
            cute.arch.mbarrier_init_fence()
        if warp == MULTIPLYING:
            cute.arch.alloc_tmem(self.tile.tmem_columns, of_tmem)
            cute.arch.relinquish_tmem_alloc_permit()

    def _initialise(self, bars: Barriers) -> None:
        """Initialise all barriers; to be called while tracing, by a thread."""
        tile = self.tile
        late = NUM_STORING if tile.is_promoted else 0
        for first, count, arrivals in (
            (bars.packed_full, tile.num_packed, 1),
            (bars.packed_empty, tile.num_packed, NUM_DECODING + late),
            (bars.operands_full, tile.num_operands, NUM_DECODING + 1),
            (bars.operands_empty, tile.num_operands, 1),
            (bars.sums_full, tile.num_sums, 1),
            (bars.sums_empty, tile.num_sums, NUM_STORING),
        ):
            for i in range(count):
                cute.arch.mbarrier_init(first + i, arrivals)

    @cute.jit
    def _load_weight(self, weight: Any, stages: Any, bars: Constexpr[Barriers], prefetch_b: Int32) -> None:
        """Ask for the weight's stages, of 128 along k: at once where nothing writes it."""
        tile, loads = self.tile, self.loads
        if prefetch_b == 0:
            cute.arch.griddepcontrol_wait()
        source = loads.source(weight, stages)
        stage, phase = Int32(0), Int32(1)
        for block in cutlass.range(cute.ceil_div(weight[3], BLOCK_K), unroll=1):
            await_phase(bars.packed_empty + stage, phase)
            loads.load(source, block, stage, bars.packed_full + stage)
            cute.arch.sync_warp()
            stage, phase = following(stage, phase, tile.num_packed)

    def view_stages(self, start: Any, layout: Any) -> Any:
        """View stages of an operand in its swizzled layout; to be called while tracing."""
        return cute.make_tensor(cute.recast_ptr(start, layout.inner, dtype=self.element), layout.outer)

    @cute.jit
    def _load_x(self, mma: cute.TiledMma, load: Any, stages: Any, bars: Constexpr[Barriers], num_blocks: Int32) -> None:
        """Ask for stages of x, when the kernel in front has ended; the next one may start then."""
        tile = self.tile
        atom, x, column_tile = load
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        source = mma.get_slice(0).partition_B(cute.local_tile(x, (tile.columns, PART_K), (column_tile, None)))
        to, of = cpasync.tma_partition(
            atom,
            0,
            cute.make_layout(1),
            cute.group_modes(self.view_stages(*stages), 0, 3),
            cute.group_modes(source, 0, 3),
        )
        stage, phase = Int32(0), Int32(1)
        for part in cutlass.range(num_blocks * PARTS, unroll=1):
            await_phase(bars.operands_empty + stage, phase)
            barrier = bars.operands_full + stage
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(barrier, tile.x_bytes)
            cute.copy(atom, of[None, part], to[None, stage], tma_bar_ptr=barrier)
            stage, phase = following(stage, phase, tile.num_operands)
        for _ in range_constexpr(tile.num_operands):  # no commit may arrive at a CTA that has ended
            await_phase(bars.operands_empty + stage, phase)
            stage, phase = following(stage, phase, tile.num_operands)

    @cute.jit
    def _decode(self, stages: Any, bars: Constexpr[Barriers], warp: Int32, num_blocks: Int32) -> None:
        """Decode a warp's 16 rows of each stage."""
        tile = self.tile
        if const_expr(tile.is_promoted):
            cute.arch.setmaxregister_decrease(REGISTERS[1])
        make = RowDecoder if tile.form.in_rows else PartDecoder
        made, masks = make(tile, self.decoder), self.decoder.masks(num_blocks)
        target = stages[0] + warp * (TILE_ROWS * TILE_K_BYTES)
        stage, phase, to, empty = Int32(0), Int32(0), Int32(0), Int32(1)
        for _ in cutlass.range(num_blocks, unroll=1):
            await_phase(bars.packed_full + stage, phase)
            for part in range_constexpr(PARTS):
                await_phase(bars.operands_empty + to, empty)
                here = stages[2] + stage * tile.packed_bytes
                made.decode(here, warp, part, target + to * tile.decoded_bytes, masks)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(bars.operands_full + to)
                    if const_expr(part == PARTS - 1):
                        cute.arch.mbarrier_arrive(bars.packed_empty + stage)
                to, empty = following(to, empty, tile.num_operands)
            stage, phase = following(stage, phase, tile.num_packed)
        cute.arch.barrier_arrive(barrier_id=DECODED, number_of_threads=32 * (NUM_DECODING + NUM_STORING))

    @cute.jit
    def _multiply(
        self, mma: cute.TiledMma, stages: Any, layouts: Any, tmem: Any, bars: Constexpr[Barriers], num_blocks: Int32
    ) -> None:
        """Multiply all stages of operands; sums of a promoted group begin at zero, in the set that is free."""
        tile = self.tile
        weight = mma.make_fragment_A(self.view_stages(stages[0], layouts[0]))
        x = mma.make_fragment_B(self.view_stages(stages[1], layouts[1]))
        of_sums = mma.make_fragment_C(mma.partition_shape_C(self.tiler[:2])).layout
        stage, phase, at, empty = Int32(0), Int32(0), Int32(0), Int32(1)
        for block in cutlass.range(num_blocks, unroll=1):
            for step in range_constexpr(PARTS * STEPS):
                inside = const_expr(step % STEPS)
                if const_expr(inside == 0):
                    await_phase(bars.operands_full + stage, phase)
                    after_thread_sync()
                if const_expr(self._begins_group(step)):
                    await_phase(bars.sums_empty + at, empty)
                    after_thread_sync()
                mma.set(tcgen05.Field.ACCUMULATE, self._accumulates(step, block))
                sums = cute.make_tensor(tmem + at * tile.columns, of_sums)
                cute.gemm(mma, sums, weight[None, None, inside, stage], x[None, None, inside, stage], sums)
                if const_expr(self._begins_group(step + 1)):
                    commit(bars.sums_full + at)
                    at, empty = following(at, empty, tile.num_sums)
                if const_expr(inside == STEPS - 1):
                    commit(bars.operands_empty + stage)
                    stage, phase = following(stage, phase, tile.num_operands)
        if const_expr(not tile.is_promoted):
            commit(bars.sums_full)

    def _begins_group(self, step: int) -> bool:
        """Say whether a step of 16 elements of a block is the first of a promoted group."""
        return self.tile.is_promoted and step * 16 % self.tile.form.group == 0

    def _accumulates(self, step: int, block: Any) -> Any:
        """Say whether a step of a block adds to what its sums are."""
        if self.tile.is_promoted:
            return not self._begins_group(step)
        return block != 0 if step == 0 else True

    @cute.jit
    def _finish(self, tmem: Any, stages: Any, bars: Constexpr[Barriers], place: Any, d: Any, added: Any) -> None:
        """Add up a tile's groups, if factors multiply sums, and store it."""
        tile, store = self.tile, self.of_sums
        where, extents, num_blocks = place
        thread = cute.arch.thread_idx()[0] - 32 * FIRST_STORING
        sums = cute.make_rmem_tensor(tile.columns, Float32)
        if const_expr(tile.is_promoted):
            cute.arch.setmaxregister_increase(REGISTERS[2])
            sums.fill(0.0)
            self._promote(sums, store, (tmem, stages[2], bars), thread, num_blocks)
        else:
            await_phase(bars.sums_full, Int32(0))
        cute.arch.griddepcontrol_wait()
        cute.arch.barrier(barrier_id=DECODED, number_of_threads=32 * (NUM_DECODING + NUM_STORING))
        store.store(tmem, sums, (where, extents, thread), stages[0], d, added)

    @cute.jit
    def _promote(
        self, sums: cute.Tensor, store: Constexpr[StoreSm100], source: Any, thread: Int32, num_blocks: Int32
    ) -> None:
        """Add each group's sums times the factor of the thread's row."""
        tile = self.tile
        tmem, packed, bars = source
        stage, phase, at, full = Int32(0), Int32(0), Int32(0), Int32(0)
        for _ in cutlass.range(num_blocks, unroll=1):
            await_phase(bars.packed_full + stage, phase)
            for group in cutlass.range(tile.groups_of_block, unroll=1):  # unrolled, sums of 128 columns spill
                factor = store.group_factor(packed + stage * tile.packed_bytes, thread, group)
                await_phase(bars.sums_full + at, full)
                after_thread_sync()
                store.add_group(sums, tmem + at * tile.columns, thread, factor)
                before_thread_sync()
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(bars.sums_empty + at)
                at, full = following(at, full, tile.num_sums)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(bars.packed_empty + stage)
            stage, phase = following(stage, phase, tile.num_packed)
