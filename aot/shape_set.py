"""Shape sets: the TOML files that say which problems matter, read with exact errors."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from itertools import product, starmap
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

MAX_COUNT = 2**63 - 1
"""Most launches that a miss log counts: TOML's integers have 64 bits."""


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
    operations: tuple[Operation, ...] = ()
    """The only ones that it is for; empty where it is for any that is asked for."""
    counts: tuple[int, ...] = ()
    """How often each m was launched, as a wheel's miss log says; may be empty."""

    def is_for(self, operation: Operation) -> bool:
        """Say whether an operation meets the model."""
        return not self.operations or operation in self.operations

    @property
    def sizes(self) -> set[tuple[int, int, int]]:
        """Give the distinct (n, k, m)."""
        return {(weight.n, weight.k, m) for weight in self.weights for m in self.m}


@dataclass(frozen=True)
class ShapeSet:
    """Models, element types and layouts: the cross product is the set of problems."""

    dtypes: tuple[Dtype, ...]
    layouts: tuple[Layout, ...]
    models: tuple[Model, ...]
    num_dropped: int = 0
    """Launches of further problems, which a miss log had no room for."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        """List the operations that some model is for."""
        crossed = (Operation.of(dtype, layout) for dtype in self.dtypes for layout in self.layouts)
        return tuple(operation for operation in crossed if any(model.is_for(operation) for model in self.models))

    def tuned(self, dtypes: tuple[Dtype, ...], layouts: tuple[Layout, ...]) -> tuple[Operation, ...]:
        """List the operations to tune when these element types and layouts are asked for.

        Where none are: of a set whose models all say what they are for, as those of a miss log do, every operation;
        else bfloat16 and linear's layout.

        Raises:
            ShapeFileError: the set has no problem of any of them.
        """
        if not dtypes and not layouts and all(model.operations for model in self.models):
            return self.operations
        asked = list(starmap(Operation.of, product(dtypes or (Dtype.BFLOAT16,), layouts or (Layout.KK,))))
        found = tuple(operation for operation in asked if any(model.is_for(operation) for model in self.models))
        if not found:
            known, names = (", ".join(operation.tag for operation in x) for x in (self.operations, asked))
            raise ShapeFileError(f"the shape set has no problem of {names}; it has {known}; give --dtype and --layout")
        return found

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """List the distinct (n, k, m), ascending."""
        return sorted(set[tuple[int, int, int]]().union(*(model.sizes for model in self.models)))

    def problems(self, operation: Operation) -> list[Problem]:
        """List an operation's problems by n, k, m, each once."""
        sizes = (model.sizes for model in self.models if model.is_for(operation))
        return [Problem(operation, m, n, k) for n, k, m in sorted(set[tuple[int, int, int]]().union(*sizes))]

    @property
    def launches(self) -> dict[Problem, int]:
        """Give how often each problem was launched, where models have counts."""
        found: dict[Problem, int] = {}
        for model in self.models:
            for operation, weight in product(model.operations, model.weights):
                for m, count in zip(model.m, model.counts, strict=bool(model.counts)):
                    problem = Problem(operation, m, weight.n, weight.k)
                    found[problem] = found.get(problem, 0) + count
        return found


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
        return self.whole(key, 1, MAX_EXTENT)

    def whole(self, key: str, first: int, last: int) -> int:
        value: int = self.values[key]
        if not _is_whole(value, first, last):
            raise self.error(key, value, f"a whole number from {first} to {last}")
        return value

    def numbers(self, key: str, limit: int) -> list[int]:
        value = self.values[key]
        if not isinstance(value, list) or not value:
            raise self.error(key, value, "a list of whole numbers")
        for i, item in enumerate(value):
            if not _is_whole(item, 1, limit):
                raise self.error(key, item, f"a whole number from 1 to {limit}", i)
        return value

    def extents(self, key: str) -> tuple[int, ...]:
        value = self.numbers(key, MAX_EXTENT)
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


def _is_whole(value: object, first: int, last: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and first <= value <= last


def _weight(table: _Table) -> Weight:
    table.check_keys("a weight", {"name", "n", "k"}, set())
    return Weight(table.text("name"), table.extent("n"), table.extent("k"))


def _inherited(table: _Table, key: str, whole: _Table) -> _Table:
    """Give the table to read a model's entry from: its own, or the whole set's."""
    if key in table.values:
        return table
    if key in whole.values:
        return whole
    raise table.error(key, None, "a value: [[model]] needs it where the set has none")


def _counts(table: _Table, m: tuple[int, ...], weights: tuple[Weight, ...]) -> tuple[int, ...]:
    if "counts" not in table.values:
        return ()
    counts = table.numbers("counts", MAX_COUNT)
    if len(counts) != len(m) or len(weights) != 1:
        raise table.error("counts", counts, f"{len(m)} numbers, one for each `m`, and one weight, not {len(weights)}")
    if "dtypes" not in table.values or "layouts" not in table.values:
        raise table.error("counts", counts, "`dtypes` and `layouts` of the model's own beside it")
    return tuple(counts)


def _model(table: _Table, whole: _Table) -> Model:
    table.check_keys("[[model]]", {"name", "weights"}, {"description", "m", "dtypes", "layouts", "counts"})
    weights = tuple(_weight(weight) for weight in table.tables("weights"))
    ladder = _inherited(table, "m", whole).extents("m")
    dtypes = _inherited(table, "dtypes", whole).members("dtypes", Dtype)
    layouts = _inherited(table, "layouts", whole).members("layouts", Layout)
    is_own = "dtypes" in table.values or "layouts" in table.values
    operations = tuple(Operation.of(dtype, layout) for dtype, layout in product(dtypes, layouts)) if is_own else ()
    description = table.text("description") if "description" in table.values else ""
    return Model(table.text("name"), description, weights, ladder, operations, _counts(table, ladder, weights))


def parse_shape_set(text: str, where: str) -> ShapeSet:
    """Read a shape set from TOML.

    `dtypes`, `layouts` and `m` stand at the head of the set for all models, in a model for it alone, or in both.

    Raises:
        ShapeFileError: with the file, the line, the key, the value got and what was expected.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ShapeFileError(f"{where}: not TOML: {error}") from error
    table = _Table(values, (), entry_lines(text), where)
    table.check_keys("a shape set", {"version", "model"}, {"dtypes", "layouts", "m", "dropped"})
    if values["version"] != VERSION:
        raise table.error("version", values["version"], str(VERSION))
    if "m" in values:
        table.extents("m")
    dtypes = table.members("dtypes", Dtype) if "dtypes" in values else ()
    layouts = table.members("layouts", Layout) if "layouts" in values else ()
    models = tuple(_model(model, table) for model in table.tables("model"))
    named = [operation for model in models for operation in model.operations]
    return ShapeSet(
        tuple(dict.fromkeys([*dtypes, *(operation.dtype for operation in named)])),
        tuple(dict.fromkeys([*layouts, *(operation.layout for operation in named)])),
        models,
        table.whole("dropped", 0, MAX_COUNT) if "dropped" in values else 0,
    )


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
