"""The kernel that our Hopper families share: its launch, its warps' roles and its loads. Imports CUTLASS and quack.

The last four warps of a CTA load: one or two of them bring tiles of A and B into the stages of a pipeline, by TMA, and
another those of a residual into a pipeline of its own (`_sm90_residual.py`). The others multiply and store
(`_sm90_multiply.py`). A CTA works on one tile after another, as quack's scheduler hands them out. A family derives its
class from `MainloopSm90` and says how a tile is loaded.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from functools import partial
from typing import Any, NamedTuple

from cutlass import Constexpr, Int32, const_expr, cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator, SmemPartition
from cutlass.pipeline import PipelineUserType, pipeline_init_arrive, pipeline_init_wait
from quack import copy_utils
from quack.pipeline import make_pipeline_state
from quack.varlen_utils import VarlenArguments, VarlenManager

from aot.families._quack_internals import choose_layouts, stage_layouts
from aot.families._sm90_multiply import MultiplySm90

MESSAGE_WORDS = 4
"""Int32 in the scheduler's message about a tile: its row, column and batch, and whether there is one."""


class Source(NamedTuple):
    """Where an operand's tile is loaded from, and where to."""

    tiles: Any
    """Global memory: (rows of a tile, k of a tile, k tiles), at the CTA's rows."""
    stages: Any
    """Shared memory: (rows of a tile, k of a tile, stages)."""
    copy: Any
    """Copies a whole tile: `copy(k_tile, stage, tma_bar_ptr=barrier)`. The CTAs of a cluster share the load."""


