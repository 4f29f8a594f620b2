"""Shape sets: the TOML files that say which problems matter, read with exact errors."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from aot.core.constraints import MAX_COUNT, Count, Extent, Label, Range, Text, Version
from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.errors import ShapeFileError
from aot.core.grouping import Grouping
from aot.core.miss_log import is_miss_log, shape_set_text
from aot.core.operation import ELEMENTS, Layout, Operation
from aot.core.problem import Problem
from aot.core.strict_json import DecodeError, read_content, text_of
from aot.core.strict_toml import TomlError, parse_toml
from aot.core.types import Types

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = 1

MAX_SIZES = 1_000_000
"""Most sizes of a set, (n, k, m): a thousand times those of the shipped sets, and what a machine goes through in a
minute."""


@dataclass(frozen=True)
class Weight:
    """One weight matrix of a model: n output features by k input features."""

    name: Label
    n: Extent
    k: Extent


@dataclass(frozen=True)
class Model:
    """A model's weights and the numbers of rows, m, that they meet."""

    name: str
    description: str
    weights: tuple[Weight, ...]
    m: tuple[int, ...]
    operations: tuple[Operation, ...] = ()
    """The only ones that it is for; empty where it is for any that is asked for."""
    num_groups: tuple[int, ...] = (1,)
    """Products of a batch, or groups; of operations of one product it says nothing."""
    counts: tuple[int, ...] = ()
    """How often each m was launched, as a wheel's miss log says; may be empty."""

    def is_for(self, operation: Operation) -> bool:
        """Say whether an operation meets the model."""
        return not self.operations or operation in self.operations

    @property
    def sizes(self) -> set[tuple[int, int, int]]:
        """Return the distinct (n, k, m)."""
        return {(weight.n, weight.k, m) for weight in self.weights for m in self.m}


def catalogued(
    dtypes: Sequence[ElementType], layouts: Sequence[Layout], epilogues: Sequence[Epilogue]
) -> tuple[Operation, ...]:
    """List what the catalogue has of a cross product: operations whose operands and D are of one element type."""
    dense = (x for x in Operation if x.grouping is Grouping.DENSE)
    plain = (x for x in dense if x.types == Types(x.element, x.element, x.element))
    known = {(x.element, x.layout, x.epilogue): x for x in plain}
    return tuple(known[x] for x in product(dtypes, layouts, epilogues) if x in known)


@dataclass(frozen=True)
class ShapeSet:
    """Models, and the operations that they are for: the catalogued part of a cross product, or those named by tag."""

    operations: tuple[Operation, ...]
    """Those that some model is for."""
    models: tuple[Model, ...]
    num_dropped: int = 0
    """Launches of further problems, which a miss log had no room for."""
    has_named: bool = False
    """Whether the set names operations by tag for all its models."""

    def tuned(
        self, dtypes: tuple[ElementType, ...], layouts: tuple[Layout, ...], epilogues: tuple[Epilogue, ...] = ()
    ) -> tuple[Operation, ...]:
        """List the operations to tune when these element types, layouts and epilogues are asked for.

        Where none are: of a set that names operations by tag, or whose models all say what they are for, as those of a
        miss log do, every operation; else bfloat16, linear's layout and the set's epilogues. An epilogue that is asked
        for need not be the set's.

        Raises:
            ShapeFileError: the set has no problem of any of them.
        """
        is_plain = not (dtypes or layouts or epilogues)
        if is_plain and (self.has_named or all(model.operations for model in self.models)):
            return self.operations
        asked = catalogued(dtypes or (ElementType.BFLOAT16,), layouts or (Layout.KK,), epilogues or self._epilogues)
        if not asked:
            known = ", ".join(operation.tag for operation in Operation)
            raise ShapeFileError(
                f"there are no kernels of such a type, layout and epilogue together; there are: {known}"
            )
        return self.having(asked)

    @property
    def _epilogues(self) -> tuple[Epilogue, ...]:
        return tuple(dict.fromkeys(operation.epilogue for operation in self.operations))

    def having(self, asked: Sequence[Operation]) -> tuple[Operation, ...]:
        """List those of some operations that a model of the set is for. They need not be the set's own.

        Raises:
            ShapeFileError: there is none.
        """
        found = tuple(operation for operation in asked if any(model.is_for(operation) for model in self.models))
        if not found:
            known, names = (", ".join(operation.tag for operation in x) for x in (self.operations, asked))
            raise ShapeFileError(
                f"the shape set has no problem of {names}; it has {known}; give --dtype, --layout and --epilogue, or "
                "--operations"
            )
        return found

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """List the distinct (n, k, m), ascending."""
        return sorted(set[tuple[int, int, int]]().union(*(model.sizes for model in self.models)))

    def problems(self, operation: Operation) -> list[Problem]:
        """List an operation's problems by n, k, m, each once."""
        is_dense = operation.grouping is Grouping.DENSE
        models = [model for model in self.models if model.is_for(operation)]
        one = (1,) if is_dense else ()
        sizes = {(*size, count) for model in models for size in model.sizes for count in one or model.num_groups}
        return [Problem(operation, m, n, k, count) for n, k, m, count in sorted(sizes)]

    @property
    def launches(self) -> dict[Problem, int]:
        """Return how often each problem was launched, where models have counts."""
        found: dict[Problem, int] = {}
        for model in self.models:
            for operation, weight in product(model.operations, model.weights):
                for m, count in zip(model.m, model.counts, strict=bool(model.counts)):
                    num_groups = 1 if operation.grouping is Grouping.DENSE else model.num_groups[0]
                    problem = Problem(operation, m, weight.n, weight.k, num_groups)
                    found[problem] = found.get(problem, 0) + count
        return found


