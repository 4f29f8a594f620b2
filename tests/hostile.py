"""Texts that mean something in one language or another, and the places of a document's texts."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from aot.core import candidate
from aot.core.constraints import Form
from aot.core.kernel import Kernel
from aot.core.knobs import GemmKnobs
from aot.kinds.rows.candidate import RowCandidate, RowKnobs
from aot.kinds.rows.dispatch import RowSection
from aot.kinds.rows.kernel import RowKernel
from aot.package.packed_table import PackedSection

HOSTILE = {
    "quote": 'a"b',
    "apostrophe": "a'b",
    "line break": "a\nb",
    "carriage return": "a\rb",
    "NUL": "a\0b",
    "escape": "\x1b[2J\x1b[31m",
    "delete": "a\x7fb",
    "backslash": "a\\",
    "trigraph": "??/",
    "octal": "\x011",
    "CMake variable": "${CMAKE_COMMAND}",
    "CMake environment": "$ENV{HOME}",
    "CMake bracket": "]] execute_process(COMMAND id) [[",
    "CMake list": "a;b",
    "shell": "$(id) `id` ; id & id | id",
    "C++": '"; system("id"); "',
    "C++ comment": "*/ x /*",
    "Python": '"; import os; os.system("id") #',
    "docstring": '""" + x + """',
    "TOML": '"\n[project.scripts]\nid = "os:system',
    "TOML table": '"]]\n[[x]]',
    "Markdown code": "`` ` x",
    "Markdown": "[x](http://x) *b* _c_ ~d~ ![i](j) | # h",
    "HTML": "<script>alert(1)</script> &amp;",
    "Jinja": "{{ 7 * 7 }}{% for %}{# x #}",
    "format": "%s%n{0}",
    "path": "../../../../x",
    "absolute path": "/etc/passwd",
    "space": " x ",
    "empty": "",
    "right to left": "a\u202eb",
    "line separator": "a\u2028b",
    "surrogate": "\ud800",
    "letters": "é字🎉",
    "long": "x" * 100_000,
}


def written_kind(kind: Any) -> Any:
    """Return the type that a value is written as; a candidate's knobs lie beside its family."""
    if get_origin(kind) is not Annotated:
        return candidate.flat(GemmKnobs) if kind is candidate.Candidate else kind
    base, constraint = get_args(kind)
    if kind == RowCandidate:
        return candidate.flat(RowKnobs)
    return written_kind(constraint.kind) if isinstance(constraint, Form) and constraint.kind is not Any else base


IN_ONE_LIST = {Kernel: ("limits", RowKernel), PackedSection: ("columns", RowSection)}
"""What a manifest's file has in the list of another type, and the key that tells it."""


def alternative(kind: Any, value: Any) -> Any:
    """Return the one of several types that a value is written as: the dataclass that has its keys."""
    key, other = IN_ONE_LIST.get(kind, ("", None)) if is_dataclass(kind) else ("", None)
    if key and isinstance(value, dict) and key in value:
        return other
    able = [x for x in get_args(kind) if x is not type(None)] if get_origin(kind) in (Union, UnionType) else []
    able = [x for x in map(written_kind, able) if not is_dataclass(x) or {*value} <= {y.name for y in fields(x)}]
    return able[0] if able else kind


def text_fields(kind: Any, within: str = "") -> set[tuple[str, str]]:
    """List (class, field) of every text that a type can hold; `field[]` are the keys of a dictionary."""
    kind = written_kind(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        found = (text_fields(hints[field.name], f"{kind.__name__}.{field.name}") for field in fields(kind))
        return set().union(*found)
    if isinstance(kind, type) and issubclass(kind, (str, Enum)):
        return {tuple(within.split("."))}
    if get_origin(kind) is dict:
        key, value = get_args(kind)
        return text_fields(key, f"{within}[]") | text_fields(value, within)
    return set().union(*(text_fields(x, within) for x in get_args(kind) if x is not Ellipsis))


def text_places(kind: Any, value: Any, within: str = "", place: tuple[Any, ...] = ()):
    """List the place of each text of a document, with (class, field); the place of a key ends with `(key,)`."""
    if value is None:
        return
    kind = written_kind(kind)
    while alternative(kind, value) is not kind:
        kind = alternative(kind, value)
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        for name, item in value.items():
            yield from text_places(hints[name], item, f"{kind.__name__}.{name}", (*place, name))
    elif isinstance(value, str):
        yield place, tuple(within.split("."))
    elif isinstance(value, dict):
        for name, item in value.items():
            yield (*place, (name,)), tuple(f"{within}[]".split("."))
            yield from text_places(get_args(kind)[1], item, within, (*place, name))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            inner = get_args(kind)[0] if Ellipsis in get_args(kind) else get_args(kind)[i]
            yield from text_places(inner, item, within, (*place, i))


def first_places(kind: Any, value: Any) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Give a place of each (class, field) whose texts a document has: all others are read by the same decoder."""
    found: dict[tuple[str, str], tuple[Any, ...]] = {}
    for place, owner in text_places(kind, value):
        found.setdefault(owner, place)
    return found


def with_text(document: Any, place: tuple[Any, ...], text: str) -> Any:
    """Return a document with another text at a place."""
    step, *rest = place
    if isinstance(step, tuple):
        return {text if key == step[0] else key: value for key, value in document.items()}
    inner = with_text(document[step], tuple(rest), text) if rest else text
    if isinstance(document, list):
        return [*document[:step], inner, *document[step + 1 :]]
    return {**document, step: inner}
