"""Shape sets: the TOML files that say which problems matter, read with exact errors."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import ShapeFileError
from aot.problem import Dtype, Layout, Operation, Problem

if TYPE_CHECKING:
    from enum import Enum

VERSION = 1
MAX_EXTENT = 2**31 - 1
"""Largest m, n or k: kernels take extents as 32-bit integers."""


@dataclass(frozen=True)
class Weight:
    """One weight matrix of a model: n output features by k input features."""

    name: str
    n: int
    k: int


@dataclass(frozen=True)
class Model:
    """A model's weights and the numbers of rows, m, that they meet."""

    name: str
    description: str
    weights: tuple[Weight, ...]
    m: tuple[int, ...]


@dataclass(frozen=True)
class ShapeSet:
    """Models, element types and layouts: the cross product is the set of problems."""

    dtypes: tuple[Dtype, ...]
    layouts: tuple[Layout, ...]
    models: tuple[Model, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """List the operations."""
        return tuple(Operation.of(dtype, layout) for dtype in self.dtypes for layout in self.layouts)

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """List the distinct (n, k, m), ascending."""
        return sorted({(w.n, w.k, m) for model in self.models for w in model.weights for m in model.m})

    def problems(self, operation: Operation) -> list[Problem]:
        """List an operation's problems by n, k, m, each once."""
        return [Problem(operation, m, n, k) for n, k, m in self.sizes]


class _Reader:
    """Takes values out of parsed TOML; every complaint names the file, the line, the key and what was expected."""

    def __init__(self, text: str, where: str) -> None:
        self._lines = text.splitlines()
        self._where = where

    def error(self, key: str, value: object, expected: str) -> ShapeFileError:
        """Make the error for a value; the line is the first that holds both the key and the value."""
        shown = str(value) if not isinstance(value, str) else value
        numbered = list(enumerate(self._lines, 1))
        both = [i for i, line in numbered if key in line and shown.strip("[]") in line]
        either = [i for i, line in numbered if line.split("=")[0].strip() == key or (shown and shown in line)]
        line = (both or either or [1])[0]
        return ShapeFileError(f"{self._where}:{line}: `{key}` is {value!r}; expected {expected}")

    def keys(self, table: dict[str, Any], name: str, required: set[str], optional: set[str]) -> None:
        for key, value in table.items():
            if key not in required | optional:
                known = ", ".join(sorted(required | optional))
                raise self.error(key, value, f"no such key in {name}; it has {known}")
        for key in sorted(required - set(table)):
            raise self.error(key, None, f"a value: {name} needs it")

    def text(self, table: dict[str, Any], key: str) -> str:
        value = table[key]
        if not isinstance(value, str) or not value:
            raise self.error(key, value, "a text")
        return value

    def extent(self, key: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_EXTENT:
            raise self.error(key, value, f"a whole number from 1 to {MAX_EXTENT}")
        return value

    def extents(self, table: dict[str, Any], key: str) -> tuple[int, ...]:
        value = table[key]
        if not isinstance(value, list) or not value:
            raise self.error(key, value, "a list of whole numbers")
        numbers = [self.extent(key, item) for item in value]
        if numbers != sorted(set(numbers)):
            raise self.error(key, value, "ascending numbers, each once")
        return tuple(numbers)

    def members(self, table: dict[str, Any], key: str, kind: type[Enum]) -> tuple[Any, ...]:
        value = table[key]
        known = [member.value for member in kind]
        if not isinstance(value, list) or not value:
            raise self.error(key, value, f"a list out of {', '.join(known)}")
        for item in value:
            if item not in known:
                raise self.error(key, item, f"one of {', '.join(known)}")
        return tuple(kind(item) for item in value)

    def tables(self, table: dict[str, Any], key: str) -> list[dict[str, Any]]:
        value = table[key]
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise self.error(key, value, "one or more tables")
        return value


def _model(reader: _Reader, table: dict[str, Any], default_m: tuple[int, ...]) -> Model:
    reader.keys(table, "[[model]]", {"name", "weights"}, {"description", "m"})
    weights = []
    for weight in reader.tables(table, "weights"):
        reader.keys(weight, "a weight", {"name", "n", "k"}, set())
        name = reader.text(weight, "name")
        weights.append(Weight(name, reader.extent("n", weight["n"]), reader.extent("k", weight["k"])))
    ladder = reader.extents(table, "m") if "m" in table else default_m
    return Model(reader.text(table, "name"), str(table.get("description", "")), tuple(weights), ladder)


def parse_shape_set(text: str, where: str) -> ShapeSet:
    """Read a shape set from TOML.

    Raises:
        ShapeFileError: with the file, the line, the key, the value got and what was expected.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ShapeFileError(f"{where}: not TOML: {error}") from error
    reader = _Reader(text, where)
    reader.keys(table, "a shape set", {"version", "dtypes", "layouts", "m", "model"}, set())
    if table["version"] != VERSION:
        raise reader.error("version", table["version"], str(VERSION))
    default_m = reader.extents(table, "m")
    models = tuple(_model(reader, model, default_m) for model in reader.tables(table, "model"))
    dtypes = reader.members(table, "dtypes", Dtype)
    return ShapeSet(dtypes, reader.members(table, "layouts", Layout), models)


def shape_set_names() -> list[str]:
    """List the shape sets that the package ships."""
    files = resources.files("aot").joinpath("shapes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_shape_set(name_or_path: str) -> ShapeSet:
    """Load a shipped shape set by name, or any by path.

    Raises:
        ShapeFileError: there is none, or it is not a shape set.
    """
    if name_or_path in shape_set_names():
        file = resources.files("aot").joinpath("shapes", f"{name_or_path}.toml")
        return parse_shape_set(file.read_text(encoding="utf-8"), str(file))
    try:
        text = Path(name_or_path).read_text(encoding="utf-8")
    except OSError as error:
        known = ", ".join(shape_set_names())
        message = f"{name_or_path}: {error.strerror}; give a path or one of: {known}"
        raise ShapeFileError(message) from error
    except UnicodeDecodeError as error:
        raise ShapeFileError(f"{name_or_path}: not UTF-8 text: {error}") from error
    return parse_shape_set(text, name_or_path)
