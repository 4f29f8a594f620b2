"""Write a Debian binary package: an archive of two archives, whose bytes follow from what is in it alone."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

_MAGIC = b"!<arch>\n"
"""Source: ar(5)."""
_FORMAT = b"2.0\n"
"""Content of `debian-binary`. Source: deb(5)."""
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755


@dataclass(frozen=True)
class DebFile:
    """A binary package, before it is written."""

    fields: Mapping[str, str]
    """Of its control file but `Installed-Size`, in order. The text of `Description` has its further lines indented."""
    content: Mapping[str, bytes]
    """Files by their paths below the root, such as `usr/include/aot_gemm.h`."""
    links: Mapping[str, str]
    """Symbolic links by their paths, and what they name."""
    controls: Mapping[str, bytes]
    """Further files of the control archive, such as `triggers`."""

    @property
    def name(self) -> str:
        """Return its file name. Source: dpkg-name(1)."""
        return "_".join(self.fields[key] for key in ("Package", "Version", "Architecture")) + ".deb"


def _folders(paths: list[str]) -> list[str]:
    return sorted({str(parent) for path in paths for parent in PurePosixPath(path).parents if str(parent) != "."})


def _member(name: str, epoch: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mtime, info.uname, info.gname = epoch, "root", "root"
    return info


def _archive(content: Mapping[str, bytes], links: Mapping[str, str], epoch: int) -> bytes:
    """Pack files, links and the folders that they lie in: owned by root, of one time, in the order of their paths."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        folders = _folders([*content, *links])
        for path in ["", *sorted([*folders, *content, *links])]:
            info = _member(f"./{path}", epoch)
            if path in content:
                info.size, info.mode = len(content[path]), _FILE_MODE
                archive.addfile(info, io.BytesIO(content[path]))
            elif path in links:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, links[path], 0o777
                archive.addfile(info)
            else:
                info.type, info.mode = tarfile.DIRTYPE, _FOLDER_MODE
                archive.addfile(info)
    return lzma.compress(packed.getvalue(), preset=6)


def _installed_kib(deb: DebFile) -> int:
    """Estimate the disk that a package takes: files rounded up to KiB, and 1 for all else. Source: deb-substvars(5)."""
    others = len(_folders([*deb.content, *deb.links])) + len(deb.links)
    return others + sum(-(-len(content) // 1024) for content in deb.content.values())


def _control(deb: DebFile, epoch: int) -> bytes:
    fields = dict(deb.fields)
    description = fields.pop("Description")
    fields |= {"Installed-Size": str(_installed_kib(deb)), "Description": description}
    text = "".join(f"{key}: {value}\n" for key, value in fields.items())
    sums = (f"{hashlib.md5(content).hexdigest()}  {path}\n" for path, content in sorted(deb.content.items()))  # noqa: S324
    files = {"control": text.encode(), "md5sums": "".join(sums).encode(), **deb.controls}
    return _archive(files, {}, epoch)


def _ar_member(name: str, content: bytes, epoch: int) -> bytes:
    header = f"{name:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)


def to_bytes(deb: DebFile, epoch: int) -> bytes:
    """Return a package's bytes.

    Args:
        deb: what is in it.
        epoch: the time of all members, in seconds since 1970.
    """
    members = {
        "debian-binary": _FORMAT,
        "control.tar.xz": _control(deb, epoch),
        "data.tar.xz": _archive(deb.content, deb.links, epoch),
    }
    return _MAGIC + b"".join(_ar_member(name, content, epoch) for name, content in members.items())


def gzipped(content: bytes) -> bytes:
    """Compress as Debian's policy asks for documentation: best, without a name or a time."""
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as file:  # gzip.compress names another system by Python's version
        file.write(content)
    return packed.getvalue()
