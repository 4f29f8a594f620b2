"""Write a wheel, and read one whole: its members, and that all else in the archive is as the build writes it."""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NoReturn

from aot.core.errors import PackageError
from aot.core.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_ARCHIVE_BYTES = 400 * 1000**2
"""Four times what a package index takes."""
MAX_UNPACKED_BYTES = 2 * 1000**3
"""Of all members together: 20 times what a package index takes of the archive."""

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END = struct.Struct("<IHHHHIIH")
"""Source: APPNOTE.TXT of PKWARE, 4.3.7, 4.3.12 and 4.3.16."""
_LOCAL_SIGNATURE, _CENTRAL_SIGNATURE, _END_SIGNATURE = 0x04034B50, 0x02014B50, 0x06054B50
_MADE_BY = 3 << 8 | 20
"""Unix, version 2.0."""
_NEEDS = 20
_NO_FLAGS = 0
_DEFLATED = 8
_TIME = 0
_DATE = (2020 - 1980) << 9 | 1 << 5 | 1
"""2020-01-01 00:00, the time stamp of every member: package.SOURCE_DATE_EPOCH."""
_MODES = {0o100644, 0o100664, 0o100755}
"""What CMake and scikit-build-core give to libraries and files."""
_LEVEL = 12
"""libdeflate's highest."""
_UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, OSError, RuntimeError, ValueError, EOFError)
"""What zipfile raises over a damaged archive. Source: bits flipped in one, thousands of times."""


def _refuse(name: str, what: str) -> NoReturn:
    raise PackageError(f"{name}: {what}; expected a wheel that `aot build` made, whole; build or download it again")


def read_wheel(path: Path) -> dict[str, bytes]:
    """Read every member of a wheel.

    Beside the members' content, whose hashes are the wheel's own to tell, the whole archive is determined by names,
    sizes and modes, so that it is compared byte by byte: local headers too, which unpackers that read a stream go by.

    Raises:
        PackageError: the file is no wheel, is damaged, or is not laid out as the build writes it.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_ARCHIVE_BYTES + 1)  # a device may have no end
        if len(content) > MAX_ARCHIVE_BYTES:
            _refuse(path.name, f"it has more than {MAX_ARCHIVE_BYTES:,} bytes")
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            num_bytes = sum(member.file_size for member in members)
            if num_bytes > MAX_UNPACKED_BYTES:
                _refuse(path.name, f"its members have {num_bytes:,} bytes, more than {MAX_UNPACKED_BYTES:,}")
            others = [member.filename for member in members if member.compress_type != _DEFLATED]
            if others:
                _refuse(path.name, f"{others[0]} is not deflated")
        return _members_of(path.name, content, members)
    except _UNREADABLE as error:
        raise PackageError(f"{path.name} is not a wheel: {error}; build or download it again") from error


@dataclass(frozen=True)
class _Member:
    """A member of a wheel, and its place in it."""

    name: str
    mode: int
    crc: int
    size: int
    deflated_size: int
    offset: int
    """Of its header in the archive."""

    @property
    def _common(self) -> tuple[int, ...]:
        """Return what its two headers have in common."""
        sizes = self.crc, self.deflated_size, self.size
        return _NEEDS, _NO_FLAGS, _DEFLATED, _TIME, _DATE, *sizes, len(self.name.encode()), 0

    @property
    def header(self) -> bytes:
        """Return what is in front of its content."""
        return _LOCAL.pack(_LOCAL_SIGNATURE, *self._common) + self.name.encode()

    @property
    def entry(self) -> bytes:
        """Return what the directory says of it."""
        numbers = *self._common, 0, 0, 0, self.mode << 16, self.offset
        return _CENTRAL.pack(_CENTRAL_SIGNATURE, _MADE_BY, *numbers) + self.name.encode()

    @property
    def end(self) -> int:
        """Return where the next one begins."""
        return self.offset + len(self.header) + self.deflated_size


def _directory(members: Sequence[_Member]) -> bytes:
    """Return what is behind the members."""
    entries = b"".join(x.entry for x in members)
    offset = members[-1].end if members else 0
    return entries + _END.pack(_END_SIGNATURE, 0, 0, len(members), len(members), len(entries), offset, 0)


def _members_of(wheel: str, content: bytes, members: Sequence[zipfile.ZipInfo]) -> dict[str, bytes]:
    """Inflate the members, and compare all else in the archive with what the build writes.

    No member is inflated beyond the size that it states.
    """
    found: list[_Member] = []
    read: dict[str, bytes] = {}
    modes: dict[str, int] = {}
    for member in members:
        name, mode = member.filename, member.external_attr >> 16
        if not name.isascii() or ".." in PurePosixPath(name).parts or name.startswith("/"):
            _refuse(wheel, f"the name of its member {name!a} is not one that the build gives")
        if mode not in _MODES or modes.setdefault(name.split("/")[0], mode) != mode:
            _refuse(wheel, f"{name} has mode {mode:o}")
        if name in read:
            _refuse(wheel, "it has two members of one name")
        offset = found[-1].end if found else 0
        found.append(_Member(name, mode, member.CRC, member.file_size, member.compress_size, offset))
        start = offset + len(found[-1].header)
        if content[offset:start] != found[-1].header:
            _refuse(wheel, f"the header of {name} is damaged")
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        read[name] = inflate.decompress(content[start : found[-1].end], member.file_size + 1)
        stated = member.file_size, member.CRC
        if not inflate.eof or inflate.unused_data or (len(read[name]), zlib.crc32(read[name])) != stated:
            _refuse(wheel, f"{name} is damaged")
    if content[found[-1].end if found else 0 :] != _directory(found):
        _refuse(wheel, "its directory is damaged")
    return read


def deflate_harder(wheel: Path) -> None:
    """Deflate the members of a wheel that was just built anew, as small as libdeflate makes them.

    The library of an H200's default wheel is 4.58 MB so, and 5.03 by zlib's default level, for 8 seconds
    (research/log/2026-11-30-wheel-size.md).

    Raises:
        OutputError: the disk is full.
    """
    from deflate import deflate_compress

    members: list[_Member] = []
    written: list[bytes] = []
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            content = archive.read(member)
            deflated = bytes(deflate_compress(content, _LEVEL))
            offset = members[-1].end if members else 0
            sizes = len(content), len(deflated)
            members.append(_Member(member.filename, member.external_attr >> 16, zlib.crc32(content), *sizes, offset))
            written += members[-1].header, deflated
    write_whole(wheel, b"".join((*written, _directory(members))))
