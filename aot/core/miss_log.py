"""The miss log that a wheel writes for AOT_GEMM_MISSES, and the shape set that it becomes.

The log counts launches that no tuned (n, k) answered. Its first line is `FIRST_LINE`; lines that start with # are
comments; `dropped COUNT` counts launches that the log had no room for; every other line is

    WHY OPERATION N K MxLAUNCHES MxLAUNCHES ...

Stated in C++ by templates/src/miss_table.cc, which writes such logs and adds to them. Logs may be joined by
appending one to the other: counts of one problem add up. Launches of an operation that the catalogue does not have in
that layout count as dropped, as those do that the log had no room for.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from io import StringIO
from typing import TYPE_CHECKING

from aot.core.constraints import MAX_COUNT, MAX_EXTENT
from aot.core.errors import ShapeFileError
from aot.core.operation import Layout, Operation
from aot.core.strict_json import DecodeError, read_content, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FIRST_LINE = "# aot_gemm misses 1\n"

REASONS = {
    "grid": "answered by the grid: this (n, k) has no ladder of m",
    "unaligned": "computed by the fallback: an address or a leading stride is no multiple of 16 bytes",
    "strided": "computed by the fallback: an operand has no contiguous mode",
}
"""Why no tuned (n, k) answered, by the first word of a line."""

_OPERATIONS = {x.tag: x for x in Operation}
_TAGS = {"_".join([x.types.tag, layout.value, *x.suffixes]) for x in Operation for layout in Layout}
"""What a wheel may name: the fallback takes an operation in every layout, whether or not the catalogue has it."""
_LINE = re.compile(r"(\w+) (\w+) ([0-9]{1,19}) ([0-9]{1,19})((?: [0-9]{1,19}x[0-9]{1,19})+)\n")
_DROPPED = re.compile(r"dropped ([0-9]{1,19})\n")
_FORM = "WHY OPERATION N K MxLAUNCHES ..."

_Key = tuple[str, str, int, int]
"""Why, the operation's tag, n and k."""


def is_miss_log(text: str) -> bool:
    """Say whether a text is a miss log, by its first line."""
    return text.startswith(FIRST_LINE)


def _number(name: str, digits: str, most: int) -> int:
    number = int(digits)
    if not 1 <= number <= most:
        raise ValueError(f"{name} is {number}; expected 1 to {most}")
    return number


def _read_line(line: str) -> tuple[_Key, list[tuple[int, int]]]:
    """Read the line of one (n, k).

    Raises:
        ValueError: it is no such line.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"expected {_FORM}, got {line[:80]!a}")
    why, tag, n, k, launches = match.groups()
    if why not in REASONS:
        raise ValueError(f"the reason is {why!a:.80}; expected one of {', '.join(REASONS)}")
    if tag not in _TAGS:
        near = get_close_matches(tag[:80], _TAGS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "expected one of those that docs/operations.md lists"
        raise ValueError(f"the operation is {tag!a:.80}; {hint}")
    pairs = (pair.split("x") for pair in launches.split())
    counts = [(_number("m", m, MAX_EXTENT), _number("launches", count, MAX_COUNT)) for m, count in pairs]
    return (why, tag, _number("n", n, MAX_EXTENT), _number("k", k, MAX_EXTENT)), counts


def _read(lines: Iterable[str], where: str) -> tuple[dict[_Key, dict[int, int]], int]:
    """Count the launches of each m by what its line begins with, and those of which nothing can be tuned."""
    counted: dict[_Key, dict[int, int]] = {}
    dropped = 0
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            continue
        try:
            match = _DROPPED.fullmatch(line)
            if match is not None:
                dropped = min(dropped + _number("dropped", match[1], MAX_COUNT), MAX_COUNT)
                continue
            key, counts = _read_line(line)
        except ValueError as error:
            raise ShapeFileError(
                f"{where}:{number}: {error}; mend or remove the line, or have the wheel write a new log"
            ) from error
        if key[1] not in _OPERATIONS:
            dropped = min(dropped + sum(count for _, count in counts), MAX_COUNT)
            continue
        launches = counted.setdefault(key, {})
        for m, count in counts:
            launches[m] = min(launches.get(m, 0) + count, MAX_COUNT)
    return counted, dropped


def shape_set_text(text: str, where: str) -> str:
    """Make the TOML of a shape set of a miss log: a model for each reason, operation and (n, k).

    Args:
        text: the log.
        where: its file, for messages.

    Raises:
        ShapeFileError: the text is no miss log, a line of it is malformed, or it counts no launch.
    """
    if not is_miss_log(text):
        raise ShapeFileError(
            f"{where}:1: expected the first line {FIRST_LINE.rstrip()!r}, got {text[:80].partition(chr(10))[0]!a}; "
            "give a log that a wheel wrote for AOT_GEMM_MISSES"
        )
    counted, dropped = _read(StringIO(text), where)
    if not counted:
        raise ShapeFileError(f"{where}: it counts no launch, so that there is nothing to tune for")
    models = [
        f'[[model]]\nname = "{why} {tag} n{n} k{k}"\ndescription = "{REASONS[why]}"\n'
        f'operations = ["{tag}"]\n'
        f'weights = [{{ name = "n{n}_k{k}", n = {n}, k = {k} }}]\n'
        f"m = {sorted(launches)}\ncounts = {[launches[m] for m in sorted(launches)]}\n"
        for (why, tag, n, k), launches in counted.items()
    ]
    head = "# Launches that no tuned (n, k) answered, from a miss log (AOT_GEMM_MISSES).\n"
    return "\n".join([f"{head}version = 1\ndropped = {dropped}\n", *models])


def load_miss_log(path: Path) -> str:
    """Read a miss log and return the TOML of its shape set.

    Raises:
        ShapeFileError: the file cannot be read, or is no miss log.
    """
    try:
        return shape_set_text(text_of(read_content(path)), str(path))
    except DecodeError as error:
        raise ShapeFileError(f"{path}: {error}; give a log that a wheel wrote for AOT_GEMM_MISSES") from error
