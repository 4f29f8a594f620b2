"""Read TOML into frozen dataclasses, as `aot.core.strict_json` reads JSON: an error names the keys that lead to it."""

from __future__ import annotations

import json
import tomllib
from typing import Any, TypeVar

from aot.core.strict_json import DecodeError, decode, decode_version

T = TypeVar("T")


class TomlError(ValueError):
    """A document that does not fit; the message starts with the file and the keys that lead to the value."""


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TomlError(f"{where}: not TOML: {error}") from error
    except ValueError as error:
        raise TomlError(f"{where}: not TOML that can be read: a whole number of thousands of digits") from error
    except RecursionError as error:
        raise TomlError(f"{where}: not TOML that can be read: nested too deeply") from error


def parse_toml(text: str, where: str, kind: type[T], version: int | None = None) -> T:
    """Read a document.

    Args:
        text: the document.
        where: its file, for messages.
        kind: the dataclass that it is; its `__post_init__` may refuse with a DecodeError what no type says.
        version: what its key `version` must be; None where it has no such key.

    Raises:
        TomlError: the text is not TOML, or not such a document.
    """
    values = _parsed(text, where)
    try:
        return decode(kind, values) if version is None else decode_version(kind, values, "version", version)
    except DecodeError as error:
        raise TomlError(f"{where}: {error}") from error


def toml_string(text: str) -> str:
    """Write a text as a string of TOML: what JSON escapes TOML does, but for a delete character and surrogate pairs."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
