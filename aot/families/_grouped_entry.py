"""The entry of quack's GEMMs over groups, `_grouped_kernel.py`, and its arguments. Imports CUTLASS and quack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as cuda
from cutlass import Int32, const_expr, cute
from quack.tile_scheduler import TileSchedulerOptions
from quack.varlen_utils import VarlenArguments

from aot.core.element import ElementType
from aot.core.formats import FactorLayout, Operand
from aot.core.grouping import Grouping
from aot.core.operands import element_of
from aot.core.signature import Argument
from aot.families import Entry, signature
from aot.families._arguments import atoms_argument, matrix_argument, strided_argument, vector_argument
from aot.families._atoms import atoms_of_groups, atoms_of_rows, behind_batch
from aot.families._epilogue_registers import in_turns, paired
from aot.families._group_starts import Starts
from aot.families._places import addresses_argument, num_groups_of, write_places
from aot.families._quack import MAX_SWIZZLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.core.candidate import KernelKey
    from aot.core.operation import Operation
    from aot.core.signature import Signature


def grouped_arguments(signature: Signature, operation: Operation) -> tuple[Any, ...]:
    """Make an argument for each of `Argument`, in that order, None where the signature has none of it.

    With a gate the operands of n rows are of (2, n) rows: the gate's, and the linear half's.
    """
    rows, n, groups, rows_of_a = (cute.sym_int() for _ in range(4))
    k = cute.sym_int(divisibility=operation.k_step)
    in_atoms = operation.types.factors is FactorLayout.ATOMS
    pair = () if operation.gate is None else (cute.sym_int(),)
    float32, a, b = ElementType.FLOAT32, operation.a, operation.b
    groups_rows, is_block = operation.grouping.groups_rows, operation.types.factors is FactorLayout.BLOCK
    height = rows_of_a if operation.grouping is Grouping.GATHERED else rows
    stack = (groups,) if groups_rows else ()
    of_d = () if groups_rows else (groups,)
    blocks = (cute.sym_int(), cute.sym_int())

    def vector_of_int32() -> Any:
        return vector_argument(ElementType.INT32, ElementType.INT32.num_bytes)

    made: dict[Argument, Callable[[], Any]] = {
        Argument.A: lambda: matrix_argument(a.element, (height, k), leading=int(a.is_k_major)),
        Argument.B: lambda: matrix_argument(
            b.element, (*stack, *pair, n, k), leading=len(stack) + len(pair) + int(b.is_k_major)
        ),
        Argument.D: lambda: matrix_argument(operation.d, (*of_d, rows, n), leading=len(of_d) + 1),
        Argument.SCALE_A: lambda: (
            atoms_argument(a)
            if in_atoms
            else strided_argument(float32, (height, cute.sym_int()) if is_block else (height,))
        ),
        Argument.SCALE_B: lambda: (
            atoms_argument(b)
            if in_atoms
            else strided_argument(float32, (*stack, *(blocks if is_block else (*pair, n))))
        ),
        Argument.BIAS: lambda: strided_argument(operation.bias, (*stack, *pair, cute.sym_int())),
        Argument.SCALE_D: lambda: vector_argument(float32, float32.num_bytes),
        Argument.OWN_D: lambda: vector_argument(float32, float32.num_bytes),
        Argument.FACTORS_D: lambda: vector_argument(element_of(operation, Argument.FACTORS_D)),
        Argument.OFFSETS: vector_of_int32,
        Argument.INDEX: vector_of_int32,
        Argument.B_OF_GROUPS: addresses_argument,
        Argument.PLACES: vector_of_int32,
        Argument.SCALE_B_OF_GROUPS: addresses_argument,
        Argument.SCALE_B_PLACES: vector_of_int32,
        Argument.STREAM: cute.runtime.make_fake_stream,
    }
    return tuple(make() if argument in signature else None for argument, make in made.items())


def _in_pairs(operation: Operation, b: Any, scale_b: Any, bias: Any) -> tuple[Any, Any, Any]:
    """View what has the rows of a gate and as many linear ones as pairs of them; to be called while tracing."""
    b = in_turns(b, stacked=1) if operation.is_interleaved else paired(b, stacked=1)
    if operation.types.factors is FactorLayout.VECTOR:
        scale_b = paired(scale_b, stacked=1)
    return b, scale_b, None if bias is None else paired(bias, stacked=1)


def grouped_entry(gemm: Any, key: KernelKey, max_active_clusters: int) -> Entry:
    """Make the entry of one configured GEMM.

    Args:
        gemm: an instance of a class of `_grouped_kernel.py`.
        key: the candidate that it was configured from, and its operation.
        max_active_clusters: grid of the persistent scheduler, in clusters.
    """
    operation = key.operation
    has_gate, groups_rows = operation.gate is not None, operation.grouping.groups_rows
    in_atoms = operation.types.factors is FactorLayout.ATOMS
    held_d = Operand(operation.d, is_k_major=True, scale=operation.factors_of_d)

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_a: cute.Tensor | None,
        scale_b: cute.Tensor | None,
        bias: cute.Tensor | None,
        scale_d: cute.Tensor | None,
        own_d: cute.Tensor | None,
        factors_d: cute.Tensor | None,
        offsets: cute.Tensor,
        index: cute.Tensor | None,
        b_of_groups: cute.Tensor | None,
        places: cute.Tensor | None,
        scale_b_of_groups: cute.Tensor | None,
        scale_b_places: cute.Tensor | None,
        stream: cuda.CUstream,
    ) -> None:
        scheduler = TileSchedulerOptions(
            max_active_clusters=Int32(max_active_clusters), max_swizzle_size=Int32(MAX_SWIZZLE)
        )
        if const_expr(has_gate):
            b, scale_b, bias = _in_pairs(operation, b, scale_b, bias)
        target, product = (None, d) if const_expr(has_gate) else (d, None)
        if const_expr(groups_rows):
            addresses, tables = (b_of_groups, scale_b_of_groups), (places, scale_b_places)
            bits = operation.b.element.bits
            write_places(addresses, b, scale_b, tables, stream, is_dependent=True, bits=bits)
            starts = Starts(offsets, num_groups_of(b, places), d.shape[0])
            lengths = VarlenArguments(mCuSeqlensM=starts, mAIdx=index)
        else:
            starts = Starts(offsets, d.shape[0], a.shape[1])
            lengths = VarlenArguments(mCuSeqlensK=starts)
        atoms = {}
        if const_expr(in_atoms):
            atoms = {
                "mSFA": atoms_of_rows(scale_a, a.shape[1], operation.a),
                "mSFB": atoms_of_groups(scale_b, b, num_groups_of(b, places), scale_b_places, operation.b),
            }
            scale_a = scale_b = None
        if const_expr(held_d.scale is not None):
            factors_d = behind_batch(atoms_of_rows(factors_d, d.shape[1], held_d))
        epilogue = gemm.arguments(
            scale_a=scale_a,
            scale_b=scale_b,
            bias=bias,
            scale_d=scale_d,
            product=product,
            starts=starts,
            index=index,
            places=places,
            scale_b_places=scale_b_places,
            own_d=own_d,
            factors_d=factors_d,
            d=d,
        )
        gemm(a, gemm.view_b(b), target, None, epilogue, scheduler, lengths, stream, **atoms)

    return Entry(entry, grouped_arguments(signature(key), operation))
