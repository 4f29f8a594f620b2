"""What the templates write of a library's kernels: those of products, then those on rows, in rows of one form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aot.core.candidate import Workspace
from aot.core.knobs import SplitK

if TYPE_CHECKING:
    from aot.core.kernel import Kernel
    from aot.kinds.rows.kernel import RowKernel
    from aot.package.manifest import Library
    from aot.package.render_operations import Operations


@dataclass(frozen=True)
class KernelRow:
    """A kernel as kernels.cc.j2 writes it: `Kernel` of templates/src/kernel.h."""

    own: Kernel | RowKernel
    operation: int
    object: int
    """Index of the first kernel of the same object."""
    num_strides: int
    load_alignment: int
    store_alignment: int
    multiples: tuple[int, int]
    layout: int = 0
    workspace: Workspace = field(default_factory=Workspace)
    resident_sms: int = 0
    max_columns: int = 2**63 - 1
    first_order: int = 0

    @property
    def is_deterministic(self) -> bool:
        """Say whether it adds in a fixed order."""
        return self.workspace.mode != SplitK.PARALLEL


def kernels_of(library: Library, operations: Operations) -> list[KernelRow]:
    """List a library's kernels in the order of their index."""
    places = library.object_places
    products = [
        KernelRow(
            own=x,
            operation=operations.number_of(x.operation),
            object=places[x.name],
            num_strides=x.num_strides,
            load_alignment=x.load_alignment,
            store_alignment=x.store_alignment,
            multiples=(x.m_multiple, x.n_multiple),
            layout=x.operation.layout.code,
            workspace=x.workspace,
            resident_sms=x.resident_sms,
            first_order=x.first_order,
        )
        for x in library.kernels
    ]
    on_rows = [
        KernelRow(
            own=x,
            operation=operations.number_of(x.operation),
            object=place,
            num_strides=2 if x.limits.has_last_stride else 1,
            load_alignment=x.limits.alignment_bytes,
            store_alignment=x.limits.alignment_bytes,
            multiples=(1, x.limits.cols_multiple),
            max_columns=x.limits.max_cols,
        )
        for place, x in enumerate(library.row_kernels, start=len(products))
    ]
    return products + on_rows
