"""quack's GEMMs on int8 operands, with exact int32 sums. Imports CUTLASS and quack.

quack's Hopper GEMM holds its sums in registers of float32. The instruction for int8 adds int32 to the same registers;
CuTe DSL's saturates where a sum leaves int32, which takes a k of more than 131,071 (2^31 / 128^2).
Its Blackwell GEMM can have int32 sums in tensor memory, but hands them to the epilogue as they are.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from functools import partial
from typing import Any

from cutlass import Float32, Int32

from aot.families._arguments import seen_as
from aot.families._epilogue_kernel import GemmEpilogueSm90, GemmEpilogueSm100
from aot.families._quack_internals import InstructionSm90


class GemmInt8Sm90(InstructionSm90):
    """quack's GEMM of int8 A and B, whose epilogue gets the int32 sums as float32.

    Where D is of int32 the sums are not converted: the epilogue, which must have no steps then, moves their bits.
    """

    acc_dtype: Any
    moves_bits = False
    """Whether D is of int32."""

    def __call__(self, a: Any, b: Any, d: Any, *args: Any, **kwargs: Any) -> None:
        """Launch as quack does."""
        self.moves_bits = d.element_type is Int32
        super().__call__(a, b, seen_as(d, Float32) if self.moves_bits else d, *args, **kwargs)

    def before_instruction(self) -> None:
        """Have sums of int32."""
        self.acc_dtype = Int32

    def after_instruction(self) -> None:
        """Have an epilogue of float32."""
        self.acc_dtype = Float32

    def mma(self, ab_pipeline: Any, ab_read_state: Any, mma_fn: Any, acc: Any, *args: Any) -> Any:
        """Multiply as quack does, with the sums as int32, and convert them."""
        tiled_mma, _, *fragments = mma_fn.args
        sums = seen_as(acc, Int32)
        multiply = partial(mma_fn.func, tiled_mma, sums, *fragments)
        state = super().mma(ab_pipeline, ab_read_state, multiply, sums, *args)
        if not self.moves_bits:
            acc.store(sums.load().to(Float32))
        return state


class GemmEpilogueInt8Sm90(GemmEpilogueSm90, GemmInt8Sm90):
    """The same with an operation's epilogue."""


class GemmEpilogueInt8Sm100(GemmEpilogueSm100):
    """quack's Blackwell GEMM of int8 A and B with an operation's epilogue, which gets the int32 sums as float32."""

    acc_dtype: Any

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch as quack does."""
        self.acc_dtype = Int32
        super().__call__(*args, **kwargs)

    def epilog_tmem_copy_and_partition(self, *args: Any, **kwargs: Any) -> Any:
        """Partition as quack does. What is traced from here on is the epilogue, of float32."""
        made = super().epilog_tmem_copy_and_partition(*args, **kwargs)
        self.acc_dtype = Float32
        return made

    def epi_load_acc_subtile(
        self, copy_t2r: Any, copy_r2s: Any, source: Any, loaded: Any, target: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Load a piece of the sums as quack does, and convert it."""
        sums = seen_as(target, Int32)
        super().epi_load_acc_subtile(copy_t2r, copy_r2s, source, loaded, sums, *args, **kwargs)
        target.store(sums.load().to(Float32))
