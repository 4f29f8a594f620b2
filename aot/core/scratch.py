"""Scratch folders that do not outlive their command: removed at its end, or by the next command if it was killed.

A folder is locked for as long as its owner lives. The lock goes with the process, however it ends, so that a folder
which can be locked has lost its owner. Nothing here depends on process ids, which are used again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_AGE_S = 2.0
"""Younger folders are left alone: between making a folder and locking it, its owner needs microseconds."""

_open: set[Path] = set()
"""The folders of this process, for `remove_all`."""


def _lock(folder: Path) -> int | None:
    """Return a descriptor that holds the lock of a folder, or None where it is held, or cannot be had."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is held, or the file system has no locks
        os.close(descriptor)
        return None
    return descriptor


def sweep(prefix: str, parent: Path) -> None:
    """Remove the scratch folders of a prefix whose owners are gone; those of other users stay."""
    for folder in parent.glob(f"{prefix}*"):
        try:
            found = folder.lstat()
        except OSError:  # its owner removed it meanwhile
            continue
        if found.st_uid != os.getuid() or time.time() - found.st_ctime < MIN_AGE_S:
            continue
        descriptor = _lock(folder)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


@contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for the duration of a `with` block, after removing those that killed commands left.

    Args:
        prefix: how its name begins; folders of one prefix are swept together.
        parent: where to make it, a folder that is there; by default the directory for temporary files.

    Raises:
        OSError: it cannot be made.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    sweep(prefix, parent)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    _open.add(folder)
    descriptor = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _open.discard(folder)
        if descriptor is not None:
            os.close(descriptor)


def remove_all() -> None:
    """Remove the folders of this process, which is about to end without leaving its `with` blocks."""
    for folder in list(_open):
        shutil.rmtree(folder, ignore_errors=True)
