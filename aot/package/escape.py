"""Write values into files of other languages: what a template may write, and as what. Nothing is written as it is.

A template writes whole numbers, and what a filter of its file's language returned; everything else is an error.
`name`, `plain` and `numbers` return what means the same in every language, and refuse the rest.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from jinja2 import Undefined, pass_context

from aot.core.strict_json import shown
from aot.core.strict_toml import toml_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jinja2.runtime import Context

LANGUAGES = {
    ".cc": "cpp",
    ".cmake": "cmake",
    ".h": "cpp",
    ".md": "markdown",
    ".pc": "pkg-config",
    ".py": "python",
    ".toml": "toml",
    ".txt": "cmake",
}
"""By the suffix of the file that is rendered."""
ANY = "any"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(r"([A-Za-z0-9_.,:+-]+ )*[A-Za-z0-9_.,:+-]+")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>&!|~$])")


class EscapeError(ValueError):
    """A value that cannot be written in a language, or a template that writes one without a filter."""


class Escaped(str):
    """A text that a file of one language may have as it is."""

    __slots__ = ("language",)

    language: str

    @staticmethod
    def of(text: str, language: str = ANY) -> Escaped:
        """Make one."""
        found = Escaped(text)
        found.language = language
        return found


def _text(value: object, language: str) -> str:
    """Return a text that UTF-8 can write."""
    if not isinstance(value, str):
        raise EscapeError(f"{shown(value)} is written in {language} as a text; expected one")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise EscapeError(f"{shown(value)} cannot be written in {language}: half of a surrogate pair") from error
    return value


def name(value: object) -> Escaped:
    """Write an identifier, which no language needs to escape."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise EscapeError(f"{shown(value)} is written as a name; expected {_NAME.pattern}")
    return Escaped.of(str(value))


def enumerator(value: object) -> Escaped:
    """Write the name in C++ of an enumerator that Python names in snake case: `kPrefetchB` of `prefetch_b`."""
    return name("k" + "".join(word.capitalize() for word in name(value).split("_")))


def plain(value: object) -> Escaped:
    """Write words that mean nothing in any language, in a comment for instance."""
    if not isinstance(value, str) or _PLAIN.fullmatch(value) is None:
        raise EscapeError(f"{shown(value)} is written as plain words; expected {_PLAIN.pattern}")
    return Escaped.of(str(value))


def numbers(values: Iterable[object]) -> Escaped:
    """Write whole numbers with commas between them."""
    found = list(values)
    if any(type(value) is not int for value in found):
        raise EscapeError(f"{shown(found)} is written as whole numbers; expected such")
    return Escaped.of(", ".join(map(str, found)))


def cpp(value: object) -> Escaped:
    """Write a C++ literal of a bool or a text; octal escapes end after three digits, whatever follows."""
    if isinstance(value, bool):
        return Escaped.of("true" if value else "false", "cpp")
    content = "".join(
        chr(byte) if 0x20 <= byte < 0x7F and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in _text(value, "C++").encode()
    )
    return Escaped.of(f'"{content}"', "cpp")


def python(value: object) -> Escaped:
    """Write a Python literal of a text: Python reads what JSON escapes alike, characters outside ASCII as they are."""
    return Escaped.of(json.dumps(_text(value, "Python"), ensure_ascii=False), "python")


def toml(value: object) -> Escaped:
    """Write a TOML string."""
    return Escaped.of(toml_string(_text(value, "TOML")), "toml")


def markdown(value: object) -> Escaped:
    """Write text of one line within a paragraph of Markdown."""
    text = _text(value, "Markdown")
    if not text.isprintable():
        raise EscapeError(f"{shown(value)} is written in one line of Markdown; expected printable characters")
    return Escaped.of(_MARKDOWN.sub(r"\\\1", text), "markdown")


def code(value: object) -> Escaped:
    """Write a code span of Markdown, fenced by more backticks than it has in a row."""
    text = _text(value, "Markdown")
    if not text.isprintable():
        raise EscapeError(f"{shown(value)} is written in one line of Markdown; expected printable characters")
    fence = "`" * (1 + max((len(x) for x in re.findall("`+", text)), default=0))
    space = " " if text != text.strip("` ") or not text else ""
    return Escaped.of(f"{fence}{space}{text}{space}{fence}", "markdown")


FILTERS: dict[str, Callable[..., Escaped]] = {
    x.__name__: x for x in (name, plain, numbers, cpp, python, toml, markdown, code, enumerator)
}


@pass_context
def finalize(context: Context, value: object) -> str:
    """Let a template write whole numbers and what is escaped for its file's language.

    Raises:
        EscapeError: the value is anything else.
    """
    if type(value) is int or isinstance(value, Undefined):
        return str(value)  # of what is undefined an error that names it
    template = (context.name or "").removesuffix(".j2")
    language = next((x for suffix, x in LANGUAGES.items() if template.endswith(suffix)), "")
    if isinstance(value, Escaped) and value.language in (ANY, language):
        return value
    filters = ", ".join(FILTERS)
    raise EscapeError(f"{shown(value)} is written into {language or 'a file'} unescaped; use a filter of it: {filters}")
