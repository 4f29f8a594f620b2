"""The entry of quack's GEMMs with the epilogues of `_epilogue_kernel.py`. Imports CUTLASS and quack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from cuda.bindings import driver as cuda
from cutlass import Int32, const_expr, cute

from aot.core.formats import FactorLayout
from aot.core.knobs import SplitK
from aot.families import Entry, signature
from aot.families._arguments import epilogue_arguments, transpose
from aot.families._atoms import atoms_of
from aot.families._epilogue_registers import in_order, in_turns, paired
from aot.families._quack import flags_and_regions, scheduler_options

if TYPE_CHECKING:
    from aot.core.candidate import KernelKey, Workspace


def _vectors(swap_ab: bool, scale_a: Any, scale_b: Any, bias: Any) -> dict[str, Any]:
    """Name the vectors by what they belong to in the kernel, which computes D's transpose with `swap_ab`."""
    if swap_ab:
        return {"row_scale": scale_b, "column_scale": scale_a, "row_bias": bias}
    return {"row_scale": scale_a, "column_scale": scale_b, "column_bias": bias}


def epilogue_entry(gemm: Any, key: KernelKey, workspace: Workspace, max_active_clusters: int) -> Entry:
    """Make the entry of one configured GEMM.

    Args:
        gemm: an instance of a class of `_epilogue_kernel.py`.
        key: the candidate that it was configured from, and its operation.
        workspace: the family's statement of the candidate's workspace: none, flags and regions.
        max_active_clusters: grid of the persistent scheduler, in clusters.
    """
    swap_ab = key.candidate.gemm.swap_ab
    has_gate = key.operation.gate is not None
    in_atoms = key.operation.types.factors is FactorLayout.ATOMS

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_a: cute.Tensor | None,
        scale_b: cute.Tensor | None,
        bias: cute.Tensor | None,
        residual: cute.Tensor | None,
        scale_d: cute.Tensor | None,
        ws: cute.Tensor | None,
        prefetch_b: Optional[Int32],  # noqa: UP045 - the DSL takes no other way to write it
        tile_order: Optional[Int32],  # noqa: UP045
        stream: cuda.CUstream,
    ) -> None:
        scheduler = scheduler_options(max_active_clusters, tile_order)
        linear_first = None
        if const_expr(key.operation.is_interleaved):
            b, bias = in_turns(b), paired(bias)
        elif const_expr(has_gate):
            b, scale_b, bias, linear_first = in_order(b, scale_b, bias)
        atoms = {}
        if const_expr(in_atoms):
            of_a, of_b = atoms_of(scale_a, a, key.operation.a), atoms_of(scale_b, b, key.operation.b)
            atoms = {"mSFA": of_b, "mSFB": of_a} if const_expr(swap_ab) else {"mSFA": of_a, "mSFB": of_b}
            scale_a = scale_b = None
        arguments = _vectors(swap_ab, scale_a, scale_b, bias) | {"scale_d": scale_d}
        if const_expr(workspace.mode != SplitK.NONE):
            flags, regions = flags_and_regions(workspace, d, ws)
            arguments |= {"split_k_semaphore": flags, "split_k_workspace": regions}
        left, right, target, added = a, b, d, residual
        if const_expr(swap_ab):
            left, right, target = b, a, transpose(d)
            added = transpose(residual) if const_expr(residual is not None) else None
        if const_expr(has_gate):
            arguments, target = arguments | {"product": d, "linear_first": linear_first}, None
        epilogue = gemm.EpilogueArguments(**arguments)
        early = {"prefetch_b": prefetch_b} if const_expr(prefetch_b is not None) else {}
        gemm(left, gemm.view_b(right), target, added, epilogue, scheduler, None, stream, **early, **atoms)

    return Entry(entry, epilogue_arguments(signature(key), key.operation))
