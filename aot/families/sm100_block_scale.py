"""quack's Blackwell GEMM of narrow operands whose blocks along k have scale factors: NVFP4, MXFP4 and MXFP8.

A in MXFP8 by B in MXFP4 is one too: TMA loads B's elements with gaps, so that both have 128 bytes a row and stage.
`tcgen05.mma` multiplies by the factors, which the kernel copies from shared to tensor memory; the tensors' own factor,
of NVFP4, is the epilogue's, in float32. NVIDIA's block-scaled kernel rounds to D's type before its epilogue, and takes
operands without padding alone.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, KernelKey, Reason, Rejected
from aot.core.epilogue import OF_ONE_WEIGHT, Epilogue
from aot.core.factor_atoms import ATOM_BYTES, num_atoms
from aot.core.feature import Feature
from aot.core.grouping import Grouping
from aot.core.knobs import SplitK
from aot.core.types import (
    MXFP4_BF16,
    MXFP4_FP16,
    MXFP4_MXFP4,
    MXFP8_BF16,
    MXFP8_FP16,
    MXFP8_MXFP4_BF16,
    MXFP8_MXFP4_FP16,
    MXFP8_MXFP8,
    NVFP4_BF16,
    NVFP4_FP16,
    NVFP4_NVFP4,
    Types,
)
from aot.core.weight_format import ATOM_COLUMNS
from aot.families._tcgen05 import CLC, TILE_K_BYTES
from aot.families.sm100_quack import Sm100Quack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry
    from aot.families._tcgen05 import Shape

TILE_M = {False: 128, True: 256}
"""tile_m without and with two CTAs. Source: PTX ISA, tcgen05.mma, shapes of .block_scale; quack gemm_sm100.py."""

TILE_N = (64, 128, 192)
"""Source: quack gemm_sm100.py, "blockscaled tile_n must be a multiple of 64 in [64, 256]"; 256 is refused below."""

MAX_CLUSTER_SIDE = 4
"""CTAs along m or n that share factors. Source: NVIDIA's block-scaled kernel, constraints of the cluster's shape."""

OVERLAPPED_TILE_N = 256
"""tile_n at which two accumulators fill tensor memory, so that factors lie in the one that is not in use."""

INSTRUCTION_K_BYTES = 32
"""Bytes of k of one instruction. Source: PTX ISA, tcgen05.mma, shapes of .block_scale."""

QUANTIZED_COLUMNS = 64
"""Columns of sums that one stage of the epilogue makes elements of 4 bits of; with a gate two make one. Source: quack
gemm_sm100.py, `_setup_attributes`: 32 elements of D make 16 bytes, and the pieces that cutlass.utils chooses are 64."""

TMEM_COLUMNS = 512
"""Columns of tensor memory, all of which the kernel takes. Source: quack gemm_sm100.py, `num_tmem_alloc_cols`."""


class Sm100BlockScale(Sm100Quack):
    """The family `sm100_block_scale`."""

    name = "sm100_block_scale"
    needs: tuple[Feature, ...] = (*Sm100Quack.needs, Feature.BLOCK_SCALE)
    types: tuple[Types, ...] = (
        NVFP4_BF16,
        NVFP4_FP16,
        MXFP4_BF16,
        MXFP4_FP16,
        MXFP8_BF16,
        MXFP8_FP16,
        MXFP8_MXFP4_BF16,
        MXFP8_MXFP4_FP16,
        NVFP4_NVFP4,
        MXFP4_MXFP4,
        MXFP8_MXFP8,
    )
    epilogues: tuple[Epilogue, ...] = OF_ONE_WEIGHT
    groupings: tuple[Grouping, ...] = (Grouping.DENSE,)

    split_modes = (SplitK.SERIAL,)

    def _tiles(self) -> Iterator[tuple[int, int]]:
        """List the tiles; those that are refused below too, so that they are seen with their reason."""
        return product(TILE_M.values(), (*TILE_N, OVERLAPPED_TILE_N))

    def _takes_two_ctas(self, tile_m: int, cluster_m: int) -> bool:
        """Say whether two CTAs share a tile: the taller one is always theirs."""
        del cluster_m
        return tile_m == TILE_M[True]

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply what the instruction and the copies of factors ask of tiles and clusters."""
        knobs = candidate.gemm
        wrong = _tile_fault(candidate)
        if wrong:
            return Rejected(Reason.TILE, wrong)
        if knobs.use_2cta != (knobs.cluster_m % 2 == 0 and knobs.tile_m == TILE_M[True]):
            return Rejected(Reason.CLUSTER, f"use_2cta needs an even cluster_m, got {knobs.cluster_m}")
        if max(knobs.cluster_m, knobs.cluster_n) > MAX_CLUSTER_SIDE:
            text = f"factors go to at most {MAX_CLUSTER_SIDE} CTAs along m and n"
            return Rejected(Reason.CLUSTER, f"{text}, got {knobs.cluster_m}x{knobs.cluster_n}")
        if SplitK(knobs.split_k_mode) not in (SplitK.NONE, SplitK.SERIAL):
            return Rejected(Reason.COMBINATION, f"the kernel has no {SplitK(knobs.split_k_mode).value} split-K")
        wrong = _combination_fault(candidate, operation)
        if wrong:
            return Rejected(Reason.COMBINATION, wrong)
        return super().check(candidate, operation, target)

    def factor_bytes(self, shape: Shape, operation: Operation) -> tuple[int, ...]:
        """Count the bytes of the factors in one stage of one CTA: of its rows, and of all columns of the tile."""
        scale = operation.a.scale
        if scale is None:
            return ()
        blocks = operation.a.element.num_in(TILE_K_BYTES) // scale.block_k
        atoms = (num_atoms(rows, blocks) for rows in (shape.cta_m, shape.tile_n))
        return tuple(down * along * ATOM_BYTES for down, along in atoms)

    def epilogue_bytes(self, candidate: Candidate, operation: Operation, shape: Shape) -> tuple[int, int]:
        """Count the bytes of D in one stage of the epilogue; elements of 4 bits are stored in wider pieces."""
        if operation.factors_of_d is None:
            return super().epilogue_bytes(candidate, operation, shape)
        columns = QUANTIZED_COLUMNS // (1 if operation.gate is None else 2)
        return operation.d.size_of(shape.cta_m * columns), 0

    def tmem_columns(self, shape: Shape) -> int:
        """Count the columns of tensor memory, all of which the kernel takes."""
        del shape
        return TMEM_COLUMNS

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Configure the GEMM and make its entry."""
        if operation.factors_of_d is None:
            return super().entry(candidate, operation, target)
        from aot.families._quantized_entry import quantized_entry

        gemm = self.configure(candidate, operation, target)
        clusters = target.num_clusters(candidate.gemm.cluster_m * candidate.gemm.cluster_n)
        return quantized_entry(gemm, KernelKey(operation, candidate), self.workspace(candidate), clusters)

    def configure(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Make the GEMM that a candidate describes."""
        del target
        from aot.families._arguments import cutlass_type
        from aot.families._padded_block_kernel import padded_class
        from aot.families._quack import quack_split_k
        from aot.families._quack_classes import sm100_class
        from aot.families._quantized_kernel import quantized_class

        knobs, scale = candidate.gemm, operation.a.scale
        if scale is None:
            raise ValueError(f"{operation.tag} has no scale factors; expected one of {[x.tag for x in self.types]}")
        a, b = (operation.b, operation.a) if knobs.swap_ab else (operation.a, operation.b)
        is_padded = a.is_padded or b.is_padded
        if operation.factors_of_d is not None:
            made = quantized_class(operation)
        else:
            made = (padded_class if is_padded else sm100_class)(operation, swap_ab=knobs.swap_ab)
        return made(
            cutlass_type(operation.accumulator),
            cutlass_type(a.element),
            (knobs.tile_m, knobs.tile_n),
            (knobs.cluster_m, knobs.cluster_n, 1),
            sf_vec_size=scale.block_k,
            a_mma_dtype=cutlass_type(a.element),
            b_mma_dtype=cutlass_type(b.element),
            use_clc_persistence=knobs.schedule == CLC,
            **quack_split_k(candidate),
        )


