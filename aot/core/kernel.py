"""A compiled kernel, as a manifest holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from aot.core.candidate import Candidate, KernelKey, Workspace
from aot.core.constraints import Count, Extent, Identifier, KernelName, Positive, Range, Sha256
from aot.core.execution import KernelState
from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.core.tile_order import NUM_ORDERS


@dataclass(frozen=True)
class Kernel:
    """One kernel that the wheel ships."""

    name: KernelName
    operation: Operation
    candidate: Candidate
    object_sha256: Sha256
    object_bytes: Count
    ptx_sha256: Sha256
    """Of the PTX that its device code was assembled from."""
    entry_symbol: Identifier
    """The C entry that `export_to_c` made: `void entry(void** args, int32_t num_args)`."""
    init_symbol: Identifier
    load_symbol: Identifier
    signature: tuple[Argument, ...]
    """The entry's arguments, in order."""
    num_strides: Annotated[int, Range(1, 2)]
    """Strides that the entry takes for each operand: 1, the leading one, or 2, both."""
    m_multiple: Extent
    n_multiple: Extent
    workspace: Workspace
    smem_bytes: Count
    tmem_columns: Count
    num_threads: Count
    registers: Count
    spill_bytes: Count
    num_sms: Extent | None = None
    """SMs of the target that it was compiled for: a persistent kernel launches no more CTAs than those hold.

    None where that is not said, as beside objects compiled before 2026-11-22; no manifest has such a kernel.
    """

    num_narrower: Positive | None = None
    """Groups of 8 columns by which its tile is narrower than the widest that its object computes; None where it has the
    widest, or the only one. Kernels of several widths share an object."""

    load_alignment: Positive = 16
    """Bytes of which the addresses and leading strides of A and B must be multiples; `Alignment` of its candidate."""
    store_alignment: Positive = 16
    """The same of D and of what the epilogue reads; 1 where any element may begin a row."""

    state: KernelState | None = None
    """How far it was tried; None beside its object, where that is not asked yet. Every manifest's kernel has it."""

    @property
    def key(self) -> KernelKey:
        """Return the kernel's operation and candidate."""
        return KernelKey(self.operation, self.candidate)

    @property
    def symbols(self) -> tuple[str, str, str]:
        """Return what its object exports."""
        return self.entry_symbol, self.init_symbol, self.load_symbol

    @property
    def orders_tiles(self) -> bool:
        """Say whether it takes its tiles in an order that it is told."""
        return Argument.TILE_ORDER in self.signature

    @property
    def first_order(self) -> int:
        """Return what its entry takes for the order 0 of tiles: its object's width is told by that argument too."""
        return NUM_ORDERS * (self.num_narrower or 0)

    @property
    def resident_sms(self) -> int:
        """Return how many SMs a device must have that launches it; 0 of a kernel whose CTAs wait for no other.

        Where they wait, those of one launch must all be resident. Where not, a grid for more SMs takes longer, and is
        right.
        """
        return (self.num_sms or 0) if self.workspace.waits else 0
