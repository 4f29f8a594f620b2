"""A compiled kernel of a row operation, as a manifest holds it."""

from __future__ import annotations

from dataclasses import dataclass

from aot.core.constraints import Count, Identifier, KernelName, Sha256
from aot.core.execution import KernelState
from aot.kinds.rows.candidate import RowCandidate, RowKernelKey, RowLimits
from aot.kinds.rows.catalogue import CataloguedRow
from aot.kinds.rows.signature import RowArgument


@dataclass(frozen=True)
class RowKernel:
    """One kernel of a row operation that the wheel ships."""

    name: KernelName
    operation: CataloguedRow
    candidate: RowCandidate
    object_sha256: Sha256
    object_bytes: Count
    ptx_sha256: Sha256
    """Of the PTX that its device code was assembled from."""
    entry_symbol: Identifier
    """The C entry that `export_to_c` made: `void entry(void** args, int32_t num_args)`."""
    init_symbol: Identifier
    load_symbol: Identifier
    signature: tuple[RowArgument, ...]
    """The entry's arguments, in order."""
    limits: RowLimits
    """What it asks of a problem."""
    smem_bytes: Count
    num_threads: Count
    registers: Count
    spill_bytes: Count
    state: KernelState | None = None
    """How far it was tried; None beside its object, where that is not asked yet. Every manifest's kernel has it."""

    @property
    def symbols(self) -> tuple[str, str, str]:
        """Return what its object exports."""
        return self.entry_symbol, self.init_symbol, self.load_symbol

    @property
    def key(self) -> RowKernelKey:
        """Return the kernel's operation and candidate."""
        return RowKernelKey(self.operation, self.candidate)
