"""The private things of quack that our kernels use, and why. Imports CUTLASS and quack.

quack's `GemmSm90.__call__` does two things: it chooses a GEMM's layouts and stages, and it launches quack's own kernel.
Our kernels need the first without the second. The method that chooses has no public name, so it is called here and
nowhere else. `PieceSm90` overrides two private methods, which choose the piece of a tile that is stored at once and how
many stages there are, and `MixedSm100` one of quack's Blackwell GEMM, which describes the instruction.
`tests/unit/families/test_quack_internals.py` fails where a release of quack changes it, or where quack's
other methods come to read an attribute that quack's `__call__` sets and `choose_layouts` does not.
"""

from typing import Any

from cutlass import cute
from cutlass.tensor_utils import LayoutEnum

from aot.families._quack_sm90_kernel import GemmSplitSm90
from aot.families._quack_sm100_kernel import GemmSplitSm100

CALLED = {"_setup_attributes": ["self", "epilogue_args"]}
"""The private methods of `GemmSm90` that are called here, with their parameters."""

REPLACED = {
    "_compute_tile_shape_or_override": ["cta_tile_shape_mnk", "atom_layout_mnk", "element_type", "epi_tile_override"],
    "_compute_stages": [
        "cta_tile_shape_mnk",
        "epi_tile",
        "a_dtype",
        "b_dtype",
        "d_dtype",
        "c_dtype",
        "epilogue_args",
        "smem_capacity",
        "occupancy",
        "warp_shape_mnk",
        "a_bytes_per_stage_override",
        "ab_extra_bytes_per_stage",
    ],
}
"""The private methods of `GemmSm90` that are overridden here, with their parameters."""

REPLACED_SM100 = {"_setup_attributes": ["self", "epilogue_args", "varlen_args"]}
"""The same of `GemmSm100`."""


REPLACED_INSTRUCTION = {"_setup_tiled_mma": ["self"]}
"""The private methods of `GemmSm90` that are overridden for other instructions than quack's, with their parameters."""


class InstructionSm90(GemmSplitSm90):
    """quack's GEMM, of which a subclass may change what is known before and after the instruction is chosen."""

    def before_instruction(self) -> None:
        """Do nothing before quack chooses the instruction, of the types and layouts of a call."""

    def after_instruction(self) -> None:
        """Do nothing after that; nothing of shared memory has been chosen yet."""

    def _setup_tiled_mma(self) -> None:
        self.before_instruction()
        super()._setup_tiled_mma()
        self.after_instruction()


class PieceSm90(GemmSplitSm90):
    """quack's GEMM, of which a subclass may say how many columns are stored at once, and how many stages there are."""

    piece_columns: int | None = None
    """Columns that are stored at once; None leaves them to quack."""

    chosen_stages: tuple[int, int, int] | None = None
    """Stages of A and B, of D and of a residual; None leaves them to quack."""

    def _compute_stages(self, *args: Any, **kwargs: Any) -> tuple[int, int, int]:
        if self.chosen_stages is not None:
            return self.chosen_stages
        quacks: tuple[int, int, int] = super()._compute_stages(*args, **kwargs)
        return quacks

    def _compute_tile_shape_or_override(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        rows, columns = super()._compute_tile_shape_or_override(*args, **kwargs)
        return rows, self.piece_columns or columns


class MixedSm100(GemmSplitSm100):
    """quack's Blackwell GEMM, for operands of two types of 8 bits too.

    quack asks for one type of A and B, where the instruction takes two. So B is given to it as of A's type, and named
    by its own only where the instruction and shared memory are described.
    """

    def __init__(self, accumulator: Any, element_a: Any, *args: Any, element_b: Any, **kwargs: Any) -> None:
        """Configure as quack does.

        Args:
            accumulator: as in quack's GEMM, as `args` and `kwargs`.
            element_a: CUTLASS's class of the elements of the kernel's A.
            element_b: the same of the kernel's B, of as many bits.
        """
        super().__init__(accumulator, element_a, *args, **kwargs)
        self.element_a, self.element_b = element_a, element_b

    def view_b(self, b: Any) -> Any:
        """Return B as if it were of A's type."""
        if b.element_type is self.element_a:
            return b
        return cute.make_tensor(cute.recast_ptr(b.iterator, dtype=self.element_a), b.layout)

    def _setup_attributes(self, *args: Any) -> None:
        self.b_dtype = self.b_smem_dtype = self.element_b
        super()._setup_attributes(*args)


def choose_layouts(gemm: Any, a: Any, b: Any, d: Any, c: Any, epilogue: Any) -> None:
    """Set the attributes that quack's methods read of a call: types, layouts, stages, and the bytes of a stage.

    Args:
        gemm: an instance of a class that derives from `GemmDefaultSm90`.
        a: (m, k, batch), `b`: (n, k, batch), `d`: (m, n, batch). No lengths vary.
        c: None, or the residual, as D.
        epilogue: quack's `EpilogueArguments`.
    """
    gemm.a_dtype = gemm.a_smem_dtype = a.element_type
    gemm.b_dtype = gemm.b_smem_dtype = b.element_type
    gemm.d_dtype, gemm.c_dtype = d.element_type, None if c is None else c.element_type
    gemm.a_layout, gemm.b_layout = LayoutEnum.from_tensor(a), LayoutEnum.from_tensor(b)
    gemm.d_layout, gemm.c_layout = LayoutEnum.from_tensor(d), None if c is None else LayoutEnum.from_tensor(c)
    gemm.varlen_m = gemm.varlen_k = False
    gemm._setup_attributes(epilogue)  # noqa: SLF001 - this module's purpose
    stage_a, stage_b = stage_layouts(gemm)
    gemm.num_tma_load_bytes = cute.size_in_bytes(a.element_type, stage_a) + cute.size_in_bytes(b.element_type, stage_b)
    stage_c = None if c is None else first_stage(gemm.epi_c_smem_layout_staged)
    gemm.epi_load_bytes_per_stage = 0 if c is None else cute.size_in_bytes(c.element_type, stage_c)


def stage_layouts(gemm: Any) -> tuple[Any, Any]:
    """Return the layouts of one stage of A and one of B in shared memory, after `choose_layouts`."""
    return first_stage(gemm.a_smem_layout_staged), first_stage(gemm.b_smem_layout_staged)


def first_stage(staged: Any) -> Any:
    """Return the layout of one stage. Slicing the swizzled layout as a whole aborts on an odd count of 8-row atoms."""
    return cute.make_composed_layout(staged.inner, 0, cute.slice_(staged.outer, (None, None, 0)))