def _refuse_empty(**lists: Sequence[object] | None) -> None:
    for key, items in lists.items():
        if items is not None and not items:
            raise DecodeError("expected one or more", (key,))


def _refuse_repeated(**lists: Sequence[object] | None) -> None:
    for key, items in lists.items():
        repeated = next((i for i, x in enumerate(items or ()) if x in (items or ())[:i]), None)
        if repeated is not None:
            raise DecodeError("expected each once, this is there before", (key, repeated))


def _refuse_descending(key: str, items: Sequence[int] | None) -> None:
    pairs = enumerate(pairwise(items or ()), 1)
    wrong = next(((i, low, high) for i, (low, high) in pairs if low >= high), None)
    if wrong is not None:
        i, low, high = wrong
        raise DecodeError(f"expected ascending numbers, each once, got {high} after {low}", (key, i))


@dataclass(frozen=True)
class _Weight(Weight):
    m: tuple[Extent, ...] | None = None
    """Its own, in the place of the model's; so is the next."""
    num_groups: tuple[Extent, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse lists that are empty or do not ascend (DecodeError)."""
        _refuse_empty(m=self.m, num_groups=self.num_groups)
        _refuse_descending("m", self.m)
        _refuse_descending("num_groups", self.num_groups)


@dataclass(frozen=True)
class _Model:
    name: Label
    weights: tuple[_Weight, ...]
    description: Text | None = None
    m: tuple[Extent, ...] | None = None
    dtypes: tuple[ElementType, ...] | None = None
    layouts: tuple[Layout, ...] | None = None
    counts: tuple[Annotated[int, Range(1, MAX_COUNT)], ...] | None = None
    epilogues: tuple[Epilogue, ...] | None = None
    operations: tuple[Operation, ...] | None = None
    num_groups: tuple[Extent, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse empty and repeating lists (DecodeError)."""
        _refuse_empty(weights=self.weights)
        _check_lists(self)


@dataclass(frozen=True)
class _ShapeSet:
    """A file. What stands here is for every model that has none of its own."""

    version: Version
    model: tuple[_Model, ...]
    dtypes: tuple[ElementType, ...] | None = None
    layouts: tuple[Layout, ...] | None = None
    m: tuple[Extent, ...] | None = None
    dropped: Count | None = None
    epilogues: tuple[Epilogue, ...] | None = None
    operations: tuple[Operation, ...] | None = None
    num_groups: tuple[Extent, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse empty and repeating lists (DecodeError)."""
        _refuse_empty(model=self.model)
        _check_lists(self)
        self.models()

    def models(self) -> tuple[Model, ...]:
        """Make the models (DecodeError, with the place, where one is none)."""
        models, num_sizes = list[Model](), 0
        for i, entry in enumerate(self.model):
            try:
                found = _models(entry, self)
            except DecodeError as error:
                raise error.inside(i).inside("model") from error
            models += found
            num_sizes += sum(len(x.weights) * len(x.m) for x in found)
            if num_sizes > MAX_SIZES:
                raise DecodeError(f"the set has more than {MAX_SIZES:,} sizes up to here; expected fewer", ("model", i))
        return tuple(models)


def _check_lists(entry: _Model | _ShapeSet) -> None:
    """Refuse lists that are empty, repeat or contradict each other, as the set and a model have them (DecodeError)."""
    crossed = {"dtypes": entry.dtypes, "layouts": entry.layouts, "epilogues": entry.epilogues}
    _refuse_empty(m=entry.m, operations=entry.operations, num_groups=entry.num_groups, **crossed)
    _refuse_descending("num_groups", entry.num_groups)
    _refuse_unknown(entry.dtypes)
    _refuse_repeated(operations=entry.operations, **crossed)
    _refuse_descending("m", entry.m)
    beside = next((key for key, value in crossed.items() if value is not None), None)
    if entry.operations is not None and beside is not None:
        raise DecodeError(
            f"expected `operations`, or `dtypes`, `layouts` and `epilogues`, got it beside `{beside}`", ("operations",)
        )


def _refuse_unknown(dtypes: Sequence[ElementType] | None) -> None:
    for i, dtype in enumerate(dtypes or ()):
        if dtype not in ELEMENTS:
            names = ", ".join(element.value for element in ELEMENTS)
            raise DecodeError(f"expected one of {names}, got '{dtype.value}'", ("dtypes", i))


def _check_counts(entry: _Model, m: Sequence[int], num_groups: Sequence[int]) -> None:
    if entry.counts is None:
        return
    if len(entry.counts) != len(m) or len(entry.weights) != 1:
        raise DecodeError(
            f"expected {len(m)} numbers, one for each `m`, and one weight, got {len(entry.counts)} for "
            f"{len(entry.weights)} weights",
            ("counts",),
        )
    if len(num_groups) > 1:
        raise DecodeError(f"expected one number beside `counts`, got {len(num_groups)}", ("num_groups",))
    if entry.operations is None and (entry.dtypes is None or entry.layouts is None):
        raise DecodeError("expected `dtypes` and `layouts`, or `operations`, of the model's own beside it", ("counts",))


def _operations(entry: _Model, whole: _ShapeSet) -> tuple[Operation, ...]:
    """List the operations that a model is for, by its own lists or else by the set's (DecodeError)."""
    if entry.operations:
        return entry.operations
    is_own = any(x is not None for x in (entry.dtypes, entry.layouts, entry.epilogues))
    if whole.operations and not is_own:
        return whole.operations
    dtypes, layouts = entry.dtypes or whole.dtypes, entry.layouts or whole.layouts
    if dtypes is None or layouts is None:
        missing = "dtypes" if dtypes is None else "layouts"
        raise DecodeError(f"needs `{missing}`, which the set has none of for all models")
    return catalogued(dtypes, layouts, entry.epilogues or whole.epilogues or (Epilogue.NONE,))


def _models(entry: _Model, whole: _ShapeSet) -> list[Model]:
    """Make a model of the weights that meet the same m and numbers of groups (DecodeError)."""
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Weight]] = {}
    for weight in entry.weights:
        m = weight.m or entry.m or whole.m
        if m is None:
            raise DecodeError("needs `m`, which the set has none of for all models")
        num_groups = weight.num_groups or entry.num_groups or whole.num_groups or (1,)
        alike.setdefault((m, num_groups), []).append(Weight(weight.name, weight.n, weight.k))
    operations = _operations(entry, whole)
    is_own = any(x is not None for x in (entry.operations, entry.dtypes, entry.layouts, entry.epilogues))
    own, counts, text = operations if is_own else (), entry.counts or (), entry.description or ""
    for m, num_groups in alike:
        _check_counts(entry, m, num_groups)
    return [Model(entry.name, text, tuple(x), m, own, groups, counts) for (m, groups), x in alike.items()]


