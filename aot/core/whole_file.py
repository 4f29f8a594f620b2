"""Write a file so that it is there whole or not at all; and find out first whether it can be written."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_NEW_FOLDERS = 64
"""Most folders that are made for a file: more are a mistake, and some thousand more than Python can make at once."""
PROBE_BYTES = 4096
"""What a probe writes: a full disk takes an empty file, and not this."""


def _error(path: Path, error: OSError | ValueError) -> OutputError:
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return OutputError(f"cannot write {path}: {cause}; give another path, or free that one")


def _partial(path: Path) -> Path:
    """Name the file that the content is written to first, beside the one that it becomes."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def _place(path: Path) -> Path:
    """Return where a path leads: what a link points at is written, and the link stays.

    Raises:
        OSError: it leads in a circle.
    """
    place = Path(os.path.realpath(path)) if path.is_symlink() else path
    if place.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return place


def _is_special(path: Path) -> bool:
    """Say whether a path is there and neither a file nor a folder: a device or a pipe, which must not be replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _probe(path: Path) -> None:
    """Write and remove a file of a name."""
    try:
        path.write_bytes(bytes(PROBE_BYTES))
    finally:
        with suppress(OSError):
            path.unlink()


def _nearest(path: Path) -> Path:
    """Return the nearest folder above a path that is there; what is between has names that can be made.

    Raises:
        OSError: what is there is no folder, a name is too long, or there are too many.
    """
    for missing, folder in enumerate((path, *path.parents)):
        try:
            folder.lstat()
        except FileNotFoundError:
            continue
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{folder} is no folder")
        if missing > MAX_NEW_FOLDERS:
            raise OSError(errno.ENAMETOOLONG, f"{missing} folders would have to be made, at most {MAX_NEW_FOLDERS} are")
        return folder
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def check_output(path: Path) -> Path:
    """Find out whether a file can be written, before the work whose result it is; return its path.

    Its folder may be missing: it is made with the file.

    Raises:
        OutputError: the path is a folder, or cannot be written; nothing is left of the attempt.
    """
    try:
        place = path if _is_special(path) else _place(path)
        if not place.name or place.is_dir():
            raise OutputError(f"cannot write {path}: it is a folder; give the path of a file")
        if place.exists() and not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not _is_special(place):
            _probe(_partial(_nearest(place.parent) / place.name))
    except (OSError, ValueError) as error:
        raise _error(path, error) from error
    return path


def check_folder(path: Path) -> Path:
    """Find out whether files can be put into a folder, which may be missing; return its path.

    Raises:
        OutputError: they cannot, or the path is a file.
    """
    try:
        _probe(_nearest(path) / f".{os.getpid()}.partial")
    except (OSError, ValueError) as error:
        raise _error(path, error) from error
    return path


@contextmanager
def writing_alone(path: Path) -> Iterator[None]:
    """Let no other process that asks for the same write a file, from reading it to putting another in its place.

    Waits for one that does. The file's folder is locked, so that nothing is left behind; where the file system has no
    locks, nothing is waited for.

    Raises:
        OutputError: the path cannot be looked at.
    """
    try:
        descriptor = _lock_folder(path)
    except (OSError, ValueError) as error:
        raise _error(path, error) from error
    try:
        yield
    finally:
        os.close(descriptor)


def _lock_folder(path: Path) -> int:
    """Lock the folder that a file is in, or the nearest above it that is there; return what holds the lock."""
    folder = _nearest(_place(path).absolute().parent)
    while True:
        descriptor = os.open(folder, os.O_RDONLY)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        nearest = _nearest(_place(path).absolute().parent)
        if nearest == folder:
            return descriptor
        os.close(descriptor)  # another process made the file's own folder meanwhile
        folder = nearest


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, its folder too if need be; what stood there before stays until all is written.

    Args:
        path: the file.
        content: its bytes, or its text, written as UTF-8.

    Raises:
        OutputError: it cannot be written; what stood there stays.
    """
    encoded = content.encode() if isinstance(content, str) else content
    try:
        if _is_special(path):
            path.write_bytes(encoded)
            return
        place = _place(path)
        partial = _partial(place)
        _nearest(place.parent)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(encoded)
            partial.replace(place)
        finally:
            with suppress(OSError):
                partial.unlink()
    except (OSError, ValueError) as error:
        raise _error(path, error) from error