class MainloopSm90(MultiplySm90):
    """A persistent Hopper GEMM of k-major operands, whose loads a subclass describes.

    Pairs are of A and B everywhere. A residual, quack's C, is loaded while its tile is multiplied, by the last of the
    loading warps, which a subclass counts in `num_ab_load_warps` where it takes one. A subclass defines:

        make_load_arguments(operands, stages, prefetch_b): what its kernel needs for the loads; on the host
        prepare_loads(arguments, warp): what can be done about them before the first wait; in every warp of the kernel
        load_tile(sources, prepared, pipeline, state, k_tiles, first_k_tile): load a tile; in each loading warp

    and may define what loading warps do before the first tile and after the last, `begin_loads` and `end_loads`, and
    `end_multiplication`. Together these see to programmatic dependent launch: docs/safety.md has the rules.
    """

    def __call__(
        self,
        a: Any,
        b: Any,
        d: Any,
        c: Any,
        epilogue: Any,
        scheduler: Any,
        varlen: Any,
        stream: Any,
        prefetch_b: Any = None,
    ) -> None:
        """Choose layouts and descriptors, and launch; to be called while tracing.

        Args:
            a: (m, k), `b`: (n, k), `d`: (m, n).
            c: the residual, (m, n), where the kernel has one, else None.
            varlen: None: quack's signature has it.
            epilogue: quack's `EpilogueArguments`.
            scheduler: quack's `TileSchedulerOptions`.
            stream: CUDA stream of the launch.
            prefetch_b: Int32 for a subclass that takes one.

        Raises:
            TypeError: there is a C and should be none, or none and should be one, or lengths vary.
        """
        self._check_call(c, varlen)
        a, b, d, c, epilogue = self.rotate_batch_last(a, b, d, c, epilogue, append_batch_if_2d=True)
        choose_layouts(self, a, b, d, c, epilogue)
        stage_a, stage_b = stage_layouts(self)
        loads = self.make_load_arguments((a, b), (stage_a, stage_b), prefetch_b)
        atom_a, view_a, atom_b, view_b = self.make_tma_load_atoms_and_tensors(a, b, stage_a, stage_b, varlen_k=False)
        atom_d, view_d, atom_c, view_c = self.make_tma_epilogue_atoms_and_tensors(d, c, epilogue, varlen_m=False)
        parameters = self.epi_to_underlying_arguments(epilogue)
        scheduler_class = self.get_scheduler_class()
        tiles = scheduler_class.to_underlying_arguments(
            self.get_scheduler_arguments(a, b, d, scheduler, VarlenArguments(), epilogue)
        )
        self.kernel(
            self.tiled_mma,
            (atom_a, view_a),
            (atom_b, view_b),
            (atom_d, view_d),
            (atom_c, view_c),
            parameters,
            loads,
            (
                self.a_smem_layout_staged,
                self.b_smem_layout_staged,
                self.epi_smem_layout_staged,
                self.epi_c_smem_layout_staged,
            ),
            self._shared_memory(parameters),
            tiles,
            scheduler_class,
        ).launch(
            grid=scheduler_class.get_grid_shape(tiles, scheduler.max_active_clusters),
            block=[self.threads_per_cta, 1, 1],
            cluster=self.cluster_shape_mnk,
            stream=stream,
            min_blocks_per_mp=self.occupancy,
            use_pdl=True,
        )

    def _check_call(self, c: Any, varlen: Any) -> None:
        """Refuse a residual that is there and should not be, or the other way round, and lengths that vary."""
        if (c is not None) != self.has_residual or varlen is not None:
            found = f"{'no' if c is None else 'a'} C and {'no' if varlen is None else 'some'} varying lengths"
            expected = f"{'a' if self.has_residual else 'no'} C and no varying lengths"
            raise TypeError(f"{type(self).__name__} got {found}; expected {expected}")

    def _shared_memory(self, parameters: Any) -> Any:
        """Describe a CTA's shared memory: stages of D and the residual, what the epilogue adds, those of A and B."""

        def stages(dtype: Any, layout: Any) -> Any:
            return cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(layout)], self.buffer_align_bytes]

        residual = {"c": stages(self.c_dtype, self.epi_c_smem_layout_staged)} if self.has_residual else {}
        fields = {
            "d": stages(self.d_dtype, self.epi_smem_layout_staged),
            **residual,
            "epi": self.epi_get_smem_struct(parameters),  # the name by which quack's epilogue finds it
            "a": stages(self.a_dtype, self.a_smem_layout_staged),
            "b": stages(self.b_dtype, self.b_smem_layout_staged),
        }
        return cute.struct(type("SharedMemory", (), {"__annotations__": fields}))

    @cute.kernel
    def kernel(
        self,
        tiled_mma: cute.TiledMma,
        source_a: Any,
        source_b: Any,
        target_d: Any,
        source_c: Any,
        parameters: Any,
        loads: Any,
        layouts: Any,
        shared_memory: Constexpr[Any],
        tiles: Any,
        scheduler_class: Constexpr[Any],
    ) -> None:
        """Run one CTA: make barriers and views of shared memory, then load or multiply, by warp.

        Args:
            tiled_mma: how the multiplying warps share a tile.
            source_a: the TMA atom and the view of A in global memory; `source_b`, `target_d` and the residual's
                `source_c` likewise.
            parameters: of the epilogue.
            loads: what `make_load_arguments` made.
            layouts: of the stages of A, B, D and the residual in shared memory.
            shared_memory: the structure of a CTA's shared memory.
            tiles: the scheduler's parameters.
            scheduler_class: quack's class of schedulers.
        """
        (_, a), (_, b), (atom_d, d) = source_a, source_b, target_d
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == self.ab_load_warp_id:
            for atom, _ in (source_a, source_b, target_d, *((source_c,) if self.has_residual else ())):
                cpasync.prefetch_descriptor(atom)
        allocator = SmemAllocator()
        storage = allocator.allocate(shared_memory)
        pipeline = self.make_ab_pipeline(tiled_mma, cute.make_layout((1, *self.cluster_shape_mnk)))
        residual = self.make_residual(storage, layouts[3])
        message_pipeline = self.make_sched_pipeline(cute.make_layout(self.cluster_shape_mnk), varlen_k=self.split_k > 1)
        messages = allocator.allocate_tensor(
            Int32,
            cute.make_layout((MESSAGE_WORDS, self.sched_stage)),
            byte_alignment=16,
            partition=SmemPartition.RESERVED,  # before the stages it would cost a kilobyte of padding
        )
        pipeline_init_arrive(cluster_shape_mn=self.cluster_shape_mnk[:-1], is_relaxed=True)
        stages_a, stages_b, stages_d = [
            memory.get_tensor(layout.outer, swizzle=layout.inner)
            for memory, layout in zip((storage.a, storage.b, storage.d), layouts[:3], strict=True)
        ]
        prepared = self.prepare_loads(loads, warp)
        epilogue_smem = self.epi_get_smem_tensors(parameters, storage)
        lengths = _lengths(a, b)
        make_scheduler = partial(scheduler_class.create, tiles, messages, message_pipeline)
        pipeline_init_wait(cluster_shape_mn=self.cluster_shape_mnk[:-1])
        if warp >= self.ab_load_warp_id:
            cute.arch.setmaxregister_decrease(self.num_regs_load)
            sources, stages = (source_a, source_b, source_c), (stages_a, stages_b, residual)
            self.load_by_warp(sources, stages, prepared, lengths, pipeline, make_scheduler, warp)
        if warp < self.ab_load_warp_id:
            cute.arch.setmaxregister_increase(self.num_regs_mma)
            product, epilogue = (atom_d, d, stages_d, residual), (parameters, epilogue_smem, lengths)
            self.multiply(tiled_mma, (a, b), (stages_a, stages_b), product, epilogue, pipeline, make_scheduler, warp)

    @property
    def residual_warp(self) -> int:
        """The warp behind those that load A and B: the last that counts as loading, where there is a residual."""
        return int(self.ab_load_warp_id + self.num_ab_load_warps - self.has_residual)

    @cute.jit
    def load_by_warp(
        self,
        sources: Any,
        stages: Any,
        prepared: Any,
        lengths: Any,
        pipeline: Any,
        make_scheduler: Any,
        warp: Int32,
    ) -> None:
        """Load what falls to one of the loading warps: A or B, the residual, or nothing."""
        (atom_a, a), (atom_b, b), source_c = sources
        if const_expr(self.has_residual):  # noqa: SIM102 - known while tracing, the next is not
            if warp == self.residual_warp:
                self.load_residual(source_c, stages[2], make_scheduler)
        if self.is_loading(warp):
            self.load((atom_a, atom_b), (a, b), stages[:2], prepared, lengths, pipeline, make_scheduler, warp)

    @cute.jit
    def is_loading(self, warp: Int32) -> Any:
        """Return whether a warp loads A or B."""
        return warp >= self.ab_load_warp_id and warp < self.residual_warp

    @cute.jit
    def load(
        self,
        atoms: Any,
        operands: Any,
        stages: Any,
        prepared: Any,
        lengths: Any,
        pipeline: Any,
        make_scheduler: Any,
        warp: Int32,
    ) -> None:
        """Load the CTA's tiles, in each loading warp. One of the cluster's also finds the next tile, for all warps."""
        self.begin_loads()
        schedules = self.num_ab_load_warps == 1 or warp == self.ab_load_warp_id
        if const_expr(self.cluster_shape_mnk[0] * self.cluster_shape_mnk[1] > 1):
            schedules = schedules and cute.arch.block_idx_in_cluster() == 0
        scheduler = make_scheduler()
        work = scheduler.initial_work_tile_info()
        state = make_pipeline_state(PipelineUserType.Producer, self.ab_stage)
        while work.is_valid_tile:
            batch = work.tile_idx[3]
            sources = [
                self._source(atoms[i], operands[i][None, None, batch], stages[i], work.tile_idx[i], i) for i in range(2)
            ]
            first_k_tile, k_tiles = self.range_of_k_tiles(lengths, scheduler, work)
            state = self.load_tile(sources, prepared, pipeline, state, k_tiles, first_k_tile)
            scheduler.advance_to_next_work(is_scheduler_warp=schedules)
            work = scheduler.get_current_work()
        if const_expr(self.pingpong and self.split_k == 1):
            # Each group of multiplying warps reads every second message, so that the end has to be told twice.
            if schedules:
                scheduler.write_work_tile_to_smem(work)
            work = scheduler.get_current_work()
        if warp == self.ab_load_warp_id:
            self.end_loads(prepared)
            pipeline.producer_tail(state)
        if schedules:
            scheduler.producer_tail()

    def _source(self, atom: Any, operand: Any, stages: Any, tile: Any, i: int) -> Source:
        """Describe the loads of one operand's tile: A's where `i` is 0, B's where it is 1."""
        tiles = cute.local_tile(operand, (self.cta_tile_shape_mnk[i], self.cta_tile_shape_mnk[2]), (tile, None))
        shared = {"cluster_shape": self.cluster_shape_mnk[:2], "multicast_dim": "MN"[i]}
        copy = copy_utils.tma_get_block_copy_fn(atom, src_tensor=tiles, dst_tensor=stages, tma_multicast=shared)
        return Source(tiles, stages, copy)

    def begin_loads(self) -> None:
        """Wait, in each loading warp, for the kernel in front, which may still write what is loaded."""
        cute.arch.griddepcontrol_wait()

    def end_loads(self, prepared: Any) -> None:
        """Do nothing more in the first loading warp after its last load."""
        del prepared


def _lengths(a: Any, b: Any) -> VarlenManager:
    """Describe m, n and k as quack's epilogue asks for them."""
    return VarlenManager.create(
        VarlenManager.to_underlying_arguments(VarlenArguments()),
        len_m_static=Int32(cute.size(a, mode=[0])),
        len_k_static=Int32(cute.size(b, mode=[1])),
        len_n_static=Int32(cute.size(b, mode=[0])),
    )
