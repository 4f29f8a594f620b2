"""The entry of quack's Blackwell GEMM that writes the factors of D beside it. Imports CUTLASS and quack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from cuda.bindings import driver as cuda
from cutlass import Int32, const_expr, cute

from aot.core.element import ElementType
from aot.core.formats import Operand
from aot.core.knobs import SplitK
from aot.core.signature import Argument
from aot.families import Entry, signature
from aot.families._arguments import epilogue_arguments, vector_argument
from aot.families._atoms import atoms_of, behind_batch
from aot.families._epilogue_registers import in_turns, paired
from aot.families._quack import flags_and_regions, scheduler_options

if TYPE_CHECKING:
    from aot.core.candidate import KernelKey, Workspace
    from aot.core.formats import ScaleFormat

BEFORE = list(Argument).index(Argument.SCALE_D) + 1
"""The place of D's own factor and its factors among the arguments that `epilogue_arguments` makes."""


def _arguments(key: KernelKey, form: ScaleFormat) -> tuple[Any, ...]:
    """Make those of `epilogue_arguments`, and behind the factor of the sums D's own factor and its factors in atoms."""
    made = epilogue_arguments(signature(key), key.operation)
    float32 = ElementType.FLOAT32
    own = vector_argument(float32, float32.num_bytes) if form.has_tensor_factor else None
    return (*made[:BEFORE], own, vector_argument(form.element), *made[BEFORE:])


def quantized_entry(gemm: Any, key: KernelKey, workspace: Workspace, max_active_clusters: int) -> Entry:
    """Make the entry of one configured GEMM.

    Args:
        gemm: an instance of the class of `_quantized_kernel.py`.
        key: the candidate that it was configured from, and its operation.
        workspace: the family's statement of the candidate's workspace: none, flags and regions.
        max_active_clusters: grid of the persistent scheduler, in clusters.
    """
    operation, form = key.operation, key.operation.factors_of_d
    if form is None:
        raise ValueError(f"D of {operation.tag} has no factors; expected an operation that writes some")
    has_gate, held_d = operation.gate is not None, Operand(operation.d, is_k_major=True, scale=form)

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_a: cute.Tensor,
        scale_b: cute.Tensor,
        bias: cute.Tensor | None,
        _residual: None,
        scale_d: cute.Tensor | None,
        own_d: cute.Tensor | None,
        factors_d: cute.Tensor,
        ws: cute.Tensor | None,
        _prefetch_b: None,
        tile_order: Optional[Int32],  # noqa: UP045 - the DSL takes no other way to write it
        stream: cuda.CUstream,
    ) -> None:
        if const_expr(has_gate):
            b, bias = in_turns(b), paired(bias)
        atoms = {"mSFA": atoms_of(scale_a, a, operation.a), "mSFB": atoms_of(scale_b, b, operation.b)}
        arguments: dict[str, Any] = {"column_bias": bias, "scale_d": scale_d, "rows": d.shape[0], "columns": d.shape[1]}
        if const_expr(own_d is not None):
            arguments |= {"sfd_norm_const": own_d.iterator}
        if const_expr(workspace.mode != SplitK.NONE):
            flags, regions = flags_and_regions(workspace, d, ws)
            arguments |= {"split_k_semaphore": flags, "split_k_workspace": regions}
        whole = behind_batch(atoms_of(factors_d, d, held_d))
        target = None if const_expr(has_gate) else d
        arguments |= {"product": d, "factors_product": whole} if const_expr(has_gate) else {"factors_d": whole}
        scheduler = scheduler_options(max_active_clusters, tile_order)
        gemm(a, gemm.view_b(b), target, None, gemm.EpilogueArguments(**arguments), scheduler, None, stream, **atoms)

    return Entry(entry, _arguments(key, form))
