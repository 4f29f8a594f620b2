"""How the entries of quack's GEMM classes are made: swap, split-K and its workspace. Imports CUTLASS and quack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as cuda
from cutlass import Float32, Int32, cute
from quack.gemm_config import SplitKMode
from quack.split_k_reduce import SplitKReduce
from quack.tile_scheduler import TileSchedulerOptions

from aot.core.candidate import SplitK
from aot.families import Entry
from aot.families._arguments import aligned_arguments, cutlass_dtype, transpose
from aot.families._split_k import REDUCE_VECTOR

if TYPE_CHECKING:
    from aot.core.candidate import Candidate, Workspace
    from aot.core.problem import Operation

QUACK_MODES = {
    SplitK.NONE: SplitKMode.SERIAL,
    SplitK.SERIAL: SplitKMode.SERIAL,
    SplitK.PARALLEL: SplitKMode.PARALLEL,
    SplitK.SEPARATE: SplitKMode.SEPARATE,
}

ACCUMULATOR = Float32

MAX_SWIZZLE = 8
"""Rasterisation swizzle in clusters. Source: quack's own default (`gemm_config.py`)."""


def _partials(candidate: Candidate, d: Any, ws: Any) -> Any:
    """View the workspace as float32 partials (split, m, n), n contiguous and padded to 16 bytes."""
    m, n = d.shape
    padded = cute.assume(cute.round_up(n, 4), divby=4)
    layout = cute.make_layout((candidate.split_k, m, n), stride=(m * padded, padded, 1))
    return cute.make_tensor(ws.iterator.align(16), layout)


def _flags_and_regions(workspace: Workspace, d: Any, ws: Any) -> tuple[Any, Any]:
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


def quack_entry(
    gemm: Any,
    candidate: Candidate,
    operation: Operation,
    workspace: Workspace,
    max_active_clusters: int,
) -> Entry:
    """Make the entry of one configured quack GEMM.

    Args:
        gemm: an instance of a quack `GemmDefault*` class.
        candidate: what it was configured from.
        operation: element type and layout.
        workspace: the family's statement of the candidate's workspace.
        max_active_clusters: grid of the persistent scheduler, in clusters.
    """
    mode = SplitK(candidate.split_k_mode)

    def run(a: Any, b: Any, d: Any, epilogue: Any, stream: Any) -> None:
        scheduler = TileSchedulerOptions(
            max_active_clusters=Int32(max_active_clusters), max_swizzle_size=Int32(MAX_SWIZZLE)
        )
        a, b = (b, a) if candidate.swap_ab else (a, b)
        gemm(a, b, d, None, epilogue, scheduler, None, stream)

    @cute.jit
    def plain(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, stream: cuda.CUstream) -> None:
        run(a, b, transpose(d) if candidate.swap_ab else d, gemm.EpilogueArguments(), stream)

    @cute.jit
    def in_place(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, ws: cute.Tensor, stream: cuda.CUstream) -> None:
        flags, regions = _flags_and_regions(workspace, d, ws)
        epilogue = gemm.EpilogueArguments(split_k_semaphore=flags, split_k_workspace=regions)
        run(a, b, transpose(d) if candidate.swap_ab else d, epilogue, stream)

    @cute.jit
    def separate(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, ws: cute.Tensor, stream: cuda.CUstream) -> None:
        partials = _partials(candidate, d, ws)
        order = [0, 2, 1] if candidate.swap_ab else [0, 1, 2]
        view = cute.make_tensor(partials.iterator, cute.select(partials.layout, order))
        run(a, b, view, gemm.EpilogueArguments(), stream)
        reduce = SplitKReduce(
            cutlass_dtype(operation.dtype), candidate.split_k, add_to_output=False, vec_elems=REDUCE_VECTOR
        )
        sums = cute.make_tensor(partials.iterator, cute.select(partials.layout, [1, 2, 0]))
        out = cute.make_tensor(d.iterator, cute.append(d.layout, cute.make_layout(1, stride=0)))
        reduce(sums, out, None, None, None, None, None, stream)

    functions = {SplitK.NONE: plain, SplitK.SEPARATE: separate}
    return Entry(functions.get(mode, in_place), aligned_arguments(candidate, operation))


def quack_split_k(candidate: Candidate) -> dict[str, Any]:
    """Give the keyword arguments by which a quack GEMM class is told of split-K."""
    return {"split_k": candidate.split_k, "split_k_mode": QUACK_MODES[SplitK(candidate.split_k_mode)]}
