"""What the templates write of a library's operations on rows: rows of plain values, and grids as products have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.dispatch import Column, Grid
from aot.core.element import ElementType
from aot.kinds.rows.operation import RowOperation
from aot.package.enumerator import enumerator

if TYPE_CHECKING:
    from aot.kinds.rows.dispatch import RowSection
    from aot.package.manifest import Library, Manifest


@dataclass(frozen=True)
class _Call:
    """A row operation as the template writes it: a tag, and enumerators of templates/src/row_operation.h."""

    tag: str
    function_name: str
    """As Python has it."""
    is_of_fp16: bool
    """Of X."""
    function: str
    x: str
    y: str
    scale: str


def _call(operation: RowOperation) -> _Call:
    name, names = operation.function.value, (operation.x.name, operation.y.name, operation.scale.value)
    return _Call(operation.tag, name, operation.x is ElementType.FLOAT16, enumerator(name), *map(enumerator, names))


def grid_of_rows(section: RowSection, first_kernel: int) -> Grid:
    """Return the table of an operation on rows as a grid: rows as m, cols as n, and one k.

    Args:
        section: the table.
        first_kernel: index of the first kernel on rows among all of the library.
    """
    columns = (
        Column(column.row_edges, tuple(first_kernel + step.kernel for step in column.steps))
        for column in section.columns
    )
    return Grid(section.col_edges, (1,), tuple(columns))


def row_operations(library: Library) -> list[RowOperation]:
    """List what a library's kernels on rows compute, in the order of the catalogue."""
    sections = (section for table in library.tables for section in table.row_table.sections)
    used = {kernel.operation for kernel in library.row_kernels} | {section.operation for section in sections}
    return [x for x in RowOperation if x in used]


def row_catalogue_variables(manifest: Manifest) -> dict[str, object]:
    """Return what a wheel's catalogue and README are rendered by: the row operations that there are, and its own."""
    return {
        "row_catalogue": tuple(RowOperation),
        "row_tags": {kernel.operation.tag for kernel in manifest.row_kernels},
    }


def row_variables(library: Library) -> dict[str, object]:
    """Return what the templates write of row operations."""
    return {"row_kernels": library.row_kernels, "row_calls": [_call(x) for x in row_operations(library)]}
