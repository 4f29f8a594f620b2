"""What quack's epilogues take, and which of them go together. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.element import ElementType
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.core.knobs import SplitK
from aot.families._epilogue import has_own_epilogue

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.epilogue import Step
    from aot.core.operation import Operation


def bias_bytes(candidate: Candidate, operation: Operation, cta_m: int) -> int:
    """Count the bytes of the piece of a bias that a CTA's tile needs.

    In separate split-K the reduction adds the bias, from global memory. Source: quack epilogue/ops.py, `VecLoad`.

    Args:
        candidate: tile, swap and split.
        operation: what has the bias.
        cta_m: rows of a tile that one CTA holds.
    """
    if not operation.has_bias or candidate.gemm.split_k_mode == SplitK.SEPARATE:
        return 0
    return operation.bias.size_of(cta_m if candidate.gemm.swap_ab else candidate.gemm.tile_n)


def vector_bytes(candidate: Candidate, operation: Operation, cta_m: int) -> int:
    """Count the bytes of the pieces that a CTA's tile needs of all vectors: scales and a bias.

    Args:
        candidate: tile, swap and split.
        operation: what has the vectors.
        cta_m: rows of a tile that one CTA holds.
    """
    has_scales = operation.types.factors is FactorLayout.VECTOR
    scales = ElementType.FLOAT32.size_of(cta_m + candidate.gemm.tile_n) if has_scales else 0
    return scales + bias_bytes(candidate, operation, cta_m)


def epilogue_fault(candidate: Candidate, operation: Operation) -> str | None:
    """Say why a candidate cannot have an operation's epilogue, on any architecture."""
    mode = SplitK(candidate.gemm.split_k_mode)
    if operation.grouping is not Grouping.DENSE and mode is not SplitK.NONE:
        return f"{mode.value} split-K's workspace is for one product, {operation.tag} has several; take no split"
    if operation.accumulator is ElementType.INT32 and mode is not SplitK.NONE:
        return f"{mode.value} split-K adds up in float32, {operation.tag} in int32; take no split"
    if not has_own_epilogue(operation):
        return None
    if mode is SplitK.SEPARATE:
        adds = f"the kernel that adds up {mode.value} split-K's sums adds a bias at most"
        return f"{adds}, {operation.tag} has more; take {SplitK.SERIAL.value} split-K"
    return _gate_fault(candidate, operation.gate, mode) if operation.gate else None


def _gate_fault(candidate: Candidate, gate: Step, mode: SplitK) -> str | None:
    if candidate.gemm.swap_ab:
        return f"{gate.value} multiplies neighbouring columns, which swap_ab would make rows; take no swap"
    if mode is not SplitK.NONE:
        return f"{mode.value} split-K's workspace holds n columns, {gate.value} sums 2 n; take no split"
    return None


SLICED_ROWS = 32
"""Rows of 32-bit operands of which there must be a multiple, or half as many. Source: where a stage of B is not a
multiple of 1024 elements, and more than 512, the compiler of nvidia-cutlass-dsl 4.8.1 aborts on slicing it (quack
gemm_sm90.py and gemm_sm100.py, `__call__`; 2026-11-22)."""


def wide_fault(operation: Operation, rows: int) -> str | None:
    """Say why operands of 32 bits cannot be held in stages.

    Args:
        operation: whose operands they are.
        rows: of the kernel's B that a CTA holds.
    """
    if operation.a.element.bits < ElementType.FLOAT32.bits or rows % SLICED_ROWS == 0 or 2 * rows == SLICED_ROWS:
        return None
    takes = f"{SLICED_ROWS // 2} columns of a tile to a CTA, or a multiple of {SLICED_ROWS}"
    return f"{operation.types.tag} takes {takes}, got {rows}"
