"""Decode plain JSON values into frozen dataclasses, refusing whatever is missing, unknown or of the wrong type."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints


class DecodeError(ValueError):
    """A value that does not fit; the message starts with its place in the document."""


def decode(kind: Any, value: Any, where: str) -> Any:
    """Make a value of type `kind`: a dataclass, `tuple[X, ...]`, `dict[str, X]`, `X | None` or a scalar.

    Args:
        kind: the type.
        value: what `json.loads` gave.
        where: the value's place, for messages.

    Raises:
        DecodeError: the value does not fit.
    """
    origin = get_origin(kind)
    if isinstance(kind, UnionType):
        return _optional(kind, value, where)
    if origin is tuple:
        return _items(get_args(kind)[0], value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise DecodeError(f"{where}: expected an object, got {value!r}")
        return {key: decode(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if is_dataclass(kind):
        return _record(kind, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise DecodeError(f"{where}: expected {kind.__name__}, got {value!r}")
    return value


def _optional(kind: Any, value: Any, where: str) -> Any:
    if value is None and NoneType in get_args(kind):
        return None
    return decode(next(arg for arg in get_args(kind) if arg is not NoneType), value, where)


def _items(kind: Any, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise DecodeError(f"{where}: expected a list, got {value!r}")
    return tuple(decode(kind, item, f"{where}[{i}]") for i, item in enumerate(value))


def _record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise DecodeError(f"{where}: expected an object of {kind.__name__}, got {value!r}")
    required = {field.name for field in fields(kind) if field.default is MISSING}
    known = {field.name for field in fields(kind)}
    wrong = sorted(set(value) - known) + sorted(required - set(value))
    if wrong:
        raise DecodeError(f"{where}: missing or unknown keys of {kind.__name__}: {', '.join(wrong)}")
    hints = get_type_hints(kind)
    decoded = {key: decode(hints[key], item, f"{where}.{key}") for key, item in value.items()}
    try:
        return kind(**decoded)
    except ValueError as error:
        raise DecodeError(f"{where}: {error}") from error
