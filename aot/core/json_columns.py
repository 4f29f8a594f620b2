"""Decode many values of one type at once, for `aot.core.strict_json`: a table has a million numbers.

Of numbers the least and the largest are looked at, of dataclasses one field after the other. What may not fit is left
to the decoder that takes values one by one, which says what is wrong and where.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

from aot.core.constraints import Range

if TYPE_CHECKING:
    from collections.abc import Callable

    Decoder = Callable[[Any], Any]
    Column = Callable[[list[Any]], list[Any] | None]


def column(kind: Any, decoder: Callable[[Any], Decoder]) -> Column:
    """Return what decodes a list of values of a type at once, or gives None where one of them may not fit.

    Args:
        kind: a type that `aot.core.strict_json.decode` takes.
        decoder: what gives the decoder of single values of a type, which raises a ValueError.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated and isinstance(arguments[1], Range):
        return _numbers(arguments[0], arguments[1])
    if origin in (UnionType, Union):
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return _optionals(column(inner, decoder))
    if is_dataclass(kind) and not hasattr(kind, "read_json") and not any(x.kw_only for x in fields(kind)):
        return _records(kind, decoder)
    read = decoder(kind)

    def each(values: list[Any]) -> list[Any] | None:
        try:
            return [read(x) for x in values]
        except ValueError:
            return None

    return each


def _numbers(base: type, constraint: Range) -> Column:
    kinds, holds = {int, base}, constraint.holds

    def read(values: list[Any]) -> list[Any] | None:
        if not kinds.issuperset(map(type, values)) or not (holds(min(values)) and holds(max(values))):
            return None
        if base is int:
            return values
        return list(map(base, values)) if all(map(isfinite, values)) else None  # beside NaN there is no least one

    return read


def _optionals(inner: Column) -> Column:
    def read(values: list[Any]) -> list[Any] | None:
        held = [x for x in values if x is not None]
        found = inner(held) if held else held
        if found is None or len(held) == len(values):
            return found
        each = iter(found)
        return [None if x is None else next(each) for x in values]

    return read


def _records(kind: Any, decoder: Callable[[Any], Decoder]) -> Column:
    """Return what decodes dataclasses of which each states all of its fields, field by field."""
    columns: dict[str, Column] = {}

    def read(values: list[Any]) -> list[Any] | None:
        if not columns:  # when it is first asked, as a type may be among those of its own fields
            hints = get_type_hints(kind, include_extras=True)
            columns.update({field.name: column(hints[field.name], decoder) for field in fields(kind)})
        if set(map(type, values)) != {dict} or any(x.keys() != columns.keys() for x in values):
            return None
        found = []
        for name, at_once in columns.items():
            decoded = at_once([x[name] for x in values])
            if decoded is None:
                return None
            found.append(decoded)
        try:
            return list(map(kind, *found))
        except ValueError:
            return None

    return read
