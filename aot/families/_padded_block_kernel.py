"""quack's block-scaled GEMM of operands of two widths, with an operation's epilogue. Imports CUTLASS and quack."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aot.families._arguments import cutlass_type
from aot.families._epilogue_kernel import GemmEpilogueSm100
from aot.families._quack_internals import MixedSm100

if TYPE_CHECKING:
    from aot.core.operation import Operation


class GemmPaddedSm100(GemmEpilogueSm100):
    """`GemmEpilogueSm100` with elements of 8 bits on one side and of 4 on the other.

    quack itself has products of two types where there are factors: it loads the narrow elements with gaps to bytes of
    shared memory, by the type of the tensor. So each operand is handed over as it is.
    """

    def view_b(self, b: Any) -> Any:
        """Return the kernel's B as it is."""
        return b

    def _setup_attributes(self, *args: Any) -> None:
        super(MixedSm100, self)._setup_attributes(*args)


def padded_class(operation: Operation, *, swap_ab: bool) -> Any:
    """Return the GEMM of an operation, to be called with quack's own arguments."""
    element_b = cutlass_type((operation.a if swap_ab else operation.b).element)
    return partial(GemmPaddedSm100, operation=operation, swap_ab=swap_ab, element_b=element_b)
