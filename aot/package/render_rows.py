"""What row_table.cc.j2 writes of a library's row operations: rows of plain values, in the table's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.element import ElementType
from aot.kinds.rows.dispatch import RowColumn
from aot.kinds.rows.operation import RowOperation
from aot.package.enumerator import enumerator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.package.manifest import Library, Manifest


@dataclass(frozen=True)
class _Column:
    """A column as the template writes it."""

    row_edges: tuple[int, ...]
    kernels: tuple[int, ...]

    @staticmethod
    def of(column: RowColumn) -> _Column:
        return _Column(column.row_edges, tuple(step.kernel for step in column.steps))


@dataclass(frozen=True)
class _Section:
    """A section as the template writes it."""

    index: int
    """Among all sections of the library."""
    table: int
    number: int
    """Among the row sections of its table."""
    operation: RowOperation
    col_edges: tuple[int, ...]
    columns: tuple[_Column, ...]
    first_steps: tuple[int, ...]
    fallback: int


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


def _sections(library: Library) -> list[_Section]:
    found: list[_Section] = []
    for place, table in enumerate(library.tables):
        for number, section in enumerate(table.row_table.sections):
            columns = tuple(map(_Column.of, section.columns))
            body = section.operation, section.col_edges, columns, section.first_steps, section.fallback
            found.append(_Section(len(found), place, number, *body))
    return found


def _section_of(library: Library, sections: Sequence[_Section], operations: Sequence[RowOperation]) -> list[int]:
    """Return the section that answers by table and operation: a table's own, else the first; -1 where there is none."""
    found = []
    for place in range(len(library.tables)):
        own_first = sorted(sections, key=lambda x, place=place: (x.table != place, x.index))  # type: ignore[misc]
        found += [next((x.index for x in own_first if x.operation is asked), -1) for asked in operations]
    return found


def row_catalogue_variables(manifest: Manifest) -> dict[str, object]:
    """Return what a wheel's catalogue and README are rendered by: the row operations that there are, and its own."""
    return {
        "row_catalogue": tuple(RowOperation),
        "row_tags": {kernel.operation.tag for kernel in manifest.row_kernels},
    }


def row_variables(library: Library) -> dict[str, object]:
    """Return what the templates write of row operations."""
    sections = _sections(library)
    used = {kernel.operation for kernel in library.row_kernels} | {section.operation for section in sections}
    operations = [x for x in RowOperation if x in used]
    calls = [_call(x) for x in operations]
    return {
        "row_kernels": library.row_kernels,
        "row_calls": calls,
        "row_sections": sections,
        "row_section_of": _section_of(library, sections, operations),
        "row_number_of": operations.index,
    }
