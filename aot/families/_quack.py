"""How the entries of quack's GEMM classes are made: swap, split-K and its workspace. Imports CUTLASS and quack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from cuda.bindings import driver as cuda
from cutlass import Float32, Int32, const_expr, cute, select_
from quack.gemm_config import SplitKMode
from quack.split_k_reduce import SplitKReduce
from quack.tile_scheduler import RasterOrderOption, TileSchedulerOptions

from aot.core.knobs import SplitK
from aot.families import Entry, signature
from aot.families._arguments import aligned_arguments, cutlass_type, transpose
from aot.families._split_k import REDUCE_VECTOR

if TYPE_CHECKING:
    from aot.core.candidate import Candidate, KernelKey, Workspace

QUACK_MODES = {
    SplitK.NONE: SplitKMode.SERIAL,
    SplitK.SERIAL: SplitKMode.SERIAL,
    SplitK.PARALLEL: SplitKMode.PARALLEL,
    SplitK.SEPARATE: SplitKMode.SEPARATE,
    SplitK.TAIL: SplitKMode.SERIAL,
}
"""What quack's classes are told. Those of `tail` are our own, which bring splits together themselves."""

ACCUMULATOR = Float32

MAX_SWIZZLE = 8
"""Rasterisation swizzle in clusters. Source: quack's own default (`gemm_config.py`)."""


def scheduler_options(max_active_clusters: int, tile_order: Any) -> Any:
    """Make quack's options; to be called while tracing.

    quack's scheduler finds the raster on the host and keeps it among the kernel's parameters, as it does the width of
    groups. So an order that is known at the launch alone makes no other kernel.

    Args:
        max_active_clusters: grid of the persistent scheduler, in clusters.
        tile_order: Int32 of `aot.core.tile_order`, or None for quack's choice.
    """
    raster, group = RasterOrderOption.Heuristic, Int32(MAX_SWIZZLE)
    if const_expr(tile_order is not None):
        along = (tile_order - 1) >> Int32(2)
        raster = Int32(select_(tile_order == 0, Int32(int(RasterOrderOption.Heuristic)), along))
        group = Int32(1) << ((tile_order - 1) & Int32(3))
    return TileSchedulerOptions(Int32(max_active_clusters), raster_order=raster, max_swizzle_size=group)


def _partials(candidate: Candidate, d: Any, ws: Any) -> Any:
    """View the workspace as float32 partials (split, m, n), n contiguous and padded to 16 bytes."""
    m, n = d.shape
    padded = cute.assume(cute.round_up(n, 4), divby=4)
    layout = cute.make_layout((candidate.gemm.split_k, m, n), stride=(m * padded, padded, 1))
    return cute.make_tensor(ws.iterator.align(16), layout)


def flags_and_regions(workspace: Workspace, d: Any, ws: Any) -> tuple[Any, Any]:
    """Split the workspace into one int32 flag and one float32 region a tile, as `Workspace.num_bytes` counts them."""
    rows, columns = (d.shape[1], d.shape[0]) if workspace.swap_ab else d.shape
    tiles_m = cute.round_up(cute.ceil_div(rows, workspace.tile_m), workspace.cluster_m)
    tiles_n = cute.round_up(cute.ceil_div(columns, workspace.tile_n), workspace.cluster_n)
    tiles = tiles_m * tiles_n
    flags = cute.make_tensor(
        cute.recast_ptr(ws.iterator, dtype=Int32),
        cute.make_layout((tiles_m, tiles_n, 1), stride=(tiles_n, 1, tiles)),
    )
    region = workspace.tile_m * workspace.tile_n
    start = cute.assume(cute.round_up(tiles, 4), divby=4)
    regions = cute.make_tensor(
        ws.iterator.align(16) + start,
        cute.make_layout((region, tiles_m, tiles_n, 1), stride=(1, tiles_n * region, region, tiles * region)),
    )
    return flags, regions


