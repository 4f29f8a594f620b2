"""Read JSON into frozen dataclasses, refusing whatever is missing, unknown, of the wrong type, or out of its range.

Every number of such a dataclass has a range, and every text a grammar (`aot.core.constraints`); a number, a text or
a dictionary's key without one is a TypeError when its decoder is made. Whatever a file holds, reading it returns a
value or raises DecodeError.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from reprlib import Repr
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from aot.core.constraints import Form, Grammar, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    Decoder = Callable[[Any], Any]

T = TypeVar("T")

Place = tuple[str | int, ...]
"""The keys and indices that lead to a value, such as ("model", 0, "weights", 1, "n")."""

MAX_BYTES = 2**28
"""Size of the largest file that is read, decompressed: some hundred times those that there are."""
MAX_LISTED, MAX_COMPARED = 40, 80
"""Words that a refusal lists, and the letters by which it finds the nearest ones where there are more."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")


class _Short(Repr):
    """Show any value of a file in few characters, all of them printable."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxlevel = 2

    def repr_int(self, x: int, level: int) -> str:
        """Show an integer; Python refuses to write one of more than 4300 digits."""
        del level
        return repr(x) if abs(x) < 10**30 else f"an integer of {x.bit_length()} bits"


shown = _Short().repr
"""Show any value of a file, for messages."""


class DecodeError(ValueError):
    """A file or a value that does not fit: what was expected and got, and the place in the document."""

    def __init__(self, problem: str, place: Place = ()) -> None:
        super().__init__(problem)
        self.problem, self.place = problem, place

    def inside(self, part: str | int) -> DecodeError:
        """Return the same error of a value that lies under a key or an index."""
        return DecodeError(self.problem, (part, *self.place))

    def __str__(self) -> str:
        """Return the message, which starts with the place."""
        path = "".join(_step(part) for part in self.place).removeprefix(".")
        return f"{path}: {self.problem}" if path else self.problem


def _step(part: str | int) -> str:
    if isinstance(part, str) and _PLAIN_KEY.fullmatch(part):
        return f".{part}"
    return f"[{shown(part)}]"


def _choice(members: Sequence[str], value: object) -> str:
    """Name what is expected of a word: all where they are few, else those that are the nearest."""
    if len(members) <= MAX_LISTED:
        return f"one of {', '.join(members)}"
    near = get_close_matches(str(value)[:MAX_COMPARED], members, n=3)
    return f"one of {len(members)} words, such as {', '.join(near or members[:3])}"


def _refuse(expected: object, value: object) -> DecodeError:
    return DecodeError(f"expected {expected}, got {shown(value)}")


def decode(kind: type[T], value: object) -> T:
    """Make a value of type `kind` of plain values.

    Types are dataclasses, `tuple[X, ...]`, `tuple[X, Y]`, `dict[K, X]`, `X | None`, enumerations, bool, and numbers and
    texts that are annotated with a constraint, and whatever is annotated with a `Form`. A dataclass that is written in
    another form than its fields has a static method `read_json`, as it has `as_json` to write it.

    Args:
        kind: the type.
        value: what a parser of JSON or TOML returned, or a row of a data base.

    Raises:
        DecodeError: the value does not fit.
    """
    # A type of annotations is hashable, whatever mypy thinks of T.
    found: T = decoder(cast("Any", kind))(value)
    return found


@cache
def _columns(kind: Any) -> tuple[tuple[str, ...], tuple[Decoder, ...], int]:
    """Return the names of a dataclass's fields, their decoders, and how many of them a row has at least."""
    hints = get_type_hints(kind, include_extras=True)
    names = tuple(field.name for field in fields(kind))
    return names, tuple(decoder(hints[name]) for name in names), sum(x.default is not None for x in fields(kind))


