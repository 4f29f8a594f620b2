"""quack's Hopper GEMM on float32 operands, multiplied as tf32. Imports CUTLASS and quack.

quack's Hopper GEMM refuses operands of 32 bits, and CuTe DSL has no Hopper operation for them, though its compiler
takes one. So quack is given the operands as if they had 16 bits, and they are named by their own type where the
instruction, the shared memory and the loads are described.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cutlass import BFloat16, Float32, TFloat32, cute
from cutlass.cute.nvgpu.warpgroup import MmaF16BF16Op

from aot.families._arguments import seen_as
from aot.families._quack_internals import InstructionSm90

MMA_K = 8
"""Elements of k that one instruction multiplies. Source: PTX ISA, wgmma.mma_async with .tf32."""

STEPS = 4
"""Instructions to a stage, as quack has it for the other types: 128 bytes of k."""


class MmaTf32Op(MmaF16BF16Op):
    """The Hopper instruction for tf32: as that for 16 bits, but for the types and the extent of k."""

    def _verify(self) -> None:
        """Check nothing: the base class refuses every type but its own."""


class GemmTf32Sm90(InstructionSm90):
    """quack's GEMM of float32 A and B, multiplied as tf32 and added up in float32."""

    tiled_mma: Any
    cta_tile_shape_mnk: Any

    def __init__(self, accumulator: Any, element: Any, *args: Any, **kwargs: Any) -> None:
        """Configure as quack does; `element` is TFloat32."""
        del element
        super().__init__(accumulator, BFloat16, *args, **kwargs)

    def __call__(self, a: Any, b: Any, *args: Any, **kwargs: Any) -> None:
        """Launch as quack does."""
        super().__call__(seen_as(a, BFloat16), seen_as(b, BFloat16), *args, **kwargs)

    def after_instruction(self) -> None:
        """Take the instruction for tf32 in place of that for 16 bits, and name the operands' type."""
        self.a_dtype = self.b_dtype = self.a_smem_dtype = self.b_smem_dtype = TFloat32
        narrow = self.tiled_mma
        shape = (*narrow.op.shape_mnk[:2], MMA_K)
        majors = narrow.op.a_major_mode, narrow.op.b_major_mode
        operation = MmaTf32Op(TFloat32, Float32, shape, narrow.op.a_src, *majors)
        self.tiled_mma = cute.make_tiled_mma(
            cute.make_mma_atom(operation), self.atom_layout_mnk, permutation_mnk=narrow.permutation_mnk
        )
        self.cta_tile_shape_mnk = (*self.cta_tile_shape_mnk[:2], STEPS * MMA_K)

    def make_tma_load_atoms_and_tensors(self, a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        """Make the loads of A and B as what they are."""
        return super().make_tma_load_atoms_and_tensors(seen_as(a, TFloat32), seen_as(b, TFloat32), *args, **kwargs)
