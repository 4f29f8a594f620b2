"""How a row operation may be computed: the knobs of families of rows, and what a kernel takes of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from aot.core.candidate import Candidate, reader
from aot.core.constraints import Form, Range
from aot.core.knobs import Knobs
from aot.kinds.rows.catalogue import CataloguedRow
from aot.kinds.rows.operation import MAX_COLS

Threads = Annotated[int, Range(1, 1024)]
VectorElements = Annotated[int, Range(1, 16)]
Vectors = Annotated[int, Range(1, 64)]
RowsOfCta = Annotated[int, Range(1, 1024)]


@dataclass(frozen=True, order=True)
class RowKnobs(Knobs):
    """The knobs that the families of rows share. What a field means is the family's to say."""

    is_of_kind = True

    threads_per_row: Threads
    rows_per_cta: RowsOfCta
    vector_elements: VectorElements
    """Elements of X that one load takes; 1 for a kernel of any address and stride."""
    vectors_per_thread: Vectors
    """Vectors that a thread has in registers at once."""

    @property
    def num_threads(self) -> int:
        """Return the threads of a CTA."""
        return self.threads_per_row * self.rows_per_cta

    @property
    def columns(self) -> int:
        """Return the columns of a row that are in registers at once."""
        return self.threads_per_row * self.vector_elements * self.vectors_per_thread

    @property
    def name(self) -> str:
        """Return threads by rows, then elements by vectors: `128x2_v8x4`."""
        return f"{self.threads_per_row}x{self.rows_per_cta}_v{self.vector_elements}x{self.vectors_per_thread}"


def row_candidate(family: str, *knobs: int) -> Candidate:
    """Make a candidate of a family whose knobs are `RowKnobs`."""
    return Candidate(family, RowKnobs(*knobs))


RowCandidate: TypeAlias = Annotated[Candidate, Form(Any, reader(RowKnobs))]
"""A candidate of a family of rows, as a field of a file."""


@dataclass(frozen=True, order=True)
class RowKernelKey:
    """A candidate for one row operation: what is compiled, measured, shipped and named."""

    operation: CataloguedRow
    candidate: RowCandidate

    @property
    def name(self) -> str:
        """Return the kernel's stable name and symbol prefix, such as `bf16_rms_norm_row_registers_128x2_v8x4`."""
        return f"{self.operation.tag}_{self.candidate.name}"


@dataclass(frozen=True)
class RowLimits:
    """What a kernel asks of a problem. A kernel that asks nothing makes the dispatch of its operation total."""

    alignment_bytes: Annotated[int, Range(1, 16)] = 1
    """Of which the address of every tensor of X's type is a multiple, and each of its strides but the last, in bytes,
    which is 1; Y and its strides are of as many elements. Where this is 1, any address and any strides go."""
    cols_multiple: Annotated[int, Range(1, 4096)] = 1
    """Of which cols is a multiple; of a rotary embedding half of what is rotated is, and dim."""
    max_cols: Annotated[int, Range(1, MAX_COLS)] = MAX_COLS
    """Most columns that a row may have."""

    @property
    def has_last_stride(self) -> bool:
        """Say whether the entry takes the last stride of a matrix too, which else is 1."""
        return self.alignment_bytes == 1

    def takes(self, cols: int) -> bool:
        """Say whether a row of aligned tensors may have so many columns."""
        return cols % self.cols_multiple == 0 and cols <= self.max_cols
