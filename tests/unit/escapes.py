"""The way back from what `aot.package.escape` writes."""

from __future__ import annotations

import re

CPP_LITERAL = re.compile(r'"((?:[^"\\\n]|\\[0-7]{3})*)"')


def unescaped_cpp(literal):
    """Return the bytes of a literal that has no other escapes than of three octal digits."""
    (content,) = CPP_LITERAL.fullmatch(literal).groups()
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), content.encode("ascii"))


def unescaped_markdown(text):
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text)
