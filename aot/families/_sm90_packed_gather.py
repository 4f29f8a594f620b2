"""`PackedGroupsSm90` whose rows of x an index names: three warps copy them to the stages. Imports CUTLASS.

TMA loads rows that lie next to each other, and those of an index do not. So the loading warps but the one of the weight
copy pieces of 16 bytes by `cp.async` to where TMA would put them. A row that is none of x is zeros, and so is what lies
behind the end of k. `wgmma` reads shared memory through the async proxy: each warp waits for its copies, makes them
visible there, and tells the barrier of the stage, some stages behind those that it has asked for.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Constexpr, Int32, Int64, Uint32, const_expr, cute, range_constexpr
from cutlass.experimental import primitives as prims

from aot.core.weight_format import BLOCK_K
from aot.families._sm90_packed_groups import PackedGroupsSm90
from aot.families._sm90_packed_loads import LOADING_REGISTERS
from aot.families._sm90_packed_tile import X_BYTES
from aot.families._sm90_split_loads import barriers
from aot.families._sm90_split_tile import GROUP, ROW_BYTES
from aot.families._waits import await_phase

GATHERING_WARPS = 3
"""Warps that copy rows of x: a warpgroup's but the one that loads the weight."""
PIECE_BYTES = 16
"""What a thread copies at once. Source: PTX ISA, cp.async: `.cg` takes 16 alone."""
PIECES = BLOCK_K * X_BYTES // PIECE_BYTES
"""Of a row in a stage."""
PIECES_OF_LINE = ROW_BYTES // PIECE_BYTES
"""Of a row of 128 bytes, whose places are exchanged by the row. Source: PTX ISA, 128-byte swizzling."""
MOST_BEHIND = 2
"""Stages whose copies are under way while the next one is asked for."""
UNROLLED = 4
"""Pieces that a thread asks for at once."""


@dataclass(frozen=True)
class Gather:
    """What is copied of x for a tile: rows of `x` (tokens, k) that `index` names; the bytes are not announced."""

    index: Any
    x: Any


@dataclass(frozen=True)
class PackedGatherSm90(PackedGroupsSm90):
    """The kernel of one candidate, of two multiplying warpgroups."""

    @property
    def behind(self) -> int:
        """Stages whose copies may be under way: the warps that multiply free a stage when they have the next one."""
        return max(0, min(MOST_BEHIND, self.tile.num_stages - 2))

    def prepare_x(self, a: Any, index: Any) -> tuple[Any, Any]:
        """Return the layout of x's stages, and what they are copied from; on the host."""
        return self.stages_of(1, self.tile.columns), (index, a)

    def rows_of(self, load: Any, first: Int32, count: Int32) -> Any:
        """Return what loads a tile's rows of x."""
        index, x = load
        return cute.make_tensor(index.iterator + first, cute.make_layout(count)), x

    def descriptors(self, loads: Any) -> list[Any]:
        """List the TMA atoms of the weight's loads."""
        return [atom for atom, _ in loads[0]]

    def copy_columns(self, load: Any, stages: Any, place: tuple[Any, Any], sharers: Any) -> Any:
        """Keep what is copied."""
        del stages, place, sharers
        return Gather(*load)

    @cute.jit
    def _make_barriers(self, storage: Any) -> None:
        """Initialise a CTA's barriers, which hear from the weight's warp and from those that gather; in one warp."""
        tile = self.tile
        full, empty, _ = barriers(storage, tile)
        with cute.arch.elect_one():
            for s in range_constexpr(tile.num_stages):
                cute.arch.mbarrier_init(full + s, 1 + GATHERING_WARPS)
                cute.arch.mbarrier_init(empty + s, tile.num_multiplying // 32)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_warp()

    @cute.jit
    def load_operands(
        self, copies: Any, storage: Any, warp: Int32, rank: Int32, num_k_blocks: Int32, _starts: Any
    ) -> None:
        """Load the CTA's blocks of k: the weight's in one warp, the rows of x in the others."""
        cute.arch.setmaxregister_decrease(LOADING_REGISTERS)
        weight, gather = copies
        if warp == self.tile.num_multiplying // 32:
            self._load_operand(weight, storage, rank, num_k_blocks, weight.num_bytes)
        else:
            cute.arch.griddepcontrol_launch_dependents()
            self._gather(gather, storage, num_k_blocks)

    @cute.jit
    def _gather(self, gather: Constexpr[Any], storage: Any, num_k_blocks: Int32) -> None:
        """Copy the blocks of k of a tile's rows, and tell of each when it is there."""
        full, empty, _ = barriers(storage, self.tile)
        stage, phase, told = Int32(0), Int32(1), Int32(0)
        for k_block in cutlass.range(num_k_blocks, unroll=1):
            await_phase(empty + stage, phase)
            self._copy_block(gather, storage, k_block, stage)
            cute.arch.cp_async_commit_group()
            if k_block >= self.behind:
                cute.arch.cp_async_wait_group(self.behind)
                told = self._tell(full, told)
            stage += 1
            if stage == self.tile.num_stages:
                stage = Int32(0)
                phase ^= 1
        cute.arch.cp_async_wait_group(0)
        for _ in cutlass.range(cutlass.min(num_k_blocks, Int32(self.behind)), unroll=1):
            told = self._tell(full, told)

    @cute.jit
    def _tell(self, full: Any, stage: Int32) -> Int32:
        """Make a warp's copies visible to `wgmma` and arrive at a stage's barrier; return the stage that follows."""
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(full + stage)
        following = stage + 1
        return Int32(cutlass.select_(following == self.tile.num_stages, Int32(0), following))

    @cute.jit
    def _copy_block(self, gather: Constexpr[Any], storage: Any, k_block: Int32, stage: Int32) -> None:
        """Ask for a thread's pieces of a block of k: one of a row's sixteen, of each sixth row."""
        tile, index, x = self.tile, gather.index, gather.x
        thread = cute.arch.thread_idx()[0] - (tile.num_multiplying + 32)
        piece, first = Int32(Uint32(thread) % PIECES), Int32(Uint32(thread) // PIECES)
        step = const_expr(32 * GATHERING_WARPS // PIECES)
        at = k_block * BLOCK_K + piece * (PIECE_BYTES // X_BYTES)
        left = cutlass.min(cutlass.max(x.shape[1] - at, Int32(0)) * X_BYTES, Int32(PIECE_BYTES))
        line = piece // PIECES_OF_LINE * (tile.columns * ROW_BYTES) + stage * (tile.columns * BLOCK_K * X_BYTES)
        start = storage.columns.data_ptr().toint() + line
        source = x.iterator + cutlass.select_(left > 0, at, Int32(0))
        for i in cutlass.range(-(-tile.columns // step), unroll=UNROLLED):
            row = first + i * step
            if row < tile.columns:
                found = Int32(-1)
                if row < cute.size(index):
                    found = index[row]
                is_there = (found >= 0) & (found < x.shape[0])
                token = Int64(cutlass.select_(is_there, found, Int32(0))) * Int64(x.stride[0])
                turned = (piece % PIECES_OF_LINE) ^ (row % GROUP)
                place = start + (row * ROW_BYTES + turned * PIECE_BYTES)
                target = cute.make_ptr(x.element_type, place, cute.AddressSpace.smem, assumed_align=PIECE_BYTES)
                prims.cp_async_shared_global(
                    target.to_llvm_ptr(),
                    (source + token).to_llvm_ptr(),
                    PIECE_BYTES,
                    prims.LoadCacheModifier.CG,
                    cp_size=cutlass.select_(is_there, left, Int32(0)),
                )
