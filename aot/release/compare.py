"""Two releases, byte by byte: which files differ, and where in them."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ELF = b"\x7fELF"
MAX_SHOWN = 120


@dataclass(frozen=True)
class Difference:
    """What differs between two builds."""

    where: str
    """The file; within a wheel also its member, and within that a section."""
    what: str
    """How the first differs from the second."""

    def __str__(self) -> str:
        """Return the line that is printed."""
        return f"{self.where}: {self.what}"


def _first(one: bytes, other: bytes) -> int:
    """Return the place of the first byte that differs, or the length of the shorter."""
    return next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))


def _lines(where: str, one: bytes, other: bytes) -> Difference | None:
    """Name the first line of a text that differs; None where one of the two is no text."""
    try:
        lines = one.decode().splitlines(), other.decode().splitlines()
    except UnicodeDecodeError:
        return None
    for number, (x, y) in enumerate(zip(*lines, strict=False), start=1):
        if x != y:
            return Difference(where, f"line {number} is {x[:MAX_SHOWN]!r}, then {y[:MAX_SHOWN]!r}")
    return Difference(where, f"it has {len(lines[0])} lines, then {len(lines[1])}")


def _sections(content: bytes) -> dict[str, bytes]:
    from elftools.elf.elffile import ELFFile

    sections = ELFFile(BytesIO(content)).iter_sections()
    return {x.name: x.data() for x in sections if x.name and x["sh_type"] != "SHT_NOBITS"}


def _members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(content)) as archive:
        return {x: archive.read(x) for x in archive.namelist()}


def _inner(where: str, one: Mapping[str, bytes], other: Mapping[str, bytes]) -> Iterator[Difference]:
    """Compare what two files are made of; where their parts are equal, all else may differ."""
    found = list(compare_all(one, other, f"{where}: "))
    yield from found
    if not found:
        yield Difference(where, "its parts are equal; their order, times, modes, headers or compression are not")


def compare(where: str, one: bytes, other: bytes) -> Iterator[Difference]:
    """Say where two files differ.

    Args:
        where: what the file is called.
        one: the content of the first build.
        other: the content of the second.
    """
    if one == other:
        return
    if zipfile.is_zipfile(BytesIO(one)) and zipfile.is_zipfile(BytesIO(other)):
        yield from _inner(where, _members(one), _members(other))
    elif one.startswith(ELF) and other.startswith(ELF):
        yield from _inner(where, _sections(one), _sections(other))
    else:
        text = f"{len(one):,} bytes, then {len(other):,}; the first that differs is byte {_first(one, other):,}"
        yield _lines(where, one, other) or Difference(where, text)


def compare_all(one: Mapping[str, bytes], other: Mapping[str, bytes], before: str = "") -> Iterator[Difference]:
    """Say where two sets of files differ, by their names."""
    for name in sorted({*one, *other}):
        if name not in other:
            yield Difference(f"{before}{name}", "only the first build has it")
        elif name not in one:
            yield Difference(f"{before}{name}", "only the second build has it")
        else:
            yield from compare(f"{before}{name}", one[name], other[name])


def read_folder(folder: Path) -> dict[str, bytes]:
    """Read every file of a folder, by its path there."""
    return {x.relative_to(folder).as_posix(): x.read_bytes() for x in folder.rglob("*") if x.is_file()}
