"""The check of the installed package: every file that the wheel put into it, by size and SHA-256."""

from __future__ import annotations

from typing import NamedTuple

from . import _files, errors


class CheckReport(NamedTuple):
    """What `check` compared."""

    directory: str
    num_files: int
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.directory}: {self.num_files} files, {self.num_bytes:,} bytes, each as it was built"


def check() -> CheckReport:
    """Compare size and SHA-256 of every file of the package with what was recorded when it was built.

    This finds any damage to a file of the package and of its packs; importing it and loading its libraries compare
    sizes and the libraries' headers only. What Python keeps in `__pycache__` is not of the package. No library is
    loaded.

    Returns:
        How many files and bytes were compared.

    Raises:
        CorruptLibraryError: a file is missing, cannot be read, or differs: a line for each.
    """
    faults, num_files, num_bytes = [], 0, 0
    for folder in _folders():
        folder.forget()
        try:
            files = folder.recorded().values()
        except errors.CorruptLibraryError as error:
            faults.append(str(error))
            continue
        for file in files:
            try:
                folder.verify(file.name)
            except errors.CorruptLibraryError as error:
                faults.append(str(error))
        num_files, num_bytes = num_files + len(files), num_bytes + sum(x.num_bytes for x in files)
    if faults:
        raise errors.CorruptLibraryError("\n".join(faults))
    return CheckReport(_files.DIRECTORY, num_files, num_bytes)


def _folders() -> list[_files.Folder]:
    """Return the package's folder, and where it has no kernels of its own those of its packs."""
    if _files.OWN.has_kernels:
        return [_files.OWN]
    from ._packs import found

    return [_files.OWN, *(pack.folder for pack in found())]
