"""What families of row kernels share: vectors of 16 bytes, and the arithmetic of a CTA's resources."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Reason, Rejected, Resources
from aot.core.feature import Feature
from aot.core.formats import SCALE_BLOCK
from aot.kinds.rows.candidate import RowKnobs, RowLimits
from aot.kinds.rows.catalogue import row_operations
from aot.kinds.rows.function import NORMS, QUANTIZE, ROTARY
from aot.kinds.rows.operation import KIND, MAX_COLS, RowOperation, RowScale

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.target import Target


def is_of_rows(operation: RowOperation) -> bool:
    """Say whether `_row_kernel` computes an operation: a norm, a quantisation, or a function of its elements."""
    function = operation.function
    return function in (*NORMS, QUANTIZE) or (function.arithmetic != "" and not function.arguments)


def is_of_heads(operation: RowOperation) -> bool:
    """Say whether `_rotary_kernel` computes an operation."""
    return operation.function == ROTARY


VECTOR_BYTES = 16
"""The widest access of a thread. Source: PTX ISA, ld.global: .v4 of 32 bits."""

WARP = 32
SHARED_VALUES = 3
"""float32 values that a warp has in shared memory: one for each reduction of a row."""
REGISTERS_OF_SM, REGISTER_UNIT = 65536, 8
"""Registers of an SM, and of how many a thread's are a multiple. Source: CUDA C++ Programming Guide, technical
specifications, compute capabilities 9.0 and 11.0; CUDA occupancy calculator: 256 for each warp."""
THREADS_OF_SM = 1536
"""Threads of an SM of compute capability 11.0; 9.0 has 2048. Source: the same table."""
SMEM_CARVEOUT = 100
"""Percent of an SM's memory that is to be shared memory: as much as products take, so that a row kernel may start on an
SM that a product is still on. An assumption: an SM that is to be divided otherwise must be empty first. (Left out, the
compiler asks a GPU how much there is.)"""
FIXED_REGISTERS = 40
"""Registers of a thread beside its elements: addresses, limits and flags. Source: kernels of sm_90a and sm_110a that
`registers` calls legal compile without spilling, nvidia-cutlass-dsl 4.8.1, 2026-11-22."""

LOOP_REGISTERS = 16
"""Registers more for a loop over a row's parts, or for strides between elements. Source: as of `FIXED_REGISTERS`."""
ROTARY_REGISTERS = 48
"""Registers of a thread of `_rotary_kernel`, at most. Source: as of `FIXED_REGISTERS`."""


def vector_elements(operation: RowOperation) -> int:
    """Return the elements of X in a vector."""
    return VECTOR_BYTES // operation.x.num_bytes


def kernel_text(kernel: Any) -> str:
    """Return the text by which the compiler names a kernel, and which is therefore a part of its object.

    It writes the candidate as one class with all knobs, as candidates were when the kernels were measured and executed.
    """
    candidate = ", ".join(f"{name}={value!r}" for name, value in kernel.candidate.knobs.items())
    written = {"candidate": f"RowCandidate(family={kernel.candidate.family!r}, {candidate})"}
    values = (f"{x.name}={written.get(x.name) or repr(getattr(kernel, x.name))}" for x in fields(kernel))
    return f"{type(kernel).__name__}({', '.join(values)})"


def registers(knobs: RowKnobs, operation: RowOperation, more: int = 0) -> int:
    """Count the registers that a thread of `_row_kernel` cannot do without.

    They hold the float32 values, and beside them weights and biases, or what pairs are made of.
    """
    beside = operation.is_norm + operation.has_bias + operation.is_pair
    each = knobs.vectors_per_thread * knobs.vector_elements
    packed = each // 2 if knobs.vector_elements > 1 else each
    return FIXED_REGISTERS + more + each + beside * packed


def blocks_per_sm(registers: int, num_threads: int) -> int:
    """Return the CTAs that an SM is to hold at once, for which ptxas saves registers: as many as need no spilling.

    Left to itself it spills a few to hold more, or takes twice as many as it needs.
    """
    fitting = REGISTERS_OF_SM // (-(-registers // REGISTER_UNIT) * REGISTER_UNIT * num_threads)
    return max(min(fitting, THREADS_OF_SM // num_threads), 1)


def limits(knobs: RowKnobs, *, max_cols: int = MAX_COLS) -> RowLimits:
    """Say what a kernel asks of a problem: nothing but few columns, where it reads element by element."""
    if knobs.vector_elements == 1:
        return RowLimits(max_cols=max_cols)
    return RowLimits(VECTOR_BYTES, knobs.vector_elements, max_cols)


class RowKernels:
    """What is the same for families of rows, unless they say otherwise."""

    kind = KIND
    knobs = RowKnobs
    needs = (Feature.DEPENDENT_LAUNCH,)
    is_fallback = False

    @property
    def operations(self) -> tuple[RowOperation, ...]:
        """List what the family computes."""
        return tuple(x for x in row_operations() if self.computes(x))

    def computes(self, operation: RowOperation) -> bool:
        """Say whether the family computes an operation."""
        return is_of_rows(operation)

    def check(self, candidate: Candidate, operation: RowOperation, target: Target) -> Rejected | None:
        """Refuse what the kernels' reductions and vectors cannot be made of."""
        del target
        knobs, name = RowKnobs.of(candidate), candidate.name
        threads, elements = knobs.threads_per_row, knobs.vector_elements
        if threads & (threads - 1) or knobs.num_threads % WARP:
            text = f"{name}: {threads} threads a row and {knobs.num_threads} a CTA; rows are reduced by powers of"
            return Rejected(Reason.COMBINATION, f"{text} two of threads, in whole warps of {WARP}")
        if elements not in (1, vector_elements(operation)):
            text = f"{name}: vectors of {elements} elements of {operation.x.value}; there are 1 and"
            return Rejected(Reason.TILE, f"{text} {vector_elements(operation)}, which are {VECTOR_BYTES} bytes")
        if operation.scale is RowScale.BLOCK and knobs.columns != SCALE_BLOCK:
            text = f"{name}: {knobs.columns} columns at once; a block of scales has {SCALE_BLOCK}"
            return Rejected(Reason.TILE, f"{text}, and a kernel's threads have one block at a time")
        return None

    def registers(self, knobs: RowKnobs, operation: RowOperation) -> int:
        """Count the registers that a thread cannot do without."""
        return registers(knobs, operation)

    def resources(self, candidate: Candidate, operation: RowOperation, target: Target) -> Resources:
        """Count threads and their registers, and the shared memory in which warps bring their sums together."""
        del target
        knobs = RowKnobs.of(candidate)
        shared = -(-knobs.num_threads // WARP) * SHARED_VALUES * 4
        return Resources(shared, 0, knobs.num_threads, 0, registers=self.registers(knobs, operation))

    def limits(self, candidate: Candidate, operation: RowOperation) -> RowLimits:
        """Ask for aligned rows of any width, or for nothing."""
        del operation
        return limits(RowKnobs.of(candidate))

    def num_reads(self, candidate: Candidate, operation: RowOperation) -> int:
        """Read once, or for a tensor's scale too."""
        del candidate
        return 2 if operation.scale is RowScale.TENSOR else 1