def _tail_flags_and_regions(workspace: Workspace, ws: Any) -> tuple[Any, Any]:
    """Split the workspace into int32 flags, one for each CTA of a wave, and float32 regions.

    Where nothing is split there are none, and the kernel touches neither. Only where they begin is read of the tensors.
    """
    flags = workspace.num_clusters * workspace.cluster_m * workspace.cluster_n
    start = -(-flags // 4) * 4
    regions = cute.make_tensor(ws.iterator.align(16) + start, cute.make_layout(workspace.tile_m * workspace.tile_n))
    return cute.make_tensor(cute.recast_ptr(ws.iterator, dtype=Int32), cute.make_layout(flags)), regions


def _bias(candidate: Candidate, bias: Any) -> dict[str, Any]:
    """Return the epilogue's argument for a bias (n): a row of D, which is a column where the kernel computes D^T."""
    return {"mColVecBroadcast" if candidate.gemm.swap_ab else "mRowVecBroadcast": bias}


def _epilogue_and_target(
    gemm: Any, candidate: Candidate, workspace: Workspace, d: Any, bias: Any, ws: Any
) -> tuple[Any, Any]:
    """Return the epilogue's arguments, and what the GEMM writes: D or its transpose, or partials of either."""
    if workspace.mode == SplitK.SEPARATE:
        partials = _partials(candidate, d, ws)
        order = [0, 2, 1] if candidate.gemm.swap_ab else [0, 1, 2]
        view = cute.make_tensor(partials.iterator, cute.select(partials.layout, order))
        return gemm.EpilogueArguments(), view
    arguments = _bias(candidate, bias)
    if workspace.mode != SplitK.NONE:
        is_tail = workspace.mode == SplitK.TAIL
        flags, regions = _tail_flags_and_regions(workspace, ws) if is_tail else flags_and_regions(workspace, d, ws)
        arguments |= {"split_k_semaphore": flags, "split_k_workspace": regions}
    return gemm.EpilogueArguments(**arguments), transpose(d) if candidate.gemm.swap_ab else d


def _reduce(key: KernelKey, d: Any, bias: Any, ws: Any, stream: Any) -> None:
    """Sum the partials of separate split-K in order, and add the bias."""
    partials = _partials(key.candidate, d, ws)
    reduce = SplitKReduce(
        cutlass_type(key.operation.d), key.candidate.gemm.split_k, add_to_output=False, vec_elems=REDUCE_VECTOR
    )
    if bias is not None:
        reduce.rowvec_dtype = bias.element_type
        bias = cute.make_tensor(bias.iterator, cute.append(bias.layout, cute.make_layout(1, stride=0)))
    sums = cute.make_tensor(partials.iterator, cute.select(partials.layout, [1, 2, 0]))
    out = cute.make_tensor(d.iterator, cute.append(d.layout, cute.make_layout(1, stride=0)))
    reduce(sums, out, None, bias, None, None, None, stream)


def quack_entry(gemm: Any, key: KernelKey, workspace: Workspace, max_active_clusters: int) -> Entry:
    """Make the entry of one configured quack GEMM.

    Args:
        gemm: an instance of a quack `GemmDefault*` class.
        key: the candidate that it was configured from, and its operation.
        workspace: the family's statement of the candidate's workspace.
        max_active_clusters: grid of the persistent scheduler, in clusters.
    """
    candidate = key.candidate

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        bias: cute.Tensor | None,
        ws: cute.Tensor | None,
        prefetch_b: Optional[Int32],  # noqa: UP045 - the DSL takes no other way to write it
        tile_order: Optional[Int32],  # noqa: UP045
        stream: cuda.CUstream,
    ) -> None:
        scheduler = scheduler_options(max_active_clusters, tile_order)
        epilogue, target = _epilogue_and_target(gemm, candidate, workspace, d, bias, ws)
        left, right = (b, a) if const_expr(candidate.gemm.swap_ab) else (a, b)
        early = {"prefetch_b": prefetch_b} if const_expr(prefetch_b is not None) else {}
        gemm(left, right, target, None, epilogue, scheduler, None, stream, **early)
        if const_expr(workspace.mode == SplitK.SEPARATE):
            _reduce(key, d, bias, ws, stream)

    return Entry(entry, aligned_arguments(signature(key), key.operation))


def quack_split_k(candidate: Candidate) -> dict[str, Any]:
    """Return the keyword arguments by which a quack GEMM class is told of split-K."""
    return {"split_k": candidate.gemm.split_k, "split_k_mode": QUACK_MODES[SplitK(candidate.gemm.split_k_mode)]}