def _skips_blocks(operation: Operation) -> bool:
    """Say whether the kernel leaves out instructions of the last stage, as it does where each takes one block.

    It counts them by the whole k, for the last stage of every split; of a k of whole stages it leaves none out. Source:
    quack gemm_sm100.py, `sf_valid_insts`; mxfp8 with two splits was wrong for k 144 and 528 in the interpreter,
    2026-11-27.
    """
    scale, element = operation.a.scale, operation.a.element
    has_whole_stages = operation.k_step % element.num_in(TILE_K_BYTES) == 0
    return scale is not None and not has_whole_stages and element.num_in(INSTRUCTION_K_BYTES) == scale.block_k


def _combination_fault(candidate: Candidate, operation: Operation) -> str | None:
    """Say why an operation's D is not right with a candidate's order of operands, or with its splits."""
    knobs, form = candidate.gemm, operation.factors_of_d
    if form is not None and knobs.swap_ab:
        text = f"a thread has whole blocks of a row of D, which swap_ab would make a column of {operation.tag}"
        return f"{text}; take no swap"
    columns = 0 if form is None else operation.num_rows_of_b(form.block_k * ATOM_COLUMNS)
    if columns and knobs.tile_n % columns != 0 and columns % knobs.tile_n != 0:
        # quack moves its view of D's factors to where a tile begins, and counts from there as if an atom began.
        text = f"a tile of {operation.tag} has whole atoms of D's factors, or is a part of one: tile_n is a multiple"
        return f"{text} of {columns}, or divides it; got {knobs.tile_n}"
    if knobs.split_k > 1 and _skips_blocks(operation):
        text = "each split leaves out of its last stage what the whole k leaves out of its own"
        return f"{text}, and a product of {operation.types.tag} is wrong; take no split"
    return None


def _tile_fault(candidate: Candidate) -> str | None:
    """Say why no block-scaled instruction, or no kernel of it, has a candidate's tile."""
    knobs, widths = candidate.gemm, ", ".join(map(str, TILE_N))
    if knobs.tile_m != TILE_M[knobs.use_2cta]:
        text = f"block-scaled tcgen05 takes tile_m {TILE_M[knobs.use_2cta]} with use_2cta={knobs.use_2cta}"
        return f"{text}, got {knobs.tile_m}"
    if knobs.tile_n == OVERLAPPED_TILE_N:
        text = f"accumulators of {OVERLAPPED_TILE_N} columns share tensor memory with the factors"
        return f"{text}, and a kernel of that kind hangs; take tile_n {widths}"
    if knobs.tile_n not in TILE_N:
        return f"factors lie in atoms of 128 columns, which a tile may halve: tile_n {widths}; got {knobs.tile_n}"
    return None


FAMILY = Sm100BlockScale()