def decode_row(kind: type[T], values: Sequence[object]) -> T:
    """Make a dataclass of a list of its fields' values, in their order; the last ones that may be absent may be.

    Raises:
        DecodeError: there are more or fewer, or one does not fit.
    """
    names, decoders, least = _columns(cast("Any", kind))
    if len(values) > len(names):
        raise DecodeError(f"expected a list of {len(names)} values, got {len(values)}")
    try:
        if len(values) >= least:
            return kind(*[read(value) for read, value in zip(decoders, values, strict=False)])
    except ValueError:
        pass  # it is read once more, for the place of the fault
    return decode(kind, dict(zip(names, values, strict=False)))


@cache
def decoder(kind: Any) -> Decoder:
    """Return the function that makes values of a type; see `decode`.

    Raises:
        TypeError: a number or a text within the type has no constraint.
    """
    if is_dataclass(kind):
        own: Decoder | None = getattr(kind, "read_json", None)
        return own or _record(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(kind)
    return _bool if kind is bool else _composed(kind)


def _composed(kind: Any) -> Decoder:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _formed(arguments[1]) if isinstance(arguments[1], Form) else _constrained(arguments[0], arguments[1])
    if origin in (UnionType, Union):
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return _optional(decoder(inner))
    if origin is tuple:
        return _items(arguments[0]) if arguments[-1] is Ellipsis else _row([decoder(x) for x in arguments])
    if origin is dict:
        return _table(decoder(arguments[0]), decoder(arguments[1]))
    raise TypeError(f"{kind} cannot be decoded: a number needs a Range, a text a Grammar")


def _constrained(base: type, constraint: Range | Grammar) -> Decoder:
    if (base, type(constraint)) not in ((int, Range), (float, Range), (str, Grammar)):
        raise TypeError(f"a {base.__name__} cannot have the constraint {constraint!r}")
    kinds = (int, float) if base is float else (base,)
    noun, holds = {int: "a whole number ", float: "a number ", str: ""}[base], constraint.holds

    def read(value: Any) -> Any:
        if type(value) in kinds and holds(value):
            return base(value)
        raise _refuse(f"{noun}{constraint}", value)

    return read


def _formed(form: Form) -> Decoder:
    if form.kind is Any:
        return form.read
    written = decoder(form.kind)
    return lambda value: form.read(written(value))


def _bool(value: Any) -> Any:
    if value is not True and value is not False:
        raise _refuse("true or false", value)
    return value


def _member(kind: type[Enum]) -> Decoder:
    members = {member.value: member for member in kind}

    def read(value: Any) -> Any:
        if type(value) is not type(next(iter(members))) or value not in members:
            raise _refuse(_choice([str(x) for x in members], value), value)
        return members[value]

    return read


def _optional(inner: Decoder) -> Decoder:
    return lambda value: None if value is None else inner(value)


def _list(item: Decoder) -> Decoder:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _refuse("a list", value)
        found = []
        try:
            for x in value:
                found.append(item(x))  # noqa: PERF401 - its length is the place of an error
        except DecodeError as error:
            raise error.inside(len(found)) from None
        return tuple(found)

    return read


def _items(kind: Any) -> Decoder:
    """Return the decoder of lists of a kind of items; of whole numbers it looks at each only where one is refused."""
    one_by_one = _list(decoder(kind))
    base, *constraints = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if base is not int:
        return one_by_one
    (constraint,) = constraints

    def read(value: Any) -> Any:
        if type(value) is not list or set(map(type, value)) != {int}:
            return one_by_one(value)
        if not (constraint.holds(min(value)) and constraint.holds(max(value))):
            return one_by_one(value)
        return tuple(value)

    return read


def _row(items: list[Decoder]) -> Decoder:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            raise _refuse(f"a list of {len(items)} values", value)
        found: list[Any] = []
        try:
            for item, x in zip(items, value, strict=True):
                found.append(item(x))
        except DecodeError as error:
            raise error.inside(len(found)) from None
        return tuple(found)

    return read


def _table(key: Decoder, item: Decoder) -> Decoder:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _refuse("an object", value)
        found = {}
        for name, x in value.items():
            try:
                found[key(name)] = item(x)
            except DecodeError as error:
                raise error.inside(name) from None
        return found

    return read


def _check_keys(name: str, value: dict[Any, Any], known: Iterable[str], required: set[str]) -> None:
    unknown = next((key for key in value if key not in known), None)
    if unknown is not None:
        raise DecodeError(f"there is no such key in {name}; it has {', '.join(known)}", (unknown,))
    missing = sorted(required - value.keys())
    if missing:
        raise DecodeError(f"{name} needs the key {missing[0]}, which is missing")


def _record(kind: Any) -> Decoder:
    hints = get_type_hints(kind, include_extras=True)
    decoders = {field.name: decoder(hints[field.name]) for field in fields(kind)}
    # What is None when it is absent may be absent; any other default would be a value that nobody wrote.
    required = {field.name for field in fields(kind) if field.default is not None}
    name = kind.__name__.lstrip("_")

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _refuse(f"an object of {name}", value)
        if value.keys() != decoders.keys():
            _check_keys(name, value, decoders, required)
        found, key = {}, ""
        try:
            for key, x in value.items():
                found[key] = decoders[key](x)
        except DecodeError as error:
            raise error.inside(key) from None
        try:
            return kind(**found)
        except DecodeError:
            raise
        except ValueError as error:
            raise DecodeError(str(error)) from error

    return read


def decode_version(kind: type[T], value: object, key: str, version: int) -> T:
    """Decode a document that holds its version; another version is refused as that, whatever else differs.

    Raises:
        DecodeError: the version is another, or the value does not fit.
    """
    found = value.get(key) if isinstance(value, dict) else None
    if type(found) is not int or found != version:
        raise DecodeError(f"expected {version}, got {shown(found)}", (key,))
    return decode(kind, value)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise DecodeError(f"the key {shown(max(names, key=names.count))} is there twice in one object")
    return found


def _constant(text: str) -> Any:
    raise DecodeError(f"not JSON: {text} is no number of JSON")


_JSON = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant)
_JSON_AND_INFINITY = json.JSONDecoder(object_pairs_hook=_pairs)


