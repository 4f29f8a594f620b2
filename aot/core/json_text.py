"""Write dataclasses as JSON: equal values are equal bytes. `aot.core.strict_json` reads them."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from typing import Any, cast


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(sorted(x.name for x in fields(kind)))


def _fields_of(value: object) -> dict[str, Any]:
    """Return what JSON has of a dataclass, for json, which knows none."""
    own: dict[str, Any] | None = value.as_json() if hasattr(value, "as_json") else None
    if own is not None:
        return own
    return {name: getattr(value, name) for name in _field_names(cast("Any", type(value)))}


def json_line(value: object) -> str:
    """Write a dataclass, or what it holds, as JSON in one line: equal values are equal texts."""
    return json.dumps(value, default=_fields_of, sort_keys=True, separators=(",", ":"))


def plain_json(value: object) -> Any:
    """Return a dataclass in plain values: what JSON would have of it."""
    return json.loads(json_line(value))


def write_json(value: object) -> str:
    """Write a dataclass, or a dictionary of what it holds, as JSON: sorted keys, and a line for each entry of a list.

    Equal values are equal bytes. A table of a wheel has millions of numbers: each on a line of its own would make the
    file three times as large and writing it ten times as long, since json's encoder in C does not indent.
    """
    entries = []
    for name, held in sorted(value.items()) if isinstance(value, dict) else _fields_of(value).items():
        is_list = isinstance(held, list | tuple) and len(held) > 0
        entries.append(
            f'"{name}":' + ("[\n" + ",\n".join(map(json_line, held)) + "\n]" if is_list else json_line(held))
        )
    return "{\n" + ",\n".join(entries) + "\n}\n"
