"""A manifest as its file has it: kernels and sections of all kinds in one list each, those of products first.

In memory they are apart, since each kind's are of types of their own; a section of an operation on rows numbers the
kernels of its kind there, and those of all kinds in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from aot.core.strict_json import DecodeError
from aot.kinds.registry import read_operation
from aot.kinds.rows.operation import KIND as ROWS
from aot.package.packed_table import pack
from aot.select.join import renumbered_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.core.dispatch import DispatchTable
    from aot.core.kernel import Kernel
    from aot.core.strict_json import Place
    from aot.kinds.rows.dispatch import RowTable
    from aot.kinds.rows.kernel import RowKernel

_APART = ("row_kernels", "row_table")
"""What of a manifest and of a table is apart in memory alone."""


class Parted(Protocol):
    """The table of a device in memory."""

    @property
    def table(self) -> DispatchTable:
        """Return the sections of products."""

    @property
    def row_table(self) -> RowTable:
        """Return those of operations on rows."""


def file_values(
    manifest: Mapping[str, object], products: Sequence[Kernel], on_rows: Sequence[RowKernel], tables: Sequence[Parted]
) -> dict[str, object]:
    """Return what the file has of a manifest, by its keys.

    Args:
        manifest: its fields by name, of which the others are parts.
        products: the kernels of products.
        on_rows: those of operations on rows.
        tables: those of all devices.
    """
    values = {key: value for key, value in manifest.items() if key not in _APART}
    return {**values, "kernels": (*products, *on_rows), "tables": [_table_values(x, len(products)) for x in tables]}


def _table_values(table: Parted, first: int) -> dict[str, object]:
    """Return what the file has of a table.

    Args:
        table: the table.
        first: the number of the first kernel on rows among all.
    """
    values = {key: value for key, value in vars(table).items() if key not in _APART}
    packed, on_rows = pack(table.table), renumbered_steps(table.row_table, lambda index: first + index)
    return {**values, "table": {"sections": (*packed.sections, *on_rows.sections)}}


class FileValues:
    """The plain values of a manifest's file, parted by kinds as a manifest in memory has them.

    What is not as expected is left as it is, for the decoder to refuse.

    Raises:
        DecodeError: there is no such operation, a kernel or section of a product is behind one on rows, or a step on
            rows names a kernel of products.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        for key in (x for x in _APART if x in values):
            raise DecodeError("there is no such key in a manifest's file; kernels of all kinds are in one list", (key,))
        kernels = values.get("kernels")
        products, on_rows = _parted(kernels, ("kernels",)) if isinstance(kernels, list) else (kernels, [])
        self._first = len(products) if isinstance(products, list) else 0
        self._sections: dict[int, int] = {}
        tables = values.get("tables")
        parted = [self._table(x, i) for i, x in enumerate(tables)] if isinstance(tables, list) else tables
        self.values = {**values, "kernels": products, "row_kernels": on_rows, "tables": parted}
        if kernels is None:
            del self.values["kernels"]
        if tables is None:
            del self.values["tables"]

    def _table(self, values: Any, number: int) -> Any:
        """Part a table's sections."""
        table = values.get("table") if isinstance(values, dict) else None
        if not isinstance(table, dict) or not isinstance(table.get("sections"), list):
            return {**values, "row_table": {"sections": []}} if isinstance(values, dict) else values
        sections = table["sections"]
        place: Place = ("tables", number, "table", "sections")
        products, on_rows = _parted(sections, place)
        self._sections[number] = len(products)
        moved = [self._section(x, (*place, len(products) + i)) for i, x in enumerate(on_rows)]
        if "row_table" in values:
            raise DecodeError("there is no such key in a table; sections of all kinds are in one list", place[:2])
        return {**values, "table": {**table, "sections": products}, "row_table": {"sections": moved}}

    def _section(self, values: dict[str, Any], place: Place) -> dict[str, Any]:
        """Number the kernels of a section on rows among those of its kind."""
        found = dict(values)
        if "fallback" in values:
            found["fallback"] = self._number(values["fallback"], (*place, "fallback"))
        columns = values.get("columns")
        if isinstance(columns, list):
            found["columns"] = [self._column(x, (*place, "columns", i)) for i, x in enumerate(columns)]
        return found

    def _column(self, values: Any, place: Place) -> Any:
        steps = values.get("steps") if isinstance(values, dict) else None
        if not isinstance(steps, list):
            return values
        moved = [
            {**x, "kernel": self._number(x["kernel"], (*place, "steps", i, "kernel"))}
            if isinstance(x, dict) and "kernel" in x
            else x
            for i, x in enumerate(steps)
        ]
        return {**values, "steps": moved}

    def _number(self, value: Any, place: Place) -> Any:
        if type(value) is not int:
            return value
        if 0 <= value < self._first:
            raise DecodeError(f"is kernel {value}, which is of products; those on rows begin at {self._first}", place)
        return value - self._first

    def place_in_file(self, place: Place) -> Place:
        """Return where in the file that is which lies at a place of the parted values."""
        if place[:1] == ("row_kernels",):
            return ("kernels", *_moved(place[1:], self._first))
        if place[:1] == ("tables",) and place[2:4] == ("row_table", "sections"):
            return (*place[:2], "table", "sections", *_moved(place[4:], self._sections.get(_index(place[1]), 0)))
        return place


def _index(part: str | int) -> int:
    return part if isinstance(part, int) else 0


def _moved(place: Place, first: int) -> Place:
    return (first + _index(place[0]), *place[1:]) if place else place


def _parted(values: Sequence[Any], place: Place) -> tuple[list[Any], list[Any]]:
    """Part what is of products, or of nothing that is known, from what is of operations on rows, which is behind it."""
    are_on_rows = [_is_on_rows(x, (*place, i)) for i, x in enumerate(values)]
    first = are_on_rows.index(True) if True in are_on_rows else len(values)
    if False in are_on_rows[first:]:
        late = first + are_on_rows[first:].index(False)
        raise DecodeError("is of a product behind those of operations on rows; expected products first", (*place, late))
    return list(values[:first]), list(values[first:])


def _is_on_rows(values: Any, place: Place) -> bool:
    """Say whether something is of an operation on rows; what has none is left to the decoder."""
    tag = values.get("operation") if isinstance(values, dict) else None
    try:
        return isinstance(tag, str) and read_operation(tag).kind == ROWS
    except DecodeError as error:
        raise DecodeError(error.problem, (*place, "operation")) from None
