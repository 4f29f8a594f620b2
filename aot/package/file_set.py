"""Files in memory, by their paths: what is rendered, before any of it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from aot.core.errors import PackageError


class FileSet(Mapping[str, bytes]):
    """Files by relative POSIX path, in memory.

    Iterates in the order of the paths, so that what is made from it does not depend on the order of adding.
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def add(self, path: str, content: bytes) -> None:
        """Add a file.

        Raises:
            PackageError: the path is absolute, leaves the tree, is not in normal form, or is there already.
        """
        pure = PurePosixPath(path)
        if not path or pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == ".":
            raise PackageError(
                f"cannot render to {path!r}: expected a relative path inside the tree; rename the template"
            )
        if path in self._files:
            raise PackageError(f"two templates render to {path!r}; expected one; rename or remove the other")
        self._files[path] = content

    def __getitem__(self, path: str) -> bytes:
        """Return a file's content."""
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the paths in order."""
        return iter(sorted(self._files))

    def __len__(self) -> int:
        """Count the files."""
        return len(self._files)