def text_of(content: bytes) -> str:
    """Return the text of UTF-8.

    Raises:
        DecodeError: the bytes are something else.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"not UTF-8 text: byte {error.start} is {content[error.start]:#04x}") from error


def parse_json(content: str | bytes, *, is_finite: bool = True) -> Any:
    """Parse JSON: UTF-8, no key twice, no NaN or infinity.

    Args:
        content: the text.
        is_finite: false where NaN, Infinity and -Infinity are taken, which Python's json writes by default.

    Raises:
        DecodeError: it is not that, is nested too deeply, or has a number of thousands of digits.
    """
    text = content if isinstance(content, str) else text_of(content)
    try:
        return (_JSON if is_finite else _JSON_AND_INFINITY).decode(text)
    except DecodeError:
        raise
    except json.JSONDecodeError as error:
        raise DecodeError(f"not JSON: {error}") from error
    except ValueError as error:
        raise DecodeError("not JSON that can be read: a whole number of thousands of digits") from error
    except RecursionError as error:
        raise DecodeError("not JSON that can be read: nested too deeply") from error


def _decompressed(path: Path) -> bytes:
    with path.open("rb") as file:
        if path.suffix != ".gz":
            return file.read(MAX_BYTES + 1)
        with gzip.open(file) as content:
            return content.read(MAX_BYTES + 1)


def read_content(path: Path) -> bytes:
    """Return a file's content, decompressed where its name ends with `.gz`.

    Raises:
        DecodeError: it cannot be read, or is too long.
    """
    try:
        content = _decompressed(path)
    except OSError as error:
        raise DecodeError(error.strerror or str(error)) from error
    except (EOFError, ValueError, zlib.error) as error:
        raise DecodeError(str(error)) from error
    if len(content) > MAX_BYTES:
        raise DecodeError(f"more than {MAX_BYTES} bytes, which no file of ours has")
    return content
