"""The record of the kind `rows`: operations that make each row of Y of a row of X."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from aot.kinds.kind import Axis, Features, Kind, Use
from aot.kinds.rows.candidate import RowKernelKey, RowKnobs
from aot.kinds.rows.catalogue import OWN_ROW_OPERATIONS, row_operations, twins
from aot.kinds.rows.kernel import RowKernel
from aot.kinds.rows.operation import KIND, RowOperation
from aot.kinds.rows.problem import RowProblem
from aot.kinds.rows.sizes import ROW_EDGES, col_edges, usual_problems
from aot.kinds.rows.tuned import TunedRowKernel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.core.shape_set import ShapeSet
    from aot.core.work import AnyOperation


class RowsKind(Kind[RowProblem, RowKernelKey]):
    """Norms, gates, rotary embeddings and quantisation."""

    name = KIND
    axes = (Axis("rows", Use.LADDER), Axis("cols", Use.KEY))
    own_operations = OWN_ROW_OPERATIONS
    problem_type = RowProblem
    key_type = RowKernelKey
    knobs = RowKnobs
    features = Features(("threads_per_row", "rows_per_cta", "vector_elements", "vectors_per_thread"), ("family",))
    kernel_type = RowKernel
    tuned_type = TunedRowKernel
    held_out = MappingProxyType({2: "each size in turn"})

    @property
    def operations(self) -> tuple[RowOperation, ...]:
        """Return ours, then those of other packages."""
        return row_operations()

    def edges(self, operation: RowOperation) -> Mapping[str, tuple[int, ...]]:
        """Return those of rows and of an operation's columns."""
        return {"rows": ROW_EDGES, "cols": col_edges(operation)}

    def asked(self, operation: RowOperation, shapes: ShapeSet) -> list[RowProblem]:
        """List the usual sizes, of which shape sets say nothing."""
        del shapes
        return usual_problems(operation)

    def imputed_from(self, operation: AnyOperation) -> tuple[RowOperation, ...]:
        """Return the operations that differ in X's element type alone, whose elements are as wide."""
        return next(twins(x) for x in row_operations() if x == operation)


ROWS = RowsKind()
