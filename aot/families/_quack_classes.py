"""Which class of quack's GEMMs computes an operation: by its types and its epilogue. Imports CUTLASS and quack."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aot.core import types as t
from aot.core.element import ElementType
from aot.families._arguments import cutlass_type
from aot.families._epilogue import has_own_epilogue
from aot.families._epilogue_kernel import GemmEpilogueSm90, GemmEpilogueSm100
from aot.families._quack_int8_kernel import GemmEpilogueInt8Sm90, GemmEpilogueInt8Sm100, GemmInt8Sm90
from aot.families._quack_sm90_kernel import GemmSplitSm90
from aot.families._quack_sm100_kernel import GemmSplitSm100
from aot.families._quack_tf32_kernel import GemmTf32Sm90

if TYPE_CHECKING:
    from aot.core.operation import Operation


def sm90_class(operation: Operation, *, swap_ab: bool) -> Any:
    """Return quack's Hopper GEMM for an operation, to be called with quack's own arguments."""
    if has_own_epilogue(operation):
        made = GemmEpilogueInt8Sm90 if operation.accumulator is ElementType.INT32 else GemmEpilogueSm90
        return partial(made, operation=operation, swap_ab=swap_ab)
    return {t.TF32: GemmTf32Sm90, t.INT8_INT32: GemmInt8Sm90}.get(operation.types, GemmSplitSm90)


def sm100_class(operation: Operation, *, swap_ab: bool) -> Any:
    """Return quack's Blackwell GEMM for an operation, to be called with quack's own arguments."""
    if not has_own_epilogue(operation):
        return GemmSplitSm100
    made = GemmEpilogueInt8Sm100 if operation.accumulator is ElementType.INT32 else GemmEpilogueSm100
    element_b = cutlass_type((operation.a if swap_ab else operation.b).element)
    return partial(made, operation=operation, swap_ab=swap_ab, element_b=element_b)
