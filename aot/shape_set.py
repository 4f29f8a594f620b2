"""Shape sets: the TOML files that say which problems matter, read with exact errors."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import ShapeFileError
from aot.problem import Dtype, Layout, Operation, Problem
from aot.toml_lines import Place, entry_lines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import Enum

VERSION = 1
MAX_EXTENT = 2**31 - 1
"""Largest m, n or k: kernels take extents as 32-bit integers."""

EXTENT = f"a whole number from 1 to {MAX_EXTENT}"


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


@dataclass(frozen=True)
class _Table:
    """A table of a parsed file; every complaint names the file, the line, the key and what was expected."""

    values: dict[str, Any]
    place: Place
    lines: Mapping[Place, int]
    where: str

    def error(self, key: str, value: object, expected: str, *index: int) -> ShapeFileError:
        """Make the error for a value, or for an item of one; what is not there is looked for where its table starts."""
        places: tuple[Place, ...] = ((*self.place, key, *index), (*self.place, key), self.place)
        line = next((self.lines[place] for place in places if place in self.lines), 1)
        return ShapeFileError(f"{self.where}:{line}: `{key}` is {value!r}; expected {expected}")

    def check_keys(self, name: str, required: set[str], optional: set[str]) -> None:
        for key, value in self.values.items():
            if key not in required | optional:
                known = ", ".join(sorted(required | optional))
                raise self.error(key, value, f"no such key in {name}; it has {known}")
        for key in sorted(required - set(self.values)):
            raise self.error(key, None, f"a value: {name} needs it")

    def text(self, key: str) -> str:
        value = self.values[key]
        if not isinstance(value, str) or not value:
            raise self.error(key, value, "a text")
        return value

    def extent(self, key: str) -> int:
        value: int = self.values[key]
        if not _is_extent(value):
            raise self.error(key, value, EXTENT)
        return value

    def extents(self, key: str) -> tuple[int, ...]:
        value = self.values[key]
        if not isinstance(value, list) or not value:
            raise self.error(key, value, "a list of whole numbers")
        for i, item in enumerate(value):
            if not _is_extent(item):
                raise self.error(key, item, EXTENT, i)
        if value != sorted(set(value)):
            raise self.error(key, value, "ascending numbers, each once")
        return tuple(value)

    def members(self, key: str, kind: type[Enum]) -> tuple[Any, ...]:
        value = self.values[key]
        known = [member.value for member in kind]
        if not isinstance(value, list) or not value:
            raise self.error(key, value, f"a list out of {', '.join(known)}")
        for i, item in enumerate(value):
            if item not in known or item in value[:i]:
                raise self.error(key, item, f"one of {', '.join(known)}, each once", i)
        return tuple(kind(item) for item in value)

    def tables(self, key: str) -> list[_Table]:
        value = self.values[key]
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise self.error(key, value, "one or more tables")
        return [_Table(item, (*self.place, key, i), self.lines, self.where) for i, item in enumerate(value)]


def _is_extent(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_EXTENT


def _weight(table: _Table) -> Weight:
    table.check_keys("a weight", {"name", "n", "k"}, set())
    return Weight(table.text("name"), table.extent("n"), table.extent("k"))


def _model(table: _Table, default_m: tuple[int, ...]) -> Model:
    table.check_keys("[[model]]", {"name", "weights"}, {"description", "m"})
    weights = tuple(_weight(weight) for weight in table.tables("weights"))
    ladder = table.extents("m") if "m" in table.values else default_m
    description = table.text("description") if "description" in table.values else ""
    return Model(table.text("name"), description, weights, ladder)


def parse_shape_set(text: str, where: str) -> ShapeSet:
    """Read a shape set from TOML.

    Raises:
        ShapeFileError: with the file, the line, the key, the value got and what was expected.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ShapeFileError(f"{where}: not TOML: {error}") from error
    table = _Table(values, (), entry_lines(text), where)
    table.check_keys("a shape set", {"version", "dtypes", "layouts", "m", "model"}, set())
    if values["version"] != VERSION:
        raise table.error("version", values["version"], str(VERSION))
    default_m = table.extents("m")
    models = tuple(_model(model, default_m) for model in table.tables("model"))
    return ShapeSet(table.members("dtypes", Dtype), table.members("layouts", Layout), models)


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