def parse_shape_set(text: str, where: str) -> ShapeSet:
    """Read a shape set from TOML.

    `dtypes`, `layouts`, `epilogues` (by default `none`) and `m` stand at the head of the set for all models, in a model
    for it alone, or in both; `m` and `num_groups` in a weight too. In the place of the first three may stand
    `operations`, by tag.

    Raises:
        ShapeFileError: with the file, the line, the place, what was expected and the value got.
    """
    try:
        whole = parse_toml(text, where, _ShapeSet, VERSION)
    except TomlError as error:
        raise ShapeFileError(str(error)) from error
    models = whole.models()
    crossed = catalogued(whole.dtypes or (), whole.layouts or (), whole.epilogues or (Epilogue.NONE,))
    known = {*(whole.operations or crossed), *(x for model in models for x in model.operations)}
    return ShapeSet(
        tuple(x for x in Operation if x in known and any(model.is_for(x) for model in models)),
        models,
        whole.dropped or 0,
        has_named=whole.operations is not None,
    )


def shape_set_names() -> list[str]:
    """List the shape sets that the package ships."""
    files = resources.files("aot").joinpath("shapes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def shape_set_path(name_or_path: str) -> Path:
    """Return the file of a shape set that is shipped, or that a path names."""
    if name_or_path in shape_set_names():
        return Path(str(resources.files("aot").joinpath("shapes", f"{name_or_path}.toml")))
    return Path(name_or_path)


def load_shape_set(name_or_path: str) -> ShapeSet:
    """Load a shipped shape set by name, or any by path; a wheel's miss log is one too.

    Raises:
        ShapeFileError: there is none, or it is neither a shape set nor a miss log.
    """
    try:
        text = text_of(read_content(shape_set_path(name_or_path)))
    except DecodeError as error:
        known = ", ".join(shape_set_names())
        raise ShapeFileError(f"{name_or_path}: {error}; give a path or one of: {known}") from error
    if is_miss_log(text):
        text = shape_set_text(text, name_or_path)
    return parse_shape_set(text, name_or_path)
